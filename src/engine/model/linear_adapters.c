/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What adapters add to a product and to its gradients.
 *
 * An adapter (Hu et al. 2021, LoRA) adds scale · B·A·x to the output of its matrix. The A of a group lie
 * behind each other: low = x·Aᵀ is one product for all of them. With dropout their input is x with a mask,
 * which a training pass computes anew wherever it is needed: it is a function of the micro-batch's number and
 * the group.
 *
 * With DoRA (Liu et al. 2024) row j of W + scale · B·A has the length magnitude[j] instead of its own,
 * norm[j]: the output is magnitude / norm · (W·x + scale · B·A·x) + bias. The norms are computed for each
 * product from the weights as they are, and the gradient takes them for constants (section 4.3 of the paper).
 * That of the magnitudes needs the output before it was scaled, which is computed again.
 */
#include "engine/model/linear.h"

static struct device_dropout mask_of(const struct model *m, int unit, const struct linear_group *g)
{
	enum { ROLES = 256 }; /* more than there are, so that a new role changes no mask */
	int64_t masks = (int64_t)m->layout->base_units * ROLES;

	return (struct device_dropout){.probability = m->o.tuning->dropout,
	                               .seed = m->o.seed,
	                               .number = m->number * masks + unit * ROLES + g->adapter[0].role};
}

/* What the adapters of a group read. */
static const void *adapter_input(struct model *m, int unit, const struct linear_group *g, const void *x,
                                 int64_t tokens)
{
	struct device_dropout mask;

	if (!m->drops || linear_is_listing(m))
		return m->drops ? m->masked : x;
	mask = mask_of(m, unit, g);
	device_dropout(m->dev, &mask, m->masked, false, x, m->o.type, tokens * g->in);
	return m->masked;
}

/* low[tokens, adapters · rank] = x · Aᵀ */
static void multiply_low(struct model *m, int unit, const struct linear_group *g, const void *x,
                         int64_t tokens)
{
	int64_t width = g->adapters * m->rank;
	struct device_gemm product = {.transpose_b = true,
	                              .m = tokens,
	                              .n = width,
	                              .k = g->in,
	                              .alpha = 1,
	                              .a = x,
	                              .b = model_weight(m, unit, PART_LORA_A, g->adapter[0].role),
	                              .c = m->low,
	                              .lda = g->in,
	                              .ldb = g->in,
	                              .ldc = width,
	                              .ab_type = m->o.type,
	                              .c_type = m->o.type};

	linear_compute(m, &product);
}

/* y += scale · low · Bᵀ */
void adapters_add(struct model *m, int unit, const struct linear_group *g, void *y, const void *x,
                  int64_t tokens)
{
	int64_t width = g->adapters * m->rank;

	if (g->adapters == 0)
		return;
	multiply_low(m, unit, g, adapter_input(m, unit, g, x, tokens), tokens);
	for (int i = 0; i < g->adapters; i++) {
		const struct linear_columns *c = &g->adapter[i];
		struct device_gemm product = {.transpose_b = true,
		                              .m = tokens,
		                              .n = c->out,
		                              .k = m->rank,
		                              .alpha = m->adapter_scale,
		                              .beta = 1,
		                              .a = linear_at_column(m, m->low, i * m->rank),
		                              .b = model_weight(m, unit, PART_LORA_B, c->role),
		                              .c = linear_at_column(m, y, c->column),
		                              .lda = width,
		                              .ldb = m->rank,
		                              .ldc = g->out,
		                              .ab_type = m->o.type,
		                              .c_type = m->o.type};

		linear_compute(m, &product);
	}
}

