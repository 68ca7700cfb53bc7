/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the losses of preferences: values from their definitions, and derivatives by finite differences. */
#include <math.h>
#include <string.h>

#include "base/str.h"
#include "engine/train/preference.h"
#include "unit.h"

static struct preference_options make(enum preference_kind kind, enum preference_loss loss, double beta)
{
	struct preference_options o;

	preference_options_default(&o);
	o.kind = kind;
	o.loss = loss;
	o.beta = beta;
	return o;
}

/* Of 2 pairs and all kinds; far apart ones as well, where exponentials overflow. */
static const struct preference_answer pairs[][2] = {
    {{-12.5, -14, 7}, {-30.25, -28, 11}},
    {{-30, -28.5, 20}, {-3.5, -4, 9}},
    {{-4000, -9000, 700}, {-9000, -4000, 900}},
    {{-9000, -4000, 900}, {-4000, -9000, 700}},
};

/* With a margin, which rewards alone have. */
static double loss_of(const struct preference_options *o, const struct preference_answer pair[2], double d[2])
{
	double sums[PREFERENCE_SUMS] = {0};

	preference_pair(o, pair, o->kind == PREFERENCE_REWARD ? 0.5 : 0, d, sums);
	return sums[PREFERENCE_SUM_LOSS];
}

START_TEST(derivatives)
{
	struct preference_options cases[] = {
	    make(PREFERENCE_DPO, PREFERENCE_SIGMOID, 0.1),
	    make(PREFERENCE_DPO, PREFERENCE_SIGMOID, 0.5),
	    make(PREFERENCE_DPO, PREFERENCE_IPO, 0.1),
	    make(PREFERENCE_DPO, PREFERENCE_HINGE, 0.01),
	    make(PREFERENCE_ORPO, 0, 0.1),
	    make(PREFERENCE_SIMPO, 0, 2),
	    make(PREFERENCE_REWARD, 0, 1),
	    make(PREFERENCE_REWARD, 0, 1),
	};

	cases[1].label_smoothing = cases[5].label_smoothing = 0.2;
	cases[7].center = 0.01;
	for (size_t c = 0; c < ARRAY_SIZE(cases); c++)
		for (size_t p = 0; p < ARRAY_SIZE(pairs); p++) {
			double d[2], unused[2];

			ck_assert(isfinite(loss_of(&cases[c], pairs[p], d)));
			for (int i = 0; i < 2; i++) {
				struct preference_answer above[2] = {pairs[p][0], pairs[p][1]},
				                         below[2] = {pairs[p][0], pairs[p][1]};
				double step = 1e-4, slope;

				above[i].logp += step;
				below[i].logp -= step;
				slope =
				    (loss_of(&cases[c], above, unused) - loss_of(&cases[c], below, unused)) /
				    (2 * step);
				ck_assert_msg(fabs(slope - d[i]) < 1e-7 + 1e-5 * fabs(slope),
				              "case %zu, pair %zu, %d: %g, not %g", c, p, i, d[i], slope);
			}
		}
}
END_TEST

START_TEST(values)
{
	static const struct preference_answer pair[2] = {{-2, -3, 4}, {-5, -4, 2}};
	struct preference_options o = make(PREFERENCE_DPO, PREFERENCE_SIGMOID, 0.5);
	double d[2], x = 0.5 * (1 + 1), odds;

	ck_assert_double_eq_tol(loss_of(&o, pair, d), log1p(exp(-x)), 1e-12);
	o.label_smoothing = 0.25;
	ck_assert_double_eq_tol(loss_of(&o, pair, d), 0.75 * log1p(exp(-x)) + 0.25 * log1p(exp(x)), 1e-12);
	o.loss = PREFERENCE_HINGE;
	o.beta = 0.25;
	ck_assert_double_eq_tol(loss_of(&o, pair, d), 0.5, 1e-12);
	o.loss = PREFERENCE_IPO; /* 1/4 + 1/2 - 1/(2 · 1/4) */
	ck_assert_double_eq_tol(loss_of(&o, pair, d), 1.25 * 1.25, 1e-12);
	o = make(PREFERENCE_SIMPO, 0, 2); /* means -1/2 and -5/2 */
	o.gamma = 1.5;
	ck_assert_double_eq_tol(loss_of(&o, pair, d), log1p(exp(-(4 - 1.5))), 1e-12);
	o = make(PREFERENCE_ORPO, 0, 0.1);
	odds = log(exp(-0.5) / (1 - exp(-0.5))) - log(exp(-2.5) / (1 - exp(-2.5)));
	ck_assert_double_eq_tol(loss_of(&o, pair, d), 0.1 * log1p(exp(-odds)), 1e-12);
	o = make(PREFERENCE_REWARD, 0, 0.1);
	ck_assert_double_eq_tol(loss_of(&o, pair, d), log1p(exp(-2.5)), 1e-12);
	o.center = 0.01;
	ck_assert_double_eq_tol(loss_of(&o, pair, d), log1p(exp(-2.5)) + 0.49, 1e-12);
}
END_TEST

