/* SPDX-License-Identifier: Apache-2.0 */
#include "config/keys.h"

#include <ctype.h>
#include <errno.h>
#include <libconfig.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

#define NAME_MAX_LEN 128

/* A value on its way from a source to its field. */
struct value {
	enum { VALUE_INT, VALUE_NUMBER, VALUE_BOOL, VALUE_STRING, VALUE_LIST, VALUE_GROUP } kind;
	int64_t i;
	double d;
	bool b;
	const char *s; /* VALUE_GROUP: the JSON text */
	char **list;   /* borrowed */
};

static const char *const kind_words[] = {"an integer", "a number", "a boolean",
                                         "a string",   "a list",   "a group"};
static const char *const type_words[] = {
    [KEY_STRING] = "a string",          [KEY_CHOICE] = "a string",
    [KEY_INT] = "an integer",           [KEY_NUMBER] = "a number",
    [KEY_BOOL] = "true or false",       [KEY_LIST] = "a string or a list of strings",
    [KEY_GROUP] = "a group of strings",
};

static const char *key_name(const struct key *k, char *buf, size_t size)
{
	snprintf(buf, size, "%s%s%s", k->section ? k->section : "", k->section ? "." : "", k->name);
	return buf;
}

static const struct key *find_key(const struct keys *keys, const char *section, const char *name)
{
	for (size_t i = 0; i < keys->count; i++)
		if (str_eq(keys->list[i].section, section) && strcmp(keys->list[i].name, name) == 0)
			return &keys->list[i];
	return NULL;
}

static bool is_section(const struct keys *keys, const char *name)
{
	for (size_t i = 0; i < keys->count; i++)
		if (str_eq(keys->list[i].section, name))
			return true;
	return false;
}

bool keys_seen(const struct keys *keys, const bool *seen, const char *dotted)
{
	char buf[NAME_MAX_LEN];

	for (size_t i = 0; i < keys->count; i++)
		if (strcmp(key_name(&keys->list[i], buf, sizeof(buf)), dotted) == 0)
			return seen[i];
	return false;
}

static size_t edit_distance(const char *a, const char *b)
{
	size_t n = strlen(a), m = strlen(b), row[NAME_MAX_LEN + 1];

	if (n >= NAME_MAX_LEN || m >= NAME_MAX_LEN)
		return NAME_MAX_LEN;
	for (size_t j = 0; j <= m; j++)
		row[j] = j;
	for (size_t i = 1; i <= n; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= m; j++) {
			size_t above = row[j], best = MIN(above, row[j - 1]) + 1;

			row[j] = MIN(best, diagonal + (a[i - 1] != b[j - 1]));
			diagonal = above;
		}
	}
	return row[m];
}

const char *keys_nearest(const struct keys *keys, const char *dotted, char *buf, size_t size)
{
	const char *last = strrchr(dotted, '.');
	size_t best = strlen(dotted) / 3 + 1;
	const struct key *found = NULL;
	char name[NAME_MAX_LEN];

	for (size_t i = 0; i < keys->count; i++) {
		size_t d = edit_distance(key_name(&keys->list[i], name, sizeof(name)), dotted);

		/* The right name in the wrong section is nearer than any misspelling. */
		if (strcmp(keys->list[i].name, last ? last + 1 : dotted) == 0)
			d = d ? 1 : 0;
		if (d < best || (d == best && !found)) {
			best = d;
			found = &keys->list[i];
		}
	}
	return found ? key_name(found, buf, size) : NULL;
}

static int unknown_key(const struct keys *keys, const char *where, const char *dotted, struct error *err)
{
	char buf[NAME_MAX_LEN];
	const char *near = keys_nearest(keys, dotted, buf, sizeof(buf));

	if (near)
		return error_set(err, -EINVAL, "%s: %s: unknown key; did you mean %s?", where, dotted, near);
	return error_set(err, -EINVAL, "%s: %s: unknown key", where, dotted);
}

