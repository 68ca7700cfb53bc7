/* SPDX-License-Identifier: Apache-2.0 */
/* Completions as JSON, and some of them in a file. */
#include "worker/completions.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/chat/exact_json.h"
#include "worker/step_lines.h"

/* A text of ids. A model may write any byte: what is no UTF-8 is replaced. */
static int add_text(json_t *line, const char *key, const struct tokenizer *tok, const int32_t *ids, int64_t n,
                    bool skip_special, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r = tokenizer_decode(tok, ids, (size_t)n, skip_special, &text, &len, err);

	if (r < 0)
		return r;
	for (size_t at = 0; at < len; at += strlen(text + at) + 1)
		str_make_utf8(text + at);
	return json_object_set_new(line, key, json_stringn(text, len)) < 0 ? error_oom(err) : 0;
}

static char *answer_text(const struct rollout *one)
{
	char *text = malloc((size_t)one->answers + 1);

	for (int64_t i = 0; text && i < one->answers; i++)
		text[i] = (char)one->answer[i];
	return text;
}

/* With columns the text is that of an object which has these and the answer (dataset_options.kept_columns).
 */
static int add_answer(json_t *line, bool columns, const struct rollout *one, struct error *err)
{
	_cleanup_free_ char *text = answer_text(one);
	_cleanup_json_ json_t *all = NULL;
	size_t len = (size_t)one->answers;
	int r;

	if (!text)
		return error_oom(err);
	if (columns) {
		r = exact_json_parse(text, len, "the columns of a prompt", &all, err);
		return r < 0 ? r : json_object_update_missing(line, all) < 0 ? error_oom(err) : 0;
	}
	return json_object_set_new(line, "answer", len ? json_stringn(text, len) : json_null()) < 0
	           ? error_oom(err)
	           : 0;
}

int completion_describe(json_t *line, const struct run_config *config, const struct tokenizer *tok,
                        const struct rollout *one, struct error *err)
{
	bool columns = run_config_policy(config)->columns != NULL;
	int r;

	if ((r = add_text(line, "prompt", tok, one->ids, one->prompt, false, err)) < 0 ||
	    (r = add_text(line, "completion", tok, one->ids + one->prompt, one->length, true, err)) < 0 ||
	    (r = add_answer(line, columns, one, err)) < 0)
		return r;
	return json_object_set_new(line, "finished", json_boolean(one->finished)) < 0 ||
	               json_object_set_new(line, "held_out", json_boolean(one->held_out)) < 0 ||
	               json_object_set_new(line, "row", json_integer(one->row)) < 0
	           ? error_oom(err)
	           : 0;
}

int completions_open(struct completions *c, const struct run_config *config, const struct tokenizer *tok,
                     int64_t resumed_step, struct error *err)
{
	int r;

	*c = (struct completions){.config = config, .tok = tok, .fd = -1};
	c->path = str_path_join(config->output.dir, "completions.jsonl");
	if (!c->path)
		return error_oom(err);
	r = step_lines_open(c->path, resumed_step, "\"completion\":", err);
	c->fd = r;
	return r < 0 ? r : 0;
}

void completions_close(struct completions *c)
{
	if (c->path && c->fd >= 0)
		close(c->fd);
	free(c->path);
	*c = (struct completions){.fd = -1};
}

/* Of the reward of completion i. */
static int add_parts(json_t *line, const struct policy_parts *parts, int64_t i, struct error *err)
{
	json_t *all;

	if (parts->count == 0)
		return 0;
	all = json_object();
	for (int k = 0; k < parts->count; k++)
		if (json_object_set_new(all, parts->name[k],
		                        json_real(parts->values[i * POLICY_PARTS_MOST + k])) < 0) {
			json_decref(all);
			return error_oom(err);
		}
	return json_object_set_new(line, "rewards", all) < 0 ? error_oom(err) : 0;
}

int completions_write(void *context, int64_t step, const struct rollout *rollouts, int64_t n,
                      const double *rewards, const struct policy_parts *parts, struct error *err)
{
	const struct completions *c = context;
	int r = 0;

	for (int64_t i = 0; c->path && i < MIN(n, run_config_policy(c->config)->log_completions) && r == 0;
	     i++) {
		_cleanup_json_ json_t *line = json_pack("{s:I}", "step", (json_int_t)step);
		_cleanup_strbuf_ struct strbuf text = {0};

		if (!line)
			return error_oom(err);
		if ((r = completion_describe(line, c->config, c->tok, &rollouts[i], err)) < 0)
			return r;
		if (json_object_set_new(line, "reward", json_real(rewards[i])) < 0)
			return error_oom(err);
		if ((r = add_parts(line, parts, i, err)) < 0)
			return r;
		exact_json_dump(line, -1, &text);
		r = step_lines_write(c->fd, c->path, text.failed ? NULL : text.data, err);
	}
	return r;
}
