/* SPDX-License-Identifier: Apache-2.0 */
/* Tests adapters in the model: their gradients, with dropout and with DoRA, what evaluation sees of them, and
 * what they begin with. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "../engine/model_fixture.h"
#include "engine/model/nf4_weights.h"
#include "engine/model/pissa.h"
#include "engine/model/svd.h"

static const char *const models[] = {
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":100,\"attention_bias\":true,"
    "\"mlp_bias\":true}",
    "{\"model_type\":\"qwen3\",\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":100,\"head_dim\":32,"
    "\"tie_word_embeddings\":true}",
};

/* Its matrices are stored [in, out]. */
static const char gpt2[] = "{\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":64,\"n_inner\":96,"
                           "\"n_layer\":2,\"n_head\":4,\"n_positions\":64}";

static char *const all[] = {(char *)"all", NULL};
static char *const some[] = {(char *)"q_proj", (char *)"v_proj", (char *)"up_proj", (char *)"down_proj",
                             NULL};

static const struct model_tuning tunings[] = {
    {.kind = TUNE_LORA, .rank = 3, .alpha = 5, .target = all},
    {.kind = TUNE_LORA, .rank = 4, .alpha = 8, .target = some, .rslora = true},
    {.kind = TUNE_LORA, .rank = 3, .alpha = 5, .target = all, .dropout = 0.3},
    {.kind = TUNE_LORA, .rank = 4, .alpha = 8, .target = some, .dora = true},
    {.kind = TUNE_LORA, .rank = 3, .alpha = 5, .target = all, .dora = true, .dropout = 0.2},
    {.kind = TUNE_LORA, .rank = 3, .alpha = 5, .target = all, .init = LORA_INIT_PISSA},
    {.kind = TUNE_LORA, .rank = 4, .alpha = 8, .target = some, .init = LORA_INIT_PISSA, .dora = true},
};

struct sample {
	int32_t ids[32], targets[32], starts[4];
	struct model_batch b;
	int64_t counted;
};

static void sample_make(struct sample *s)
{
	static const int32_t starts[] = {0, 11, 12, 32};
	uint32_t x = 12345;

	memcpy(s->starts, starts, sizeof(starts));
	s->counted = 0;
	for (int t = 0; t < 32; t++) {
		x = x * 1664525 + 1013904223;
		s->ids[t] = (int32_t)((x >> 8) % 100);
	}
	for (int t = 0; t < 32; t++) {
		s->targets[t] = t + 1 == 11 || t + 1 == 12 || t + 1 == 32 ? -100 : s->ids[t + 1];
		s->counted += s->targets[t] >= 0;
	}
	s->b = (struct model_batch){.tokens = 32,
	                            .ids = s->ids,
	                            .targets = s->targets,
	                            .documents = 3,
	                            .starts = s->starts,
	                            .number = 5};
}

/* Adapters that do something; magnitudes near those of the rows. */
static int fill(void *init, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                struct error *err)
{
	if (p->part != PART_MAGNITUDE)
		return model_init_fill(init, p, first, n, out, err);
	for (int64_t i = 0; i < n; i++)
		out[i] = 1.0f + 0.01f * (float)((first + i) % 30);
	return 0;
}

static struct model_init init = {.seed = 3, .std = 0.15};

static void make(struct model_fixture *f, const char *model, const struct model_tuning *tuning, int way)
{
	struct model_options o = {.type = DTYPE_F32,
	                          .max_tokens = 32,
	                          .max_sequence = 32,
	                          .training = true,
	                          .logits_rows = 7,
	                          .recompute = (enum model_recompute)way,
	                          .tuning = tuning,
	                          .seed = 11};
	struct error err = ERROR_INIT;
	struct model_config c;

	ck_ok(model_config_parse(model, strlen(model), "config.json", &c, &err), &err);
	ck_ok(model_fixture_create(f, &c, &o, fill, &init, &err), &err);
}

static double training_loss(struct model_fixture *f, const struct sample *s)
{
	struct error err = ERROR_INIT;
	double loss;

	ck_ok(model_fixture_gradients(f, &s->b, 1.0f / (float)s->counted, true, &loss, &err), &err);
	return loss / (double)s->counted;
}

