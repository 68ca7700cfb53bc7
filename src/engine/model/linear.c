/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every product of the model with a matrix of weights: forward, and the gradients of its input and of its
 * weights. A caller names the matrix by unit and role; where its weights and gradients lie, and whether it
 * has any, is known here alone.
 *
 * Matrices that share their input (q, k and v) are a group, whose outputs are columns of one row. Those of a
 * group that lie behind each other are one product, which all are unless some are trained and others are not.
 *
 * An adapter (Hu et al. 2021, LoRA) adds scale · B·A·x to the output of its matrix. The A of a group lie
 * behind each other: low = x·Aᵀ is one product for all of them.
 */
#include "engine/model/internal.h"

enum { GROUP_MAX = 3 };

/* Matrices of a group that are one product, or one that has an adapter: they write columns [column, column +
 * out) of a row. */
struct columns {
	enum parameter_role role; /* of the first */
	int64_t column, out;
};

struct group {
	int64_t in, out;
	int n, adapters;
	struct columns product[GROUP_MAX], adapter[GROUP_MAX];
};

static int64_t rows_of(const struct model *m, enum parameter_role role)
{
	switch (role) {
	case PARAMETER_Q:
		return m->c.fused ? m->qkv : m->q;
	case PARAMETER_K:
	case PARAMETER_V:
		return m->kv;
	case PARAMETER_O:
	case PARAMETER_DOWN:
		return m->c.hidden;
	case PARAMETER_GATE:
		return m->c.fused ? m->gate_up : m->c.intermediate;
	case PARAMETER_UP:
		return m->c.intermediate;
	default: /* the head */
		return m->c.vocab;
	}
}

static enum parameter_role bias_of(enum parameter_role role)
{
	switch (role) {
	case PARAMETER_Q:
		return PARAMETER_Q_BIAS;
	case PARAMETER_K:
		return PARAMETER_K_BIAS;
	case PARAMETER_V:
		return PARAMETER_V_BIAS;
	case PARAMETER_O:
		return PARAMETER_O_BIAS;
	case PARAMETER_GATE:
		return PARAMETER_GATE_BIAS;
	case PARAMETER_UP:
		return PARAMETER_UP_BIAS;
	case PARAMETER_DOWN:
		return PARAMETER_DOWN_BIAS;
	default: /* the head */
		return PARAMETER_ROLES;
	}
}

static int64_t columns_in(const struct model *m, enum parameter_role role)
{
	return role == PARAMETER_O ? m->q : role == PARAMETER_DOWN ? m->c.intermediate : m->c.hidden;
}

/* Whether b lies right behind n elements of a, or both are missing. */
static bool lies_behind(const struct model *m, int unit, enum parameter_role a, int64_t n,
                        enum parameter_role b)
{
	int at_a = model_place(m, unit, PART_WEIGHT, a), at_b = model_place(m, unit, PART_WEIGHT, b);

	if (at_a != at_b || at_a < 0)
		return at_a == at_b;
	return m->layout->unit[at_a].offset[PART_WEIGHT][b] ==
	       m->layout->unit[at_a].offset[PART_WEIGHT][a] + n;
}

static struct group find_group(const struct model *m, int unit, enum parameter_role leader)
{
	struct group g = {.in = columns_in(m, leader)};
	enum parameter_role last = PARAMETER_ROLES;

	for (enum parameter_role role = leader; role < PARAMETER_ROLES; role = model_layout_next(role)) {
		int64_t out = rows_of(m, role);

		if (model_place(m, unit, PART_WEIGHT, role) < 0)
			continue;
		if (last < PARAMETER_ROLES && lies_behind(m, unit, last, rows_of(m, last) * g.in, role) &&
		    lies_behind(m, unit, bias_of(last), rows_of(m, last), bias_of(role)))
			g.product[g.n - 1].out += out;
		else
			g.product[g.n++] = (struct columns){role, g.out, out};
		if (model_place(m, unit, PART_LORA_A, role) >= 0)
			g.adapter[g.adapters++] = (struct columns){role, g.out, out};
		g.out += out;
		last = role;
	}
	return g;
}

static char *at_column(const struct model *m, const void *y, int64_t column)
{
	return (char *)(uintptr_t)y + (size_t)column * m->size;
}

