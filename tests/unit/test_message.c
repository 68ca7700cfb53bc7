/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a table that has every type of field, each with every presence that it may have, whether or not
 * a message of wire/ has such a field today; and the JSON of etcd's gateway. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "unit.h"
#include "wire/etcd.h"
#include "wire/message.h"

struct inner {
	int64_t n;
	char *text;
};

struct pair {
	int64_t first, second;
};

enum color { RED, GREEN, BLUE };

static const char *const colors[] = {"red", "green", "blue", NULL};

#define F(...) MESSAGE_FIELD(inner, __VA_ARGS__)
static const struct field inner_fields[] = {F(n, FIELD_INT, FIELD_REQUIRED),
                                            F(text, FIELD_STRING, FIELD_OPTIONAL)};
#undef F
static const struct message inner_message = {"inner", sizeof(struct inner), inner_fields,
                                             ARRAY_SIZE(inner_fields), MESSAGE_STRICT};

#define F(...) MESSAGE_FIELD(pair, __VA_ARGS__)
static const struct field pair_fields[] = {F(first, FIELD_INT, FIELD_REQUIRED),
                                           F(second, FIELD_INT, FIELD_REQUIRED)};
#undef F
static const struct message pair_message = {"pair", sizeof(struct pair), pair_fields, ARRAY_SIZE(pair_fields),
                                            MESSAGE_STRICT};

/* A codec of a number in an object: {"v": 7}. */
static json_t *encode_number(const void *member)
{
	return json_pack("{s:I}", "v", (json_int_t) * (const int64_t *)member);
}

static int decode_number(const json_t *json, const char *where, bool lenient, void **member,
                         struct error *err)
{
	const json_t *v = json_object_get(json, "v");
	int64_t *out;

	if (!json_is_integer(v))
		return error_set(err, -EINVAL, "%s: v is missing", where);
	if (!lenient && json_object_size(json) > 1)
		return error_set(err, -EINVAL, "%s: another field", where);
	out = malloc(sizeof(*out));
	*out = json_integer_value(v);
	*member = out;
	return 0;
}

static const struct field_codec number_codec = {encode_number, decode_number, free};

struct every {
	char *string;
	int64_t integer, count, *ints;
	size_t int_count;
	double number, measured;
	bool flag;
	enum color color;
	char **strings;
	struct inner *one, *list;
	size_t list_count;
	struct pair *members;
	int64_t *coded;
	json_t *object;
	int64_t varying;
};

#define F(...) MESSAGE_FIELD(every, __VA_ARGS__)
/* All fields but `members`, which stand for themselves. */
#define FIELDS(PRESENCE)                                                                                     \
	F(string, FIELD_STRING, PRESENCE, .max = 5), F(integer, FIELD_INT, PRESENCE, .absent = -1),          \
	    F(count, FIELD_COUNT, PRESENCE, .absent = 2), F(number, FIELD_NUMBER, PRESENCE, .absent = 3),    \
	    F(measured, FIELD_NUMBER, PRESENCE, .absent = FIELD_NAN), F(flag, FIELD_BOOL, PRESENCE),         \
	    F(color, FIELD_ENUM, PRESENCE, .names = colors, .absent = GREEN),                                \
	    F(ints, FIELD_INTS, PRESENCE, .count_offset = offsetof(struct every, int_count)),                \
	    F(strings, FIELD_STRINGS, PRESENCE), F(one, FIELD_STRUCT, PRESENCE, .message = &inner_message),  \
	    F(list, FIELD_STRUCTS, PRESENCE, .count_offset = offsetof(struct every, list_count), .max = 2,   \
	      .message = &inner_message),                                                                    \
	    F(coded, FIELD_CODED, PRESENCE, .codec = &number_codec), F(object, FIELD_OBJECT, PRESENCE)
static const struct field optional_fields[] = {
    FIELDS(FIELD_OPTIONAL), F(members, FIELD_MEMBERS, FIELD_OPTIONAL, .message = &pair_message),
    F(varying, FIELD_INT, FIELD_OPTIONAL, .varies = true)};
