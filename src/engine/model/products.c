/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the matrix products of a model: linear.c describes each as it would for the device, over a copy of
 * the model whose buffers are places that nothing accesses. */
#include <stdlib.h>

#include "engine/model/internal.h"

/* A place, aligned as the buffers of an arena. */
static char *no_place(void)
{
	return (char *)((uintptr_t)ARENA_ALIGNMENT << 12);
}

static void list_gradients(struct model *m, int unit, enum parameter_role role, int64_t tokens)
{
	model_linear_input_gradient(m, unit, role, no_place(), no_place(), tokens);
	model_linear_weight_gradient(m, unit, role, no_place(), no_place(), tokens, true);
	if (model_gradient_type(m, unit) == DTYPE_F32)
		model_linear_weight_gradient(m, unit, role, no_place(), no_place(), tokens, false);
}

static void list_block(struct model *m, int unit, int64_t tokens)
{
	/* Experts' products are their own (experts.c). */
	const enum parameter_role roles[] = {model_projection(m, unit - 1),
	                                     model_output_projection(m, unit - 1),
	                                     m->c.experts ? PARAMETER_ROUTER : PARAMETER_GATE,
	                                     m->c.experts ? PARAMETER_ROLES : PARAMETER_DOWN};
	size_t n = m->c.experts ? 3 : 4;

	for (size_t i = 0; i < n; i++) {
		model_linear(m, unit, roles[i], no_place(), no_place(), tokens);
		m->d_low_of = -1;
		if (m->o.training && unit >= m->layout->lowest)
			list_gradients(m, unit, roles[i], tokens);
	}
	if (m->c.experts)
		model_experts_list(m, unit, tokens, no_place());
}

static void list_values(struct model *m, int64_t rows)
{
	int unit = m->layout->base_units - 1;

	model_linear_f32(m, unit, PARAMETER_VALUE, (float *)no_place(), no_place(), rows);
	if (!m->o.training)
		return;
	model_linear_add_input_gradient(m, unit, PARAMETER_VALUE, no_place(), no_place(), rows);
	model_linear_weight_gradient(m, unit, PARAMETER_VALUE, no_place(), no_place(), rows, true);
	model_linear_weight_gradient(m, unit, PARAMETER_VALUE, no_place(), no_place(), rows, false);
}

static void list_head(struct model *m, int64_t rows)
{
	if (m->c.scores)
		model_linear_f32(m, head_unit(m), head_role(m), (float *)no_place(), no_place(), rows);
	else
		model_linear(m, head_unit(m), head_role(m), no_place(), no_place(), rows);
	m->d_low_of = -1;
	if (m->o.training)
		list_gradients(m, head_unit(m), head_role(m), rows);
	if (m->c.values)
		list_values(m, rows);
}

int model_products(const struct model *m, int64_t tokens, model_product_fn each, void *context,
                   struct error *err)
{
	const struct model_listing listing = {each, context};
	struct model copy = *m;

	copy.listing = &listing;
	copy.unit = calloc((size_t)m->layout->units, sizeof(*copy.unit));
	if (!copy.unit)
		return error_oom(err);
	for (int u = 0; u < m->layout->units; u++) {
		copy.unit[u].w = no_place();
		copy.unit[u].g = no_place();
	}
	copy.low = copy.d_low = copy.masked = copy.unscaled = copy.d_scaled = no_place();
	copy.norms = copy.vectors = (float *)no_place();
	for (int unit = 1; unit <= m->c.layers; unit++) {
		list_block(&copy, unit, tokens);
		/* The masks of dropout are for training alone. */
		copy.drops = m->rank > 0 && m->o.training && m->o.tuning->dropout > 0;
		if (copy.drops)
			list_block(&copy, unit, tokens);
		copy.drops = false;
	}
	list_head(&copy, MIN(tokens, m->logits_rows));
	free(copy.unit);
	return 0;
}
