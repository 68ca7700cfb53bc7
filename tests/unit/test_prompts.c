/* SPDX-License-Identifier: Apache-2.0 */
/* Files of prompts, and the strings that end a text. */
#include "unit.h"

#include "base/json.h"
#include "base/str.h"
#include "worker/prompts.h"

static int read_text(const char *name, const char *text, size_t len, struct prompts *out, struct error *err)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/%s", dir, name);
	struct error ignored;
	int r;

	ck_ok(file_write_atomic(path, text, len, 0644, err), err);
	r = prompts_read(path, out, err);
	ck_ok(file_remove_tree(dir, &ignored), &ignored);
	return r;
}

START_TEST(prompts_are_lines)
{
	_cleanup_(prompts_free) struct prompts p = {0}, q = {0};
	struct error err = ERROR_INIT;
	static const char text[] = "one\n\n  \ntwo {\"a\"}\r\nthree",
	                  lines[] = "{\"id\": 7, \"prompt\": \"a\\nb\"}\n\n{\"prompt\": \"\"}\n";

	ck_ok(read_text("x.txt", text, strlen(text), &p, &err), &err);
	ck_assert_uint_eq(p.n, 3);
	ck_assert_str_eq(p.items[0].text, "one");
	ck_assert_str_eq(p.items[1].text, "two {\"a\"}");
	ck_assert_str_eq(p.items[2].text, "three");
	ck_assert_str_eq(json_get_string(p.items[2].object, "prompt", ""), "three");
	ck_ok(read_text("x.jsonl", lines, strlen(lines), &q, &err), &err);
	ck_assert_uint_eq(q.n, 2);
	ck_assert_str_eq(q.items[0].text, "a\nb");
	ck_assert_int_eq(json_get_int(q.items[0].object, "id", 0), 7);
	ck_assert_str_eq(q.items[1].text, "");
}
END_TEST

/* As the files of data.path. */
START_TEST(a_byte_order_mark_is_no_text)
{
	static const struct {
		const char *name, *text;
	} cases[] = {
	    {"x.txt", "\xef\xbb\xbf"
	              "one\ntwo"},
	    {"x.jsonl", "\xef\xbb\xbf{\"prompt\": \"one\"}\n{\"prompt\": \"two\"}\n"},
	    {"x.jsonl", "[{\"prompt\": \"one\"},\n {\"prompt\": \"two\"}]"},
	    {"x.jsonl", "{\"prompt\": \"one\", \"id\": 18446744073709551615}\n{\"prompt\": \"two\"}"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(prompts_free) struct prompts p = {0};
		struct error err = ERROR_INIT;

		ck_ok(read_text(cases[i].name, cases[i].text, strlen(cases[i].text), &p, &err), &err);
		ck_assert_uint_eq(p.n, 2);
		ck_assert_str_eq(p.items[0].text, "one");
		ck_assert_str_eq(p.items[1].text, "two");
	}
}
END_TEST

START_TEST(what_is_wrong_in_a_file_is_named)
{
	static const struct {
		const char *name, *text;
		size_t len;
		const char *words;
	} cases[] = {
	    {"x.txt", "", 0, "x.txt: there are no prompts in it"},
	    {"x.txt", "\n \n", 3, "there are no prompts in it"},
	    {"x.txt", "a\n\xff\n", 4, "x.txt:2: not UTF-8"},
	    {"x.txt", "a\0b\n", 4, "x.txt:1: a zero byte"},
	    {"x.jsonl", "{\"prompt\": \"a\"}\n{\"text\": 1}\n", 28, "x.jsonl:2: prompt"},
	    {"x.jsonl", "hello\n", 6, "x.jsonl:1: not valid JSON"},
	    {"x.jsonl", "{\"prompt\": \"a\"}\n\n{\"prompt\": }\n", 31, "x.jsonl:3: not valid JSON"},
	    {"x.jsonl", "{\"prompt\": \"a\\u0000b\"}\n", 24, "x.jsonl:1: prompt: a zero byte"},
	    {"x.txt", "\xef\xbb\xbf\n", 4, "there are no prompts in it"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(prompts_free) struct prompts p = {0};
		struct error err = ERROR_INIT;

		ck_fails(read_text(cases[i].name, cases[i].text, cases[i].len, &p, &err), &err,
		         cases[i].words);
	}
}
END_TEST

/* A text comes a byte at a time: what is printed is the text up to the first stop string, and nothing is
 * printed that turns out to belong to one. */
START_TEST(a_stop_string_is_found_wherever_it_is_cut)
{
	static const struct {
		const char *strings[3], *text, *printed;
	} cases[] = {
	    {{"END"}, "abcENDdef", "abc"}, {{"END"}, "abENEND", "abEN"},
	    {{"aab"}, "aaaab", "aa"},      {{"\n\n", "x"}, "a\nb\n\nc", "a\nb"},
	    {{"bcd", "c"}, "abcd", "ab"},  {{"zz"}, "abcz", "abcz"},
	    {{"abc"}, "abcabc", ""},       {{NULL}, "abc", "abc"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char *const *strings = (char *const *)cases[i].strings;
		size_t printed = 0, length = strlen(cases[i].text), at = length;
		bool stopped = false;

		for (size_t len = 1; len <= length && !stopped; len++) {
			stopped = stop_find(strings, cases[i].text, printed, len, &at);
			printed = stopped ? at : len - stop_pending(strings, cases[i].text, printed, len);
			ck_assert_uint_le(printed, strlen(cases[i].printed));
		}
		ck_assert_uint_eq(stopped ? printed : length, strlen(cases[i].printed));
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("prompts");
	TCase *tc = tcase_create("prompts");

	tcase_add_test(tc, prompts_are_lines);
	tcase_add_test(tc, a_byte_order_mark_is_no_text);
	tcase_add_test(tc, what_is_wrong_in_a_file_is_named);
	tcase_add_test(tc, a_stop_string_is_found_wherever_it_is_cut);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