static const struct field null_fields[] = {FIELDS(FIELD_NULL)};
static const struct field required_fields[] = {FIELDS(FIELD_REQUIRED)};
#undef F
static const struct message optional_message = {"every", sizeof(struct every), optional_fields,
                                                ARRAY_SIZE(optional_fields), MESSAGE_STRICT};
static const struct message open_message = {"every", sizeof(struct every), optional_fields,
                                            ARRAY_SIZE(optional_fields), MESSAGE_OPEN};
static const struct message null_message = {"every", sizeof(struct every), null_fields,
                                            ARRAY_SIZE(null_fields), MESSAGE_STRICT};
static const struct message required_message = {"every", sizeof(struct every), required_fields,
                                                ARRAY_SIZE(required_fields), MESSAGE_STRICT};

#define WITHOUT_MEMBERS                                                                                      \
	"\"string\":\"abc\",\"integer\":5,\"count\":6,\"number\":1.5,\"measured\":2.5,\"flag\":true,"        \
	"\"color\":\"blue\",\"ints\":[7,8],\"strings\":[\"x\",null],\"one\":{\"n\":1,\"text\":\"t\"},"       \
	"\"list\":[{\"n\":2},{\"n\":3,\"text\":\"u\"}],\"coded\":{\"v\":9},\"object\":{\"any\":[1]}"
#define ALL "{" WITHOUT_MEMBERS ",\"first\":10,\"second\":11,\"varying\":12}"

static json_t *parse(const char *text)
{
	json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);

	ck_assert_msg(json != NULL, "%s", text);
	return json;
}

static void ck_json(const json_t *json, const char *text)
{
	_cleanup_json_ json_t *want = parse(text);
	_cleanup_free_ char *is = json ? json_dumps(json, JSON_SORT_KEYS) : NULL;

	ck_assert_msg(json && json_equal(json, want), "%s is not %s", is ? is : "nothing", text);
}

START_TEST(every_field_is_encoded_as_it_was_decoded)
{
	_cleanup_json_ json_t *json = parse(ALL), *again = NULL;
	struct error err = ERROR_INIT;
	struct every v;

	ck_ok(message_decode(&optional_message, json, &v, &err), &err);
	ck_assert_str_eq(v.string, "abc");
	ck_assert_int_eq(v.integer, 5);
	ck_assert_int_eq(v.count, 6);
	ck_assert_double_eq(v.number, 1.5);
	ck_assert_double_eq(v.measured, 2.5);
	ck_assert(v.flag);
	ck_assert_int_eq(v.color, BLUE);
	ck_assert_uint_eq(v.int_count, 2);
	ck_assert_int_eq(v.ints[1], 8);
	ck_assert_str_eq(v.strings[0], "x");
	ck_assert_str_eq(v.strings[1], "");
	ck_assert_ptr_null(v.strings[2]);
	ck_assert_int_eq(v.one->n, 1);
	ck_assert_uint_eq(v.list_count, 2);
	ck_assert_str_eq(v.list[1].text, "u");
	ck_assert_ptr_null(v.list[0].text);
	ck_assert_int_eq(v.members->second, 11);
	ck_assert_int_eq(*v.coded, 9);
	ck_assert_ptr_nonnull(json_object_get(v.object, "any"));
	again = message_encode(&optional_message, &v);
	ck_json(again, ALL);
	message_release(&optional_message, &v);
	ck_assert_ptr_null(v.string);
	ck_assert_ptr_null(v.coded);
	ck_assert_int_eq(v.integer, 0);
}
END_TEST

static const struct {
	const struct message *message;
	const char *text; /* of a value without anything */
} absences[] = {
    {&optional_message, "{}"},
    {&null_message, "{\"string\":null,\"integer\":null,\"count\":null,\"number\":null,\"measured\":null,"
                    "\"flag\":null,\"color\":null,\"ints\":null,\"strings\":null,\"one\":null,"
                    "\"list\":null,\"coded\":null,\"object\":null}"},
};

