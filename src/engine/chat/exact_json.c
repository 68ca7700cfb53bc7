/* SPDX-License-Identifier: Apache-2.0 */
/* JSON with numbers kept as they are written: integers beyond 64 bits, and the form that Python gives
 * floats. */
#include "engine/chat/exact_json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

/*
 * An integer above int64 is {"\xff": "DIGITS"} in memory: no text has such a key, since it is no UTF-8 and
 * jansson checks what it reads. On its way through jansson it is a string of NUL and the digits; strings of
 * the text that begin with NUL themselves get another one in front, so that the two cannot be confused.
 */
#define INTEGER_KEY "\xff"

const char *exact_json_integer(const json_t *v)
{
	return json_is_object(v) ? json_string_value(json_object_get(v, INTEGER_KEY)) : NULL;
}

/* The end of the number at p; *big: it is an integer that int64 cannot hold. */
static const char *number_end(const char *p, const char *end, bool *big)
{
	const char *from = p;
	bool integer = true;
	char digits[24];

	for (; p < end && *p && strchr("+-.0123456789Ee", *p); p++)
		integer = integer && ((*p >= '0' && *p <= '9') || (*p == '-' && p == from));
	*big = false;
	if (integer && p - from >= (ptrdiff_t)sizeof(digits)) {
		*big = true;
	} else if (integer) {
		memcpy(digits, from, p - from);
		digits[p - from] = '\0';
		errno = 0;
		strtoll(digits, NULL, 10);
		*big = errno == ERANGE;
	}
	/* A number with leading zeros is no JSON, which jansson reports. */
	from += from < end && *from == '-';
	*big = *big && *from != '0';
	return p;
}

/* The end of one of the words that Python writes for numbers which JSON does not have; NULL: p is none. */
static const char *word_end(const char *p, const char *end)
{
	static const char *const words[] = {"NaN", "Infinity", "-Infinity"};

	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		if ((size_t)(end - p) >= strlen(words[i]) && !memcmp(p, words[i], strlen(words[i])))
			return p + strlen(words[i]);
	return NULL;
}

/* Whether the text at p, which is a number, is beyond the range of a double: Python reads an infinity. */
static bool is_infinite(const char *p, const char *end)
{
	char *text = strndup(p, end - p);
	bool infinite = text && isinf(strtod(text, NULL));

	free(text);
	return infinite;
}

/* The text with each integer above int64 as a string, and null for NaN and for infinities, which stand for
 * missing values. */
static void mark_numbers(const char *p, const char *end, struct strbuf *out)
{
	static const char nul[] = "\\u0000";
	bool big;

	while (p < end) {
		const char *from = p;

		if (*p == '"') {
			for (p++; p < end && *p != '"'; p++)
				p += *p == '\\';
			p = p < end ? p + 1 : end;
			strbuf_addc(out, '"');
			if (p - from > (ptrdiff_t)strlen(nul) && !memcmp(from + 1, nul, strlen(nul)))
				strbuf_adds(out, nul);
			strbuf_add(out, from + 1, p - from - 1);
		} else if (word_end(p, end)) {
			p = word_end(p, end);
			strbuf_adds(out, "null");
		} else if (*p == '-' || (*p >= '0' && *p <= '9')) {
			p = number_end(p, end, &big);
			if (!big && is_infinite(from, p)) {
				strbuf_adds(out, "null");
				continue;
			}
			strbuf_adds(out, big ? "\"\\u0000" : "");
			strbuf_add(out, from, p - from);
			strbuf_adds(out, big ? "\"" : "");
		} else {
			strbuf_addc(out, *p++);
		}
	}
}

/* The value that a marked string stands for, NULL: out of memory. Any other value is itself. */
static json_t *unmarked(json_t *v)
{
	const char *s = json_string_value(v);
	size_t len = json_string_length(v);

	if (!s || len < 2 || s[0] != '\0')
		return json_incref(v);
	if (s[1] == '\0')
		return json_stringn_nocheck(s + 1, len - 1);
	v = json_object();
	if (v && json_object_set_new_nocheck(v, INTEGER_KEY, json_stringn_nocheck(s + 1, len - 1)) < 0) {
		json_decref(v);
		return NULL;
	}
	return v;
}

/* Replaces the marked strings within *v, and *v itself. -ENOMEM. */
static int unmark(json_t **v)
{
	const char *key;
	json_t *item, *value;
	void *next;
	int r = 0;

	if (json_is_object(*v)) {
		json_object_foreach_safe(*v, next, key, item)
		{
			value = json_incref(item);
			r = r < 0 ? r : unmark(&value);
			if (r == 0 && value != item)
				r = json_object_set_nocheck(*v, key, value) < 0 ? -ENOMEM : 0;
			json_decref(value);
		}
	} else if (json_is_array(*v)) {
		for (size_t i = 0; r == 0 && i < json_array_size(*v); i++) {
			value = json_incref(json_array_get(*v, i));
			r = unmark(&value);
			if (r == 0 && value != json_array_get(*v, i))
				r = json_array_set(*v, i, value) < 0 ? -ENOMEM : 0;
			json_decref(value);
		}
	} else {
		value = unmarked(*v);
		if (!value)
			return -ENOMEM;
		json_decref(*v);
		*v = value;
	}
	return r;
}

