/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the model: config.json, layout, forward and backward passes, and generation. */
#include "unit.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "../engine/model_fixture.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/parameters.h"
#include "engine/model/generate.h"
#include "engine/model/normal.h"

/* Next to the source tree, wherever the build is. */
static char *checkpoint(const char *file)
{
	const char *src = getenv("srcdir");

	return str_printf("%s/../shared/checkpoints/stories260K%s", src ? src : ".", file);
}

static int parse(const char *text, struct model_config *c, struct error *err)
{
	return model_config_parse(text, strlen(text), "config.json", c, err);
}

#define SIZES                                                                                                \
	"\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_attention_heads\":4,"    \
	"\"num_key_value_heads\":2,\"vocab_size\":100"

START_TEST(config_families)
{
	struct error err = ERROR_INIT;
	struct model_config c;

	ck_ok(parse("{\"model_type\":\"llama\"," SIZES
	            ",\"rope_scaling\":null,\"rope_theta\":5e5,\"eos_token_id\":[7,8]}",
	            &c, &err),
	      &err);
	ck_assert_int_eq(c.head_dim, 16);
	ck_assert_double_eq(c.rope.theta, 5e5);
	ck_assert_int_eq(c.eos, 7);
	ck_assert_int_eq(c.bos, -1);
	ck_assert(!c.qkv_bias && !c.o_bias && !c.qk_norm && !c.tied && c.window == 0);
	ck_ok(parse("{\"model_type\":\"qwen2\"," SIZES
	            ",\"use_sliding_window\":false,\"sliding_window\":4096}",
	            &c, &err),
	      &err);
	ck_assert(c.qkv_bias && !c.o_bias && c.window == 0);
	ck_ok(parse("{\"model_type\":\"qwen3\"," SIZES ",\"head_dim\":96,\"tie_word_embeddings\":true}", &c,
	            &err),
	      &err);
	ck_assert(c.qk_norm && c.tied && c.head_dim == 96);
	ck_ok(parse("{\"model_type\":\"mistral\"," SIZES ",\"sliding_window\":9}", &c, &err), &err);
	ck_assert_int_eq(model_config_window(&c, 0), 9);
	ck_ok(parse("{\"model_type\":\"mistral\"," SIZES ",\"sliding_window\":null}", &c, &err), &err);
	ck_assert_int_eq(model_config_window(&c, 0), 0);
	/* The two spellings of the same scaling. */
	ck_ok(parse("{\"model_type\":\"llama\"," SIZES
	            ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":7e5,"
	            "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
	            "\"original_max_position_embeddings\":64}}",
	            &c, &err),
	      &err);
	ck_assert_int_eq(c.rope.type, ROPE_LLAMA3);
	ck_assert_double_eq(c.rope.theta, 7e5);
	ck_assert_int_eq(c.rope.original_positions, 64);
}
END_TEST

/* What a config.json leaves out, as transformers has it: the defaults of its configuration classes. */
START_TEST(each_family_has_the_defaults_of_transformers)
{
	static const struct {
		const char *family;
		bool tied;
		int positions, head_dim, window;
		double eps, theta, attention_cap, logits_cap;
		enum model_activation activation;
	} families[] = {
	    {"llama", false, 2048, 16, 0, 1e-6, 1e4, 0, 0, MODEL_SILU},
	    {"mistral", false, 131072, 16, 4096, 1e-6, 1e4, 0, 0, MODEL_SILU},
	    {"qwen2", false, 32768, 16, 0, 1e-6, 1e4, 0, 0, MODEL_SILU},
	    {"qwen3", false, 32768, 128, 0, 1e-6, 1e4, 0, 0, MODEL_SILU},
	    {"smollm3", true, 32768, 16, 0, 1e-6, 2e6, 0, 0, MODEL_SILU},
	    {"granite", false, 2048, 16, 0, 1e-6, 1e4, 0, 0, MODEL_SILU},
	    {"olmo2", false, 2048, 16, 0, 1e-5, 1e4, 0, 0, MODEL_SILU},
	    {"olmo3", false, 2048, 16, 4096, 1e-5, 5e5, 0, 0, MODEL_SILU},
	    {"phi3", false, 4096, 16, 0, 1e-5, 1e4, 0, 0, MODEL_SILU},
	    {"gemma2", true, 8192, 256, 4096, 1e-6, 1e4, 50, 30, MODEL_GELU_TANH},
	    {"gemma3_text", true, 131072, 256, 4096, 1e-6, 1e6, 0, 0, MODEL_GELU_TANH},
	    {"gemma", true, 8192, 256, 0, 1e-6, 1e4, 0, 0, MODEL_GELU_TANH},
	    {"glm", false, 131072, 128, 0, 1.5625e-7, 1e4, 0, 0, MODEL_SILU},
	    {"glm4", false, 131072, 128, 0, 1.5625e-7, 1e4, 0, 0, MODEL_SILU},
	    {"ernie4_5", true, 131072, 128, 0, 1e-5, 5e5, 0, 0, MODEL_SILU},
	    {"helium", false, 4096, 128, 0, 1e-8, 1e5, 0, 0, MODEL_SILU},
	    {"seed_oss", false, 524288, 128, 0, 1e-6, 1e4, 0, 0, MODEL_SILU},
	    {"ministral", false, 131072, 16, 4096, 1e-6, 1e4, 0, 0, MODEL_SILU},
	    {"exaone4", false, 2048, 16, 4096, 1e-5, 1e4, 0, 0, MODEL_SILU},
	    {"starcoder2", true, 4096, 16, 0, 1e-5, 1e4, 0, 0, MODEL_GELU_TANH},
	    {"stablelm", false, 4096, 16, 0, 1e-5, 1e4, 0, 0, MODEL_SILU},
	    {"qwen3_5_text", false, 32768, 256, 0, 1e-6, 1e4, 0, 0, MODEL_SILU},
	    {"ministral3", false, 262144, 128, 0, 1e-5, 1e6, 0, 0, MODEL_SILU},
	    {"qwen3_moe", false, 32768, 16, 0, 1e-6, 1e4, 0, 0, MODEL_SILU},
	    {"mixtral", false, 131072, 16, 0, 1e-5, 1e6, 0, 0, MODEL_SILU},
	    {"olmoe", false, 4096, 16, 0, 1e-5, 1e4, 0, 0, MODEL_SILU},
	};

	for (size_t i = 0; i < ARRAY_SIZE(families); i++) {
		_cleanup_free_ char *json =
		    str_printf("{\"model_type\":\"%s\"," SIZES "}", families[i].family);
		struct error err = ERROR_INIT;
		struct model_config c;

		mark_point();
		ck_ok(parse(json, &c, &err), &err);
		ck_assert_msg(c.tied == families[i].tied && c.max_positions == families[i].positions &&
		                  c.head_dim == families[i].head_dim &&
		                  model_config_window(&c, 0) == families[i].window,
		              "%s: tied %d, positions %lld, head_dim %d, window %d", families[i].family,
		              c.tied, (long long)c.max_positions, c.head_dim, model_config_window(&c, 0));
		ck_assert_msg(c.norm_eps == (float)families[i].eps && c.rope.theta == families[i].theta &&
		                  c.attention_cap == families[i].attention_cap &&
		                  c.logits_cap == families[i].logits_cap &&
		                  c.activation == families[i].activation,
		              "%s: eps %g, theta %g, caps %g %g, activation %d", families[i].family,
		              c.norm_eps, c.rope.theta, c.attention_cap, c.logits_cap, (int)c.activation);
	}
}
END_TEST

/* Without num_key_value_heads some classes of transformers have a number of their own; null stands for as
 * many as there are heads. */
START_TEST(key_value_heads_default_to_those_of_the_family)
{
	static const struct {
		const char *family;
		int absent;
	} families[] = {
	    {"llama", 64},      {"mistral", 8},      {"qwen2", 32},     {"qwen3", 32},     {"smollm3", 4},
	    {"granite", 64},    {"olmo2", 64},       {"olmo3", 64},     {"phi3", 64},      {"gemma2", 4},
	    {"gemma3_text", 4}, {"qwen3_moe", 4},    {"mixtral", 8},    {"olmoe", 64},     {"gemma", 16},
	    {"glm", 2},         {"glm4", 2},         {"ernie4_5", 2},   {"seed_oss", 8},   {"ministral", 8},
	    {"exaone4", 32},    {"qwen3_5_text", 4}, {"ministral3", 8}, {"starcoder2", 2}, {"stablelm", 32}};

	for (size_t i = 0; i < 2 * ARRAY_SIZE(families); i++) {
		bool null = i >= ARRAY_SIZE(families);
		size_t k = i % ARRAY_SIZE(families);
		_cleanup_free_ char *json =
		    str_printf("{\"model_type\":\"%s\",\"hidden_size\":512,\"intermediate_size\":128,"
		               "\"num_hidden_layers\":2,\"num_attention_heads\":64,\"vocab_size\":100%s}",
		               families[k].family, null ? ",\"num_key_value_heads\":null" : "");
		struct error err = ERROR_INIT;
		struct model_config c;

		mark_point();
		ck_ok(parse(json, &c, &err), &err);
		ck_assert_msg(c.kv_heads == (null ? 64 : families[k].absent), "%s: %d", json, c.kv_heads);
	}
}
END_TEST

/* The configurations of language models within others leave out what transformers' classes have by default.
 */
