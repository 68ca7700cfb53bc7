/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions for the two pre-tokenizer patterns that nearly all models use. Each returns the end of the match
 * that begins at pos. The alternatives of the pattern are one paragraph of code each, in the same order. One
 * of them always matches, so that the matches cover the whole text.
 */
#include "engine/tokenizer/match.h"

static size_t run_of(const struct unicode *u, const char *text, size_t pos, size_t len, uint8_t classes)
{
	unsigned n;

	while (pos < len && (utf8_class(u, text + pos, &n) & classes))
		pos += n;
	return pos;
}

static size_t run_without(const struct unicode *u, const char *text, size_t pos, size_t len, uint8_t classes)
{
	unsigned n;

	while (pos < len && !(utf8_class(u, text + pos, &n) & classes))
		pos += n;
	return pos;
}

/* Matches \s+(?!\S)|\s+ at pos, where a run of white space begins that ends at `end`. */
static size_t space_run(const char *text, size_t pos, size_t end, size_t len)
{
	size_t last;

	if (end == len)
		return end;
	last = end - utf8_back(text + pos, text + end);
	return last > pos ? last : end;
}

size_t scan_gpt2(const struct unicode *u, const char *text, size_t pos, size_t len)
{
	size_t p = pos;
	unsigned n;
	uint8_t c;

	/* 's|'t|'re|'ve|'m|'ll|'d */
	if (text[pos] == '\'' && pos + 1 < len) {
		char a = text[pos + 1], b = pos + 2 < len ? text[pos + 2] : 0;

		if (a == 's' || a == 't' || a == 'm' || a == 'd')
			return pos + 2;
		if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
			return pos + 3;
	}

	/* ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+ */
	if (text[pos] == ' ' && pos + 1 < len)
		p++;
	c = utf8_class(u, text + p, &n);
	if (c & U_LETTER)
		return run_of(u, text, p + n, len, U_LETTER);
	if (c & U_NUMBER)
		return run_of(u, text, p + n, len, U_NUMBER);
	if (!(c & U_SPACE))
		return run_without(u, text, p + n, len, U_LETTER | U_NUMBER | U_SPACE);

	/* \s+(?!\S)|\s+ */
	return space_run(text, pos, run_of(u, text, pos, len, U_SPACE), len);
}

/* Matches (?i:'s|'t|'re|'ve|'m|'ll|'d); returns the end, or pos where it does not match. U+017F
 * folds to s. */
static size_t contraction(const char *text, size_t pos, size_t len)
{
	char a, b;

	if (text[pos] != '\'' || pos + 1 >= len)
		return pos;
	a = text[pos + 1] | 0x20;
	b = pos + 2 < len ? text[pos + 2] | 0x20 : 0;
	if (a == 's' || a == 't' || a == 'm' || a == 'd')
		return pos + 2;
	if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
		return pos + 3;
	return text[pos + 1] == '\xc5' && pos + 2 < len && text[pos + 2] == '\xbf' ? pos + 3 : pos;
}

static size_t newlines(const char *text, size_t pos, size_t len)
{
	while (pos < len && (text[pos] == '\r' || text[pos] == '\n'))
		pos++;
	return pos;
}

size_t scan_llama3(const struct unicode *u, const char *text, size_t pos, size_t len, int digits)
{
	size_t p = contraction(text, pos, len), end;
	unsigned n, m;
	uint8_t c;

	if (p > pos)
		return p;
	c = utf8_class(u, text + pos, &n);

	/* [^\r\n\p{L}\p{N}]?\p{L}+ */
	if (c & U_LETTER)
		return run_of(u, text, pos + n, len, U_LETTER);
	if (!(c & U_NUMBER) && text[pos] != '\r' && text[pos] != '\n' && pos + n < len &&
	    (utf8_class(u, text + pos + n, &m) & U_LETTER))
		return run_of(u, text, pos + n + m, len, U_LETTER);

	/* \p{N}{1,digits} */
	if (c & U_NUMBER) {
		p = pos + n;
		for (int i = 1; i < digits && p < len && (utf8_class(u, text + p, &n) & U_NUMBER); i++)
			p += n;
		return p;
	}

	/* ?[^\s\p{L}\p{N}]+[\r\n]* */
	p = pos;
	if (text[pos] == ' ' && pos + 1 < len)
		p++;
	if (!(utf8_class(u, text + p, &n) & (U_SPACE | U_LETTER | U_NUMBER)))
		return newlines(text, run_without(u, text, p, len, U_SPACE | U_LETTER | U_NUMBER), len);

	/* \s*[\r\n]+: up to the last line end of the run */
	end = run_of(u, text, pos, len, U_SPACE);
	for (p = end; p > pos; p--)
		if (text[p - 1] == '\r' || text[p - 1] == '\n')
			return p;

	/* \s+(?!\S)|\s+ */
	return space_run(text, pos, end, len);
}
