/* SPDX-License-Identifier: Apache-2.0 */
/* Keys from JSON and to JSON, for messages between services and for the worker. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "config/keys_source.h"

static int nul_byte(const struct key *k, const char *where, struct error *err)
{
	char name[NAME_MAX_LEN];

	return error_set(err, -EINVAL, "%s: %s: a NUL byte in a string", where,
	                 keys_name(k, name, sizeof(name)));
}

static int assign_json(const struct keys *keys, const struct key *k, void *target, const json_t *j,
                       const char *where, bool *seen, struct error *err)
{
	_cleanup_free_ char *group = NULL;
	struct value v = {0};
	char **list = NULL, name[NAME_MAX_LEN];
	int r;

	switch (json_typeof(j)) {
	case JSON_NULL:
		return 0;
	case JSON_INTEGER:
		v.kind = VALUE_INT;
		v.i = json_integer_value(j);
		break;
	case JSON_REAL:
		v.kind = VALUE_NUMBER;
		v.d = json_real_value(j);
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		v.kind = VALUE_BOOL;
		v.b = json_is_true(j);
		break;
	case JSON_STRING:
		v.kind = VALUE_STRING;
		v.s = json_string_value(j);
		if (strlen(v.s) != json_string_length(j))
			return nul_byte(k, where, err);
		break;
	case JSON_OBJECT:
		v.kind = VALUE_GROUP;
		v.s = group = json_to_string(j);
		if (!group)
			return error_oom(err);
		break;
	case JSON_ARRAY:
		v.kind = VALUE_LIST;
		v.list = list = calloc(json_array_size(j) + 1, sizeof(*list));
		if (!list)
			return error_oom(err);
		for (size_t i = 0; i < json_array_size(j); i++) {
			const json_t *element = json_array_get(j, i);
			const char *s = json_string_value(element);

			if (s && strlen(s) != json_string_length(element)) {
				str_list_free(list);
				return nul_byte(k, where, err);
			}
			list[i] = s ? strdup(s) : NULL;
			if (!list[i]) {
				str_list_free(list);
				if (s)
					return error_oom(err);
				return error_set(err, -EINVAL, "%s: %s: not all strings; %s is needed", where,
				                 keys_name(k, name, sizeof(name)), keys_type_words[k->type]);
			}
		}
		break;
	}
	r = keys_assign(keys, k, target, &v, where, seen, err);
	str_list_free(list);
	return r;
}

int keys_from_json(const struct keys *keys, void *target, const json_t *json, const char *where, bool *seen,
                   struct error *err)
{
	const char *name, *inner;
	json_t *value, *member;

	if (!json_is_object(json))
		return error_set(err, -EINVAL, "%s: a JSON object is needed", where);
	json_object_foreach((json_t *)json, name, value)
	{
		const struct key *k = keys_find(keys, NULL, name);
		char dotted[2 * NAME_MAX_LEN];
		int r;

		if (k) {
			r = assign_json(keys, k, target, value, where, seen, err);
			if (r < 0)
				return r;
			continue;
		}
		if (!keys_is_section(keys, name))
			return keys_unknown(keys, where, name, err);
		if (!json_is_object(value))
			return error_set(err, -EINVAL, "%s: %s: a JSON object is needed", where, name);
		json_object_foreach(value, inner, member)
		{
			k = keys_find(keys, name, inner);
			if (!k) {
				snprintf(dotted, sizeof(dotted), "%s.%s", name, inner);
				return keys_unknown(keys, where, dotted, err);
			}
			r = assign_json(keys, k, target, member, where, seen, err);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

static size_t drop_member(json_t *object, const char *section, const char *name, char *buf, size_t size,
                          size_t before)
{
	if (before == 0)
		snprintf(buf, size, "%s%s%s", section ? section : "", section ? "." : "", name);
	json_object_del(object, name);
	return before + 1;
}

size_t keys_drop_unknown(const struct keys *keys, json_t *json, char *buf, size_t size)
{
	const char *name, *inner;
	json_t *value, *member;
	void *next, *inner_next;
	size_t n = 0;

	json_object_foreach_safe(json, next, name, value)
	{
		if (keys_find(keys, NULL, name))
			continue;
		if (!keys_is_section(keys, name)) {
			n = drop_member(json, NULL, name, buf, size, n);
			continue;
		}
		json_object_foreach_safe(value, inner_next, inner, member)
		{
			if (!keys_find(keys, name, inner))
				n = drop_member(value, name, inner, buf, size, n);
		}
	}
	return n;
}

/* NULL unless all of them are UTF-8. */
static json_t *list_to_json(char *const *list)
{
	_cleanup_json_ json_t *array = json_array();

	for (; array && *list; list++)
		if (json_array_append_new(array, json_string(*list)) < 0)
			return NULL;
	return steal_pointer(array);
}

static bool is_unset(const struct key *k, const void *field)
{
	switch (k->type) {
	case KEY_STRING:
	case KEY_CHOICE:
	case KEY_GROUP:
		return !*(char *const *)field;
	case KEY_LIST:
	case KEY_TEXTS:
		return !*(char **const *)field;
	default:
		return false;
	}
}

static json_t *range_to_json(const struct key_range *range)
{
	if (range->low == range->high)
		return json_integer(range->low);
	return json_sprintf("%lld..%lld", (long long)range->low, (long long)range->high);
}

/* Of one that is set; NULL: it is not UTF-8. */
static json_t *field_to_json(const struct key *k, const void *field)
{
	switch (k->type) {
	case KEY_STRING:
	case KEY_CHOICE:
		return json_string(*(char *const *)field);
	case KEY_GROUP:
		return json_loads(*(char *const *)field, 0, NULL);
	case KEY_INT:
		return json_integer(*(const int64_t *)field);
	case KEY_COUNT:
		if (*(const int64_t *)field == 0)
			return json_string(COUNT_ALL);
		return json_integer(*(const int64_t *)field);
	case KEY_DURATION:
		return json_integer(*(const int64_t *)field);
	case KEY_RANGE:
		return range_to_json(field);
	case KEY_NUMBER:
		return json_real(*(const double *)field);
	case KEY_BOOL:
		return json_boolean(*(const bool *)field);
	case KEY_LIST:
	case KEY_TEXTS:
		return list_to_json(*(char **const *)field);
	}
	return NULL;
}

int keys_to_json(const struct keys *keys, const void *target, json_t **out, struct error *err)
{
	_cleanup_json_ json_t *root = json_object();

	if (!root)
		return error_oom(err);
	for (size_t i = 0; i < keys->count; i++) {
		const struct key *k = &keys->list[i];
		const void *field = (const char *)target + k->offset;
		json_t *value, *parent = root;
		char name[NAME_MAX_LEN];

		if (is_unset(k, field))
			continue;
		value = field_to_json(k, field);
		if (!value)
			return error_set(err, -EINVAL, "%s: not valid UTF-8",
			                 keys_name(k, name, sizeof(name)));
		if (k->section) {
			parent = json_object_get(root, k->section);
			if (!parent) {
				parent = json_object();
				json_object_set_new(root, k->section, parent);
			}
		}
		if (json_object_set_new(parent, k->name, value) < 0)
			return error_oom(err);
	}
	*out = steal_pointer(root);
	return 0;
}
