/* SPDX-License-Identifier: Apache-2.0 */
/* The algorithms of matrix products: measured over a stand-in for cuBLASLt whose times the tests set, used by
 * device_gemm, and kept in a file. */
#include <cublasLt.h>
#include <errno.h>

#include "../engine/fake_dataset.h"
#include "base/file.h"
#include "base/str.h"
#include "engine/checkpoint/algorithms.h"
#include "engine/device/cuda/cuda.h"
#include "engine/train/products.h"
#include "engine/train/trainer.h"
#include "unit.h"

enum { OFFERED = 4, M = 24, N = 16, K = 40 };

static struct device *open_device(void)
{
	struct error err = ERROR_INIT;
	struct device *dev;

	ck_ok(device_create(NULL, &dev, &err), &err);
	ck_ok(device_reserve_scratch(dev, 64 << 20, &err), &err);
	return dev;
}

/* ---- operands ---- */

struct operands {
	float *a, *b, *c, *bias;
};

static float *values(struct device *dev, int64_t n, uint32_t seed)
{
	struct error err = ERROR_INIT;
	float *host = malloc((size_t)n * sizeof(float));
	void *p;

	for (int64_t i = 0; i < n; i++) {
		seed = seed * 1664525 + 1013904223;
		host[i] = (float)(int32_t)seed * 0x1p-31f;
	}
	ck_ok(device_alloc(dev, (size_t)n * sizeof(float), &p, &err), &err);
	ck_ok(device_write(dev, p, host, (size_t)n * sizeof(float), &err), &err);
	free(host);
	return p;
}

static struct operands make_operands(struct device *dev)
{
	return (struct operands){values(dev, 4 * M * K, 1), values(dev, 4 * N * K, 2),
	                         values(dev, 4 * M * N, 3), values(dev, 4 * N, 4)};
}

static void free_operands(struct device *dev, struct operands *o)
{
	device_free(dev, o->a);
	device_free(dev, o->b);
	device_free(dev, o->c);
	device_free(dev, o->bias);
}

/* m rows of c = a · bᵀ, with a bias or without. */
static struct device_gemm product(const struct operands *o, int64_t m, bool bias)
{
	return (struct device_gemm){.transpose_b = true,
	                            .m = m,
	                            .n = N,
	                            .k = K,
	                            .alpha = 1,
	                            .a = o->a,
	                            .b = o->b,
	                            .c = o->c,
	                            .lda = K,
	                            .ldb = K,
	                            .ldc = N,
	                            .ab_type = DTYPE_F32,
	                            .c_type = DTYPE_F32,
	                            .bias = bias ? o->bias : NULL};
}

static struct device_gemm_choice wanted(const struct device_gemm *g)
{
	struct device_gemm_choice c = {.separate = false};

	device_gemm_shape(g, &c.shape);
	return c;
}

/* The results of a product, [m, N]; its algorithm is then simt_gemm_last. */
static float *multiply(struct device *dev, const struct device_gemm *g)
{
	struct error err = ERROR_INIT;
	float *out = malloc((size_t)(g->m * N) * sizeof(float));

	device_gemm(dev, g);
	ck_ok(device_read(dev, out, g->c, (size_t)(g->m * N) * sizeof(float), &err), &err);
	return out;
}

/* ---- times ---- */

/* Number 3 for products of many rows, 2 for the others. */
static double by_rows(const struct simt_gemm *g)
{
	return g->number == (g->cols >= M ? 3U : 2U) ? 50 : 100 + g->number;
}

static double fused_is_fast(const struct simt_gemm *g)
{
	return (g->fused ? 50 : 100) + (g->number == 1 ? 0 : 10);
}

static double fused_is_slow(const struct simt_gemm *g)
{
	return (g->fused ? 100 : 50) + (g->number == 1 ? 0 : 10);
}

static double nearly_the_same(const struct simt_gemm *g)
{
	return 1000 - g->number;
}

static double fastest_is_last(const struct simt_gemm *g)
{
	return 100 - 10 * (double)g->number;
}

