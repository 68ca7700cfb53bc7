/* SPDX-License-Identifier: Apache-2.0 */
/* Values into the fields of a struct by its table of keys, whatever they are read from. */
#include "config/keys_source.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

static const char *const kind_words[] = {"an integer", "a number", "a boolean",
                                         "a string",   "a list",   "a group"};
const char *const keys_type_words[] = {
    [KEY_STRING] = "a string",
    [KEY_CHOICE] = "a string",
    [KEY_INT] = "an integer",
    [KEY_NUMBER] = "a number",
    [KEY_BOOL] = "true or false",
    [KEY_LIST] = "a string or a list of strings",
    [KEY_TEXTS] = "a string or a list of strings",
    [KEY_GROUP] = "a group of strings",
    [KEY_COUNT] = "an integer or \"all\"",
    [KEY_RANGE] = "an integer or a range such as \"2..4\"",
    [KEY_DURATION] = "a number of seconds or a time such as \"90m\" or \"1h30m\"",
};

/* What fits of a text at position n of a buffer; returns the position behind it. */
static size_t put_text(char *buf, size_t size, size_t n, const char *text)
{
	size_t len = MIN(strlen(text), size - 1 - n);

	memcpy(buf + n, text, len);
	buf[n + len] = '\0';
	return n + len;
}

/* Without printf: every start names some hundred keys several times. */
const char *keys_name(const struct key *k, char *buf, size_t size)
{
	size_t n = k->section ? put_text(buf, size, put_text(buf, size, 0, k->section), ".") : 0;

	put_text(buf, size, n, k->name);
	return buf;
}

const struct key *keys_find(const struct keys *keys, const char *section, const char *name)
{
	/* Most differ in the first letter: every start reads some hundred keys several times. */
	for (size_t i = 0; i < keys->count; i++)
		if (keys->list[i].name[0] == name[0] && strcmp(keys->list[i].name, name) == 0 &&
		    str_eq(keys->list[i].section, section))
			return &keys->list[i];
	return NULL;
}

bool keys_is_section(const struct keys *keys, const char *name)
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
		if (strcmp(keys_name(&keys->list[i], buf, sizeof(buf)), dotted) == 0)
			return seen[i];
	return false;
}

/* "lr" for "learning_rate": the first letters of its words, where there are several. */
static bool is_initials(const char *text, const char *name)
{
	size_t n = 0;

	for (const char *p = name; *p; p++)
		if (p == name || p[-1] == '_') {
			if (text[n] != *p)
				return false;
			n++;
		}
	return n > 1 && text[n] == '\0';
}

static bool in_section(const struct key *k, const char *dotted, const char *dot)
{
	size_t n = (size_t)(dot - dotted);

	return k->section && strlen(k->section) == n && !memcmp(k->section, dotted, n);
}

const char *keys_nearest(const struct keys *keys, const char *dotted, char *buf, size_t size)
{
	const char *last = strrchr(dotted, '.');
	/* A section that is right does not make another key more likely. */
	size_t best = strlen(last ? last + 1 : dotted) / 3 + 1;
	const struct key *found = NULL;
	const char *near = NULL; /* a section */
	char name[NAME_MAX_LEN];

	for (size_t i = 0; i < keys->count; i++) {
		size_t d = str_distance(keys_name(&keys->list[i], name, sizeof(name)), dotted);

		/* The right name in the wrong section is nearer than any misspelling. */
		if (strcmp(keys->list[i].name, last ? last + 1 : dotted) == 0)
			d = d ? 1 : 0;
		if (is_initials(last ? last + 1 : dotted, keys->list[i].name) &&
		    (!last || in_section(&keys->list[i], dotted, last)))
			d = MIN(d, 1u);
		if (d < best || (d == best && !found)) {
			best = d;
			found = &keys->list[i];
		}
	}
	for (size_t i = 0; !last && i < keys->count; i++) {
		size_t d = keys->list[i].section ? str_distance(keys->list[i].section, dotted) : SIZE_MAX;

		if (d < best || (d == best && !found && !near)) {
			best = d;
			found = NULL;
			snprintf(buf, size, "%s", keys->list[i].section);
			near = buf;
		}
	}
	return found ? keys_name(found, buf, size) : near;
}

