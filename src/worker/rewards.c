/* SPDX-License-Identifier: Apache-2.0 */
/* Completions as lines of JSON for the program that gives them rewards. */
#include "worker/rewards.h"

#include "base/json.h"
#include "base/str.h"
#include "engine/chat/exact_json.h"
#include "worker/completions.h"

static int add_ids(json_t *line, const char *key, const int32_t *ids, int64_t n, struct error *err)
{
	json_t *list = json_array();

	for (int64_t i = 0; i < n; i++)
		if (json_array_append_new(list, json_integer(ids[i])) < 0) {
			json_decref(list);
			return error_oom(err);
		}
	return json_object_set_new(line, key, list) < 0 ? error_oom(err) : 0;
}

/* `one` is the completion at `index` of `count`. */
static int add_line(const struct rewards *r, const struct rollout *one, int64_t index, int64_t count,
                    struct strbuf *out, struct error *err)
{
	_cleanup_json_ json_t *line = json_object();
	const int32_t *completion = one->ids + one->prompt;
	int s;

	if (!line)
		return error_oom(err);
	if ((s = completion_describe(line, r->config, r->tok, one, err)) < 0)
		return s;
	if (json_object_set_new(line, "index", json_integer(index)) < 0 ||
	    json_object_set_new(line, "count", json_integer(count)) < 0)
		return error_oom(err);
	if ((s = add_ids(line, "prompt_ids", one->ids, one->prompt, err)) < 0 ||
	    (s = add_ids(line, "completion_ids", completion, one->length, err)) < 0)
		return s;
	exact_json_dump(line, -1, out);
	strbuf_addc(out, '\n');
	return out->failed ? error_oom(err) : 0;
}

/* Names the key of the program. */
static int name_key(const struct run_config *config, int r, struct error *err)
{
	return r < 0 ? error_prefix(err, "%s.reward", run_task_name(config->task)) : r;
}

int rewards_start(struct rewards *r, const struct run_config *config, const struct tokenizer *tok,
                  struct error *err)
{
	*r = (struct rewards){.config = config, .tok = tok};
	return name_key(config, reward_program_start(run_config_policy(config)->reward, &r->program, err),
	                err);
}

int rewards_give(void *context, const struct rollout *rollouts, int64_t n, double *rewards,
                 struct policy_parts *parts, struct error *err)
{
	struct rewards *r = context;
	_cleanup_strbuf_ struct strbuf lines = {0};
	int s = 0;

	for (int64_t i = 0; i < n && s == 0; i++)
		s = add_line(r, &rollouts[i], i, n, &lines, err);
	if (s < 0)
		return s;
	s = reward_program_ask(r->program, lines.data, lines.len, n, rewards, parts,
	                       (double)r->config->parallel.timeout, err);
	return name_key(r->config, s, err);
}

void rewards_end(struct rewards *r)
{
	reward_program_endp(&r->program);
	r->program = NULL;
}
