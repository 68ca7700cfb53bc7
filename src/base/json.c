/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers over jansson: parsing with the place of an error, and typed access to members. */
#include "base/json.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"

int json_parse(const char *text, size_t len, const char *where, json_t **out, struct error *err)
{
	json_error_t je;

	*out = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
	if (!*out)
		return error_set(err, -EINVAL, "%s:%d: not valid JSON: %s", where, je.line, je.text);
	return 0;
}

/* The end of the string or the single character that begins at p. */
static const char *step(const char *p, const char *end)
{
	if (*p != '"')
		return p + 1;
	for (p++; p < end && *p != '"'; p++)
		p += *p == '\\';
	return p < end ? p + 1 : end;
}

/* The text with objects in place of the numbers that JSON lacks. */
static void replace_floats(const char *p, const char *end, struct strbuf *out)
{
	static const char *const floats[] = {"NaN", "Infinity", "-Infinity"};

	for (const char *next; p < end; p = next) {
		size_t i = 0;

		while (i < ARRAY_SIZE(floats) && ((size_t)(end - p) < strlen(floats[i]) ||
		                                  memcmp(p, floats[i], strlen(floats[i])) != 0))
			i++;
		next = i < ARRAY_SIZE(floats) ? p + strlen(floats[i]) : step(p, end);
		if (i < ARRAY_SIZE(floats))
			strbuf_addf(out, "{\"__float__\":\"%s\"}", floats[i]);
		else
			strbuf_add(out, p, (size_t)(next - p));
	}
}

int json_parse_python(const char *text, size_t len, const char *where, json_t **out, struct error *err)
{
	_cleanup_strbuf_ struct strbuf replaced = {0};
	struct error why = ERROR_INIT;

	if (json_parse(text, len, where, out, &why) == 0)
		return 0;
	replace_floats(text, text + len, &replaced);
	if (replaced.failed)
		return error_oom(err);
	if (json_parse(replaced.data ? replaced.data : "", replaced.len, where, out, NULL) == 0)
		return 0;
	/* Its place in the text as it is. */
	return error_set(err, why.code, "%s", why.message);
}

static int read_file(const char *path,
                     int (*parse)(const char *, size_t, const char *, json_t **, struct error *),
                     json_t **out, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r = file_read(path, 0, &text, &len, err);

	return r < 0 ? r : parse(text, len, path, out, err);
}

int json_read_file(const char *path, json_t **out, struct error *err)
{
	return read_file(path, json_parse, out, err);
}

int json_read_python(const char *path, json_t **out, struct error *err)
{
	return read_file(path, json_parse_python, out, err);
}

/* v with so many significant digits; whether that reads back as v. */
static bool print_digits(char *buf, size_t size, double v, int digits)
{
	snprintf(buf, size, "%.*e", digits - 1, v);
	return strtod(buf, NULL) == v;
}

const char *json_real_text(char *buf, size_t size, double v)
{
	char *e;
	int digits = DBL_DIG, exponent;

	if (!isfinite(v)) {
		snprintf(buf, size, "null");
		return buf;
	}
	/* Most of a configuration are integers, which are exact below 1e15. */
	if (v == trunc(v) && fabs(v) < 1e15) {
		snprintf(buf, size, "%.1f", v);
		return buf;
	}
	/* What 15 digits can tell has no other text as short or shorter, but for zeros at its end; numbers
	 * below DBL_MIN have fewer bits than that. */
	if (fabs(v) < DBL_MIN) {
		for (digits = 1; !print_digits(buf, size, v, digits) && digits < 17;)
			digits++;
	} else if (print_digits(buf, size, v, digits)) {
		for (e = strchr(buf, 'e') - 1; *e == '0' && digits > 1; e--)
			digits--;
		print_digits(buf, size, v, digits);
	} else if (!print_digits(buf, size, v, ++digits)) {
		print_digits(buf, size, v, ++digits);
	}
	e = strchr(buf, 'e');
	exponent = e ? atoi(e + 1) : 0;
	if (exponent >= -4 && exponent < 16)
		snprintf(buf, size, "%.*f", MAX(digits - 1 - exponent, 1), v);
	return buf;
}

static void write_value(struct strbuf *b, const json_t *value, int indent, bool sort_keys, int depth);

static void line_break(struct strbuf *b, int indent, int depth)
{
	if (indent) {
		strbuf_addc(b, '\n');
		for (int i = 0; i < indent * depth; i++)
			strbuf_addc(b, ' ');
	}
}

static int key_order(const void *x, const void *y)
{
	return strcmp(*(const char *const *)x, *(const char *const *)y);
}

static void write_string(struct strbuf *b, const char *s, size_t len)
{
	static const char escapes[] = "\bb\tt\nn\ff\rr\"\"\\\\";
	size_t from = 0;

	strbuf_addc(b, '"');
	for (size_t i = 0; i < len; i++) {
		unsigned char c = s[i];
		const char *escape;

		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		strbuf_add(b, s + from, i - from);
		from = i + 1;
		for (escape = escapes; *escape && *escape != (char)c;)
			escape += 2;
		if (*escape)
			strbuf_addf(b, "\\%c", escape[1]);
		else
			strbuf_addf(b, "\\u%04x", c);
	}
	strbuf_add(b, s + from, len - from);
	strbuf_addc(b, '"');
}

