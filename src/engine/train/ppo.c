/* SPDX-License-Identifier: Apache-2.0 */
/* The advantages and the loss of PPO. */
#include "engine/train/ppo.h"

#include <math.h>

#include "base/cleanup.h"

/* Added to the variance of advantages, so that it may be 0; TRL's. */
#define VARIANCE_LEAST 1e-8

/* Of a token: what it costs to leave the reference; the last one has the reward, too. */
static double reward_of(const struct policy_options *o, const struct ppo_rollout *r, int64_t i)
{
	double last = i == r->length - 1 ? r->reward : 0;

	return r->reference ? last - o->beta * ((double)r->then[i] - (double)r->reference[i]) : last;
}

void ppo_advantages(const struct policy_options *o, const struct ppo_rollout *r, float *advantages,
                    float *returns, struct ppo_sums *sums)
{
	double advantage = 0, next = 0;

	for (int64_t i = r->length - 1; i >= 0; i--) {
		double value = (double)r->values[i];

		advantage = reward_of(o, r, i) + o->gamma * next - value + o->gamma * o->lambda * advantage;
		advantages[i] = (float)advantage;
		returns[i] = (float)(advantage + value);
		next = value;
		sums->count++;
		sums->sum += (double)advantages[i];
		sums->squares += (double)advantages[i] * (double)advantages[i];
	}
}

void ppo_whiten(const struct ppo_sums *all, float *advantages, int64_t n)
{
	double count = MAX(all->count, 1), mean = all->sum / count,
	       variance = all->count > 1 ? MAX(all->squares - count * mean * mean, 0) / (count - 1) : 0;

	for (int64_t i = 0; i < n; i++)
		advantages[i] = (float)(((double)advantages[i] - mean) / sqrt(variance + VARIANCE_LEAST));
}

void ppo_measure(const struct policy_options *o, const struct ppo_rollout *r, double sums[POLICY_SUMS])
{
	sums[POLICY_SUM_MEASURED]++;
	for (int64_t i = 0; i < r->length; i++) {
		sums[POLICY_SUM_ENTROPY] -= (double)r->then[i];
		if (o->beta > 0)
			sums[POLICY_SUM_KL] += (double)r->then[i] - (double)r->reference[i];
	}
}

/* Half the square of how far the value is from the return; with a bound the greater one of this and the same
 * of the value as far as it may have moved. The derivative is by the value. */
static double value_loss(const struct policy_options *o, double now, double then, double of,
                         double *derivative, bool *clipped)
{
	double bounded = MIN(MAX(now, then - o->value_epsilon), then + o->value_epsilon), far = now - of,
	       far_bounded = bounded - of;

	*clipped = o->value_epsilon > 0 && far_bounded * far_bounded > far * far;
	*derivative = *clipped ? 0 : far;
	return (*clipped ? far_bounded * far_bounded : far * far) / 2;
}

void ppo_completion(const struct policy_options *o, const struct policy_totals *all,
                    const struct ppo_tokens *t, float *derivatives, float *value_derivatives,
                    double sums[POLICY_SUMS])
{
	const struct ppo_rollout *r = t->rollout;
	double w = 1 / MAX(all->counted, 1);

	for (int64_t i = 0; i < r->length; i++) {
		double log_ratio = (double)t->now[i] - (double)r->then[i], derivative, value_derivative,
		       of = (double)t->returns[i], far = (double)t->values_now[i] - of;
		bool clipped, value_clipped;
		double loss = policy_clipped_loss(o, log_ratio, (double)t->advantages[i], (double)t->now[i],
		                                  &derivative, &clipped);
		double of_value = value_loss(o, (double)t->values_now[i], (double)r->values[i], of,
		                             &value_derivative, &value_clipped);

		derivatives[i] = (float)(w * derivative);
		value_derivatives[i] = (float)(w * o->value_weight * value_derivative);
		sums[POLICY_SUM_LOSS] += w * (loss + o->value_weight * of_value);
		sums[POLICY_SUM_POLICY_LOSS] += loss;
		sums[POLICY_SUM_VALUE_LOSS] += of_value;
		sums[POLICY_SUM_CLIPPED] += clipped;
		sums[POLICY_SUM_VALUE_CLIPPED] += value_clipped;
		sums[POLICY_SUM_MOVED] += log_ratio * log_ratio / 2;
		sums[POLICY_SUM_RETURNS] += of;
		sums[POLICY_SUM_RETURN_SQUARES] += of * of;
		sums[POLICY_SUM_ERRORS] += far;
		sums[POLICY_SUM_ERROR_SQUARES] += far * far;
	}
	sums[POLICY_SUM_COUNTED] += (double)r->length;
}

/* A variance below this part of the mean of the squares comes from the rounding of sums. */
#define VARIANCE_ROUNDED 1e-12

static double variance(double n, double sum, double squares)
{
	double v = squares / n - sum / n * sum / n;

	return v > VARIANCE_ROUNDED * squares / n ? v : 0;
}

int ppo_metrics(const struct policy_options *o, const double sums[POLICY_SUMS], const double seconds[2],
                struct preference_metric out[PREFERENCE_METRICS_MAX])
{
	double n = MAX(sums[POLICY_SUM_COMPLETIONS], 1), measured = MAX(sums[POLICY_SUM_MEASURED], 1),
	       counted = MAX(sums[POLICY_SUM_COUNTED], 1),
	       spread = variance(counted, sums[POLICY_SUM_RETURNS], sums[POLICY_SUM_RETURN_SQUARES]),
	       errors = variance(counted, sums[POLICY_SUM_ERRORS], sums[POLICY_SUM_ERROR_SQUARES]);
	const struct preference_metric all[] = {
	    {"reward", sums[POLICY_SUM_REWARD] / n},
	    {"reward_std", policy_deviation(n, sums[POLICY_SUM_REWARD], sums[POLICY_SUM_REWARD_SQUARES])},
	    {"completions/mean_length", sums[POLICY_SUM_LENGTH] / n},
	    {"completions/clipped_ratio", 1 - sums[POLICY_SUM_FINISHED] / n},
	    {"objective/entropy", sums[POLICY_SUM_ENTROPY] / measured},
	    {"loss/policy_avg", sums[POLICY_SUM_POLICY_LOSS] / counted},
	    {"loss/value_avg", sums[POLICY_SUM_VALUE_LOSS] / counted},
	    {"policy/approxkl_avg", sums[POLICY_SUM_MOVED] / counted},
	    {"policy/clipfrac_avg", sums[POLICY_SUM_CLIPPED] / counted},
	    {"val/clipfrac_avg", sums[POLICY_SUM_VALUE_CLIPPED] / counted},
	    /* The part of the returns' variance that the values tell; 0 where these are all the same. */
	    {"val/explained_variance", spread > 0 ? 1 - errors / spread : 0},
	    {"generation_seconds", seconds[0]},
	    {"reward_seconds", seconds[1]},
	    {"objective/kl", sums[POLICY_SUM_KL] / measured},
	};
	int count = (int)ARRAY_SIZE(all) - (o->beta > 0 ? 0 : 1);

	_Static_assert(ARRAY_SIZE(all) + POLICY_PARTS_MOST <= PREFERENCE_METRICS_MAX,
	               "a log has room for them");
	for (int i = 0; i < count; i++)
		out[i] = all[i];
	return count;
}
