/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training in which blocks keep the outputs of norms and of the activation, compared with the same training
 * in which the backward pass computes them again: every loss, gradient norm and weight has the same bits.
 * Also over the CUDA kernels on the emulated GPU (tests/simt).
 */
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#include "../engine/fake_dataset.h"
#include "engine/train/plan.h"
#include "engine/train/trainer.h"
#include "trainer_state.h"

enum { STEPS = 2, LAYERS = 3 };

#define SIZES                                                                                                \
	"\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":3,\"num_attention_heads\":2,"     \
	"\"num_key_value_heads\":1,\"vocab_size\":50"

static const struct {
	const char *text;
	int norms; /* of a block, without those of q and k */
} models[] = {
    {"{\"model_type\":\"llama\"," SIZES ",\"tie_word_embeddings\":true}", 2},
    {"{\"model_type\":\"qwen3\"," SIZES ",\"head_dim\":16}", 2},
    {"{\"model_type\":\"phi3\"," SIZES "}", 2},
    /* Norms behind attention and the MLP alone: what these read is the residual stream. */
    {"{\"model_type\":\"olmo2\"," SIZES "}", 2},
    /* Norms around both, and GELU with a gate. */
    {"{\"model_type\":\"gemma2\"," SIZES ",\"head_dim\":16}", 4},
    /* LayerNorm, and GELU without a gate. */
    {"{\"model_type\":\"gpt2\",\"n_embd\":32,\"n_layer\":3,\"n_head\":2,\"n_inner\":48,\"n_positions\":32,"
     "\"vocab_size\":50}",
     2},
    /* The last one: fp8 has no linear attention. */
    {"{\"model_type\":\"qwen3_5_text\"," SIZES
     ",\"head_dim\":16,\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_key_head_dim\":8,"
     "\"linear_value_head_dim\":8,\"layer_types\":[\"linear_attention\",\"full_attention\","
     "\"linear_attention\"]}",
     2},
};

enum { MODELS = ARRAY_SIZE(models) };

/* ---- what is computed ---- */

static int norms;       /* that are computed */
static int activations; /* whose outputs are written again */
static int searched;    /* operands in fp8 whose largest magnitude no other kernel has found */

#define COUNTED(name, parameters, arguments, count)                                                          \
	void __real_##name parameters;                                                                       \
	void __wrap_##name parameters;                                                                       \
	void __wrap_##name parameters                                                                        \
	{                                                                                                    \
		count;                                                                                       \
		__real_##name arguments;                                                                     \
	}

COUNTED(device_rmsnorm_forward,
        (struct device * dev, const struct device_norm *n, void *y, float *rstd, const void *x,
         const void *w),
        (dev, n, y, rstd, x, w), norms++)
COUNTED(device_layernorm_forward,
        (struct device * dev, const struct device_norm *n, void *y, float *statistics, const void *x,
         const void *w, const void *b),
        (dev, n, y, statistics, x, w, b), norms++)
COUNTED(device_swiglu_backward,
        (struct device * dev, void *d_gate_up, void *y, const void *d_y, const void *gate_up, int64_t tokens,
         int cols, enum dtype type, float *amax),
        (dev, d_gate_up, y, d_y, gate_up, tokens, cols, type, amax), activations += y != NULL)
COUNTED(device_gelu_backward,
        (struct device * dev, void *d_x, void *y, const void *d_y, const void *x, int64_t tokens, int cols,
         bool gated, enum dtype type),
        (dev, d_x, y, d_y, x, tokens, cols, gated, type), activations += y != NULL)

COUNTED(device_fp8_quantize, (struct device * dev, const struct device_fp8 *q, const void *src),
        (dev, q, src), searched += !q->amax)

/* ---- training ---- */

struct result {
	double losses[STEPS], gradients[STEPS], eval;
	float *weights;
	int64_t elements;
	int norms, activations, searched; /* of all steps */
};

/* Weights, and those of adapters. */
static void read_weights(struct trainer *t, struct result *r)
{
	const struct model_layout *l = trainer_layout(t);
	struct error err = ERROR_INIT;
	float *at;

	for (int i = 0; i < l->parameters; i++)
		r->elements += l->parameter[i].count;
	r->weights = at = calloc((size_t)r->elements, sizeof(float));
	for (int i = 0; i < l->parameters; at += l->parameter[i++].count)
		ck_ok(trainer_read(t, STATE_WEIGHTS, &l->parameter[i], 0, l->parameter[i].count, at, &err),
		      &err);
}