START_TEST(parts_of_multimodal_models_have_the_defaults_of_transformers)
{
	static const struct {
		const char *text, *family;
		int hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, positions;
		double eps, theta;
		bool tied;
	} models[] = {
	    {"\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\"}", "gemma3_text", 2304, 9216, 26, 8,
	     4, 256, 262208, 131072, 1e-6, 1e6, true},
	    {"\"mistral3\",\"text_config\":{}", "mistral", 4096, 14336, 32, 32, 8, 128, 32000, 131072, 1e-6,
	     1e4, false},
	    {"\"mistral3\",\"text_config\":{\"model_type\":\"ministral3\"}", "ministral3", 4096, 14336, 34,
	     32, 8, 128, 131072, 262144, 1e-5, 1e6, false},
	    {"\"llava\",\"text_config\":{\"rms_norm_eps\":1e-05,\"vocab_size\":32064}", "llama", 4096, 11008,
	     32, 32, 32, 128, 32064, 2048, 1e-5, 1e4, false},
	    {"\"llava\",\"tie_word_embeddings\":false,\"text_config\":{\"tie_word_embeddings\":true}",
	     "llama", 4096, 11008, 32, 32, 32, 128, 32000, 2048, 1e-6, 1e4, true},
	    {"\"internvl\",\"text_config\":{}", "qwen2", 4096, 22016, 32, 32, 32, 128, 151936, 32768, 1e-6,
	     1e4, false},
	    {"\"qwen2_vl\",\"text_config\":{}", "qwen2_vl_text", 8192, 29568, 80, 64, 8, 128, 152064, 32768,
	     1e-5, 1e6, false},
	    /* As files of before transformers 4.52 have it. */
	    {"\"qwen2_5_vl\",\"hidden_size\":2048,\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,"
	     "24,24]},"
	     "\"num_attention_heads\":16,\"tie_word_embeddings\":true",
	     "qwen2_vl_text", 2048, 29568, 80, 16, 8, 128, 152064, 32768, 1e-5, 1e6, true},
	    {"\"qwen3_vl\",\"text_config\":{}", "qwen3_vl_text", 4096, 22016, 32, 32, 32, 128, 151936, 128000,
	     1e-6, 5e5, false},
	    {"\"qwen3_5\",\"text_config\":{}", "qwen3_5_text", 4096, 12288, 32, 16, 4, 256, 248320, 32768,
	     1e-6, 1e4, false},
	};

	for (size_t i = 0; i < ARRAY_SIZE(models); i++) {
		_cleanup_free_ char *json = str_printf("{\"model_type\":%s}", models[i].text);
		struct error err = ERROR_INIT;
		struct model_config c;

		mark_point();
		ck_ok(parse(json, &c, &err), &err);
		ck_assert_str_eq(c.family, models[i].family);
		ck_assert_msg(
		    c.multimodal && c.hidden == models[i].hidden &&
		        c.intermediate == models[i].intermediate && c.layers == models[i].layers &&
		        c.heads == models[i].heads && c.kv_heads == models[i].kv_heads &&
		        c.head_dim == models[i].head_dim && c.vocab == models[i].vocab &&
		        c.max_positions == models[i].positions,
		    "%s: hidden %d, intermediate %d, layers %d, heads %d %d, head_dim %d, vocab %lld, "
		    "positions %lld",
		    json, c.hidden, c.intermediate, c.layers, c.heads, c.kv_heads, c.head_dim,
		    (long long)c.vocab, (long long)c.max_positions);
		ck_assert_msg(c.norm_eps == (float)models[i].eps && c.rope.theta == models[i].theta &&
		                  c.tied == models[i].tied,
		              "%s: eps %g, theta %g, tied %d", json, c.norm_eps, c.rope.theta, c.tied);
	}
}
END_TEST

START_TEST(multimodal_models_that_are_refused)
{
	static const struct {
		const char *text, *error;
	} wrong[] = {
	    {"\"gemma3\",\"text_config\":3", "text_config: an object is needed"},
	    {"\"mistral3\"", "text_config is missing"},
	    {"\"mistral3\",\"text_config\":{\"model_type\":\"mamba\"}",
	     "text_config: model_type \"mamba\" is not supported (llama, "},
	    {"\"gemma3\",\"architectures\":[\"Gemma3ForSequenceClassification\"],\"text_config\":{}",
	     "a Gemma3ForSequenceClassification, a multimodal model of scores, is not supported"},
	    {"\"qwen2_vl_text\"", "model_type \"qwen2_vl_text\" is not supported"},
	    {"\"qwen3_5\",\"text_config\":{\"linear_num_key_heads\":3}",
	     "linear_num_value_heads (32) has to be a multiple of linear_num_key_heads (3)"},
	    {"\"qwen3_5\",\"text_config\":{\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]}",
	     "layer 0 is \"sliding_attention\"; expected one of full_attention, linear_attention"},
	    {"\"llama\"," SIZES ",\"rope_scaling\":{\"type\":\"mrope\"}",
	     "rope type \"mrope\" is not supported"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		_cleanup_free_ char *json = str_printf("{\"model_type\":%s}", wrong[i].text);
		struct error err = ERROR_INIT;
		struct model_config c;

		mark_point();
		ck_fails(parse(json, &c, &err), &err, wrong[i].error);
	}
}
END_TEST

/* transformers looks beside the rope parameters first, except where each kind of layer has its own. */
START_TEST(the_original_context_may_stand_beside_the_rope_parameters)
{
	static const char *const forms[] = {
	    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2%s}",
	    "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2%s}",
	};
	struct error err = ERROR_INIT;
	struct model_config c;

	for (size_t i = 0; i < 2 * ARRAY_SIZE(forms); i++) {
		_cleanup_free_ char *rope =
		    str_printf(forms[i / 2], i % 2 ? ",\"original_max_position_embeddings\":32" : "");
		_cleanup_free_ char *json = str_printf(
		    "{\"model_type\":\"llama\"," SIZES ",\"original_max_position_embeddings\":16,%s}", rope);

		ck_ok(parse(json, &c, &err), &err);
		ck_assert_int_eq(c.rope.original_positions, 16);
	}
	ck_ok(parse("{\"model_type\":\"olmo3\"," SIZES ",\"original_max_position_embeddings\":16,"
	            "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}}",
	            &c, &err),
	      &err);
	ck_assert_int_eq(c.rope.original_positions, 2048);
}
END_TEST

/* Of the two keys transformers takes rope_scaling, and the theta in the other is lost. */
START_TEST(two_different_rope_parameters_are_refused)
{
	static const char *const same = "\"rope_type\":\"linear\",\"factor\":2.0";
	static const char *const forms[] = {"{}", "null", "{%s}", "{\"type\":\"linear\",\"factor\":2}",
	                                    "{\"rope_theta\":1e6,%s}"};

	for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
		_cleanup_free_ char *old =
		    strstr(forms[i], "%s") ? str_printf(forms[i], same) : strdup(forms[i]);
		_cleanup_free_ char *json = str_printf("{\"model_type\":\"qwen2\"," SIZES
		                                       ",\"rope_parameters\":{%s},\"rope_scaling\":%s}",
		                                       same, old);
		struct error err = ERROR_INIT;
		struct model_config c;

		if (i < 4)
			ck_ok(parse(json, &c, &err), &err);
		else
			ck_fails(parse(json, &c, &err), &err,
			         "config.json: rope_scaling and rope_parameters differ");
	}
}
END_TEST

/* transformers' gemma3 has attn_logit_softcapping among its keys, and computes nothing with it. */
START_TEST(scores_are_capped_in_gemma2_alone)
{
	static const char *const families[] = {"gemma2", "gemma3_text"};

	for (size_t i = 0; i < ARRAY_SIZE(families); i++) {
		_cleanup_free_ char *json =
		    str_printf("{\"model_type\":\"%s\"," SIZES
		               ",\"attn_logit_softcapping\":3.0,\"final_logit_softcapping\":4.0}",
		               families[i]);
		struct error err = ERROR_INIT;
		struct model_config c;

		ck_ok(parse(json, &c, &err), &err);
		ck_assert_double_eq(c.attention_cap, i == 0 ? 3 : 0);
		ck_assert_double_eq(c.logits_cap, 4);
	}
}
END_TEST

/* Where the file has no layer_types, the family says which layers see all tokens. */
START_TEST(windows_follow_the_pattern_of_the_family)
{
	static const struct {
		const char *family;
		int every;
		const char *more;
	} cases[] = {{"gemma2", 2, ""},
	             {"gemma2", 2, ",\"sliding_window_pattern\":3"}, /* not a key of this family */
	             {"gemma3_text", 6, ""},
	             {"gemma3_text", 3, ",\"sliding_window_pattern\":3"},
	             {"olmo3", 4, ""},
	             {"olmo3", 4, ",\"sliding_window_pattern\":3"}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *json =
		    str_printf("{\"model_type\":\"%s\",\"hidden_size\":64,\"intermediate_size\":128,"
		               "\"num_hidden_layers\":12,\"num_attention_heads\":4,"
		               "\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":100,"
		               "\"query_pre_attn_scalar\":16,\"sliding_window\":9%s}",
		               cases[i].family, cases[i].more);
		struct error err = ERROR_INIT;
		struct model_config c;

		ck_ok(parse(json, &c, &err), &err);
		for (int l = 0; l < 12; l++)
			ck_assert_msg(model_config_window(&c, l) == ((l + 1) % cases[i].every ? 9 : 0),
			              "%s, layer %d: %d", cases[i].family, l, model_config_window(&c, l));
	}
}
END_TEST

/* Nodes may have files of different releases of transformers; only keys that change the model count. */
START_TEST(config_digest_is_of_the_model)
{
	static const char *const same[] = {
	    "\"transformers_version\":\"4.40\",\"_name_or_path\":\"/a\",\"dtype\":\"float32\"",
	    "\"torch_dtype\":\"bfloat16\",\"use_cache\":false,\"architectures\":[\"LlamaForCausalLM\"]",
	    "\"head_dim\":16,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}",
	    "\"bos_token_id\":1,\"eos_token_id\":[2,3]",
	};
	static const char *const other[] = {
	    "\"rope_theta\":20000.0",
	    "\"tie_word_embeddings\":true",
	    "\"rms_norm_eps\":1e-5",
	    "\"attention_bias\":true",
	    "\"mlp_bias\":true",
	    "\"head_dim\":32",
	    "\"initializer_range\":0.5",
	    "\"max_position_embeddings\":9",
	    "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0}",
	};
	struct error err = ERROR_INIT;
	struct model_config c;
	uint64_t digest;
	char text[512];

	ck_ok(parse("{\"model_type\":\"llama\"," SIZES "}", &c, &err), &err);
	digest = model_config_digest(&c);
	for (size_t i = 0; i < ARRAY_SIZE(same) + ARRAY_SIZE(other); i++) {
		bool is_same = i < ARRAY_SIZE(same);

		snprintf(text, sizeof(text), "{\"model_type\":\"llama\"," SIZES ",%s}",
		         is_same ? same[i] : other[i - ARRAY_SIZE(same)]);
		/* What lies between the members is not compared. */
		memset(&c, 0x5a, sizeof(c));
		ck_ok(parse(text, &c, &err), &err);
		ck_assert_msg((model_config_digest(&c) == digest) == is_same, "%s", text);
	}
	ck_ok(parse("{\"model_type\":\"mistral\"," SIZES ",\"sliding_window\":null}", &c, &err), &err);
	ck_assert(model_config_digest(&c) != digest);
}
END_TEST

