/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the export of a model to another number format, and what becomes of the output directory. */
#include "unit.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/str.h"
#include "engine/checkpoint/export.h"
#include "engine/checkpoint/output.h"
#include "engine/checkpoint/safetensors.h"

enum { COUNT = 5003 }; /* more than one piece, and no multiple of it */

static char *dir, *model;

/* Quarters, which all formats hold. */
static float value(int64_t i)
{
	return (float)(i % 61) / 4 - 5;
}

static int fill(void *context, size_t index, size_t offset, size_t len, void *buf, struct error *err)
{
	float *out = buf;

	(void)context;
	(void)index;
	(void)err;
	for (size_t i = 0; i < len / 4; i++)
		out[i] = value((int64_t)(offset / 4 + i));
	return 0;
}

static int fill_large(void *context, size_t index, size_t offset, size_t len, void *buf, struct error *err)
{
	fill(context, index, offset, len, buf, err);
	((float *)buf)[2] = 1e6f;
	return 0;
}

static void write_model(int (*filler)(void *, size_t, size_t, size_t, void *, struct error *))
{
	static const char config[] = "{\"model_type\":\"llama\",\"torch_dtype\":\"float32\"}";
	const struct tensor_source sources[] = {
	    {.name = "model.w", .type = TENSOR_F32, .dims = 2, .shape = {1, COUNT}, .fill = filler},
	    {.name = "model.b", .type = TENSOR_F32, .dims = 1, .shape = {3}, .fill = filler},
	};
	_cleanup_free_ char *path = str_path_join(model, "config.json");
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(model, 0755, &err), &err);
	ck_ok(file_write_atomic(path, config, strlen(config), 0644, &err), &err);
	ck_ok(safetensors_write(model, "model", sources, ARRAY_SIZE(sources), 0, &err), &err);
}

static void setup(void)
{
	dir = unit_tmpdir();
	model = str_path_join(dir, "model");
	write_model(fill);
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(model);
	free(dir);
}

START_TEST(each_number_is_the_same_in_each_format)
{
	static const struct {
		bool convert;
		enum dtype type;
		enum tensor_type want;
	} cases[] = {{false, DTYPE_F32, TENSOR_F32},
	             {true, DTYPE_F32, TENSOR_F32},
	             {true, DTYPE_BF16, TENSOR_BF16},
	             {true, DTYPE_F16, TENSOR_F16}};
	_cleanup_free_ char *out = str_path_join(dir, "out");
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	struct export_options o = {
	    .model = model, .output = out, .convert = cases[_i].convert, .type = cases[_i].type};
	struct export_result result;
	const struct tensor *t;
	struct error err = ERROR_INIT;
	static float values[COUNT];

	ck_ok(export_run(&o, &result, &err), &err);
	ck_assert_uint_eq(result.tensors, 2);
	ck_assert_uint_eq(result.merged, 0);
	ck_assert(!result.untied);
	ck_ok(safetensors_open(out, &st, &err), &err);
	t = safetensors_find(st, "model.w");
	ck_assert_int_eq(t->type, cases[_i].want);
	ck_assert_uint_eq(result.bytes, (COUNT + 3) * tensor_type_size(t->type));
	ck_ok(tensor_to_f32(t, 0, COUNT, values, &err), &err);
	for (int64_t i = 0; i < COUNT; i++)
		ck_assert_msg(values[i] == value(i), "element %lld is %g", (long long)i, values[i]);
}
END_TEST

START_TEST(what_fp16_cannot_hold_is_named)
{
	_cleanup_free_ char *out = str_path_join(dir, "out");
	struct export_options o = {.model = model, .output = out, .convert = true, .type = DTYPE_F16};
	struct export_result result;
	struct error err = ERROR_INIT;

	write_model(fill_large);
	ck_fails(export_run(&o, &result, &err), &err, "element 2 is 1e+06, which fp16 cannot hold");
	ck_assert(!file_exists(out));
}
END_TEST

