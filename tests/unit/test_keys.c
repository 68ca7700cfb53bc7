/* SPDX-License-Identifier: Apache-2.0 */
/* Tests tables of keys by a table of their own: every type of key with every kind of value, from JSON and
 * from overrides; the borders of numbers; and which key is suggested for one that is not known. */
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "config/keys.h"
#include "config/keys_source.h"
#include "failing_memory.h"

struct target {
	char *string, *choice, *flexible, *group;
	int64_t integer, free_integer, count, duration;
	struct key_range range;
	double number;
	bool flag;
	char **list;
	char **texts;
	int64_t inner, other;
};

#define KEY(SECTION, NAME, ...)                                                                              \
	{                                                                                                    \
		.section = SECTION, .name = #NAME, .offset = offsetof(struct target, NAME), __VA_ARGS__      \
	}
static const struct key table[] = {
    KEY(NULL, string, .type = KEY_STRING),
    KEY(NULL, choice, .type = KEY_CHOICE, .choices = "one|other|three"),
    KEY(NULL, flexible, .type = KEY_CHOICE, .choices = "true|false|some"),
    KEY(NULL, group, .type = KEY_GROUP),
    KEY(NULL, integer, .type = KEY_INT, .min = -2, .max = 5, .fallback = "3"),
    KEY(NULL, free_integer, .type = KEY_INT),
    KEY(NULL, count, .type = KEY_COUNT, .min = 1, .max = 9),
    KEY(NULL, duration, .type = KEY_DURATION, .min = 5, .max = 7200),
    KEY(NULL, range, .type = KEY_RANGE, .min = 1, .max = 8),
    KEY(NULL, number, .type = KEY_NUMBER, .min = 0.5, .max = 2.5),
    KEY(NULL, flag, .type = KEY_BOOL),
    KEY(NULL, list, .type = KEY_LIST),
    KEY(NULL, texts, .type = KEY_TEXTS),
    KEY("section", inner, .type = KEY_INT),
    KEY("another", other, .type = KEY_INT),
};
static const struct keys keys = {table, ARRAY_SIZE(table), NULL};

/* A value in JSON; what is said of it, after "f: KEY: ", or NULL: it is taken. */
static const struct {
	const char *key, *value, *words;
} values[] = {
    {"string", "\"x\"", NULL},
    {"string", "5", "an integer; a string is needed"},
    {"string", "true", "a boolean; a string is needed"},
    {"string", "[\"x\"]", "a list; a string is needed"},
    {"string", "{}", "a group; a string is needed"},
    {"string", "\"a\\u0000b\"", "a NUL byte in a string"},
    {"choice", "\"one\"", NULL},
    {"choice", "\"three\"", NULL},
    {"choice", "\"o\"", "\"o\" is not known; it has to be one of one|other|three"},
    {"choice", "\"ones\"", "\"ones\" is not known; it has to be one of one|other|three"},
    {"choice", "\"one|other\"", "\"one|other\" is not known; it has to be one of one|other|three"},
    {"choice", "\"\"", "\"\" is not known; it has to be one of one|other|three"},
    {"choice", "true", "a boolean; a string is needed"},
    {"flexible", "true", NULL},
    {"flexible", "\"some\"", NULL},
    {"flexible", "1", "an integer; a string is needed"},
    {"group", "{\"a\": 1}", NULL},
    {"group", "\"x\"", "a string; a group of strings is needed"},
    {"integer", "-2", NULL},
    {"integer", "5", NULL},
    {"integer", "-3", "-3 is out of range; it has to be within -2 and 5"},
    {"integer", "6", "6 is out of range; it has to be within -2 and 5"},
    {"integer", "5.0", "a number; an integer is needed"},
    {"integer", "\"5\"", "a string; an integer is needed"},
    {"free_integer", "-9223372036854775807", NULL},
    {"free_integer", "9223372036854775807", NULL},
    {"count", "\"all\"", NULL},
    {"count", "1", NULL},
    {"count", "9", NULL},
    {"count", "0", "0 is out of range; it has to be within 1 and 9"},
    {"count", "\"some\"", "a string; an integer or \"all\" is needed"},
    {"duration", "5", NULL},
    {"duration", "\"2h\"", NULL},
    {"duration", "\"4s\"", "4 is out of range; it has to be within 5 and 7200"},
    {"duration", "\"2h1s\"", "7201 is out of range; it has to be within 5 and 7200"},
    {"duration", "\"x\"", "\"x\" is not a number of seconds or a time such as"},
    {"duration", "5.5", "a number; a number of seconds or a time such as"},
    {"range", "1", NULL},
    {"range", "\"2..8\"", NULL},
    {"range", "\"2..9\"", "9 is out of range; it has to be within 1 and 8"},
    {"range", "\"0..8\"", "0 is out of range; it has to be within 1 and 8"},
    {"range", "\"3..2\"", "\"3..2\" is not an integer or a range such as"},
    {"range", "true", "a boolean; an integer or a range such as"},
    {"number", "0.5", NULL},
    {"number", "2.5", NULL},
    {"number", "1", NULL},
    {"number", "0.49", "0.49 is out of range; it has to be within 0.5 and 2.5"},
    {"number", "3", "3 is out of range; it has to be within 0.5 and 2.5"},
    {"number", "0", "0 is out of range; it has to be within 0.5 and 2.5"},
    {"number", "\"1\"", "a string; a number is needed"},
    {"flag", "true", NULL},
    {"flag", "false", NULL},
    {"flag", "1", "an integer; true or false is needed"},
    {"list", "[\"a\",\"b\"]", NULL},
    {"list", "\"a\"", NULL},
    {"list", "[]", NULL},
    {"list", "[1]", "not all strings; a string or a list of strings is needed"},
    {"list", "[\"a\\u0000\"]", "a NUL byte in a string"},
    {"list", "5", "an integer; a string or a list of strings is needed"},
    {"texts", "[\" a\",\"b \"]", NULL},
    {"texts", "5", "an integer; a string or a list of strings is needed"},
    {"string", "null", NULL},
};

