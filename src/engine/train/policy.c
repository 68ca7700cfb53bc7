/* SPDX-License-Identifier: Apache-2.0 */
/* The losses of GRPO and its kind. */
#include "engine/train/policy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"

/* The logarithm of a ratio that is still finite, so that an advantage of 0 times it is 0. */
#define RATIO_MOST 500.0

/* Keeps an advantage finite where all rewards of a group are about the same; TRL's. */
#define DEVIATION_LEAST 1e-4

void policy_options_default(struct policy_options *o)
{
	*o = (struct policy_options){.max_tokens = 256,
	                             .temperature = 1,
	                             .top_p = 1,
	                             .epsilon = {0.2, 0.2},
	                             .iterations = 1,
	                             .mini_batches = 1,
	                             .loss = POLICY_DAPO,
	                             .gamma = 1,
	                             .lambda = 0.95,
	                             .value_weight = 0.1,
	                             .value_epsilon = 0.2};
}

double policy_deviation(double n, double sum, double squares)
{
	return n > 1 ? sqrt(MAX(squares - sum * sum / n, 0) / (n - 1)) : 0;
}

void policy_advantages(const struct policy_options *o, const struct policy_totals *all, const double *rewards,
                       double *advantages, double sums[POLICY_SUMS])
{
	double mean = 0, squares = 0, own, scale = 1;
	bool equal = true;

	for (int i = 0; i < o->generations; i++) {
		mean += rewards[i];
		equal &= rewards[i] == rewards[0];
	}
	mean /= o->generations;
	for (int i = 0; i < o->generations; i++)
		squares += (rewards[i] - mean) * (rewards[i] - mean);
	own = equal ? 0 : sqrt(squares / (o->generations - 1));
	if (o->scale != POLICY_SCALE_NONE)
		scale =
		    DEVIATION_LEAST + (o->scale == POLICY_SCALE_GROUP
		                           ? own
		                           : policy_deviation(all->completions, all->reward, all->squares));
	for (int i = 0; i < o->generations; i++) {
		advantages[i] = equal ? 0 : (rewards[i] - mean) / scale;
		sums[POLICY_SUM_REWARD] += rewards[i];
	}
	sums[POLICY_SUM_GROUPS]++;
	sums[POLICY_SUM_DEVIATION] += own;
	sums[POLICY_SUM_EQUAL] += equal;
}

/* By what the loss of each token of a completion is multiplied. */
static double weight(const struct policy_options *o, const struct policy_totals *all, int64_t length)
{
	switch (o->loss) {
	case POLICY_GRPO:
		return 1 / ((double)length * all->completions);
	case POLICY_DR_GRPO:
		return 1 / ((double)o->max_tokens * all->completions);
	default:
		return 1 / MAX(all->counted, 1);
	}
}

double policy_clipped_loss(const struct policy_options *o, double log_ratio, double advantage, double now,
                           double *derivative, bool *clipped)
{
	double low = 1 - o->epsilon[0], high = 1 + o->epsilon[1], ratio = exp(MIN(log_ratio, RATIO_MOST));

	if (o->loss == POLICY_CISPO) {
		/* The bounded ratio is a weight, through which no derivative goes. */
		double bounded = MIN(ratio, o->epsilon[1]);

		*clipped = ratio > o->epsilon[1] && advantage > 0;
		*derivative = -bounded * advantage;
		return -bounded * advantage * now;
	}
	*clipped = (ratio < low && advantage < 0) || (ratio > high && advantage > 0);
	*derivative = *clipped ? 0 : -ratio * advantage;
	return *clipped ? -(advantage > 0 ? high : low) * advantage : -ratio * advantage;
}