/* d_low = scale · dy · B, once for both gradients of a product. */
static void multiply_d_low(struct model *m, int unit, const struct linear_group *g, const void *dy,
                           int64_t tokens)
{
	int64_t width = g->adapters * m->rank;
	int key = unit * PARAMETER_ROLES + (int)g->product[0].role;

	if (m->d_low_of == key)
		return;
	m->d_low_of = key;
	for (int i = 0; i < g->adapters; i++) {
		const struct linear_columns *c = &g->adapter[i];
		struct device_gemm product = {.m = tokens,
		                              .n = m->rank,
		                              .k = c->out,
		                              .alpha = m->adapter_scale,
		                              .a = linear_at_column(m, dy, c->column),
		                              .b = model_weight(m, unit, PART_LORA_B, c->role),
		                              .c = linear_at_column(m, m->d_low, i * m->rank),
		                              .lda = g->out,
		                              .ldb = m->rank,
		                              .ldc = width,
		                              .ab_type = m->o.type,
		                              .c_type = m->o.type};

		linear_compute(m, &product);
	}
}

/* dx += d_low · A, through the mask */
void adapters_input_gradient(struct model *m, int unit, const struct linear_group *g, void *dx,
                             const void *dy, int64_t tokens)
{
	int64_t width = g->adapters * m->rank;
	struct device_dropout mask;
	struct device_gemm product = {.m = tokens,
	                              .n = g->in,
	                              .k = width,
	                              .alpha = 1,
	                              .beta = m->drops ? 0 : 1,
	                              .a = m->d_low,
	                              .b = model_weight(m, unit, PART_LORA_A, g->adapter[0].role),
	                              .c = m->drops ? m->masked : dx,
	                              .lda = width,
	                              .ldb = g->in,
	                              .ldc = g->in,
	                              .ab_type = m->o.type,
	                              .c_type = m->o.type};

	multiply_d_low(m, unit, g, dy, tokens);
	linear_compute(m, &product);
	if (!m->drops || linear_is_listing(m))
		return;
	mask = mask_of(m, unit, g);
	device_dropout(m->dev, &mask, dx, true, m->masked, m->o.type, tokens * g->in);
}

/* What is not trained of an adapter has gradients of 0. */
static void zero_gradients(struct model *m, int unit, const struct linear_group *g)
{
	for (int i = 0; i < g->adapters; i++) {
		const struct linear_columns *c = &g->adapter[i];

		device_zero(m->dev, model_gradient(m, unit, PART_LORA_A, c->role),
		            (size_t)(m->rank * g->in) * sizeof(float));
		device_zero(m->dev, model_gradient(m, unit, PART_LORA_B, c->role),
		            (size_t)(m->rank * c->out) * sizeof(float));
	}
}

/* dA = d_lowᵀ · x, of n rows of A; from: the first of their columns in d_low. */
static void a_gradient(struct model *m, const struct linear_group *g, float *d_a, int64_t from, int64_t n,
                       const void *x, int64_t tokens, bool first)
{
	int64_t width = g->adapters * m->rank;
	struct device_gemm product = {.transpose_a = true,
	                              .m = n,
	                              .n = g->in,
	                              .k = tokens,
	                              .alpha = 1,
	                              .beta = first ? 0 : 1,
	                              .a = linear_at_column(m, m->d_low, from),
	                              .b = x,
	                              .c = d_a,
	                              .lda = width,
	                              .ldb = g->in,
	                              .ldc = g->in,
	                              .ab_type = m->o.type,
	                              .c_type = DTYPE_F32};

	linear_compute(m, &product);
}

