/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the losses of completions by their rewards: values from TRL's definitions, and derivatives by finite
 * differences. */
#include <math.h>
#include <string.h>

#include "base/str.h"
#include "engine/train/policy.h"
#include "unit.h"

enum { TOKENS = 3 };

static struct policy_options make(enum policy_loss loss, bool of_sequences, double beta)
{
	struct policy_options o;

	policy_options_default(&o);
	o.generations = 4;
	o.max_tokens = 8;
	o.loss = loss;
	o.of_sequences = of_sequences;
	o.beta = beta;
	o.epsilon[1] = loss == POLICY_CISPO ? 1.25 : 0.28;
	return o;
}

static const struct policy_totals all = {.completions = 4, .counted = 10};

/* By which factor the losses of a completion's tokens count. */
static double weight_of(enum policy_loss loss, int64_t length)
{
	return loss == POLICY_GRPO      ? 1 / (4. * (double)length)
	       : loss == POLICY_DR_GRPO ? 1 / (4. * 8.)
	                                : 1 / 10.;
}

/* ---- derivatives ---- */

static const float then[TOKENS] = {-1.5F, -0.25F, -3}, reference[TOKENS] = {-1.25F, -0.75F, -2.5F};
/* Logarithms of ratios: inside of the bounds, above and below them; each token or all of a completion. */
static const float log_ratios[][TOKENS] = {{0, 0, 0},
                                           {0.125F, -0.125F, 0.0625F},
                                           {0.5F, 0.25F, 0.625F},
                                           {-0.5F, -0.25F, -0.625F},
                                           {0.5F, -0.5F, 0.125F},
                                           {1.5F, -0.25F, -0.125F}};

static double loss_of(const struct policy_options *o, const float *now, double advantage, float *derivatives)
{
	double sums[POLICY_SUMS] = {0};
	struct policy_tokens tokens = {.now = now,
	                               .then = then,
	                               .reference = o->beta > 0 ? reference : NULL,
	                               .length = TOKENS,
	                               .advantage = advantage};

	policy_completion(o, &all, &tokens, derivatives, sums);
	return sums[POLICY_SUM_LOSS];
}

static double slope_of(const struct policy_options *o, const float *now, double advantage, int token)
{
	float above[TOKENS], below[TOKENS], unused[TOKENS], step = 1.F / 1024;

	memcpy(above, now, sizeof(above));
	memcpy(below, now, sizeof(below));
	above[token] += step;
	below[token] -= step;
	return (loss_of(o, above, advantage, unused) - loss_of(o, below, advantage, unused)) /
	       (2 * (double)step);
}

START_TEST(derivatives_are_those_of_the_loss)
{
	static const enum policy_loss losses[] = {POLICY_GRPO, POLICY_DAPO, POLICY_DR_GRPO};
	static const double advantages[] = {1.5, -0.75, 0}, betas[] = {0, 0.25};
	struct policy_options o = make(losses[_i / 4], _i & 1, betas[_i >> 1 & 1]);
	int zero = 0, other = 0;

	for (size_t a = 0; a < ARRAY_SIZE(advantages); a++)
		for (size_t c = 0; c < ARRAY_SIZE(log_ratios); c++) {
			float now[TOKENS], d[TOKENS];

			for (int i = 0; i < TOKENS; i++)
				now[i] = then[i] + log_ratios[c][i];
			loss_of(&o, now, advantages[a], d);
			for (int i = 0; i < TOKENS; i++) {
				double slope = slope_of(&o, now, advantages[a], i);

				ck_assert_msg(fabs(slope - (double)d[i]) < 1e-6 + 1e-5 * fabs(slope),
				              "advantage %g, ratios %zu, token %d: %g, not %g", advantages[a],
				              c, i, (double)d[i], slope);
				zero += d[i] == 0;
				other += d[i] != 0;
			}
		}
	/* Both sides of the bounds were there. */
	ck_assert_int_gt(other, 20);
	ck_assert(o.beta > 0 || zero > TOKENS * (int)ARRAY_SIZE(log_ratios));
}
END_TEST

