/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what is done with the text of a configuration before and after its parser: which integers are
 * widened, what is no text, which setting is there twice, and texts that stand for times and ranges. */
#include <string.h>

#include "base/str.h"
#include "config/keys.h"
#include "config/keys_source.h"
#include "failing_memory.h"

/* ---- integers ---- */

static const struct {
	const char *text, *widened; /* NULL: as it was */
} integers[] = {
    {"", NULL},
    {"a = 2147483647; b = -2147483648;", NULL},
    {"a = 2147483648;", "a = 2147483648L;"},
    {"a = -2147483649;", "a = -2147483649L;"},
    {"a = +2147483648;", "a = +2147483648L;"},
    {"a = 2147483648L; b = 2147483648LL;", NULL},
    {"a = 2147483648LLL;", NULL},
    {"a = 0x7fffffff; b = 0X80000000;", "a = 0x7fffffff; b = 0X80000000L;"},
    {"a = 0xFFFFFFFFL;", NULL},
    {"a = 0x; b = 0xg;", NULL},
    {"a = [1,4294967296,2];", "a = [1,4294967296L,2];"},
    {"a=9223372036854775807", "a=9223372036854775807L"},
    /* Not these. */
    {"a = 4294967296.0; b = 4294967296.; c = 4294967296e1; d = .4294967296; e = 4294967296E-1;", NULL},
    {"a = 4294967296e; ", "a = 4294967296Le; "},
    {"a4294967296 = 1; b-4294967296 = 1; *4294967296 = 1; c_4294967296 = 1;", NULL},
    {"# 4294967296\na = 4294967296;", "# 4294967296\na = 4294967296L;"},
    {"// 4294967296\n/4294967296", "// 4294967296\n/4294967296L"},
    {"/* 4294967296 * / 4294967296 */4294967296", "/* 4294967296 * / 4294967296 */4294967296L"},
    {"/* 4294967296", NULL},
    {"\"4294967296 \\\" 4294967296\"4294967296", "\"4294967296 \\\" 4294967296\"4294967296L"},
    {"\"4294967296\\\\\"4294967296", "\"4294967296\\\\\"4294967296L"},
    {"\"4294967296\\", NULL},
    {"a = \xff 4294967296", "a = \xff 4294967296L"},
};

START_TEST(wide_integers_are_marked)
{
	_cleanup_free_ char *out = NULL;
	struct error err = ERROR_INIT;

	ck_ok(keys_widen_integers(integers[_i].text, "f", &out, &err), &err);
	ck_assert_str_eq(out, integers[_i].widened ? integers[_i].widened : integers[_i].text);
}
END_TEST

static const struct {
	const char *text, *words;
} too_wide[] = {
    {"a = 9223372036854775808;", "f:1: a: 9223372036854775808 is out of range; an integer has to be within"},
    {"\n\nb = -9223372036854775809;", "f:3: b: -9223372036854775809 is out of range"},
    {"b = { c = 0x8000000000000000; }", "f:1: c: 0x8000000000000000 is out of range"},
    {"/* \n */ c = 1; d = 99999999999999999999L;", "f:2: d: 99999999999999999999 is out of range"},
    {"99999999999999999999", "f:1: : 99999999999999999999 is out of range"},
};

START_TEST(integers_of_more_than_64_bits_are_errors)
{
	char *out = NULL;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(keys_widen_integers(too_wide[_i].text, "f", &out, &err), -ERANGE);
	ck_assert_msg(str_starts(err.message, too_wide[_i].words), "%s", err.message);
	ck_assert_ptr_null(out);
}
END_TEST

/* ---- texts of the parser ---- */