/* Paths below the directory of the test; text: a file there, before. */
static const struct {
	const char *output, *input, *file, *refused; /* refused NULL: it is made */
	bool replace;
} places[] = {
    {"new", "model", NULL, NULL, false},
    {"new/", "model", NULL, NULL, false},
    {"a/b/new", "model", NULL, NULL, false},
    {"empty", "model", "empty/", NULL, false},
    {"old", "model", "old/config.json", "exists already; choose another directory, or give --overwrite",
     false},
    {"old", "model", "old/config.json", NULL, true},
    {"old", "model", "old/adapter_config.json", NULL, true},
    {"old", "model", "old/notes.txt", "it is not the directory of a model", true},
    {"file", "model", "file", "it is not the directory of a model", true},
    {"model", "model", NULL, "would replace", true},
    {"model", "model/adapter", "model/adapter/x", "would replace", true},
    {"mod", "model", "mod/config.json", NULL, true},
    {"model/out", "model", NULL, NULL, true},
    {".", "model", NULL, "the name of a new directory is needed", false},
    {"x/..", "model", NULL, "the name of a new directory is needed", false},
};

START_TEST(only_a_model_is_replaced_and_never_an_input)
{
	_cleanup_free_ char *out = str_path_join(dir, places[_i].output),
	                    *input = str_path_join(dir, places[_i].input),
	                    *file = places[_i].file ? str_path_join(dir, places[_i].file) : NULL;
	_cleanup_(output_freep) struct output *o = NULL;
	const char *const inputs[] = {NULL, input};
	struct error err = ERROR_INIT;
	int r;

	if (file) {
		char *slash = strrchr(file, '/');

		*slash = '\0';
		ck_ok(file_mkdirs(file, 0755, &err), &err);
		*slash = '/';
		if (slash[1])
			ck_ok(file_write_atomic(file, "x", 1, 0644, &err), &err);
	}
	r = output_create(out, places[_i].replace, inputs, 2, &o, &err);
	if (places[_i].refused) {
		ck_assert_int_lt(r, 0);
		ck_assert_msg(strstr(err.message, places[_i].refused) != NULL, "%s", err.message);
		ck_assert(!file || file_exists(file));
		return;
	}
	ck_ok(r, &err);
	ck_assert(!file || file_exists(file));
	{
		_cleanup_free_ char *inside = str_path_join(output_directory(o), "new.txt"),
		                    *published = str_path_join(out, "new.txt");

		ck_ok(file_write_atomic(inside, "y", 1, 0644, &err), &err);
		ck_ok(output_publish(o, &err), &err);
		ck_assert(file_exists(published));
		ck_assert(!file_exists(output_directory(o)));
		ck_assert(!file || str_ends(file, "/") || !file_exists(file));
	}
}
END_TEST

START_TEST(what_is_not_published_leaves_nothing)
{
	_cleanup_free_ char *out = str_path_join(dir, "out"), *partial = NULL;
	struct output *o, *other = NULL;
	struct error err = ERROR_INIT;

	ck_ok(output_create(out, false, NULL, 0, &o, &err), &err);
	partial = strdup(output_directory(o));
	ck_assert(file_exists(partial));
	ck_assert_int_eq(output_create(out, false, NULL, 0, &other, &err), -EBUSY);
	output_free(o);
	ck_assert(!file_exists(partial));
	ck_assert(!file_exists(out));
	/* Files of a process that was killed. */
	ck_ok(file_mkdirs(partial, 0755, &err), &err);
	{
		_cleanup_free_ char *left = str_path_join(partial, "left");

		ck_ok(file_write_atomic(left, "x", 1, 0644, &err), &err);
		ck_ok(output_create(out, false, NULL, 0, &o, &err), &err);
		ck_assert(!file_exists(left));
		output_free(o);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("export");
	TCase *tc = tcase_create("export");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, each_number_is_the_same_in_each_format, 0, 4);
	tcase_add_test(tc, what_fp16_cannot_hold_is_named);
	tcase_add_loop_test(tc, only_a_model_is_replaced_and_never_an_input, 0, (int)ARRAY_SIZE(places));
	tcase_add_test(tc, what_is_not_published_leaves_nothing);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
