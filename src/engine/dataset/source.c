/* SPDX-License-Identifier: Apache-2.0 */
/* Which files a dataset consists of, and what their columns are called: paths, or dataset_info.json. */
#include "engine/dataset/source.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/dataset/columns.h"

static const char *const format_names[] = {
    [FORMAT_AUTO] = "auto",     [FORMAT_TEXT] = "text",         [FORMAT_PARAGRAPHS] = "paragraphs",
    [FORMAT_FILES] = "files",   [FORMAT_JSONL] = "jsonl",       [FORMAT_ALPACA] = "alpaca",
    [FORMAT_OPENAI] = "openai", [FORMAT_SHAREGPT] = "sharegpt", [FORMAT_TRL] = "trl",
};

struct name_field {
	const char *name;
	size_t offset;
};

static const struct name_field column_fields[] = {
    {"prompt", offsetof(struct source_columns, prompt)},
    {"query", offsetof(struct source_columns, query)},
    {"response", offsetof(struct source_columns, response)},
    {"history", offsetof(struct source_columns, history)},
    {"messages", offsetof(struct source_columns, messages)},
    {"system", offsetof(struct source_columns, system)},
    {"tools", offsetof(struct source_columns, tools)},
    {"chosen", offsetof(struct source_columns, chosen)},
    {"rejected", offsetof(struct source_columns, rejected)},
    {"margin", offsetof(struct source_columns, margin)},
    {"kto_tag", offsetof(struct source_columns, label)},
};

static const struct name_field tag_fields[] = {
    {"role_tag", offsetof(struct source_tags, role)},
    {"content_tag", offsetof(struct source_tags, content)},
    {"user_tag", offsetof(struct source_tags, user)},
    {"assistant_tag", offsetof(struct source_tags, assistant)},
    {"observation_tag", offsetof(struct source_tags, observation)},
    {"function_tag", offsetof(struct source_tags, function)},
    {"system_tag", offsetof(struct source_tags, system)},
};

const char *source_format_name(enum source_format format)
{
	return format_names[format];
}

void source_list_free(struct source_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		free(list->items[i].path);
	free(list->items);
	json_decref(list->keep);
	*list = (struct source_list){0};
}

static int parse_format(const char *name, enum source_format *out, const char *where, struct error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(format_names); i++) {
		if (str_eq(format_names[i], name)) {
			*out = i;
			return 0;
		}
	}
	return error_set(err, -EINVAL,
	                 "%s: unknown format '%s'; known are auto, text, paragraphs, files, jsonl, alpaca, "
	                 "sharegpt, openai and trl",
	                 where, name);
}

/* Sets the members of *out (a struct of strings) that `names` lists and clears all others, as LLaMA-Factory
 * does: a mapping replaces the default names, it does not add to them. */
static int parse_names(const json_t *names, const struct name_field *fields, size_t count, const char *what,
                       const char *where, void *out, size_t size, struct error *err)
{
	const char *key;
	json_t *value;

	if (!json_is_object(names))
		return error_set(err, -EINVAL, "%s: %s: has to be a group of names", where, what);
	memset(out, 0, size);
	json_object_foreach((json_t *)names, key, value)
	{
		size_t i = 0;

		if (json_is_null(value))
			continue;
		while (i < count && !str_eq(fields[i].name, key))
			i++;
		if (i == count) {
			_cleanup_strbuf_ struct strbuf known = {0};

			for (size_t k = 0; k < count; k++)
				if (fields[k].offset != SIZE_MAX)
					strbuf_addf(&known, "%s%s", known.len ? ", " : "", fields[k].name);
			return error_set(err, -EINVAL, "%s: %s: '%s' is not known here; known are %s", where,
			                 what, key, known.data);
		}
		if (!json_is_string(value))
			return error_set(err, -EINVAL, "%s: %s.%s: has to be a string", where, what, key);
		if (fields[i].offset != SIZE_MAX)
			*(const char **)((char *)out + fields[i].offset) = json_string_value(value);
	}
	return 0;
}

static int parse_columns(const json_t *names, const char *where, struct source_columns *out,
                         struct error *err)
{
	int r = parse_names(names, column_fields, ARRAY_SIZE(column_fields), "columns", where, out,
	                    sizeof(*out), err);

	out->given = true;
	return r;
}

