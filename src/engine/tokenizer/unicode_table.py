#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode_table.h: the properties of characters that the tokenizer needs, from Unicode 16, which is the version
of Hugging Face's tokenizers library. Run by hand where that changes; needs the package unicodedata2 of that version."""
import sys
import unicodedata as old

import unicodedata2 as new

SPACE = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
OTHER_ALPHABETIC = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)}
JOIN_CONTROL = {0x200C, 0x200D}


def bits(cp):
    c = new.category(chr(cp))
    b = 1 if c in ("Lu", "Lt") else 2 if c == "Ll" else 4 if c in ("Lm", "Lo") else 0
    b |= 8 if c[0] == "N" else 0
    b |= 16 if cp in SPACE else 0
    b |= 32 if c[0] == "M" else 0
    b |= 64 if c[0] == "P" else 0
    if c[0] in "LM" or c in ("Nd", "Nl", "Pc") or cp in OTHER_ALPHABETIC or cp in JOIN_CONTROL:
        b |= 128
    return b


def width(cp):
    return 1 if cp < 0x80 else 2 if cp < 0x800 else 3 if cp < 0x10000 else 4


def rows(items, fmt, out):
    line = "\t"
    for item in items:
        s = fmt % item + ","
        if len(line) + len(s) > 104:
            out.write(line.rstrip() + "\n")
            line = "\t"
        line += s + " "
    out.write(line.rstrip() + "\n")


def main(out):
    ranges = []
    for cp in range(0x110000):
        b = bits(cp)
        if not ranges or ranges[-1][1] != b:
            ranges.append((cp, b))
    stand = {}
    for cp in range(0x110000 - 1, 0x7F, -1):
        c = old.category(chr(cp))
        if c not in ("Cn", "Cs", "Co") and c == new.category(chr(cp)):
            if cp < 0x3400 or cp >= 0x10000:
                stand[(c, width(cp))] = cp
    stand[("Lo", 4)] = 0x20000  # nearly all new ones are Han
    recent = []
    for cp in range(0x110000):
        c = new.category(chr(cp))
        if old.category(chr(cp)) == "Cn" and c != "Cn" and (c, width(cp)) in stand:
            s = stand[(c, width(cp))]
            if recent and recent[-1][1] == cp - 1 and recent[-1][2] == s:
                recent[-1] = (recent[-1][0], cp, s)
            else:
                recent.append((cp, cp, s))
    out.write("/* SPDX-License-Identifier: Apache-2.0 */\n")
    out.write("/* Made by unicode_table.py from Unicode %s. */\n/* clang-format off */\n" % new.unidata_version)
    out.write("/* Classes from this code point to the next entry's. */\n")
    out.write("static const struct { uint32_t first; uint8_t bits; } unicode_ranges[] = {\n")
    rows(ranges, "{0x%x, %d}", out)
    out.write("};\n/* Code points younger than Unicode %s, and an older one of the same category and length in UTF-8. */\n" % old.unidata_version)
    out.write("static const struct { uint32_t first, last, stand_in; } unicode_recent[] = {\n")
    rows(recent, "{0x%x, 0x%x, 0x%x}", out)
    out.write("};\n/* clang-format on */\n")


main(sys.stdout)
