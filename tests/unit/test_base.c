/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

START_TEST(strbuf_grows_and_formats)
{
	_cleanup_strbuf_ struct strbuf b = {0};

	for (int i = 0; i < 1000; i++)
		strbuf_addf(&b, "%d,", i);
	ck_assert(!b.failed);
	ck_assert_uint_eq(b.len, 10 * 2 + 90 * 3 + 900 * 4);
	ck_assert_uint_eq(strlen(b.data), b.len);
	ck_assert(str_ends(b.data, ",999,"));
}
END_TEST

START_TEST(bytes_become_utf8)
{
	static const struct {
		const char *from, *to;
	} cases[] = {
	    {"", ""},
	    {"plain", "plain"},
	    {"h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80", "h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80"},
	    {"cut \xe4\xb8", "cut ??"},                         /* in the middle of a character */
	    {"\xff\x80z", "??z"},                               /* no byte of any, one that begins none */
	    {"\xc0\xaf \xe0\x80\xaf", "?? ???"},                /* longer than need be */
	    {"\xed\xa0\x80", "???"},                            /* half a surrogate pair */
	    {"\xf4\x90\x80\x80 \xf8\x88\x80\x80", "???? ????"}, /* past the last one */
	};
	char plain[32];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *s = strdup(cases[i].from);

		ck_assert_str_eq(str_make_utf8(s), cases[i].to);
	}
	strcpy(plain, "\033[2J a\tb\nc\r\177 h\xc3\xa9");
	ck_assert_str_eq(str_make_plain(plain), "?[2J a\tb\nc?? h\xc3\xa9");
}
END_TEST

START_TEST(numbers_are_whole_strings)
{
	int64_t v = 7;
	double d = 7;

	ck_assert_int_eq(str_to_int64("42", 0, 100, &v), 0);
	ck_assert_int_eq(v, 42);
	ck_assert_int_eq(str_to_int64("4junk", 0, 100, &v), -EINVAL);
	ck_assert_int_eq(str_to_int64("101", 0, 100, &v), -ERANGE);
	ck_assert_int_eq(str_to_int64("99999999999999999999", 0, INT64_MAX, &v), -ERANGE);
	ck_assert_int_eq(str_to_int64("", 0, 100, &v), -EINVAL);
	ck_assert_int_eq(v, 42);
	ck_assert_int_eq(str_to_double("1e-4", &d), 0);
	ck_assert_double_eq(d, 1e-4);
	ck_assert_int_eq(str_to_double("nan", &d), -EINVAL);
}
END_TEST

START_TEST(words_for_sizes_and_times)
{
	char b[32];

	ck_assert_str_eq(str_bytes(b, sizeof(b), 1536), "1.5 KiB");
	ck_assert_str_eq(str_bytes(b, sizeof(b), 312ull << 20), "312 MiB");
	ck_assert_str_eq(str_duration(b, sizeof(b), 190), "3m10s");
	ck_assert_str_eq(str_duration(b, sizeof(b), 7500), "2h05m");
}
END_TEST

START_TEST(atomic_write_replaces_whole_files)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "a/b/file"), *text = NULL;
	_cleanup_free_ char *sub = str_path_join(dir, "a/b");
	struct error err = ERROR_INIT;
	size_t len;

	ck_ok(file_mkdirs(sub, 0755, &err), &err);
	ck_ok(file_write_atomic(path, "one", 3, 0644, &err), &err);
	ck_ok(file_write_atomic(path, "second", 6, 0644, &err), &err);
	ck_ok(file_read(path, 0, &text, &len, &err), &err);
	ck_assert_str_eq(text, "second");
	ck_fails(file_read(path, 3, &text, &len, &err), &err, "larger than 3 bytes");
	ck_fails(file_write_atomic("/nonexistent/x", "a", 1, 0644, &err), &err, "/nonexistent/x");
	ck_ok(file_remove_tree(dir, &err), &err);
	ck_assert(!file_exists(dir));
}
END_TEST

START_TEST(json_errors_name_the_line)
{
	struct error err = ERROR_INIT;
	json_t *j = NULL;

	ck_fails(json_parse("{\n\"a\": }", 8, "x.json", &j, &err), &err, "x.json:2: not valid JSON");
	ck_ok(json_parse("{\"a\":1}", 7, "x.json", &j, &err), &err);
	ck_assert_double_eq(json_get_number(j, "a", 0), 1);
	ck_assert_str_eq(json_get_string(j, "a", "none"), "none");
	json_decref(j);
}
END_TEST

START_TEST(json_reals_have_the_fewest_digits)
{
	static const struct {
		double v;
		const char *text;
	} cases[] = {
	    {0.1, "0.1"},
	    {1e-5, "1e-05"},
	    {10000, "10000.0"},
	    {-0.25, "-0.25"},
	    {1e16, "1e+16"},
	    {1e-4, "0.0001"},
	    {123456.789, "123456.789"},
	    {0, "0.0"},
	    {1.0 / 3, "0.3333333333333333"},
	    {NAN, "null"},
	    {1e15, "1000000000000000.0"},
	};
	char buf[40];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		ck_assert_str_eq(json_real_text(buf, sizeof(buf), cases[i].v), cases[i].text);
}
END_TEST

START_TEST(json_files_look_as_python_writes_them)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "x.json"), *text = NULL;
	_cleanup_json_ json_t *j = NULL;
	struct error err = ERROR_INIT;

	ck_ok(json_parse("{\"b\":[1,2.5],\"a\":{},\"c\":null,\"d\":\"x\\ny\"}", 40, "x", &j, &err), &err);
	ck_ok(json_write_file(path, j, 2, true, &err), &err);
	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, "{\n  \"a\": {},\n  \"b\": [\n    1,\n    2.5\n  ],\n  \"c\": null,\n  \"d\": "
	                       "\"x\\ny\"\n}\n");
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("base");
	TCase *t = tcase_create("base");

	tcase_add_test(t, strbuf_grows_and_formats);
	tcase_add_test(t, bytes_become_utf8);
	tcase_add_test(t, numbers_are_whole_strings);
	tcase_add_test(t, words_for_sizes_and_times);
	tcase_add_test(t, atomic_write_replaces_whole_files);
	tcase_add_test(t, json_errors_name_the_line);
	tcase_add_test(t, json_reals_have_the_fewest_digits);
	tcase_add_test(t, json_files_look_as_python_writes_them);
	suite_add_tcase(s, t);
	return unit_run(s);
}