/* ---- adapters ---- */

/* low[tokens, adapters · rank] = x · Aᵀ */
static void multiply_low(struct model *m, int unit, const struct group *g, const void *x, int64_t tokens)
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

	device_gemm(m->dev, &product);
}

/* y += scale · low · Bᵀ */
static void add_adapters(struct model *m, int unit, const struct group *g, void *y, const void *x,
                         int64_t tokens)
{
	int64_t width = g->adapters * m->rank;

	if (g->adapters == 0)
		return;
	multiply_low(m, unit, g, x, tokens);
	for (int i = 0; i < g->adapters; i++) {
		const struct columns *c = &g->adapter[i];
		struct device_gemm product = {.transpose_b = true,
		                              .m = tokens,
		                              .n = c->out,
		                              .k = m->rank,
		                              .alpha = m->adapter_scale,
		                              .beta = 1,
		                              .a = at_column(m, m->low, i * m->rank),
		                              .b = model_weight(m, unit, PART_LORA_B, c->role),
		                              .c = at_column(m, y, c->column),
		                              .lda = width,
		                              .ldb = m->rank,
		                              .ldc = g->out,
		                              .ab_type = m->o.type,
		                              .c_type = m->o.type};

		device_gemm(m->dev, &product);
	}
}

/* d_low = scale · dy · B, once for both gradients of a product. */
static void multiply_d_low(struct model *m, int unit, const struct group *g, const void *dy, int64_t tokens)
{
	int64_t width = g->adapters * m->rank;
	int key = unit * PARAMETER_ROLES + (int)g->product[0].role;

	if (m->d_low_of == key)
		return;
	m->d_low_of = key;
	for (int i = 0; i < g->adapters; i++) {
		const struct columns *c = &g->adapter[i];
		struct device_gemm product = {.m = tokens,
		                              .n = m->rank,
		                              .k = c->out,
		                              .alpha = m->adapter_scale,
		                              .a = at_column(m, dy, c->column),
		                              .b = model_weight(m, unit, PART_LORA_B, c->role),
		                              .c = at_column(m, m->d_low, i * m->rank),
		                              .lda = g->out,
		                              .ldb = m->rank,
		                              .ldc = width,
		                              .ab_type = m->o.type,
		                              .c_type = m->o.type};

		device_gemm(m->dev, &product);
	}
}

/* dx += d_low · A */
static void add_adapters_input_gradient(struct model *m, int unit, const struct group *g, void *dx,
                                        const void *dy, int64_t tokens)
{
	int64_t width = g->adapters * m->rank;
	struct device_gemm product = {.m = tokens,
	                              .n = g->in,
	                              .k = width,
	                              .alpha = 1,
	                              .beta = 1,
	                              .a = m->d_low,
	                              .b = model_weight(m, unit, PART_LORA_A, g->adapter[0].role),
	                              .c = dx,
	                              .lda = width,
	                              .ldb = g->in,
	                              .ldc = g->in,
	                              .ab_type = m->o.type,
	                              .c_type = m->o.type};

	multiply_d_low(m, unit, g, dy, tokens);
	device_gemm(m->dev, &product);
}

/* dA = d_lowᵀ · x, dB = scale · dyᵀ · low */
static void adapters_weight_gradient(struct model *m, int unit, const struct group *g, const void *dy,
                                     const void *x, int64_t tokens, bool first)
{
	int64_t width = g->adapters * m->rank;
	struct device_gemm product = {.transpose_a = true,
	                              .m = width,
	                              .n = g->in,
	                              .k = tokens,
	                              .alpha = 1,
	                              .beta = first ? 0 : 1,
	                              .a = m->d_low,
	                              .b = x,
	                              .c = model_gradient(m, unit, PART_LORA_A, g->adapter[0].role),
	                              .lda = width,
	                              .ldb = g->in,
	                              .ldc = g->in,
	                              .ab_type = m->o.type,
	                              .c_type = DTYPE_F32};

	multiply_d_low(m, unit, g, dy, tokens);
	device_gemm(m->dev, &product);
	multiply_low(m, unit, g, x, tokens);
	for (int i = 0; i < g->adapters; i++) {
		const struct columns *c = &g->adapter[i];

		product = (struct device_gemm){.transpose_a = true,
		                               .m = c->out,
		                               .n = m->rank,
		                               .k = tokens,
		                               .alpha = m->adapter_scale,
		                               .beta = first ? 0 : 1,
		                               .a = at_column(m, dy, c->column),
		                               .b = at_column(m, m->low, i * m->rank),
		                               .c = model_gradient(m, unit, PART_LORA_B, c->role),
		                               .lda = g->out,
		                               .ldb = width,
		                               .ldc = m->rank,
		                               .ab_type = m->o.type,
		                               .c_type = DTYPE_F32};
		device_gemm(m->dev, &product);
	}
}

