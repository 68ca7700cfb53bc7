/* SPDX-License-Identifier: Apache-2.0 */
/* Tests dataset/: files of preferences become rows of two documents, in each of the formats. */
#include "dataset_fixture.h"

static struct dataset *open_with(enum dataset_task task, bool margins, const char *path, struct notes *notes)
{
	struct dataset_options o = options(path, notes);
	struct tokenizer tok = {0};
	struct error err = ERROR_INIT;
	struct dataset *d;

	*notes = (struct notes){0};
	o.task = task;
	o.margins = margins;
	o.template_name = "mistral";
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	return d;
}

static struct dataset *open_data(enum dataset_task task, const char *path, struct notes *notes)
{
	return open_with(task, false, path, notes);
}

/* Each row is the same pair, with two documents. */
static void check_pair(const char *name, const char *content)
{
	struct notes notes;
	struct dataset *d = open_data(DATASET_PAIRS, put(name, content), &notes);
	struct dataset_row row;

	ck_assert_int_eq(notes.warnings, 0);
	ck_assert_int_eq(dataset_rows(d), 1);
	dataset_row(d, 0, &row);
	ck_assert_int_eq(row.documents, 2);
	ck_row(d, 0,
	       "<s>[INST] S\n\nQ[/INST] good</s><s>[INST] S\n\nQ[/INST] bad</s>|"
	       "___________________ good</s>___________________ bad</s>_");
	dataset_close(d);
}

START_TEST(pairs_of_all_formats)
{
	check_pair("a.json",
	           "[{\"instruction\":\"Q\",\"chosen\":\"good\",\"rejected\":\"bad\",\"system\":\"S\"}]");
	check_pair("b.json", "[{\"conversations\":[{\"from\":\"system\",\"value\":\"S\"},{\"from\":\"human\","
	                     "\"value\":\"Q\"}],\"chosen\":{\"from\":\"gpt\",\"value\":\"good\"},"
	                     "\"rejected\":{\"from\":\"gpt\",\"value\":\"bad\"}}]");
	check_pair("c.json", "[{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\","
	                     "\"content\":\"Q\"}],\"chosen\":{\"role\":\"assistant\",\"content\":\"good\"},"
	                     "\"rejected\":{\"role\":\"assistant\",\"content\":\"bad\"}}]");
	check_pair("d.json",
	           "[{\"prompt\":\"Q\",\"chosen\":\"good\",\"rejected\":\"bad\",\"system\":\"S\"}]");
	check_pair("e.json", "[{\"prompt\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\","
	                     "\"content\":\"Q\"}],\"chosen\":[{\"role\":\"assistant\",\"content\":\"good\"}],"
	                     "\"rejected\":[{\"role\":\"assistant\",\"content\":\"bad\"}]}]");
	/* The prompt is what both conversations begin with. */
	check_pair("f.json", "[{\"chosen\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\","
	                     "\"content\":\"Q\"},{\"role\":\"assistant\",\"content\":\"good\"}],"
	                     "\"rejected\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\","
	                     "\"content\":\"Q\"},{\"role\":\"assistant\",\"content\":\"bad\"}]}]");
}
END_TEST

/* By how much an answer is better, in each form of answers; 0 where a record does not say. Where they are not
 * asked for, a column of that name may hold anything. */