static const struct {
	const char *text, *words; /* NULL: it is taken */
} texts[] = {
    {"a = 1;\t\r\n\f\v", NULL},
    {"a = \x1b", "f:1: not a text file: the byte 0x1b is in it"},
    {"\n\na = \x01;", "f:3: not a text file: the byte 0x01 is in it"},
    {"a = \x1f;", "f:1: not a text file: the byte 0x1f is in it"},
    {"a = \x7f;", NULL},
    {"# \x01", NULL},
    {"a = \"\x01\";", NULL},
    {"/* a */", NULL},
    {"/**/", NULL},
    {"/*/", "f:1: a comment without an end: /* … */"},
    {"\n/* a * /", "f:2: a comment without an end: /* … */"},
    {"/*", "f:1: a comment without an end: /* … */"},
    {"/ 5 /", NULL},
    {"a = \"\";", NULL},
    {"a = \"", "f:1: a string without an end: \"…\""},
    {"a = \"b\\\"", "f:1: a string without an end: \"…\""},
    {"a = \"b\\\\\"", NULL},
    {"a = \"b\\", "f:1: a string without an end: \"…\""},
    {"b; @include \"nothing\"", NULL}, /* no directive, but for the parser to refuse */
    {"@include", NULL},
    {"@include nothing", NULL},
    {"@includes \"nothing\"", NULL},
    {"@include\"nothing\"", NULL},
    {"\n \t@include \"nothing", "f:2: @include: a string without an end: \"…\""},
    {" @include \"/nothing\"", "f:1: @include \"/nothing\": No such file or directory"},
    {"@include \t \"/dev\"", "f:1: @include \"/dev\": a directory; a file is needed"},
    {"@include \"/dev/null\"", "f:1: @include \"/dev/null\": not a regular file; a file is needed"},
    {"@include \"/no\\\"thing\\\\\"", "f:1: @include \"/no\"thing\\\": No such file or directory"},
};

START_TEST(a_text_is_taken_or_says_what_is_wrong)
{
	struct keys_text t = {0};
	struct error err = ERROR_INIT;
	int r = keys_text_read(&t, texts[_i].text, "f", &err);

	if (texts[_i].words) {
		ck_assert_int_lt(r, 0);
		ck_assert_str_eq(err.message, texts[_i].words);
	} else {
		ck_ok(r, &err);
		ck_assert_str_eq(t.text.data, texts[_i].text);
	}
	keys_text_release(&t);
}
END_TEST

/* Where a line of the text comes from; what is no line is the nearest one. */
START_TEST(lines_have_their_place)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "inner"),
	                    *text = str_printf("a = 1;\n@include \"%s\"\nb = 2;\n", path);
	_cleanup_strbuf_ struct strbuf many = {0};
	struct keys_text t = {0}, large = {0}, first = {0};
	struct error err = ERROR_INIT;
	char got[512], want[512];

	ck_ok(file_write_atomic(path, "x = 1;\ny = 2;", 13, 0600, &err), &err);
	ck_ok(keys_text_read(&t, text, "f", &err), &err);
	ck_assert_str_eq(t.text.data, "a = 1;\nx = 1;\ny = 2;\n\nb = 2;\n");
	ck_assert_str_eq(keys_text_where(&t, 1, got, sizeof(got)), "f:1");
	snprintf(want, sizeof(want), "%s:1", path);
	ck_assert_str_eq(keys_text_where(&t, 2, got, sizeof(got)), want);
	snprintf(want, sizeof(want), "%s:2", path);
	ck_assert_str_eq(keys_text_where(&t, 3, got, sizeof(got)), want);
	ck_assert_str_eq(keys_text_where(&t, 5, got, sizeof(got)), "f:3");
	ck_assert_str_eq(keys_text_where(&t, 0, got, sizeof(got)), "f:1");
	ck_assert_str_eq(keys_text_where(&t, 99, got, sizeof(got)), "f:4");
	/* At the begin of a text, whatever stands before it in memory. */
	free(text);
	text = str_printf("x@include \"%s\"", path);
	ck_ok(keys_text_read(&first, text + 1, "f", &err), &err);
	ck_assert_str_eq(first.text.data, "x = 1;\ny = 2;\n");
	keys_text_release(&first);
	for (int i = 0; i < 1000; i++)
		strbuf_adds(&many, "\n");
	ck_ok(keys_text_read(&large, many.data, "g", &err), &err);
	ck_assert_str_eq(keys_text_where(&large, 257, got, sizeof(got)), "g:257");
	ck_assert_str_eq(keys_text_where(&large, 1000, got, sizeof(got)), "g:1000");
	keys_text_release(&large);
	keys_text_release(&t);
	file_remove_tree(dir, NULL);
}
END_TEST

