/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the advantages and losses of PPO: values from the definitions, and derivatives by finite
 * differences. */
#include "engine/train/ppo.h"

#include <math.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "unit.h"

enum { TOKENS = 3 };

static const float then[TOKENS] = {-1.5F, -0.25F, -3}, reference[TOKENS] = {-1.25F, -0.75F, -2.5F},
                   values[TOKENS] = {0.5F, -0.25F, 1};
static const struct policy_totals all = {.completions = 4, .counted = 10};

static struct policy_options make(void)
{
	struct policy_options o;

	policy_options_default(&o);
	o.generations = 1;
	o.max_tokens = 8;
	o.loss = POLICY_PPO;
	o.epsilon[1] = 0.28;
	o.value_weight = 0.5;
	return o;
}

static struct ppo_rollout rollout_of(bool with_reference)
{
	return (struct ppo_rollout){.then = then,
	                            .reference = with_reference ? reference : NULL,
	                            .values = values,
	                            .length = TOKENS,
	                            .reward = 2};
}

/* The sums that the definition has, backwards: what each token's reward and the next value are more than its
 * value, discounted. */
START_TEST(advantages)
{
	struct policy_options o = make();
	struct ppo_rollout r = rollout_of(true);
	struct ppo_sums sums = {.count = 1, .sum = 10, .squares = 100};
	float got[TOKENS], returns[TOKENS];
	/* Of the reference's part with β = 0.5: 0.125, -0.25, 0.25; the last token has the reward, too. */
	double third = 0.25 + 2 - 1, second = -0.25 + 0.75 * 1 + 0.25 + 0.75 * 0.5 * third,
	       first = 0.125 + 0.75 * -0.25 - 0.5 + 0.75 * 0.5 * second;

	o.beta = 0.5;
	o.gamma = 0.75;
	o.lambda = 0.5;
	ppo_advantages(&o, &r, got, returns, &sums);
	ck_assert_double_eq_tol((double)got[0], first, 1e-6);
	ck_assert_double_eq_tol((double)got[1], second, 1e-6);
	ck_assert_double_eq_tol((double)got[2], third, 1e-6);
	for (int i = 0; i < TOKENS; i++)
		ck_assert_double_eq_tol((double)returns[i], (double)(got[i] + values[i]), 1e-6);
	ck_assert_double_eq(sums.count, 4);
	ck_assert_double_eq_tol(sums.sum, 10 + first + second + third, 1e-5);
	ck_assert_double_eq_tol(sums.squares, 100 + first * first + second * second + third * third, 1e-5);
}
END_TEST

/* With λ = 1 and γ = 1 a return is the reward that is still to come, whatever the values say. */
START_TEST(returns_are_what_is_to_come)
{
	struct policy_options o = make();
	struct ppo_rollout r = rollout_of(false);
	struct ppo_sums sums = {0};
	float got[TOKENS], returns[TOKENS];

	o.lambda = 1;
	ppo_advantages(&o, &r, got, returns, &sums);
	for (int i = 0; i < TOKENS; i++)
		ck_assert_double_eq_tol((double)returns[i], 2, 1e-6);
}
END_TEST

START_TEST(whitened)
{
	float numbers[] = {1, 2, 3, 6}, same[] = {3, 3};
	const struct ppo_sums sums = {.count = 4, .sum = 12, .squares = 50},
	                      equal = {.count = 2, .sum = 6, .squares = 18}, none = {0};
	double deviation = sqrt(14 / 3.);

	ppo_whiten(&sums, numbers, 4);
	ck_assert_double_eq_tol((double)numbers[0], -2 / deviation, 1e-6);
	ck_assert_double_eq_tol((double)numbers[3], 3 / deviation, 1e-6);
	ppo_whiten(&equal, same, 2);
	ck_assert(same[0] == 0 && same[1] == 0);
	ppo_whiten(&none, same, 0);
}
END_TEST

/* ---- the loss ---- */

static const float returns[TOKENS] = {1.5F, -1, 0.75F}, whitened_ones[TOKENS] = {1.25F, -0.5F, 0};

static double loss_of(const struct policy_options *o, const float *now, const float *values_now,
                      float *derivatives, float *of_values, double sums[POLICY_SUMS])
{
	struct ppo_rollout r = rollout_of(false);
	struct ppo_tokens tokens = {.rollout = &r,
	                            .now = now,
	                            .values_now = values_now,
	                            .advantages = whitened_ones,
	                            .returns = returns};

	memset(sums, 0, POLICY_SUMS * sizeof(*sums));
	ppo_completion(o, &all, &tokens, derivatives, of_values, sums);
	return sums[POLICY_SUM_LOSS];
}

