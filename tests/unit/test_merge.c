/* SPDX-License-Identifier: Apache-2.0 */
/* Tests models with an adapter merged into their weights: written as a new directory, and as the weights of a
 * run. */
#include "failing_memory.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/export.h"
#include "engine/checkpoint/merge.h"

enum { VOCAB = 10, HIDDEN = 4, OUT = 6, RANK = 2, LARGEST = VOCAB * HIDDEN };

#define M(name, suffix) "base_model.model." name "." suffix
#define Q               "layers.0.q_proj"
#define EMBED           "embed_tokens"
#define HEAD            "lm_head.weight"

/* Which values a tensor has; no two have the same. */
enum seed { BASE_EMBED = 1, BASE_Q, BASE_NORM, LEFT, RIGHT, MAGNITUDE, WHOLE };

static char *dir, *model, *adapter;

static float value(enum seed seed, int64_t i)
{
	return (float)((i * 7 + (int64_t)seed * 13) % 23 - 11) / 8 + (float)seed / 4;
}

static int fill(void *context, size_t index, size_t offset, size_t len, void *buf, struct error *err)
{
	(void)context;
	(void)err;
	for (size_t i = 0; i < len / 4; i++)
		((float *)buf)[i] = value((enum seed)index, (int64_t)(offset / 4 + i));
	return 0;
}

struct part {
	const char *name;
	enum seed seed;
	int64_t rows, columns;
};

static void write_tensors(const char *directory, const char *stem, const struct part *parts, size_t n)
{
	struct tensor_source sources[8];
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < n; i++)
		sources[i] = (struct tensor_source){.name = parts[i].name,
		                                    .type = TENSOR_F32,
		                                    .dims = parts[i].columns ? 2 : 1,
		                                    .shape = {parts[i].rows, parts[i].columns},
		                                    .fill = fill,
		                                    .index = parts[i].seed};
	ck_ok(safetensors_write(directory, stem, sources, n, 0, &err), &err);
}

