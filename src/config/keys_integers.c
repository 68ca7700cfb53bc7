/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integers of libconfig text, before libconfig reads them. Up to 1.5 it silently keeps the lowest
 * 32 bits of one that has no L at its end, and of a hexadecimal one with an L the lowest 64: 4294967306 is 10
 * there. Here each wider one gets its L, and one that no 64 bits hold is an error. The tokens are those of
 * libconfig's scanner: what looks like a number within a name, a string or a comment is none.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "config/keys_source.h"

struct scan {
	const char *where; /* the file's name in errors */
	const char *p;
	unsigned line;
	const char *name; /* the newest name: mostly that of the setting whose value comes */
	size_t name_len;
};

static size_t digits(const char *p)
{
	return strspn(p, "0123456789");
}

const char *keys_skip_blank(const char *p)
{
	const char *end;

	if (*p == '#' || (p[0] == '/' && p[1] == '/'))
		return p + strcspn(p, "\n");
	if (p[0] == '/' && p[1] == '*') {
		end = strstr(p + 2, "*/");
		return end ? end + 2 : p + strlen(p);
	}
	if (*p == '"') {
		for (p++; *p && *p != '"'; p++)
			p += *p == '\\' && p[1];
		return p + (*p == '"');
	}
	return p + strspn(p, " \t\r\n\f\v");
}

const char *keys_skip_name(const char *p)
{
	if (!isalpha((unsigned char)*p) && *p != '*')
		return p;
	for (p++; isalnum((unsigned char)*p) || (*p && strchr("-_*", *p)); p++)
		;
	return p;
}

static void count_lines(struct scan *s, const char *end)
{
	for (; s->p < end; s->p++)
		s->line += *s->p == '\n';
}

/* The number at p, as libconfig cuts it. Past it, or p where there is none; *integer is false for a float.
 * The digits alone, without L: up to *value_end. */
static const char *number_end(const char *p, const char **value_end, bool *integer, bool *hex)
{
	const char *q = p + (*p == '-' || *p == '+'), *e;
	size_t n = digits(q);

	*hex = q == p && q[0] == '0' && (q[1] == 'x' || q[1] == 'X') && isxdigit((unsigned char)q[2]);
	*integer = true;
	if (*hex) {
		for (q += 2; isxdigit((unsigned char)*q); q++)
			;
	} else {
		q += n;
		e = *q == '.' ? q + 1 + digits(q + 1) : q;
		if ((n || e > q) && (*e == 'e' || *e == 'E')) {
			const char *x = e + 1 + (e[1] == '-' || e[1] == '+');

			e = digits(x) ? x + digits(x) : e;
		}
		*integer = e == q;
		if (!n && e == q)
			return p;
		q = e;
	}
	*value_end = q;
	for (int i = 0; *integer && *q == 'L' && i < 2; i++)
		q++;
	return q;
}

/* Copies the integer [s->p, end), with an L where it needs one. */
static int add_integer(const struct scan *s, struct strbuf *out, const char *value_end, const char *end,
                       bool hex, struct error *err)
{
	_cleanup_free_ char *text = strndup(s->p, value_end - s->p);
	long long value;

	if (!text)
		return error_oom(err);
	errno = 0;
	value = strtoll(text, NULL, hex ? 16 : 10);
	if (errno == ERANGE)
		return error_set(
		    err, -ERANGE,
		    "%s:%u: %.*s: %.100s is out of range; an integer has to be within %lld and %lld",
		    s->where, s->line, (int)MIN(s->name_len, (size_t)NAME_MAX_LEN), s->name, text,
		    (long long)INT64_MIN, (long long)INT64_MAX);
	strbuf_add(out, s->p, end - s->p);
	if (end == value_end && (value > INT32_MAX || value < INT32_MIN))
		strbuf_addc(out, 'L');
	return 0;
}

int keys_widen_integers(const char *text, const char *where, char **out, struct error *err)
{
	struct scan s = {where, text, 1, text, 0};
	_cleanup_strbuf_ struct strbuf b = {0};

	while (*s.p) {
		const char *start = s.p, *end = keys_skip_blank(s.p), *value_end;
		bool integer = false, hex = false;

		if (end == s.p && (end = keys_skip_name(s.p)) > s.p) {
			s.name = s.p;
			s.name_len = end - s.p;
		} else if (end == s.p) {
			end = number_end(s.p, &value_end, &integer, &hex);
			integer = integer && end > s.p;
			end += end == s.p; /* a sign of the grammar, or nothing that libconfig knows */
		}
		if (integer) {
			int r = add_integer(&s, &b, value_end, end, hex, err);

			if (r < 0)
				return r;
		} else {
			strbuf_add(&b, start, end - start);
		}
		count_lines(&s, end);
	}
	*out = strbuf_steal(&b);
	return *out ? 0 : error_oom(err);
}