START_TEST(what_is_absent_is_left_out_or_null)
{
	_cleanup_json_ json_t *json = parse(absences[_i].text), *again = NULL;
	struct error err = ERROR_INIT;
	struct every v;

	ck_ok(message_decode(absences[_i].message, json, &v, &err), &err);
	ck_assert_ptr_null(v.string);
	ck_assert_int_eq(v.integer, -1);
	ck_assert_int_eq(v.count, 2);
	ck_assert_double_eq(v.number, 3);
	ck_assert(isnan(v.measured));
	ck_assert(!v.flag);
	ck_assert_int_eq(v.color, GREEN);
	ck_assert_uint_eq(v.int_count, 0);
	ck_assert_ptr_null(v.strings);
	ck_assert_ptr_null(v.one);
	ck_assert_uint_eq(v.list_count, 0);
	ck_assert_ptr_null(v.members);
	ck_assert_ptr_null(v.coded);
	ck_assert_ptr_null(v.object);
	again = message_encode(absences[_i].message, &v);
	ck_json(again, absences[_i].text);
	message_release(absences[_i].message, &v);
}
END_TEST

/* Numbers and words that are the ones of an absent field are sent all the same where the field is required;
 * and what is 0 is not absent where another number is. */
START_TEST(what_is_there_is_sent)
{
	struct every zero = {.integer = 0, .number = 0, .measured = 0, .color = RED, .varying = 0};
	struct every absent = {.string = (char *)"",
	                       .integer = -1,
	                       .count = 2,
	                       .number = 3,
	                       .color = GREEN,
	                       .one = &(struct inner){0},
	                       .coded = &(int64_t){0},
	                       .object = json_object()};
	_cleanup_json_ json_t *json = message_encode(&optional_message, &zero), *required = NULL;

	ck_json(json, "{\"integer\":0,\"count\":0,\"number\":0.0,\"measured\":0.0,\"color\":\"red\"}");
	required = message_encode(&required_message, &absent);
	ck_json(required, "{\"string\":\"\",\"integer\":-1,\"count\":2,\"number\":3.0,\"measured\":0.0,"
	                  "\"flag\":false,\"color\":\"green\",\"ints\":[],\"strings\":[],\"one\":{\"n\":0},"
	                  "\"list\":[],\"coded\":{\"v\":0},\"object\":{}}");
	json_decref(absent.object);
}
END_TEST

static const char *const members[] = {"string", "integer", "count", "number", "measured", "flag",  "color",
                                      "ints",   "strings", "one",   "list",   "coded",    "object"};

/* Each error names the field, and none leaves anything behind. */
START_TEST(a_required_field_is_missed)
{
	_cleanup_json_ json_t *json = parse("{" WITHOUT_MEMBERS "}");
	_cleanup_free_ char *words = str_printf("every: %s: missing; ", members[_i]);
	struct error err = ERROR_INIT;
	struct every v, none = {0};

	ck_ok(message_decode(&required_message, json, &v, &err), &err);
	message_release(&required_message, &v);
	json_object_del(json, members[_i]);
	ck_fails(message_decode(&required_message, json, &v, &err), &err, words);
	ck_assert_mem_eq(&v, &none, sizeof(v));
}
END_TEST

START_TEST(a_word_has_its_index)
{
	ck_assert_int_eq(message_word(colors, "red"), RED);
	ck_assert_int_eq(message_word(colors, "blue"), BLUE);
	ck_assert_int_eq(message_word(colors, "re"), -1);
	ck_assert_int_eq(message_word(colors, ""), -1);
}
END_TEST