/* The bounded ratio of CISPO is a constant: the derivative is that of the log-probability alone. */
START_TEST(cispo_has_constant_ratios)
{
	static const double advantages[] = {1.5, -0.75, 0};
	bool of_sequences = _i & 1;
	struct policy_options o = make(POLICY_CISPO, of_sequences, _i & 2 ? 0.25 : 0);

	for (size_t a = 0; a < ARRAY_SIZE(advantages); a++)
		for (size_t c = 0; c < ARRAY_SIZE(log_ratios); c++) {
			float now[TOKENS], d[TOKENS];
			double loss = 0, mean = 0, got;

			for (int i = 0; i < TOKENS; i++) {
				now[i] = then[i] + log_ratios[c][i];
				mean += (double)log_ratios[c][i] / TOKENS;
			}
			got = loss_of(&o, now, advantages[a], d);
			for (int i = 0; i < TOKENS; i++) {
				double ratio = exp(of_sequences ? mean : (double)log_ratios[c][i]),
				       bounded = ratio < 1.25 ? ratio : 1.25,
				       of_reference = exp((double)reference[i] - (double)now[i]);

				loss -= 0.1 * bounded * advantages[a] * (double)now[i];
				loss += 0.1 * o.beta * (of_reference - log(of_reference) - 1);
				ck_assert_double_eq_tol(
				    (double)d[i],
				    0.1 * (-bounded * advantages[a] + o.beta * (1 - of_reference)), 1e-6);
			}
			ck_assert_double_eq_tol(got, loss, 1e-9);
		}
}
END_TEST

/* ---- values ---- */

/* Two tokens, whose ratios are 1.5 and 0.5. */
static const struct {
	enum policy_loss loss;
	bool of_sequences;
	double advantage;
	double tokens; /* the sum of their losses */
	double clipped;
} values[] = {
    /* The smaller one of A · ratio and A · bounded ratio, with the bounds 0.8 and 1.28. */
    {POLICY_GRPO, false, 2, -2 * (1.28 + 0.5), 1},
    {POLICY_GRPO, false, -2, 2 * (1.5 + 0.8), 1},
    {POLICY_DAPO, false, 2, -2 * (1.28 + 0.5), 1},
    {POLICY_DAPO, false, -2, 2 * (1.5 + 0.8), 1},
    {POLICY_DR_GRPO, false, 2, -2 * (1.28 + 0.5), 1},
    {POLICY_DR_GRPO, false, 0, 0, 0},
    /* The root of 1.5 · 0.5 for both. */
    {POLICY_DAPO, true, 2, -2 * 2 * 0.86602540378443865, 0},
    {POLICY_GRPO, true, -2, 2 * 2 * 0.86602540378443865, 0},
    /* Log-probabilities of -0.25 and -2 times the ratio, which has no lower bound. */
    {POLICY_CISPO, false, 2, 2 * (1.25 * 0.25 + 0.5 * 2), 1},
    {POLICY_CISPO, false, -2, -2 * (1.25 * 0.25 + 0.5 * 2), 0},
    {POLICY_CISPO, true, 2, 2 * 0.86602540378443865 * 2.25, 0},
};

START_TEST(values_of_two_tokens)
{
	const float now[] = {-0.25F, -2}, old[] = {-0.25F - logf(1.5F), -2 - logf(0.5F)},
	            other[] = {-0.25F + logf(2), -2 - logf(2)};
	struct policy_options o = make(values[_i].loss, values[_i].of_sequences, 0);
	struct policy_tokens tokens = {
	    .now = now, .then = old, .length = 2, .advantage = values[_i].advantage};
	double w = weight_of(values[_i].loss, 2), sums[POLICY_SUMS] = {0}, kl;
	float d[2];

	policy_completion(&o, &all, &tokens, d, sums);
	ck_assert_double_eq_tol(sums[POLICY_SUM_LOSS], w * values[_i].tokens, 1e-6);
	ck_assert_double_eq(sums[POLICY_SUM_CLIPPED], values[_i].clipped);
	ck_assert_double_eq(sums[POLICY_SUM_COUNTED], 2);
	ck_assert_double_eq(sums[POLICY_SUM_KL], 0);
	/* The same completion is added once more, with a reference that has its tokens twice and half as
	 * likely. */
	kl = (2 - log(2) - 1) + (0.5 + log(2) - 1);
	o.beta = 0.5;
	tokens.reference = other;
	policy_completion(&o, &all, &tokens, d, sums);
	ck_assert_double_eq_tol(sums[POLICY_SUM_LOSS], w * (2 * values[_i].tokens + 0.5 * kl), 1e-6);
	ck_assert_double_eq_tol(sums[POLICY_SUM_KL], kl, 1e-6);
	ck_assert_double_eq(sums[POLICY_SUM_CLIPPED], 2 * values[_i].clipped);
	ck_assert_double_eq(sums[POLICY_SUM_COUNTED], 4);
}
END_TEST