/* Along the gradient the loss grows by its square. Where it takes the norms of the rows for constants, which
 * differences cannot, that holds for the magnitudes alone. */
static void check_gradients(const char *model, const struct model_tuning *tuning, int way)
{
	struct model_fixture f;
	struct sample s;
	int seen = 0;

	sample_make(&s);
	make(&f, model, tuning, way);
	for (int i = 0; i < f.layout->parameters; i++) {
		const struct model_parameter *p = &f.layout->parameter[i];
		float *w = (float *)(void *)f.w[p->unit] + p->offset;
		size_t bytes = (size_t)p->count * sizeof(float);
		_cleanup_free_ float *old = malloc(bytes), *g = malloc(bytes);
		double norm = 0, step, side[2];

		if (p->frozen || (tuning->dora && p->part != PART_MAGNITUDE))
			continue;
		training_loss(&f, &s);
		memcpy(old, w, bytes);
		memcpy(g, f.g[p->unit] + p->offset, bytes);
		for (int64_t j = 0; j < p->count; j++)
			norm += (double)g[j] * g[j];
		ck_assert_double_gt(norm, 0);
		step = 2e-3 / sqrt(norm);
		for (int k = 0; k < 2; k++) {
			for (int64_t j = 0; j < p->count; j++)
				w[j] = (float)(old[j] + (k ? step : -step) * g[j]);
			side[k] = training_loss(&f, &s);
		}
		memcpy(w, old, bytes);
		ck_assert_msg(fabs((side[1] - side[0]) / (2 * step) / norm - 1) < 1e-2 || sqrt(norm) < 1e-3,
		              "%s: %g, differences say %g", p->name, sqrt(norm),
		              (side[1] - side[0]) / (2 * step) / sqrt(norm));
		seen++;
	}
	ck_assert_int_gt(seen, 7);
	model_fixture_free(&f);
}

START_TEST(gradients_are_differences)
{
	check_gradients(models[_i % 2], &tunings[_i / 2], _i % 3);
}
END_TEST

/* With all of tunings that name no modules. */
START_TEST(gradients_are_differences_where_matrices_are_transposed)
{
	check_gradients(gpt2, &tunings[0], 0);
	check_gradients(gpt2, &tunings[2], 1);
	check_gradients(gpt2, &tunings[4], 0);
	check_gradients(gpt2, &tunings[5], 2);
}
END_TEST

static void assert_same_gradients(const struct model_fixture *a, const struct model_fixture *b)
{
	for (int u = 0; u < a->layout->units; u++)
		ck_assert_mem_eq(a->g[u], b->g[u], (size_t)a->layout->unit[u].count * sizeof(float));
}

/* Whatever is computed again: the masks are those of the first time. */
START_TEST(recomputed_gradients_are_the_same)
{
	for (size_t t = 0; t < ARRAY_SIZE(tunings); t++) {
		struct model_fixture kept;
		struct sample s;
		double loss;

		sample_make(&s);
		make(&kept, models[t % 2], &tunings[t], MODEL_KEEP_ALL);
		loss = training_loss(&kept, &s);
		for (int way = MODEL_RECOMPUTE_BLOCK; way <= MODEL_RECOMPUTE_SELECTIVE; way++) {
			struct model_fixture again;

			make(&again, models[t % 2], &tunings[t], way);
			ck_assert_double_eq(training_loss(&again, &s), loss);
			assert_same_gradients(&kept, &again);
			model_fixture_free(&again);
		}
		model_fixture_free(&kept);
	}
}
END_TEST

/* A micro-batch has masks of its own; evaluation has none. */
START_TEST(dropout_is_of_the_micro_batch)
{
	struct model_tuning plain = tunings[2];
	struct model_fixture f, without;
	struct error err = ERROR_INIT;
	double first, whole, same;
	struct sample s;

	plain.dropout = 0;
	sample_make(&s);
	make(&f, models[0], &tunings[2], MODEL_KEEP_ALL);
	make(&without, models[0], &plain, MODEL_KEEP_ALL);
	first = training_loss(&f, &s);
	s.b.number = 6;
	ck_assert_double_ne(training_loss(&f, &s), first);
	s.b.number = 5;
	ck_assert_double_eq(training_loss(&f, &s), first);
	ck_ok(model_fixture_loss(&f, &s.b, &whole, &err), &err);
	ck_ok(model_fixture_loss(&without, &s.b, &same, &err), &err);
	ck_assert_double_eq(whole, same);
	ck_assert_double_ne(whole, first);
	model_fixture_free(&f);
	model_fixture_free(&without);
}
END_TEST

