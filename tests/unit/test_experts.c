/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: what a config.json says of them, and where their matrices lie. */
#include "unit.h"

#include <string.h>

#include "base/str.h"
#include "engine/model/layout.h"
#include "engine/model/model_config.h"

#define SIZES                                                                                                \
	"\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_attention_heads\":4,"    \
	"\"num_key_value_heads\":2,\"vocab_size\":100"

static int parse(const char *family, const char *more, struct model_config *c, struct error *err)
{
	_cleanup_free_ char *text = str_printf("{\"model_type\":\"%s\"," SIZES "%s}", family, more);

	return model_config_parse(text, strlen(text), "config.json", c, err);
}

START_TEST(config_says_how_many_experts)
{
	static const struct {
		const char *family, *more;
		int experts, chosen, width;
		bool normalized;
		double loss;
	} cases[] = {
	    {"qwen3_moe", "", 128, 8, 768, false, 0},
	    {"qwen3_moe",
	     ",\"num_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":40,\"norm_topk_prob\":"
	     "true,"
	     "\"mlp_only_layers\":[],\"decoder_sparse_step\":1",
	     6, 2, 40, true, 0},
	    /* As newer versions of transformers name it. */
	    {"qwen3_moe", ",\"num_local_experts\":9,\"mlp_only_layers\":null", 9, 8, 768, false, 0},
	    {"qwen3_moe", ",\"output_router_logits\":true", 128, 8, 768, false, 0.001},
	    {"qwen3_moe", ",\"router_aux_loss_coef\":0.5", 128, 8, 768, false, 0},
	    {"mixtral", "", 8, 2, 128, true, 0},
	    {"mixtral", ",\"norm_topk_prob\":false,\"moe_intermediate_size\":40,\"router_jitter_noise\":0.0",
	     8, 2, 128, true, 0},
	    {"mixtral", ",\"output_router_logits\":true,\"router_aux_loss_coef\":0.02", 8, 2, 128, true,
	     0.02},
	    {"olmoe", ",\"clip_qkv\":null", 64, 8, 128, false, 0},
	    {"olmoe", ",\"output_router_logits\":true", 64, 8, 128, false, 0.01},
	    /* Other families do not read these keys. */
	    {"llama", ",\"num_experts\":4,\"num_local_experts\":4", 0, 0, 128, false, 0},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct error err = ERROR_INIT;
		struct model_config c;

		mark_point();
		ck_ok(parse(cases[i].family, cases[i].more, &c, &err), &err);
		ck_assert_msg(
		    c.experts == cases[i].experts && c.chosen_experts == cases[i].chosen &&
		        c.intermediate == cases[i].width && c.normalized_experts == cases[i].normalized &&
		        c.router_loss == cases[i].loss,
		    "%s%s: %d of %d experts, %d wide, normalized %d, loss %g", cases[i].family, cases[i].more,
		    c.chosen_experts, c.experts, c.intermediate, c.normalized_experts, c.router_loss);
	}
}
END_TEST

