/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PPO's part of a step: before the first step on a set of completions, advantages and returns, from what they
 * were generated with; the losses of their tokens and values, between the passes.
 */
#include <string.h>

#include "engine/train/internal.h"

#define WAITING "waiting for the advantages of the other ranks (parallel.timeout)"

int ppo_allocate(struct trainer *t, struct error *err)
{
	struct ppo_work *w = &t->ppo;
	size_t n = (size_t)(train_completions(&t->o) * t->o.policy.max_tokens);

	if (!trainer_has_values(t))
		return 0;
	w->values = malloc(n * sizeof(*w->values));
	w->advantages = malloc(n * sizeof(*w->advantages));
	w->returns = malloc(n * sizeof(*w->returns));
	w->derivatives = malloc((size_t)t->o.policy.max_tokens * sizeof(*w->derivatives));
	return w->values && w->advantages && w->returns && w->derivatives ? 0 : error_oom(err);
}

void ppo_free(struct trainer *t)
{
	free(t->ppo.values);
	free(t->ppo.advantages);
	free(t->ppo.returns);
	free(t->ppo.derivatives);
}

/* The completion of this index as it was generated. */
static struct ppo_rollout rollout_of(const struct trainer *t, int64_t index)
{
	const struct policy_work *p = &t->policy;
	int64_t at = index * t->o.policy.max_tokens;

	return (struct ppo_rollout){.then = p->then + at,
	                            .reference = train_has_reference(&t->o) ? p->reference + at : NULL,
	                            .values = t->ppo.values + at,
	                            .length = p->rollouts[index].length,
	                            .reward = p->rewards[index]};
}

int ppo_begin(struct trainer *t, struct error *err)
{
	int64_t most = t->o.policy.max_tokens;
	struct ppo_sums sums = {0};
	int r;

	for (int64_t i = 0; i < t->policy.count; i++) {
		struct ppo_rollout one = rollout_of(t, i);

		if (policy_counts(t, &t->policy.rollouts[i]))
			ppo_advantages(&t->o.policy, &one, t->ppo.advantages + i * most,
			               t->ppo.returns + i * most, &sums);
	}
	_Static_assert(sizeof(sums) <= PLAN_TOTALS * sizeof(double), "the plan has room for them");
	r = trainer_sum(t, policy_device_totals(t), (double *)&sums, sizeof(sums) / sizeof(double), err);
	if (r < 0)
		return error_prefix(err, WAITING);
	for (int64_t i = 0; i < t->policy.count; i++)
		if (policy_counts(t, &t->policy.rollouts[i]))
			ppo_whiten(&sums, t->ppo.advantages + i * most, t->policy.rollouts[i].length);
	return 0;
}

void ppo_count(struct trainer *t)
{
	struct policy_work *p = &t->policy;

	for (int64_t i = p->part.first; i < p->part.end; i++) {
		struct ppo_rollout one = rollout_of(t, i);

		p->sums[POLICY_SUM_REWARD] += one.reward;
		p->sums[POLICY_SUM_REWARD_SQUARES] += one.reward * one.reward;
		if (policy_counts(t, &p->rollouts[i]))
			ppo_measure(&t->o.policy, &one, p->sums);
	}
}

int ppo_weigh(struct trainer *t, const float *losses, float *factors)
{
	struct policy_work *p = &t->policy;
	struct ppo_work *w = &t->ppo;
	int64_t most = t->o.policy.max_tokens, at = 0;
	float *derivatives = p->now + most, *of_values = w->derivatives;

	for (int64_t i = p->first; i < p->end && losses; i++) {
		const struct rollout *one = &p->rollouts[i];
		struct ppo_rollout rollout = rollout_of(t, i);
		struct ppo_tokens tokens = {.rollout = &rollout,
		                            .now = p->now,
		                            .values_now = losses + p->tokens + at + one->prompt - 1,
		                            .advantages = w->advantages + i * most,
		                            .returns = w->returns + i * most};

		if (policy_counts(t, one)) {
			policy_read_completion(one, losses + at, p->now);
			ppo_completion(&t->o.policy, &p->all, &tokens, derivatives, of_values, p->sums);
			for (int64_t k = 0; k < one->length; k++)
				factors[at + one->prompt - 1 + k] = -derivatives[k];
			memcpy(factors + p->tokens + at + one->prompt - 1, of_values,
			       (size_t)one->length * sizeof(*of_values));
		}
		at += one->prompt + one->length;
	}
	return 0;
}
