/* SPDX-License-Identifier: Apache-2.0 */
/* The frequencies of rotary position embedding, compared with those of transformers 5.23
 * (ROPE_INIT_FUNCTIONS). */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "engine/model/rope.h"

enum { DIM = 16, MAX_POSITIONS = 4096 };

#define THETA "\"rope_theta\": 10000.0, "
#define LISTS "\"short_factor\": [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5], \"long_factor\": [2, 3, 4, 5, 6, 7, 8, 9]"

static int parse(const char *text, struct model_rope *rope, struct error *err)
{
	const struct rope_defaults defaults = {.theta = 500, .max_positions = MAX_POSITIONS};
	_cleanup_json_ json_t *json = NULL;
	double partial = 1;
	int r;

	*err = (struct error)ERROR_INIT;
	ck_ok(json_parse(text, strlen(text), "config.json", &json, err), err);
	r = rope_read(json, "rope_parameters", &defaults, rope, &partial, err);
	if (r == 0 && rope->type == ROPE_LONGROPE)
		r = rope_check_factors(json, "rope_parameters", DIM / 2, rope, err);
	return r;
}

static const struct {
	const char *text;
	int64_t longest;
	double length;
	float want[DIM / 2];
} cases[] = {
    {"{" THETA "\"rope_type\": \"default\"}",
     100,
     1,
     {1.0f, 0.316227764f, 0.1f, 0.0316227786f, 0.01f, 0.00316227786f, 0.001f, 0.000316227786f}},
    {"{" THETA "\"rope_type\": \"linear\", \"factor\": 2.0}",
     100,
     1,
     {0.5f, 0.158113882f, 0.0500000007f, 0.0158113893f, 0.00499999989f, 0.00158113893f, 0.000500000024f,
      0.000158113893f}},
    {"{" THETA "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": "
     "4.0, \"original_max_position_embeddings\": 256}",
     100,
     1,
     {1.0f, 0.316227764f, 0.100000001f, 0.00661310693f, 0.00124999997f, 0.000395284733f, 0.000125000006f,
      3.95284733e-05f}},
    {"{" THETA "\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 1024}",
     100,
     1.13862944,
     {1.0f, 0.316227764f, 0.0812500045f, 0.0197642371f, 0.00437500002f, 0.000790569466f, 0.000250000012f,
      7.90569466e-05f}},
    /* The factor is what the two lengths of context say. */
    {"{" THETA "\"rope_type\": \"yarn\", \"original_max_position_embeddings\": 1024}",
     100,
     1.13862944,
     {1.0f, 0.316227764f, 0.0812500045f, 0.0197642371f, 0.00437500002f, 0.000790569466f, 0.000250000012f,
      7.90569466e-05f}},
    {"{" THETA
     "\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 1024, \"truncate\": "
     "false, \"beta_fast\": 16, \"beta_slow\": 2, \"mscale\": 0.707, \"mscale_all_dim\": 0.5}",
     100,
     1.02683615,
     {1.0f, 0.316227764f, 0.100000001f, 0.0187018048f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
      7.90569466e-05f}},
    {"{" THETA
     "\"rope_type\": \"longrope\", \"factor\": 4.0, \"original_max_position_embeddings\": 1024, " LISTS "}",
     1024,
     1.09544512,
     {1.0f, 0.210818499f, 0.0500000007f, 0.0126491114f, 0.00333333341f, 0.000903507927f, 0.000250000012f,
      7.02728357e-05f}},
    {"{" THETA "\"type\": \"su\", \"original_max_position_embeddings\": 1024, " LISTS "}",
     1025,
     1.09544512,
     {0.5f, 0.10540925f, 0.0250000004f, 0.00632455572f, 0.00166666671f, 0.000451753964f, 0.000125000006f,
      3.51364179e-05f}},
    {"{" THETA "\"rope_type\": \"longrope\", \"factor\": 1.0, \"attention_factor\": 1.25, "
     "\"original_max_position_embeddings\": 1024, " LISTS "}",
     1024,
     1.25,
     {1.0f, 0.210818499f, 0.0500000007f, 0.0126491114f, 0.00333333341f, 0.000903507927f, 0.000250000012f,
      7.02728357e-05f}},
};

START_TEST(frequencies_are_those_of_transformers)
{
	struct model_rope rope;
	struct error err;
	float got[DIM / 2];

	ck_ok(parse(cases[_i].text, &rope, &err), &err);
	ck_assert_double_eq_tol(rope.length, cases[_i].length, 1e-7);
	rope_frequencies(&rope, DIM, cases[_i].longest, got);
	for (int i = 0; i < DIM / 2; i++)
		ck_assert_msg(fabsf(got[i] - cases[_i].want[i]) <= 2e-7f * cases[_i].want[i],
		              "%s: pair %d: %.9g, not %.9g", cases[_i].text, i, (double)got[i],
		              (double)cases[_i].want[i]);
}
END_TEST

static const struct {
	const char *text, *words;
} wrong[] = {
    {"[]", "rope_parameters: an object is needed"},
    {"{" THETA "\"rope_type\": \"odd\"}", "rope type \"odd\" is not supported"},
    {"{\"full_attention\": {\"rope_type\": \"default\"}}",
     "full_attention: other parameters for each kind of layer"},
    {"{" THETA "\"rope_type\": \"linear\"}", "factor"},
    {"{" THETA "\"rope_type\": \"linear\", \"factor\": 0.5}", "factor"},
    {"{" THETA "\"rope_type\": \"llama3\", \"factor\": 8.0, \"high_freq_factor\": 4.0}", "low_freq_factor"},
    {"{" THETA
     "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 4.0, \"high_freq_factor\": 4.0}",
     "high_freq_factor has to exceed low_freq_factor"},
    {"{" THETA "\"rope_type\": \"yarn\", \"beta_fast\": -1}", "beta_fast"},
    {"{" THETA "\"rope_type\": \"yarn\", \"original_max_position_embeddings\": 0}",
     "original_max_position_embeddings"},
    {"{" THETA "\"rope_type\": \"longrope\", \"factor\": 4.0, \"short_factor\": [1]}",
     "short_factor: a list of 8 numbers is needed"},
    {"{" THETA "\"rope_type\": \"longrope\", \"factor\": 4.0, \"short_factor\": [1, 1, 1, 1, 1, 1, 1, 1], "
     "\"long_factor\": [1, 1, 1, 1, 1, 1, 1, 0]}",
     "long_factor: 7: a number from"},
};

START_TEST(wrong_parameters_are_refused)
{
	struct model_rope rope;
	struct error err;

	ck_fails(parse(wrong[_i].text, &rope, &err), &err, wrong[_i].words);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("rope");
	TCase *t = tcase_create("rope");

	tcase_add_loop_test(t, frequencies_are_those_of_transformers, 0, ARRAY_SIZE(cases));
	tcase_add_loop_test(t, wrong_parameters_are_refused, 0, ARRAY_SIZE(wrong));
	suite_add_tcase(s, t);
	return unit_run(s);
}
