/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-batches of a policy, whose rows are completions, with their log-probabilities before the first
 * step. */
#include <string.h>

#include "engine/train/internal.h"

/* The completions that a rank has of a set. */
static int64_t count_of(const struct trainer *t, int rank)
{
	int64_t each = train_prompts(&t->o), prompts = 0;

	for (int64_t i = 0; i < each; i++)
		prompts += t->all_rows[rank * each + i] >= 0;
	return prompts * t->o.policy.generations;
}

struct policy_part policy_part(const struct trainer *t, int64_t count)
{
	int64_t generations = t->o.policy.generations, parts = t->o.policy.mini_batches,
	        prompts = count / generations, number = t->begun % parts, first, end;

	/* As equal as can be, with all completions of a prompt in the same one. At the end of an epoch there
	 * may be too few prompts: no step is without completions all the same. */
	if (prompts >= parts) {
		first = number * prompts / parts;
		end = (number + 1) * prompts / parts;
	} else {
		first = prompts ? number % prompts : 0;
		end = MIN(first + 1, prompts);
	}
	return (struct policy_part){.first = first * generations, .end = end * generations};
}

int64_t policy_last(struct trainer *t, bool set, bool all)
{
	int64_t batch = t->o.micro_batch, last = 0;

	sampler_step_all(&t->sampler, t->policy.number, t->all_rows);
	for (int rank = 0; rank < t->world_size; rank++) {
		struct policy_part part = {.end = count_of(t, rank)};

		if (!set)
			part = policy_part(t, part.end);
		if (all || rank == t->rank)
			last = MAX(last, (part.end - part.first + batch - 1) / batch - 1);
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

/* Log-probabilities of the micro-batch under the reference model. */
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

int policy_gather(struct trainer *t, const struct policy_part *part, int64_t micro_step,
                  struct model_batch *batch, struct error *err)
{
	struct policy_work *p = &t->policy;

	*batch = (struct model_batch){
	    .ids = t->ids, .targets = t->targets, .starts = t->starts, .row_ends = t->row_ends};
	p->first = MIN(part->first + micro_step * t->o.micro_batch, part->end);
	p->end = MIN(p->first + t->o.micro_batch, part->end);
	t->starts[0] = 0;
	for (int64_t i = p->first; i < p->end; i++)
		add_rollout(t, &p->rollouts[i], batch);
	p->tokens = batch->tokens;
	return read_reference(t, batch, err);
}

/* Log-probabilities, and values, of a micro-batch as it was generated. */
static int observe(struct trainer *t, const struct policy_part *all, int64_t micro_step, struct error *err)
{
	struct policy_work *p = &t->policy;
	int64_t at = 0, most = t->o.policy.max_tokens;
	struct model_batch b;
	int r;

	if ((r = policy_gather(t, all, micro_step, &b, err)) < 0 ||
	    (r = model_evaluate(t->plan->model, &b, NULL, p->losses, err)) < 0)
		return r;
	for (int64_t i = p->first; i < p->end; i++) {
		const struct rollout *one = &p->rollouts[i];

		policy_read_completion(one, p->losses + at, p->then + i * most);
		if (trainer_has_values(t))
			memcpy(t->ppo.values + i * most, p->losses + b.tokens + at + one->prompt - 1,
			       (size_t)one->length * sizeof(float));
		at += one->prompt + one->length;
	}
	return 0;
}

int policy_observe(struct trainer *t, struct error *err)
{
	const struct policy_part all = {.end = t->policy.count};
	int64_t last = policy_last(t, true, shard_in_step(t->plan->shard));
	int r = 0;

	for (int64_t a = 0; a <= last && r == 0; a++)
		r = observe(t, &all, a, err);
	/* What the passes of the step would find once more is known. */
	t->policy.fresh = false;
	return r < 0 ? error_prefix(err, "probabilities of completions") : 0;
}