/* In the first step on its completions all ratios are 1, and the bounds have no effect. */
START_TEST(of_the_first_step_nothing_is_clipped)
{
	for (int i = 0; i < 8; i++) {
		struct policy_options o = make((enum policy_loss)(i / 2), i & 1, 0);
		double sums[POLICY_SUMS] = {0}, want = 0;
		struct policy_tokens tokens = {.now = then, .then = then, .length = TOKENS, .advantage = 1.5};
		float d[TOKENS];

		policy_completion(&o, &all, &tokens, d, sums);
		for (int k = 0; k < TOKENS; k++) {
			want -=
			    weight_of(o.loss, TOKENS) * 1.5 * (o.loss == POLICY_CISPO ? (double)then[k] : 1);
			ck_assert_double_eq_tol((double)d[k], -1.5 * weight_of(o.loss, TOKENS), 1e-7);
		}
		ck_assert_double_eq_tol(sums[POLICY_SUM_LOSS], want, 1e-9);
		ck_assert_double_eq(sums[POLICY_SUM_CLIPPED], 0);
	}
}
END_TEST

/* ---- advantages ---- */

static struct policy_totals totals_of(const double *rewards, int n)
{
	struct policy_totals t = {0};

	for (int i = 0; i < n; i++) {
		t.completions++;
		t.reward += rewards[i];
		t.squares += rewards[i] * rewards[i];
	}
	return t;
}

START_TEST(advantages_of_groups)
{
	/* Mean 3 and 14 / 3 as the variance; mean 1 and the variance 0; of both the mean 2 and 22 / 7. */
	static const double rewards[8] = {1, 2, 3, 6, 1, 1, 1, 1}, differences[4] = {-2, -1, 0, 3};
	struct policy_totals both = totals_of(rewards, 8);
	const struct {
		enum policy_scale scale;
		double divisor;
	} cases[] = {{POLICY_SCALE_GROUP, sqrt(14 / 3.) + 1e-4},
	             {POLICY_SCALE_BATCH, sqrt(22 / 7.) + 1e-4},
	             {POLICY_SCALE_NONE, 1}};

	for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
		struct policy_options o = make(POLICY_DAPO, false, 0);
		double advantages[8], sums[POLICY_SUMS] = {0};

		o.scale = cases[c].scale;
		for (int g = 0; g < 2; g++)
			policy_advantages(&o, &both, rewards + 4 * g, advantages + 4 * g, sums);
		for (int i = 0; i < 4; i++) {
			ck_assert_double_eq_tol(advantages[i], differences[i] / cases[c].divisor, 1e-12);
			ck_assert_double_eq(advantages[4 + i], 0);
		}
		ck_assert_double_eq(sums[POLICY_SUM_REWARD], 16);
		ck_assert_double_eq(sums[POLICY_SUM_GROUPS], 2);
		ck_assert_double_eq_tol(sums[POLICY_SUM_DEVIATION], sqrt(14 / 3.), 1e-12);
		ck_assert_double_eq(sums[POLICY_SUM_EQUAL], 1);
	}
}
END_TEST

