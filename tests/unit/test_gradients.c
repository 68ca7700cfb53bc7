/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of blocks in bf16, over the CPU engine and over the emulated GPU: those in fp32, rounded once. */
#include "unit.h"

#include <string.h>

#include "../engine/model_fixture.h"

#define SIZES                                                                                                \
	"\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_attention_heads\":4,"    \
	"\"num_key_value_heads\":2,\"vocab_size\":100"

static const char *const models[] = {
    "{\"model_type\":\"llama\"," SIZES ",\"attention_bias\":true,\"mlp_bias\":true}",
    "{\"model_type\":\"qwen2\"," SIZES ",\"tie_word_embeddings\":true}",
    "{\"model_type\":\"qwen3\"," SIZES ",\"head_dim\":32}",
    "{\"model_type\":\"phi3\"," SIZES "}",
    "{\"model_type\":\"gemma2\"," SIZES ",\"head_dim\":16}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":64,\"n_layer\":2,\"n_head\":2,\"n_positions\":"
    "64}",
    "{\"model_type\":\"qwen3_5_text\"," SIZES
    ",\"head_dim\":16,\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_key_head_dim\":16,"
    "\"linear_value_head_dim\":16,\"layer_types\":[\"linear_attention\",\"full_attention\"]}",
    /* Most of the experts get no token. */
    "{\"model_type\":\"qwen3_moe\"," SIZES
    ",\"head_dim\":18,\"num_experts\":80,\"num_experts_per_tok\":1,\"moe_intermediate_size\":7}",
};

enum { TOKENS = 32 };

/* Three documents; some tokens have no target. */
struct sample {
	int32_t ids[TOKENS], targets[TOKENS], starts[4];
	struct model_batch b;
};

static void make_sample(struct sample *s)
{
	static const int32_t starts[] = {0, 5, 22, TOKENS};

	for (int t = 0; t < TOKENS; t++) {
		s->ids[t] = (t * t * 7 + 3 * t) % 100;
		s->targets[t] = t % 5 == 0 ? -100 : (s->ids[t] * 3 + 1) % 100;
	}
	memcpy(s->starts, starts, sizeof(starts));
	s->b = (struct model_batch){
	    .tokens = TOKENS, .ids = s->ids, .targets = s->targets, .documents = 3, .starts = s->starts};
}

/* The gradients of a unit, as they are stored. */
static void *gradients_of(const struct model_fixture *f, int unit)
{
	size_t bytes = (size_t)f->layout->unit[unit].count * sizeof(float);
	struct error err = ERROR_INIT;
	void *out = malloc(bytes);

	ck_ok(device_read(f->dev, out, f->g[unit], bytes, &err), &err);
	return out;
}

static void compare_unit(const struct model_fixture *exact, const struct model_fixture *rounded, int unit)
{
	int64_t n = exact->layout->unit[unit].count;
	_cleanup_free_ float *x = gradients_of(exact, unit);
	_cleanup_free_ uint16_t *bits = gradients_of(rounded, unit);

	if (unit == 0 || unit == exact->layout->base_units - 1) {
		ck_assert_mem_eq(x, bits, (size_t)n * sizeof(float));
		return;
	}
	for (int64_t i = 0; i < n; i++)
		ck_assert_msg(bits[i] == bf16_from_float(x[i]),
		              "unit %d, element %lld of %lld: %g, not %g rounded", unit, (long long)i,
		              (long long)n, (double)bf16_to_float(bits[i]), (double)x[i]);
}

/* What was in the memory before makes no difference. */
static void compare(struct model_fixture *exact, struct model_fixture *rounded, const struct model_batch *b)
{
	_cleanup_free_ char *junk = malloc(1 << 20);
	struct error err = ERROR_INIT;
	double losses[2];

	memset(junk, 0x5f, 1 << 20);
	for (int u = 0; u < exact->layout->units; u++)
		ck_ok(device_write(rounded->dev, rounded->g[u], junk,
		                   (size_t)exact->layout->unit[u].count * sizeof(float), &err),
		      &err);
	ck_ok(model_fixture_gradients(exact, b, 0.1f, true, &losses[0], &err), &err);
	ck_ok(model_fixture_gradients(rounded, b, 0.1f, true, &losses[1], &err), &err);
	ck_assert_double_eq(losses[0], losses[1]);
	for (int u = 0; u < exact->layout->units; u++)
		compare_unit(exact, rounded, u);
}

START_TEST(gradients_in_bf16_are_rounded_once)
{
	struct model_options o = {.type = DTYPE_BF16,
	                          .max_tokens = TOKENS,
	                          .max_sequence = TOKENS,
	                          .training = true,
	                          .logits_rows = 16};
	struct model_init init = {.seed = 3, .std = 0.2};
	struct model_fixture exact, rounded;
	struct error err = ERROR_INIT;
	struct model_config c;
	struct sample s;

	ck_ok(model_config_parse(models[_i], strlen(models[_i]), "config.json", &c, &err), &err);
	make_sample(&s);
	ck_ok(model_fixture_create(&exact, &c, &o, model_init_fill, &init, &err), &err);
	o.gradient_type = DTYPE_BF16;
	ck_ok(model_fixture_create(&rounded, &c, &o, model_init_fill, &init, &err), &err);
	compare(&exact, &rounded, &s.b);
	/* A batch in which nothing counts has gradients of 0. */
	for (int t = 0; t < TOKENS; t++)
		s.targets[t] = -100;
	compare(&exact, &rounded, &s.b);
	model_fixture_free(&exact);
	model_fixture_free(&rounded);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("gradients");
	TCase *c = tcase_create("gradients");

	tcase_set_timeout(c, 300);
	tcase_add_loop_test(c, gradients_in_bf16_are_rounded_once, 0, ARRAY_SIZE(models));
	suite_add_tcase(suite, c);
	return unit_run(suite);
}
