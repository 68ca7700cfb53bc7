/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-batches of a policy, whose rows are completions, with what the reference model makes of them. */
#include <string.h>

#include "engine/train/internal.h"

/* Of so many prompts. */
static int64_t passes_of(const struct trainer *t, int64_t prompts)
{
	return (prompts * t->o.policy.generations + t->o.micro_batch - 1) / t->o.micro_batch;
}

int64_t policy_last(struct trainer *t, bool all)
{
	int64_t each = train_prompts(&t->o), last = 0;

	sampler_step_all(&t->sampler, t->policy.number, t->all_rows);
	for (int rank = 0; rank < t->world_size; rank++) {
		int64_t prompts = 0;

		for (int64_t i = 0; i < each; i++)
			prompts += t->all_rows[rank * each + i] >= 0;
		if (all || rank == t->rank)
			last = MAX(last, passes_of(t, prompts) - 1);
	}
	return last;
}

static void add_rollout(struct trainer *t, const struct rollout *one, struct model_batch *batch)
{
	int64_t at = batch->tokens, n = one->prompt + one->length;

	memcpy(t->ids + at, one->ids, (size_t)n * sizeof(*t->ids));
	for (int64_t i = 0; i < n; i++)
		t->targets[at + i] =
		    i + 1 >= one->prompt && i + 1 < n && policy_counts(t, one) ? one->ids[i + 1] : -100;
	batch->tokens += n;
	t->starts[++batch->documents] = (int32_t)batch->tokens;
	t->row_ends[batch->rows++] = (int32_t)batch->tokens;
}

/* What the reference makes of the micro-batch. */
static int read_reference(struct trainer *t, const struct model_batch *batch, struct error *err)
{
	struct policy_work *p = &t->policy;
	int64_t at = 0;
	int r;

	if (!p->fresh || !train_has_reference(&t->o) || batch->tokens == 0)
		return 0;
	if ((r = model_evaluate(t->plan->frozen.model, batch, NULL, p->losses, err)) < 0)
		return error_prefix(err, "the reference");
	for (int64_t i = p->first; i < p->end; i++) {
		const struct rollout *one = &p->rollouts[i];

		policy_read_completion(one, p->losses + at, p->reference + i * t->o.policy.max_tokens);
		at += one->prompt + one->length;
	}
	return 0;
}

int policy_gather(struct trainer *t, int64_t micro_step, struct model_batch *batch, struct error *err)
{
	struct policy_work *p = &t->policy;

	*batch = (struct model_batch){
	    .ids = t->ids, .targets = t->targets, .starts = t->starts, .row_ends = t->row_ends};
	p->first = MIN(micro_step * t->o.micro_batch, p->count);
	p->end = MIN(p->first + t->o.micro_batch, p->count);
	t->starts[0] = 0;
	for (int64_t i = p->first; i < p->end; i++)
		add_rollout(t, &p->rollouts[i], batch);
	p->tokens = batch->tokens;
	return read_reference(t, batch, err);
}
