/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a mixture of experts. (A plan has it without a device.) */
#include "engine/model/internal.h"

void model_experts_place(struct model *m, struct arena *a)
{
	size_t tokens = (size_t)m->o.max_tokens, places = tokens * (size_t)m->chosen;

	m->spread = arena_take(a, BUFFER_SCRATCH, places * (size_t)m->c.hidden * m->size, "rows of experts");
	m->expert_starts = arena_take(a, BUFFER_SCRATCH, ((size_t)m->c.experts + 1) * sizeof(int32_t),
	                              "first rows of experts");
	if (!m->o.training)
		return;
	m->d_weights = arena_take(a, BUFFER_SCRATCH, places * sizeof(float), "gradients of experts' weights");
	if (m->o.router_loss > 0) {
		m->balance =
		    arena_take(a, BUFFER_SCRATCH, (size_t)m->c.experts * sizeof(float), "loads of experts");
		m->row_losses = arena_take(a, BUFFER_SCRATCH, tokens * sizeof(float), "losses of the router");
	}
}

void model_experts_activations(struct model *m, struct arena *a, int layer)
{
	size_t tokens = (size_t)m->o.max_tokens, places = tokens * (size_t)m->chosen;
	struct model_routing *r = &m->layer[layer].routing;

	r->logits = arena_take(a, BUFFER_ACTIVATIONS, tokens * (size_t)m->c.experts * m->size,
	                       "layer %d router", layer);
	r->expert = arena_take(a, BUFFER_ACTIVATIONS, places * sizeof(int32_t), "layer %d experts", layer);
	r->weight =
	    arena_take(a, BUFFER_ACTIVATIONS, places * sizeof(float), "layer %d weights of experts", layer);
	r->place = arena_take(a, BUFFER_ACTIVATIONS, places * sizeof(int32_t), "layer %d places", layer);
	r->row = arena_take(a, BUFFER_ACTIVATIONS, places * sizeof(int32_t), "layer %d rows", layer);
}