static const struct {
	const char *member, *value, *words; /* NULL: it is taken */
} values[] = {
    {"string", "7", "string: a string is needed"},
    {"string", "\"abcde\"", NULL},
    {"string", "\"abcdef\"", "string"},
    {"integer", "1.5", "integer: an integer is needed"},
    {"integer", "\"1\"", "integer: an integer is needed"},
    {"count", "[1,2,3]", NULL},
    {"count", "\"x\"", "count: an integer is needed"},
    {"number", "2", NULL},
    {"number", "\"2\"", "number: a number is needed"},
    {"flag", "1", "flag: true or false is needed"},
    {"flag", "false", NULL},
    {"color", "\"pink\"", "color"},
    {"color", "1", "color"},
    {"ints", "{}", "ints: a list of integers is needed"},
    {"ints", "[1,\"2\"]", "ints"},
    {"ints", "[1,2.5]", "ints"},
    {"strings", "{}", "strings: a list of strings is needed"},
    {"strings", "[\"a\",1]", "strings: a list of strings is needed"},
    {"strings", "[]", NULL},
    {"one", "[]", "one: an object is needed"},
    {"one", "{}", "one.n: missing; an integer is needed"},
    {"one", "{\"n\":1,\"m\":2}", "one.m: unknown field"},
    {"list", "{}", "list: a list of objects is needed"},
    {"list", "[{\"n\":1},{\"n\":1},{\"n\":1}]", "list: 3 elements; at most 2 are possible"},
    {"list", "[{\"n\":1},7]", "list: a list of objects is needed"},
    {"list", "[{\"n\":1},{}]", "list[1].n: missing; an integer is needed"},
    {"list", "[{\"n\":1},{\"n\":1,\"m\":1}]", "list[1].m: unknown field"},
    {"coded", "[]", "coded: an object is needed"},
    {"coded", "{}", "coded: v is missing"},
    {"coded", "{\"v\":1,\"w\":1}", "coded: another field"},
    {"object", "[]", "object: an object is needed"},
    {"first", "\"x\"", "first: an integer is needed"},
    {"first", "null", NULL},
    {"second", "null", "second: missing; an integer is needed"},
    {"other", "1", "every: other: unknown field"},
    {"version", "1", "every: version: unknown field"},
    {"n", "1", "every: n: unknown field"},
};

START_TEST(a_wrong_value_is_named)
{
	_cleanup_json_ json_t *json = parse(ALL);
	struct error err = ERROR_INIT;
	struct every v, none = {0};

	json_object_set_new(json, values[_i].member, parse(values[_i].value));
	if (!values[_i].words) {
		ck_ok(message_decode(&optional_message, json, &v, &err), &err);
		message_release(&optional_message, &v);
		return;
	}
	ck_fails(message_decode(&optional_message, json, &v, &err), &err, values[_i].words);
	ck_assert_int_eq(err.code, -EINVAL);
	ck_assert_int_eq(strncmp(err.message, "every: ", 7), 0);
	ck_assert_mem_eq(&v, &none, sizeof(v));
	/* What is only unknown is left out of a message that is open. */
	err = (struct error)ERROR_INIT;
	if (strstr(values[_i].words, "unknown") || strstr(values[_i].words, "another")) {
		ck_ok(message_decode(&open_message, json, &v, &err), &err);
		message_release(&open_message, &v);
	} else
		ck_fails(message_decode(&open_message, json, &v, &err), &err, values[_i].words);
}
END_TEST

START_TEST(a_count_may_be_a_list_of_an_older_service)
{
	_cleanup_json_ json_t *json = parse("{\"count\":[1,2,3]}");
	struct error err = ERROR_INIT;
	struct every v;

	ck_ok(message_decode(&optional_message, json, &v, &err), &err);
	ck_assert_int_eq(v.count, 3);
	message_release(&optional_message, &v);
}
END_TEST

static uint64_t digest_with(const char *member, const char *value)
{
	_cleanup_json_ json_t *json = parse(ALL);
	struct error err = ERROR_INIT;
	uint64_t digest;
	struct every v;

	if (member)
		json_object_set_new(json, member, parse(value));
	ck_ok(message_decode(&optional_message, json, &v, &err), &err);
	digest = message_digest(&optional_message, &v);
	message_release(&optional_message, &v);
	return digest;
}