/* This holds also where rounding makes the mean of equal numbers another number. */
START_TEST(equal_rewards_have_no_advantage)
{
	static const double values_of_rewards[] = {0, 0.1, 0.7, -1. / 3, 1e300, 5e-324};
	int rounded = 0;

	for (int n = 2; n <= 16; n++)
		for (size_t v = 0; v < ARRAY_SIZE(values_of_rewards); v++)
			for (int scale = 0; scale < 3; scale++) {
				double rewards[16], advantages[16], sums[POLICY_SUMS] = {0}, mean = 0;
				struct policy_options o = make(POLICY_DAPO, false, 0);
				struct policy_totals t;

				for (int i = 0; i < n; i++) {
					rewards[i] = values_of_rewards[v];
					mean += rewards[i] / n;
				}
				rounded += mean != rewards[0];
				t = totals_of(rewards, n);
				o.generations = n;
				o.scale = (enum policy_scale)scale;
				policy_advantages(&o, &t, rewards, advantages, sums);
				for (int i = 0; i < n; i++)
					ck_assert_double_eq(advantages[i], 0);
				ck_assert_double_eq(sums[POLICY_SUM_DEVIATION], 0);
				ck_assert_double_eq(sums[POLICY_SUM_EQUAL], 1);
			}
	ck_assert_int_gt(rounded, 20);
}
END_TEST

/* A group with a small difference between two rewards is not one of equal rewards. */
START_TEST(almost_equal_rewards_are_not_equal)
{
	struct policy_options o = make(POLICY_DAPO, false, 0);
	const double rewards[4] = {1, 1, 1, 1 + 1e-6};
	struct policy_totals t = totals_of(rewards, 4);
	double advantages[4], sums[POLICY_SUMS] = {0};

	policy_advantages(&o, &t, rewards, advantages, sums);
	ck_assert_double_eq(sums[POLICY_SUM_EQUAL], 0);
	ck_assert_double_eq_tol(sums[POLICY_SUM_DEVIATION], 5e-7, 1e-12);
	ck_assert_double_eq_tol(advantages[3], 0.75e-6 / (5e-7 + 1e-4), 1e-9);
	ck_assert_double_eq_tol(advantages[0], -0.25e-6 / (5e-7 + 1e-4), 1e-9);
}
END_TEST

/* ---- measurements ---- */

START_TEST(measurements)
{
	static const struct preference_metric want[] = {{"reward", 0.75},
	                                                {"reward_std", 0.5},
	                                                {"frac_reward_zero_std", 0.25},
	                                                {"completions/mean_length", 12.5},
	                                                {"completions/clipped_ratio", 0.375},
	                                                {"clip_ratio/region_mean", 0.125},
	                                                {"generation_seconds", 3.5},
	                                                {"reward_seconds", 0.5},
	                                                {"kl", 0.0625}};
	const double sums[POLICY_SUMS] =
	    {[POLICY_SUM_LOSS] = 77,     [POLICY_SUM_COMPLETIONS] = 16, [POLICY_SUM_LENGTH] = 200,
	     [POLICY_SUM_FINISHED] = 10, [POLICY_SUM_REWARD] = 12,      [POLICY_SUM_GROUPS] = 4,
	     [POLICY_SUM_DEVIATION] = 2, [POLICY_SUM_EQUAL] = 1,        [POLICY_SUM_COUNTED] = 160,
	     [POLICY_SUM_KL] = 10,       [POLICY_SUM_CLIPPED] = 20},
	             none[POLICY_SUMS] = {0}, seconds[2] = {3.5, 0.5};
	struct policy_options o = make(POLICY_DAPO, false, 0.1);
	struct preference_metric out[PREFERENCE_METRICS_MAX];

	ck_assert_int_eq(policy_metrics(&o, sums, seconds, out), ARRAY_SIZE(want));
	for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
		ck_assert_str_eq(out[i].name, want[i].name);
		ck_assert_double_eq(out[i].value, want[i].value);
	}
	ck_assert_int_eq(policy_metrics(&o, none, seconds, out), ARRAY_SIZE(want));
	for (size_t i = 0; i < ARRAY_SIZE(want); i++)
		ck_assert(isfinite(out[i].value));
	/* Without a reference nothing is known of a divergence from it. */
	o.beta = 0;
	ck_assert_int_eq(policy_metrics(&o, sums, seconds, out), ARRAY_SIZE(want) - 1);
	for (size_t i = 0; i + 1 < ARRAY_SIZE(want); i++)
		ck_assert_str_eq(out[i].name, want[i].name);
}
END_TEST

