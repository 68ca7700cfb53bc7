/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens are chosen among, with which probability, and the penalty for those that were chosen
 * before. */
#include "unit.h"

#include <math.h>

#include "base/str.h"
#include "engine/model/sampling.h"

enum { VOCAB = 5 };

/* Their weights are 2, 16, 1, 8 and 8; 35 together. */
static float logits[VOCAB];

static void setup(void)
{
	static const float weights[VOCAB] = {2, 16, 1, 8, 8};

	for (int i = 0; i < VOCAB; i++)
		logits[i] = logf(weights[i]);
}

static const struct {
	struct sampling s;
	int n;
	int32_t ids[VOCAB];
	double probabilities[VOCAB];
} cases[] = {
    {{.temperature = 1, .top_p = 1}, 5, {0, 1, 2, 3, 4}, {2 / 35., 16 / 35., 1 / 35., 8 / 35., 8 / 35.}},
    {{.temperature = 0.5, .top_p = 1},
     5,
     {0, 1, 2, 3, 4},
     {4 / 389., 256 / 389., 1 / 389., 64 / 389., 64 / 389.}},
    /* The one that ties with the last of them stays. */
    {{.temperature = 1, .top_p = 1, .top_k = 2}, 3, {1, 3, 4}, {0.5, 0.25, 0.25}},
    {{.temperature = 1, .top_p = 1, .top_k = 4}, 4, {0, 1, 3, 4}, {2 / 34., 16 / 34., 8 / 34., 8 / 34.}},
    {{.temperature = 1, .top_p = 1, .top_k = 5},
     5,
     {0, 1, 2, 3, 4},
     {2 / 35., 16 / 35., 1 / 35., 8 / 35., 8 / 35.}},
    {{.temperature = 1, .top_p = 0.4}, 1, {1}, {1}},
    {{.temperature = 1, .top_p = 0.5}, 3, {1, 3, 4}, {0.5, 0.25, 0.25}},
    {{.temperature = 1, .top_p = 0.93}, 4, {0, 1, 3, 4}, {2 / 34., 16 / 34., 8 / 34., 8 / 34.}},
    {{.temperature = 1, .top_p = 0.001}, 1, {1}, {1}},
    /* top_p of what top_k leaves: of 32. */
    {{.temperature = 1, .top_p = 0.49, .top_k = 3}, 1, {1}, {1}},
    {{.temperature = 1, .top_p = 0.7, .top_k = 3}, 3, {1, 3, 4}, {0.5, 0.25, 0.25}},
    {{.temperature = 1, .top_p = 1, .min_p = 0.49}, 3, {1, 3, 4}, {0.5, 0.25, 0.25}},
    {{.temperature = 1, .top_p = 1, .min_p = 0.1}, 4, {0, 1, 3, 4}, {2 / 34., 16 / 34., 8 / 34., 8 / 34.}},
    {{.temperature = 1, .top_p = 1, .min_p = 1}, 1, {1}, {1}},
};

START_TEST(candidates_have_their_share)
{
	double probabilities[VOCAB];
	int32_t ids[VOCAB];

	ck_assert_int_eq(sampling_candidates(&cases[_i].s, logits, VOCAB, ids, probabilities), cases[_i].n);
	for (int i = 0; i < cases[_i].n; i++) {
		ck_assert_int_eq(ids[i], cases[_i].ids[i]);
		ck_assert_double_eq_tol(probabilities[i], cases[_i].probabilities[i], 1e-6);
	}
	/* Nothing else is ever chosen, and each of these is. */
	for (int i = 0, seen = 0; seen != (1 << cases[_i].n) - 1; i++) {
		struct sampling s = cases[_i].s;
		int32_t id = sampling_choose(&s, logits, VOCAB, i);
		int k = 0;

		ck_assert_int_lt(i, 5000);
		while (k < cases[_i].n && ids[k] != id)
			k++;
		ck_assert_int_lt(k, cases[_i].n);
		seen |= 1 << k;
	}
}
END_TEST

START_TEST(a_choice_depends_on_seed_and_place)
{
	struct sampling a = {.temperature = 1, .top_p = 1, .seed = 7}, b = a;
	int other_seed = 0, other_place = 0;

	b.seed = 8;
	for (int i = 0; i < 200; i++) {
		int32_t id = sampling_choose(&a, logits, VOCAB, i);

		ck_assert_int_eq(sampling_choose(&a, logits, VOCAB, i), id);
		other_seed += sampling_choose(&b, logits, VOCAB, i) != id;
		other_place += sampling_choose(&a, logits, VOCAB, i + 1) != id;
	}
	ck_assert_int_gt(other_seed, 80);
	ck_assert_int_gt(other_place, 80);
	/* One candidate is the likeliest, and of equals the first. */
	a.top_k = 1;
	logits[4] = logits[1];
	ck_assert_int_eq(sampling_choose(&a, logits, VOCAB, 0), 1);
	a = (struct sampling){.temperature = 0, .top_p = 1};
	ck_assert_int_eq(sampling_choose(&a, logits, VOCAB, 0), 1);
}
END_TEST

