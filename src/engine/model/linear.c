/* SPDX-License-Identifier: Apache-2.0 */
/* Every product of the model with a matrix of weights: forward, and the gradients of its input and of its
 * weights. A caller names the matrix by unit and role; where its weights and gradients lie is known here
 * alone. */
#include "engine/model/internal.h"

/* A product with one matrix, or with several that lie behind each other: their outputs are columns of one
 * row. */
struct linear {
	enum parameter_role bias; /* PARAMETER_ROLES: none */
	int64_t out, in;
};

/* role: of the (first) matrix. */
static struct linear find_linear(const struct model *m, enum parameter_role role)
{
	switch (role) {
	case PARAMETER_Q: /* with k and v */
		return (struct linear){PARAMETER_Q_BIAS, m->qkv, m->c.hidden};
	case PARAMETER_O:
		return (struct linear){PARAMETER_O_BIAS, m->c.hidden, m->q};
	case PARAMETER_GATE: /* with up */
		return (struct linear){PARAMETER_GATE_BIAS, m->gate_up, m->c.hidden};
	case PARAMETER_DOWN:
		return (struct linear){PARAMETER_DOWN_BIAS, m->c.hidden, m->c.intermediate};
	default: /* the head */
		return (struct linear){PARAMETER_ROLES, m->c.vocab, m->c.hidden};
	}
}

static void multiply(struct model *m, int unit, enum parameter_role role, void *y, enum dtype y_type,
                     const void *x, int64_t tokens)
{
	struct linear l = find_linear(m, role);
	struct device_gemm g = {.transpose_b = true,
	                        .m = tokens,
	                        .n = l.out,
	                        .k = l.in,
	                        .alpha = 1,
	                        .a = x,
	                        .b = weight(m, unit, role),
	                        .c = y,
	                        .lda = l.in,
	                        .ldb = l.in,
	                        .ldc = l.out,
	                        .ab_type = m->o.type,
	                        .c_type = y_type,
	                        .bias = weight(m, unit, l.bias)};

	device_gemm(m->dev, &g);
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
	struct linear l = find_linear(m, role);
	struct device_gemm g = {.m = tokens,
	                        .n = l.in,
	                        .k = l.out,
	                        .alpha = 1,
	                        .a = dy,
	                        .b = weight(m, unit, role),
	                        .c = dx,
	                        .lda = l.out,
	                        .ldb = l.in,
	                        .ldc = l.in,
	                        .ab_type = m->o.type,
	                        .c_type = m->o.type};

	device_gemm(m->dev, &g);
}

void model_linear_weight_gradient(struct model *m, int unit, enum parameter_role role, const void *dy,
                                  const void *x, int64_t tokens, bool first)
{
	struct linear l = find_linear(m, role);
	struct device_gemm g = {.transpose_a = true,
	                        .m = l.out,
	                        .n = l.in,
	                        .k = tokens,
	                        .alpha = 1,
	                        .beta = first ? 0 : 1,
	                        .a = dy,
	                        .b = x,
	                        .c = gradient(m, unit, role),
	                        .lda = l.out,
	                        .ldb = l.in,
	                        .ldc = l.in,
	                        .ab_type = m->o.type,
	                        .c_type = DTYPE_F32,
	                        .d_bias = gradient(m, unit, l.bias)};

	device_gemm(m->dev, &g);
}
