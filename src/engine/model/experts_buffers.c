/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a mixture of experts. (A plan has it without a device.) */
#include "engine/model/internal.h"

/* An eighth of what an expert has where all have as much, as a power of two from 16 to 256: there are some
 * dozen numbers of rows then, for each of which oneDNN compiles products of its own. */
int model_expert_multiple(const struct model_config *c, int64_t tokens)
{
	int64_t share = tokens * c->chosen_experts / c->experts;
	int multiple = 16;

	while (multiple < 256 && multiple * 16 <= share)
		multiple *= 2;
	return multiple;
}

struct device_router model_router(const struct model *m, int64_t tokens)
{
	return (struct device_router){.tokens = tokens,
	                              .experts = m->c.experts,
	                              .chosen = m->c.chosen_experts,
	                              .multiple = m->multiple,
	                              .normalized = m->c.normalized_experts,
	                              .type = m->o.type};
}

void model_experts_size(struct model *m)
{
	struct device_router r;

	m->places = m->o.max_tokens;
	if (!m->c.experts)
		return;
	/* Texts are generated one token at a time, and rows without one would take most of the time. */
	m->multiple = m->o.training ? model_expert_multiple(&m->c, m->o.max_tokens) : 1;
	r = model_router(m, m->o.max_tokens);
	m->places = device_places_most(&r);
}

void model_experts_place(struct model *m, struct arena *a)
{
	size_t tokens = (size_t)m->o.max_tokens, places = (size_t)m->places;

	m->spread = arena_take(a, BUFFER_SCRATCH, places * (size_t)m->c.hidden * m->size, "rows of experts");
	m->expert_starts =
	    arena_take(a, BUFFER_SCRATCH, model_starts(m) * sizeof(int32_t), "first rows of experts");
	if (!m->o.training)
		return;
	m->d_weights = arena_take(a, BUFFER_SCRATCH, tokens * (size_t)m->c.chosen_experts * sizeof(float),
	                          "gradients of experts' weights");
	if (m->o.router_loss > 0) {
		m->balance =
		    arena_take(a, BUFFER_SCRATCH, (size_t)m->c.experts * sizeof(float), "loads of experts");
		m->row_losses = arena_take(a, BUFFER_SCRATCH, tokens * sizeof(float), "losses of the router");
	}
}

void model_experts_activations(struct model *m, struct arena *a, int layer)
{
	size_t tokens = (size_t)m->o.max_tokens, choices = tokens * (size_t)m->c.chosen_experts;
	struct model_routing *r = &m->layer[layer].routing;

	r->logits = arena_take(a, BUFFER_ACTIVATIONS, tokens * (size_t)m->c.experts * m->size,
	                       "layer %d router", layer);
	r->expert = arena_take(a, BUFFER_ACTIVATIONS, choices * sizeof(int32_t), "layer %d experts", layer);
	r->weight =
	    arena_take(a, BUFFER_ACTIVATIONS, choices * sizeof(float), "layer %d weights of experts", layer);
	r->place = arena_take(a, BUFFER_ACTIVATIONS, choices * sizeof(int32_t), "layer %d places", layer);
	r->row =
	    arena_take(a, BUFFER_ACTIVATIONS, (size_t)m->places * sizeof(int32_t), "layer %d rows", layer);
}
