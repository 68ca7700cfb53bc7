/* SPDX-License-Identifier: Apache-2.0 */
/* Reads files of prompts, and finds the strings that end a text. */
#include "worker/prompts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

static int read_line(char *line, size_t len, bool json, const char *path, int number, struct prompt *out,
                     struct error *err)
{
	_cleanup_free_ char *where = str_printf("%s:%d", path, number);
	const char *text = line;
	int r;

	if (!where)
		return error_oom(err);
	if (strlen(line) != len)
		return error_set(err, -EINVAL, "%s: a zero byte", where);
	if (json) {
		r = json_parse(line, len, where, &out->object, err);
		if (r < 0 || (r = json_need_string(out->object, "prompt", where, &text, err)) < 0)
			return r;
	} else {
		if (!str_is_utf8(line))
			return error_set(err, -EINVAL, "%s: not UTF-8", where);
		out->object = json_pack("{s:s}", "prompt", line);
	}
	out->text = strdup(text);
	return out->text && out->object ? 0 : error_oom(err);
}

int prompts_read(const char *path, struct prompts *out, struct error *err)
{
	_cleanup_free_ char *data = NULL;
	bool json = str_ends(path, ".jsonl");
	size_t len, lines = 1;
	int r = file_read(path, 0, &data, &len, err), number = 0;

	*out = (struct prompts){0};
	if (r < 0)
		return r;
	for (size_t i = 0; i < len; i++)
		lines += data[i] == '\n';
	out->items = calloc(lines, sizeof(*out->items));
	if (!out->items)
		return error_oom(err);
	for (char *line = data, *end; line < data + len; line = end + 1) {
		size_t n;

		end = memchr(line, '\n', (size_t)(data + len - line));
		if (!end)
			end = data + len;
		n = (size_t)(end - line);
		n -= n > 0 && line[n - 1] == '\r';
		line[n] = '\0';
		number++;
		if (strspn(line, " \t") == n)
			continue;
		/* Counted first, so that a line that is wrong is freed, too. */
		r = read_line(line, n, json, path, number, &out->items[out->n++], err);
		if (r < 0)
			return r;
	}
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