/* ---- the device ---- */

START_TEST(each_shape_has_its_fastest)
{
	struct device *dev = open_device();
	struct operands o = make_operands(dev);
	struct device_gemm many = product(&o, M, false), few = product(&o, 8, false);
	struct device_gemm_choice choices[2] = {wanted(&many), wanted(&few)};
	struct error err = ERROR_INIT;
	float *first, *chosen;
	bool same;

	simt_gemm_offer(OFFERED, by_rows);
	first = multiply(dev, &many);
	ck_assert_uint_eq(simt_gemm_last().number, 0); /* without a choice: the first suggestion */
	ck_ok(device_gemm_measure(dev, choices, 2, &err), &err);
	ck_ok(device_gemm_use(dev, choices, 2, &err), &err);
	chosen = multiply(dev, &many);
	ck_assert_uint_eq(simt_gemm_last().number, 3);
	same = memcmp(first, chosen, M * N * sizeof(float)) == 0;
	ck_assert(!same); /* another algorithm, other bits */
	for (int i = 0; i < M * N; i++)
		ck_assert_float_eq_tol(first[i], chosen[i], 1e-5f);
	free(chosen);
	chosen = multiply(dev, &few);
	ck_assert_uint_eq(simt_gemm_last().number, 2);
	free(first);
	free(chosen);
	free_operands(dev, &o);
	device_destroy(dev);
}
END_TEST

START_TEST(epilogue_against_its_kernel)
{
	static const simt_gemm_seconds times[] = {fused_is_fast, fused_is_slow};
	struct device *dev = open_device();
	struct operands o = make_operands(dev);
	struct device_gemm g = product(&o, M, true);
	struct device_gemm_choice choice = wanted(&g);
	struct error err = ERROR_INIT;
	float *before = multiply(dev, &g), *after;

	simt_gemm_offer(OFFERED, times[_i]);
	ck_ok(device_gemm_measure(dev, &choice, 1, &err), &err);
	ck_assert_int_eq(choice.separate, _i == 1);
	ck_ok(device_gemm_use(dev, &choice, 1, &err), &err);
	after = multiply(dev, &g);
	ck_assert_int_eq(simt_gemm_last().fused, _i == 0);
	ck_assert_uint_eq(simt_gemm_last().number, 1);
	for (int i = 0; i < M * N; i++)
		ck_assert_float_eq_tol(before[i], after[i], 1e-5f);
	free(before);
	free(after);
	free_operands(dev, &o);
	device_destroy(dev);
}
END_TEST

/* The gradient of a bias, which the product for the gradient of the weights may sum up. */
START_TEST(gradient_against_its_kernel)
{
	static const simt_gemm_seconds times[] = {fused_is_fast, fused_is_slow};
	struct device *dev = open_device();
	struct operands o = make_operands(dev);
	float sums[2][M] = {{0}}, zeros[M] = {0};
	struct device_gemm g = {.transpose_a = true,
	                        .m = M,
	                        .n = N,
	                        .k = K,
	                        .alpha = 1,
	                        .a = o.a,
	                        .b = o.b,
	                        .c = o.c,
	                        .lda = M,
	                        .ldb = N,
	                        .ldc = N,
	                        .ab_type = DTYPE_F32,
	                        .c_type = DTYPE_F32,
	                        .d_bias = o.bias};
	struct device_gemm_choice choice = wanted(&g);
	struct error err = ERROR_INIT;

	for (int chosen = 0; chosen < 2; chosen++) {
		ck_ok(device_write(dev, o.bias, zeros, sizeof(zeros), &err), &err);
		device_gemm(dev, &g);
		ck_ok(device_read(dev, sums[chosen], o.bias, sizeof(zeros), &err), &err);
		if (chosen)
			break;
		simt_gemm_offer(OFFERED, times[_i]);
		ck_ok(device_gemm_measure(dev, &choice, 1, &err), &err);
		ck_ok(device_gemm_use(dev, &choice, 1, &err), &err);
	}
	ck_assert_int_eq(simt_gemm_last().fused, _i == 0);
	ck_assert_uint_eq(simt_gemm_last().number, 1);
	for (int i = 0; i < M; i++)
		ck_assert_float_eq_tol(sums[0][i], sums[1][i], 1e-5f);
	free_operands(dev, &o);
	device_destroy(dev);
}
END_TEST

