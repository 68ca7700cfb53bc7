/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every product of the model with a matrix of weights: forward, and the gradients of its input and of its
 * weights. A caller names the matrix by unit and role; where its weights and gradients lie, and whether it
 * has any, is known here alone.
 *
 * Matrices that share their input (q, k and v) are a group, whose outputs are columns of one row. Those of a
 * group that lie behind each other are one product, which all are unless some are trained and others are not.
 * Matrices that are stored [in, out] are groups of one.
 */
#include "engine/model/linear.h"
#include "engine/model/roles.h"

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
		return model_config_outputs(&m->c);
	}
}

enum parameter_role linear_bias_of(enum parameter_role role)
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

static bool is_adapted(const struct model *m, int unit, enum parameter_role role)
{
	return model_place(m, unit, PART_LORA_A, role) >= 0;
}

static struct linear_group find_group(const struct model *m, int unit, enum parameter_role leader)
{
	struct linear_group g = {.in = columns_in(m, leader)};
	enum parameter_role last = PARAMETER_ROLES;

	for (enum parameter_role role = leader; role < PARAMETER_ROLES; role = model_layout_next(role)) {
		int64_t out = rows_of(m, role);

		if (model_place(m, unit, PART_WEIGHT, role) < 0)
			continue;
		if (last < PARAMETER_ROLES && lies_behind(m, unit, last, rows_of(m, last) * g.in, role) &&
		    lies_behind(m, unit, linear_bias_of(last), rows_of(m, last), linear_bias_of(role)) &&
		    (!m->dora || is_adapted(m, unit, last) == is_adapted(m, unit, role)))
			g.product[g.n - 1].out += out;
		else
			g.product[g.n++] = (struct linear_columns){role, g.out, out};
		if (is_adapted(m, unit, role))
			g.adapter[g.adapters++] = (struct linear_columns){role, g.out, out};
		g.out += out;
		last = role;
	}
	return g;
}

bool linear_is_transposed(const struct model *m, int unit, enum parameter_role role)
{
	int place = model_place(m, unit, PART_WEIGHT, role);

	return role_transposed(&m->c, role) && !(m->o.quantized && m->layout->unit[place].frozen);
}

char *linear_at_column(const struct model *m, const void *y, int64_t column)
{
	return (char *)(uintptr_t)y + (size_t)column * m->size;
}

bool linear_is_listing(const struct model *m)
{
	return m->listing != NULL;
}

void linear_compute(const struct model *m, const struct device_gemm *product)
{
	if (linear_is_listing(m))
		m->listing->each(m->listing->context, product);
	else
		device_gemm(m->dev, product);
}

static struct model_fp8_product in_fp8(const struct model *m, int unit, enum parameter_role leader,
                                       const struct linear_group *g, int index)
{
	const struct linear_columns *c = &g->product[index];

	return (struct model_fp8_product){.unit = unit,
	                                  .index = index,
	                                  .leader = leader,
	                                  .transposed = linear_is_transposed(m, unit, leader),
	                                  .in = g->in,
	                                  .out = c->out,
	                                  .column = c->column,
	                                  .ld = g->out,
	                                  .weight = weight(m, unit, c->role)};
}

/* scaled: with the magnitudes and biases of DoRA. */
static void multiply(struct model *m, int unit, enum parameter_role role, void *y, enum dtype y_type,
                     const void *x, int64_t tokens, bool scaled)
{
	struct linear_group group = find_group(m, unit, role);
	bool transposed = linear_is_transposed(m, unit, role), fp8 = model_is_fp8(m, unit);

	if (fp8)
		model_fp8_input(m, unit, role, x, tokens, group.in, false);
	for (int i = 0; i < group.n; i++) {
		const struct linear_columns *c = &group.product[i];
		struct model_fp8_product p = in_fp8(m, unit, role, &group, i);
		bool later = m->dora && is_adapted(m, unit, c->role);
		struct device_gemm g = {.transpose_b = !transposed,
		                        .m = tokens,
		                        .n = c->out,
		                        .k = group.in,
		                        .alpha = 1,
		                        .a = x,
		                        .b = weight(m, unit, c->role),
		                        .c = (char *)y + (size_t)c->column * dtype_size(y_type),
		                        .lda = group.in,
		                        .ldb = transposed ? group.out : group.in,
		                        .ldc = group.out,
		                        .ab_type = m->o.type,
		                        .c_type = y_type,
		                        .bias = later ? NULL : weight(m, unit, linear_bias_of(c->role)),
		                        .by_rows = m->by_rows};

		if (fp8)
			model_fp8_forward(m, &p, &g);
		linear_compute(m, &g);
	}
	adapters_add(m, unit, &group, y, x, tokens);
	if (m->dora && scaled && group.adapters > 0 && !linear_is_listing(m))
		dora_scale_outputs(m, unit, &group, y, tokens);
}

/* d_magnitude[j] += Σ dy[t,j] · (W·x + scale · B·A·x)[t,j] / norm[j] */
static void magnitude_gradient(struct model *m, int unit, enum parameter_role role,
                               const struct linear_group *g, const void *dy, const void *x, int64_t tokens)
{
	multiply(m, unit, role, m->unscaled, m->o.type, x, tokens, false);
	for (int i = 0; i < g->adapters && !linear_is_listing(m); i++) {
		const struct linear_columns *c = &g->adapter[i];
		struct device_columns scaled = dora_columns_of(m, g, c, tokens);
		char *at = linear_at_column(m, m->unscaled, c->column);

		scaled.times = linear_at_column(m, dy, c->column);
		device_scale_columns(m->dev, &scaled, at, at);
		device_bias_backward(m->dev, model_gradient(m, unit, PART_MAGNITUDE, c->role), DTYPE_F32, at,
		                     tokens, c->out, g->out, m->o.type);
	}
}