/* ---- products ---- */

static void multiply(struct model *m, int unit, enum parameter_role role, void *y, enum dtype y_type,
                     const void *x, int64_t tokens)
{
	struct group group = find_group(m, unit, role);

	for (int i = 0; i < group.n; i++) {
		const struct columns *c = &group.product[i];
		struct device_gemm g = {.transpose_b = true,
		                        .m = tokens,
		                        .n = c->out,
		                        .k = group.in,
		                        .alpha = 1,
		                        .a = x,
		                        .b = weight(m, unit, c->role),
		                        .c = (char *)y + (size_t)c->column * dtype_size(y_type),
		                        .lda = group.in,
		                        .ldb = group.in,
		                        .ldc = group.out,
		                        .ab_type = m->o.type,
		                        .c_type = y_type,
		                        .bias = weight(m, unit, bias_of(c->role))};

		device_gemm(m->dev, &g);
	}
	add_adapters(m, unit, &group, y, x, tokens);
}

void model_linear(struct model *m, int unit, enum parameter_role role, void *y, const void *x, int64_t tokens)
{
	multiply(m, unit, role, y, m->o.type, x, tokens);
}

void model_linear_f32(struct model *m, int unit, enum parameter_role role, float *y, const void *x,
                      int64_t tokens)
{
	multiply(m, unit, role, y, DTYPE_F32, x, tokens);
}

void model_linear_input_gradient(struct model *m, int unit, enum parameter_role role, void *dx,
                                 const void *dy, int64_t tokens)
{
	struct group group = find_group(m, unit, role);

	for (int i = 0; i < group.n; i++) {
		const struct columns *c = &group.product[i];
		struct device_gemm g = {.m = tokens,
		                        .n = group.in,
		                        .k = c->out,
		                        .alpha = 1,
		                        .beta = i > 0 ? 1 : 0,
		                        .a = at_column(m, dy, c->column),
		                        .b = weight(m, unit, c->role),
		                        .c = dx,
		                        .lda = group.out,
		                        .ldb = group.in,
		                        .ldc = group.in,
		                        .ab_type = m->o.type,
		                        .c_type = m->o.type};

		device_gemm(m->dev, &g);
	}
	if (group.adapters > 0)
		add_adapters_input_gradient(m, unit, &group, dx, dy, tokens);
}

void model_linear_weight_gradient(struct model *m, int unit, enum parameter_role role, const void *dy,
                                  const void *x, int64_t tokens, bool first)
{
	struct group group = find_group(m, unit, role);

	for (int i = 0; i < group.n; i++) {
		const struct columns *c = &group.product[i];
		float *bias = gradient(m, unit, bias_of(c->role));
		struct device_gemm g = {.transpose_a = true,
		                        .m = c->out,
		                        .n = group.in,
		                        .k = tokens,
		                        .alpha = 1,
		                        .beta = first ? 0 : 1,
		                        .a = at_column(m, dy, c->column),
		                        .b = x,
		                        .c = gradient(m, unit, c->role),
		                        .lda = group.out,
		                        .ldb = group.in,
		                        .ldc = group.in,
		                        .ab_type = m->o.type,
		                        .c_type = DTYPE_F32,
		                        .d_bias = bias};

		if (g.c)
			device_gemm(m->dev, &g);
		else if (bias)
			device_bias_backward(m->dev, bias, DTYPE_F32, at_column(m, dy, c->column), tokens,
			                     c->out, group.out, m->o.type);
	}
	if (group.adapters > 0)
		adapters_weight_gradient(m, unit, &group, dy, x, tokens, first);
}
