/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy's part of a step: before its passes, completions and their rewards, unless those of the step
 * before are used once more; then the losses of their tokens between the passes.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/train/internal.h"

#define WAITING "waiting for the completions and rewards of the other ranks (parallel.timeout)"

/* ---- before the passes ---- */

static int reward(struct trainer *t, struct error *err)
{
	const struct policy_options *o = &t->o.policy;
	struct policy_work *p = &t->policy;
	int r = 0;

	if (p->count == 0 || p->abandoned)
		return 0;
	memset(p->rewards, 0, (size_t)p->count * sizeof(*p->rewards));
	if (o->reward)
		r = o->reward(o->reward_context, p->rollouts, p->count, p->rewards, &p->reward_parts, err);
	if (r == 1) {
		p->abandoned = true;
		return 0;
	}
	if (r == 0 && o->reward_model)
		r = scores_add(t, p->rollouts, p->count, p->rewards, err);
	for (int64_t i = 0; i < p->count && r == 0; i++) {
		p->rewards[i] -= p->rollouts[i].finished ? 0 : o->truncation_penalty;
		if (!isfinite(p->rewards[i]))
			r = error_set(err, -EDOM, "the reward of completion %lld, %g, is not finite",
			              (long long)i, p->rewards[i]);
	}
	return r;
}

/* step: before which the completions are generated, or behind which they are evaluated. */
static int report(struct trainer *t, int64_t step, struct error *err)
{
	const struct policy_options *o = &t->o.policy;
	struct policy_work *p = &t->policy;

	return o->on_rewards && !p->abandoned ? o->on_rewards(o->on_rewards_context, step, p->rollouts,
	                                                      p->count, p->rewards, &p->reward_parts, err)
	                                      : 0;
}

/* Whether there is a log behind one of the steps on the same completions, of which `step` is the first. */
static bool is_logged(const struct trainer *t, int64_t step)
{
	bool logged = false;

	for (int64_t i = 0; i < train_set_steps(&t->o); i++)
		logged |= trainer_has_log(t, step + i);
	return logged;
}

/* What has to be known of all ranks' completions of this part. */
static int share_totals(struct trainer *t, const struct policy_part *part, struct policy_totals *out,
                        struct error *err)
{
	const struct policy_work *p = &t->policy;
	double digest = policy_parts_digest(&p->reward_parts);
	struct policy_totals all = {0};
	int r;

	for (int64_t i = part->first; i < part->end; i++) {
		const struct rollout *one = &p->rollouts[i];

		all.completions++;
		all.counted += policy_counts(t, one) ? (double)one->length : 0;
		all.reward += p->rewards[i];
		all.squares += p->rewards[i] * p->rewards[i];
		all.tokens += (double)(one->prompt + one->length);
		all.names += digest;
	}
	all.abandoned = p->abandoned;
	r = trainer_sum(t, policy_device_totals(t), (double *)&all, PLAN_TOTALS, err);
	if (r < 0)
		return error_prefix(err, WAITING);
	*out = all;
	return 0;
}

/* The parts of rewards are summed by their places. */
static int check_names(const struct trainer *t, struct error *err)
{
	const struct policy_work *p = &t->policy;
	char names[POLICY_PARTS_MOST * (POLICY_PART_NAME + 1)] = "";

	if (p->count == 0 || p->set.names == policy_parts_digest(&p->reward_parts) * p->set.completions)
		return 0;
	for (int i = 0; i < p->reward_parts.count; i++)
		snprintf(names + strlen(names), sizeof(names) - strlen(names), " %s",
		         p->reward_parts.name[i]);
	return error_set(err, -EINVAL,
	                 "%s.reward: the program of this rank names the parts of its rewards%s, and that of "
	                 "another rank otherwise; expected the same names, in the same order, on each",
	                 trainer_has_values(t) ? "ppo" : "grpo", *names ? names : " not at all");
}

/* The sums of this rank that do not come from passes, and the advantages: of the completions of this step. */
static void count_rewards(struct trainer *t)
{
	struct policy_work *p = &t->policy;
	int64_t n = train_completions(&t->o);

	memset(p->sums, 0, sizeof(p->sums));
	for (int64_t i = p->part.first; i < p->part.end; i++) {
		p->sums[POLICY_SUM_COMPLETIONS]++;
		p->sums[POLICY_SUM_LENGTH] += (double)p->rollouts[i].length;
		p->sums[POLICY_SUM_FINISHED] += p->rollouts[i].finished;
		for (int k = 0; k < p->reward_parts.count; k++)
			p->sums[POLICY_SUM_PARTS + k] += p->reward_parts.values[i * POLICY_PARTS_MOST + k];
	}
	if (trainer_has_values(t)) {
		ppo_count(t);
		return;
	}
	for (int64_t i = p->part.first; i < p->part.end; i += t->o.policy.generations)
		policy_advantages(&t->o.policy, &p->set, p->rewards + i, p->rewards + n + i, p->sums);
}