/* Two micro-steps add up. */
START_TEST(accumulation_adds_up)
{
	for (size_t t = 0; t < ARRAY_SIZE(tunings); t++) {
		struct model_fixture one, two;
		struct error err = ERROR_INIT;
		struct sample s;
		double loss;

		sample_make(&s);
		make(&one, models[t % 2], &tunings[t], MODEL_KEEP_ALL);
		make(&two, models[t % 2], &tunings[t], MODEL_KEEP_ALL);
		training_loss(&one, &s);
		for (int i = 0; i < 2; i++)
			ck_ok(
			    model_fixture_gradients(&two, &s.b, 0.5f / (float)s.counted, i == 0, &loss, &err),
			    &err);
		for (int u = 0; u < one.layout->units; u++)
			for (int64_t i = 0; i < one.layout->unit[u].count; i++)
				ck_assert_float_eq_tol(one.g[u][i], two.g[u][i], 1e-5f);
		model_fixture_free(&one);
		model_fixture_free(&two);
	}
}
END_TEST

/* ---- PiSSA ---- */

/* Singular values that fall: rows of noise, the first of them large. */
static void matrix_make(float *w, int64_t rows, int64_t cols)
{
	uint32_t x = 99;

	for (int64_t i = 0; i < rows * cols; i++) {
		x = x * 1664525 + 1013904223;
		w[i] = ((float)(x >> 8) / (1 << 24) - 0.5f) / (float)(1 + i / cols * cols / rows + i % cols);
	}
}

/* W·v = s·u, Wᵀ·u = s·v, vectors are orthonormal, and the values are the largest: with all of them, what
 * remains of W's squares is theirs. */
START_TEST(singular_values)
{
	static const int64_t shapes[][3] = {{1, 1, 1},  {30, 40, 6},  {40, 30, 6},
	                                    {7, 90, 7}, {64, 64, 64}, {130, 65, 9}};

	for (size_t n = 0; n < ARRAY_SIZE(shapes); n++)
		for (int iterations = 0; iterations <= 16; iterations += 16) {
			int64_t rows = shapes[n][0], cols = shapes[n][1], rank = shapes[n][2];
			_cleanup_free_ float *w = malloc((size_t)(rows * cols) * sizeof(*w));
			_cleanup_free_ float *u = malloc((size_t)(rows * rank) * sizeof(*u));
			_cleanup_free_ float *s = malloc((size_t)rank * sizeof(*s));
			_cleanup_free_ float *v = malloc((size_t)(rank * cols) * sizeof(*v));
			_cleanup_free_ float *first = malloc((size_t)rank * sizeof(*s));
			struct error err = ERROR_INIT;
			double square = 0, kept = 0;

			matrix_make(w, rows, cols);
			ck_ok(svd_largest(w, rows, cols, rank, 0, 1, u, first, v, &err), &err);
			ck_ok(svd_largest(w, rows, cols, rank, iterations, 1, u, s, v, &err), &err);
			for (int64_t k = 0; k < rank; k++) {
				ck_assert(k == 0 || s[k] <= s[k - 1]);
				ck_assert_double_eq_tol(s[k], first[k], 1e-4 * first[0]);
				for (int64_t o = 0; o <= k; o++) {
					double uu = 0, vv = 0;

					for (int64_t i = 0; i < rows; i++)
						uu += (double)u[i * rank + k] * u[i * rank + o];
					for (int64_t j = 0; j < cols; j++)
						vv += (double)v[k * cols + j] * v[o * cols + j];
					ck_assert_double_eq_tol(uu, o == k, 1e-5);
					ck_assert_double_eq_tol(vv, o == k, 1e-5);
				}
				for (int64_t i = 0; i < rows; i++) {
					double sum = 0;

					for (int64_t j = 0; j < cols; j++)
						sum += (double)w[i * cols + j] * v[k * cols + j];
					ck_assert_double_eq_tol(sum, (double)s[k] * u[i * rank + k],
					                        1e-4 * first[0]);
				}
				kept += (double)s[k] * s[k];
			}
			for (int64_t i = 0; i < rows * cols; i++)
				square += (double)w[i] * w[i];
			ck_assert_double_le(kept, square * (1 + 1e-5));
			if (rank == MIN(rows, cols))
				ck_assert_double_eq_tol(kept, square, 1e-5 * square);
		}
}
END_TEST

