/* SPDX-License-Identifier: Apache-2.0 */
/* What a saved model has besides its weights: config.json, generation_config.json, the tokenizer's files, and
 * code. */
#include "unit.h"

#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/hf.h"

static char *dir, *source, *out;

static char *put(const char *directory, const char *name, const char *text)
{
	char *path = str_path_join(directory, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
	return path;
}

static void setup(void)
{
	struct error err = ERROR_INIT;

	dir = unit_tmpdir();
	source = str_path_join(dir, "source");
	out = str_path_join(dir, "out");
	ck_ok(file_mkdirs(source, 0755, &err), &err);
	ck_ok(file_mkdirs(out, 0755, &err), &err);
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(out);
	free(source);
	free(dir);
}

/* The file as JSON in one line; "": there is none. */
static char *read_json(const char *name)
{
	_cleanup_free_ char *path = str_path_join(out, name);
	_cleanup_json_ json_t *v = NULL;
	struct error err = ERROR_INIT;

	if (!file_exists(path))
		return strdup("");
	ck_ok(json_read_file(path, &v, &err), &err);
	return json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS);
}

static const struct {
	const char *config;
	bool scores;
	enum dtype type;
	int32_t bos, eos, pad;
	const char *want, *generation; /* generation "": none is made */
} cases[] = {
    {"{\"model_type\":\"llama\"}", false, DTYPE_F32, 1, 2, -1,
     "{\"architectures\":[\"LlamaForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,\"model_type\":"
     "\"llama\",\"torch_dtype\":\"float32\"}",
     "{\"_from_model_config\":true,\"bos_token_id\":1,\"eos_token_id\":2}"},
    /* What the config says stays, but for the type of the weights. */
    {"{\"model_type\":\"qwen3\",\"architectures\":[\"X\"],\"dtype\":\"float32\",\"eos_token_id\":[7,8],\"pad_"
     "token_id\":null,"
     "\"bos_token_id\":0,\"quantization_config\":{}}",
     false, DTYPE_BF16, 1, 2, 0,
     "{\"architectures\":[\"X\"],\"bos_token_id\":0,\"dtype\":\"bfloat16\",\"eos_token_id\":[7,8],\"model_"
     "type\":\"qwen3\",\"pad_token_id\":0}",
     "{\"_from_model_config\":true,\"bos_token_id\":0,\"eos_token_id\":[7,8],\"pad_token_id\":0}"},
    {"{\"model_type\":\"gpt2\",\"torch_dtype\":\"float32\",\"dtype\":\"float32\"}", false, DTYPE_F16, -1, -1,
     -1,
     "{\"architectures\":[\"GPT2LMHeadModel\"],\"dtype\":\"float16\",\"model_type\":\"gpt2\",\"torch_dtype\":"
     "\"float16\"}",
     "{\"_from_model_config\":true}"},
    {"{\"model_type\":\"mamba\",\"architectures\":[]}", false, DTYPE_F32, -1, -1, -1,
     "{\"architectures\":[],\"model_type\":\"mamba\",\"torch_dtype\":\"float32\"}",
     "{\"_from_model_config\":true}"},
    /* As transformers 5 writes what JSON lacks. */
    {"{\"model_type\":\"x\",\"limit\":Infinity}", false, DTYPE_F32, -1, -1, -1,
     "{\"limit\":{\"__float__\":\"Infinity\"},\"model_type\":\"x\",\"torch_dtype\":\"float32\"}",
     "{\"_from_model_config\":true}"},
    /* A model of scores generates nothing. */
    {"{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"num_labels\":3}", true, DTYPE_F32,
     -1, 2, -1,
     "{\"architectures\":[\"LlamaForSequenceClassification\"],\"eos_token_id\":2,\"id2label\":{\"0\":\"LABEL_"
     "0\"},\"label2id\":{\"LABEL_0\":0},"
     "\"model_type\":\"llama\",\"torch_dtype\":\"float32\"}",
     ""},
};

START_TEST(the_config_is_that_of_the_saved_model)
{
	_cleanup_free_ char *config = put(source, "config.json", cases[_i].config), *got = NULL,
	                    *generation = NULL;
	struct hf_save_options o = {.config = config,
	                            .scores = cases[_i].scores,
	                            .type = cases[_i].type,
	                            .bos = cases[_i].bos,
	                            .eos = cases[_i].eos,
	                            .pad = cases[_i].pad};
	struct error err = ERROR_INIT;

	ck_ok(hf_save_files(out, &o, &err), &err);
	got = read_json("config.json");
	generation = read_json("generation_config.json");
	ck_assert_str_eq(got, cases[_i].want);
	ck_assert_str_eq(generation, cases[_i].generation);
}
END_TEST