/* A new set of completions. */
static int make_set(struct trainer *t, int64_t number, struct error *err)
{
	struct policy_work *p = &t->policy;
	double begun = clock_monotonic(), made, steps = (double)train_set_steps(&t->o);
	struct policy_part all;
	int r;

	if ((r = rollouts_make(t, number, err)) < 0)
		return r;
	made = clock_monotonic();
	if ((r = reward(t, err)) < 0 ||
	    (is_logged(t, t->begun + 1) && (r = report(t, t->begun + 1, err)) < 0))
		return r;
	/* Of each step that they are for. */
	p->seconds[0] = (made - begun) / steps;
	p->seconds[1] = (clock_monotonic() - made) / steps;
	all = (struct policy_part){.end = p->abandoned ? 0 : p->count};
	if ((r = share_totals(t, &all, &p->set, err)) < 0)
		return r;
	if (p->set.abandoned > 0) {
		p->number = -1;
		return 1;
	}
	if ((r = check_names(t, err)) < 0)
		return r;
	/* A part that has no step yet has to have its probabilities from before the first one. */
	if (train_observes(&t->o) && (r = policy_observe(t, err)) < 0)
		return r;
	return trainer_has_values(t) ? ppo_begin(t, err) : 0;
}

int policy_begin(struct trainer *t, struct train_work *w, struct error *err)
{
	struct policy_work *p = &t->policy;
	int64_t number = t->begun / train_set_steps(&t->o);
	int r;

	p->fresh = p->number != number;
	if (p->fresh && (r = make_set(t, number, err)) != 0)
		return r;
	p->part = policy_part(t, p->count);
	p->all = p->set;
	if (t->o.policy.mini_batches > 1 && (r = share_totals(t, &p->part, &p->all, err)) < 0)
		return r;
	count_rewards(t);
	w->targets = (int64_t)p->all.counted;
	w->tokens = (int64_t)p->all.tokens;
	return 0;
}

/* ---- held-out prompts ---- */

static int evaluate(struct trainer *t, struct policy_evaluation *all, struct error *err)
{
	struct policy_work *p = &t->policy;
	int64_t rows = dataset_rows(t->eval), each = t->o.micro_batch * t->o.accumulation;
	int r = 0;

	for (int64_t first = 0; first < rows && r == 0; first += each * t->world_size) {
		/* No rank has more: where they share weights, each place takes a pass. */
		int64_t most = (rows - first + t->world_size - 1) / t->world_size;

		if ((r = rollouts_hold_out(t, first, MIN(each, most), err)) < 0)
			return r;
		all->abandoned = p->abandoned;
		/* Where ranks share weights, they have agreed on this; not so on what follows. */
		if (p->abandoned)
			break;
		if ((r = reward(t, err)) < 0 || (first == 0 && (r = report(t, t->step, err)) < 0))
			return r;
		all->abandoned = p->abandoned;
		for (int64_t i = 0; i < p->count && !p->abandoned; i++) {
			all->completions++;
			all->length += (double)p->rollouts[i].length;
			all->finished += p->rollouts[i].finished;
			all->reward += p->rewards[i];
			all->squares += p->rewards[i] * p->rewards[i];
		}
	}
	return r;
}

int policy_evaluate(struct trainer *t, struct preference_metric *metrics, struct error *err)
{
	struct policy_work *p = &t->policy, kept = *p;
	struct policy_evaluation all = {0};
	const double none[POLICY_SUMS] = {0};
	int r;

	_Static_assert(sizeof(all) <= PLAN_TOTALS * sizeof(double), "the plan has room for them");
	p->rollouts = p->held_out.rollouts;
	p->ids = p->held_out.ids;
	p->rewards = p->held_out.rewards;
	p->reward_parts.values = p->held_out.reward_parts;
	r = evaluate(t, &all, err);
	*p = kept;
	if (r < 0)
		return error_prefix(err, "evaluation");
	r = trainer_sum(t, policy_device_totals(t), (double *)&all, sizeof(all) / sizeof(double), err);
	if (r < 0)
		return error_prefix(err, "evaluation: " WAITING);
	if (all.abandoned > 0)
		return 1;
	if (metrics)
		policy_evaluation_metrics(&all, metrics,
		                          trainer_policy_metrics(t, none, t->policy.seconds, metrics));
	return 0;
}

/* ---- a micro-batch ---- */

static int weigh(void *context, const float *losses, float *factors, struct error *err)
{
	struct trainer *t = context;
	struct policy_work *p = &t->policy;
	int64_t most = t->o.policy.max_tokens, at = 0, n = train_completions(&t->o);
	float *derivatives = p->now + most;

	if (trainer_has_values(t))
		return ppo_weigh(t, losses, factors);
	for (int64_t i = p->first; i < p->end && losses; i++) {
		const struct rollout *one = &p->rollouts[i];
		struct policy_tokens tokens = {
		    .now = p->now,
		    .then = p->then + i * most,
		    .reference = train_has_reference(&t->o) ? p->reference + i * most : NULL,
		    .length = one->length,
		    .advantage = p->rewards[n + i]};

		if (policy_counts(t, one)) {
			policy_read_completion(one, losses + at, p->now);
			if (p->fresh)
				memcpy(p->then + i * most, p->now, (size_t)one->length * sizeof(*p->now));
			policy_completion(&t->o.policy, &p->all, &tokens, derivatives, p->sums);
			for (int64_t k = 0; k < one->length; k++)
				factors[at + one->prompt - 1 + k] = -derivatives[k];
		}
		at += one->prompt + one->length;
	}
	return 0;
}

int policy_micro_batch(struct trainer *t, int64_t micro_step, struct model_batch *batch, struct error *err)
{
	int r = policy_gather(t, &t->policy.part, micro_step, batch, err);

	batch->weigh = weigh;
	batch->weigh_context = t;
	return r;
}