struct start {
	struct pissa_start *pissa;
};

static int fill_start(void *start, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                      struct error *err)
{
	struct start *s = start;

	return p->part == PART_WEIGHT ? model_init_fill(&init, p, first, n, out, err)
	                              : pissa_start_fill(s->pissa, p, first, n, out, err);
}

/* The model begins as it is; what is kept of the beginning has no gradient, and the rest has. */
START_TEST(pissa_begins_with_the_model)
{
	const char *model = _i ? gpt2 : models[0];
	const struct model_tuning *tuning = &tunings[5];
	struct model_options o = {
	    .type = DTYPE_F32, .max_tokens = 32, .max_sequence = 32, .training = true, .tuning = tuning};
	struct model_fixture f, base;
	struct model_tuning none = {.kind = TUNE_LORA, .rank = 3, .alpha = 5, .target = all};
	struct model_layout *layout;
	struct error err = ERROR_INIT;
	struct model_config c;
	double with, without;
	struct start start;
	struct sample s;

	sample_make(&s);
	ck_ok(model_config_parse(model, strlen(model), "config.json", &c, &err), &err);
	ck_ok(model_layout_create_tuned(&c, tuning, &layout, &err), &err);
	ck_ok(pissa_start_create(layout, tuning, 1, model_init_fill, &init, &start.pissa, &err), &err);
	ck_ok(model_fixture_create(&f, &c, &o, fill_start, &start, &err), &err);
	make(&base, model, &none, MODEL_KEEP_ALL);
	for (int i = 0; i < base.layout->parameters; i++) { /* without B an adapter does nothing */
		const struct model_parameter *p = &base.layout->parameter[i];

		if (p->part == PART_LORA_B)
			memset((float *)(void *)base.w[p->unit] + p->offset, 0,
			       (size_t)p->count * sizeof(float));
	}
	ck_ok(model_fixture_loss(&f, &s.b, &with, &err), &err);
	ck_ok(model_fixture_loss(&base, &s.b, &without, &err), &err);
	ck_assert_double_eq_tol(with, without, 1e-5);
	training_loss(&f, &s);
	for (int i = 0; i < f.layout->parameters; i++) {
		const struct model_parameter *p = &f.layout->parameter[i];
		const float *g = f.g[p->unit] + p->offset;
		double trained = 0;

		for (int64_t j = 0; j < p->count && p->part != PART_WEIGHT; j++) {
			int64_t k = p->part == PART_LORA_A ? j / p->shape[1] : j % p->shape[1];

			trained += k < 3 ? fabs(g[j]) : 0;
			ck_assert(k < 3 || g[j] == 0);
		}
		ck_assert(p->part == PART_WEIGHT || trained > 0);
	}
	ck_assert_int_eq(f.layout->trained, base.layout->trained);
	pissa_start_free(start.pissa);
	model_layout_free(layout);
	model_fixture_free(&f);
	model_fixture_free(&base);
}
END_TEST

/* The largest of these matrices has 96 x 64 elements, which take one thread 96 · 64 · 64 · 20 ns. */
START_TEST(other_ranks_do_not_wait_too_long_for_pissa)
{
	struct model_tuning tuning = tunings[5];
	struct model_layout *layout;
	struct error err = ERROR_INIT;
	struct model_config c;

	ck_ok(model_config_parse(models[0], strlen(models[0]), "config.json", &c, &err), &err);
	ck_ok(model_layout_create_tuned(&c, &tuning, &layout, &err), &err);
	tuning.pissa_iterations = 0;
	ck_fails(pissa_check_time(layout, &tuning, 1, 0.01, &err), &err,
	         "lora.pissa_iterations = 0: the exact singular values of model.layers.0.");
	ck_assert_ptr_nonnull(
	    strstr(err.message, "expected lora.pissa_iterations = 16, or parallel.timeout = 1"));
	ck_ok(pissa_check_time(layout, &tuning, 1, 1, &err), &err);
	ck_ok(pissa_check_time(layout, &tuning, 8, 0.01, &err), &err);
	tuning.pissa_iterations = 16;
	ck_ok(pissa_check_time(layout, &tuning, 1, 0.01, &err), &err);
	model_layout_free(layout);
}
END_TEST

