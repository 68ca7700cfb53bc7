/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the keys of runs that learn from the rewards of completions. */
#include <errno.h>

#include "base/str.h"
#include "config/run_checks.h"

/* Completions are not saved: a run goes on where new ones are made. */
static int check_multiple(const struct run_config *c, const char *key, int64_t steps, const char *where,
                          struct error *err)
{
	const struct run_policy *p = run_config_policy(c);
	int64_t n = p->iterations * p->mini_batches;

	if (steps % n == 0)
		return 0;
	return error_set(
	    err, -EINVAL,
	    "%s: %s: %lld is no multiple of %s.iterations%s, which is %lld, and completions are not "
	    "saved; expected one, such as %lld",
	    where, key, (long long)steps, run_task_name(c->task),
	    p->mini_batches > 1 ? " times mini_batches" : "", (long long)n,
	    (long long)((steps + n - 1) / n * n));
}

/* Keys of other groups, which tasks that learn from rewards do not read. */
static int check_without_rewards(const struct run_config *c, const char *where, struct error *err)
{
	const struct {
		bool wrong;
		const char *key, *words;
	} idle[] =
	    {
	        {c->data.packing, "data.packing", ", whose rows are prompts"},
	        {c->data.train_on_prompt, "data.train_on_prompt", ": completions alone count"},
	        {c->data.mask_history, "data.mask_history", ": completions alone count"},
	    },
	  checks[] = {
	      {c->distillation.teacher, "distillation.teacher",
	       "is for the tasks pretrain and sft; leave it out"},
	      {c->train.neftune_alpha > 0, "train.neftune_alpha",
	       "is for the tasks pretrain and sft; leave it out"},
	      {c->train.label_smoothing > 0, "train.label_smoothing",
	       "is for the tasks pretrain and sft; leave it out"},
	      {c->train.router_loss > 0, "train.router_loss",
	       "is for the tasks pretrain and sft; leave it out"},
	      {!str_eq(c->train.loss, "cross_entropy"), "train.loss",
	       c->task == RUN_GRPO ? "is for the tasks pretrain and sft; leave it out, or set grpo.loss"
	                           : "is for the tasks pretrain and sft; leave it out"},
	      {str_eq(c->train.precision, "fp8"), "train.precision",
	       "\"fp8\" is not there for tasks that learn from rewards; expected auto, fp32, bf16 or fp16"},
	      {str_eq(c->parallel.trial, "always"), "parallel.trial",
	       "steps that learn from rewards cannot be tried without these; leave it out"},
	  };

	for (size_t i = 0; i < ARRAY_SIZE(idle); i++)
		if (idle[i].wrong)
			return error_set(err, -EINVAL,
			                 "%s: %s: has no effect with task = \"%s\"%s; leave it out", where,
			                 idle[i].key, run_task_name(c->task), idle[i].words);
	for (size_t i = 0; i < ARRAY_SIZE(checks); i++)
		if (checks[i].wrong)
			return error_set(err, -EINVAL, "%s: %s: %s", where, checks[i].key, checks[i].words);
	return 0;
}

/* Keys of the task's own group. */
static int check_policy(const struct run_config *c, const char *where, struct error *err)
{
	const struct run_policy *p = run_config_policy(c);
	const char *task = run_task_name(c->task);
	/* The words have another key of the group after them, and then these. */
	const struct {
		bool wrong;
		const char *key, *words, *other, *after;
	} checks[] = {
	    {p->reward_model && !*p->reward_model, "reward_model",
	     "is empty; name the directory of a model, or leave it out", NULL, ""},
	    {p->reward ? !p->reward[0] || !p->reward[0][0] : !p->reward_model, "reward",
	     "missing; name the program that gives completions their rewards, with its arguments: "
	     "[ \"python3\", \"reward.py\" ], or set ",
	     "reward_model", ""},
	    {p->top_p <= 0, "top_p", "0 leaves no token to choose; expected a number above 0", NULL, ""},
	    {p->beta > 0 && !c->model.path && !p->reference, "beta",
	     "needs a reference model, and weights from nothing are none; expected 0, or a directory in ",
	     "reference", ""},
	    {p->beta == 0 && p->reference, "reference", "has no effect with ", "beta", " = 0; leave it out"},
	    {str_eq(p->loss, "cispo") && p->epsilon_high > 0 && p->epsilon_high < 1, "epsilon_high",
	     "is the highest ratio of the loss cispo; expected at least 1", NULL, ""},
	    {p->value_learning_rate > 0 && c->train.learning_rate == 0, "value_learning_rate",
	     "has no effect with train.learning_rate = 0; leave it out", NULL, ""},
	};

	for (size_t i = 0; i < ARRAY_SIZE(checks); i++)
		if (checks[i].wrong)
			return error_set(err, -EINVAL, "%s: %s.%s: %s%s%s%s%s", where, task, checks[i].key,
			                 checks[i].words, checks[i].other ? task : "",
			                 checks[i].other ? "." : "", checks[i].other ? checks[i].other : "",
			                 checks[i].after);
	return 0;
}

int run_check_rewards(const struct run_config *c, const char *where, struct error *err)
{
	int r;

	if (!run_task_rewards(c->task))
		return 0;
	if ((r = check_policy(c, where, err)) < 0 || (r = check_without_rewards(c, where, err)) < 0 ||
	    (r = check_multiple(c, "output.save_steps", c->output.save_steps, where, err)) < 0 ||
	    (r = check_multiple(c, "train.max_steps", c->train.max_steps, where, err)) < 0)
		return r;
	return run_check_groups(c, where, err);
}
