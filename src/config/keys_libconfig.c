/* SPDX-License-Identifier: Apache-2.0 */
/* Keys from libconfig text: files, and the values of --set. */
#include <errno.h>
#include <libconfig.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "config/keys_source.h"

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
			str_list_free(list);
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
	bool is_list = k->type == KEY_LIST || k->type == KEY_TEXTS;
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
		if (!is_list) {
			v.kind = VALUE_GROUP;
			r = k->type == KEY_GROUP ? group_to_json(s, &group) : 0;
			v.s = group;
			break;
		}
		/* fall through */
	default:
		v.kind = VALUE_LIST;
		r = is_list ? list_from_setting(s, &list) : 0;
		v.list = list;
		break;
	}
	if (r == -ENOMEM)
		return error_oom(err);
	if (r < 0)
		return error_set(err, r, "%s: %s: not all strings; %s is needed", where,
		                 keys_name(k, name, sizeof(name)), keys_type_words[k->type]);
	r = keys_assign(keys, k, target, &v, where, seen, err);
	str_list_free(list);
	return r;
}

static int read_setting(const struct keys *keys, void *target, const char *section, const config_setting_t *s,
                        const struct keys_text *text, bool *seen, struct error *err)
{
	const char *name = config_setting_name(s);
	const struct key *k = keys_find(keys, section, name);
	char where[512], dotted[2 * NAME_MAX_LEN];

	keys_text_where(text, config_setting_source_line(s), where, sizeof(where));
	if (k)
		return assign_setting(keys, k, target, s, where, seen, err);
	if (section || !keys_is_section(keys, name)) {
		snprintf(dotted, sizeof(dotted), "%s%s%s", section ? section : "", section ? "." : "", name);
		return keys_unknown(keys, where, dotted, err);
	}
	if (!config_setting_is_group(s))
		return error_set(err, -EINVAL, "%s: %s: a group is needed: %s = { … };", where, name, name);
	for (int i = 0; i < config_setting_length(s); i++) {
		int r = read_setting(keys, target, name, config_setting_get_elem(s, i), text, seen, err);

		if (r < 0)
			return r;
	}
	return 0;
}

int keys_read_text(const struct keys *keys, void *target, const char *text, const char *where, bool *seen,
                   struct error *err)
{
	_cleanup_(config_destroy) config_t config;
	_cleanup_(keys_text_release) struct keys_text whole = {0};
	const config_setting_t *root;
	int r;

	config_init(&config);
	r = keys_text_read(&whole, text, where, err);
	if (r < 0)
		return r;
	if (config_read_string(&config, whole.text.data) != CONFIG_TRUE)
		return keys_text_error(&whole, config_error_text(&config),
		                       (unsigned)config_error_line(&config), err);
	root = config_root_setting(&config);
	for (int i = 0; i < config_setting_length(root) && r == 0; i++)
		r = read_setting(keys, target, NULL, config_setting_get_elem(root, i), &whole, seen, err);
	return r;
}
