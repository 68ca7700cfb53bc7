/* SPDX-License-Identifier: Apache-2.0 */
/* The file with the algorithms of matrix products: what is written reads back, and what is not is refused. */
#include <errno.h>
#include <inttypes.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/algorithms.h"
#include "unit.h"

static struct device_gemm_choice made_up(int64_t m, unsigned char byte)
{
	struct device_gemm_choice c = {.shape = {.m = m,
	                                         .n = 8,
	                                         .k = 4,
	                                         .lda = 4,
	                                         .ldb = 8,
	                                         .ldc = 8,
	                                         .ab_type = DTYPE_BF16,
	                                         .c_type = DTYPE_F32,
	                                         .adds = 1,
	                                         .align_a = 2,
	                                         .align_b = 16,
	                                         .align_c = 4,
	                                         .align_bias = 16},
	                               .separate = byte & 1};

	memset(c.algorithm, byte, sizeof(c.algorithm));
	return c;
}

static const struct algorithms_attention portable = {
    .shape =
        {.tokens = 14, .rows = 7, .heads = 4, .kv_heads = 2, .head_dim = 64, .window = 5, .type = DTYPE_BF16},
    .portable_ns = 2,
    .hopper_ns = 3,
    .chosen = 1};

/* The backward pass of the same shape, not measured, with Hopper's kernel or not. */
static struct algorithms_attention backward(int32_t hopper)
{
	struct algorithms_attention a = portable;

	a.shape.pass = DEVICE_ATTENTION_BACKWARD;
	a.portable_ns = a.hopper_ns = 0;
	a.hopper = hopper;
	return a;
}

static char *two_kinds(const struct algorithms_attention *forward,
                       const struct algorithms_attention *backward)
{
	_cleanup_(algorithms_free) struct algorithms a = {0};
	struct device_gemm_choice choices[] = {made_up(5, 0x01), made_up(6, 0xfe)}, fp8 = made_up(7, 0x03);
	struct error err = ERROR_INIT;
	char *text;

	fp8.shape.fp8 = FP8_E5M2 << 4 | FP8_E4M3;
	ck_ok(algorithms_add(&a, "fp8", &fp8, 1, &err), &err);
	ck_ok(algorithms_add(&a, "one", choices, 2, &err), &err);
	ck_ok(algorithms_add(&a, "two", choices, 1, &err), &err);
	ck_ok(algorithms_set_attention(&a, "one", forward, &err), &err);
	if (backward)
		ck_ok(algorithms_set_attention(&a, "one", backward, &err), &err);
	text = algorithms_text(&a);
	ck_assert_ptr_nonnull(text);
	return text;
}

START_TEST(file_reads_back)
{
	struct device_gemm_choice choices[] = {made_up(5, 0x01), made_up(6, 0xfe)}, other = made_up(5, 0x77);
	_cleanup_free_ char *text = two_kinds(&portable, NULL);
	struct error err = ERROR_INIT;
	struct algorithms_of_kind *kind;
	struct algorithms a;

	ck_ok(algorithms_parse(text, strlen(text), "file", &a, &err), &err);
	kind = algorithms_find(&a, "one");
	ck_assert_ptr_nonnull(kind);
	ck_assert_uint_eq(kind->n, 2);
	ck_assert_mem_eq(kind->choices, choices, sizeof(choices));
	ck_assert_uint_eq(algorithms_find(&a, "two")->n, 1);
	ck_assert_int_eq(algorithms_find(&a, "two")->choices[0].shape.fp8, 0);
	ck_assert_int_eq(algorithms_find(&a, "fp8")->choices[0].shape.fp8, FP8_E5M2 << 4 | FP8_E4M3);
	ck_assert_ptr_null(algorithms_find(&a, "three"));
	ck_ok(algorithms_add(&a, "one", &other, 1, &err), &err);
	kind = algorithms_find(&a, "one");
	ck_assert_uint_eq(kind->n, 2); /* in place of the one for the same shape */
	ck_assert_mem_eq(&kind->choices[0], &other, sizeof(other));
	algorithms_free(&a);
}
END_TEST

/* The same with a hash that fits, so that the contents are checked. */
static char *rehashed(const char *text)
{
	json_t *j = json_loads(text, 0, NULL), *devices;
	char hash[20], *compact, *out;

	ck_assert_ptr_nonnull(j);
	devices = json_object_get(j, "devices");
	compact = json_to_string(devices);
	snprintf(hash, sizeof(hash), "%016" PRIx64, hash_bytes(compact, strlen(compact), 0));
	json_object_set_new(j, "hash", json_string(hash));
	out = json_to_string(j);
	json_decref(j);
	free(compact);
	return out;
}

static char *replaced(const char *text, const char *what, const char *by)
{
	const char *at = strstr(text, what);

	ck_assert_ptr_nonnull(at);
	return str_printf("%.*s%s%s", (int)(at - text), text, by, at + strlen(what));
}