/* With its scale, the trained half of an adapter is the projection of the matrix: its product with the matrix
 * is its own square. */
START_TEST(pissa_takes_the_largest_part)
{
	const char *model = _i ? gpt2 : models[0];
	const struct model_tuning *tuning = &tunings[5];
	double scale = tuning_scale(tuning);
	struct pissa_start *pissa;
	struct model_layout *layout;
	struct error err = ERROR_INIT;
	struct model_config c;
	int compared = 0;

	ck_assert_double_ne(scale, 1);
	ck_ok(model_config_parse(model, strlen(model), "config.json", &c, &err), &err);
	ck_ok(model_layout_create_tuned(&c, tuning, &layout, &err), &err);
	ck_ok(pissa_start_create(layout, tuning, 1, model_init_fill, &init, &pissa, &err), &err);
	for (int i = 0; i < layout->parameters; i++) {
		const struct model_parameter *a = &layout->parameter[i], *b = NULL, *of;
		_cleanup_free_ float *va = NULL, *vb = NULL, *vw = NULL;
		double with = 0, square = 0;

		if (a->part != PART_LORA_A)
			continue;
		of = model_layout_matrix(layout, a);
		for (int k = 0; k < layout->parameters; k++)
			if (layout->parameter[k].part == PART_LORA_B &&
			    model_layout_matrix(layout, &layout->parameter[k]) == of)
				b = &layout->parameter[k];
		ck_assert(of && b);
		va = malloc((size_t)a->count * sizeof(*va));
		vb = malloc((size_t)b->count * sizeof(*vb));
		vw = malloc((size_t)of->count * sizeof(*vw));
		ck_ok(model_init_fill(&init, of, 0, of->count, vw, &err), &err);
		ck_ok(pissa_start_fill(pissa, a, 0, a->count, va, &err), &err);
		ck_ok(pissa_start_fill(pissa, b, 0, b->count, vb, &err), &err);
		for (int64_t row = 0; row < b->shape[0]; row++)
			for (int64_t column = 0; column < a->shape[1]; column++) {
				int64_t at = of->transposed ? column * of->shape[1] + row
				                            : row * of->shape[1] + column;
				double sum = 0;

				for (int64_t k = 0; k < tuning->rank; k++)
					sum +=
					    scale * vb[row * b->shape[1] + k] * va[k * a->shape[1] + column];
				with += sum * vw[at];
				square += sum * sum;
			}
		ck_assert_double_gt(square, 0);
		ck_assert_double_eq_tol(with, square, 1e-3 * square);
		compared++;
	}
	ck_assert_int_gt(compared, 0);
	pissa_start_free(pissa);
	model_layout_free(layout);
}
END_TEST

static int fill_matrix(void *matrix, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                       struct error *err)
{
	memcpy(out, (const float *)matrix + first, (size_t)n * sizeof(*out));
	return 0;
}

