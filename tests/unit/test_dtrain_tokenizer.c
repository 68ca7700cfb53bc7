/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain tokenizer train: the texts that it reads, and its messages about the new tokenizer. */
#include "dtrain_fixture.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

static void setup(void)
{
	static const char text[] = "abababab ab ab\n";
	struct error err = ERROR_INIT;

	fixture_setup();
	ck_assert_int_eq(chdir(fixture_dir()), 0);
	ck_ok(file_write_atomic("t.txt", text, strlen(text), 0644, &err), &err);
}

/* 3 special tokens and 256 bytes; "ab", "abab", "abababab" and " ab" are all that can be merged. */
START_TEST(a_text_may_run_out_of_pairs)
{
	static const struct {
		const char *line, *output;
	} cases[] = {
	    {"tokenizer train -n 261 -o t t.txt", "t: 261 tokens\n"},
	    {"tokenizer train -n 6400 -o t t.txt", "t: 263 tokens\nonly 263 of the 6400 tokens of "
	                                           "--vocab-size: the text has no more pairs to merge; a "
	                                           "longer text has\n"},
	    {"tokenizer train -n 6400 --min-frequency 3 -o t t.txt",
	     "t: 261 tokens\nonly 261 of the 6400 tokens of --vocab-size: the text has no more pairs to "
	     "merge "
	     "that occur 3 times or more; a longer text has\n"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(call_release) struct call call = fixture_call(cmd_tokenizer, cases[i].line);

		ck_assert_str_eq(call.errors, "");
		ck_assert_int_eq(call.status, 0);
		ck_assert_str_eq(call.output, cases[i].output);
	}
}
END_TEST

static void write_text(const char *name, const char *text)
{
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(name, text, strlen(text), 0644, &err), &err);
}

/* Files of JSON lines are read line by line, and what is wrong is named by its line. */
START_TEST(texts_are_read_from_json_lines)
{
	static const struct {
		const char *lines, *line, *output, *errors;
		int status;
	} cases[] = {
	    {"{\"text\":\"abababab ab ab\"}\n", "tokenizer train -n 6400 -o t l.jsonl", "t: 263 tokens\n", "",
	     0},
	    {"\n{\"text\":\"abababab\"}\n \t\r\n\n{\"text\":\" ab ab\"}",
	     "tokenizer train -n 6400 -o t l.jsonl", "t: 263 tokens\n", "", 0},
	    /* One text, then none, then another. */
	    {"", "tokenizer train -n 6400 -o t t.txt l.jsonl t.txt", "t: 263 tokens\n", "", 0},
	    {"{\"text\":\"cdcdcdcd\"}\n", "tokenizer train -n 6400 -o t t.txt l.jsonl", "t: 266 tokens\n", "",
	     0},
	    {"{\"text\":\"cdcdcdcd\"}\n", "tokenizer train -n 6400 -o t l.jsonl t.txt", "t: 266 tokens\n", "",
	     0},
	    {"{\"text\":\"ab\"}\n\n{\"txt\":1}\n", "tokenizer train -n 6400 -o t l.jsonl", "",
	     "dtrain: l.jsonl:3: text: missing", 1},
	    {"{\"text\":\"ab\"}\n{\"text\"", "tokenizer train -n 6400 -o t l.jsonl", "",
	     "dtrain: l.jsonl:2:", 1},
	    {"", "tokenizer train -n 6400 -o t none.jsonl", "", "dtrain: cannot read none.jsonl", 1},
	    {"", "tokenizer train -n 6400 -o t none.txt", "", "dtrain: cannot read none.txt", 1},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(call_release) struct call call = {0};

		write_text("l.jsonl", cases[i].lines);
		call = fixture_call(cmd_tokenizer, cases[i].line);
		ck_assert_int_eq(call.status, cases[i].status);
		ck_assert_msg(str_starts(call.output, cases[i].output), "%zu: %s", i, call.output);
		ck_assert_msg(str_starts(call.errors, cases[i].errors), "%zu: %s", i, call.errors);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dtrain_tokenizer");
	TCase *tc = tcase_create("train");

	tcase_add_checked_fixture(tc, setup, fixture_teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_text_may_run_out_of_pairs);
	tcase_add_test(tc, texts_are_read_from_json_lines);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