void string_list_free(char **list)
{
	for (char **p = list; p && *p; p++)
		free(*p);
	free(list);
}

static char **list_copy(char **from)
{
	size_t n = 0;
	char **copy;

	while (from[n])
		n++;
	copy = calloc(n + 1, sizeof(*copy));
	for (size_t i = 0; copy && i < n; i++) {
		copy[i] = strdup(from[i]);
		if (!copy[i]) {
			string_list_free(copy);
			return NULL;
		}
	}
	return copy;
}

static bool is_choice(const char *choices, const char *s)
{
	size_t n = strlen(s);

	for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
		if (strncmp(p, s, n) == 0 && (p[n] == '|' || p[n] == '\0'))
			return n > 0;
	return false;
}

static int set_string(void *field, const char *s, struct error *err)
{
	char *copy = strdup(s);

	if (!copy)
		return error_oom(err);
	free(*(char **)field);
	*(char **)field = copy;
	return 0;
}

static int set_list(void *field, const struct value *v, struct error *err)
{
	char *one[] = {(char *)v->s, NULL};
	char **copy = list_copy(v->kind == VALUE_LIST ? v->list : one);

	if (!copy)
		return error_oom(err);
	string_list_free(*(char ***)field);
	*(char ***)field = copy;
	return 0;
}

static int check_range(const struct key *k, double v, const char *where, const char *name, struct error *err)
{
	if ((k->min == 0 && k->max == 0) || (v >= k->min && v <= k->max))
		return 0;
	return error_set(err, -ERANGE, "%s: %s: %.10g is out of range; it has to be within %.10g and %.10g",
	                 where, name, v, k->min, k->max);
}

/* The one place where a value is checked and becomes a field. */
static int assign(const struct key *k, void *target, const struct value *v, const char *where,
                  struct error *err)
{
	void *field = (char *)target + k->offset;
	bool fits = false;
	char name[NAME_MAX_LEN];
	int r;

	key_name(k, name, sizeof(name));
	switch (k->type) {
	case KEY_STRING:
	case KEY_CHOICE:
		fits = v->kind == VALUE_STRING;
		break;
	case KEY_INT:
		fits = v->kind == VALUE_INT;
		break;
	case KEY_NUMBER:
		fits = v->kind == VALUE_INT || v->kind == VALUE_NUMBER;
		break;
	case KEY_BOOL:
		fits = v->kind == VALUE_BOOL;
		break;
	case KEY_LIST:
		fits = v->kind == VALUE_STRING || v->kind == VALUE_LIST;
		break;
	case KEY_GROUP:
		fits = v->kind == VALUE_GROUP;
		break;
	}
	if (!fits)
		return error_set(err, -EINVAL, "%s: %s: %s; %s is needed", where, name, kind_words[v->kind],
		                 type_words[k->type]);
	switch (k->type) {
	case KEY_CHOICE:
		if (!is_choice(k->choices, v->s))
			return error_set(err, -EINVAL, "%s: %s: \"%s\" is not known; it has to be one of %s",
			                 where, name, v->s, k->choices);
		/* fall through */
	case KEY_STRING:
	case KEY_GROUP:
		return set_string(field, v->s, err);
	case KEY_LIST:
		return set_list(field, v, err);
	case KEY_INT:
		r = check_range(k, (double)v->i, where, name, err);
		if (r == 0)
			*(int64_t *)field = v->i;
		return r;
	case KEY_NUMBER:
		r = check_range(k, v->kind == VALUE_INT ? (double)v->i : v->d, where, name, err);
		if (r == 0)
			*(double *)field = v->kind == VALUE_INT ? (double)v->i : v->d;
		return r;
	case KEY_BOOL:
		*(bool *)field = v->b;
		return 0;
	}
	return 0;
}

static int assign_and_note(const struct keys *keys, const struct key *k, void *target, const struct value *v,
                           const char *where, bool *seen, struct error *err)
{
	int r = assign(k, target, v, where, err);

	if (r == 0 && seen)
		seen[k - keys->list] = true;
	return r;
}