START_TEST(labels)
{
	struct preference_options o = make(PREFERENCE_KTO, 0, 0.3);
	struct preference_answer a = {-10, -12, 5};

	o.desirable_weight = 1.5;
	o.undesirable_weight = 0.5;
	for (int good = 0; good < 2; good++) {
		double sums[3][PREFERENCE_SUMS] = {0}, d, unused, want, x = 0.3 * (2 - 0.75);

		preference_label(&o, &a, good, 0.75, &d, sums[0]);
		want = good ? 1.5 * (1 - 1 / (1 + exp(-x))) : 0.5 * (1 - 1 / (1 + exp(x)));
		ck_assert_double_eq_tol(sums[0][PREFERENCE_SUM_LOSS], want, 1e-12);
		for (int i = 1; i < 3; i++) {
			struct preference_answer b = a;

			b.logp += i == 1 ? 1e-5 : -1e-5;
			preference_label(&o, &b, good, 0.75, &unused, sums[i]);
		}
		ck_assert_double_eq_tol((sums[1][PREFERENCE_SUM_LOSS] - sums[2][PREFERENCE_SUM_LOSS]) / 2e-5,
		                        d, 1e-8);
	}
}
END_TEST

static double metric(const struct preference_options *o, const double *sums, const char *name)
{
	struct preference_metric m[PREFERENCE_METRICS_MAX];
	int n = preference_metrics(o, sums, m);

	for (int i = 0; i < n; i++)
		if (str_eq(m[i].name, name))
			return m[i].value;
	ck_abort_msg("no %s", name);
	return 0;
}

START_TEST(measurements)
{
	struct preference_options o = make(PREFERENCE_DPO, PREFERENCE_SIGMOID, 0.5);
	double sums[PREFERENCE_SUMS] = {0}, d[2];
	struct preference_answer a = {-10, -12, 5};

	preference_pair(&o, pairs[0], 0, d, sums); /* differences 1.5 and -2.25 */
	preference_pair(&o, pairs[1], 0, d, sums); /* -1.5 and 0.5 */
	ck_assert_double_eq_tol(metric(&o, sums, "rewards/chosen"), 0, 1e-12);
	ck_assert_double_eq_tol(metric(&o, sums, "rewards/rejected"), 0.5 * -0.875, 1e-12);
	ck_assert_double_eq_tol(metric(&o, sums, "rewards/margins"), 0.5 * 0.875, 1e-12);
	ck_assert_double_eq_tol(metric(&o, sums, "rewards/accuracies"), 0.5, 1e-12);
	ck_assert_double_eq_tol(metric(&o, sums, "logps/chosen"), -21.25, 1e-12);
	/* Without an answer of a kind there is no mean of them. */
	o = make(PREFERENCE_KTO, 0, 0.5);
	memset(sums, 0, sizeof(sums));
	preference_label(&o, &a, true, 0.25, d, sums);
	ck_assert_double_eq_tol(metric(&o, sums, "rewards/chosen"), 1, 1e-12);
	ck_assert_double_eq_tol(metric(&o, sums, "kl"), 0.25, 1e-12);
	ck_assert(isnan(metric(&o, sums, "rewards/rejected")) && isnan(metric(&o, sums, "rewards/margins")));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("preference");
	TCase *tc = tcase_create("all");
	const TTest *const tests[] = {derivatives, values, labels, measurements};

	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