START_TEST(a_value_fits_its_key_or_says_why_not)
{
	_cleanup_free_ char *text = str_printf("{\"%s\": %s}", values[_i].key, values[_i].value);
	_cleanup_json_ json_t *json = json_loads(text, JSON_ALLOW_NUL, NULL), *back = NULL;
	bool seen[ARRAY_SIZE(table)] = {false};
	struct target t = {.integer = 77};
	struct error err = ERROR_INIT;
	int r;

	ck_assert_ptr_nonnull(json);
	r = keys_from_json(&keys, &t, json, "f", seen, &err);
	ck_assert_int_eq(keys_seen(&keys, seen, values[_i].key),
	                 !values[_i].words && !str_eq(values[_i].value, "null"));
	if (values[_i].words) {
		_cleanup_free_ char *want = str_printf("f: %s: %s", values[_i].key, values[_i].words);

		ck_assert_int_eq(r, strstr(want, "out of range") ? -ERANGE : -EINVAL);
		ck_assert_msg(str_starts(err.message, want), "\"%s\" is not \"%s\"", err.message, want);
		ck_assert_int_eq(t.integer, 77); /* what is wrong changes nothing */
		keys_free(&keys, &t);
		return;
	}
	ck_ok(r, &err);
	ck_ok(keys_to_json(&keys, &t, &back, &err), &err);
	if (seen[11]) /* a list of one may be written as that */
		ck_assert_uint_eq(json_array_size(json_object_get(back, "list")),
		                  strchr(values[_i].value, 'b')   ? 2
		                  : strchr(values[_i].value, 'a') ? 1
		                                                  : 0);
	else if (!str_eq(values[_i].value, "null") && !str_starts(values[_i].value, "\"2h") &&
	         !str_eq(values[_i].key, "flexible") && !str_eq(values[_i].key, "number"))
		ck_assert(
		    json_equal(json_object_get(back, values[_i].key), json_object_get(json, values[_i].key)));
	keys_free(&keys, &t);
}
END_TEST