static int parse_tags(const json_t *names, const char *where, struct source_tags *out, struct error *err)
{
	int r = parse_names(names, tag_fields, ARRAY_SIZE(tag_fields), "tags", where, out, sizeof(*out), err);

	if (r < 0)
		return r;
	if (!out->role || !out->content || !out->user || !out->assistant)
		return error_set(err, -EINVAL,
		                 "%s: tags: role_tag, content_tag, user_tag and assistant_tag are all needed "
		                 "where tags are given",
		                 where);
	out->given = true;
	return r;
}

static int add_file(struct source_list *list, const struct source *like, const char *path, struct error *err)
{
	static const char *const other[] = {".parquet", ".arrow", ".csv", ".gz",
	                                    ".zst",     ".xz",    ".bz2", ".zip"};

	for (size_t i = 0; i < ARRAY_SIZE(other); i++)
		if (str_ends(path, other[i]))
			return error_set(
			    err, -EINVAL,
			    "%s: %s files cannot be read; JSON (an array or lines) and plain text can", path,
			    other[i]);
	if (list->count == list->cap) {
		size_t cap = list->cap ? 2 * list->cap : 8;
		struct source *p = realloc(list->items, cap * sizeof(*p));

		if (!p)
			return error_oom(err);
		list->items = p;
		list->cap = cap;
	}
	list->items[list->count] = *like;
	list->items[list->count].path = strdup(path);
	if (!list->items[list->count].path)
		return error_oom(err);
	list->count++;
	return 0;
}