static void write_member(struct strbuf *b, const char *key, const json_t *value, int indent, bool sort_keys,
                         int depth)
{
	line_break(b, indent, depth);
	write_string(b, key, strlen(key));
	strbuf_adds(b, indent ? ": " : ":");
	write_value(b, value, indent, sort_keys, depth);
}

static void write_sorted(struct strbuf *b, const json_t *value, int indent, int depth)
{
	size_t n = json_object_size(value), i = 0;
	_cleanup_free_ const char **keys = calloc(n + 1, sizeof(*keys));
	const char *key;
	json_t *v;

	if (!keys) {
		b->failed = true;
		return;
	}
	json_object_foreach((json_t *)value, key, v)
	{
		keys[i++] = key;
	}
	qsort(keys, n, sizeof(*keys), key_order);
	for (i = 0; i < n; i++) {
		if (i)
			strbuf_addc(b, ',');
		write_member(b, keys[i], json_object_get(value, keys[i]), indent, true, depth);
	}
}

static void write_object(struct strbuf *b, const json_t *value, int indent, bool sort_keys, int depth)
{
	bool first = true;
	const char *key;
	json_t *v;

	strbuf_addc(b, '{');
	if (sort_keys) {
		write_sorted(b, value, indent, depth + 1);
	} else {
		json_object_foreach((json_t *)value, key, v)
		{
			if (!first)
				strbuf_addc(b, ',');
			write_member(b, key, v, indent, false, depth + 1);
			first = false;
		}
	}
	if (json_object_size(value))
		line_break(b, indent, depth);
	strbuf_addc(b, '}');
}

static void write_value(struct strbuf *b, const json_t *value, int indent, bool sort_keys, int depth)
{
	char real[40];

	switch (json_typeof(value)) {
	case JSON_OBJECT:
		write_object(b, value, indent, sort_keys, depth);
		break;
	case JSON_ARRAY:
		strbuf_addc(b, '[');
		for (size_t i = 0; i < json_array_size(value); i++) {
			if (i)
				strbuf_addc(b, ',');
			line_break(b, indent, depth + 1);
			write_value(b, json_array_get(value, i), indent, sort_keys, depth + 1);
		}
		if (json_array_size(value))
			line_break(b, indent, depth);
		strbuf_addc(b, ']');
		break;
	case JSON_STRING:
		write_string(b, json_string_value(value), json_string_length(value));
		break;
	case JSON_INTEGER:
		strbuf_addf(b, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
		break;
	case JSON_REAL:
		strbuf_adds(b, json_real_text(real, sizeof(real), json_real_value(value)));
		break;
	default:
		strbuf_adds(b, json_is_true(value) ? "true" : json_is_false(value) ? "false" : "null");
		break;
	}
}

int json_write_file(const char *path, const json_t *value, int indent, bool sort_keys, struct error *err)
{
	_cleanup_strbuf_ struct strbuf b = {0};

	write_value(&b, value, indent, sort_keys, 0);
	strbuf_addc(&b, '\n');
	return b.failed ? error_oom(err) : file_write_atomic(path, b.data, b.len, 0644, err);
}

char *json_to_text(const json_t *value, int indent)
{
	struct strbuf b = {0};

	if (!value)
		return NULL;
	write_value(&b, value, indent, false, 0);
	return strbuf_steal(&b);
}

char *json_to_string(const json_t *value)
{
	return json_to_text(value, 0);
}

const char *json_get_string(const json_t *object, const char *key, const char *fallback)
{
	const json_t *v = json_object_get(object, key);

	return json_is_string(v) ? json_string_value(v) : fallback;
}

int64_t json_get_int(const json_t *object, const char *key, int64_t fallback)
{
	const json_t *v = json_object_get(object, key);

	return json_is_integer(v) ? json_integer_value(v) : fallback;
}

double json_get_number(const json_t *object, const char *key, double fallback)
{
	const json_t *v = json_object_get(object, key);

	return json_is_number(v) ? json_number_value(v) : fallback;
}

bool json_get_bool(const json_t *object, const char *key, bool fallback)
{
	const json_t *v = json_object_get(object, key);

	return json_is_boolean(v) ? json_is_true(v) : fallback;
}

int json_need_string(const json_t *object, const char *key, const char *where, const char **out,
                     struct error *err)
{
	const json_t *v = json_object_get(object, key);

	if (!json_is_string(v))
		return error_set(err, -EINVAL, "%s: %s: %s; a string is needed", where, key,
		                 v ? "not a string" : "missing");
	*out = json_string_value(v);
	return 0;
}

int json_need_int(const json_t *object, const char *key, const char *where, int64_t min, int64_t max,
                  int64_t *out, struct error *err)
{
	const json_t *v = json_object_get(object, key);

	if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
		return error_set(err, -EINVAL, "%s: %s: %s; an integer from %lld to %lld is needed", where,
		                 key, v ? "out of range or not an integer" : "missing", (long long)min,
		                 (long long)max);
	*out = json_integer_value(v);
	return 0;
}
