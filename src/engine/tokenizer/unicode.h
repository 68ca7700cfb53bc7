/* SPDX-License-Identifier: Apache-2.0 */
/* Classes of characters, UTF-8, and GPT-2's printable alphabet of bytes. All text inside the tokenizer is
 * valid UTF-8. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

enum {
	U_UPPER = 1, /* Lu, Lt */
	U_LOWER = 2, /* Ll */
	U_OTHER = 4, /* Lm, Lo */
	U_LETTER = U_UPPER | U_LOWER | U_OTHER,
	U_NUMBER = 8,
	U_SPACE = 16, /* White_Space */
	U_MARK = 32,
	U_PUNCT = 64,
	U_WORD = 128, /* \w of Rust's regex crate */
};

/* Classes of the basic plane, one byte each; filled from ranges once per tokenizer. */
struct unicode {
	uint8_t basic[0x10000];
};

void unicode_init(struct unicode *u);
uint8_t unicode_class_astral(uint32_t cp);
/* An older character of the same category and UTF-8 length, for libraries with an older Unicode; else cp. */
uint32_t unicode_stand_in(uint32_t cp);

static inline uint8_t unicode_class(const struct unicode *u, uint32_t cp)
{
	return cp < 0x10000 ? u->basic[cp] : unicode_class_astral(cp);
}

/* Decodes the character at p, which is valid UTF-8; returns its length. */
static inline unsigned utf8_get(const char *text, uint32_t *cp)
{
	const unsigned char *p = (const unsigned char *)text;

	if (p[0] < 0x80) {
		*cp = p[0];
		return 1;
	}
	if (p[0] < 0xe0) {
		*cp = (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
		return 2;
	}
	if (p[0] < 0xf0) {
		*cp = (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
		return 3;
	}
	*cp = (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
	return 4;
}

static inline uint8_t utf8_class(const struct unicode *u, const char *p, unsigned *len)
{
	uint32_t cp;

	if ((unsigned char)*p < 0x80) {
		*len = 1;
		return u->basic[(unsigned char)*p];
	}
	*len = utf8_get(p, &cp);
	return unicode_class(u, cp);
}

/* Length of the character that ends before p. */
static inline unsigned utf8_back(const char *start, const char *p)
{
	unsigned n = 1;

	while (n < 4 && p - n > start && ((unsigned char)p[-(int)n] & 0xc0) == 0x80)
		n++;
	return n;
}

unsigned utf8_put(char out[4], uint32_t cp);
/* Length of the longest valid prefix of text. */
size_t utf8_valid_prefix(const char *text, size_t len);
/* Appends text in which each maximal invalid part is replaced by U+FFFD. */
void utf8_sanitize(struct strbuf *out, const char *text, size_t len);

/* GPT-2's printable alphabet: the code point of a byte, and back (-1: not one of them). */
uint32_t bytelevel_char(uint8_t byte);
int bytelevel_byte(uint32_t cp);
void bytelevel_encode(struct strbuf *out, const char *bytes, size_t len);
/* Returns false, and leaves out unchanged, where a character does not belong to the alphabet. */
bool bytelevel_decode(struct strbuf *out, const char *text, size_t len);