START_TEST(moments_may_be_infinite)
{
	float in[] = {0, 1, INFINITY, -INFINITY, 2};
	struct error err = ERROR_INIT;
	int64_t infinite = -1;

	ck_ok(parameters_check_moments("v.a", "f", 10, in, 2, &infinite, &err), &err);
	ck_assert_int_eq(infinite, -1);
	ck_ok(parameters_check_moments("v.a", "f", 10, in, 5, &infinite, &err), &err);
	ck_assert_int_eq(infinite, 12);
	ck_ok(parameters_check_moments("v.a", "f", 20, in, 5, &infinite, &err), &err);
	ck_assert_int_eq(infinite, 12);
	ck_fails(parameters_check_finite("a", "f", 10, in, 5, &err), &err,
	         "f: tensor a: element 12 is infinite");
	in[4] = NAN;
	ck_fails(parameters_check_moments("v.a", "f", 10, in, 5, &infinite, &err), &err,
	         "f: tensor v.a: element 14 is NaN");
}
END_TEST

START_TEST(config_errors_say_what)
{
	/* Values that transformers 5 refuses, and values that it would ignore. */
	static const struct {
		const char *text, *words;
	} wrong[] = {
	    {"\"hidden_act\":3", "config.json: hidden_act"},
	    {"\"head_dim\":15", "config.json: head_dim (15) has to be even"},
	    {"\"head_dim\":16,\"num_key_value_heads\":3",
	     "config.json: num_attention_heads (4) has to be a multiple of num_key_value_heads (3)"},
	    {"\"hidden_act\":null", "config.json: hidden_act"},
	    {"\"rope_theta\":null", "config.json: rope_theta: null"},
	    {"\"rope_scaling\":{\"rope_type\":null}", "rope_scaling: rope_type"},
	    {"\"rope_scaling\":{\"rope_type\":null,\"type\":\"linear\",\"factor\":2}",
	     "rope_scaling: rope_type"},
	    {"\"rope_scaling\":{\"type\":null,\"factor\":2}", "rope_scaling: type"},
	    {"\"rope_parameters\":{\"rope_type\":3}", "rope_parameters: rope_type"},
	    {"\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":null}",
	     "rope_parameters: rope_theta: null"},
	    {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e6},"
	     "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}",
	     "rope_parameters: full_attention: other parameters for each kind of layer are not supported"},
	    {"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":null}", "rope_scaling: factor: null"},
	    {"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":\"2\"}", "rope_scaling: factor"},
	    {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}",
	     "rope_scaling: high_freq_factor is missing"},
	    {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"high_freq_factor\":4}",
	     "rope_scaling: low_freq_factor is missing"},
	};
	struct error err = ERROR_INIT;
	struct model_config c;

	ck_fails(parse("[]", &c, &err), &err, "object");
	ck_fails(parse("{\"model_type\":\"mamba\"," SIZES "}", &c, &err), &err,
	         "model_type \"mamba\" is not supported (llama, mistral, qwen2, qwen3, ");
	ck_fails(parse("{\"model_type\":\"llama\"," SIZES ",\"hidden_act\":\"gelu\"}", &c, &err), &err,
	         "gelu");
	ck_fails(parse("{\"model_type\":\"llama\"," SIZES
	               ",\"rope_scaling\":{\"type\":\"ntk\",\"factor\":2}}",
	               &c, &err),
	         &err, "rope type \"ntk\"");
	ck_fails(
	    parse("{\"model_type\":\"llama\"," SIZES ",\"rope_scaling\":{\"type\":\"linear\"}}", &c, &err),
	    &err, "factor is missing");
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		_cleanup_free_ char *text =
		    str_printf("{\"model_type\":\"llama\"," SIZES ",%s}", wrong[i].text);

		ck_fails(parse(text, &c, &err), &err, wrong[i].words);
	}
	ck_fails(parse("{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_embd\":16,\"n_layer\":1,\"n_head\":3}",
	               &c, &err),
	         &err, "n_embd (16) has to be a multiple of n_head (3)");
	ck_fails(parse("{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_embd\":16,\"n_layer\":1,\"n_head\":2,"
	               "\"activation_function\":\"relu\"}",
	               &c, &err),
	         &err, "activation_function \"relu\" is not supported (gelu_pytorch_tanh and gelu_new are)");
	ck_fails(parse("{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_embd\":16,\"n_layer\":1,\"n_head\":2,"
	               "\"add_cross_attention\":true}",
	               &c, &err),
	         &err, "add_cross_attention: true is not supported");
	ck_fails(parse("{\"model_type\":\"gemma2\"," SIZES ",\"final_logit_softcapping\":-1}", &c, &err),
	         &err, "final_logit_softcapping");
	ck_fails(
	    parse("{\"model_type\":\"gemma2\"," SIZES ",\"use_bidirectional_attention\":true}", &c, &err),
	    &err, "use_bidirectional_attention: true is not supported");
	ck_fails(parse("{\"model_type\":\"phi3\"," SIZES ",\"partial_rotary_factor\":0.01}", &c, &err), &err,
	         "partial_rotary_factor 0.01 rotates 0 elements of a head");
	ck_fails(parse("{\"model_type\":\"ministral3\"," SIZES
	               ",\"rope_parameters\":{\"rope_type\":\"default\","
	               "\"rope_theta\":1e4,\"llama_4_scaling_beta\":0.1}}",
	               &c, &err),
	         &err, "llama_4_scaling_beta needs original_max_position_embeddings");
	ck_fails(parse("{\"model_type\":\"llama\",\"hidden_size\":64}", &c, &err), &err, "intermediate_size");
	ck_fails(parse("{\"model_type\":\"llama\"," SIZES ",\"head_dim\":7}", &c, &err), &err, "even");
	ck_fails(parse("{\"model_type\":\"llama\",\"hidden_size\":2304,\"num_attention_heads\":1,"
	               "\"num_hidden_layers\":1,\"intermediate_size\":8,\"vocab_size\":9}",
	               &c, &err),
	         &err, "head_dim (2304) is more than 1024");
	ck_fails(parse("{\"model_type\":\"llama\"," SIZES ",\"num_attention_heads\":3}", &c, &err), &err,
	         "multiple");
	ck_fails(parse("{\"model_type\":\"llama\"," SIZES ",\"tie_word_embeddings\":3}", &c, &err), &err,
	         "true or false");
}
END_TEST

/* The MiniMind model of the benchmark: 26M parameters. */
START_TEST(layout_is_flat_and_complete)
{
	static const char *const text =
	    "{\"model_type\":\"qwen3\",\"hidden_size\":512,\"intermediate_size\":1408,\"num_hidden_layers\":"
	    "8,"
	    "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":64,\"vocab_size\":6400,"
	    "\"tie_word_embeddings\":true}";
	_cleanup_(model_layout_freep) struct model_layout *l = NULL;
	const struct model_parameter *q, *k, *gate, *up;
	struct error err = ERROR_INIT;
	struct model_config c;
	int64_t sum = 0;

	ck_ok(parse(text, &c, &err), &err);
	ck_ok(model_layout_create(&c, &l, &err), &err);
	for (int i = 0; i < l->parameters; i++) {
		const struct model_parameter *p = &l->parameter[i];

		sum += p->count;
		ck_assert_int_le(p->offset + p->count, l->unit[p->unit].count);
		ck_assert(p->matrix == (p->offset < l->unit[p->unit].matrices));
		ck_assert_ptr_eq(model_layout_find(l, p->name), p);
	}
	ck_assert_int_eq(sum, model_config_parameters(&c));
	ck_assert_int_eq(sum, l->elements);
	q = model_layout_find(l, "model.layers.3.self_attn.q_proj.weight");
	k = model_layout_find(l, "model.layers.3.self_attn.k_proj.weight");
	gate = model_layout_find(l, "model.layers.3.mlp.gate_proj.weight");
	up = model_layout_find(l, "model.layers.3.mlp.up_proj.weight");
	ck_assert_int_eq(q->offset + q->count, k->offset);
	ck_assert_int_eq(gate->offset + gate->count, up->offset);
	ck_assert_ptr_null(model_layout_find(l, "lm_head.weight"));
}
END_TEST

START_TEST(init_does_not_depend_on_the_pieces)
{
	_cleanup_(model_layout_freep) struct model_layout *l = NULL;
	struct error err = ERROR_INIT;
	struct model_init init = {.seed = 42, .std = 0.5};
	struct model_config c;
	static float whole[6400], part[6400];
	double mean = 0, square = 0;

	ck_ok(parse("{\"model_type\":\"llama\"," SIZES "}", &c, &err), &err);
	ck_ok(model_layout_create(&c, &l, &err), &err);
	ck_assert_int_eq(l->parameter[0].count, 6400);
	ck_ok(model_init_fill(&init, &l->parameter[0], 0, 6400, whole, &err), &err);
	for (int at = 0, n = 1; at < 6400; at += n, n = MIN(2 * n + 1, 6400 - at))
		ck_ok(model_init_fill(&init, &l->parameter[0], at, MIN(n, 6400 - at), part + at, &err), &err);
	ck_assert_mem_eq(whole, part, sizeof(whole));
	for (int i = 0; i < 6400; i++) {
		mean += whole[i] / 6400;
		square += whole[i] * whole[i] / 6400;
	}
	ck_assert_double_lt(fabs(mean), 0.02);
	ck_assert_double_eq_tol(sqrt(square), 0.5, 0.02);
}
END_TEST