/* By number `i` of the log-probabilities, then of the values. */
static double slope_of(const struct policy_options *o, const float *now, const float *values_now, int i)
{
	double loss[2], sums[POLICY_SUMS];
	float step = 1.F / 1024, unused[2 * TOKENS];

	for (int side = 0; side < 2; side++) {
		float moved[2 * TOKENS];

		memcpy(moved, now, TOKENS * sizeof(*now));
		memcpy(moved + TOKENS, values_now, TOKENS * sizeof(*now));
		moved[i] += side ? step : -step;
		loss[side] = loss_of(o, moved, moved + TOKENS, unused, unused + TOKENS, sums);
	}
	return (loss[1] - loss[0]) / (2 * (double)step);
}

/* Logarithms of ratios, and how far values have moved: inside of the bounds and outside on either side. */
static const float moves[][TOKENS] = {{0, 0, 0},
                                      {0.125F, -0.125F, 0.0625F},
                                      {0.5F, 0.25F, 0.625F},
                                      {-0.5F, -0.25F, -0.625F},
                                      {1.5F, -1.5F, 0.375F}};

START_TEST(derivatives_are_those_of_the_loss)
{
	static const double bounds[] = {0.2, 0, 0.4};
	struct policy_options o = make();
	double sums[POLICY_SUMS], clipped = 0, of_values = 0;

	o.value_epsilon = bounds[_i];
	for (size_t a = 0; a < ARRAY_SIZE(moves); a++)
		for (size_t b = 0; b < ARRAY_SIZE(moves); b++) {
			float now[TOKENS], values_now[TOKENS], d[2 * TOKENS];

			for (int i = 0; i < TOKENS; i++) {
				now[i] = then[i] + moves[a][i];
				values_now[i] = values[i] + moves[b][i];
			}
			loss_of(&o, now, values_now, d, d + TOKENS, sums);
			clipped += sums[POLICY_SUM_CLIPPED];
			of_values += sums[POLICY_SUM_VALUE_CLIPPED];
			for (int i = 0; i < 2 * TOKENS; i++)
				ck_assert_double_eq_tol((double)d[i], slope_of(&o, now, values_now, i), 1e-5);
		}
	ck_assert(clipped > 0);
	ck_assert(bounds[_i] > 0 ? of_values > 0 : of_values == 0);
}
END_TEST

/* The greater one of both squares counts, and no derivative goes through a value that is held by its bound.
 */
START_TEST(values_of_the_loss)
{
	struct policy_options o = make();
	const float values_now[TOKENS] = {1.25F, 0.5F, 0};
	float d[TOKENS], of[TOKENS];
	double sums[POLICY_SUMS], loss;

	loss = loss_of(&o, then, values_now, d, of, sums);
	/* The first one has come nearer to 1.5 than the bound 0.7 allows, the second one has gone away from
	 * -1, and the last one, away from 0.75, too. */
	ck_assert_double_eq_tol(sums[POLICY_SUM_VALUE_LOSS], (0.8 * 0.8 + 1.5 * 1.5 + 0.75 * 0.75) / 2, 1e-6);
	ck_assert_double_eq(sums[POLICY_SUM_VALUE_CLIPPED], 1);
	ck_assert(of[0] == 0);
	ck_assert_double_eq_tol((double)of[1], 0.5 * 1.5 / 10, 1e-6);
	ck_assert_double_eq_tol((double)of[2], 0.5 * -0.75 / 10, 1e-6);
	/* All ratios are 1. */
	ck_assert_double_eq_tol(sums[POLICY_SUM_POLICY_LOSS], -0.75, 1e-6);
	ck_assert_double_eq(sums[POLICY_SUM_CLIPPED], 0);
	ck_assert_double_eq(sums[POLICY_SUM_MOVED], 0);
	ck_assert_double_eq_tol(loss, (sums[POLICY_SUM_POLICY_LOSS] + 0.5 * sums[POLICY_SUM_VALUE_LOSS]) / 10,
	                        1e-9);
	ck_assert_double_eq(sums[POLICY_SUM_COUNTED], TOKENS);
	for (int i = 0; i < TOKENS; i++)
		ck_assert_double_eq_tol((double)d[i], -(double)whitened_ones[i] / 10, 1e-6);
}
END_TEST

/* ---- measurements ---- */

