/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up the classes of characters in a table of ranges, and checks and repairs UTF-8. */
#include <string.h>

#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/unicode_table.h"

static size_t range_of(uint32_t cp)
{
	size_t lo = 0, hi = ARRAY_SIZE(unicode_ranges);

	while (hi - lo > 1) {
		size_t mid = (lo + hi) / 2;

		if (unicode_ranges[mid].first <= cp)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

uint8_t unicode_class_astral(uint32_t cp)
{
	return unicode_ranges[range_of(cp)].bits;
}

void unicode_init(struct unicode *u)
{
	for (size_t i = 0; i < ARRAY_SIZE(unicode_ranges); i++) {
		uint32_t from = unicode_ranges[i].first;
		uint32_t to = i + 1 < ARRAY_SIZE(unicode_ranges) ? unicode_ranges[i + 1].first : 0x110000;

		if (from >= sizeof(u->basic))
			break;
		memset(u->basic + from, unicode_ranges[i].bits, MIN(to, sizeof(u->basic)) - from);
	}
}

uint32_t unicode_stand_in(uint32_t cp)
{
	size_t lo = 0, hi = ARRAY_SIZE(unicode_recent);

	if (cp < unicode_recent[0].first)
		return cp;
	while (hi - lo > 1) {
		size_t mid = (lo + hi) / 2;

		if (unicode_recent[mid].first <= cp)
			lo = mid;
		else
			hi = mid;
	}
	return cp <= unicode_recent[lo].last ? unicode_recent[lo].stand_in : cp;
}

unsigned utf8_put(char out[4], uint32_t cp)
{
	if (cp < 0x80) {
		out[0] = (char)cp;
		return 1;
	}
	if (cp < 0x800) {
		out[0] = (char)(0xc0 | cp >> 6);
		out[1] = (char)(0x80 | (cp & 0x3f));
		return 2;
	}
	if (cp < 0x10000) {
		out[0] = (char)(0xe0 | cp >> 12);
		out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
		out[2] = (char)(0x80 | (cp & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | cp >> 18);
	out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
	out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
	out[3] = (char)(0x80 | (cp & 0x3f));
	return 4;
}

/* The length of a valid character at p; or 0, and *bad is the length of the maximal invalid part (Unicode,
 * section 3.9, table 3-7), which Python and Rust replace by a single U+FFFD. */
static unsigned utf8_check(const unsigned char *p, size_t n, unsigned *bad)
{
	unsigned need, low = 0x80, high = 0xbf;

	*bad = 1;
	if (p[0] < 0x80)
		return 1;
	if (p[0] >= 0xc2 && p[0] <= 0xdf) {
		need = 1;
	} else if (p[0] >= 0xe0 && p[0] <= 0xef) {
		need = 2;
		low = p[0] == 0xe0 ? 0xa0 : 0x80;
		high = p[0] == 0xed ? 0x9f : 0xbf;
	} else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
		need = 3;
		low = p[0] == 0xf0 ? 0x90 : 0x80;
		high = p[0] == 0xf4 ? 0x8f : 0xbf;
	} else {
		return 0;
	}
	for (unsigned i = 1; i <= need; i++) {
		if (i >= n || p[i] < low || p[i] > high) {
			*bad = i;
			return 0;
		}
		low = 0x80;
		high = 0xbf;
	}
	return need + 1;
}

size_t utf8_valid_prefix(const char *text, size_t len)
{
	const unsigned char *p = (const unsigned char *)text;
	size_t i = 0;
	unsigned n, bad;
	uint64_t word;

	while (i < len) {
		if (len - i >= sizeof(word)) {
			memcpy(&word, p + i, sizeof(word));
			if (!(word & 0x8080808080808080u)) {
				i += sizeof(word);
				continue;
			}
		}
		n = utf8_check(p + i, len - i, &bad);
		if (!n)
			break;
		i += n;
	}
	return i;
}

void utf8_sanitize(struct strbuf *out, const char *text, size_t len)
{
	size_t i = 0;
	unsigned bad;

	for (;;) {
		size_t n = utf8_valid_prefix(text + i, len - i);

		strbuf_add(out, text + i, n);
		i += n;
		if (i >= len)
			return;
		utf8_check((const unsigned char *)text + i, len - i, &bad);
		strbuf_add(out, "\xef\xbf\xbd", 3);
		i += bad;
	}
}

static bool bytelevel_printable(uint32_t b)
{
	return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

/* The 68 bytes that are not printable, 0 … 32, 127 … 160 and 173, become U+0100 and following, in order. */
uint32_t bytelevel_char(uint8_t b)
{
	if (bytelevel_printable(b))
		return b;
	if (b <= 32)
		return 256u + b;
	return b == 173 ? 256u + 67 : 256u + 33 + (b - 127u);
}

int bytelevel_byte(uint32_t cp)
{
	if (cp < 256)
		return bytelevel_printable(cp) ? (int)cp : -1;
	cp -= 256;
	if (cp <= 32)
		return (int)cp;
	if (cp < 67)
		return (int)cp - 33 + 127;
	return cp == 67 ? 173 : -1;
}

void bytelevel_encode(struct strbuf *out, const char *bytes, size_t len)
{
	char c[4];

	for (size_t i = 0; i < len; i++)
		strbuf_add(out, c, utf8_put(c, bytelevel_char((uint8_t)bytes[i])));
}

bool bytelevel_decode(struct strbuf *out, const char *text, size_t len)
{
	size_t start = out->len;
	uint32_t cp;

	for (size_t i = 0; i < len;) {
		int b;

		i += utf8_get(text + i, &cp);
		b = bytelevel_byte(cp);
		if (b < 0) {
			if (out->data)
				out->data[start] = 0;
			out->len = start;
			return false;
		}
		strbuf_addc(out, (char)b);
	}
	return true;
}