START_TEST(dropout_of_a_config_is_known)
{
#define GPT2 "{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_embd\":16,\"n_layer\":1,\"n_head\":2"
	static const struct {
		const char *json;
		double dropout;
	} cases[] = {
	    {"{\"model_type\":\"llama\"," SIZES "}", 0},
	    {"{\"model_type\":\"llama\"," SIZES ",\"attention_dropout\":0.25}", 0.25},
	    {"{\"model_type\":\"phi3\"," SIZES ",\"resid_pdrop\":0.125}", 0.125},
	    {GPT2 "}", 0.1},
	    {GPT2 ",\"attn_pdrop\":0,\"embd_pdrop\":0,\"resid_pdrop\":0.5}", 0.5},
	    {GPT2 ",\"attn_pdrop\":0,\"embd_pdrop\":0,\"resid_pdrop\":0}", 0},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct error err = ERROR_INIT;
		struct model_config c;

		ck_ok(parse(cases[i].json, &c, &err), &err);
		ck_assert_msg(c.dropout == cases[i].dropout, "case %zu: %g", i, c.dropout);
	}
}
END_TEST

/* As transformers begins a gpt2: what is added to the residual stream is smaller, the deeper the model. */
START_TEST(matrices_begin_as_large_as_in_transformers)
{
	static const struct {
		const char *json;
		double std, want, residual;
	} cases[] = {
	    {"{\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":64,\"n_layer\":2,\"n_head\":2,"
	     "\"n_positions\":64}",
	     0, 0.02, 0.01},
	    {"{\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":64,\"n_layer\":8,\"n_head\":2,"
	     "\"n_positions\":64,\"initializer_range\":0.1}",
	     0, 0.1, 0.025},
	    {"{\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":64,\"n_layer\":2,\"n_head\":2,"
	     "\"n_positions\":64}",
	     0.5, 0.5, 0.25},
	    {"{\"model_type\":\"llama\"," SIZES "}", 0, 0.02, 0.02},
	    {"{\"model_type\":\"llama\"," SIZES "}", 0.5, 0.5, 0.5},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(model_layout_freep) struct model_layout *l = NULL;
		struct error err = ERROR_INIT;
		struct model_init init;
		struct model_config c;
		int residual = 0;

		ck_ok(parse(cases[i].json, &c, &err), &err);
		ck_ok(model_layout_create(&c, &l, &err), &err);
		init = model_init_of(&c, 7, cases[i].std);
		for (int k = 0; k < l->parameters; k++) {
			const struct model_parameter *p = &l->parameter[k];
			bool out = strstr(p->name, "c_proj.weight") || strstr(p->name, "o_proj.weight") ||
			           strstr(p->name, "down_proj.weight");
			_cleanup_free_ float *values = malloc((size_t)p->count * sizeof(*values));
			double want = out ? cases[i].residual : cases[i].want, square = 0;

			ck_assert_ptr_nonnull(values);
			ck_ok(model_init_fill(&init, p, 0, p->count, values, &err), &err);
			for (int64_t at = 0; at < p->count; at++)
				square += (double)values[at] * values[at] / (double)p->count;
			if (p->matrix)
				ck_assert_msg(fabs(sqrt(square) / want - 1) < 0.1, "case %zu: %s: %g", i,
				              p->name, sqrt(square));
			residual += out;
		}
		ck_assert_int_eq(residual, 2 * c.layers);
	}
}
END_TEST

/* Box and Muller's formula in double precision, for words of the generator. */
START_TEST(normals_are_exact_to_the_last_bits)
{
	enum { FIRST = 5, COUNT = 20000 };
	static float got[COUNT];
	double worst = 0;

	random_normals(7, 3, FIRST, COUNT, 1, got);
	for (int i = 0; i < COUNT; i++) {
		int at = (FIRST + i) % 4;
		uint32_t words[4];
		double u, angle, want;

		random_words(7, (uint64_t)((FIRST + i) / 4), 3, words);
		u = ((words[at / 2 * 2] >> 8) + 0.5) * 0x1p-24;
		angle = 2 * M_PI * (words[at / 2 * 2 + 1] >> 8) * 0x1p-24;
		want = sqrt(-2 * log(u)) * (at % 2 ? sin(angle) : cos(angle));
		worst = MAX(worst, fabs(got[i] - want));
	}
	ck_assert_double_lt(worst, 2e-6);
}
END_TEST

/* Salmon et al. 2011: the vectors of their library for Philox 4x32-10, of a counter whose last word is 0. */
START_TEST(words_are_those_of_philox)
{
	uint32_t words[4];

	random_words(0, 0, 0, words);
	ck_assert_uint_eq(words[0], 0x6627e8d5);
	ck_assert_uint_eq(words[1], 0xe169c58d);
	ck_assert_uint_eq(words[2], 0xbc57ac4c);
	ck_assert_uint_eq(words[3], 0x9b00dbd8);
}
END_TEST

/* A batch of packed documents of odd lengths; some targets masked. */
struct sample {
	int32_t ids[40], targets[40], starts[5];
	struct model_batch b;
	int64_t counted;
};

static void sample_make(struct sample *s, int64_t vocab, bool masked)
{
	static const int32_t starts[] = {0, 11, 12, 25, 32};
	uint32_t x = 12345;

	memcpy(s->starts, starts, sizeof(starts));
	s->counted = 0;
	for (int t = 0; t < 32; t++) {
		x = x * 1664525 + 1013904223;
		s->ids[t] = (int32_t)((x >> 8) % (uint32_t)vocab);
	}
	for (int t = 0; t < 32; t++) {
		bool end = t + 1 == 11 || t + 1 == 12 || t + 1 == 25 || t + 1 == 32;

		s->targets[t] = end || (masked && t % 3 == 0) ? -100 : s->ids[t + 1];
		s->counted += s->targets[t] >= 0;
	}
	s->b = (struct model_batch){
	    .tokens = 32, .ids = s->ids, .targets = s->targets, .documents = 4, .starts = s->starts};
}

static struct model_init init = {.seed = 3, .std = 0.15};

/* A model of this configuration, which *c becomes, with the weights of init. */
static void make(struct model_fixture *f, const char *config, const struct model_options *o,
                 struct model_config *c)
{
	struct error err = ERROR_INIT;

	ck_ok(parse(config, c, &err), &err);
	ck_ok(model_fixture_create(f, c, o, model_init_fill, &init, &err), &err);
}

/* A parameter's gradient is what differences of the loss say, along the gradient, by which the loss grows by
 * its square. Both steps are so long; a gradient below `least` is lost in the rounding of the loss. */
static void check_gradient(struct model_fixture *f, const struct model_parameter *p, double length,
                           double least, double (*loss)(struct model_fixture *, const void *),
                           const void *context)
{
	float *w = (float *)(void *)f->w[p->unit] + p->offset;
	size_t bytes = (size_t)p->count * sizeof(float);
	_cleanup_free_ float *old = malloc(bytes), *g = malloc(bytes);
	double norm = 0, step, side[2];

	memcpy(old, w, bytes);
	memcpy(g, f->g[p->unit] + p->offset, bytes);
	for (int64_t j = 0; j < p->count; j++)
		norm += (double)g[j] * g[j];
	ck_assert_double_gt(norm, 0);
	step = length / sqrt(norm);
	for (int k = 0; k < 2; k++) {
		for (int64_t j = 0; j < p->count; j++)
			w[j] = (float)(old[j] + (k ? step : -step) * g[j]);
		side[k] = loss(f, context);
	}
	memcpy(w, old, bytes);
	ck_assert_msg(fabs((side[1] - side[0]) / (2 * step) / norm - 1) < 1e-2 || sqrt(norm) < least,
	              "%s: %g, differences say %g", p->name, sqrt(norm),
	              (side[1] - side[0]) / (2 * step) / sqrt(norm));
}

static double mean_loss(struct model_fixture *f, const void *batch)
{
	struct error err = ERROR_INIT;
	double loss;

	ck_ok(model_fixture_loss(f, batch, &loss, &err), &err);
	return loss;
}

/* Of scores: each document's is at its last token, and the loss is the sum of half their squares. */
static int square(void *context, const float *scores, float *factors, struct error *err)
{
	memcpy(factors, scores, 32 * sizeof(*factors));
	return 0;
}

static double half_squares(struct model_fixture *f, const void *batch)
{
	const struct model_batch *b = batch;
	struct error err = ERROR_INIT;
	float scores[40];
	double sum = 0;

	ck_ok(model_evaluate(f->model, b, NULL, scores, &err), &err);
	for (int64_t t = 0; t < b->tokens; t++) {
		ck_assert(b->targets[t] >= 0 || scores[t] == 0);
		sum += 0.5 * (double)scores[t] * (double)scores[t];
	}
	return sum;
}

START_TEST(gradients_of_scores_are_differences)
{
	struct error err = ERROR_INIT;
	struct model_options o = {
	    .type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40, .training = true, .weighed = true};
	struct model_fixture fixture;
	struct model_config c;
	struct sample s;
	double loss;

	ck_ok(parse("{\"model_type\":\"qwen3\"," SIZES ",\"tie_word_embeddings\":true,\"architectures\":["
	            "\"Qwen3ForSequenceClassification\"],\"id2label\":{\"0\":\"a\"}}",
	            &c, &err),
	      &err);
	ck_assert(c.scores && !c.new_head && !c.tied);
	sample_make(&s, c.vocab, false);
	for (int t = 0; t < 32; t++)
		s.targets[t] = s.targets[t] < 0 ? 0 : -100;
	s.b.weigh = square;
	ck_ok(model_fixture_create(&fixture, &c, &o, model_init_fill, &init, &err), &err);
	ck_assert_ptr_nonnull(model_layout_find(fixture.layout, "score.weight"));
	ck_assert_ptr_null(model_layout_find(fixture.layout, "lm_head.weight"));
	ck_ok(model_fixture_gradients(&fixture, &s.b, 1, true, &loss, &err), &err);
	for (int i = 0; i < fixture.layout->parameters; i++)
		check_gradient(&fixture, &fixture.layout->parameter[i], 2e-3, 1e-3, half_squares, &s.b);
	model_fixture_free(&fixture);
	ck_fails(parse("{\"model_type\":\"qwen3\"," SIZES
	               ",\"architectures\":[\"Qwen3ForSequenceClassification\"]}",
	               &c, &err),
	         &err, "of 2 labels is not supported");
}
END_TEST

