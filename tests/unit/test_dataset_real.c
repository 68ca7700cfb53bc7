/* SPDX-License-Identifier: Apache-2.0 */
/* Real data with real tokenizers from ../shared: tests counts, and that the unmasked tokens are the
 * answers. */
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/chat/template.h"
#include "engine/dataset/dataset.h"
#include "unit.h"

static char *shared(const char *name)
{
	const char *base = getenv("DTRAIN_SHARED");
	char *path = str_printf("%s/%s", base ? base : SRCDIR "/../shared", name);

	if (!path || !file_exists(path)) {
		printf("SKIP: %s is not there\n", path);
		free(path);
		return NULL;
	}
	return path;
}

static struct dataset *open_alpaca(const char *path, const struct tokenizer *tok, const char *template_name,
                                   bool packing)
{
	const char *paths[2] = {path, NULL};
	struct dataset_options o = {.task = DATASET_SFT,
	                            .paths = paths,
	                            .template_name = template_name,
	                            .max_length = 2048,
	                            .packing = packing};
	struct error err = ERROR_INIT;
	struct dataset *d;

	ck_ok(dataset_open(&o, tok, &d, NULL, &err), &err);
	return d;
}

/* The text of the targets that count in a document of a row. */
static char *answer(const struct tokenizer *tok, const struct dataset_row *row, int32_t document)
{
	struct error err = ERROR_INIT;
	struct token_list list = {0};
	char *text = NULL;

	for (int32_t t = row->starts[document]; t < row->starts[document + 1]; t++)
		if (row->targets[t] != -100)
			token_list_add(&list, &row->targets[t], 1);
	ck_ok(tokenizer_decode(tok, list.ids, list.len, false, &text, NULL, &err), &err);
	token_list_free(&list);
	return text;
}

static void check_answers(const char *tokenizer, const char *template_name, const char *end)
{
	_cleanup_free_ char *path = shared("data/sft/alpaca_en_demo.json"), *dir = shared(tokenizer);
	_cleanup_(tokenizer_freep) struct tokenizer *tok = NULL;
	_cleanup_(dataset_closep) struct dataset *d = NULL, *packed = NULL;
	_cleanup_json_ json_t *records = NULL;
	struct error err = ERROR_INIT;
	struct dataset_row row;
	int64_t documents = 0, counted = 0, sum = 0;
	double start;

	if (!path || !dir)
		return;
	ck_ok(tokenizer_load(dir, &tok, &err), &err);
	ck_ok(json_read_file(path, &records, &err), &err);
	start = clock_monotonic();
	d = open_alpaca(path, tok, template_name, false);
	printf("%s, %s: %lld tokens in %.3f s\n", tokenizer, template_name ? template_name : "own",
	       (long long)dataset_tokens(d), clock_monotonic() - start);
	ck_assert_int_eq(dataset_rows(d), json_array_size(records));
	for (int64_t i = 0; i < dataset_rows(d); i++) {
		const char *output = json_get_string(json_array_get(records, i), "output", "");
		_cleanup_free_ char *want = str_printf("%s%s", output, end), *got = NULL;

		dataset_row(d, i, &row);
		if (row.length == 2048)
			continue;
		got = answer(tok, &row, 0);
		ck_assert_str_eq(got, want);
		counted += row.counted;
	}
	packed = open_alpaca(path, tok, template_name, true);
	ck_assert_int_eq(dataset_examples(packed), json_array_size(records));
	ck_assert_int_lt(dataset_rows(packed), dataset_rows(d) / 3);
	ck_assert_int_eq(dataset_tokens(packed), dataset_tokens(d));
	for (int64_t i = 0; i < dataset_rows(packed); i++) {
		dataset_row(packed, i, &row);
		documents += row.documents;
		sum += row.counted;
		ck_assert_int_eq(row.starts[0], 0);
		ck_assert_int_eq(row.starts[row.documents], row.length);
		for (int32_t k = 1; k <= row.documents; k++)
			ck_assert_int_eq(row.targets[row.starts[k] - 1], -100);
	}
	ck_assert_int_eq(documents, json_array_size(records));
	ck_assert_int_eq(sum, counted);
}

START_TEST(test_minimind)
{
	check_answers("tokenizers/minimind", "chatml", "<|im_end|>\n");
	/* Its own template is one for reasoning. */
	check_answers("tokenizers/minimind", "qwen3_nothink", "<|im_end|>\n");
	check_answers("tokenizers/minimind", "default", "<|im_end|>\n");
}
END_TEST

START_TEST(test_llama3)
{
	check_answers("tokenizers/llama3.2", NULL, "<|eot_id|>");
}
END_TEST

START_TEST(test_own_templates)
{
	static const char *const cases[][2] = {{"tokenizers/minimind", "qwen3"},
	                                       {"tokenizers/llama3.2", "llama3"},
	                                       {"tokenizers/gpt2", "default"}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *dir = shared(cases[i][0]);
		_cleanup_(tokenizer_freep) struct tokenizer *tok = NULL;
		_cleanup_(template_choice_clear) struct template_choice choice = {.source = TEMPLATE_NAMED};
		struct error err = ERROR_INIT;

		if (!dir)
			continue;
		ck_ok(tokenizer_load(dir, &tok, &err), &err);
		ck_ok(template_choose(NULL, tok, &choice, &err), &err);
		ck_assert_str_eq(choice.template.name, cases[i][1]);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dataset, real");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, test_minimind);
	tcase_add_test(tc, test_llama3);
	tcase_add_test(tc, test_own_templates);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