static int visible(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

static int add_entry(struct source_list *list, struct source *like, const char *path, const char *name,
                     struct error *err)
{
	_cleanup_free_ char *child = str_path_join(path, name);
	struct stat st;

	if (!child)
		return error_oom(err);
	if (stat(child, &st) < 0)
		return error_errno(err, -errno, "cannot read %s", child);
	return S_ISREG(st.st_mode) && !str_eq(name, "dataset_info.json") ? add_file(list, like, child, err)
	                                                                 : 0;
}

/* A file, or all files of a directory in the order of their names (dataset_info.json is not data). */
static int add_path(struct source_list *list, struct source *like, const char *path, struct error *err)
{
	struct dirent **names = NULL;
	struct stat st;
	size_t before = list->count;
	int n, r = 0;

	like->group = list->groups++;
	if (stat(path, &st) < 0)
		return error_errno(err, -errno, "cannot read %s", path);
	if (!S_ISDIR(st.st_mode))
		return add_file(list, like, path, err);
	n = scandir(path, &names, visible, alphasort);
	if (n < 0)
		return error_errno(err, -errno, "cannot read directory %s", path);
	for (int i = 0; i < n; i++) {
		r = r < 0 ? r : add_entry(list, like, path, names[i]->d_name, err);
		free(names[i]);
	}
	free(names);
	if (r < 0)
		return r;
	return list->count > before ? 0 : error_set(err, -ENOENT, "%s: no files in this directory", path);
}

/* NULL: absent, or null. */
static const json_t *given(const json_t *entry, const char *key)
{
	const json_t *v = json_object_get(entry, key);

	return json_is_null(v) ? NULL : v;
}

static int unknown_dataset(const json_t *info, const char *where, const char *name, struct error *err)
{
	_cleanup_strbuf_ struct strbuf names = {0};
	const char *key;
	json_t *value;

	/* As LLaMA-Factory has them. */
	if (strchr(name, ','))
		return error_set(
		    err, -ENOENT,
		    "%s: there is no dataset '%s'; several are a list of strings: data.dataset = "
		    "[\"a\", \"b\"]",
		    where, name);
	json_object_foreach((json_t *)info, key, value)
	{
		if (names.len > 400) {
			strbuf_adds(&names, ", …");
			break;
		}
		strbuf_addf(&names, "%s%s", names.len ? ", " : "", key);
	}
	return error_set(err, -ENOENT, "%s: there is no dataset '%s'; there are: %s", where, name,
	                 names.len ? names.data : "none");
}

static int check_local(const json_t *entry, const char *where, struct error *err)
{
	static const char *const remote[] = {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url",
	                                     "cloud_file_name"};

	if (json_is_string(json_object_get(entry, "file_name")))
		return 0;
	for (size_t i = 0; i < ARRAY_SIZE(remote); i++) {
		const char *url = json_get_string(entry, remote[i], NULL);

		if (url)
			return error_set(
			    err, -ENOENT,
			    "%s: %s is '%s', and nothing is fetched from hubs here; download it and "
			    "name the file with file_name",
			    where, remote[i], url);
	}
	return error_set(err, -EINVAL, "%s: file_name is missing", where);
}

/* Data that LLaMA-Factory knows and the task cannot use. */
static int check_usable(const json_t *entry, const char *where, enum dataset_task task, struct error *err)
{
	static const char *const media[] = {"images", "videos", "audios"};
	const json_t *columns = json_object_get(entry, "columns");
	bool ranking = json_get_bool(entry, "ranking", false);
	bool labels = json_is_string(json_object_get(columns, "kto_tag"));

	if (ranking && task != DATASET_PAIRS)
		return error_set(err, -EINVAL,
		                 "%s: ranking data is for the tasks dpo, orpo, simpo and reward", where);
	if (labels && task != DATASET_LABELS)
		return error_set(err, -EINVAL, "%s: columns.kto_tag: such data is for the task kto", where);
	if (!ranking && task == DATASET_PAIRS)
		return error_set(err, -EINVAL,
		                 "%s: has no pairs of answers (ranking = true), which the tasks dpo, orpo, "
		                 "simpo and reward need",
		                 where);
	if (!labels && task == DATASET_LABELS)
		return error_set(err, -EINVAL, "%s: has no columns.kto_tag, which the task kto needs", where);
	for (size_t i = 0; i < ARRAY_SIZE(media); i++)
		if (json_is_string(json_object_get(columns, media[i])))
			return error_set(err, -EINVAL, "%s: columns.%s: only data of text alone can be used",
			                 where, media[i]);
	return 0;
}

int source_list_add_info(struct source_list *list, const char *text, size_t len, const char *where,
                         const char *dir, const char *name, enum dataset_task task, struct error *err)
{
	_cleanup_json_ json_t *info = NULL;
	_cleanup_free_ char *at = str_printf("%s: %s", where, name), *path = NULL;
	struct source s = {.num_samples = -1};
	const char *formatting;
	const json_t *entry, *v;
	int r;

	r = json_parse(text, len, where, &info, err);
	if (r < 0)
		return r;
	if (!at)
		return error_oom(err);
	if (!json_is_object(info))
		return error_set(err, -EINVAL, "%s: has to be a JSON object of datasets", where);
	entry = json_object_get(info, name);
	if (!entry)
		return unknown_dataset(info, where, name, err);
	if (!json_is_object(entry))
		return error_set(err, -EINVAL, "%s: has to be a JSON object", at);
	if ((r = check_local(entry, at, err)) < 0 || (r = check_usable(entry, at, task, err)) < 0)
		return r;
	formatting = json_get_string(entry, "formatting", "alpaca");
	if (!str_eq(formatting, "alpaca") && !str_eq(formatting, "sharegpt") && !str_eq(formatting, "openai"))
		return error_set(err, -EINVAL,
		                 "%s: formatting '%s' is not known; known are alpaca, sharegpt, openai", at,
		                 formatting);
	s.columns = source_columns_default;
	s.tags = source_tags_sharegpt;
	if ((r = parse_format(formatting, &s.format, at, err)) < 0 ||
	    ((v = given(entry, "columns")) && (r = parse_columns(v, at, &s.columns, err)) < 0) ||
	    ((v = given(entry, "tags")) && (r = parse_tags(v, at, &s.tags, err)) < 0) ||
	    (given(entry, "num_samples") &&
	     (r = json_need_int(entry, "num_samples", at, 1, INT64_C(1) << 40, &s.num_samples, err)) < 0))
		return r;
	path = str_path_join(dir, json_get_string(entry, "file_name", ""));
	if (!path)
		return error_oom(err);
	if (!list->keep && !(list->keep = json_array()))
		return error_oom(err);
	if (json_array_append(list->keep, info) < 0)
		return error_oom(err);
	/* A text file has one column, whatever the entry calls it. */
	if (str_ends(path, ".txt"))
		s.format = FORMAT_TEXT;
	r = add_path(list, &s, path, err);
	return r < 0 && err ? error_prefix(err, "%s", at) : r;
}

static int options_names(const struct dataset_options *o, struct source_list *list, struct source *s,
                         struct error *err)
{
	const char *const texts[] = {o->columns_json, o->tags_json}, *const names[] = {"data.columns",
	                                                                               "data.tags"};

	for (int i = 0; i < 2; i++) {
		json_t *value = NULL;
		int r;

		if (!texts[i])
			continue;
		r = json_parse(texts[i], strlen(texts[i]), names[i], &value, err);
		if (r < 0)
			return r;
		r = i == 0 ? parse_columns(value, "data", &s->columns, err)
		           : parse_tags(value, "data", &s->tags, err);
		if (json_array_append_new(list->keep, value) < 0)
			return error_oom(err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int resolve_names(const struct dataset_options *o, struct source_list *list, const struct source *like,
                         struct error *err)
{
	_cleanup_free_ char *path = str_path_join(o->dataset_dir ? o->dataset_dir : ".", "dataset_info.json");
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r;

	if (!path)
		return error_oom(err);
	r = file_read(path, 64 << 20, &text, &len, err);
	if (r < 0)
		return error_prefix(err,
		                    "datasets are named in dataset_info.json (data.dataset_dir says where)");
	for (size_t i = 0; o->datasets[i]; i++) {
		size_t first = list->count;

		r = source_list_add_info(list, text, len, path, o->dataset_dir, o->datasets[i], o->task, err);
		if (r < 0)
			return r;
		/* What the run file says about columns and tags wins over dataset_info.json. */
		for (size_t k = first; k < list->count; k++) {
			if (like->columns.given)
				list->items[k].columns = like->columns;
			if (like->tags.given)
				list->items[k].tags = like->tags;
			if (like->format != FORMAT_AUTO)
				list->items[k].format = like->format;
		}
	}
	return 0;
}

static int resolve(const struct dataset_options *o, struct source_list *list, struct error *err)
{
	struct source s = {.num_samples = -1};
	int r = 0;

	if ((o->format && (r = parse_format(o->format, &s.format, "data.format", err)) < 0) ||
	    (r = options_names(o, list, &s, err)) < 0)
		return r;
	for (size_t i = 0; o->paths && o->paths[i]; i++)
		if ((r = add_path(list, &s, o->paths[i], err)) < 0)
			return r;
	if (o->datasets && o->datasets[0] && (r = resolve_names(o, list, &s, err)) < 0)
		return r;
	if (list->count == 0)
		return error_set(err, -EINVAL,
		                 "no data: data.path names files or directories, data.dataset entries of "
		                 "dataset_info.json");
	for (size_t i = 0; i < list->count; i++)
		list->items[i].kept = o->kept_columns;
	for (size_t i = 0; i < list->count; i++)
		if (list->items[i].format == FORMAT_AUTO && str_ends(list->items[i].path, ".txt"))
			list->items[i].format = FORMAT_TEXT;
	for (size_t i = 0; r == 0 && i < list->count; i++) {
		enum source_format f = list->items[i].format;

		if (o->task != DATASET_PRETRAIN &&
		    (f == FORMAT_TEXT || f == FORMAT_PARAGRAPHS || f == FORMAT_FILES))
			r = error_set(err, -EINVAL, "%s: plain text is for task pretrain; %s",
			              list->items[i].path,
			              o->task == DATASET_SFT ? "sft needs alpaca, sharegpt or openai"
			              : o->task == DATASET_PROMPTS
			                  ? "prompts need alpaca, sharegpt, openai or trl"
			                  : "preferences need alpaca, sharegpt, openai or trl");
		else if ((o->task == DATASET_PRETRAIN || o->task == DATASET_SFT) && f == FORMAT_TRL)
			r = error_set(err, -EINVAL,
			              "%s: format trl is of preferences; its prompts and completions are "
			              "for the tasks dpo, orpo, simpo, kto, reward, grpo and ppo",
			              list->items[i].path);
	}
	return r;
}

int source_list_resolve(const struct dataset_options *o, struct source_list *list, struct error *err)
{
	int r;

	*list = (struct source_list){.keep = json_array()};
	r = list->keep ? resolve(o, list, err) : error_oom(err);
	if (r < 0)
		source_list_free(list);
	return r;
}
