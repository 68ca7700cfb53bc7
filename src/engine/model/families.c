/* SPDX-License-Identifier: Apache-2.0 */
/* The table of model families. */
#include "engine/model/families.h"

#include <stdio.h>

#include "base/str.h"

/* Attention that sees later tokens, too. */
static const struct family_switch one_direction[] = {{"use_bidirectional_attention", false}, {NULL}};

static const struct family_switch plain_gpt2[] = {{"scale_attn_weights", true},
                                                  {"scale_attn_by_inverse_layer_idx", false},
                                                  {"add_cross_attention", false},
                                                  {NULL}};

static const struct family families[] = {
    {.name = "llama", .attention_bias = true, .mlp_bias = true, .default_positions = 2048},
    {.name = "mistral",
     .window = true,
     .default_kv_heads = 8,
     .default_window = 4096,
     .default_positions = 131072},
    {.name = "qwen2",
     .qkv_bias = true,
     .window_switch = true,
     .default_kv_heads = 32,
     .default_window = 4096,
     .default_positions = 32768},
    {.name = "qwen3",
     .attention_bias = true,
     .qk_norm = MODEL_QK_NORM_HEADS,
     .window_switch = true,
     .head_dim = 128,
     .default_kv_heads = 32,
     .default_window = 4096,
     .default_positions = 32768},
    {.name = "smollm3",
     .attention_bias = true,
     .mlp_bias = true,
     .no_rope_layers = true,
     .window_types = true,
     .default_kv_heads = 4,
     .default_window = -1,
     .default_theta = 2e6,
     .default_positions = 32768,
     .tied = true},
    {.name = "granite",
     .attention_bias = true,
     .mlp_bias = true,
     .multipliers = true,
     .default_positions = 2048},
    {.name = "olmo2",
     .naming = MODEL_NAMES_OLMO2,
     .attention_bias = true,
     .norm_place = MODEL_NORM_AFTER,
     .qk_norm = MODEL_QK_NORM_PROJECTION,
     .default_eps = 1e-5,
     .default_positions = 2048},
    {.name = "olmo3",
     .naming = MODEL_NAMES_OLMO2,
     .attention_bias = true,
     .norm_place = MODEL_NORM_AFTER,
     .qk_norm = MODEL_QK_NORM_PROJECTION,
     .default_eps = 1e-5,
     .window_types = true,
     .window_every = 4,
     .default_window = 4096,
     .two_ropes = true,
     .default_theta = 500000,
     .default_positions = 2048},
    {.name = "phi3",
     .naming = MODEL_NAMES_PHI3,
     .fused = true,
     .partial_rotary = true,
     .original_positions = true,
     .window = true,
     .default_window = -1,
     .default_eps = 1e-5,
     .default_positions = 4096},
    {.name = "gemma2",
     .naming = MODEL_NAMES_GEMMA,
     .attention_bias = true,
     .activation_key = "hidden_activation",
     .activation = MODEL_GELU_TANH,
     .norm_plus_one = true,
     .norm_place = MODEL_NORM_AROUND,
     .head_dim = 256,
     .default_kv_heads = 4,
     .default_query_scalar = 256,
     .default_attention_cap = 50,
     .logits_cap = true,
     .default_logits_cap = 30,
     .window_types = true,
     .window_every = 2,
     .default_window = 4096,
     .embedding_scale = true,
     .tied = true,
     .default_positions = 8192,
     .switches = one_direction},
    {.name = "gemma3_text",
     .naming = MODEL_NAMES_GEMMA,
     .attention_bias = true,
     .activation_key = "hidden_activation",
     .activation = MODEL_GELU_TANH,
     .norm_plus_one = true,
     .norm_place = MODEL_NORM_AROUND,
     .qk_norm = MODEL_QK_NORM_HEADS,
     .head_dim = 256,
     .default_kv_heads = 4,
     .default_query_scalar = 256,
     .logits_cap = true,
     .window_types = true,
     .window_every = 6,
     .window_every_key = "sliding_window_pattern",
     .default_window = 4096,
     .two_ropes = true,
     .default_theta = 1e6,
     .window_theta = 10000,
     .window_theta_key = "rope_local_base_freq",
     .embedding_scale = true,
     .tied = true,
     .default_positions = 131072,
     .switches = one_direction},
    {.name = "gpt2",
     .naming = MODEL_NAMES_GPT2,
     .all_bias = true,
     .fused = true,
     .transposed = true,
     .activation_key = "activation_function",
     .activation = MODEL_GELU_TANH,
     .plain_mlp = true,
     .scaled_residual_init = true,
     .default_dropout = 0.1,
     .layer_norm = true,
     .learned_positions = true,
     .default_eps = 1e-5,
     .default_positions = 1024,
     .tied = true,
     .switches = plain_gpt2},
};

const struct family *family_find(const char *model_type)
{
	for (size_t i = 0; i < ARRAY_SIZE(families); i++)
		if (str_eq(model_type, families[i].name))
			return &families[i];
	return NULL;
}

const char *family_names(char *text, size_t size)
{
	size_t at = 0;

	for (size_t i = 0; i < ARRAY_SIZE(families) && at < size; i++)
		at += (size_t)snprintf(text + at, size - at, "%s%s", i ? ", " : "", families[i].name);
	return text;
}