/* dA = d_lowᵀ · x, dB = scale · dyᵀ · low */
void adapters_weight_gradient(struct model *m, int unit, const struct linear_group *g, const void *dy,
                              const void *input, int64_t tokens, bool first)
{
	int64_t width = g->adapters * m->rank;
	const void *x = adapter_input(m, unit, g, input, tokens);
	bool whole = m->trained_rank == m->rank;

	multiply_d_low(m, unit, g, dy, tokens);
	if (first && !whole && !linear_is_listing(m))
		zero_gradients(m, unit, g);
	if (whole)
		a_gradient(m, g, model_gradient(m, unit, PART_LORA_A, g->adapter[0].role), 0, width, x,
		           tokens, first);
	for (int i = 0; i < g->adapters && !whole; i++)
		a_gradient(m, g, model_gradient(m, unit, PART_LORA_A, g->adapter[i].role), i * m->rank,
		           m->trained_rank, x, tokens, first);
	multiply_low(m, unit, g, x, tokens);
	for (int i = 0; i < g->adapters; i++) {
		const struct linear_columns *c = &g->adapter[i];
		struct device_gemm product = {.transpose_a = true,
		                              .m = c->out,
		                              .n = m->trained_rank,
		                              .k = tokens,
		                              .alpha = m->adapter_scale,
		                              .beta = first ? 0 : 1,
		                              .a = linear_at_column(m, dy, c->column),
		                              .b = linear_at_column(m, m->low, i * m->rank),
		                              .c = model_gradient(m, unit, PART_LORA_B, c->role),
		                              .lda = g->out,
		                              .ldb = width,
		                              .ldc = m->rank,
		                              .ab_type = m->o.type,
		                              .c_type = DTYPE_F32};

		linear_compute(m, &product);
	}
}

static void find_norms(struct model *m, int unit, const struct linear_group *g)
{
	for (int i = 0; i < g->adapters; i++) {
		const struct linear_columns *c = &g->adapter[i];
		struct device_row_norms n = {.rows = c->out,
		                             .cols = g->in,
		                             .rank = m->rank,
		                             .scale = m->adapter_scale,
		                             .transposed = linear_is_transposed(m, unit, c->role),
		                             .type = m->o.type};

		device_row_norms(m->dev, &n, m->norms + c->column, weight(m, unit, c->role),
		                 model_weight(m, unit, PART_LORA_B, c->role),
		                 model_weight(m, unit, PART_LORA_A, c->role));
	}
}

struct device_columns dora_columns_of(const struct model *m, const struct linear_group *g,
                                      const struct linear_columns *c, int64_t tokens)
{
	return (struct device_columns){
	    .rows = tokens, .cols = c->out, .ld = g->out, .norm = m->norms + c->column, .type = m->o.type};
}

/* y = magnitude / norm · y + bias */
void dora_scale_outputs(struct model *m, int unit, const struct linear_group *g, void *y, int64_t tokens)
{
	find_norms(m, unit, g);
	for (int i = 0; i < g->adapters; i++) {
		const struct linear_columns *c = &g->adapter[i];
		struct device_columns scaled = dora_columns_of(m, g, c, tokens);
		char *at = linear_at_column(m, y, c->column);

		scaled.magnitude = model_weight(m, unit, PART_MAGNITUDE, c->role);
		scaled.bias = weight(m, unit, linear_bias_of(c->role));
		device_scale_columns(m->dev, &scaled, at, at);
	}
}

/* The gradient of the outputs before they were scaled, once for both gradients of a product; the norms are
 * found with it. Columns without an adapter have none. */
const void *dora_scaled_gradient(struct model *m, int unit, const struct linear_group *g, const void *dy,
                                 int64_t tokens)
{
	int key = unit * PARAMETER_ROLES + (int)g->product[0].role;

	if (!m->dora || g->adapters == 0)
		return dy;
	if (m->d_scaled_of == key || linear_is_listing(m))
		return m->d_scaled;
	m->d_scaled_of = key;
	find_norms(m, unit, g);
	for (int i = 0; i < g->adapters; i++) {
		const struct linear_columns *c = &g->adapter[i];
		struct device_columns scaled = dora_columns_of(m, g, c, tokens);

		scaled.magnitude = model_weight(m, unit, PART_MAGNITUDE, c->role);
		device_scale_columns(m->dev, &scaled, linear_at_column(m, m->d_scaled, c->column),
		                     linear_at_column(m, dy, c->column));
	}
	return m->d_scaled;
}