/* No two of these values have the same one. */
START_TEST(a_digest_tells_values_apart)
{
	static const struct {
		const char *member, *value;
	} changes[] = {
	    {"string", "\"abd\""},
	    {"string", "\"\""},
	    {"string", "null"},
	    {"integer", "6"},
	    {"integer", "0"},
	    {"count", "7"},
	    {"number", "1.25"},
	    {"measured", "2.25"},
	    {"flag", "false"},
	    {"color", "\"red\""},
	    {"ints", "[7,9]"},
	    {"ints", "[7]"},
	    {"ints", "[8,8]"},
	    {"ints", "[]"},
	    {"strings", "[\"x\"]"},
	    {"strings", "[\"x\",\"y\"]"},
	    {"strings", "[\"xy\"]"},
	    {"strings", "[\"x\",null,null]"},
	    {"one", "null"},
	    {"one", "{\"n\":1}"},
	    {"one", "{\"n\":2}"},
	    {"list", "[{\"n\":2}]"},
	    {"list", "[{\"n\":2},{\"n\":3}]"},
	    {"list", "[]"},
	    {"coded", "null"},
	    {"coded", "{\"v\":8}"},
	    {"object", "null"},
	    {"object", "{}"},
	    {"object", "{\"any\":[2]}"},
	    {"first", "null"},
	    {"first", "11"},
	    {"second", "10"},
	};
	uint64_t digests[ARRAY_SIZE(changes) + 1] = {digest_with(NULL, NULL)};

	ck_assert_uint_eq(digest_with(NULL, NULL), digests[0]);
	ck_assert_uint_eq(digest_with("varying", "99"), digests[0]);
	ck_assert_uint_eq(digest_with("object", "{\"any\":[1]}"), digests[0]);
	for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
		digests[i + 1] = digest_with(changes[i].member, changes[i].value);
		for (size_t k = 0; k <= i; k++)
			ck_assert_msg(digests[i + 1] != digests[k], "%s: %s", changes[i].member,
			              changes[i].value);
	}
}
END_TEST

/* ---- etcd ---- */

START_TEST(requests_to_etcd_are_as_its_gateway_takes_them)
{
	_cleanup_json_ json_t *one = etcd_range_request("abc", NULL, 0),
	                      *some = etcd_range_request("a", "b", 7);
	_cleanup_json_ json_t *txn = etcd_txn_request("abc", 9007199254740993),
	                      *part = etcd_txn_request("b", 1);
	_cleanup_json_ json_t *grant = etcd_lease_request(0, 5), *renewal = etcd_lease_request(-7, 0);

	ck_json(one, "{\"key\":\"YWJj\"}");
	ck_json(some, "{\"key\":\"YQ==\",\"range_end\":\"Yg==\",\"limit\":\"7\"}");
	ck_json(grant, "{\"TTL\":\"5\"}");
	ck_json(renewal, "{\"ID\":\"-7\"}");
	ck_assert_int_eq(etcd_txn_put(txn, "ab", "", 0), 0);
	ck_assert_int_eq(etcd_txn_put(txn, "ab", "a", 8), 0);
	ck_assert_int_eq(etcd_txn_delete(txn, "a", NULL), 0);
	ck_assert_int_eq(etcd_txn_delete(txn, "a", "b"), 0);
	ck_json(txn, "{\"compare\":[{\"target\":\"CREATE\",\"key\":\"YWJj\","
	             "\"create_revision\":\"9007199254740993\"}],\"success\":["
	             "{\"request_put\":{\"key\":\"YWI=\",\"value\":\"\"}},"
	             "{\"request_put\":{\"key\":\"YWI=\",\"value\":\"YQ==\",\"lease\":\"8\"}},"
	             "{\"request_delete_range\":{\"key\":\"YQ==\"}},"
	             "{\"request_delete_range\":{\"key\":\"YQ==\",\"range_end\":\"Yg==\"}}]}");
	ck_assert_int_eq(etcd_txn_take(part, txn, 3), 0);
	ck_assert_int_eq(etcd_txn_take(part, txn, 0), 0);
	ck_assert_int_eq(etcd_txn_take(part, txn, 4), -ENOMEM);
	ck_json(
	    part,
	    "{\"compare\":[{\"target\":\"CREATE\",\"key\":\"Yg==\",\"create_revision\":\"1\"}],\"success\":["
	    "{\"request_delete_range\":{\"key\":\"YQ==\",\"range_end\":\"Yg==\"}},"
	    "{\"request_put\":{\"key\":\"YWI=\",\"value\":\"\"}}]}");
}
END_TEST