START_TEST(config_of_experts_errors)
{
	static const struct {
		const char *family, *more, *words;
	} wrong[] = {
	    {"qwen3_moe", ",\"num_experts\":4,\"num_experts_per_tok\":5",
	     "num_experts_per_tok (5) is more than num_experts (4)"},
	    {"mixtral", ",\"num_local_experts\":1",
	     "num_experts_per_tok (2) is more than num_local_experts (1)"},
	    {"qwen3_moe", ",\"num_experts\":0", "num_experts"},
	    {"qwen3_moe", ",\"num_experts\":1025", "num_experts"},
	    {"qwen3_moe", ",\"num_experts_per_tok\":33", "num_experts_per_tok"},
	    {"qwen3_moe", ",\"moe_intermediate_size\":0", "moe_intermediate_size"},
	    {"qwen3_moe", ",\"mlp_only_layers\":[0]",
	     "mlp_only_layers: layers without experts are not supported"},
	    {"qwen3_moe", ",\"mlp_only_layers\":3", "mlp_only_layers"},
	    {"qwen3_moe", ",\"decoder_sparse_step\":2", "decoder_sparse_step: 2 is not supported"},
	    {"qwen3_moe", ",\"use_sliding_window\":true", "use_sliding_window: true is not supported"},
	    {"mixtral", ",\"router_jitter_noise\":0.1", "router_jitter_noise: 0.1 is not supported"},
	    {"olmoe", ",\"clip_qkv\":8.0", "clip_qkv: 8 is not supported"},
	    {"olmoe", ",\"router_aux_loss_coef\":-1", "router_aux_loss_coef"},
	    {"olmoe", ",\"num_experts\":8,\"num_local_experts\":9",
	     "num_experts (8) and num_local_experts (9) differ"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct error err = ERROR_INIT;
		struct model_config c;

		mark_point();
		ck_fails(parse(wrong[i].family, wrong[i].more, &c, &err), &err, wrong[i].words);
	}
}
END_TEST

/* Of Qwen3-30B-A3B and of Mixtral 8x7B, as their authors count them. */
START_TEST(parameters_are_counted)
{
	static const char qwen[] =
	    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":2048,\"intermediate_size\":6144,"
	    "\"moe_intermediate_size\":768,\"num_hidden_layers\":48,\"num_attention_heads\":32,"
	    "\"num_key_value_heads\":4,\"head_dim\":128,\"vocab_size\":151936}";
	static const char mixtral[] =
	    "{\"model_type\":\"mixtral\",\"hidden_size\":4096,\"intermediate_size\":14336,"
	    "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"vocab_size\":32000}";
	struct error err = ERROR_INIT;
	struct model_layout *l;
	struct model_config c;

	ck_ok(model_config_parse(mixtral, strlen(mixtral), "config.json", &c, &err), &err);
	ck_assert_int_eq(model_config_parameters(&c), 46702792704);
	ck_assert_int_eq(model_config_active_parameters(&c), 12879925248);
	ck_ok(model_config_parse(qwen, strlen(qwen), "config.json", &c, &err), &err);
	ck_assert_int_eq(model_config_parameters(&c), 30532122624);
	ck_assert_int_eq(model_config_active_parameters(&c), 3353032704);
	/* Forward and backward: six operations for each parameter of a token, but for the embedding's. */
	ck_assert_double_eq(model_config_flops(&c, 0), 6.0 * (3353032704 - 151936.0 * 2048));
	ck_ok(model_layout_create(&c, &l, &err), &err);
	ck_assert_int_eq(l->elements, 30532122624);
	model_layout_free(l);
}
END_TEST

/* Each element of a unit's matrices belongs to one parameter, or to one gap. */
static void check_places(const struct model_layout *l, int unit)
{
	int64_t n = l->unit[unit].matrices;
	unsigned char *seen = calloc((size_t)n + 1, 1);

	ck_assert_ptr_nonnull(seen);
	for (int i = 0; i < l->parameters; i++) {
		const struct model_parameter *p = &l->parameter[i];

		for (int64_t k = p->offset; p->unit == unit && p->matrix && k < p->offset + p->count; k++)
			seen[k]++;
	}
	for (int i = l->unit[unit].gap; i >= 0; i = l->gap[i].next)
		for (int64_t k = 0; k < l->gap[i].count; k++)
			seen[l->gap[i].first + k]++;
	for (int64_t k = 0; k < n; k++)
		ck_assert_msg(seen[k] == 1, "unit %d: element %lld of %lld belongs to %d", unit, (long long)k,
		              (long long)n, seen[k]);
	free(seen);
}

START_TEST(experts_lie_behind_each_other)
{
	static const struct {
		const char *family, *gate, *up, *down, *router;
	} names[] = {
	    {"qwen3_moe", "model.layers.1.mlp.experts.4.gate_proj.weight",
	     "model.layers.1.mlp.experts.4.up_proj.weight", "model.layers.1.mlp.experts.4.down_proj.weight",
	     "model.layers.1.mlp.gate.weight"},
	    {"mixtral", "model.layers.1.block_sparse_moe.experts.4.w1.weight",
	     "model.layers.1.block_sparse_moe.experts.4.w3.weight",
	     "model.layers.1.block_sparse_moe.experts.4.w2.weight",
	     "model.layers.1.block_sparse_moe.gate.weight"},
	};
	static const struct model_tuning whole = {.kind = TUNE_ALL}, some = {.kind = TUNE_SOME, .layers = 1};
	struct error err = ERROR_INIT;
	struct model_config c;

	for (int i = 0; i < 4; i++) {
		const struct model_parameter *gate, *up, *down, *router;
		struct model_layout *l;

		ck_ok(parse(names[i % 2].family,
		            ",\"num_local_experts\":5,\"num_experts_per_tok\":2,\"moe_intermediate_size\":7",
		            &c, &err),
		      &err);
		ck_ok(model_layout_create_tuned(&c, i < 2 ? &whole : &some, &l, &err), &err);
		gate = model_layout_find(l, names[i % 2].gate);
		up = model_layout_find(l, names[i % 2].up);
		down = model_layout_find(l, names[i % 2].down);
		router = model_layout_find(l, names[i % 2].router);
		ck_assert(gate && up && down && router);
		ck_assert(gate->expert == 4 && up->expert == 4 && down->expert == 4);
		ck_assert(router->shape[0] == 5 && router->shape[1] == 64);
		ck_assert(gate->shape[0] == c.intermediate && gate->shape[1] == 64);
		ck_assert(down->shape[0] == 64 && down->shape[1] == c.intermediate);
		ck_assert_int_eq(up->offset, gate->offset + gate->count);
		for (int u = 0; u < l->units; u++)
			check_places(l, u);
		ck_assert_int_eq(l->elements, model_config_parameters(&c));
		model_layout_free(l);
	}
}
END_TEST

/* Each expert begins with numbers of its own. */
START_TEST(experts_begin_apart)
{
	struct error err = ERROR_INIT;
	struct model_init init = {.seed = 3, .std = 1};
	struct model_layout *l;
	struct model_config c;
	float *first;
	int n = 0;

	ck_ok(parse("qwen3_moe", ",\"num_experts\":40,\"moe_intermediate_size\":8", &c, &err), &err);
	ck_ok(model_layout_create(&c, &l, &err), &err);
	first = calloc((size_t)l->parameters, sizeof(float));
	ck_assert_ptr_nonnull(first);
	for (int i = 0; i < l->parameters; i++)
		if (l->parameter[i].matrix)
			ck_ok(model_init_fill(&init, &l->parameter[i], 0, 1, &first[n++], &err), &err);
	for (int i = 0; i < n; i++)
		for (int k = 0; k < i; k++)
			ck_assert_msg(first[i] != first[k], "%d and %d begin with the same number", i, k);
	free(first);
	model_layout_free(l);
}
END_TEST

START_TEST(adapters_are_of_attention_alone)
{
	static char *const all[] = {"all", NULL}, *const gate[] = {"gate_proj", NULL},
	                   *const router[] = {"gate", NULL};
	struct model_tuning t = {.kind = TUNE_LORA, .rank = 2, .alpha = 4, .target = all};
	struct error err = ERROR_INIT;
	struct model_layout *l;
	struct model_config c;
	int adapters = 0;

	ck_ok(parse("qwen3_moe", ",\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":8",
	            &c, &err),
	      &err);
	ck_ok(model_layout_create_tuned(&c, &t, &l, &err), &err);
	for (int i = 0; i < l->parameters; i++)
		adapters += l->parameter[i].part == PART_LORA_A;
	ck_assert_int_eq(adapters, 2 * 4);
	model_layout_free(l);
	t.target = gate;
	ck_fails(model_layout_create_tuned(&c, &t, &l, &err), &err,
	         "the model has no gate_proj; expected \"all\", or modules of its attention");
	t.target = router;
	ck_fails(model_layout_create_tuned(&c, &t, &l, &err), &err, "the model has no gate;");
}
END_TEST

/* Names stand for all experts, and a name of gate or up for both. */
START_TEST(modules_of_experts_are_named)
{
	static const struct {
		const char *family, *module;
		int matrices; /* in a block of 3 experts */
		const char *words;
	} cases[] = {
	    {"qwen3_moe", "experts", 9, NULL},
	    {"qwen3_moe", "up_proj", 6, NULL},
	    {"qwen3_moe", "gate_proj", 6, NULL},
	    {"qwen3_moe", "down_proj", 3, NULL},
	    {"qwen3_moe", "gate", 1, NULL},
	    {"qwen3_moe", "mlp", 10, NULL},
	    {"mixtral", "w1", 6, NULL},
	    {"mixtral", "w3", 6, NULL},
	    {"mixtral", "w2", 3, NULL},
	    {"mixtral", "block_sparse_moe", 10, NULL},
	    {"qwen3_moe", "experts.0", 0, "the model has no experts.0"},
	    {"mixtral", "experts.1", 0, "the model has no experts.1"},
	    {"mixtral", "gate_proj", 0, "the model has no gate_proj"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char *modules[] = {(char *)(uintptr_t)cases[i].module, NULL};
		struct model_tuning t = {.kind = TUNE_SOME, .layers = 1, .modules = modules};
		struct error err = ERROR_INIT;
		struct model_layout *l;
		struct model_config c;
		int trained = 0;

		ck_ok(parse(cases[i].family, ",\"num_local_experts\":3,\"num_experts_per_tok\":2", &c, &err),
		      &err);
		if (cases[i].words) {
			ck_fails(model_layout_create_tuned(&c, &t, &l, &err), &err, cases[i].words);
			continue;
		}
		ck_ok(model_layout_create_tuned(&c, &t, &l, &err), &err);
		for (int k = 0; k < l->parameters; k++)
			trained += !l->parameter[k].frozen;
		ck_assert_msg(trained == cases[i].matrices, "%s %s: %d", cases[i].family, cases[i].module,
		              trained);
		model_layout_free(l);
	}
}
END_TEST

START_TEST(experts_are_not_saved_beside_adapters)
{
	static const char *const names[] = {"gate_proj", "gate", "experts", "mlp", "layers.1"};
	static char *const target[] = {"q_proj", NULL};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		char *saved[] = {(char *)(uintptr_t)names[i], NULL},
		     *first[] = {"layers.0.self_attn.q_proj", NULL};
		struct model_tuning t = {.kind = TUNE_LORA, .rank = 2, .alpha = 4, .saved = saved};
		struct error err = ERROR_INIT;
		struct model_layout *l;
		struct model_config c;

		t.target = i == 4 ? first : target;
		ck_ok(parse("qwen3_moe", "", &c, &err), &err);
		ck_fails(model_layout_create_tuned(&c, &t, &l, &err), &err,
		         "lora.modules_to_save: experts and their router");
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("experts");
	TCase *c = tcase_create("experts");

	tcase_add_test(c, config_says_how_many_experts);
	tcase_add_test(c, config_of_experts_errors);
	tcase_add_test(c, parameters_are_counted);
	tcase_add_test(c, experts_lie_behind_each_other);
	tcase_add_test(c, experts_begin_apart);
	tcase_add_test(c, adapters_are_of_attention_alone);
	tcase_add_test(c, modules_of_experts_are_named);
	tcase_add_test(c, experts_are_not_saved_beside_adapters);
	suite_add_tcase(suite, c);
	return unit_run(suite);
}