static struct result train(const char *text, const struct train_options *o)
{
	_cleanup_(dataset_closep) struct dataset *rows = fake_dataset(12, 17, 6, 50, true);
	struct error err = ERROR_INIT;
	struct result r = {0};
	struct train_log log;
	struct trainer *t;
	struct device *dev;

	t = trainer_state_begin(text, o, rows, &dev);
	norms = activations = searched = 0;
	for (int s = 0; s < STEPS; s++) {
		ck_ok(trainer_run_step(t, &log, &err), &err);
		r.losses[s] = log.loss;
		r.gradients[s] = log.grad_norm;
	}
	r.norms = norms;
	r.activations = activations;
	r.searched = searched;
	/* A forward pass alone writes what blocks keep, too. */
	ck_ok(trainer_evaluate(t, &r.eval, NULL, &err), &err);
	ck_ok(trainer_run_step(t, &log, &err), &err);
	read_weights(t, &r);
	trainer_free(t);
	device_destroy(dev);
	return r;
}

static struct train_options options(enum dtype type, int accumulation)
{
	struct train_options o;

	train_options_default(&o);
	o.micro_batch = 2;
	o.accumulation = accumulation;
	o.max_steps = STEPS + 1;
	o.learning_rate = 1e-2;
	o.precision = type;
	return o;
}

/* The same with the outputs of so many of the last blocks, of which `kept` recompute nothing else: of each of
 * these, so many norms fewer are computed, and so many activations. */
static void compare(const char *text, struct train_options o, int outputs, int kept, int fewer_norms,
                    int fewer_activations)
{
	int passes = MIN(outputs, kept) * STEPS * (int)o.accumulation;
	struct result again, stored;

	again = train(text, &o);
	o.kept_outputs = outputs;
	stored = train(text, &o);
	for (int s = 0; s < STEPS; s++) {
		ck_assert_double_eq(again.losses[s], stored.losses[s]);
		ck_assert_double_eq(again.gradients[s], stored.gradients[s]);
	}
	ck_assert_double_eq(again.eval, stored.eval);
	ck_assert_int_eq(again.elements, stored.elements);
	ck_assert_mem_eq(again.weights, stored.weights, (size_t)again.elements * sizeof(float));
	ck_assert(again.losses[0] != again.losses[1]);
	ck_assert_msg(again.norms - stored.norms == passes * fewer_norms,
	              "%s: %d norms without kept outputs, %d with them", text, again.norms, stored.norms);
	ck_assert_msg(again.activations - stored.activations == passes * fewer_activations,
	              "%s: %d activations are written again without kept outputs, %d with them", text,
	              again.activations, stored.activations);
	ck_assert_int_eq(again.searched, stored.searched);
	free(again.weights);
	free(stored.weights);
}

START_TEST(same_bits_of_every_family)
{
	/* One block, all, and more than there are. */
	static const int outputs[] = {LAYERS, 1, 100};
	struct train_options o = options(_i < MODELS ? DTYPE_F32 : DTYPE_BF16, 1 + _i % 2);

	compare(models[_i % MODELS].text, o, outputs[(_i + _i / MODELS) % 3], LAYERS,
	        models[_i % MODELS].norms, 1);
}
END_TEST

START_TEST(same_bits_in_fp8)
{
	struct train_options o = options(DTYPE_BF16, 1 + _i % 2);

	o.fp8 = true;
	compare(models[_i].text, o, LAYERS - _i % 2, LAYERS, models[_i].norms, 1);
}
END_TEST

/* Blocks that recompute keep no outputs. */
START_TEST(same_bits_where_other_blocks_recompute)
{
	struct train_options o = options(DTYPE_BF16, 1);

	o.recompute = _i < MODELS ? MODEL_RECOMPUTE_BLOCK : MODEL_RECOMPUTE_SELECTIVE;
	o.kept_blocks = (_i + _i / MODELS) % LAYERS;
	compare(models[_i % MODELS].text, o, 2, o.kept_blocks, models[_i % MODELS].norms, 1);
}
END_TEST

/* Where no gradient of weights reads an output, it is neither kept nor written again; the statistics of norms
 * are kept all the same. */
START_TEST(same_bits_of_adapters)
{
	static char *const some[] = {"q_proj", "v_proj", NULL}, *const all[] = {"all", NULL};
	struct train_options o = options(DTYPE_BF16, 2);
	bool unread = _i % 3 == 0;

	o.tuning = (struct model_tuning){.kind = TUNE_LORA,
	                                 .rank = 4,
	                                 .alpha = 8,
	                                 .dropout = _i == 1 ? 0.2 : 0,
	                                 .dora = _i == 2,
	                                 .target = unread ? some : all};
	o.fp8 = _i >= 3;
	compare(models[_i % 2].text, o, 2, LAYERS, 2, !unread);
	ck_assert(!unread || activations == 0);
}
END_TEST