/* A name with its group, such as zero_optimization.stage, is preferred to its last word alone. */
static const struct key_name *find_other_name(const struct keys *keys, const char *dotted)
{
	const struct key_name *found = NULL;
	size_t length = strlen(dotted);

	for (const struct key_name *n = keys->other_names; n && n->name; n++) {
		size_t own = strlen(n->name);
		bool ends = own <= length && strcmp(dotted + length - own, n->name) == 0;

		if (ends && (own == length || dotted[length - own - 1] == '.') &&
		    (!found || own > strlen(found->name)))
			found = n;
	}
	return found;
}

int keys_unknown(const struct keys *keys, const char *where, const char *dotted, struct error *err)
{
	char buf[NAME_MAX_LEN];
	const char *near = keys_nearest(keys, dotted, buf, sizeof(buf));
	const struct key_name *other = find_other_name(keys, dotted);

	if (other && !other->here)
		return error_set(err, -EINVAL,
		                 "%s: %s: unknown key; nothing corresponds to it here: leave it out", where,
		                 dotted);
	if (other)
		return error_set(err, -EINVAL, "%s: %s: unknown key; here it is %s", where, dotted,
		                 other->here);
	if (near)
		return error_set(err, -EINVAL, "%s: %s: unknown key; did you mean %s?", where, dotted, near);
	return error_set(err, -EINVAL, "%s: %s: unknown key", where, dotted);
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
			str_list_free(copy);
			return NULL;
		}
	}
	return copy;
}

static bool is_choice(const char *choices, const char *s)
{
	size_t n = strlen(s);

	if (strchr(s, '|'))
		return false;
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
	str_list_free(*(char ***)field);
	*(char ***)field = copy;
	return 0;
}

/* An integer is compared as such and named as it is written: a double does not hold all of them. */
static int check_range(const struct key *k, const struct value *v, const char *where, const char *name,
                       struct error *err)
{
	double d = v->kind == VALUE_INT ? (double)v->i : v->d;
	bool fits = k->type != KEY_NUMBER ? v->i >= (int64_t)k->min && v->i <= (int64_t)k->max
	                                  : d >= k->min && d <= k->max;
	int precision = k->type != KEY_NUMBER ? 17 : 10;
	char text[32];

	if (fits || (k->min == 0 && k->max == 0))
		return 0;
	if (v->kind == VALUE_INT)
		snprintf(text, sizeof(text), "%lld", (long long)v->i);
	else
		snprintf(text, sizeof(text), "%.10g", v->d);
	return error_set(err, -ERANGE, "%s: %s: %s is out of range; it has to be within %.*g and %.*g", where,
	                 name, text, precision, k->min, precision, k->max);
}

/* Into an integer or two, from what the source has: a number, or a text of a form of its own. */
static int assign_quantity(const struct key *k, void *field, const struct value *v, const char *where,
                           const char *name, struct error *err)
{
	struct key_range range = {v->i, v->i};
	struct value end = {.kind = VALUE_INT};
	int r = 0;

	if (v->kind == VALUE_STRING && k->type == KEY_RANGE)
		r = keys_parse_range(v->s, &range);
	else if (v->kind == VALUE_STRING) {
		r = keys_parse_duration(v->s, &range.low);
		range.high = range.low;
	}
	if (r < 0)
		return error_set(err, r, "%s: %s: \"%.100s\" is not %s", where, name, v->s,
		                 keys_type_words[k->type]);
	end.i = range.low;
	r = check_range(k, &end, where, name, err);
	end.i = range.high;
	if (r < 0 || (r = check_range(k, &end, where, name, err)) < 0)
		return r;
	if (k->type == KEY_RANGE)
		*(struct key_range *)field = range;
	else
		*(int64_t *)field = range.low;
	return 0;
}

/* The one place where a value is checked and becomes a field. */
static int assign(const struct key *k, void *target, const struct value *v, const char *where,
                  struct error *err)
{
	void *field = (char *)target + k->offset;
	bool fits = false;
	char name[NAME_MAX_LEN];
	int r;

