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
	struct linear_group group = linear_find_group(m, unit, role);
	bool transposed = linear_is_transposed(m, unit, role), fp8 = model_is_fp8(m, unit);

	if (fp8)
		model_fp8_input(m, unit, role, x, tokens, group.in, false);
	for (int i = 0; i < group.n; i++) {
		const struct linear_columns *c = &group.product[i];
		struct model_fp8_product p = in_fp8(m, unit, role, &group, i);
		bool later = m->dora && linear_is_adapted(m, unit, c->role);
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

/* add: to what dx has. */
static void input_gradient(struct model *m, int unit, enum parameter_role role, void *dx, const void *dy,
                           int64_t tokens, bool add)
{
	struct linear_group group = linear_find_group(m, unit, role);
	bool transposed = linear_is_transposed(m, unit, role);
	const void *scaled = dora_scaled_gradient(m, unit, &group, dy, tokens);

	for (int i = 0; i < group.n; i++) {
		const struct linear_columns *c = &group.product[i];
		const void *from = linear_is_adapted(m, unit, c->role) ? scaled : dy;
		struct model_fp8_product p = in_fp8(m, unit, role, &group, i);
		struct device_gemm g = {.transpose_b = transposed,
		                        .m = tokens,
		                        .n = group.in,
		                        .k = c->out,
		                        .alpha = 1,
		                        .beta = add || i > 0 ? 1 : 0,
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

void model_linear_input_gradient(struct model *m, int unit, enum parameter_role role, void *dx,
                                 const void *dy, int64_t tokens)
{
	input_gradient(m, unit, role, dx, dy, tokens, false);
}

void model_linear_add_input_gradient(struct model *m, int unit, enum parameter_role role, void *dx,
                                     const void *dy, int64_t tokens)
{
	input_gradient(m, unit, role, dx, dy, tokens, true);
}

/* dw[in, out] = xᵀ · dy. The product sums the rows of its first matrix alone, so the bias is a sum of its
 * own. */
static void transposed_weight_gradient(struct model *m, int unit, enum parameter_role role,
                                       const struct linear_group *group, const void *dy, const void *x,
                                       int64_t tokens, bool first)
{
	struct model_fp8_product p = in_fp8(m, unit, role, group, 0);
	int64_t in = linear_columns_in(m, role), out = linear_rows_of(m, role);
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
	struct linear_group group = linear_find_group(m, unit, role);
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
