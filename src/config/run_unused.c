/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that a user has written and that have no effect: those of another task, and those that another key
 * makes idle. */
#include <errno.h>

#include "base/str.h"
#include "config/keys_source.h"
#include "config/run_checks.h"

static bool is_one_of(const char *text, const char *const *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (str_eq(text, list[i]))
			return true;
	return false;
}

/* A section, or a key, that a task does not read; NULL: it reads all. */
static const char *reader_of(const struct run_config *c, const struct key *k)
{
	static const char *const trains[] = {"data",       "model", "train", "lora",
	                                     "preference", "grpo",  "ppo",   "parallel"};

	/* Where the output of a command is, `dtrain show` and `dtrain watch` want to know. */
	if (c->task == RUN_COMMAND && (is_one_of(k->section, trains, ARRAY_SIZE(trains)) ||
	                               (str_eq(k->section, "output") && !str_eq(k->name, "dir"))))
		return "it is for runs of dtrain's own engine";
	if (c->task != RUN_GENERATE && str_eq(k->section, "generate"))
		return "it is for task = \"generate\"";
	if (run_task_trains(c->task) && !run_task_prefers(c->task) && str_eq(k->section, "preference"))
		return "it is for the tasks dpo, orpo, simpo, kto and reward";
	if (run_task_trains(c->task) && c->task != RUN_GRPO && str_eq(k->section, "grpo"))
		return "it is for task = \"grpo\"";
	if (run_task_trains(c->task) && c->task != RUN_PPO && str_eq(k->section, "ppo"))
		return "it is for task = \"ppo\"";
	return NULL;
}

static int check_values(const struct run_config *c, const struct keys *keys, const bool *seen,
                        const char *where, struct error *err)
{
	static const char *const with_momentum[] = {"sgd", "lars", "muon"};
	bool momentum = is_one_of(c->train.optimizer, with_momentum, ARRAY_SIZE(with_momentum));
	const struct {
		bool wrong;
		const char *key, *with, *value, *words;
	} checks[] = {
	    {!momentum, "train.momentum", "train.optimizer", c->train.optimizer,
	     "it is for sgd, lars and muon"},
	    {!momentum && c->train.nesterov, "train.nesterov", "train.optimizer", c->train.optimizer,
	     "it is for sgd, lars and muon"},
	    {!str_eq(c->train.schedule, "wsd"), "train.decay_ratio", "train.schedule", c->train.schedule,
	     "it is for wsd"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(checks); i++)
		if (checks[i].wrong && keys_seen(keys, seen, checks[i].key))
			return error_set(err, -EINVAL,
			                 "%s: %s: has no effect with %s = \"%s\": %s; leave it out", where,
			                 checks[i].key, checks[i].with, checks[i].value, checks[i].words);
	if (c->train.eval_steps > 0 && c->data.eval_fraction == 0)
		return error_set(
		    err, -EINVAL,
		    "%s: train.eval_steps: has no effect without data.eval_fraction, which holds "
		    "out the examples for evaluation; set that, too",
		    where);
	return 0;
}

int run_check_unused(const struct run_config *c, const struct keys *keys, const bool *seen, const char *where,
                     struct error *err)
{
	char name[NAME_MAX_LEN];

	for (size_t i = 0; i < keys->count; i++) {
		const char *words = seen[i] ? reader_of(c, &keys->list[i]) : NULL;

		if (words)
			return error_set(
			    err, -EINVAL, "%s: %s: has no effect with task = \"%s\": %s; leave it out", where,
			    keys_name(&keys->list[i], name, sizeof(name)), run_task_name(c->task), words);
	}
	return run_task_trains(c->task) ? check_values(c, keys, seen, where, err) : 0;
}