	keys_name(k, name, sizeof(name));
	switch (k->type) {
	case KEY_STRING:
		fits = v->kind == VALUE_STRING;
		break;
	case KEY_CHOICE: /* some were true or false once */
		fits = v->kind == VALUE_STRING || (v->kind == VALUE_BOOL && is_choice(k->choices, "true"));
		break;
	case KEY_INT:
		fits = v->kind == VALUE_INT;
		break;
	case KEY_COUNT:
		fits = v->kind == VALUE_INT || (v->kind == VALUE_STRING && str_eq(v->s, COUNT_ALL));
		break;
	case KEY_RANGE:
	case KEY_DURATION:
		fits = v->kind == VALUE_INT || v->kind == VALUE_STRING;
		break;
	case KEY_NUMBER:
		fits = v->kind == VALUE_INT || v->kind == VALUE_NUMBER;
		break;
	case KEY_BOOL:
		fits = v->kind == VALUE_BOOL;
		break;
	case KEY_LIST:
	case KEY_TEXTS:
		fits = v->kind == VALUE_STRING || v->kind == VALUE_LIST;
		break;
	case KEY_GROUP:
		fits = v->kind == VALUE_GROUP;
		break;
	}
	if (!fits)
		return error_set(err, -EINVAL, "%s: %s: %s; %s is needed", where, name, kind_words[v->kind],
		                 keys_type_words[k->type]);
	switch (k->type) {
	case KEY_CHOICE:
		if (v->kind == VALUE_BOOL)
			return set_string(field, v->b ? "true" : "false", err);
		if (!is_choice(k->choices, v->s))
			return error_set(err, -EINVAL, "%s: %s: \"%s\" is not known; it has to be one of %s",
			                 where, name, v->s, k->choices);
		/* fall through */
	case KEY_STRING:
	case KEY_GROUP:
		return set_string(field, v->s, err);
	case KEY_LIST:
	case KEY_TEXTS:
		return set_list(field, v, err);
	case KEY_COUNT:
		if (v->kind == VALUE_STRING) {
			*(int64_t *)field = 0;
			return 0;
		}
		/* fall through */
	case KEY_INT:
		if ((r = check_range(k, v, where, name, err)) < 0)
			return r;
		*(int64_t *)field = v->i;
		return 0;
	case KEY_RANGE:
	case KEY_DURATION:
		return assign_quantity(k, field, v, where, name, err);
	case KEY_NUMBER:
		if ((r = check_range(k, v, where, name, err)) < 0)
			return r;
		*(double *)field = v->kind == VALUE_INT ? (double)v->i : v->d;
		return 0;
	case KEY_BOOL:
		*(bool *)field = v->b;
		return 0;
	}
	return 0;
}

int keys_assign(const struct keys *keys, const struct key *k, void *target, const struct value *v,
                const char *where, bool *seen, struct error *err)
{
	int r = assign(k, target, v, where, err);

	if (r < 0)
		return r;
	if (seen)
		seen[k - keys->list] = true;
	return 0;
}

/* ---- overrides and defaults: text ---- */

/* strip: the blanks around the items are not theirs. */
static char **split_list(const char *text, bool strip)
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
		list[n] = strdup(strip ? str_strip(s) : s);
		if (!list[n++]) {
			str_list_free(list);
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
	case KEY_COUNT:
		if (str_eq(text, COUNT_ALL))
			break;
		/* fall through */
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
	case KEY_TEXTS:
		v.kind = VALUE_LIST;
		v.list = split_list(text, k->type == KEY_LIST);
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
		                 keys_name(k, name, sizeof(name)), text,
		                 k->type == KEY_GROUP ? "a JSON object" : keys_type_words[k->type]);
	r = keys_assign(keys, k, target, &v, where, seen, err);
	if (v.kind == VALUE_LIST)
		str_list_free(v.list);
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
	k = keys_find(keys, dot ? section : NULL, dot ? dot + 1 : dotted);
	if (!k && keys_is_section(keys, dotted))
		return error_set(err, -EINVAL, "--set: %s: a group of keys; name one of them: %s.KEY=VALUE",
		                 dotted, dotted);
	if (!k)
		return keys_unknown(keys, "--set", dotted, err);
	return assign_text(keys, k, target, eq + 1, "--set", seen, err);
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
		case KEY_TEXTS:
			str_list_free(*(char ***)field);
			break;
		default:
			break;
		}
	}
}
