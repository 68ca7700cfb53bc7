/* SPDX-License-Identifier: Apache-2.0 */
/* The table of model families. */
#include "engine/model/families.h"

#include <stdio.h>

#include "base/str.h"

static const struct family families[] = {
    {.name = "llama", .attention_bias = true, .mlp_bias = true, .default_positions = 2048},
    {.name = "mistral", .window = true, .default_window = 4096, .default_positions = 131072},
    {.name = "qwen2",
     .qkv_bias = true,
     .window_switch = true,
     .default_window = 4096,
     .default_positions = 32768},
    {.name = "qwen3",
     .attention_bias = true,
     .qk_norm = MODEL_QK_NORM_HEADS,
     .window_switch = true,
     .head_dim = 128,
     .default_window = 4096,
     .default_positions = 32768},
    {.name = "smollm3",
     .attention_bias = true,
     .mlp_bias = true,
     .no_rope_layers = true,
     .window_types = true,
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