/* Which setting is there twice. "": it cannot be found. */
static const struct {
	const char *text, *words;
} twice[] = {
    {"a = 1; a = 2;", "f:1: a: set twice; the first time at f:1"},
    {"a = 1;\nb : 1;\nb = 2;", "f:3: b: set twice; the first time at f:2"},
    {"g = { a = 1; };\nh = { a = 1;\n a = 2; };", "f:3: h.a: set twice; the first time at f:2"},
    {"g = { h = { a = 1; }; a = 1; }; a = 1;\na = 2;", "f:2: a: set twice; the first time at f:1"},
    {"g = { h = { a = 1; }; h = { a = 1; }; };", "f:1: g.h: set twice; the first time at f:1"},
    /* Each element of a list is a group by itself. */
    {"l = ( { a = 1; }, { a = 2; b = 1; b = 2; } );", "f:1: l.b: set twice; the first time at f:1"},
    {"a = \"a = 1\"; # a = 1\n/* a = 1; */ ab = 1; a = 2;", "f:2: a: set twice; the first time at f:1"},
    {"} a = 1; ) a = 2;", "f:1: a: set twice; the first time at f:1"},
    {"a = 1; b = 2;", "f:1: a setting that is there twice"},
    {"= 1; = 2;", "f:1: a setting that is there twice"},
};

START_TEST(a_setting_that_is_there_twice_is_named)
{
	struct keys_text t = {0};
	struct error err = ERROR_INIT;

	ck_ok(keys_text_read(&t, twice[_i].text, "f", &err), &err);
	ck_assert_int_eq(keys_text_error(&t, "duplicate setting name", 1, &err), -EINVAL);
	ck_assert_str_eq(err.message, twice[_i].words);
	keys_text_release(&t);
}
END_TEST

/* More groups within each other, and more settings, than are looked through. */
START_TEST(in_a_large_text_it_may_not_be_found)
{
	_cleanup_strbuf_ struct strbuf deep = {0}, many = {0};
	struct keys_text t = {0}, u = {0};
	struct error err = ERROR_INIT;

	for (int i = 0; i < 70; i++)
		strbuf_adds(&deep, "g = { ");
	strbuf_adds(&deep, "a = 1; a = 2;");
	ck_ok(keys_text_read(&t, deep.data, "f", &err), &err);
	ck_assert_int_eq(keys_text_error(&t, "duplicate setting name", 1, &err), -EINVAL);
	ck_assert_str_eq(err.message, "f:1: a setting that is there twice");
	for (int i = 0; i < 5000; i++)
		strbuf_addf(&many, "a%d = 1;\n", i);
	strbuf_adds(&many, "a1 = 2;");
	ck_ok(keys_text_read(&u, many.data, "f", &err), &err);
	ck_assert_int_eq(keys_text_error(&u, "duplicate setting name", 5001, &err), -EINVAL);
	ck_assert_str_eq(err.message, "f:5001: a setting that is there twice");
	ck_assert_int_eq(keys_text_error(&u, "syntax error", 2, &err), -EINVAL);
	ck_assert_str_eq(err.message, "f:2: syntax error; a setting is written: name = value;");
	ck_assert_int_eq(keys_text_error(&u, "another one", 3, &err), -EINVAL);
	ck_assert_str_eq(err.message, "f:3: another one");
	ck_assert_int_eq(keys_text_error(&u, NULL, 3, &err), -EINVAL);
	ck_assert_str_eq(err.message, "f:3: cannot be read");
	keys_text_release(&t);
	keys_text_release(&u);
}
END_TEST

static int read_text(void *context, struct error *err)
{
	struct keys_text t = {0};
	int r = keys_text_read(&t, context, "f", err);

	keys_text_release(&t);
	return r;
}