json_t *exact_json_load(const char *text, size_t len, json_error_t *je)
{
	const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
	_cleanup_strbuf_ struct strbuf marked = {0};
	json_error_t unused;
	json_t *v;

	je = je ? je : &unused;
	v = json_loadb(text, len, flags, je);
	if (v || (json_error_code(je) != json_error_numeric_overflow && !memmem(text, len, "NaN", 3) &&
	          !memmem(text, len, "Infinity", 8)))
		return v;
	mark_numbers(text, text + len, &marked);
	v = marked.failed ? NULL : json_loadb(marked.data, marked.len, flags, je);
	if (marked.failed || (v && unmark(&v) < 0)) {
		json_decref(v);
		v = NULL;
		*je = (json_error_t){0};
	}
	return v;
}

int exact_json_parse(const char *text, size_t len, const char *where, json_t **out, struct error *err)
{
	json_error_t je;

	*out = exact_json_load(text, len, &je);
	if (*out)
		return 0;
	return *je.text ? error_set(err, -EBADMSG, "%s: not valid JSON: %s", where, je.text) : error_oom(err);
}

static void dump_string(const char *s, size_t len, struct strbuf *out)
{
	static const char short_escapes[] = "\bb\tt\nn\ff\rr\"\"\\\\";

	strbuf_addc(out, '"');
	for (size_t i = 0; i < len; i++) {
		unsigned char c = s[i];
		size_t k = 0;

		while (k < sizeof(short_escapes) - 1 && short_escapes[k] != (char)c)
			k += 2;
		if (k < sizeof(short_escapes) - 1)
			strbuf_addf(out, "\\%c", short_escapes[k + 1]);
		else if (c < 0x20)
			strbuf_addf(out, "\\u%04x", c);
		else
			strbuf_addc(out, c);
	}
	strbuf_addc(out, '"');
}

/* Python's repr: the shortest digits that read back the same; an exponent below 1e-4 and from 1e16 on. */
static void dump_real(double v, struct strbuf *out)
{
	char digits[40], *e;
	int precision = 0, exponent;

	do
		snprintf(digits, sizeof(digits), "%.*e", precision, v);
	while (strtod(digits, NULL) != v && ++precision < 17);
	e = strchr(digits, 'e');
	exponent = e ? atoi(e + 1) : 0;
	if (exponent >= -4 && exponent < 16) {
		strbuf_addf(out, "%.*f", MAX(precision - exponent, 1), v);
		return;
	}
	strbuf_add(out, digits, e - digits);
	strbuf_addf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
}

static void dump_break(int indent, int depth, struct strbuf *out)
{
	if (indent <= 0)
		return;
	strbuf_addc(out, '\n');
	for (int i = 0; i < indent * depth; i++)
		strbuf_addc(out, ' ');
}

static void dump_value(const json_t *v, int indent, int depth, struct strbuf *out)
{
	const char *separator = indent ? "," : ", ", *colon = indent < 0 ? ":" : ": ", *key;
	size_t n = 0;
	json_t *item;

	switch (json_typeof(v)) {
	case JSON_OBJECT:
		if (exact_json_integer(v)) {
			strbuf_adds(out, exact_json_integer(v));
			break;
		}
		strbuf_addc(out, '{');
		json_object_foreach((json_t *)v, key, item)
		{
			if (n++)
				strbuf_adds(out, separator);
			dump_break(indent, depth + 1, out);
			dump_string(key, strlen(key), out);
			strbuf_adds(out, colon);
			dump_value(item, indent, depth + 1, out);
		}
		if (n)
			dump_break(indent, depth, out);
		strbuf_addc(out, '}');
		break;
	case JSON_ARRAY:
		strbuf_addc(out, '[');
		for (; n < json_array_size(v); n++) {
			if (n)
				strbuf_adds(out, separator);
			dump_break(indent, depth + 1, out);
			dump_value(json_array_get(v, n), indent, depth + 1, out);
		}
		if (n)
			dump_break(indent, depth, out);
		strbuf_addc(out, ']');
		break;
	case JSON_STRING:
		dump_string(json_string_value(v), json_string_length(v), out);
		break;
	case JSON_INTEGER:
		strbuf_addf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
		break;
	case JSON_REAL:
		dump_real(json_real_value(v), out);
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		strbuf_adds(out, json_is_true(v) ? "true" : "false");
		break;
	case JSON_NULL:
		strbuf_adds(out, "null");
		break;
	}
}

void exact_json_dump(const json_t *value, int indent, struct strbuf *out)
{
	dump_value(value, indent, 0, out);
}