static void refuse(const char *text, size_t len)
{
	struct error err = ERROR_INIT;
	struct algorithms a;

	ck_assert_int_eq(algorithms_parse(text, len, "the/file", &a, &err), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(err.message, "the/file"));
	ck_assert_uint_eq(a.n, 0);
}

START_TEST(damaged_files)
{
	static const char *const changes[][2] = {
	    {"\"m\": 5", "\"m\": 0"},
	    {"\"m\": 5", "\"m\": 1099511627777"},
	    {"\"m\": 5", "\"m\": \"5\""},
	    {"\"m\": 5", "\"l\": 5"},
	    {"\"lda\": 4", "\"lda\": 3"},
	    {"\"ldb\": 8", "\"ldb\": 7"},
	    {"\"ldc\": 8", "\"ldc\": 7"},
	    {"\"ab_type\": 1", "\"ab_type\": 3"},
	    {"\"c_type\": 0", "\"c_type\": 2"},
	    {"\"d_bias\": 0", "\"d_bias\": 1"},
	    {"\"adds\": 1", "\"adds\": 2"},
	    {"\"fp8\": 33", "\"fp8\": 35"},
	    {"\"align_a\": 2", "\"align_a\": 17"},
	    {"\"separate\": true", "\"separate\": 1"},
	    {"0101", "01"},
	    {"0101", "0x01"},
	    {"\"one\"", "\"two\""},
	    {"\"one\"", "\"\""},
	    {"\"version\": 1", "\"version\": 4"},
	    {"\"kernel\": \"portable\"", "\"kernel\": \"other\""},
	    {"\"kernel\": \"portable\"", "\"colonel\": \"portable\""},
	    {"\"hopper_ns\": 3", "\"hopper_ns\": -3"},
	    {"\"rows\": 7", "\"rows\": 0"},
	    {"\"window\": 5", "\"window\": -1"},
	    {"\"type\": 1", "\"type\": 3"},
	};
	_cleanup_free_ char *text = two_kinds(&portable, NULL);
	_cleanup_free_ char *flipped = replaced(text, "\"m\": 5", "\"m\": 7");
	size_t len = strlen(text);

	for (size_t cut = 0; cut < len - 2; cut += 7)
		refuse(text, cut);
	refuse(flipped, strlen(flipped)); /* its hash does not fit */
	for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
		_cleanup_free_ char *changed = replaced(text, changes[i][0], changes[i][1]);
		_cleanup_free_ char *whole = rehashed(changed);

		refuse(whole, strlen(whole));
	}
}
END_TEST

/* Readers before Hopper's kernels take the file for one of theirs, unless its choice is one of these. The
 * index has the choice of the forward pass in bit 0, that of the backward pass in bit 1. */
START_TEST(attention_reads_back)
{
	static const char *const versions[] = {"\"version\": 1", "\"version\": 2", "\"version\": 3",
	                                       "\"version\": 3"};
	struct algorithms_attention put[] = {portable, backward(_i >> 1)};
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	struct algorithms a;

	put[0].hopper = _i & 1;
	text = two_kinds(&put[0], &put[1]);
	ck_assert_ptr_nonnull(strstr(text, versions[_i]));
	ck_ok(algorithms_parse(text, strlen(text), "file", &a, &err), &err);
	for (int pass = 0; pass < DEVICE_ATTENTION_PASSES; pass++) {
		ck_assert_mem_eq(&algorithms_find(&a, "one")->attention[pass], &put[pass], sizeof(*put));
		ck_assert(!algorithms_find(&a, "two")->attention[pass].chosen);
	}
	/* The products are measured again; the kernels are kept. */
	algorithms_forget(&a, "one");
	for (int pass = 0; pass < DEVICE_ATTENTION_PASSES; pass++)
		ck_assert(algorithms_find(&a, "one")->attention[pass].chosen);
	algorithms_free(&a);
}
END_TEST

/* A file from before the backward pass had a second kernel. */
START_TEST(forward_pass_alone_reads_back)
{
	_cleanup_free_ char *text = two_kinds(&portable, NULL);
	struct error err = ERROR_INIT;
	struct algorithms a;

	ck_assert_ptr_null(strstr(text, "attention_backward"));
	ck_ok(algorithms_parse(text, strlen(text), "file", &a, &err), &err);
	ck_assert(algorithms_find(&a, "one")->attention[DEVICE_ATTENTION_FORWARD].chosen);
	ck_assert(!algorithms_find(&a, "one")->attention[DEVICE_ATTENTION_BACKWARD].chosen);
	algorithms_free(&a);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("algorithms");
	TCase *c = tcase_create("algorithms");

	tcase_add_test(c, file_reads_back);
	tcase_add_test(c, damaged_files);
	tcase_add_loop_test(c, attention_reads_back, 0, 4);
	tcase_add_test(c, forward_pass_alone_reads_back);
	suite_add_tcase(suite, c);
	return unit_run(suite);
}