START_TEST(a_text_is_read_without_memory)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "inner"),
	                    *text = str_printf("a = 4294967296;\n@include \"%s\"\nb = 2;\n", path);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, "x = 1;\n", 7, 0600, &err), &err);
	memory_runs_out(read_text, text);
	file_remove_tree(dir, NULL);
}
END_TEST

/* ---- quantities ---- */

static const struct {
	const char *text;
	int code;
	int64_t seconds;
} durations[] = {
    {"0", 0, 0},
    {"90", 0, 90},
    {"1d", 0, 86400},
    {"1h", 0, 3600},
    {"1m", 0, 60},
    {"1s", 0, 1},
    {"1d1h1m1s", 0, 90061},
    {"1d1s", 0, 86401},
    {"0h5", -EINVAL, 0},
    {"9223372036854775807", 0, INT64_MAX},
    {"9223372036854775808", -ERANGE, 0},
    {"99999999999999999999", -ERANGE, 0},
    {"106751991167300d", 0, 106751991167300 * 86400},
    {"106751991167301d", -ERANGE, 0},
    {"106751991167300d23h", -ERANGE, 0},
    {"", -EINVAL, 0},
    {"s", -EINVAL, 0},
    {"1s1m", -EINVAL, 0},
    {"1s1s", -EINVAL, 0},
    {"1h30", -EINVAL, 0},
    {"5 ", -EINVAL, 0},
    {"1d ", -EINVAL, 0},
    {"/", -EINVAL, 0},
    {":", -EINVAL, 0},
};

START_TEST(times_are_read)
{
	int64_t seconds = 77;

	ck_assert_int_eq(keys_parse_duration(durations[_i].text, &seconds), durations[_i].code);
	ck_assert_int_eq(seconds, durations[_i].code ? 77 : durations[_i].seconds);
}
END_TEST

static const struct {
	const char *text;
	int code;
	int64_t low, high;
} ranges[] = {
    {"4", 0, 4, 4},
    {"2..4", 0, 2, 4},
    {"4..4", 0, 4, 4},
    {"0..9223372036854775807", 0, 0, INT64_MAX},
    {"4..2", -EINVAL, 0, 0},
    {"4..", -EINVAL, 0, 0},
    {"..4", -EINVAL, 0, 0},
    {"2...4", -EINVAL, 0, 0},
    {"2.4", -EINVAL, 0, 0},
    {"2..4 ", -EINVAL, 0, 0},
    {"2..9223372036854775808", -ERANGE, 0, 0},
    {"", -EINVAL, 0, 0},
    {"-1", -EINVAL, 0, 0},
};

START_TEST(ranges_are_read)
{
	struct key_range range = {77, 78};

	ck_assert_int_eq(keys_parse_range(ranges[_i].text, &range), ranges[_i].code);
	ck_assert_int_eq(range.low, ranges[_i].code ? 77 : ranges[_i].low);
	ck_assert_int_eq(range.high, ranges[_i].code ? 78 : ranges[_i].high);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("keys text");
	TCase *t = tcase_create("text");

	tcase_add_loop_test(t, wide_integers_are_marked, 0, ARRAY_SIZE(integers));
	tcase_add_loop_test(t, integers_of_more_than_64_bits_are_errors, 0, ARRAY_SIZE(too_wide));
	tcase_add_loop_test(t, a_text_is_taken_or_says_what_is_wrong, 0, ARRAY_SIZE(texts));
	tcase_add_test(t, lines_have_their_place);
	tcase_add_loop_test(t, a_setting_that_is_there_twice_is_named, 0, ARRAY_SIZE(twice));
	tcase_add_test(t, in_a_large_text_it_may_not_be_found);
	tcase_add_test(t, a_text_is_read_without_memory);
	tcase_add_loop_test(t, times_are_read, 0, ARRAY_SIZE(durations));
	tcase_add_loop_test(t, ranges_are_read, 0, ARRAY_SIZE(ranges));
	suite_add_tcase(s, t);
	return unit_run(s);
}