/* The same on a command line, and what it becomes. */
static const struct {
	const char *assignment, *json, *words;
} overrides[] = {
    {"string=a=b", "{\"string\":\"a=b\"}", NULL},
    {"string=", "{\"string\":\"\"}", NULL},
    {"flexible=true", "{\"flexible\":\"true\"}", NULL},
    {"integer=-2", "{\"integer\":-2}", NULL},
    {"integer=x", NULL, "--set: integer: \"x\" is not an integer"},
    {"integer=6", NULL, "--set: integer: 6 is out of range"},
    {"count=all", "{\"count\":\"all\"}", NULL},
    {"count=4", "{\"count\":4}", NULL},
    {"count=some", NULL, "--set: count: \"some\" is not an integer or \"all\""},
    {"duration=1h", "{\"duration\":3600}", NULL},
    {"range=2..4", "{\"range\":\"2..4\"}", NULL},
    {"range=4", "{\"range\":4}", NULL},
    {"number=1.5", "{\"number\":1.5}", NULL},
    {"number=x", NULL, "--set: number: \"x\" is not a number"},
    {"flag=true", "{\"flag\":true}", NULL},
    {"flag=false", "{\"flag\":false}", NULL},
    {"flag=yes", NULL, "--set: flag: \"yes\" is not true or false"},
    {"list=a,b,,c", "{\"list\":[\"a\",\"b\",\"c\"]}", NULL},
    {"list= a, b c ,d", "{\"list\":[\"a\",\"b c\",\"d\"]}", NULL},
    {"list=", "{\"list\":[]}", NULL},
    {"texts=\n\n,User: , x", "{\"texts\":[\"\\n\\n\",\"User: \",\" x\"]}", NULL},
    {"group={\"a\":\"b\"}", "{\"group\":{\"a\":\"b\"}}", NULL},
    {"group=[]", NULL, "--set: group: \"[]\" is not a JSON object"},
    {"group={", NULL, "--set: group: \"{\" is not a JSON object"},
    {"section.inner=7", "{\"section\":{\"inner\":7}}", NULL},
    {"section=7", NULL, "--set: section: a group of keys; name one of them: section.KEY=VALUE"},
    {"inner=7", NULL, "--set: inner: unknown key; did you mean section.inner?"},
    {"section.string=7", NULL, "--set: section.string: unknown key; did you mean string?"},
    {"=7", NULL, "--set =7: not of the form section.key=value"},
    {"integer", NULL, "--set integer: not of the form section.key=value"},
};

START_TEST(an_override_fits_its_key_or_says_why_not)
{
	struct target t = {.integer = 0};
	struct error err = ERROR_INIT;
	bool seen[ARRAY_SIZE(table)] = {false};
	int r = keys_override(&keys, &t, overrides[_i].assignment, seen, &err);
	_cleanup_json_ json_t *want = NULL, *got = NULL;
	const char *name;
	json_t *value;

	if (overrides[_i].words) {
		ck_assert_int_lt(r, 0);
		ck_assert_msg(str_starts(err.message, overrides[_i].words), "%s", err.message);
		keys_free(&keys, &t);
		return;
	}
	ck_ok(r, &err);
	want = json_loads(overrides[_i].json, 0, NULL);
	ck_ok(keys_to_json(&keys, &t, &got, &err), &err);
	json_object_foreach(want, name, value)
	{
		ck_assert_msg(json_is_object(value) && !str_eq(name, "group")
		                  ? json_equal(json_object_get(json_object_get(got, name), "inner"),
		                               json_object_get(value, "inner"))
		                  : json_equal(json_object_get(got, name), value),
		              "%s: %s", name, json_to_string(got));
	}
	keys_free(&keys, &t);
}
END_TEST

/* A name that is longer than any key. */
START_TEST(a_long_name_is_no_key)
{
	char text[600];
	struct target t = {.integer = 0};
	struct error err = ERROR_INIT;

	memset(text, 'x', sizeof(text));
	strcpy(text + 500, "=1");
	ck_assert_int_eq(keys_override(&keys, &t, text, NULL, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.message, "not of the form section.key=value"));
}
END_TEST

START_TEST(defaults_are_those_of_the_table)
{
	struct target t = {.integer = 0};
	struct error err = ERROR_INIT;
	bool seen[ARRAY_SIZE(table)] = {false};

	ck_ok(keys_set_defaults(&keys, &t, &err), &err);
	ck_assert_int_eq(t.integer, 3);
	ck_assert_ptr_null(t.string);
	ck_assert(!keys_seen(&keys, seen, "nothing"));
	keys_free(&keys, &t);
}
END_TEST

static const struct {
	const char *json, *words;
} objects[] = {
    {"[]", "f: a JSON object is needed"},
    {"{\"section\": 5}", "f: section: a JSON object is needed"},
    {"{\"section\": {\"iner\": 5}}", "f: section.iner: unknown key; did you mean section.inner?"},
    {"{\"strng\": 5}", "f: strng: unknown key; did you mean string?"},
};

START_TEST(objects_that_do_not_fit_are_named)
{
	_cleanup_json_ json_t *json = json_loads(objects[_i].json, 0, NULL);
	struct target t = {.integer = 0};
	struct error err = ERROR_INIT;

	ck_assert_int_eq(keys_from_json(&keys, &t, json, "f", NULL, &err), -EINVAL);
	ck_assert_str_eq(err.message, objects[_i].words);
}
END_TEST