static const char *const gradient_cases[] = {
    "{\"model_type\":\"llama\"," SIZES ",\"tie_word_embeddings\":true}",
    "{\"model_type\":\"llama\"," SIZES ",\"attention_bias\":true,\"mlp_bias\":true,\"head_dim\":64}",
    "{\"model_type\":\"mistral\"," SIZES ",\"sliding_window\":5}",
    "{\"model_type\":\"qwen2\"," SIZES ",\"tie_word_embeddings\":true}",
    "{\"model_type\":\"qwen3\"," SIZES ",\"head_dim\":96}",
    "{\"model_type\":\"phi3\"," SIZES ",\"sliding_window\":5}",
    "{\"model_type\":\"gemma2\"," SIZES
    ",\"head_dim\":16,\"sliding_window\":5,\"attn_logit_softcapping\":3.0,"
    "\"final_logit_softcapping\":4.0,\"query_pre_attn_scalar\":16}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":32,\"n_layer\":2,\"n_head\":2,\"n_positions\":"
    "64}",
    "{\"model_type\":\"qwen3_moe\"," SIZES
    ",\"head_dim\":16,\"num_experts\":5,\"num_experts_per_tok\":2,\"moe_intermediate_size\":24}",
    "{\"model_type\":\"mixtral\"," SIZES ",\"num_local_experts\":3}",
    "{\"model_type\":\"glm4\"," SIZES ",\"head_dim\":16}",
    "{\"model_type\":\"qwen3_5_text\"," SIZES
    ",\"head_dim\":16,\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_key_head_dim\":8,"
    "\"linear_value_head_dim\":12,\"layer_types\":[\"linear_attention\",\"full_attention\"]}",
};

START_TEST(gradients_are_differences)
{
	struct error err = ERROR_INIT;
	struct model_options o = {
	    .type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40, .training = true, .logits_rows = 7};
	struct model_config c;
	struct sample s;
	struct model_fixture fixture;
	double loss;

	o.recompute = (enum model_recompute)(_i % 3);
	o.kept = _i % 2;
	make(&fixture, gradient_cases[_i], &o, &c);
	sample_make(&s, c.vocab, _i % 2);
	ck_ok(model_fixture_gradients(&fixture, &s.b, 1.0f / (float)s.counted, true, &loss, &err), &err);
	for (int i = 0; i < fixture.layout->parameters; i++)
		check_gradient(&fixture, &fixture.layout->parameter[i], 2e-3, 1e-3, mean_loss, &s.b);
	model_fixture_free(&fixture);
}
END_TEST

/* A batch whose documents are in two rows; the loss that is trained is not cross-entropy, and there is noise.
 */
struct trained {
	double alpha, smoothing;
	bool dft;
	double router;
	int config; /* of gradient_cases */
};

static const struct trained trained_cases[] = {{5, 0.2, false, 0, 0},
                                               {0, 0.1, false, 0, 7},
                                               {0, 0, true, 0, 6},
                                               {0, 0, false, 0.5, 8},
                                               {0, 0, false, 2, 8}};

static const int32_t row_ends[] = {12, 32};

static void make_trained(struct model_fixture *f, const char *config, const struct trained *t,
                         enum model_recompute recompute, struct sample *s)
{
	struct model_options o = {.type = DTYPE_F32,
	                          .max_tokens = 40,
	                          .max_sequence = 40,
	                          .training = true,
	                          .logits_rows = 7,
	                          .recompute = recompute,
	                          .seed = 11,
	                          .neftune_alpha = t->alpha,
	                          .label_smoothing = t->smoothing,
	                          .dft = t->dft,
	                          .router_loss = t->router};
	struct model_config c;

	make(f, config, &o, &c);
	sample_make(s, c.vocab, true);
	s->b.number = 5;
	s->b.row_ends = row_ends;
	s->b.rows = 2;
}

/* What trained_loss is of. */
struct trained_sample {
	const struct model_batch *b;
	bool dft;
	float before[40]; /* with dft: each token's cross-entropy before any weight moves */
};

/* The sum of what is trained. The gradient of DFT takes the tokens' probabilities for constants. */
static double trained_loss(struct model_fixture *f, const void *context)
{
	const struct trained_sample *t = context;
	struct error err = ERROR_INIT;
	float losses[40];
	double sum = 0;

	if (!t->dft) {
		ck_ok(model_fixture_gradients(f, t->b, 1, true, &sum, &err), &err);
		return sum;
	}
	ck_ok(model_evaluate(f->model, t->b, NULL, losses, &err), &err);
	for (int64_t i = 0; i < t->b->tokens; i++)
		sum += exp(-(double)t->before[i]) * losses[i];
	return sum;
}

/* Of what lies outside of the blocks, of one matrix in them, and of the routers. */
START_TEST(trained_losses_have_their_gradients)
{
	struct error err = ERROR_INIT;
	struct trained_sample t = {.dft = trained_cases[_i].dft};
	struct model_fixture f;
	struct sample s;
	double loss;

	make_trained(&f, gradient_cases[trained_cases[_i].config], &trained_cases[_i],
	             (enum model_recompute)(_i % 3), &s);
	t.b = &s.b;
	ck_ok(model_evaluate(f.model, &s.b, NULL, t.before, &err), &err);
	ck_ok(model_fixture_gradients(&f, &s.b, 1, true, &loss, &err), &err);
	ck_assert_double_eq_tol(trained_loss(&f, &t), loss, 1e-4);
	for (int i = 0; i < f.layout->parameters; i++) {
		const struct model_parameter *p = &f.layout->parameter[i];

		if (p->base > 0 && p->base < f.layout->base_units - 1 &&
		    (p->base > 1 || p->role != PARAMETER_Q) && p->role != PARAMETER_ROUTER)
			continue;
		ck_ok(model_fixture_gradients(&f, &s.b, 1, true, &loss, &err), &err);
		check_gradient(&f, p, 4e-3, 5e-2, trained_loss, &t);
	}
	model_fixture_free(&f);
}
END_TEST

static int fill_but_routers(void *context, const struct model_parameter *p, int64_t first, int64_t n,
                            float *out, struct error *err)
{
	if (p->role != PARAMETER_ROUTER)
		return model_init_fill(context, p, first, n, out, err);
	memset(out, 0, (size_t)n * sizeof(*out));
	return 0;
}

/* Where all experts have the same probability, the loss that balances them is the number of experts of a
 * token, whatever the loads are. Here two of five experts have all tokens, and padding behind them. */
START_TEST(loads_are_shares_of_the_choices)
{
	struct model_options o = {
	    .type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40, .training = true, .logits_rows = 7};
	struct error err = ERROR_INIT;
	double loss[2];
	struct sample s;

	for (int i = 0; i < 2; i++) {
		struct model_fixture f;
		struct model_config c;

		o.router_loss = 3 * i;
		ck_ok(parse(gradient_cases[8], &c, &err), &err);
		ck_ok(model_fixture_create(&f, &c, &o, fill_but_routers, &init, &err), &err);
		sample_make(&s, c.vocab, false);
		s.b.documents = 3;
		s.b.tokens = s.starts[3];
		ck_ok(model_fixture_gradients(&f, &s.b, 1, true, &loss[i], &err), &err);
		model_fixture_free(&f);
	}
	/* All tokens count but the last one of each document. */
	ck_assert_double_eq_tol(loss[1] - loss[0], 3.0 * 2 * (double)(s.b.tokens - 3), 1e-3);
}
END_TEST

START_TEST(evaluation_has_cross_entropy_and_no_noise)
{
	static const struct trained none = {0};
	struct error err = ERROR_INIT;
	struct model_fixture plain;
	struct sample s;
	double loss, mean;

	for (size_t t = 0; t < ARRAY_SIZE(trained_cases); t++) {
		const char *config =
		    gradient_cases[trained_cases[t].router > 0 ? trained_cases[t].config : 1];
		struct model_fixture f;

		make_trained(&plain, config, &none, MODEL_KEEP_ALL, &s);
		ck_ok(model_fixture_loss(&plain, &s.b, &mean, &err), &err);
		model_fixture_free(&plain);
		make_trained(&f, config, &trained_cases[t], MODEL_KEEP_ALL, &s);
		ck_ok(model_fixture_gradients(&f, &s.b, 1, true, &loss, &err), &err);
		ck_assert(fabs(loss / (double)s.counted - mean) > 1e-3);
		ck_ok(model_fixture_loss(&f, &s.b, &loss, &err), &err);
		ck_assert_double_eq(loss, mean);
		model_fixture_free(&f);
	}
}
END_TEST

/* A micro-batch has noise of its own, whatever is computed again. */
START_TEST(noise_is_of_the_micro_batch)
{
	static const struct trained noise = {.alpha = 5};
	struct error err = ERROR_INIT;
	struct model_fixture kept;
	double other, loss, same;
	struct sample s;

	make_trained(&kept, gradient_cases[1], &noise, MODEL_KEEP_ALL, &s);
	s.b.number = 6;
	ck_ok(model_fixture_gradients(&kept, &s.b, 1, true, &other, &err), &err);
	s.b.number = 5;
	ck_ok(model_fixture_gradients(&kept, &s.b, 1, true, &loss, &err), &err);
	ck_assert_double_ne(loss, other);
	for (int way = MODEL_RECOMPUTE_BLOCK; way <= MODEL_RECOMPUTE_SELECTIVE; way++) {
		struct model_fixture again;

		make_trained(&again, gradient_cases[1], &noise, (enum model_recompute)way, &s);
		ck_ok(model_fixture_gradients(&again, &s.b, 1, true, &same, &err), &err);
		ck_assert_double_eq(loss, same);
		for (int u = 0; u < kept.layout->units; u++)
			ck_assert_mem_eq(kept.g[u], again.g[u],
			                 (size_t)kept.layout->unit[u].count * sizeof(float));
		model_fixture_free(&again);
	}
	model_fixture_free(&kept);
}
END_TEST

