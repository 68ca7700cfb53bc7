/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <errno.h>
#include <string.h>

#include "base/file.h"

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

int json_write_file(const char *path, const json_t *value, int indent, bool sort_keys, struct error *err)
{
	size_t flags = JSON_ENCODE_ANY | (indent ? JSON_INDENT(indent) : JSON_COMPACT) |
	               (sort_keys ? JSON_SORT_KEYS : 0);
	_cleanup_free_ char *text = json_dumps(value, flags);
	size_t len;

	if (!text)
		return error_oom(err);
	len = strlen(text);
	text[len] = '\n'; /* takes the place of the terminator: the length is explicit from here */
	return file_write_atomic(path, text, len + 1, 0644, err);
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