/* Blocks below what is trained have no backward pass. */
START_TEST(frozen_blocks_keep_nothing)
{
	struct train_options o = options(DTYPE_F32, 1);

	o.tuning = (struct model_tuning){.kind = TUNE_SOME, .layers = 2};
	compare(models[0].text, o, LAYERS, 2, 2, 1);
}
END_TEST

/* ---- memory ---- */

enum { ROW = 24 };

static size_t activation_bytes(const char *text, const struct train_options *o)
{
	_cleanup_(plan_freep) struct plan *p = NULL;
	struct error err = ERROR_INIT;
	struct model_config c;
	size_t bytes = 0;

	ck_ok(model_config_parse(text, strlen(text), "config.json", &c, &err), &err);
	ck_ok(plan_create(NULL, NULL, 0, 1, &c, o, ROW, &p, &err), &err);
	for (size_t i = 0; i < p->arena.n; i++)
		if (p->arena.buffers[i].class_ == BUFFER_ACTIVATIONS)
			bytes += p->arena.buffers[i].bytes;
	return bytes;
}

/* Each token takes so many elements of outputs, and so many statistics, in a block. */
static void check_memory(int model, struct train_options o, int outputs, int blocks, size_t elements,
                         size_t statistics)
{
	size_t tokens = (size_t)o.micro_batch * ROW, before = activation_bytes(models[model].text, &o);

	o.kept_outputs = outputs;
	ck_assert_uint_eq(activation_bytes(models[model].text, &o),
	                  before + (size_t)blocks * tokens *
	                               (elements * dtype_size(o.precision) + statistics * sizeof(float)));
}

/* Outputs that the backward pass reads take memory, and no others. */
START_TEST(memory_of_what_is_read)
{
	static char *const some[] = {"q_proj", "v_proj", NULL}, *const mlp[] = {"mlp", NULL};
	struct train_options o = options(_i ? DTYPE_BF16 : DTYPE_F32, 1);

	for (int n = 0; n <= LAYERS + 1; n++)
		check_memory(0, o, n, MIN(n, LAYERS), 32 + 32 + 48, 2);
	check_memory(3, o, LAYERS, LAYERS, 48, 2);           /* olmo2 */
	check_memory(4, o, LAYERS, LAYERS, 32 + 32 + 48, 4); /* gemma2 */
	check_memory(5, o, LAYERS, LAYERS, 32 + 32 + 48, 4); /* gpt2 */
	o.recompute = MODEL_RECOMPUTE_BLOCK;
	check_memory(0, o, 2, 0, 0, 0);
	o.kept_blocks = 1;
	check_memory(0, o, 2, 1, 32 + 32 + 48, 2);
	o = options(o.precision, 1);
	o.tuning = (struct model_tuning){.kind = TUNE_LORA, .rank = 4, .alpha = 8, .target = some};
	check_memory(0, o, LAYERS, LAYERS, 32, 2);
	o.tuning = (struct model_tuning){.kind = TUNE_SOME, .layers = 2};
	check_memory(0, o, LAYERS, 2, 32 + 32 + 48, 2);
	o.tuning.modules = mlp;
	check_memory(0, o, LAYERS, 2, 32 + 48, 2);
}
END_TEST

#ifdef TEST_ENGINE_SIMT
#define SLOW 1 /* the emulated GPU: every family in bf16, and one case of each kind */
#else
#define SLOW 0
#endif

int main(void)
{
	Suite *s = suite_create("kept_outputs");
	TCase *t = tcase_create("kept_outputs");

	tcase_set_timeout(t, 300);
	tcase_add_loop_test(t, same_bits_of_every_family, SLOW ? MODELS : 0, 2 * MODELS);
	tcase_add_loop_test(t, same_bits_in_fp8, 0, SLOW ? 1 : MODELS - 1);
	tcase_add_loop_test(t, same_bits_where_other_blocks_recompute, 0, SLOW ? 1 : 2 * MODELS);
	tcase_add_loop_test(t, same_bits_of_adapters, 0, SLOW ? 1 : 6);
	tcase_add_test(t, frozen_blocks_keep_nothing);
	tcase_add_loop_test(t, memory_of_what_is_read, 0, 2);
	suite_add_tcase(s, t);
	return unit_run(s);
}