/* ---- where nothing is left out ---- */

enum { CHOSEN = 6, BEYOND = 2, DRAWS = 20000 };

static const struct {
	double temperature;
	double shares[CHOSEN]; /* of weights 0, 2, 16, 1, 8 and 0, to the power of 1 / temperature */
} of_all[] = {
    {1, {0, 2 / 27., 16 / 27., 1 / 27., 8 / 27., 0}},
    {0.5, {0, 4 / 325., 256 / 325., 1 / 325., 64 / 325., 0}},
    {2, {0, 0.1530096874, 0.4327767502, 0.1081941876, 0.3060193748, 0}},
};

/* Logits of which the first and the last have no probability; those beyond would have all of it. */
static void make_logits(float out[CHOSEN + BEYOND])
{
	static const float weights[CHOSEN] = {0, 2, 16, 1, 8, 0};

	for (int i = 0; i < CHOSEN; i++)
		out[i] = weights[i] > 0 ? logf(weights[i]) : -INFINITY;
	out[CHOSEN - 1] = -1e30F;
	for (int i = 0; i < BEYOND; i++)
		out[CHOSEN + i] = 100;
}

START_TEST(all_ids_have_their_share)
{
	float l[CHOSEN + BEYOND];
	int counts[CHOSEN] = {0};
	double off = 0;

	make_logits(l);
	for (int i = 0; i < DRAWS; i++) {
		/* Another seed for each, and another place; what is filtered by is not used. */
		struct sampling s = {.temperature = of_all[_i].temperature, .top_p = 1, .seed = (uint64_t)i};
		int32_t id = sampling_choose(&s, l, CHOSEN, i % 7);

		ck_assert_int_eq(sampling_choose(&s, l, CHOSEN, i % 7), id);
		ck_assert_int_ge(id, 0);
		ck_assert_int_lt(id, CHOSEN);
		counts[id]++;
	}
	for (int i = 0; i < CHOSEN; i++) {
		double want = of_all[_i].shares[i] * DRAWS;

		if (want > 0)
			off += (counts[i] - want) * (counts[i] - want) / want;
		else
			ck_assert_int_eq(counts[i], 0);
	}
	/* Chi-squared of three degrees of freedom is above this once in 30000 times. */
	ck_assert_double_lt(off, 24);
}
END_TEST

/* Differences alone count, as far as numbers go: neither does a sum overflow nor is all of it zero. */
START_TEST(far_logits_are_chosen_among)
{
	static const float offsets[] = {1e30F, 3e38F, -1e30F, -3e38F};

	for (size_t i = 0; i < ARRAY_SIZE(offsets); i++) {
		float l[4] = {-INFINITY, offsets[i], offsets[i], -INFINITY};
		int counts[4] = {0};

		for (int k = 0; k < 400; k++) {
			struct sampling s = {.temperature = 0.01, .top_p = 1, .seed = (uint64_t)k};

			counts[sampling_choose(&s, l, 4, 0)]++;
		}
		ck_assert_int_eq(counts[0] + counts[3], 0);
		ck_assert_int_gt(counts[1], 140);
		ck_assert_int_gt(counts[2], 140);
	}
}
END_TEST

START_TEST(what_was_chosen_is_penalized_once)
{
	_cleanup_free_ void *work = malloc(VOCAB);
	float l[VOCAB] = {3, -3, 0, 5, -5};
	const int32_t ids[] = {1, 0, 1, -1, VOCAB, 0, 2, 1000000};

	sampling_penalize(l, VOCAB, ids, ARRAY_SIZE(ids), 1.5, work);
	ck_assert_float_eq(l[0], 2);
	ck_assert_float_eq(l[1], -4.5f);
	ck_assert_float_eq(l[2], 0);
	ck_assert_float_eq(l[3], 5);
	ck_assert_float_eq(l[4], -5);
	/* Each call begins anew. */
	sampling_penalize(l, VOCAB, ids, 1, 2, work);
	ck_assert_float_eq(l[1], -9);
	ck_assert_float_eq(l[0], 2);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("sampling");
	TCase *t = tcase_create("sampling");

	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_loop_test(t, candidates_have_their_share, 0, ARRAY_SIZE(cases));
	tcase_add_test(t, a_choice_depends_on_seed_and_place);
	tcase_add_test(t, what_was_chosen_is_penalized_once);
	tcase_add_loop_test(t, all_ids_have_their_share, 0, ARRAY_SIZE(of_all));
	tcase_add_test(t, far_logits_are_chosen_among);
	suite_add_tcase(s, t);
	return unit_run(s);
}