START_TEST(margins_are_read)
{
	static const char *const files[] = {
	    "[{\"instruction\":\"p\",\"chosen\":\"A\",\"rejected\":\"B\",\"margin\":1.5},"
	    "{\"instruction\":\"p\",\"chosen\":\"A\",\"rejected\":\"B\"},"
	    "{\"instruction\":\"p\",\"chosen\":\"A\",\"rejected\":\"B\",\"margin\":\"much\"}]",
	    "[{\"prompt\":[{\"role\":\"user\",\"content\":\"p\"}],\"chosen\":[{\"role\":\"assistant\","
	    "\"content\":"
	    "\"A\"}],\"rejected\":[{\"role\":\"assistant\",\"content\":\"B\"}],\"margin\":1.5},"
	    "{\"prompt\":[{\"role\":\"user\",\"content\":\"p\"}],\"chosen\":[{\"role\":\"assistant\","
	    "\"content\":"
	    "\"A\"}],\"rejected\":[{\"role\":\"assistant\",\"content\":\"B\"}],\"margin\":null},"
	    "{\"prompt\":[{\"role\":\"user\",\"content\":\"p\"}],\"chosen\":[{\"role\":\"assistant\","
	    "\"content\":"
	    "\"A\"}],\"rejected\":[{\"role\":\"assistant\",\"content\":\"B\"}],\"margin\":true}]",
	};

	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		char name[] = {(char)('a' + i), '.', 'j', 's', 'o', 'n', 0};
		struct notes notes;
		const char *path = put(name, files[i]);
		struct dataset *d = open_data(DATASET_PAIRS, path, &notes);

		ck_assert_int_eq(dataset_rows(d), 3);
		ck_assert_int_eq(notes.warnings, 0);
		dataset_close(d);
		d = open_with(DATASET_PAIRS, true, path, &notes);
		ck_assert_int_eq(dataset_rows(d), 2);
		for (int k = 0; k < 2; k++) {
			struct dataset_row row;

			dataset_row(d, k, &row);
			ck_assert_float_eq(row.margin, k ? 0 : 1.5f);
		}
		ck_assert_ptr_nonnull(strstr(notes.last, "column 'margin': expected a finite number"));
		dataset_close(d);
	}
}
END_TEST

/* One cut for both answers. */
START_TEST(both_answers_are_cut_alike)
{
	const char *path =
	    put("a.json", "[{\"instruction\":\"0123456789\",\"chosen\":\"abcdefghij\",\"rejected\":\"xy\"}]");
	struct notes notes;
	struct dataset_options o = options(path, &notes);
	struct tokenizer tok = {0};
	struct error err = ERROR_INIT;
	struct dataset *d;

	o.task = DATASET_PAIRS;
	o.template_name = "empty";
	o.max_length = 14;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_row(d, 0, "0123456abcdefg0123456xy|_______abcdefg_______xy_");
	ck_assert_int_eq(dataset_cut_examples(d), 1);
	ck_assert_int_eq(dataset_cut_tokens(d), 9);
	dataset_close(d);
}
END_TEST

/* Not what is cut of the answer to another prompt, which the row has as well. */
START_TEST(what_is_cut_of_own_answers_is_counted)
{
	const char *path = put("a.json", "[{\"instruction\":\"01234\",\"output\":\"abc\",\"label\":true},"
	                                 "{\"instruction\":\"p\",\"output\":\"0123456789\",\"label\":false},"
	                                 "{\"instruction\":\"p\",\"output\":\"A\",\"label\":true}]");
	struct notes notes;
	struct dataset_options o = options(path, &notes);
	struct tokenizer tok = {0};
	struct error err = ERROR_INIT;
	struct dataset *d;

	o.task = DATASET_LABELS;
	o.template_name = "empty";
	o.max_length = 6;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_row(d, 2, "pAp01234|_A_01234_");
	ck_assert_int_eq(dataset_cut_examples(d), 2);
	ck_assert_int_eq(dataset_cut_tokens(d), 2 + 5);
	dataset_close(d);
}
END_TEST

START_TEST(labels_go_with_the_answer_before)
{
	static const char *const files[] = {
	    "[{\"instruction\":\"p\",\"output\":\"A\",\"label\":true},{\"instruction\":\"q\",\"output\":"
	    "\"B\",\"label\":false},"
	    "{\"instruction\":\"r\",\"output\":\"C\",\"label\":true}]",
	    "[{\"prompt\":\"p\",\"completion\":\"A\",\"label\":true},{\"prompt\":\"q\",\"completion\":\"B\","
	    "\"label\":false},"
	    "{\"prompt\":\"r\",\"completion\":\"C\",\"label\":1}]",
	    "[{\"messages\":[{\"role\":\"user\",\"content\":\"p\"},{\"role\":\"assistant\",\"content\":\"A\"}"
	    "],"
	    "\"kto_tag\":true},{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
	    "\"content\":\"B\"}],\"kto_tag\":false},{\"messages\":[{\"role\":\"user\",\"content\":\"r\"},"
	    "{\"role\":\"assistant\",\"content\":\"C\"}],\"kto_tag\":true}]",
	};

	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		char name[] = {(char)('a' + i), '.', 'j', 's', 'o', 'n', 0};
		struct notes notes;
		struct dataset *d = open_data(DATASET_LABELS, put(name, files[i]), &notes);

		ck_assert_int_eq(notes.warnings, 0);
		ck_assert_int_eq(dataset_rows(d), 3);
		ck_row(d, 0,
		       "<s>[INST] p[/INST] A</s><s>[INST] p[/INST] C</s>|________________ "
		       "A</s>________________ C</s>_");
		for (int k = 0; k < 3; k++) {
			struct dataset_row row;

			dataset_row(d, k, &row);
			ck_assert_int_eq(row.label, k != 1);
			ck_assert_int_eq(row.documents, 2);
		}
		dataset_close(d);
	}
}
END_TEST