/* Norms of 1 and nothing else: what the head reads is the noise. */
static int fill_norms(void *plus_one, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                      struct error *err)
{
	for (int64_t i = 0; i < n; i++)
		out[i] = p->matrix || *(bool *)plus_one ? 0 : 1;
	return 0;
}

/* The noise of a row of L tokens fills ±alpha / sqrt(L · hidden): where a row is of several documents, too.
 * With a head of zeros, the gradient of the row of its target is what a token's norm has made of the noise,
 * but for what the rows of all tokens have in common. */
START_TEST(noise_is_of_the_row)
{
	static const struct {
		const char *config;
		double factor;
	} models[] = {
	    {"{\"model_type\":\"llama\"," SIZES ",\"rms_norm_eps\":1,\"tie_word_embeddings\":false}", 1},
	    {"{\"model_type\":\"granite\"," SIZES
	     ",\"rms_norm_eps\":1,\"embedding_multiplier\":3,\"tie_word_embeddings\":false}",
	     3},
	    {"{\"model_type\":\"gemma2\"," SIZES
	     ",\"rms_norm_eps\":1,\"head_dim\":16,\"tie_word_embeddings\":false}",
	     1}};
	static const int32_t whole[] = {0, 12, 32};
	struct error err = ERROR_INIT;

	for (int k = 0; k < 2 * (int)ARRAY_SIZE(models); k++) {
		struct model_options o = {.type = DTYPE_F32,
		                          .max_tokens = 40,
		                          .max_sequence = 40,
		                          .training = true,
		                          .seed = 11,
		                          .neftune_alpha = 2};
		const struct model_parameter *head;
		struct model_fixture f;
		struct model_config c;
		struct sample s;
		const int32_t *ends;
		double loss;
		float *g;
		int rows;

		ck_ok(parse(models[k / 2].config, &c, &err), &err);
		ck_ok(model_fixture_create(&f, &c, &o, fill_norms, &c.norm_plus_one, &err), &err);
		sample_make(&s, c.vocab, false);
		for (int t = 0; t < 32; t++)
			s.targets[t] = t;
		s.b.number = 5;
		if (k % 2) {
			s.b.row_ends = whole + 1;
			s.b.rows = 2;
		}
		ends = k % 2 ? whole : s.starts;
		rows = k % 2 ? 2 : 4;
		ck_ok(model_fixture_gradients(&f, &s.b, 1, true, &loss, &err), &err);
		head = model_layout_find(f.layout, "lm_head.weight");
		ck_assert_ptr_nonnull(head);
		g = f.g[head->unit] + head->offset;
		for (int r = 0; r < rows; r++) {
			double bound = models[k / 2].factor * 2 / sqrt((ends[r + 1] - ends[r]) * 64.0);
			double most = 0, squares = 0;
			int64_t n = 0;

			for (int t = ends[r]; t < ends[r + 1]; t++) {
				double mean = 0, x[64];

				for (int i = 0; i < 64; i++) {
					x[i] = (double)g[50 * 64 + i] - (double)g[t * 64 + i];
					mean += x[i] * x[i] / 64;
				}
				/* The norm has divided by sqrt(mean + 1) of what it read. */
				for (int i = 0; i < 64; i++, n++) {
					x[i] /= sqrt(1 - mean);
					most = fmax(most, fabs(x[i]));
					squares += x[i] * x[i];
				}
			}
			ck_assert_msg(most < bound * 1.0001 && most > bound * 0.9, "%d, row %d: %g of %g", k,
			              r, most, bound);
			ck_assert_msg(fabs(squares / (double)n / (bound * bound / 3) - 1) <
			                  4 * 0.9 / sqrt((double)n),
			              "%d, row %d: %g", k, r, squares / (double)n / (bound * bound / 3));
		}
		model_fixture_free(&f);
	}
}
END_TEST

/* What is computed again has the same bits as what is kept, however many blocks keep it. */
START_TEST(recomputed_gradients_are_the_same)
{
	static const enum model_recompute ways[] = {MODEL_RECOMPUTE_SELECTIVE, MODEL_RECOMPUTE_BLOCK};
	static const char text[] = "{\"model_type\":\"qwen3\",\"hidden_size\":32,\"intermediate_size\":48,"
	                           "\"num_hidden_layers\":4,\"head_dim\":16,\"num_attention_heads\":2,"
	                           "\"num_key_value_heads\":1,\"vocab_size\":60}";
	struct model_options o = {
	    .type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40, .training = true, .logits_rows = 16};
	struct error err = ERROR_INIT;
	struct model_fixture kept;
	struct model_config c;
	size_t least = SIZE_MAX;
	double losses[2];
	struct sample s;

	ck_ok(parse(text, &c, &err), &err);
	sample_make(&s, c.vocab, true);
	ck_ok(model_fixture_create(&kept, &c, &o, model_init_fill, &init, &err), &err);
	ck_ok(model_fixture_gradients(&kept, &s.b, 0.1f, true, &losses[0], &err), &err);
	for (size_t w = 0; w < ARRAY_SIZE(ways); w++)
		for (int keep = c.layers; keep >= 0; keep--) {
			struct model_fixture again;

			o.recompute = ways[w];
			o.kept = keep;
			ck_ok(model_fixture_create(&again, &c, &o, model_init_fill, &init, &err), &err);
			ck_ok(model_fixture_gradients(&again, &s.b, 0.1f, true, &losses[1], &err), &err);
			ck_assert_double_eq(losses[0], losses[1]);
			for (int u = 0; u < kept.layout->units; u++)
				ck_assert_mem_eq(kept.g[u], again.g[u],
				                 (size_t)kept.layout->unit[u].count * sizeof(float));
			/* One block or none that recomputes saves nothing; then each saves the same. */
			if (keep == c.layers || keep == c.layers - 1)
				ck_assert_uint_eq(again.arena.used, kept.arena.used);
			else
				ck_assert_uint_lt(again.arena.used, least);
			least = again.arena.used;
			model_fixture_free(&again);
		}
	model_fixture_free(&kept);
}
END_TEST

/* But for rounding. In linear attention it is relative to the largest: q and k are divided by their lengths,
 * and sums of such gradients may be small. */
static void check_same_gradient(const struct model_parameter *p, const struct model_fixture *a,
                                const struct model_fixture *b, bool linear)
{
	const float *of_a = a->g[p->unit] + p->offset, *of_b = b->g[p->unit] + p->offset;
	float most = 0;

	for (int64_t i = 0; i < p->count; i++)
		most = fmaxf(most, fabsf(of_a[i]));
	for (int64_t i = 0; i < p->count; i++)
		ck_assert_float_eq_tol(of_a[i], of_b[i], 2e-5f * (1 + (linear ? most : fabsf(of_a[i]))));
}

/* One micro-batch of everything, or its documents one after the other: the same gradients. */
START_TEST(accumulation_adds_up)
{
	struct error err = ERROR_INIT;
	struct model_options o = {.type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40, .training = true};
	struct model_config c;
	struct sample s;
	struct model_fixture whole, parts;
	double loss, sum = 0;

	make(&whole, gradient_cases[_i], &o, &c);
	sample_make(&s, c.vocab, false);
	ck_ok(model_fixture_create(&parts, &c, &o, model_init_fill, &init, &err), &err);
	ck_ok(model_fixture_gradients(&whole, &s.b, 0.1f, true, &loss, &err), &err);
	for (int twice = 0; twice < 2; twice++, sum = twice < 2 ? 0 : sum)
		for (int d = 0; d < 4; d++) {
			int32_t starts[2] = {0, s.starts[d + 1] - s.starts[d]};
			struct model_batch b = {.tokens = starts[1],
			                        .ids = s.ids + s.starts[d],
			                        .targets = s.targets + s.starts[d],
			                        .documents = 1,
			                        .starts = starts};
			double part;

			ck_ok(model_fixture_gradients(&parts, &b, 0.1f, d == 0, &part, &err), &err);
			sum += part;
		}
	ck_assert_double_eq_tol(sum, loss, 1e-4);
	for (int p = 0; p < whole.layout->parameters; p++)
		check_same_gradient(&whole.layout->parameter[p], &whole, &parts, c.delta_value_heads > 0);
	model_fixture_free(&whole);
	model_fixture_free(&parts);
}
END_TEST

START_TEST(wrong_batches_are_refused)
{
	struct error err = ERROR_INIT;
	struct model_options o = {.type = DTYPE_F32, .max_tokens = 32, .max_sequence = 13, .training = true};
	struct model_config c;
	struct sample s;
	struct model_fixture fixture;
	double loss;

	make(&fixture, gradient_cases[0], &o, &c);
	sample_make(&s, c.vocab, false);
	ck_ok(model_fixture_loss(&fixture, &s.b, &loss, &err), &err);
	s.ids[5] = 100;
	ck_fails(model_fixture_loss(&fixture, &s.b, &loss, &err), &err,
	         "token id 100 is outside the model's vocabulary of 100");
	s.ids[5] = 0;
	s.starts[2] = s.starts[1];
	ck_fails(model_fixture_loss(&fixture, &s.b, &loss, &err), &err, "document 1");
	s.starts[2] = 31;
	ck_fails(model_fixture_loss(&fixture, &s.b, &loss, &err), &err, "13 are possible");
	s.b.tokens = 33;
	ck_fails(model_fixture_loss(&fixture, &s.b, &loss, &err), &err, "does not fit");
	model_fixture_free(&fixture);
}
END_TEST