/* ---- overrides and defaults: text ---- */

static char **split_list(const char *text)
{
	_cleanup_free_ char *copy = strdup(text);
	size_t n = 0, cap = 2;
	char *save = NULL, **list;

	for (const char *p = text; *p; p++)
		cap += *p == ',';
	list = calloc(cap, sizeof(*list));
	if (!copy || !list) {
		free(list);
		return NULL;
	}
	for (char *s = strtok_r(copy, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
		list[n] = strdup(s);
		if (!list[n++]) {
			string_list_free(list);
			return NULL;
		}
	}
	return list;
}

static int assign_text(const struct keys *keys, const struct key *k, void *target, const char *text,
                       const char *where, bool *seen, struct error *err)
{
	struct value v = {.kind = VALUE_STRING, .s = text};
	char name[NAME_MAX_LEN];
	bool bad = false;
	int r;

	switch (k->type) {
	case KEY_INT:
		v.kind = VALUE_INT;
		bad = str_to_int64(text, INT64_MIN, INT64_MAX, &v.i) < 0;
		break;
	case KEY_NUMBER:
		v.kind = VALUE_NUMBER;
		bad = str_to_double(text, &v.d) < 0;
		break;
	case KEY_BOOL:
		v.kind = VALUE_BOOL;
		v.b = strcmp(text, "true") == 0;
		bad = !v.b && strcmp(text, "false") != 0;
		break;
	case KEY_LIST:
		v.kind = VALUE_LIST;
		v.list = split_list(text);
		if (!v.list)
			return error_oom(err);
		break;
	case KEY_GROUP: {
		json_t *json;

		bad = json_parse(text, strlen(text), where, &json, NULL) < 0;
		if (!bad) {
			bad = !json_is_object(json);
			json_decref(json);
		}
		v.kind = VALUE_GROUP;
		break;
	}
	default:
		break;
	}
	if (bad)
		return error_set(err, -EINVAL, "%s: %s: \"%s\" is not %s", where,
		                 key_name(k, name, sizeof(name)), text,
		                 k->type == KEY_GROUP ? "a JSON object" : type_words[k->type]);
	r = assign_and_note(keys, k, target, &v, where, seen, err);
	if (k->type == KEY_LIST)
		string_list_free(v.list);
	return r;
}

int keys_set_defaults(const struct keys *keys, void *target, struct error *err)
{
	for (size_t i = 0; i < keys->count; i++) {
		const struct key *k = &keys->list[i];
		int r = k->fallback ? assign_text(keys, k, target, k->fallback, "default", NULL, err) : 0;

		if (r < 0)
			return r;
	}
	return 0;
}

int keys_override(const struct keys *keys, void *target, const char *assignment, bool *seen,
                  struct error *err)
{
	const char *eq = strchr(assignment, '='), *dot;
	char dotted[NAME_MAX_LEN], section[NAME_MAX_LEN];
	const struct key *k;

	if (!eq || eq == assignment || (size_t)(eq - assignment) >= sizeof(dotted))
		return error_set(err, -EINVAL, "--set %s: not of the form section.key=value", assignment);
	snprintf(dotted, sizeof(dotted), "%.*s", (int)(eq - assignment), assignment);
	dot = strchr(dotted, '.');
	if (dot)
		snprintf(section, sizeof(section), "%.*s", (int)(dot - dotted), dotted);
	k = find_key(keys, dot ? section : NULL, dot ? dot + 1 : dotted);
	if (!k)
		return unknown_key(keys, "--set", dotted, err);
	return assign_text(keys, k, target, eq + 1, "--set", seen, err);
}

/* ---- libconfig ---- */

static int group_to_json(const config_setting_t *group, char **out)
{
	_cleanup_json_ json_t *object = json_object();

	for (int i = 0; i < config_setting_length(group); i++) {
		const config_setting_t *s = config_setting_get_elem(group, i);
		const char *text =
		    config_setting_type(s) == CONFIG_TYPE_STRING ? config_setting_get_string(s) : NULL;

		if (!text || json_object_set_new(object, config_setting_name(s), json_string(text)) < 0)
			return -EINVAL;
	}
	*out = json_to_string(object);
	return *out ? 0 : -ENOMEM;
}

/* A list or array of strings; a group {K = "V";} counts as the list "K=V" where a list is wanted. */
static int list_from_setting(const config_setting_t *s, char ***out)
{
	int n = config_setting_length(s);
	char **list = calloc(n + 1, sizeof(*list));

	for (int i = 0; list && i < n; i++) {
		const config_setting_t *e = config_setting_get_elem(s, i);
		const char *text =
		    config_setting_type(e) == CONFIG_TYPE_STRING ? config_setting_get_string(e) : NULL;

		if (text && config_setting_is_group(s))
			list[i] = str_printf("%s=%s", config_setting_name(e), text);
		else if (text)
			list[i] = strdup(text);
		if (!list[i]) {
			string_list_free(list);
			return text ? -ENOMEM : -EINVAL;
		}
	}
	*out = list;
	return list ? 0 : -ENOMEM;
}

static int assign_setting(const struct keys *keys, const struct key *k, void *target,
                          const config_setting_t *s, const char *where, bool *seen, struct error *err)
{
	struct value v = {0};
	_cleanup_free_ char *group = NULL;
	char **list = NULL, name[NAME_MAX_LEN];
	int r = 0;

	switch (config_setting_type(s)) {
	case CONFIG_TYPE_INT:
		v.kind = VALUE_INT;
		v.i = config_setting_get_int(s);
		break;
	case CONFIG_TYPE_INT64:
		v.kind = VALUE_INT;
		v.i = config_setting_get_int64(s);
		break;
	case CONFIG_TYPE_FLOAT:
		v.kind = VALUE_NUMBER;
		v.d = config_setting_get_float(s);
		break;
	case CONFIG_TYPE_BOOL:
		v.kind = VALUE_BOOL;
		v.b = config_setting_get_bool(s);
		break;
	case CONFIG_TYPE_STRING:
		v.kind = VALUE_STRING;
		v.s = config_setting_get_string(s);
		break;
	case CONFIG_TYPE_GROUP:
		if (k->type != KEY_LIST) {
			v.kind = VALUE_GROUP;
			r = k->type == KEY_GROUP ? group_to_json(s, &group) : 0;
			v.s = group;
			break;
		}
		/* fall through */
	default:
		v.kind = VALUE_LIST;
		r = k->type == KEY_LIST ? list_from_setting(s, &list) : 0;
		v.list = list;
		break;
	}
	if (r == -ENOMEM)
		return error_oom(err);
	if (r < 0)
		return error_set(err, r, "%s: %s: not all strings; %s is needed", where,
		                 key_name(k, name, sizeof(name)), type_words[k->type]);
	r = assign_and_note(keys, k, target, &v, where, seen, err);
	string_list_free(list);
	return r;
}

static int read_setting(const struct keys *keys, void *target, const char *section, const config_setting_t *s,
                        const char *file, bool *seen, struct error *err)
{
	const char *name = config_setting_name(s);
	const struct key *k = find_key(keys, section, name);
	char where[512], dotted[2 * NAME_MAX_LEN];

	snprintf(where, sizeof(where), "%s:%u", file, config_setting_source_line(s));
	if (k)
		return assign_setting(keys, k, target, s, where, seen, err);
	if (section || !is_section(keys, name)) {
		snprintf(dotted, sizeof(dotted), "%s%s%s", section ? section : "", section ? "." : "", name);
		return unknown_key(keys, where, dotted, err);
	}
	if (!config_setting_is_group(s))
		return error_set(err, -EINVAL, "%s: %s: a group is needed: %s = { … };", where, name, name);
	for (int i = 0; i < config_setting_length(s); i++) {
		int r = read_setting(keys, target, name, config_setting_get_elem(s, i), file, seen, err);

		if (r < 0)
			return r;
	}
	return 0;
}

int keys_read_text(const struct keys *keys, void *target, const char *text, const char *where, bool *seen,
                   struct error *err)
{
	_cleanup_(config_destroy) config_t config;
	const config_setting_t *root;

	config_init(&config);
	if (config_read_string(&config, text) != CONFIG_TRUE)
		return error_set(err, -EINVAL, "%s:%d: %s; a setting is written: name = value;", where,
		                 config_error_line(&config), config_error_text(&config));
	root = config_root_setting(&config);
	for (int i = 0; i < config_setting_length(root); i++) {
		int r = read_setting(keys, target, NULL, config_setting_get_elem(root, i), where, seen, err);

		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- JSON ---- */

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
			return error_set(err, -EINVAL, "%s: %s: a NUL byte in a string", where,
			                 key_name(k, name, sizeof(name)));
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
			const char *s = json_string_value(json_array_get(j, i));

			list[i] = s ? strdup(s) : NULL;
			if (!list[i]) {
				string_list_free(list);
				return error_set(err, -EINVAL, "%s: %s: not all strings; %s is needed", where,
				                 key_name(k, name, sizeof(name)), type_words[k->type]);
			}
		}
		break;
	}
	r = assign_and_note(keys, k, target, &v, where, seen, err);
	string_list_free(list);
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
		const struct key *k = find_key(keys, NULL, name);
		char dotted[2 * NAME_MAX_LEN];
		int r;

		if (k) {
			r = assign_json(keys, k, target, value, where, seen, err);
			if (r < 0)
				return r;
			continue;
		}
		if (!is_section(keys, name))
			return unknown_key(keys, where, name, err);
		if (!json_is_object(value))
			return error_set(err, -EINVAL, "%s: %s: a JSON object is needed", where, name);
		json_object_foreach(value, inner, member)
		{
			k = find_key(keys, name, inner);
			if (!k) {
				snprintf(dotted, sizeof(dotted), "%s.%s", name, inner);
				return unknown_key(keys, where, dotted, err);
			}
			r = assign_json(keys, k, target, member, where, seen, err);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

static json_t *field_to_json(const struct key *k, const void *field)
{
	json_t *array;

	switch (k->type) {
	case KEY_STRING:
	case KEY_CHOICE:
		return *(char *const *)field ? json_string(*(char *const *)field) : NULL;
	case KEY_GROUP:
		return *(char *const *)field ? json_loads(*(char *const *)field, 0, NULL) : NULL;
	case KEY_INT:
		return json_integer(*(const int64_t *)field);
	case KEY_NUMBER:
		return json_real(*(const double *)field);
	case KEY_BOOL:
		return json_boolean(*(const bool *)field);
	case KEY_LIST:
		if (!*(char **const *)field)
			return NULL;
		array = json_array();
		for (char **p = *(char **const *)field; *p; p++)
			json_array_append_new(array, json_string(*p));
		return array;
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
		json_t *value = field_to_json(k, (const char *)target + k->offset), *parent = root;

		if (!value)
			continue;
		if (k->section) {
			parent = json_object_get(root, k->section);
			if (!parent) {
				parent = json_object();
				json_object_set_new(root, k->section, parent);
			}
		}
		if (json_object_set_new(parent, k->name, value) < 0)
			return error_set(err, -EINVAL, "%s: not valid UTF-8", k->name);
	}
	*out = steal_pointer(root);
	return 0;
}

void keys_free(const struct keys *keys, void *target)
{
	for (size_t i = 0; i < keys->count; i++) {
		void *field = (char *)target + keys->list[i].offset;

		switch (keys->list[i].type) {
		case KEY_STRING:
		case KEY_CHOICE:
		case KEY_GROUP:
			free(*(char **)field);
			break;
		case KEY_LIST:
			string_list_free(*(char ***)field);
			break;
		default:
			break;
		}
	}
}
