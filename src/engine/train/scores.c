/* SPDX-License-Identifier: Apache-2.0 */
/* The rewards that a reward model gives the completions of a policy: its scores, each at the last token of a
 * completion with what the template writes behind an answer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/train/internal.h"

int scores_allocate(struct trainer *t, struct error *err)
{
	struct scores_work *w = &t->scores;
	size_t tokens = (size_t)(t->o.micro_batch * (t->max_row + POLICY_CLOSING_MOST));

	if (!trainer_has_policy(t) || !t->o.policy.reward_model)
		return 0;
	w->ids = malloc(tokens * sizeof(*w->ids));
	w->targets = malloc(tokens * sizeof(*w->targets));
	w->starts = malloc((size_t)(t->o.micro_batch + 1) * sizeof(*w->starts));
	w->scores = malloc(tokens * sizeof(*w->scores));
	return w->ids && w->targets && w->starts && w->scores ? 0 : error_oom(err);
}

void scores_free(struct trainer *t)
{
	free(t->scores.ids);
	free(t->scores.targets);
	free(t->scores.starts);
	free(t->scores.scores);
}

static void add_document(struct trainer *t, const struct rollout *one, struct model_batch *b)
{
	const struct policy_options *o = &t->o.policy;
	struct scores_work *w = &t->scores;
	int32_t *ids = w->ids + b->tokens, *targets = w->targets + b->tokens;
	int64_t n = one->prompt + one->length;

	memcpy(ids, one->ids, (size_t)n * sizeof(*ids));
	/* The model may have ended the completion by another token than the template's. */
	for (int i = one->finished ? 1 : 0; i < o->closing_count; i++)
		ids[n++] = o->closing[i];
	for (int64_t i = 0; i < n; i++)
		targets[i] = -100;
	targets[n - 1] = 0;
	b->tokens += n;
	w->starts[++b->documents] = (int32_t)b->tokens;
}

int scores_add(struct trainer *t, const struct rollout *rollouts, int64_t n, double *rewards,
               struct error *err)
{
	struct scores_work *w = &t->scores;
	int r;

	for (int64_t first = 0; first < n && !policy_abandons(t); first += t->o.micro_batch) {
		struct model_batch b = {.ids = w->ids, .targets = w->targets, .starts = w->starts};
		int64_t end = MIN(first + t->o.micro_batch, n);

		w->starts[0] = 0;
		for (int64_t i = first; i < end; i++)
			add_document(t, &rollouts[i], &b);
		if ((r = model_evaluate(t->plan->reward_model.model, &b, NULL, w->scores, err)) < 0)
			return error_prefix(err, "the reward model");
		for (int64_t i = first; i < end; i++)
			rewards[i] += (double)w->scores[w->starts[i - first + 1] - 1];
	}
	return 0;
}