START_TEST(what_is_missing_is_named)
{
	static const struct {
		enum dataset_task task;
		const char *content, *words;
	} cases[] = {
	    {DATASET_PAIRS, "[{\"instruction\":\"p\",\"output\":\"A\"}]", "column 'chosen' is missing"},
	    {DATASET_PAIRS, "[{\"prompt\":\"p\",\"chosen\":\"A\"}]", "column 'rejected' is missing"},
	    {DATASET_LABELS, "[{\"prompt\":\"p\",\"completion\":\"A\"}]", "column 'label' is missing"},
	    {DATASET_SFT, "[{\"prompt\":\"p\",\"chosen\":\"A\"}]", "tell no format"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char name[] = {(char)('a' + i), '.', 'j', 's', 'o', 'n', 0};
		struct notes notes = {0};
		struct dataset_options o = options(put(name, cases[i].content), &notes);
		struct tokenizer tok = {0};
		struct error err = ERROR_INIT;
		struct dataset *d;

		o.task = cases[i].task;
		ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, cases[i].words);
	}
}
END_TEST

START_TEST(a_record_without_an_answer_is_skipped)
{
	struct notes notes;
	struct dataset *d =
	    open_data(DATASET_PAIRS,
	              put("a.json", "[{\"instruction\":\"p\",\"chosen\":\"A\",\"rejected\":\"B\"},\n"
	                            "{\"instruction\":\"q\",\"chosen\":\"A\"},\n"
	                            "{\"instruction\":\"r\",\"chosen\":\"A\",\"rejected\":null}]"),
	              &notes);

	ck_assert_int_eq(dataset_rows(d), 1);
	ck_assert_int_eq(notes.warnings, 2);
	ck_assert_ptr_nonnull(strstr(notes.last, "a.json:3: column 'rejected' is no string"));
	dataset_close(d);
	d = open_data(DATASET_LABELS,
	              put("b.json", "[{\"prompt\":\"p\",\"completion\":\"A\",\"label\":true},\n"
	                            "{\"prompt\":\"q\",\"completion\":\"A\",\"label\":\"yes\"}]"),
	              &notes);
	ck_assert_int_eq(dataset_rows(d), 1);
	ck_assert_ptr_nonnull(strstr(notes.last, "b.json:2: column 'label' is neither true nor false"));
	dataset_close(d);
	/* An empty answer is one: its end token. */
	d = open_data(DATASET_PAIRS,
	              put("c.json", "[{\"instruction\":\"p\",\"chosen\":\"A\",\"rejected\":\"B\"},\n"
	                            "{\"instruction\":\"q\",\"chosen\":\"\",\"rejected\":\"B\"},\n"
	                            "{\"instruction\":\"q\",\"chosen\":\"A\",\"rejected\":\"\"}]"),
	              &notes);
	ck_assert_int_eq(dataset_rows(d), 3);
	dataset_close(d);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dataset, preferences");
	TCase *tc = tcase_create("all");
	const TTest *const tests[] = {pairs_of_all_formats,
	                              margins_are_read,
	                              both_answers_are_cut_alike,
	                              what_is_cut_of_own_answers_is_counted,
	                              labels_go_with_the_answer_before,
	                              what_is_missing_is_named,
	                              a_record_without_an_answer_is_skipped};

	tcase_add_checked_fixture(tc, setup, teardown);
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