START_TEST(a_config_that_cannot_be_saved_is_named)
{
	static const char *const wrong[][2] = {
	    {"[]", "config.json: not a JSON object"},
	    {"{\"model_type\":\"granite\"}",
	     "transformers has no sequence classification of the family granite"},
	    {"{}", "transformers has no sequence classification of the family (none)"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		_cleanup_free_ char *config = put(source, "config.json", wrong[i][0]);
		struct hf_save_options o = {
		    .config = config, .scores = true, .bos = -1, .eos = -1, .pad = -1};
		struct error err = ERROR_INIT;

		ck_fails(hf_save_files(out, &o, &err), &err, wrong[i][1]);
	}
}
END_TEST

static bool copied(const char *name)
{
	_cleanup_free_ char *path = str_path_join(out, name);

	return file_exists(path);
}

START_TEST(files_beside_the_weights_are_copied)
{
	_cleanup_free_ char *config = put(source, "config.json",
	                                  "{\"model_type\":\"llama\",\"auto_map\":{\"AutoModel\":\"m.M\"}}"),
	                    *generation = put(source, "generation_config.json", "{\"top_k\":3}"),
	                    *tokenizer = put(source, "tokenizer.json", "{}"),
	                    *settings = put(source, "tokenizer_config.json", "{}"),
	                    *code = put(source, "m.py", "x"), *hidden = put(source, ".h.py", "x"),
	                    *other = put(source, "README.md", "x"), *got = NULL,
	                    *path = str_path_join(out, "tokenizer.json");
	struct hf_save_options o = {
	    .config = config, .source = source, .tokenizer = tokenizer, .bos = -1, .eos = -1, .pad = -1};
	struct error err = ERROR_INIT;
	struct stat st;

	/* The copy of a file that may not be written can be replaced by the next one. */
	ck_assert_int_eq(chmod(tokenizer, 0444), 0);
	ck_ok(hf_save_files(out, &o, &err), &err);
	got = read_json("generation_config.json");
	ck_assert_str_eq(got, "{\"top_k\":3}");
	ck_assert(copied("tokenizer.json") && copied("tokenizer_config.json") && copied("m.py"));
	ck_assert(!copied(".h.py") && !copied("README.md"));
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0644);
	/* Code is only copied where the config names it. */
	ck_ok(file_remove_tree(out, &err), &err);
	ck_ok(file_mkdirs(out, 0755, &err), &err);
	free(put(source, "config.json", "{\"model_type\":\"llama\"}"));
	o.tokenizer = source;
	ck_ok(hf_save_files(out, &o, &err), &err);
	ck_assert(copied("tokenizer.json") && !copied("m.py"));
}
END_TEST

/* Where the model is served by other programs, it ends its answers as it was trained to. */
static const struct {
	const char *config, *source; /* source: the generation_config.json to go on from; NULL: none */
	int32_t stops[3];            /* -1 behind the last */
	const char *want;
} ends[] = {
    {"{\"eos_token_id\":2}",
     "{\"eos_token_id\":2,\"top_k\":3}",
     {5, 2, -1},
     "{\"eos_token_id\":[5,2],\"top_k\":3}"},
    {"{\"eos_token_id\":2}", "{\"eos_token_id\":[2,9]}", {5, 7, -1}, "{\"eos_token_id\":[5,7,2,9]}"},
    {"{\"eos_token_id\":2}", "{\"eos_token_id\":[2,5]}", {5, -1}, "{\"eos_token_id\":[2,5]}"},
    {"{\"eos_token_id\":2}", "{\"top_k\":3}", {5, -1}, "{\"eos_token_id\":5,\"top_k\":3}"},
    {"{\"eos_token_id\":2}",
     "{\"_from_model_config\":true,\"eos_token_id\":2}",
     {5, -1},
     "{\"eos_token_id\":[5,2]}"},
    {"{\"eos_token_id\":2}",
     "{\"_from_model_config\":true,\"eos_token_id\":2}",
     {2, -1},
     "{\"_from_model_config\":true,\"eos_token_id\":2}"},
    {"{\"eos_token_id\":2}", "{\"eos_token_id\":2}", {-1}, "{\"eos_token_id\":2}"},
    {"{\"bos_token_id\":1,\"eos_token_id\":2}",
     NULL,
     {2, -1},
     "{\"_from_model_config\":true,\"bos_token_id\":1,\"eos_token_id\":2}"},
    {"{\"bos_token_id\":1,\"eos_token_id\":2}", NULL, {5, -1}, "{\"bos_token_id\":1,\"eos_token_id\":[5,2]}"},
    {"{}", NULL, {5, 7, -1}, "{\"eos_token_id\":[5,7]}"},
};