static void write_text(const char *directory, const char *name, const char *text)
{
	_cleanup_free_ char *path = str_path_join(directory, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
}

static const struct part base_parts[] = {
    {EMBED ".weight", BASE_EMBED, VOCAB, HIDDEN},
    {Q ".weight", BASE_Q, OUT, HIDDEN},
    {"norm.weight", BASE_NORM, HIDDEN, 0},
};

static void setup(void)
{
	struct error err = ERROR_INIT;

	dir = unit_tmpdir();
	model = str_path_join(dir, "model");
	adapter = str_path_join(dir, "adapter");
	ck_ok(file_mkdirs(model, 0755, &err), &err);
	ck_ok(file_mkdirs(adapter, 0755, &err), &err);
	write_text(model, "config.json", "{\"model_type\":\"llama\",\"tie_word_embeddings\":true}");
	write_tensors(model, "model", base_parts, ARRAY_SIZE(base_parts));
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(adapter);
	free(model);
	free(dir);
}

#define LORA(members) "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 3, " members "}"
#define SCALE         1.5

/* What each kind of adapter makes of its tensor. */
static const struct kind {
	const char *config, *tensor;
	enum seed base;
	struct part parts[4];
	bool turned; /* the tensor is stored as [in, out] */
	bool dora;
} kinds[] = {
    {LORA("\"target_modules\": [\"q_proj\"]"),
     Q ".weight",
     BASE_Q,
     {{M(Q, "lora_A.weight"), RIGHT, RANK, HIDDEN}, {M(Q, "lora_B.weight"), LEFT, OUT, RANK}},
     false,
     false},
    {LORA("\"target_modules\": [\"q_proj\"], \"use_dora\": true"),
     Q ".weight",
     BASE_Q,
     {{M(Q, "lora_A.weight"), RIGHT, RANK, HIDDEN},
      {M(Q, "lora_B.weight"), LEFT, OUT, RANK},
      {M(Q, "lora_magnitude_vector"), MAGNITUDE, OUT, 0}},
     false,
     true},
    {LORA("\"target_modules\": [\"q_proj\"], \"fan_in_fan_out\": true"),
     Q ".weight",
     BASE_Q,
     {{M(Q, "lora_A.weight"), RIGHT, RANK, OUT}, {M(Q, "lora_B.weight"), LEFT, HIDDEN, RANK}},
     true,
     false},
    {LORA("\"target_modules\": [\"q_proj\"], \"fan_in_fan_out\": true, \"use_dora\": true"),
     Q ".weight",
     BASE_Q,
     {{M(Q, "lora_A.weight"), RIGHT, RANK, OUT},
      {M(Q, "lora_B.weight"), LEFT, HIDDEN, RANK},
      {M(Q, "lora_magnitude_vector"), MAGNITUDE, HIDDEN, 0}},
     true,
     true},
    {LORA("\"target_modules\": [\"embed_tokens\"]"),
     EMBED ".weight",
     BASE_EMBED,
     {{M(EMBED, "lora_embedding_A"), RIGHT, RANK, VOCAB}, {M(EMBED, "lora_embedding_B"), LEFT, HIDDEN, RANK}},
     true,
     false},
    {LORA("\"target_modules\": [\"q_proj\"], \"modules_to_save\": [\"embed_tokens\"]"),
     EMBED ".weight",
     WHOLE,
     {{M(Q, "lora_A.weight"), RIGHT, RANK, HIDDEN},
      {M(Q, "lora_B.weight"), LEFT, OUT, RANK},
      {M(EMBED, "weight"), WHOLE, VOCAB, HIDDEN}},
     false,
     false},
};

static size_t write_adapter(const struct kind *k)
{
	size_t n = 0;

	while (n < ARRAY_SIZE(k->parts) && k->parts[n].name)
		n++;
	write_text(adapter, "adapter_config.json", k->config);
	write_tensors(adapter, "adapter_model", k->parts, n);
	return n;
}

/* Element (i, j) of the tensor before DoRA's scaling: [out, in] gets B·A, and [in, out] (B·A)ᵀ. */
static double sum_at(const struct kind *k, int64_t i, int64_t j, int64_t rows)
{
	double w = value(k->base, i * HIDDEN + j);

	for (int64_t r = 0; r < RANK && k->base != WHOLE; r++)
		w += SCALE * (k->turned ? value(RIGHT, r * rows + i) * value(LEFT, j * RANK + r)
		                        : value(LEFT, i * RANK + r) * value(RIGHT, r * HIDDEN + j));
	return w;
}

static double merged_at(const struct kind *k, int64_t i, int64_t j, int64_t rows)
{
	double squares = 0;

	if (!k->dora)
		return sum_at(k, i, j, rows);
	for (int64_t n = 0; n < (k->turned ? rows : HIDDEN); n++) {
		double x = k->turned ? sum_at(k, n, j, rows) : sum_at(k, i, n, rows);

		squares += x * x;
	}
	return value(MAGNITUDE, k->turned ? j : i) * sum_at(k, i, j, rows) / sqrt(squares);
}

static void check_merged(const struct kind *k, const float *got, int64_t first, int64_t n, int64_t rows)
{
	for (int64_t i = first; i < first + n; i++) {
		double want = merged_at(k, i / HIDDEN, i % HIDDEN, rows);

		ck_assert_msg(fabs(got[i - first] - want) < 1e-5, "%s: element %lld is %g, not %g", k->config,
		              (long long)i, got[i - first], want);
	}
}

START_TEST(an_adapter_is_in_the_weights_that_are_written)
{
	const struct kind *k = &kinds[_i];
	_cleanup_free_ char *out = str_path_join(dir, "out"), *path = str_path_join(out, "config.json");
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_json_ json_t *config = NULL;
	struct export_options o = {.model = model, .adapter = adapter, .output = out};
	bool embedding = str_eq(k->tensor, EMBED ".weight");
	struct export_result result;
	struct error err = ERROR_INIT;
	float got[LARGEST];

	write_adapter(k);
	ck_ok(export_run(&o, &result, &err), &err);
	ck_assert_uint_eq(result.merged, 1);
	/* The output layer keeps the weight that it shared with the embedding. */
	ck_assert_int_eq(result.untied, embedding);
	ck_assert_uint_eq(result.tensors, embedding ? 4 : 3);
	ck_ok(json_read_file(path, &config, &err), &err);
	ck_assert_int_eq(json_get_bool(config, "tie_word_embeddings", true), !embedding);
	ck_ok(safetensors_open(out, &st, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(base_parts); i++) {
		const struct tensor *t = safetensors_find(st, base_parts[i].name);
		int64_t n = base_parts[i].rows * MAX(base_parts[i].columns, 1);

		ck_assert_ptr_nonnull(t);
		ck_ok(tensor_to_f32(t, 0, n, got, &err), &err);
		if (str_eq(t->name, k->tensor))
			check_merged(k, got, 0, n, base_parts[i].rows);
		else if (k->base != WHOLE)
			for (int64_t e = 0; e < n; e++)
				ck_assert_float_eq(got[e], value(base_parts[i].seed, e));
	}
	if (embedding) {
		ck_ok(tensor_to_f32(safetensors_find(st, "lm_head.weight"), 0, VOCAB * HIDDEN, got, &err),
		      &err);
		for (int64_t e = 0; e < VOCAB * HIDDEN; e++)
			ck_assert_float_eq(got[e], value(BASE_EMBED, e));
	}
}
END_TEST

/* A run asks for pieces that begin and end within rows. */
START_TEST(an_adapter_is_in_the_weights_that_a_run_gets)
{
	const struct kind *k = &kinds[_i];
	struct model_parameter parameter[] = {
	    {.name = EMBED ".weight", .dims = 2, .shape = {VOCAB, HIDDEN}, .count = VOCAB * HIDDEN},
	    {.name = Q ".weight", .dims = 2, .shape = {OUT, HIDDEN}, .count = OUT * HIDDEN},
	    {.name = "norm.weight", .dims = 1, .shape = {HIDDEN}, .count = HIDDEN},
	};
	struct model_layout layout = {.parameter = parameter, .parameters = ARRAY_SIZE(parameter)};
	const struct model_parameter *p = &parameter[str_eq(k->tensor, Q ".weight")];
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_(merged_model_closep) struct merged_model *m = NULL;
	struct error err = ERROR_INIT;
	float got[LARGEST];

	write_adapter(k);
	ck_ok(safetensors_open(model, &st, &err), &err);
	ck_ok(merged_model_open(adapter, &layout, st, &m, &err), &err);
	ck_ok(merged_model_fill(m, p, 3, 9, got, &err), &err);
	check_merged(k, got, 3, 9, p->shape[0]);
	ck_ok(merged_model_fill(m, &parameter[2], 1, 3, got, &err), &err);
	for (int i = 0; i < 3; i++)
		ck_assert_float_eq(got[i], value(BASE_NORM, i + 1));
	ck_ok(merged_model_fill(m, p, p->count - 5, 5, got, &err), &err);
	check_merged(k, got, p->count - 5, 5, p->shape[0]);
}
END_TEST

/* The model of a run with a head of its own: base_parts, and that. */
static const struct model_parameter own_head[] = {
    {.name = EMBED ".weight",
     .role = PARAMETER_EMBEDDING,
     .dims = 2,
     .shape = {VOCAB, HIDDEN},
     .count = VOCAB * HIDDEN},
    {.name = Q ".weight", .role = PARAMETER_Q, .dims = 2, .shape = {OUT, HIDDEN}, .count = OUT * HIDDEN},
    {.name = "norm.weight", .role = PARAMETER_FINAL_NORM, .dims = 1, .shape = {HIDDEN}, .count = HIDDEN},
    {.name = HEAD, .role = PARAMETER_HEAD, .dims = 2, .shape = {VOCAB, HIDDEN}, .count = VOCAB * HIDDEN},
};

static const struct kind of_head = {LORA("\"target_modules\": [\"lm_head\"]"),
                                    HEAD,
                                    BASE_EMBED,
                                    {{M("lm_head", "lora_A.weight"), RIGHT, RANK, HIDDEN},
                                     {M("lm_head", "lora_B.weight"), LEFT, VOCAB, RANK}},
                                    false,
                                    false};

/* The weights of the merged model at `index` of own_head are those of the kind, or of the base. */
static void check_filled(struct merged_model *m, size_t index, const struct kind *k, enum seed base)
{
	const struct model_parameter *p = &own_head[index];
	struct error err = ERROR_INIT;
	float got[LARGEST];

	ck_ok(merged_model_fill(m, p, 1, p->count - 1, got, &err), &err);
	if (k && str_eq(k->tensor, p->name)) {
		check_merged(k, got, 1, p->count - 1, p->shape[0]);
		return;
	}
	for (int64_t e = 1; e < p->count; e++)
		ck_assert_float_eq(got[e - 1], value(base, e));
}

/* As with PEFT: of an embedding and the head that is tied to it the adapter changes the one that it names,
 * and the other keeps the weights of the base, whichever of the two the base has. */
START_TEST(a_tied_head_has_weights_of_its_own)
{
	const struct kind *k = _i < (int)ARRAY_SIZE(kinds) ? &kinds[_i] : &of_head;
	const struct model_layout layout = {.parameter = (struct model_parameter *)own_head,
	                                    .parameters = ARRAY_SIZE(own_head)};
	struct part stored[ARRAY_SIZE(base_parts)];

	write_adapter(k);
	memcpy(stored, base_parts, sizeof(stored));
	for (int head_alone = 0; head_alone < 2; head_alone++) {
		_cleanup_(safetensors_closep) struct safetensors *st = NULL;
		_cleanup_(merged_model_closep) struct merged_model *m = NULL;
		struct error err = ERROR_INIT;

		stored[0].name = head_alone ? HEAD : EMBED ".weight";
		write_tensors(model, "model", stored, ARRAY_SIZE(stored));
		ck_ok(safetensors_open(model, &st, &err), &err);
		ck_ok(merged_model_open(adapter, &layout, st, &m, &err), &err);
		ck_assert_int_eq(merged_model_unties(m), !str_eq(k->tensor, Q ".weight"));
		check_filled(m, 0, k, BASE_EMBED);
		check_filled(m, 3, k, BASE_EMBED);
		check_filled(m, 2, NULL, BASE_NORM);
	}
}
END_TEST

/* A config.json without the key has the family's default; of a family that is not known the files tell. */
START_TEST(whether_a_head_is_tied_may_be_left_out)
{
	static const struct {
		const char *family;
		bool tied, stored; /* stored: a head */
	} cases[] = {
	    {"gpt2", true, false},   {"gemma2", true, false},  {"gemma3_text", true, false},
	    {"smollm3", true, true}, {"llama", false, true},   {"qwen2", false, true},
	    {"opt", true, false},    {"mixtral", false, true},
	};
	const struct kind *const adapters[] = {&kinds[4], &kinds[5], &of_head};
	const struct part with_head[] = {
	    base_parts[0], base_parts[1], base_parts[2], {HEAD, BASE_EMBED, VOCAB, HIDDEN}};

	for (size_t i = 0; i < ARRAY_SIZE(cases) * ARRAY_SIZE(adapters); i++) {
		const struct kind *k = adapters[i % ARRAY_SIZE(adapters)];
		bool tied = cases[i / ARRAY_SIZE(adapters)].tied,
		     has_head = cases[i / ARRAY_SIZE(adapters)].stored;
		_cleanup_free_ char *out = str_path_join(dir, "out"),
		                    *path = str_path_join(out, "config.json"),
		                    *text = str_printf("{\"model_type\":\"%s\"}",
		                                       cases[i / ARRAY_SIZE(adapters)].family);
		_cleanup_(safetensors_closep) struct safetensors *st = NULL;
		_cleanup_json_ json_t *config = NULL;
		struct export_options o = {
		    .model = model, .adapter = adapter, .output = out, .overwrite = true};
		const struct tensor *head;
		struct export_result result;
		struct error err = ERROR_INIT;
		float got[LARGEST];

		write_adapter(k);
		write_text(model, "config.json", text);
		write_tensors(model, "model", with_head, ARRAY_SIZE(with_head) - !has_head);
		ck_ok(export_run(&o, &result, &err), &err);
		ck_assert_int_eq(result.untied, tied);
		ck_ok(json_read_file(path, &config, &err), &err);
		ck_assert_int_eq(json_object_get(config, "tie_word_embeddings") == json_false(), tied);
		ck_ok(safetensors_open(out, &st, &err), &err);
		head = safetensors_find(st, HEAD);
		ck_assert_ptr_nonnull(head);
		ck_ok(tensor_to_f32(head, 0, VOCAB * HIDDEN, got, &err), &err);
		if (k == &of_head)
			check_merged(k, got, 0, VOCAB * HIDDEN, VOCAB);
		else
			for (int64_t e = 0; e < VOCAB * HIDDEN; e++)
				ck_assert_float_eq(got[e], value(BASE_EMBED, e));
	}
}
END_TEST

/* Files may have the head of a tied model alone. */
START_TEST(a_stored_head_is_the_embedding)
{
	static const struct kind of_embedding = {
	    LORA("\"target_modules\": [], \"modules_to_save\": [\"embed_tokens\"]"),
	    NULL,
	    WHOLE,
	    {{M("model.embed_tokens", "weight"), WHOLE, VOCAB, HIDDEN}},
	    false,
	    false};
	const struct kind *const adapters[] = {&kinds[0], &of_embedding, &of_head};
	const struct part stored[] = {{HEAD, BASE_EMBED, VOCAB, HIDDEN}, base_parts[1], base_parts[2]};

	write_tensors(model, "model", stored, ARRAY_SIZE(stored));
	for (size_t i = 0; i < ARRAY_SIZE(adapters); i++) {
		_cleanup_free_ char *out = str_path_join(dir, "out");
		_cleanup_(safetensors_closep) struct safetensors *st = NULL;
		struct export_options o = {
		    .model = model, .adapter = adapter, .output = out, .overwrite = true};
		const struct tensor *embedding;
		struct export_result result;
		struct error err = ERROR_INIT;
		float got[LARGEST];

		write_adapter(adapters[i]);
		ck_ok(export_run(&o, &result, &err), &err);
		ck_assert_int_eq(result.untied, i > 0);
		ck_ok(safetensors_open(out, &st, &err), &err);
		embedding = safetensors_find(st, "model.embed_tokens.weight");
		ck_assert_int_eq(embedding != NULL, i > 0);
		ck_assert_ptr_nonnull(safetensors_find(st, HEAD));
		if (!embedding)
			continue;
		ck_ok(tensor_to_f32(embedding, 0, VOCAB * HIDDEN, got, &err), &err);
		for (int64_t e = 0; e < VOCAB * HIDDEN; e++)
			ck_assert_float_eq(got[e], value(i == 1 ? WHOLE : BASE_EMBED, e));
	}
}
END_TEST

START_TEST(what_cannot_be_merged_is_refused)
{
	static const struct {
		const char *config, *words;
	} cases[] = {
	    {LORA("\"target_modules\": [\"q_proj\"], \"init_lora_weights\": \"pissa\""),
	     "\"pissa\": such an adapter"},
	    {LORA("\"target_modules\": [\"q_proj\"], \"task_type\": \"SEQ_CLS\""), NULL},
	};
	struct model_parameter parameter[] = {
	    {.name = Q ".weight", .dims = 2, .shape = {OUT, HIDDEN}, .count = OUT * HIDDEN},
	};
	struct model_layout layout = {.parameter = parameter, .parameters = 1};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(safetensors_closep) struct safetensors *st = NULL;
		_cleanup_free_ char *out = str_path_join(dir, "out");
		struct export_options o = {.model = model, .adapter = adapter, .output = out};
		struct export_result result;
		struct merged_model *m = NULL;
		struct error err = ERROR_INIT;

		write_adapter(&kinds[0]);
		write_text(adapter, "adapter_config.json", cases[i].config);
		ck_ok(safetensors_open(model, &st, &err), &err);
		ck_fails(merged_model_open(adapter, &layout, st, &m, &err), &err,
		         cases[i].words ? cases[i].words : adapter);
		if (cases[i].words) {
			ck_fails(export_run(&o, &result, &err), &err, cases[i].words);
			ck_assert(!file_exists(out));
		}
	}
}
END_TEST

/* An adapter alone is copied, in the number format that is asked for. */
START_TEST(an_adapter_alone_is_converted)
{
	_cleanup_free_ char *out = str_path_join(dir, "out");
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	struct export_options o = {.model = adapter, .output = out, .convert = true, .type = DTYPE_BF16};
	struct export_result result;
	struct peft_adapter *a = NULL;
	struct error err = ERROR_INIT;
	float got[OUT * RANK];

	ck_assert_uint_eq(write_adapter(&kinds[0]), 2);
	ck_ok(export_run(&o, &result, &err), &err);
	ck_assert_uint_eq(result.tensors, 2);
	ck_assert_uint_eq(result.bytes, (RANK * HIDDEN + OUT * RANK) * 2);
	ck_ok(peft_adapter_open(out, NULL, 0, &a, &err), &err);
	ck_assert_int_eq(a->config.rank, RANK);
	ck_assert_int_eq(a->modules[0].b->type, TENSOR_BF16);
	ck_ok(tensor_to_f32(a->modules[0].b, 0, OUT * RANK, got, &err), &err);
	for (int i = 0; i < OUT * RANK; i++)
		ck_assert_float_eq(got[i], value(LEFT, i));
	peft_adapter_close(a);
	/* It has no weights that another one could be merged into. */
	o = (struct export_options){.model = adapter, .adapter = adapter, .output = out, .overwrite = true};
	ck_fails(export_run(&o, &result, &err), &err, "is an adapter; expected a model to merge");
}
END_TEST

static int open_and_fill(void *context, struct error *err)
{
	struct model_parameter parameter[] = {
	    {.name = EMBED ".weight", .dims = 2, .shape = {VOCAB, HIDDEN}, .count = VOCAB * HIDDEN},
	    {.name = Q ".weight", .dims = 2, .shape = {OUT, HIDDEN}, .count = OUT * HIDDEN},
	    {.name = "norm.weight", .dims = 1, .shape = {HIDDEN}, .count = HIDDEN},
	};
	struct model_layout layout = {.parameter = parameter, .parameters = ARRAY_SIZE(parameter)};
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_(merged_model_closep) struct merged_model *m = NULL;
	float got[LARGEST];
	int r;

	(void)context;
	(void)((r = safetensors_open(model, &st, err)) < 0 ||
	       (r = merged_model_open(adapter, &layout, st, &m, err)) < 0 ||
	       (r = merged_model_fill(m, &parameter[1], 0, OUT * HIDDEN, got, err)) < 0);
	return r;
}

START_TEST(memory_may_run_out)
{
	write_adapter(&kinds[_i]);
	memory_runs_out(open_and_fill, NULL);
}
END_TEST

static int export_again(void *context, struct error *err)
{
	struct export_result result;
	int r = export_run(context, &result, err);

	if (r == 0 && !file_exists_in(((struct export_options *)context)->output, "tokenizer.json"))
		return error_set(err, -EIO, "the tokenizer of the adapter is missing");
	return r;
}

/* An adapter is not taken for a model, its tokenizer is not overlooked, and what may be replaced is. */
START_TEST(memory_may_run_out_during_an_export)
{
	_cleanup_free_ char *out = str_path_join(dir, "out");
	struct error err = ERROR_INIT;

	write_adapter(&kinds[0]);
	write_text(adapter, "tokenizer.json", "{}");
	ck_ok(file_mkdirs(out, 0755, &err), &err);
	write_text(out, "config.json", "{}");
	memory_runs_out(
	    export_again,
	    &(struct export_options){.model = model, .adapter = adapter, .output = out, .overwrite = true});
	memory_runs_out(export_again,
	                &(struct export_options){.model = adapter, .output = out, .overwrite = true});
}
END_TEST

int main(void)
{
	Suite *s = suite_create("merge");
	TCase *t = tcase_create("merge");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, an_adapter_is_in_the_weights_that_are_written, 0, ARRAY_SIZE(kinds));
	tcase_add_loop_test(t, an_adapter_is_in_the_weights_that_a_run_gets, 0, ARRAY_SIZE(kinds));
	tcase_add_loop_test(t, a_tied_head_has_weights_of_its_own, 0, ARRAY_SIZE(kinds) + 1);
	tcase_add_test(t, whether_a_head_is_tied_may_be_left_out);
	tcase_add_test(t, a_stored_head_is_the_embedding);
	tcase_add_test(t, what_cannot_be_merged_is_refused);
	tcase_add_test(t, an_adapter_alone_is_converted);
	tcase_add_loop_test(t, memory_may_run_out, 0, ARRAY_SIZE(kinds));
	tcase_add_test(t, memory_may_run_out_during_an_export);
	suite_add_tcase(s, t);
	return unit_run(s);
}