/* Token by token through the cache, or all at once: the same logits. */
START_TEST(cache_equals_forward)
{
	struct error err = ERROR_INIT;
	struct model_options o = {.type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40};
	struct generator_options go = {.logits = true, .type = DTYPE_F32, .max_tokens = 32};
	_cleanup_(generator_freep) struct generator *g = NULL;
	static float logits[32 * 100];
	struct model_config c;
	struct sample s;
	struct model_fixture fixture;

	make(&fixture, gradient_cases[_i], &o, &c);
	sample_make(&s, c.vocab, false);
	s.starts[1] = 32;
	s.b.documents = 1;
	ck_ok(model_logits(fixture.model, &s.b, logits, &err), &err);
	ck_ok(generator_create(fixture.dev, &c, &go, model_init_fill, &init, &g, &err), &err);
	ck_ok(generator_feed(g, 0, s.ids, 20, &err), &err);
	for (int t = 20; t <= 32; t++) {
		for (int i = 0; i < 100; i++)
			ck_assert_float_eq_tol(generator_logits(g, 0)[i], logits[(t - 1) * 100 + i], 1e-4f);
		if (t < 32)
			ck_ok(generator_feed(g, 0, s.ids + t, 1, &err), &err);
	}
	ck_fails(generator_feed(g, 0, s.ids, 1, &err), &err, "33 tokens are more than the 32");
	generator_free(steal_pointer(g));
	model_fixture_free(&fixture);
}
END_TEST

/* Sequences that go on together have the logits that each has by itself, to the bit, also where one has ended
 * and another begins in its place. */
START_TEST(sequences_do_not_change_each_other)
{
	enum { SEQUENCES = 7, STEPS = 6 };
	struct error err = ERROR_INIT;
	struct model_options o = {.type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40};
	struct generator_options go = {.logits = true, .max_tokens = 32, .sequences = SEQUENCES};
	_cleanup_(generator_freep) struct generator *g = NULL, *one = NULL;
	struct model_config c;
	struct model_fixture fixture;
	struct sample s;

	make(&fixture, gradient_cases[_i / 3], &o, &c);
	sample_make(&s, c.vocab, false);
	/* The device of plain loops has fp32 alone. */
	if (_i % 3 && strncmp(device_describe(fixture.dev), "cpu", 3) != 0) {
		model_fixture_free(&fixture);
		return;
	}
	go.type = (enum dtype)(_i % 3);
	ck_ok(generator_create(fixture.dev, &c, &go, model_init_fill, &init, &g, &err), &err);
	go.sequences = 0;
	ck_ok(generator_create(fixture.dev, &c, &go, model_init_fill, &init, &one, &err), &err);
	for (int turn = 0; turn < 2; turn++) {
		int32_t ids[SEQUENCES];
		int sequences[SEQUENCES];

		for (int i = turn; i < SEQUENCES; i += 1 + turn) {
			generator_reset(g, i, 0);
			ck_ok(generator_feed(g, i, s.ids + i, 2 + 3 * i, &err), &err);
		}
		for (int t = 0; t < STEPS; t++) {
			for (int i = 0; i < SEQUENCES; i++) {
				sequences[i] = (i + t) % SEQUENCES;
				ids[i] = s.ids[(5 * sequences[i] + t) % 32];
			}
			ck_ok(generator_step(g, sequences, ids, t == 3 ? SEQUENCES - 2 : SEQUENCES, &err),
			      &err);
			if (t == 3)
				ck_ok(generator_step(g, sequences + SEQUENCES - 2, ids + SEQUENCES - 2, 2,
				                     &err),
				      &err);
			if (turn == 1)
				break;
		}
		for (int i = turn; i < SEQUENCES; i += 1 + turn) {
			generator_reset(one, 0, 0);
			ck_ok(generator_feed(one, 0, s.ids + i, 2 + 3 * i, &err), &err);
			for (int t = 0; t < (turn ? 1 : STEPS); t++)
				ck_ok(generator_feed(one, 0, s.ids + (5 * i + t) % 32, 1, &err), &err);
			ck_assert_mem_eq(generator_logits(g, i), generator_logits(one, 0),
			                 (size_t)c.vocab * sizeof(float));
		}
	}
	generator_free(steal_pointer(g));
	generator_free(steal_pointer(one));
	model_fixture_free(&fixture);
}
END_TEST

static const struct sampling samplings[] = {
    {.temperature = 0},
    {.temperature = 1, .top_p = 1},
    {.temperature = 0.7, .top_p = 0.9, .top_k = 30},
    {.temperature = 2, .top_p = 1, .min_p = 0.3},
};

/* Ids that are chosen where the logits are, and those that are chosen from logits on the host. */
START_TEST(ids_are_chosen_on_either_side)
{
	enum { SEQUENCES = 3, STEPS = 12 };
	struct error err = ERROR_INIT;
	struct model_options o = {.type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40};
	struct generator_options go = {.type = DTYPE_F32,
	                               .max_tokens = 32,
	                               .sequences = SEQUENCES,
	                               .ids = 90,
	                               .sampling = samplings[_i]};
	_cleanup_(generator_freep) struct generator *g = NULL, *host = NULL;
	struct model_config c;
	struct model_fixture fixture;
	int32_t ids[SEQUENCES];
	struct sample s;
	int differ = 0;

	make(&fixture, gradient_cases[0], &o, &c);
	sample_make(&s, c.vocab, false);
	ck_ok(generator_create(fixture.dev, &c, &go, model_init_fill, &init, &g, &err), &err);
	go.logits = true;
	ck_ok(generator_create(fixture.dev, &c, &go, model_init_fill, &init, &host, &err), &err);
	for (int i = 0; i < SEQUENCES; i++) {
		/* Two of the same tokens, whose seeds alone differ. */
		generator_reset(g, i, (uint64_t)i);
		generator_reset(host, i, (uint64_t)i);
		ck_ok(generator_feed(g, i, s.ids + i / 2, 5, &err), &err);
		ck_ok(generator_feed(host, i, s.ids + i / 2, 5, &err), &err);
		ids[i] = generator_choose(g, i);
		ck_assert_int_eq(ids[i], generator_choose(host, i));
	}
	for (int t = 0; t < STEPS; t++) {
		const int sequences[SEQUENCES] = {2, 0, 1};
		const int32_t next[SEQUENCES] = {ids[2], ids[0], ids[1]};

		differ += ids[0] != ids[1];
		ck_ok(generator_step(g, sequences, next, SEQUENCES, &err), &err);
		ck_ok(generator_step(host, sequences, next, SEQUENCES, &err), &err);
		for (int i = 0; i < SEQUENCES; i++) {
			ids[i] = generator_choose(g, i);
			ck_assert_int_eq(ids[i], generator_choose(host, i));
			ck_assert(ids[i] >= 0 && ids[i] < 90);
		}
	}
	ck_assert_int_eq(differ > 0, samplings[_i].temperature > 0);
	generator_free(steal_pointer(g));
	generator_free(steal_pointer(host));
	model_fixture_free(&fixture);
}
END_TEST

/* Weights of 16 bits are the rounded ones: the logits are those of fp32 within what rounding does. */
START_TEST(rounded_weights_give_the_logits)
{
	struct error err = ERROR_INIT;
	struct model_options o = {.type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40};
	struct generator_options go = {.logits = true, .max_tokens = 32};
	_cleanup_(generator_freep) struct generator *g = NULL, *one = NULL;
	enum dtype type = _i % 2 ? DTYPE_F16 : DTYPE_BF16;
	float rounding = type == DTYPE_F16 ? 0x1p-11f : 0x1p-8f, most = 0;
	struct model_config c;
	struct model_fixture fixture;
	struct sample s;

	make(&fixture, gradient_cases[_i / 2], &o, &c);
	sample_make(&s, c.vocab, false);
	/* The device of plain loops has fp32 alone. */
	if (strncmp(device_describe(fixture.dev), "cpu", 3) != 0) {
		model_fixture_free(&fixture);
		return;
	}
	ck_ok(generator_create(fixture.dev, &c, &go, model_init_fill, &init, &g, &err), &err);
	go.type = type;
	ck_ok(generator_create(fixture.dev, &c, &go, model_init_fill, &init, &one, &err), &err);
	ck_ok(generator_feed(g, 0, s.ids, 20, &err), &err);
	ck_ok(generator_feed(one, 0, s.ids, 20, &err), &err);
	for (int i = 0; i < c.vocab; i++)
		most = MAX(most, fabsf(generator_logits(g, 0)[i]));
	for (int i = 0; i < c.vocab; i++)
		ck_assert_float_eq_tol(generator_logits(one, 0)[i], generator_logits(g, 0)[i],
		                       32 * rounding * most);
	generator_free(steal_pointer(g));
	generator_free(steal_pointer(one));
	model_fixture_free(&fixture);
}
END_TEST

/* What is reserved at the start is enough for a sequence that is many times as long as what is fed at
 * once. */
START_TEST(long_sequences_are_continued)
{
	enum { TOKENS = 1200 };
	static const char config[] =
	    "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":32,\"num_hidden_layers\":1,"
	    "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"head_dim\":128,\"vocab_size\":100}";
	struct error err = ERROR_INIT;
	struct model_options o = {.type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40};
	struct generator_options go = {.logits = true, .type = DTYPE_F32, .max_tokens = TOKENS};
	_cleanup_(generator_freep) struct generator *g = NULL;
	int32_t ids[TOKENS];
	struct model_config c;
	struct model_fixture fixture;

	make(&fixture, config, &o, &c);
	for (int i = 0; i < TOKENS; i++)
		ids[i] = i * 7 % c.vocab;
	ck_ok(generator_create(fixture.dev, &c, &go, model_init_fill, &init, &g, &err), &err);
	ck_ok(generator_feed(g, 0, ids, TOKENS - 2, &err), &err);
	ck_ok(generator_feed(g, 0, ids + TOKENS - 2, 1, &err), &err);
	ck_ok(generator_feed(g, 0, ids + TOKENS - 1, 1, &err), &err);
	ck_assert(isfinite(generator_logits(g, 0)[0]));
	generator_free(steal_pointer(g));
	model_fixture_free(&fixture);
}
END_TEST