START_TEST(measurements)
{
	static const struct preference_metric want[] = {{"reward", 1},
	                                                {"reward_std", 2},
	                                                {"completions/mean_length", 12.5},
	                                                {"completions/clipped_ratio", 0.375},
	                                                {"objective/entropy", 5},
	                                                {"loss/policy_avg", -0.25},
	                                                {"loss/value_avg", 0.5},
	                                                {"policy/approxkl_avg", 0.0625},
	                                                {"policy/clipfrac_avg", 0.125},
	                                                {"val/clipfrac_avg", 0.25},
	                                                {"val/explained_variance", 0.75},
	                                                {"generation_seconds", 3.5},
	                                                {"reward_seconds", 0.5},
	                                                {"objective/kl", 0.5}};
	const double sums[POLICY_SUMS] = {[POLICY_SUM_COMPLETIONS] = 16,
	                                  [POLICY_SUM_LENGTH] = 200,
	                                  [POLICY_SUM_FINISHED] = 10,
	                                  [POLICY_SUM_REWARD] = 16,
	                                  [POLICY_SUM_REWARD_SQUARES] = 76,
	                                  [POLICY_SUM_COUNTED] = 160,
	                                  [POLICY_SUM_MEASURED] = 10,
	                                  [POLICY_SUM_ENTROPY] = 50,
	                                  [POLICY_SUM_KL] = 5,
	                                  [POLICY_SUM_POLICY_LOSS] = -40,
	                                  [POLICY_SUM_VALUE_LOSS] = 80,
	                                  [POLICY_SUM_MOVED] = 10,
	                                  [POLICY_SUM_CLIPPED] = 20,
	                                  [POLICY_SUM_VALUE_CLIPPED] = 40,
	                                  /* Of returns the variance is 4, of the errors 1. */
	                                  [POLICY_SUM_RETURNS] = 160,
	                                  [POLICY_SUM_RETURN_SQUARES] = 800,
	                                  [POLICY_SUM_ERRORS] = -320,
	                                  [POLICY_SUM_ERROR_SQUARES] = 800},
	             none[POLICY_SUMS] = {0}, seconds[2] = {3.5, 0.5};
	struct policy_options o = make();
	struct preference_metric out[PREFERENCE_METRICS_MAX];

	o.beta = 0.05;
	ck_assert_int_eq(ppo_metrics(&o, sums, seconds, out), ARRAY_SIZE(want));
	for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
		ck_assert_str_eq(out[i].name, want[i].name);
		ck_assert_double_eq_tol(out[i].value, want[i].value, 1e-12);
	}
	ck_assert_int_eq(ppo_metrics(&o, none, seconds, out), ARRAY_SIZE(want));
	for (size_t i = 0; i < ARRAY_SIZE(want); i++)
		ck_assert(isfinite(out[i].value));
	o.beta = 0;
	ck_assert_int_eq(ppo_metrics(&o, sums, seconds, out), ARRAY_SIZE(want) - 1);
}
END_TEST

/* Of numbers that are all the same, what rounding leaves of their sums is no variance. */
START_TEST(nothing_to_explain)
{
	struct policy_options o = make();
	struct preference_metric out[PREFERENCE_METRICS_MAX];
	const double seconds[2] = {0};
	double sums[POLICY_SUMS] = {[POLICY_SUM_COMPLETIONS] = 1};
	int found = 0, n;

	for (int i = 0; i < 28 * 120; i++) {
		double of = (double)0.7F, error = i % 2 ? 0.3 : -0.4;

		sums[POLICY_SUM_COUNTED]++;
		sums[POLICY_SUM_RETURNS] += of;
		sums[POLICY_SUM_RETURN_SQUARES] += of * of;
		sums[POLICY_SUM_ERRORS] += error;
		sums[POLICY_SUM_ERROR_SQUARES] += error * error;
	}
	n = ppo_metrics(&o, sums, seconds, out);
	for (int i = 0; i < n; i++)
		if (str_eq(out[i].name, "val/explained_variance")) {
			ck_assert_double_eq(out[i].value, 0);
			found++;
		}
	ck_assert_int_eq(found, 1);
}
END_TEST

START_TEST(measurements_of_what_was_generated)
{
	struct policy_options o = make();
	struct ppo_rollout with = rollout_of(true), without = rollout_of(false);
	double sums[POLICY_SUMS] = {0};

	ppo_measure(&o, &without, sums);
	ck_assert_double_eq(sums[POLICY_SUM_MEASURED], 1);
	ck_assert_double_eq(sums[POLICY_SUM_ENTROPY], 4.75);
	ck_assert_double_eq(sums[POLICY_SUM_KL], 0);
	o.beta = 0.1;
	ppo_measure(&o, &with, sums);
	ck_assert_double_eq(sums[POLICY_SUM_ENTROPY], 9.5);
	ck_assert_double_eq(sums[POLICY_SUM_KL], -0.25);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("ppo");
	TCase *tc = tcase_create("all");
	const TTest *const tests[] = {
	    advantages,   returns_are_what_is_to_come,        whitened,          values_of_the_loss,
	    measurements, measurements_of_what_was_generated, nothing_to_explain};

	tcase_add_loop_test(tc, derivatives_are_those_of_the_loss, 0, 3);
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