void policy_completion(const struct policy_options *o, const struct policy_totals *all,
                       const struct policy_tokens *t, float *derivatives, double sums[POLICY_SUMS])
{
	double w = weight(o, all, t->length), mean = 0;

	for (int64_t i = 0; i < t->length; i++)
		mean += ((double)t->now[i] - (double)t->then[i]) / (double)t->length;
	for (int64_t i = 0; i < t->length; i++) {
		double now = (double)t->now[i], log_ratio = now - (double)t->then[i], derivative, loss;
		bool clipped;

		/* The derivative of the mean by each token is 1 / length, and all tokens have that loss. */
		loss = policy_clipped_loss(o, o->of_sequences ? mean : log_ratio, t->advantage, now,
		                           &derivative, &clipped);
		if (t->reference) {
			double below = (double)t->reference[i] - now, kl = exp(below) - below - 1;

			loss += o->beta * kl;
			derivative += o->beta * (1 - exp(below));
			sums[POLICY_SUM_KL] += kl;
		}
		derivatives[i] = (float)(w * derivative);
		sums[POLICY_SUM_LOSS] += w * loss;
		sums[POLICY_SUM_CLIPPED] += clipped;
	}
	sums[POLICY_SUM_COUNTED] += (double)t->length;
}

int policy_metrics(const struct policy_options *o, const double sums[POLICY_SUMS], const double seconds[2],
                   struct preference_metric out[PREFERENCE_METRICS_MAX])
{
	double n = MAX(sums[POLICY_SUM_COMPLETIONS], 1), groups = MAX(sums[POLICY_SUM_GROUPS], 1),
	       counted = MAX(sums[POLICY_SUM_COUNTED], 1);
	const struct preference_metric all[] = {
	    {"reward", sums[POLICY_SUM_REWARD] / n},
	    {"reward_std", sums[POLICY_SUM_DEVIATION] / groups},
	    {"frac_reward_zero_std", sums[POLICY_SUM_EQUAL] / groups},
	    {"completions/mean_length", sums[POLICY_SUM_LENGTH] / n},
	    {"completions/clipped_ratio", 1 - sums[POLICY_SUM_FINISHED] / n},
	    {"clip_ratio/region_mean", sums[POLICY_SUM_CLIPPED] / counted},
	    {"generation_seconds", seconds[0]},
	    {"reward_seconds", seconds[1]},
	    {"kl", sums[POLICY_SUM_KL] / counted},
	};
	int count = (int)ARRAY_SIZE(all) - (o->beta > 0 ? 0 : 1);

	for (int i = 0; i < count; i++)
		out[i] = all[i];
	return count;
}

double policy_parts_digest(const struct policy_parts *parts)
{
	enum { BELOW = 1 << 20 };
	uint64_t h = (uint64_t)parts->count;

	for (int i = 0; i < parts->count; i++)
		h = hash_bytes(parts->name[i], strlen(parts->name[i]) + 1, h);
	return parts->count > 0 ? (double)(1 + h % BELOW) : 0;
}

int policy_parts_metrics(const struct policy_parts *parts, const double sums[POLICY_SUMS],
                         char names[POLICY_PARTS_MOST][POLICY_PART_METRIC],
                         struct preference_metric out[PREFERENCE_METRICS_MAX], int count)
{
	for (int i = 0; i < parts->count; i++) {
		snprintf(names[i], POLICY_PART_METRIC, "rewards/%s/mean", parts->name[i]);
		out[count++] = (struct preference_metric){names[i], sums[POLICY_SUM_PARTS + i] /
		                                                        MAX(sums[POLICY_SUM_COMPLETIONS], 1)};
	}
	return count;
}

void policy_evaluation_metrics(const struct policy_evaluation *all, struct preference_metric *metrics,
                               int count)
{
	double n = MAX(all->completions, 1), mean = all->reward / n;
	const struct preference_metric known[] = {
	    {"reward", mean},
	    /* Of a sample, as those of groups. */
	    {"reward_std", n > 1 ? sqrt(MAX(all->squares - n * mean * mean, 0) / (n - 1)) : NAN},
	    {"completions/mean_length", all->length / n},
	    {"completions/clipped_ratio", 1 - all->finished / n},
	};

	for (int i = 0; i < count; i++) {
		metrics[i].value = NAN;
		for (size_t k = 0; k < ARRAY_SIZE(known); k++)
			if (!strcmp(metrics[i].name, known[k].name))
				metrics[i].value = known[k].value;
	}
}
