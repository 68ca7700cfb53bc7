/* SPDX-License-Identifier: Apache-2.0 */
/* Reads files of prompts, and finds the strings that end a text. */
#include "worker/prompts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/chat/exact_json.h"
#include "engine/dataset/reader.h"

static int read_json(const struct record *record, const char *where, struct prompt *out, const char **text,
                     struct error *err)
{
	int r;

	if ((r = exact_json_parse(record->data, record->len, where, &out->object, err)) < 0 ||
	    (r = json_need_string(out->object, "prompt", where, text, err)) < 0)
		return r;
	if (strlen(*text) != json_string_length(json_object_get(out->object, "prompt")))
		return error_set(err, -EINVAL, "%s: prompt: a zero byte", where);
	return 0;
}

static int read_prompt(const struct record *record, bool json, const char *path, struct prompt *out,
                       struct error *err)
{
	_cleanup_free_ char *where = str_printf("%s:%" PRId64, path, record->line),
	                    *line = strndup(record->data, record->len);
	const char *text = line;
	int r = 0;

	if (!where || !line)
		return error_oom(err);
	if (strlen(line) != record->len)
		return error_set(err, -EINVAL, "%s: a zero byte", where);
	if (!str_is_utf8(line))
		return error_set(err, -EINVAL, "%s: not UTF-8", where);
	if (json)
		r = read_json(record, where, out, &text, err);
	else
		out->object = json_pack("{s:s}", "prompt", line);
	if (r < 0)
		return r;
	out->text = strdup(text);
	return out->text && out->object ? 0 : error_oom(err);
}

static int add_prompt(struct prompts *p, struct prompt **out, struct error *err)
{
	struct prompt *items =
	    p->n & (p->n - 1) ? p->items : realloc(p->items, MAX(2 * p->n, 1) * sizeof(*items));

	if (!items)
		return error_oom(err);
	p->items = items;
	*out = &items[p->n++];
	**out = (struct prompt){0};
	return 0;
}

int prompts_read(const char *path, struct prompts *out, struct error *err)
{
	_cleanup_(records_closep) struct records *records = NULL;
	bool json = str_ends(path, ".jsonl");
	struct record record;
	struct prompt *prompt = NULL;
	int r = records_open(path, json ? RECORDS_JSON : RECORDS_LINES, &records, err);

	*out = (struct prompts){0};
	while (r == 0 && (r = records_next(records, &record, err)) > 0)
		if ((r = add_prompt(out, &prompt, err)) == 0)
			r = read_prompt(&record, json, path, prompt, err);
	if (r < 0)
		return r;
	return out->n ? 0 : error_set(err, -EINVAL, "%s: there are no prompts in it", path);
}

void prompts_free(struct prompts *p)
{
	for (size_t i = 0; i < p->n; i++) {
		free(p->items[i].text);
		json_decref(p->items[i].object);
	}
	free(p->items);
	*p = (struct prompts){0};
}

bool stop_find(char *const *strings, const char *text, size_t from, size_t len, size_t *at)
{
	bool found = false;

	for (; strings && *strings; strings++) {
		const char *hit = memmem(text + from, len - from, *strings, strlen(*strings));

		if (hit && (!found || (size_t)(hit - text) < *at)) {
			*at = (size_t)(hit - text);
			found = true;
		}
	}
	return found;
}

size_t stop_pending(char *const *strings, const char *text, size_t from, size_t len)
{
	size_t most = 0;

	for (; strings && *strings; strings++) {
		size_t n = strlen(*strings);

		for (size_t k = MIN(n, len - from); k > most; k--)
			if (k < n && !memcmp(text + len - k, *strings, k))
				most = k;
	}
	return most;
}