START_TEST(more_sequences_than_memory)
{
	struct error err = ERROR_INIT;
	struct model_options o = {.type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40};
	struct generator_options go = {
	    .logits = true, .type = DTYPE_F32, .max_tokens = 1000000, .sequences = 1000000};
	struct generator *g = NULL;
	struct model_config c;
	struct model_fixture fixture;

	make(&fixture, gradient_cases[0], &o, &c);
	ck_fails(generator_create(fixture.dev, &c, &go, model_init_fill, &init, &g, &err), &err,
	         "sequences of 1000000 tokens take");
	/* Of this model, only the logits are large. */
	ck_ok(
	    parse(
	        "{\"model_type\":\"llama\",\"hidden_size\":2,\"intermediate_size\":2,\"num_hidden_layers\":1,"
	        "\"num_attention_heads\":1,\"vocab_size\":16000000,\"tie_word_embeddings\":true}",
	        &c, &err),
	    &err);
	go.max_tokens = 1;
	go.sequences =
	    (int)((int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE) / (c.vocab * 4)) + 1;
	ck_fails(generator_create(fixture.dev, &c, &go, model_init_fill, &init, &g, &err), &err,
	         "sequences of 1 tokens take");
	model_fixture_free(&fixture);
}
END_TEST

/* What does not fit is refused, and what fits goes on as before. */
START_TEST(parts_are_checked)
{
	struct error err = ERROR_INIT;
	struct model_options o = {
	    .type = DTYPE_F32, .max_tokens = 6, .max_sequence = 8, .cache_tokens = 8, .cache_sequences = 2};
	static const int32_t ids[9] = {1, 2, 3};
	struct model_part parts[3] = {
	    {.sequence = 1, .n = 4}, {.sequence = 0, .n = 4}, {.sequence = 0, .n = 1}};
	struct model_config c;
	struct model_fixture f;

	make(&f, gradient_cases[0], &o, &c);
	ck_fails(model_decode(f.model, parts, 3, ids, &err), &err,
	         "3 sequences are more than the 2 of the cache");
	ck_fails(model_decode(f.model, parts, 2, ids, &err), &err, "8 tokens at once are more than 6");
	ck_ok(model_decode(f.model, parts, 1, ids, &err), &err);
	parts[0].n = 5;
	ck_fails(model_decode(f.model, parts, 1, ids, &err), &err,
	         "9 tokens are more than the 8 there is room for");
	parts[0].sequence = 2;
	ck_fails(model_decode(f.model, parts, 1, ids, &err), &err,
	         "for sequence 2: the cache has 2 sequences");
	parts[0].sequence = -1;
	ck_fails(model_decode(f.model, parts, 1, ids, &err), &err, "for sequence -1");
	parts[0] = (struct model_part){.sequence = 1, .n = 4};
	ck_ok(model_decode(f.model, parts, 1, ids, &err), &err);
	model_fixture_free(&f);
}
END_TEST

START_TEST(sampling_follows_the_distribution)
{
	float logits[5] = {0, logf(2), logf(4), logf(8), logf(8)};
	struct sampling s = {.temperature = 0, .top_p = 1};
	int count[5] = {0};

	ck_assert_int_eq(sampling_choose(&s, logits, 5, 0), 3);
	s.temperature = 1;
	for (int i = 0; i < 23000; i++)
		count[sampling_choose(&s, logits, 5, i)]++;
	for (int i = 0; i < 5; i++)
		ck_assert_double_eq_tol(count[i], 1000 * exp(logits[i]), 250);
	s.top_k = 2;
	for (int i = 0; i < 1000; i++)
		ck_assert_int_ge(sampling_choose(&s, logits, 5, i), 3);
	s.top_k = 0;
	s.top_p = 17.0 / 23;
	memset(count, 0, sizeof(count));
	for (int i = 0; i < 20000; i++)
		count[sampling_choose(&s, logits, 5, i)]++;
	ck_assert_int_eq(count[0] + count[1], 0);
	ck_assert_double_eq_tol(count[2], 4000, 300);
	s.top_p = 1;
	s.temperature = 0.5;
	memset(count, 0, sizeof(count));
	for (int i = 0; i < 14900; i++)
		count[sampling_choose(&s, logits, 5, i)]++;
	ck_assert_double_eq_tol(count[3], 6400, 400);
}
END_TEST

/* A trained model: the loss of each token, and the text that it generates. */
START_TEST(stories_as_the_reference)
{
	_cleanup_free_ char *path = checkpoint(""), *reference_path = checkpoint("/reference.json");
	_cleanup_json_ json_t *reference = NULL;
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_(generator_freep) struct generator *g = NULL;
	struct model_options o = {.type = DTYPE_F32, .max_tokens = 40, .max_sequence = 40, .logits_rows = 16};
	struct generator_options go = {.logits = true, .type = DTYPE_F32};
	struct error err = ERROR_INIT;
	const json_t *nll, *text;
	struct model_config c;
	struct sample s = {0};
	struct model_fixture fixture;
	float losses[40];
	double sum = 0;

	if (!file_exists(path)) {
		printf("skipped: stories_as_the_reference (no %s)\n", path);
		return;
	}
	ck_ok(json_read_file(reference_path, &reference, &err), &err);
	ck_ok(model_config_read(path, &c, &err), &err);
	ck_ok(safetensors_open(path, &st, &err), &err);
	sample_make(&s, 1, false);
	for (size_t i = 0; i < 32; i++) {
		s.ids[i] = (int32_t)json_integer_value(json_array_get(json_object_get(reference, "ids"), i));
		s.targets[i > 0 ? i - 1 : 31] = i > 0 ? s.ids[i] : -100;
	}
	s.starts[1] = 32;
	s.b.documents = 1;
	ck_ok(model_fixture_create(&fixture, &c, &o, parameters_fill, st, &err), &err);
	ck_ok(parameters_check(fixture.layout, st, path, &err), &err);
	ck_ok(model_evaluate(fixture.model, &s.b, &sum, losses, &err), &err);
	nll = json_object_get(reference, "per_token_nll");
	for (size_t i = 0; i < 31; i++)
		ck_assert_double_eq_tol(losses[i], json_number_value(json_array_get(nll, i)), 1e-5);
	ck_assert_double_eq_tol(sum / 31, json_get_number(reference, "mean_loss", 0), 1e-5);
	ck_ok(generator_create(fixture.dev, &c, &go, parameters_fill, st, &g, &err), &err);
	text = json_object_get(reference, "greedy_ids_from_bos");
	for (size_t i = 0; i < json_array_size(text); i++) {
		int32_t id = (int32_t)json_integer_value(json_array_get(text, i));

		if (i > 0)
			ck_assert_int_eq(generator_choose(g, 0), id);
		ck_ok(generator_feed(g, 0, &id, 1, &err), &err);
	}
	generator_free(steal_pointer(g));
	model_fixture_free(&fixture);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("model");
	TCase *c = tcase_create("model");
	int cases = (int)ARRAY_SIZE(gradient_cases);

	tcase_set_timeout(c, 120);
	tcase_add_test(c, config_families);
	tcase_add_test(c, each_family_has_the_defaults_of_transformers);
	tcase_add_test(c, key_value_heads_default_to_those_of_the_family);
	tcase_add_test(c, parts_of_multimodal_models_have_the_defaults_of_transformers);
	tcase_add_test(c, multimodal_models_that_are_refused);
	tcase_add_test(c, the_original_context_may_stand_beside_the_rope_parameters);
	tcase_add_test(c, two_different_rope_parameters_are_refused);
	tcase_add_test(c, scores_are_capped_in_gemma2_alone);
	tcase_add_test(c, windows_follow_the_pattern_of_the_family);
	tcase_add_test(c, config_digest_is_of_the_model);
	tcase_add_test(c, moments_may_be_infinite);
	tcase_add_test(c, config_errors_say_what);
	tcase_add_test(c, layout_is_flat_and_complete);
	tcase_add_test(c, init_does_not_depend_on_the_pieces);
	tcase_add_test(c, matrices_begin_as_large_as_in_transformers);
	tcase_add_test(c, dropout_of_a_config_is_known);
	tcase_add_test(c, normals_are_exact_to_the_last_bits);
	tcase_add_test(c, words_are_those_of_philox);
	tcase_add_test(c, recomputed_gradients_are_the_same);
	tcase_add_loop_test(c, gradients_are_differences, 0, cases);
	tcase_add_loop_test(c, trained_losses_have_their_gradients, 0, (int)ARRAY_SIZE(trained_cases));
	tcase_add_test(c, loads_are_shares_of_the_choices);
	tcase_add_test(c, evaluation_has_cross_entropy_and_no_noise);
	tcase_add_test(c, noise_is_of_the_micro_batch);
	tcase_add_test(c, noise_is_of_the_row);
	tcase_add_loop_test(c, accumulation_adds_up, 0, cases);
	tcase_add_test(c, gradients_of_scores_are_differences);
	tcase_add_test(c, wrong_batches_are_refused);
	tcase_add_loop_test(c, cache_equals_forward, 0, cases);
	tcase_add_loop_test(c, sequences_do_not_change_each_other, 0, 3 * cases);
	tcase_add_loop_test(c, ids_are_chosen_on_either_side, 0, ARRAY_SIZE(samplings));
	tcase_add_loop_test(c, rounded_weights_give_the_logits, 0, 2 * cases);
	tcase_add_test(c, long_sequences_are_continued);
	tcase_add_test(c, more_sequences_than_memory);
	tcase_add_test(c, parts_are_checked);
	tcase_add_test(c, sampling_follows_the_distribution);
	tcase_add_test(c, stories_as_the_reference);
	suite_add_tcase(suite, c);
	return unit_run(suite);
}