/* At the places of a step's, so that both have the same names. */
START_TEST(measurements_of_held_out_prompts)
{
	const struct policy_evaluation four = {
	    .completions = 4, .length = 50, .finished = 3, .reward = 10, .squares = 30};
	const double sums[POLICY_SUMS] = {0}, seconds[2] = {0};
	struct policy_options o = make(POLICY_GRPO, false, 0.1);
	struct preference_metric out[PREFERENCE_METRICS_MAX], step[PREFERENCE_METRICS_MAX];
	struct policy_evaluation one = {.completions = 1, .length = 2, .reward = -1, .squares = 1};
	int n = policy_metrics(&o, sums, seconds, step), known = 0;

	memcpy(out, step, sizeof(out));
	policy_evaluation_metrics(&four, out, n);
	for (int i = 0; i < n; i++) {
		ck_assert_str_eq(out[i].name, step[i].name);
		known += isfinite(out[i].value);
	}
	ck_assert_int_eq(known, 4);
	ck_assert_double_eq(out[0].value, 2.5);
	ck_assert_double_eq_tol(out[1].value, sqrt(5 / 3.), 1e-12);
	ck_assert_double_eq(out[3].value, 12.5);
	ck_assert_double_eq(out[4].value, 0.25);
	/* One has no deviation. */
	policy_evaluation_metrics(&one, out, n);
	ck_assert_double_eq(out[0].value, -1);
	ck_assert(isnan(out[1].value));
	ck_assert_double_eq(out[4].value, 1);
}
END_TEST

/* The digests of ranks add up without rounding, and those of other names, or of another order, differ. */
START_TEST(parts_of_rewards)
{
	const struct policy_parts one = {.count = 1, .name = {"right"}},
	                          two = {.count = 2, .name = {"right", "form"}},
	                          turned = {.count = 2, .name = {"form", "right"}}, none = {0};
	const double sums[POLICY_SUMS] = {
	    [POLICY_SUM_COMPLETIONS] = 4, [POLICY_SUM_PARTS] = 3, [POLICY_SUM_PARTS + 1] = -1};
	char names[POLICY_PARTS_MOST][POLICY_PART_METRIC];
	struct preference_metric out[PREFERENCE_METRICS_MAX] = {{"reward", 7}};
	double d = policy_parts_digest(&two);

	ck_assert(d >= 1 && d <= 1 << 20 && d == floor(d));
	ck_assert(policy_parts_digest(&one) != d && policy_parts_digest(&turned) != d);
	ck_assert(policy_parts_digest(&none) == 0);
	ck_assert_int_eq(policy_parts_metrics(&two, sums, names, out, 1), 3);
	ck_assert_str_eq(out[0].name, "reward");
	ck_assert_str_eq(out[1].name, "rewards/right/mean");
	ck_assert_str_eq(out[2].name, "rewards/form/mean");
	ck_assert(out[0].value == 7 && out[1].value == 0.75 && out[2].value == -0.25);
	ck_assert_int_eq(policy_parts_metrics(&none, sums, names, out, 1), 1);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("policy");
	TCase *tc = tcase_create("all");
	const TTest *const tests[] = {of_the_first_step_nothing_is_clipped,
	                              advantages_of_groups,
	                              equal_rewards_have_no_advantage,
	                              almost_equal_rewards_are_not_equal,
	                              measurements,
	                              measurements_of_held_out_prompts,
	                              parts_of_rewards};

	tcase_add_loop_test(tc, derivatives_are_those_of_the_loss, 0, 3 * 4);
	tcase_add_loop_test(tc, cispo_has_constant_ratios, 0, 4);
	tcase_add_loop_test(tc, values_of_two_tokens, 0, ARRAY_SIZE(values));
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
