/* SPDX-License-Identifier: Apache-2.0 */
/* The products of mixer.c, and the memory of what linear attention keeps of sequences: what a plan needs
 * without a device. */
#include "engine/model/internal.h"

enum parameter_role model_projection(const struct model *m, int layer)
{
	return model_config_is_linear(&m->c, layer) ? PARAMETER_DELTA_QKV : PARAMETER_Q;
}

enum parameter_role model_output_projection(const struct model *m, int layer)
{
	return model_config_is_linear(&m->c, layer) ? PARAMETER_DELTA_OUT : PARAMETER_O;
}

size_t model_state_floats(const struct model *m)
{
	return (size_t)m->c.delta_value_heads * (size_t)m->c.delta_key_dim * (size_t)m->c.delta_value_dim;
}

size_t model_last_bytes(const struct model *m)
{
	return (size_t)(m->c.conv_width - 1) * (size_t)m->channels * m->size;
}

void model_state_place(struct model *m, struct arena *a, int layer)
{
	size_t n = (size_t)m->o.cache_sequences;

	m->state[layer] =
	    arena_take(a, BUFFER_CACHE, n * model_state_floats(m) * sizeof(float), "layer %d states", layer);
	m->last[layer] = arena_take(a, BUFFER_CACHE, n * model_last_bytes(m), "layer %d last inputs", layer);
}