START_TEST(answers_end_as_they_were_trained)
{
	_cleanup_free_ char *config = put(source, "config.json", ends[_i].config), *got = NULL;
	struct hf_save_options o = {
	    .config = config, .source = source, .bos = -1, .eos = -1, .pad = -1, .stops = ends[_i].stops};
	struct error err = ERROR_INIT;

	if (ends[_i].source)
		free(put(source, "generation_config.json", ends[_i].source));
	while (ends[_i].stops[o.n_stops] >= 0)
		o.n_stops++;
	ck_ok(hf_save_files(out, &o, &err), &err);
	got = read_json("generation_config.json");
	ck_assert_str_eq(got, ends[_i].want);
}
END_TEST

/* For the model that an adapter is merged into. */
START_TEST(an_adapter_has_its_ends_of_answers)
{
	static const int32_t stops[] = {5, 2};
	static const struct {
		const char *text;
		size_t n;
		int32_t ids[2];
	} files[] = {{"{\"eos_token_id\":[5,2]}", 2, {5, 2}},
	             {"{\"eos_token_id\":7}", 1, {7}},
	             {"{\"eos_token_id\":[\"x\",7,-1,4294967296]}", 1, {7}},
	             {"{\"eos_token_id\":[]}", 0, {0}},
	             {"{\"eos_token_id\":null}", 0, {0}},
	             {"[]", 0, {0}}};
	struct error err = ERROR_INIT;
	_cleanup_free_ char *got = NULL;
	int32_t *ids;
	size_t n;

	ck_ok(hf_read_stops(out, &ids, &n, &err), &err);
	ck_assert_uint_eq(n, 0);
	ck_ok(hf_save_stops(out, stops, 0, &err), &err);
	ck_assert(!copied("generation_config.json"));
	ck_ok(hf_save_stops(out, stops, 2, &err), &err);
	got = read_json("generation_config.json");
	ck_assert_str_eq(got, files[0].text);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		free(put(out, "generation_config.json", files[i].text));
		ck_ok(hf_read_stops(out, &ids, &n, &err), &err);
		ck_assert_uint_eq(n, files[i].n);
		for (size_t k = 0; k < n; k++)
			ck_assert_int_eq(ids[k], files[i].ids[k]);
		free(ids);
	}
	free(put(out, "generation_config.json", "{"));
	ck_assert_int_lt(hf_read_stops(out, &ids, &n, &err), 0);
}
END_TEST

START_TEST(a_head_is_that_of_the_task)
{
	struct model_config c = {.family = "llama"};
	struct error err = ERROR_INIT;

	ck_ok(hf_choose_head(&c, false, "m", &err), &err);
	ck_assert(!c.scores);
	ck_ok(hf_choose_head(&c, true, "m", &err), &err);
	ck_assert(c.scores);
	ck_ok(hf_choose_head(&c, true, "m", &err), &err);
	ck_fails(hf_choose_head(&c, false, "m", &err), &err,
	         "m is a reward model (its head gives a score, and no tokens); expected a causal model");
	c = (struct model_config){.family = "granite"};
	ck_assert_int_eq(hf_choose_head(&c, true, "m", &err), -ENOTSUP);
	ck_assert(!c.scores);
	ck_fails(hf_refuse_scores("a", true, &err), &err,
	         "a is an adapter of a reward model (its head gives a score, and no tokens); expected one of "
	         "a causal model");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("hf_save");
	TCase *t = tcase_create("hf_save");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, the_config_is_that_of_the_saved_model, 0, ARRAY_SIZE(cases));
	tcase_add_test(t, a_config_that_cannot_be_saved_is_named);
	tcase_add_test(t, files_beside_the_weights_are_copied);
	tcase_add_loop_test(t, answers_end_as_they_were_trained, 0, ARRAY_SIZE(ends));
	tcase_add_test(t, an_adapter_has_its_ends_of_answers);
	tcase_add_test(t, a_head_is_that_of_the_task);
	suite_add_tcase(s, t);
	return unit_run(s);
}