void model_linear(struct model *m, int unit, enum parameter_role role, void *y, const void *x, int64_t tokens)
{
	multiply(m, unit, role, y, m->o.type, x, tokens, true);
}

void model_linear_f32(struct model *m, int unit, enum parameter_role role, float *y, const void *x,
                      int64_t tokens)
{
	multiply(m, unit, role, y, DTYPE_F32, x, tokens, true);
}

void model_linear_input_gradient(struct model *m, int unit, enum parameter_role role, void *dx,
                                 const void *dy, int64_t tokens)
{
	struct linear_group group = find_group(m, unit, role);
	bool transposed = linear_is_transposed(m, unit, role);
	const void *scaled = dora_scaled_gradient(m, unit, &group, dy, tokens);

	for (int i = 0; i < group.n; i++) {
		const struct linear_columns *c = &group.product[i];
		const void *from = is_adapted(m, unit, c->role) ? scaled : dy;
		struct model_fp8_product p = in_fp8(m, unit, role, &group, i);
		struct device_gemm g = {.transpose_b = transposed,
		                        .m = tokens,
		                        .n = group.in,
		                        .k = c->out,
		                        .alpha = 1,
		                        .beta = i > 0 ? 1 : 0,
		                        .a = linear_at_column(m, from, c->column),
		                        .b = weight(m, unit, c->role),
		                        .c = dx,
		                        .lda = group.out,
		                        .ldb = transposed ? group.out : group.in,
		                        .ldc = group.in,
		                        .ab_type = m->o.type,
		                        .c_type = m->o.type};

		if (model_is_fp8(m, unit))
			model_fp8_input_gradient(m, &p, g.a, &g);
		linear_compute(m, &g);
	}
	if (group.adapters > 0)
		adapters_input_gradient(m, unit, &group, dx, scaled, tokens);
}

/* dw[in, out] = xᵀ · dy. The product sums the rows of its first matrix alone, so the bias is a sum of its
 * own. */
static void transposed_weight_gradient(struct model *m, int unit, enum parameter_role role,
                                       const struct linear_group *group, const void *dy, const void *x,
                                       int64_t tokens, bool first)
{
	struct model_fp8_product p = in_fp8(m, unit, role, group, 0);
	int64_t in = columns_in(m, role), out = rows_of(m, role);
	float *bias = gradient(m, unit, linear_bias_of(role));
	struct device_gemm g = {.transpose_a = true,
	                        .m = in,
	                        .n = out,
	                        .k = tokens,
	                        .alpha = 1,
	                        .beta = first ? 0 : 1,
	                        .a = x,
	                        .b = dy,
	                        .c = gradient(m, unit, role),
	                        .lda = in,
	                        .ldb = out,
	                        .ldc = out,
	                        .ab_type = m->o.type,
	                        .c_type = model_matrix_gradient_type(m, unit, role)};

	if (g.c && model_is_fp8(m, unit)) {
		model_fp8_input(m, unit, role, x, tokens, in, true);
		model_fp8_weight_gradient(m, &p, dy, &g);
	}
	if (g.c)
		linear_compute(m, &g);
	if (bias && !linear_is_listing(m))
		device_bias_backward(m->dev, bias, DTYPE_F32, dy, tokens, out, out, m->o.type);
}

void model_linear_weight_gradient(struct model *m, int unit, enum parameter_role role, const void *dy,
                                  const void *x, int64_t tokens, bool first)
{
	struct linear_group group = find_group(m, unit, role);
	bool transposed = linear_is_transposed(m, unit, role), fp8 = model_is_fp8(m, unit), turned = false;

	if (transposed)
		transposed_weight_gradient(m, unit, role, &group, dy, x, tokens, first);
	for (int i = 0; i < group.n && !transposed; i++) {
		const struct linear_columns *c = &group.product[i];
		struct model_fp8_product p = in_fp8(m, unit, role, &group, i);
		float *bias = gradient(m, unit, linear_bias_of(c->role));
		struct device_gemm g = {.transpose_a = true,
		                        .m = c->out,
		                        .n = group.in,
		                        .k = tokens,
		                        .alpha = 1,
		                        .beta = first ? 0 : 1,
		                        .a = linear_at_column(m, dy, c->column),
		                        .b = x,
		                        .c = gradient(m, unit, c->role),
		                        .lda = group.out,
		                        .ldb = group.in,
		                        .ldc = group.in,
		                        .ab_type = m->o.type,
		                        .c_type = model_matrix_gradient_type(m, unit, c->role),
		                        .d_bias = bias};

		if (g.c && fp8) {
			if (!turned)
				model_fp8_input(m, unit, role, x, tokens, group.in, true);
			turned = true;
			model_fp8_weight_gradient(m, &p, g.a, &g);
		}
		if (g.c)
			linear_compute(m, &g);
		/* The codes of a gradient are no factor of that of a bias. */
		if (bias && (!g.c || fp8) && !linear_is_listing(m))
			device_bias_backward(m->dev, bias, DTYPE_F32, linear_at_column(m, dy, c->column),
			                     tokens, c->out, group.out, m->o.type);
	}
	if (group.adapters == 0)
		return;
	adapters_weight_gradient(m, unit, &group, dora_scaled_gradient(m, unit, &group, dy, tokens), x,
	                         tokens, first);
	if (m->dora)
		magnitude_gradient(m, unit, role, &group, dy, x, tokens);
}
