/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training in fp8 where kernels find the largest magnitudes of operands, compared with the same training
 * where quantizing finds all of them by a pass of its own: every loss, gradient norm and weight has the same
 * bits. Also over the CUDA kernels on the emulated GPU (tests/simt).
 */
#include "unit.h"

#include <string.h>

#include "../engine/fake_dataset.h"
#include "engine/train/trainer.h"
#include "trainer_state.h"

#define STEPS 3

static const struct {
	const char *name, *text;
	/* Products in a block whose input, and whose output's gradient, have no largest magnitude yet. */
	int inputs, gradients;
} models[] = {
    {"llama, heads of 64",
     "{\"model_type\":\"llama\",\"hidden_size\":128,\"intermediate_size\":48,\"num_hidden_layers\":2,"
     "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":50,\"rms_norm_eps\":1e-5,"
     "\"tie_word_embeddings\":true}",
     0, 1},
    {"qwen3",
     "{\"model_type\":\"qwen3\",\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,"
     "\"head_dim\":16,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":50,"
     "\"tie_word_embeddings\":true}",
     0, 1},
    /* Norms behind attention and the MLP: the residual stream is an input, and gradients are copies of it. */
    {"olmo2",
     "{\"model_type\":\"olmo2\",\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,"
     "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":50,\"rms_norm_eps\":1e-5}",
     2, 3},
    /* GELU finds nothing. */
    {"gemma2",
     "{\"model_type\":\"gemma2\",\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,"
     "\"head_dim\":16,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":50}",
     1, 4},
    /* Nor does LayerNorm. */
    {"gpt2",
     "{\"model_type\":\"gpt2\",\"n_embd\":32,\"n_layer\":2,\"n_head\":2,\"n_inner\":48,\"n_positions\":32,"
     "\"vocab_size\":50}",
     3, 4},
};

static bool apart; /* every largest magnitude by a pass of its own */
static int inputs, gradients;

void __real_device_fp8_quantize(struct device *dev, const struct device_fp8 *q, const void *src);
void __wrap_device_fp8_quantize(struct device *dev, const struct device_fp8 *q, const void *src);
void __wrap_device_fp8_quantize(struct device *dev, const struct device_fp8 *q, const void *src)
{
	struct device_fp8 changed = *q;

	/* Weights alone have codes of both kinds in E4M3. */
	if (!q->amax && q->format == FP8_E5M2)
		gradients++;
	else if (!q->amax && !(q->codes && q->turned))
		inputs++;
	if (apart)
		changed.amax = NULL;
	__real_device_fp8_quantize(dev, &changed, src);
}

struct result {
	double losses[STEPS], norms[STEPS], eval;
	float *state;
	int64_t elements;
};

static struct result train(const char *text, const struct train_options *o, const struct dataset *rows)
{
	struct error err = ERROR_INIT;
	struct result r = {0};
	struct train_log log;
	struct trainer *t;
	struct device *dev;

	inputs = gradients = 0;
	t = trainer_state_begin(text, o, rows, &dev);
	for (int s = 0; s < STEPS; s++) {
		ck_ok(trainer_run_step(t, &log, &err), &err);
		r.losses[s] = log.loss;
		r.norms[s] = log.grad_norm;
	}
	ck_ok(trainer_evaluate(t, &r.eval, NULL, &err), &err);
	r.state = trainer_state_read(t, STATE_WEIGHTS);
	r.elements = trainer_layout(t)->elements;
	trainer_free(t);
	device_destroy(dev);
	return r;
}

START_TEST(same_bits_as_by_a_pass)
{
	_cleanup_(dataset_closep) struct dataset *rows = fake_dataset(12, 17, 6, 50, true);
	const char *name = models[_i % ARRAY_SIZE(models)].name, *text = models[_i % ARRAY_SIZE(models)].text;
	bool again = _i >= (int)ARRAY_SIZE(models);
	struct train_options o;
	struct result found, passed;

	train_options_default(&o);
	o.micro_batch = 2;
	o.accumulation = again ? 2 : 1;
	o.max_steps = STEPS;
	o.learning_rate = 1e-2;
	o.precision = DTYPE_BF16;
	o.fp8 = true;
	o.recompute = again ? MODEL_RECOMPUTE_BLOCK : MODEL_KEEP_ALL;
	apart = false;
	found = train(text, &o, rows);
	/* Two blocks: gradients in the backward pass alone, inputs in both passes. */
	ck_assert_msg(gradients == 2 * models[_i % ARRAY_SIZE(models)].gradients * STEPS * o.accumulation,
	              "%s: %d gradients are read twice", name, gradients);
	if (!again)
		ck_assert_msg(models[_i % ARRAY_SIZE(models)].inputs ? inputs > 0 : inputs == 0,
		              "%s: %d inputs are read twice", name, inputs);
	apart = true;
	passed = train(text, &o, rows);
	for (int s = 0; s < STEPS; s++) {
		ck_assert_double_eq(found.losses[s], passed.losses[s]);
		ck_assert_double_eq(found.norms[s], passed.norms[s]);
	}
	ck_assert_double_eq(found.eval, passed.eval);
	ck_assert(!memcmp(found.state, passed.state, (size_t)found.elements * sizeof(float)));
	ck_assert(found.losses[STEPS - 1] != found.losses[0]);
	free(found.state);
	free(passed.state);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fp8_amax");
	TCase *t = tcase_create("fp8_amax");

	tcase_set_timeout(t, 300);
	tcase_add_loop_test(t, same_bits_as_by_a_pass, 0, 2 * (int)ARRAY_SIZE(models));
	suite_add_tcase(s, t);
	return unit_run(s);
}