static const struct {
	const char *answer;
	bool right, done;
	int64_t revision;
} txns[] = {
    {"{\"header\":{\"revision\":\"7\"},\"succeeded\":true}", true, true, 7},
    {"{\"header\":{\"revision\":7},\"succeeded\":true}", true, true, 7},
    {"{\"header\":{\"revision\":\"7\"}}", true, false, 7},
    {"{\"header\":{}}", true, false, 0},
    {"{\"header\":{\"revision\":\"x\"}}", false, false, 0},
    {"{\"header\":{\"revision\":[]}}", false, false, 0},
    {"{\"header\":7}", false, false, 0},
    {"{\"succeeded\":true}", false, true, 0},
    {"[]", false, false, 0},
};

START_TEST(answers_to_transactions)
{
	_cleanup_json_ json_t *json = parse(txns[_i].answer);
	struct error err = ERROR_INIT;
	int64_t revision = -1;
	bool done = !txns[_i].done;

	if (!txns[_i].right) {
		ck_fails(etcd_txn_read(json, &done, &revision, &err), &err, "etcd: ");
		return;
	}
	ck_ok(etcd_txn_read(json, &done, &revision, &err), &err);
	ck_assert_int_eq(done, txns[_i].done);
	ck_assert_int_eq(revision, txns[_i].revision);
}
END_TEST

static const struct {
	const char *answer;
	bool right;
	int64_t id, seconds;
} leases[] = {
    {"{\"header\":{},\"ID\":\"7\",\"TTL\":\"5\"}", true, 7, 5},
    {"{\"result\":{\"header\":{},\"ID\":\"7\",\"TTL\":\"5\"}}", true, 7, 5},
    {"{\"result\":{\"header\":{},\"ID\":\"7\"}}", true, 7, 0},
    {"{\"header\":{},\"ID\":7,\"TTL\":-1}", true, 7, -1},
    {"{\"ID\":\"7\",\"TTL\":\"5\"}", false, 0, 0},
    {"{\"header\":{},\"result\":{\"ID\":\"7\"}}", false, 0, 0},
    {"{\"header\":{},\"ID\":\"x\",\"TTL\":\"5\"}", false, 0, 0},
    {"{\"header\":{},\"ID\":\"7\",\"TTL\":\"x\"}", false, 0, 0},
    {"[]", false, 0, 0},
};

START_TEST(answers_about_leases)
{
	_cleanup_json_ json_t *json = parse(leases[_i].answer);
	int64_t id = -1, seconds = -1;
	struct error err = ERROR_INIT;

	if (!leases[_i].right) {
		ck_fails(etcd_lease_read(json, &id, &seconds, &err), &err, "etcd: ");
		ck_assert_int_eq(err.code, -EINVAL);
		return;
	}
	ck_ok(etcd_lease_read(json, &id, &seconds, &err), &err);
	ck_assert_int_eq(id, leases[_i].id);
	ck_assert_int_eq(seconds, leases[_i].seconds);
}
END_TEST