/* What is unknown, however deep, is counted; the first is named. */
START_TEST(unknown_members_are_dropped)
{
	_cleanup_json_ json_t *json = json_loads("{\"string\":\"x\",\"section\":{\"inner\":1,\"new\":2},"
	                                         "\"later\":{\"a\":1},\"another\":{\"other\":3}}",
	                                         0, NULL);
	_cleanup_free_ char *left = NULL;
	char buf[64] = "";

	ck_assert_uint_eq(keys_drop_unknown(&keys, json, buf, sizeof(buf)), 2);
	ck_assert_str_eq(buf, "section.new");
	left = json_to_string(json);
	ck_assert_str_eq(left, "{\"string\":\"x\",\"section\":{\"inner\":1},\"another\":{\"other\":3}}");
	ck_assert_uint_eq(keys_drop_unknown(&keys, json, NULL, 0), 0);
}
END_TEST

/* Names that are alike, by which the nearest is found: the first of those that are equally near. */
#define NEAR(SECTION, NAME)                                                                                  \
	{                                                                                                    \
		.section = SECTION, .name = NAME                                                             \
	}
static const struct key alike[] = {
    NEAR("optimizer_b", "learning_rate"), NEAR("optimizer_a", "weight_one"),
    NEAR("optimizer_a", "weight_onex"),   NEAR("optimizer_abc", "final_step"),
    NEAR("optimizer_abc", "first_step"),
};

static const struct {
	const char *dotted, *nearest;
} guesses[] = {
    {"optimizer_a.weight_ome", "optimizer_a.weight_one"},
    {"optimizer_a.weight_onexx", "optimizer_a.weight_onex"},
    {"optimizer_z.weight_one", "optimizer_a.weight_one"}, /* the right name in the wrong section */
    {"optimizer_b.lr", "optimizer_b.learning_rate"},      /* initials */
    {"lr", "optimizer_b.learning_rate"},                  /* in no section */
    {"optimizer_a.lr", NULL},                             /* in another one */
    {"optimizer_abc.fs", "optimizer_abc.final_step"},     /* the first of two */
    {"optimizer_aa", "optimizer_a"},                      /* a section, the first of those as near */
    {"optimizer_abd", "optimizer_abc"},                   /* the nearest of them */
    {"optimizer", "optimizer_b"},
    {"nothing_like_it", NULL},
    {"optimizer_a.x", NULL},
};

START_TEST(the_nearest_key_is_suggested)
{
	const struct keys near = {alike, ARRAY_SIZE(alike), NULL};
	char buf[256];
	const char *got = keys_nearest(&near, guesses[_i].dotted, buf, sizeof(buf));

	ck_assert_msg(str_eq(got, guesses[_i].nearest), "%s: %s", guesses[_i].dotted, got ? got : "none");
}
END_TEST

static int read_values(void *context, struct error *err)
{
	struct target t = {.integer = 0};
	json_t *back = NULL;
	int r = keys_from_json(&keys, &t, context, "f", NULL, err);

	if (r == 0)
		r = keys_override(&keys, &t, "list=a,b", NULL, err);
	if (r == 0)
		r = keys_override(&keys, &t, "string=again", NULL, err);
	if (r == 0)
		r = keys_to_json(&keys, &t, &back, err);
	keys_free(&keys, &t);
	json_decref(back);
	return r;
}

START_TEST(keys_are_read_without_memory)
{
	_cleanup_json_ json_t *json =
	    json_loads("{\"string\":\"x\",\"choice\":\"one\",\"group\":{\"a\":\"b\"},\"list\":[\"a\",\"b\"],"
	               "\"section\":{\"inner\":1}}",
	               0, NULL);

	memory_runs_out(read_values, json);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("keys");
	TCase *t = tcase_create("keys");

	tcase_add_loop_test(t, a_value_fits_its_key_or_says_why_not, 0, ARRAY_SIZE(values));
	tcase_add_loop_test(t, an_override_fits_its_key_or_says_why_not, 0, ARRAY_SIZE(overrides));
	tcase_add_test(t, a_long_name_is_no_key);
	tcase_add_test(t, defaults_are_those_of_the_table);
	tcase_add_loop_test(t, objects_that_do_not_fit_are_named, 0, ARRAY_SIZE(objects));
	tcase_add_test(t, unknown_members_are_dropped);
	tcase_add_loop_test(t, the_nearest_key_is_suggested, 0, ARRAY_SIZE(guesses));
	tcase_add_test(t, keys_are_read_without_memory);
	suite_add_tcase(s, t);
	return unit_run(s);
}
