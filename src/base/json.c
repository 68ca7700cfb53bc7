/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <errno.h>
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

int json_read_file(const char *path, json_t **out, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r;

	r = file_read(path, 0, &text, &len, err);
	if (r < 0)
		return r;
	return json_parse(text, len, path, out, err);
}

const char *json_real_text(char *buf, size_t size, double v)
{
	char *e;
	int digits = 1, exponent;

	if (!isfinite(v)) {
		snprintf(buf, size, "null");
		return buf;
	}
	for (; digits <= 17; digits++) {
		snprintf(buf, size, "%.*e", digits - 1, v);
		if (strtod(buf, NULL) == v)
			break;
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
	_cleanup_json_ json_t *v = json_stringn_nocheck(s, len);
	_cleanup_free_ char *text = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;

	if (text)
		strbuf_adds(b, text);
	else
		b->failed = true;
}

static void write_object(struct strbuf *b, const json_t *value, int indent, bool sort_keys, int depth)
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
	if (sort_keys)
		qsort(keys, n, sizeof(*keys), key_order);
	strbuf_addc(b, '{');
	for (i = 0; i < n; i++) {
		if (i)
			strbuf_addc(b, ',');
		line_break(b, indent, depth + 1);
		write_string(b, keys[i], strlen(keys[i]));
		strbuf_adds(b, indent ? ": " : ":");
		write_value(b, json_object_get(value, keys[i]), indent, sort_keys, depth + 1);
	}
	if (n)
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

char *json_to_string(const json_t *value)
{
	return json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
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