/* Texts come as other versions of etcd, and proxies, write them. */
START_TEST(errors_of_etcd)
{
	static const struct {
		const char *answer, *error;
	} errors[] = {
	    {"{\"error\":\"no leader\",\"message\":\"no leader!\"}", "no leader"},
	    {"{\"error\":7,\"message\":\"no leader\"}", "no leader"},
	    {"{\"error\":7}", "an error"},
	    {"{\"error\":{\"message\":\"no leader\"}}", "no leader"},
	    {"{\"error\":{}}", "an error"},
	    {"{\"message\":\"x\"}", NULL},
	    {"{}", NULL},
	};

	for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
		_cleanup_json_ json_t *json = parse(errors[i].answer);

		if (errors[i].error)
			ck_assert_str_eq(etcd_error(json), errors[i].error);
		else
			ck_assert_ptr_null(etcd_error(json));
	}
	ck_assert_ptr_null(etcd_error(NULL));
}
END_TEST

/* Bytes of every length, and texts that are none: key and value of one pair. */
static const struct {
	const char *key, *value;
	const char *text; /* the value; NULL: refused */
} pairs[] = {
    {"YQ==", "", ""},
    {"YQ==", "YQ==", "a"},
    {"YQ==", "YWI=", "ab"},
    {"YQ==", "YWJj", "abc"},
    {"YQ==", "/+/+", "\xff\xef\xfe"},
    {"YQ==", "YWJjZA==", "abcd"},
    {"YQ==", "YQ=", NULL},
    {"YQ==", "YQ", NULL},
    {"YQ==", "Y", NULL},
    {"YQ==", "YQ==YQ==", NULL},
    {"YQ==", "Y-==", NULL},
    {"YQ==", "AA==", NULL},
    {"", "YQ==", NULL},
    {"YW", "YQ==", NULL},
    {"YQ==", "====", NULL},
    {"YQ==", "Y===", NULL},
    {"YQ==", "YWJjYQ=a", NULL},
};

START_TEST(pairs_are_base64_of_texts)
{
	_cleanup_json_ json_t *json =
	    json_pack("{s:[{s:s,s:s}]}", "kvs", "key", pairs[_i].key, "value", pairs[_i].value);
	struct etcd_pairs found;
	struct error err = ERROR_INIT;

	if (!pairs[_i].text) {
		ck_fails(etcd_range_read(json, &found, &err), &err, "no base64 of a text");
		ck_assert_uint_eq(found.count, 0);
		return;
	}
	ck_ok(etcd_range_read(json, &found, &err), &err);
	ck_assert_uint_eq(found.count, 1);
	ck_assert(!found.more);
	ck_assert_str_eq(found.list[0].key, "a");
	ck_assert_str_eq(found.list[0].value, pairs[_i].text);
	ck_assert_int_eq(found.list[0].create_revision, 0);
	etcd_pairs_clear(&found);
	ck_assert_uint_eq(found.count, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("message");
	TCase *tables = tcase_create("tables"), *etcd = tcase_create("etcd");

	tcase_add_test(tables, every_field_is_encoded_as_it_was_decoded);
	tcase_add_loop_test(tables, what_is_absent_is_left_out_or_null, 0, ARRAY_SIZE(absences));
	tcase_add_test(tables, what_is_there_is_sent);
	tcase_add_loop_test(tables, a_required_field_is_missed, 0, ARRAY_SIZE(members));
	tcase_add_loop_test(tables, a_wrong_value_is_named, 0, ARRAY_SIZE(values));
	tcase_add_test(tables, a_word_has_its_index);
	tcase_add_test(tables, a_count_may_be_a_list_of_an_older_service);
	tcase_add_test(tables, a_digest_tells_values_apart);
	suite_add_tcase(s, tables);
	tcase_add_test(etcd, requests_to_etcd_are_as_its_gateway_takes_them);
	tcase_add_loop_test(etcd, answers_to_transactions, 0, ARRAY_SIZE(txns));
	tcase_add_loop_test(etcd, answers_about_leases, 0, ARRAY_SIZE(leases));
	tcase_add_test(etcd, errors_of_etcd);
	tcase_add_loop_test(etcd, pairs_are_base64_of_texts, 0, ARRAY_SIZE(pairs));
	suite_add_tcase(s, etcd);
	return unit_run(s);
}