/* Bit for bit what the device makes of them, whatever part is asked for first. */
START_TEST(weights_in_4_bits_are_those_of_the_device)
{
	enum { N = 64 * 256 + 1000, BLOCKS = (N + 63) / 64 };
	static float x[N], got[N], want[N];
	static uint8_t codes[BLOCKS * 32], absmax8[BLOCKS];
	static float absmax[BLOCKS], absmax2[2];
	const struct device_options options = {.threads = 1};
	const struct model_parameter p = {.count = N};
	struct nf4_weights w = {
	    .weights = fill_matrix, .context = x, .quantized = true, .twice = _i % 2, .type = DTYPE_F32};
	float offset;
	struct device_nf4 q = {.n = N, .codes = codes, .absmax = absmax};
	struct error err = ERROR_INIT;
	struct device *dev;

	matrix_make(x, 1, N);
	memset(x + 640, 0, 64 * sizeof(*x));
	if (_i % 2)
		q = (struct device_nf4){
		    .n = N, .codes = codes, .absmax8 = absmax8, .absmax2 = absmax2, .offset = &offset};
	ck_ok(device_create(&options, &dev, &err), &err);
	ck_ok(device_reserve_scratch(dev, sizeof(absmax), &err), &err);
	device_nf4_quantize(dev, &q, x, DTYPE_F32);
	device_nf4_dequantize(dev, want, DTYPE_F32, &q);
	ck_ok(nf4_weights_fill(&w, &p, 1000, N - 1000, got + 1000, &err), &err);
	ck_ok(nf4_weights_fill(&w, &p, 0, 1000, got, &err), &err);
	ck_assert_mem_eq(got, want, sizeof(want));
	ck_assert_mem_ne(got, x, sizeof(x));
	nf4_weights_free(&w);
	w.quantized = false;
	ck_ok(nf4_weights_fill(&w, &p, 0, N, got, &err), &err);
	ck_assert_mem_eq(got, x, sizeof(x));
	device_destroy(dev);
}
END_TEST

/* A rank beyond that of a matrix is one line. */
START_TEST(ranks_fit)
{
	struct model_tuning tuning = {.kind = TUNE_LORA, .rank = 33, .alpha = 5, .target = all};
	struct model_layout *layout = NULL;
	struct error err = ERROR_INIT;
	struct model_config c;

	ck_ok(model_config_parse(models[0], strlen(models[0]), "config.json", &c, &err), &err);
	ck_fails(model_layout_create_tuned(&c, &tuning, &layout, &err), &err,
	         "model.layers.0.self_attn.k_proj.weight, a matrix of 32 x 64");
	tuning.rank = 32;
	ck_ok(model_layout_create_tuned(&c, &tuning, &layout, &err), &err);
	model_layout_free(layout);
}
END_TEST

/* The shapes that a device prepares itself for say which gradients are not computed. */
START_TEST(shapes_tell_what_is_frozen)
{
	static char *const names[] = {(char *)"all", NULL}, *const head[] = {(char *)"lm_head", NULL};
	static const struct {
		const struct model_tuning tuning;
		bool blocks, head;
	} cases[] = {
	    {{.kind = TUNE_ALL}, false, false},
	    {{.kind = TUNE_LORA, .rank = 3, .alpha = 5, .target = names}, true, true},
	    {{.kind = TUNE_LORA, .rank = 3, .alpha = 5, .target = names, .saved = head}, true, false},
	    {{.kind = TUNE_SOME, .layers = 1, .modules = names}, false, true},
	};
	static const char untied[] =
	    "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":48,"
	    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
	    "\"vocab_size\":100,\"tie_word_embeddings\":false}";

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct model_fixture f;
		struct device_shapes shapes;

		make(&f, untied, &cases[i].tuning, MODEL_KEEP_ALL);
		model_shapes(f.model, &shapes);
		ck_assert_int_eq(shapes.frozen_blocks, cases[i].blocks);
		ck_assert_int_eq(shapes.frozen_head, cases[i].head);
		model_fixture_free(&f);
	}
}
END_TEST

static Suite *suite_make(void)
{
	Suite *suite = suite_create("adapters");
	TCase *tc = tcase_create("adapters");

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, gradients_are_differences, 0, 2 * ARRAY_SIZE(tunings));
	tcase_add_test(tc, gradients_are_differences_where_matrices_are_transposed);
	tcase_add_loop_test(tc, weights_in_4_bits_are_those_of_the_device, 0, 2);
	tcase_add_test(tc, recomputed_gradients_are_the_same);
	tcase_add_test(tc, dropout_is_of_the_micro_batch);
	tcase_add_test(tc, accumulation_adds_up);
	tcase_add_test(tc, singular_values);
	tcase_add_loop_test(tc, pissa_begins_with_the_model, 0, 2);
	tcase_add_test(tc, other_ranks_do_not_wait_too_long_for_pissa);
	tcase_add_loop_test(tc, pissa_takes_the_largest_part, 0, 2);
	tcase_add_test(tc, ranks_fit);
	tcase_add_test(tc, shapes_tell_what_is_frozen);
	suite_add_tcase(suite, tc);
	return suite;
}

int main(void)
{
	return unit_run(suite_make());
}