/* What a choice holds for does not depend on what was computed before. */
START_TEST(other_numbers_of_rows)
{
	static const struct {
		int64_t rows;
		uint32_t number;
	} expected[] = {{M, 3}, {M - 1, 3}, {9, 3}, {8, 2}, {3, 2}, {1, 2}, {M + 1, 0}, {3 * M, 0}};
	struct device *dev = open_device();
	struct operands o = make_operands(dev);
	struct device_gemm many = product(&o, M, false), few = product(&o, 8, false);
	struct device_gemm_choice choices[2] = {wanted(&few), wanted(&many)};
	struct error err = ERROR_INIT;

	simt_gemm_offer(OFFERED, by_rows);
	ck_ok(device_gemm_measure(dev, choices, 2, &err), &err);
	ck_ok(device_gemm_use(dev, choices, 2, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
		size_t at = _i ? ARRAY_SIZE(expected) - 1 - i : i;
		struct device_gemm g = product(&o, expected[at].rows, false);

		free(multiply(dev, &g));
		ck_assert_uint_eq(simt_gemm_last().number, expected[at].number);
	}
	free_operands(dev, &o);
	device_destroy(dev);
}
END_TEST

START_TEST(same_time_keeps_the_order)
{
	struct device *dev = open_device();
	struct operands o = make_operands(dev);
	struct device_gemm g = product(&o, M, false);
	struct device_gemm_choice choice = wanted(&g);
	struct error err = ERROR_INIT;

	simt_gemm_offer(OFFERED, nearly_the_same);
	ck_ok(device_gemm_measure(dev, &choice, 1, &err), &err);
	ck_ok(device_gemm_use(dev, &choice, 1, &err), &err);
	free(multiply(dev, &g));
	ck_assert_uint_eq(simt_gemm_last().number, 0);
	free_operands(dev, &o);
	device_destroy(dev);
}
END_TEST

START_TEST(library_refuses_a_choice)
{
	struct device *dev = open_device();
	struct operands o = make_operands(dev);
	struct device_gemm g = product(&o, M, false);
	struct device_gemm_choice choice = wanted(&g), wrong;
	struct error err = ERROR_INIT;

	simt_gemm_offer(OFFERED, fastest_is_last);
	ck_ok(device_gemm_measure(dev, &choice, 1, &err), &err);
	ck_ok(device_gemm_use(dev, &choice, 1, &err), &err);
	wrong = choice;
	memset(wrong.algorithm, 0xa5, sizeof(wrong.algorithm));
	ck_assert_int_eq(device_gemm_use(dev, &wrong, 1, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.message, "does not accept"));
	free(multiply(dev, &g));
	ck_assert_uint_eq(simt_gemm_last().number, OFFERED - 1); /* the choice before is kept */
	free_operands(dev, &o);
	device_destroy(dev);
}
END_TEST

/* ---- a run ---- */

struct run {
	char *directory, *path;
	struct device *dev;
	char lines[4096];
};

static int write_file(void *context, const char *text, struct error *err)
{
	struct run *r = context;

	return file_write_atomic(r->path, text, strlen(text), 0666, err);
}

static void take_line(void *context, const char *message)
{
	struct run *r = context;
	size_t n = strlen(r->lines);

	snprintf(r->lines + n, sizeof(r->lines) - n, "%s\n", message);
}

/* A start of a run: chooses. */
static void choose(struct run *r, bool resumes, int64_t max_row)
{
	static const char text[] = "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":48,"
	                           "\"num_hidden_layers\":2,\"num_attention_heads\":2,"
	                           "\"num_key_value_heads\":1,\"vocab_size\":40}";
	struct products_file file = {
	    .path = r->path, .resumes = resumes, .write = write_file, .notify = take_line, .context = r};
	struct error err = ERROR_INIT;
	struct train_options o;
	struct model_config c;

	r->lines[0] = '\0';
	r->dev = open_device();
	ck_ok(model_config_parse(text, strlen(text), "config.json", &c, &err), &err);
	train_options_default(&o);
	ck_ok(products_choose(r->dev, NULL, "here", &c, &o, max_row, &file, &err), &err);
}

/* What gate and up of a block make of so many tokens. -> its algorithm. */
static uint32_t multiply_block(struct device *dev, int64_t tokens)
{
	struct error err = ERROR_INIT;
	float *x = values(dev, tokens * 32, 1), *w = values(dev, 96 * 32, 2),
	      *y = values(dev, tokens * 96, 3);

	device_gemm(dev, &(struct device_gemm){.transpose_b = true,
	                                       .m = tokens,
	                                       .n = 96,
	                                       .k = 32,
	                                       .alpha = 1,
	                                       .a = x,
	                                       .b = w,
	                                       .c = y,
	                                       .lda = 32,
	                                       .ldb = 32,
	                                       .ldc = 96,
	                                       .ab_type = DTYPE_F32,
	                                       .c_type = DTYPE_F32});
	ck_ok(device_synchronize(dev, &err), &err);
	device_free(dev, x);
	device_free(dev, w);
	device_free(dev, y);
	return simt_gemm_last().number;
}

static uint32_t start(struct run *r, bool resumes, int64_t max_row)
{
	uint32_t number;

	choose(r, resumes, max_row);
	number = multiply_block(r->dev, 9);
	device_destroy(r->dev);
	return number;
}

static struct run new_run(void)
{
	struct run r = {.directory = unit_tmpdir()};

	r.path = str_path_join(r.directory, ALGORITHMS_FILE);
	return r;
}

static void end_run(struct run *r)
{
	ck_assert(!file_remove_tree(r->directory, NULL));
	free(r->directory);
	free(r->path);
}

START_TEST(resumed_run_takes_the_file)
{
	struct run r = new_run();
	int runs;

	simt_gemm_offer(OFFERED, fastest_is_last);
	ck_assert_uint_eq(start(&r, false, 12), 3);
	ck_assert_ptr_nonnull(strstr(r.lines, "measured"));
	ck_assert(file_exists(r.path));
	simt_gemm_offer(OFFERED, fused_is_fast); /* now number 1 would be the fastest */
	runs = simt_gemm_runs(-1);
	ck_assert_uint_eq(start(&r, true, 12), 3);
	ck_assert_int_eq(simt_gemm_runs(-1), runs + 1); /* the product: nothing is measured */
	ck_assert_str_eq(r.lines, "");
	/* Other rows: they are measured, and the log says so; what is known stays. */
	ck_assert_uint_eq(start(&r, true, 10), 1);
	ck_assert_ptr_nonnull(strstr(r.lines, "warning: "));
	ck_assert_ptr_nonnull(strstr(r.lines, "not all algorithms"));
	runs = simt_gemm_runs(-1);
	start(&r, true, 12);
	ck_assert_int_eq(simt_gemm_runs(-1), runs + 1);
	end_run(&r);
}
END_TEST

/* Number 3 is the fastest for 200 tokens, 2 for half of them, which are taken for 128, and 1 for 64. */
static double by_tokens(const struct simt_gemm *g)
{
	return g->number == (g->cols >= 200 ? 3U : g->cols >= 128 ? 2U : 1U) ? 50 : 100;
}

START_TEST(fewer_tokens_have_their_own)
{
	static const struct {
		int64_t tokens;
		uint32_t number;
	} expected[] = {{200, 3}, {129, 3}, {128, 2}, {65, 2}, {64, 1}, {7, 1}};
	struct run r = new_run();

	simt_gemm_offer(OFFERED, by_tokens);
	choose(&r, false, 200);
	for (size_t i = 0; i < ARRAY_SIZE(expected); i++)
		ck_assert_uint_eq(multiply_block(r.dev, expected[i].tokens), expected[i].number);
	device_destroy(r.dev);
	end_run(&r);
}
END_TEST

START_TEST(resumed_run_without_the_file)
{
	struct run r = new_run();

	simt_gemm_offer(OFFERED, fastest_is_last);
	ck_assert_uint_eq(start(&r, true, 12), 3);
	ck_assert_ptr_nonnull(strstr(r.lines, "warning: there is no "));
	ck_assert_ptr_nonnull(strstr(r.lines, "may differ in the last bits"));
	ck_assert(file_exists(r.path));
	end_run(&r);
}
END_TEST

START_TEST(other_version_of_the_library)
{
	struct run r = new_run();

	simt_gemm_offer(OFFERED, fastest_is_last);
	start(&r, false, 12);
	setenv("SIMT_CUBLASLT", "130100", 1);
	simt_gemm_offer(OFFERED, fused_is_fast);
	ck_assert_uint_eq(start(&r, true, 12), 1);
	ck_assert_ptr_nonnull(strstr(r.lines, "has no algorithms for"));
	ck_assert_ptr_nonnull(strstr(r.lines, "cuBLASLt 13.1.0"));
	ck_assert_ptr_nonnull(strstr(r.lines, "may differ in the last bits"));
	/* Those of the version before are still there. */
	unsetenv("SIMT_CUBLASLT");
	ck_assert_uint_eq(start(&r, true, 12), 3);
	ck_assert_str_eq(r.lines, "");
	end_run(&r);
}
END_TEST

START_TEST(damaged_file_is_measured_again)
{
	struct run r = new_run();
	struct error err = ERROR_INIT;

	simt_gemm_offer(OFFERED, fastest_is_last);
	start(&r, false, 12);
	ck_ok(file_write_atomic(r.path, "{\"version\": 1", 13, 0666, &err), &err);
	simt_gemm_offer(OFFERED, fused_is_fast);
	ck_assert_uint_eq(start(&r, true, 12), 1);
	ck_assert_ptr_nonnull(strstr(r.lines, "the file is damaged"));
	ck_assert_ptr_nonnull(strstr(r.lines, r.path));
	ck_assert_ptr_nonnull(strstr(r.lines, "may differ in the last bits"));
	ck_assert_uint_eq(start(&r, true, 12), 1);
	ck_assert_str_eq(r.lines, "");
	end_run(&r);
}
END_TEST

/* What is listed before a run are all the products that it has. */
static const struct kind {
	const char *type; /* model_type, and what else the model has */
	enum dtype precision;
	int rank, accumulation;
	enum optimizer_kind optimizer;
	bool dora;
	double dropout;
	enum shard_quantize quantize;
	bool fp8;
} kinds[] = {
    {"\"llama\"", DTYPE_F32, 0, 1, OPTIMIZER_ADAMW, false, 0, SHARD_QUANTIZE_NONE, false},
    {"\"llama\",\"tie_word_embeddings\":true", DTYPE_BF16, 0, 2, OPTIMIZER_ADAMW, false, 0,
     SHARD_QUANTIZE_NONE, false},
    {"\"llama\"", DTYPE_BF16, 0, 1, OPTIMIZER_MUON, false, 0, SHARD_QUANTIZE_NONE, false},
    {"\"qwen2\"", DTYPE_BF16, 0, 2, OPTIMIZER_ADAMW, false, 0, SHARD_QUANTIZE_NONE, false},
    {"\"phi3\"", DTYPE_F32, 4, 1, OPTIMIZER_ADAMW, false, 0, SHARD_QUANTIZE_NONE, false},
    {"\"gpt2\"", DTYPE_F32, 0, 1, OPTIMIZER_ADAMW, false, 0, SHARD_QUANTIZE_NONE, false},
    {"\"gpt2\"", DTYPE_F32, 4, 1, OPTIMIZER_ADAMW, false, 0, SHARD_NF4, false},
    {"\"qwen2\"", DTYPE_BF16, 4, 1, OPTIMIZER_ADAMW, true, 0.1, SHARD_QUANTIZE_NONE, false},
    {"\"qwen3\",\"head_dim\":8", DTYPE_F16, 4, 2, OPTIMIZER_ADAMW, false, 0.1, SHARD_NF4_DOUBLE, false},
    {"\"qwen2\"", DTYPE_BF16, 0, 2, OPTIMIZER_ADAMW, false, 0, SHARD_QUANTIZE_NONE, true},
    {"\"gpt2\"", DTYPE_BF16, 4, 1, OPTIMIZER_ADAMW, false, 0, SHARD_QUANTIZE_NONE, true},
};

START_TEST(every_product_has_a_choice)
{
	static char *const all[] = {(char *)"all", NULL};
	const struct kind *k = &kinds[_i];
	_cleanup_free_ char *text =
	    str_printf("{\"model_type\":%s,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":"
	               "2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":40,"
	               "\"n_embd\":32,\"n_layer\":2,\"n_head\":4,\"n_positions\":64,\"n_ctx\":64,"
	               "\"n_inner\":48,\"pad_token_id\":0}",
	               k->type);
	struct run r = new_run();
	struct products_file file = {.path = r.path, .write = write_file, .notify = take_line, .context = &r};
	_cleanup_(dataset_closep) struct dataset *data = fake_dataset(8, 9, 4, 40, true);
	struct model_init init = {.seed = 1, .std = 0.1};
	struct error err = ERROR_INIT;
	struct train_options o;
	struct train_log log;
	struct model_config c;
	struct trainer *t;
	double loss;
	int before;

	simt_gemm_offer(OFFERED, fastest_is_last);
	ck_ok(model_config_parse(text, strlen(text), "config.json", &c, &err), &err);
	train_options_default(&o);
	o.max_steps = 4;
	o.micro_batch = 2;
	o.precision = k->precision;
	o.accumulation = k->accumulation;
	o.quantize = k->quantize;
	o.fp8 = k->fp8;
	o.optimizer = k->optimizer;
	o.momentum = 0.9;
	if (k->rank > 0)
		o.tuning = (struct model_tuning){.kind = TUNE_LORA,
		                                 .rank = k->rank,
		                                 .alpha = k->rank,
		                                 .dora = k->dora,
		                                 .dropout = k->dropout,
		                                 .target = all};
	ck_ok(device_create(NULL, &r.dev, &err), &err);
	ck_ok(products_choose(r.dev, NULL, "here", &c, &o, dataset_max_row(data), &file, &err), &err);
	ck_ok(trainer_create(r.dev, NULL, &c, &o, data, data, &t, &err), &err);
	ck_ok(trainer_load(t, model_init_fill, &init, &err), &err);
	before = simt_gemm_runs(-1) - simt_gemm_runs(OFFERED - 1);
	for (int s = 0; s < 2; s++)
		ck_ok(trainer_run_step(t, &log, &err), &err);
	ck_ok(trainer_evaluate(t, &loss, NULL, &err), &err);
	ck_assert_int_eq(simt_gemm_runs(-1) - simt_gemm_runs(OFFERED - 1), before);
	trainer_free(t);
	device_destroy(r.dev);
	end_run(&r);
}
END_TEST

/* ---- the kernels of attention: _i is the pass in question, and Hopper's kernel is no faster for the other
 * one ---- */

static const char *const pass_names[DEVICE_ATTENTION_PASSES] = {"forward", "backward"};

struct checks {
	struct run run;
	enum device_attention_pass pass;
	int count, result; /* calls of check; what they return */
	double seconds[2];
};

static int write_checked(void *context, const char *text, struct error *err)
{
	return write_file(&((struct checks *)context)->run, text, err);
}

static void take_checked_line(void *context, const char *message)
{
	take_line(&((struct checks *)context)->run, message);
}

static int check_attention(void *context, const struct device_attention_shape *shape, double seconds[2],
                           struct error *err)
{
	struct checks *c = context;

	ck_assert_int_eq(shape->head_dim, 64);
	ck_assert_int_eq(shape->heads, 2);
	ck_assert_int_eq(shape->rows, 12);
	ck_assert_int_eq(shape->type, DTYPE_BF16);
	seconds[0] = seconds[1] = 1e-3;
	if (shape->pass != c->pass)
		return 0;
	c->count++;
	memcpy(seconds, c->seconds, sizeof(c->seconds));
	return c->result < 0 ? error_set(err, c->result, "planted") : 0;
}

/* A start; whether Hopper's kernel is in use for the pass. */
static bool start_attention(struct checks *c, bool resumes)
{
	static const char text[] = "{\"model_type\":\"llama\",\"hidden_size\":128,\"intermediate_size\":48,"
	                           "\"num_hidden_layers\":1,\"num_attention_heads\":2,"
	                           "\"num_key_value_heads\":1,\"vocab_size\":40}";
	struct products_file file = {.path = c->run.path,
	                             .resumes = resumes,
	                             .write = write_checked,
	                             .notify = take_checked_line,
	                             .check_attention = check_attention,
	                             .context = c};
	struct error err = ERROR_INIT;
	struct train_options o;
	struct model_config config;
	bool hopper;

	simt_gemm_offer(1, fastest_is_last);
	c->run.lines[0] = '\0';
	c->count = 0;
	c->run.dev = open_device();
	ck_ok(model_config_parse(text, strlen(text), "config.json", &config, &err), &err);
	train_options_default(&o);
	o.precision = DTYPE_BF16;
	ck_ok(products_choose(c->run.dev, NULL, "here", &config, &o, 12, &file, &err), &err);
	hopper = c->run.dev->attention_hopper[c->pass];
	ck_assert(!c->run.dev->attention_hopper[!c->pass]);
	device_destroy(c->run.dev);
	return hopper;
}

static bool said(const struct checks *c, const char *words)
{
	return strstr(c->run.lines, words) != NULL;
}

static bool said_kernel(const struct checks *c, const char *kernel)
{
	_cleanup_free_ char *words =
	    str_printf("the %s pass of attention has the %s kernel", pass_names[c->pass], kernel);

	return said(c, words);
}

START_TEST(run_keeps_its_kernel)
{
	struct checks c = {.run = new_run(), .pass = (enum device_attention_pass)_i, .seconds = {2e-3, 1e-3}};

	ck_assert(start_attention(&c, false));
	ck_assert_int_eq(c.count, 1);
	ck_assert(said_kernel(&c, "Hopper"));
	/* It resumes with the same one, however fast that is now, and checks it again. */
	c.seconds[1] = 3e-3;
	ck_assert(start_attention(&c, true));
	ck_assert_int_eq(c.count, 1);
	ck_assert_str_eq(c.run.lines, "");
	/* A check that fails, and what comes after it. */
	c.result = -EBADMSG;
	ck_assert(!start_attention(&c, true));
	ck_assert(said(&c, "warning: "));
	ck_assert(said_kernel(&c, "portable"));
	ck_assert(said(&c, "planted"));
	ck_assert(said(&c, "results may differ in the last bits"));
	c.result = 0;
	ck_assert(!start_attention(&c, true));
	ck_assert_int_eq(c.count, 0);
	end_run(&c.run);
}
END_TEST

START_TEST(slower_kernel_is_not_used)
{
	struct checks c = {
	    .run = new_run(), .pass = (enum device_attention_pass)_i, .seconds = {1e-3, 0.99e-3}};

	ck_assert(!start_attention(&c, false));
	ck_assert(said_kernel(&c, "portable"));
	c.seconds[1] = 1e-6;
	ck_assert(!start_attention(&c, true));
	ck_assert_int_eq(c.count, 0);
	end_run(&c.run);
}
END_TEST

START_TEST(kernel_that_fails_is_not_used)
{
	struct checks c = {.run = new_run(), .pass = (enum device_attention_pass)_i, .result = -ETIMEDOUT};

	ck_assert(!start_attention(&c, false));
	ck_assert(said(&c, "Hopper's has not passed its check: planted"));
	ck_assert(!said(&c, "last bits"));
	ck_assert(!start_attention(&c, true));
	ck_assert_int_eq(c.count, 0);
	end_run(&c.run);
}
END_TEST

/* A device that cannot be opened once more says nothing of the kernel: a run begins without it, and one that
 * has it has it again at the next start. */
START_TEST(kernel_that_cannot_be_checked_is_kept)
{
	struct checks c = {.run = new_run(),
	                   .pass = (enum device_attention_pass)_i,
	                   .result = -ENODEV,
	                   .seconds = {2e-3, 1e-3}};

	ck_assert(!start_attention(&c, false));
	ck_assert(said(&c, "Hopper's could not be checked: planted"));
	ck_assert(said_kernel(&c, "portable"));
	ck_assert(!said(&c, "last bits"));
	c.result = 0;
	ck_assert(!start_attention(&c, true));
	ck_assert_int_eq(c.count, 0);
	end_run(&c.run);
	c.run = new_run();
	ck_assert(start_attention(&c, false));
	for (int resumes = 0; resumes < 2; resumes++) {
		c.result = -ENODEV;
		ck_assert(!start_attention(&c, resumes));
		ck_assert_int_eq(c.count, 1);
		ck_assert(said(&c, "warning: "));
		ck_assert(said_kernel(&c, "portable"));
		ck_assert(said(&c, "Hopper's could not be checked: planted"));
		ck_assert_int_eq(said(&c, "results may differ in the last bits"), resumes);
		c.result = 0;
		ck_assert(start_attention(&c, true));
		ck_assert_str_eq(c.run.lines, "");
	}
	end_run(&c.run);
}
END_TEST

/* A run whose file says nothing of attention began with the portable kernel. */
START_TEST(older_run_keeps_the_portable_kernel)
{
	struct checks c = {.run = new_run(), .pass = (enum device_attention_pass)_i, .seconds = {2e-3, 1e-3}};

	ck_assert(!start_attention(&c, true));
	ck_assert_int_eq(c.count, 0);
	ck_assert(!said(&c, "attention"));
	end_run(&c.run);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("algorithms");
	TCase *c = tcase_create("algorithms");

	tcase_set_timeout(c, 120);
	tcase_add_test(c, each_shape_has_its_fastest);
	tcase_add_loop_test(c, epilogue_against_its_kernel, 0, 2);
	tcase_add_loop_test(c, gradient_against_its_kernel, 0, 2);
	tcase_add_loop_test(c, other_numbers_of_rows, 0, 2);
	tcase_add_test(c, same_time_keeps_the_order);
	tcase_add_test(c, library_refuses_a_choice);
	tcase_add_test(c, resumed_run_takes_the_file);
	tcase_add_test(c, fewer_tokens_have_their_own);
	tcase_add_test(c, resumed_run_without_the_file);
	tcase_add_test(c, other_version_of_the_library);
	tcase_add_test(c, damaged_file_is_measured_again);
	tcase_add_loop_test(c, every_product_has_a_choice, 0, (int)ARRAY_SIZE(kinds));
	tcase_add_loop_test(c, run_keeps_its_kernel, 0, DEVICE_ATTENTION_PASSES);
	tcase_add_loop_test(c, slower_kernel_is_not_used, 0, DEVICE_ATTENTION_PASSES);
	tcase_add_loop_test(c, kernel_that_fails_is_not_used, 0, DEVICE_ATTENTION_PASSES);
	tcase_add_loop_test(c, kernel_that_cannot_be_checked_is_kept, 0, DEVICE_ATTENTION_PASSES);
	tcase_add_loop_test(c, older_run_keeps_the_portable_kernel, 0, DEVICE_ATTENTION_PASSES);
	suite_add_tcase(suite, c);
	return unit_run(suite);
}
