/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every product of the model with a matrix of weights: forward, and the gradients of its input and of its
 * weights. A caller names the matrix by unit and role; where its weights and gradients lie, and whether it
 * has any, is known here alone.
 *
 * Matrices that share their input (q, k and v) are a group, whose outputs are columns of one row. Those of a
 * group that lie behind each other are one product, which all are unless some are trained and others are not.
 * Matrices that are stored [in, out] are groups of one.
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
#include "engine/model/internal.h"
#include "engine/model/roles.h"

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
		return model_config_outputs(&m->c);
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

static bool is_adapted(const struct model *m, int unit, enum parameter_role role)
{
	return model_place(m, unit, PART_LORA_A, role) >= 0;
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
		    lies_behind(m, unit, bias_of(last), rows_of(m, last), bias_of(role)) &&
		    (!m->dora || is_adapted(m, unit, last) == is_adapted(m, unit, role)))
			g.product[g.n - 1].out += out;
		else
			g.product[g.n++] = (struct columns){role, g.out, out};
		if (is_adapted(m, unit, role))
			g.adapter[g.adapters++] = (struct columns){role, g.out, out};
		g.out += out;
		last = role;
	}
	return g;
}

/* Whether the matrix lies as [in, out]. Those in 4 bits lie turned (layout.h). */
static bool is_transposed(const struct model *m, int unit, enum parameter_role role)
{
	int place = model_place(m, unit, PART_WEIGHT, role);

	return role_transposed(&m->c, role) && !(m->o.quantized && m->layout->unit[place].frozen);
}

static char *at_column(const struct model *m, const void *y, int64_t column)
{
	return (char *)(uintptr_t)y + (size_t)column * m->size;
}

/* Products that are listed are not computed, and what is done between them is left out. */
static bool is_listing(const struct model *m)
{
	return m->listing != NULL;
}

static void compute(const struct model *m, const struct device_gemm *product)
{
	if (is_listing(m))
		m->listing->each(m->listing->context, product);
	else
		device_gemm(m->dev, product);
}

/* ---- adapters ---- */

static struct device_dropout mask_of(const struct model *m, int unit, const struct group *g)
{
	int64_t masks = (int64_t)m->layout->base_units * PARAMETER_ROLES;

	return (struct device_dropout){.probability = m->o.tuning->dropout,
	                               .seed = m->o.seed,
	                               .number =
	                                   m->number * masks + unit * PARAMETER_ROLES + g->adapter[0].role};
}

/* What the adapters of a group read. */
static const void *adapter_input(struct model *m, int unit, const struct group *g, const void *x,
                                 int64_t tokens)
{
	struct device_dropout mask;

	if (!m->drops || is_listing(m))
		return m->drops ? m->masked : x;
	mask = mask_of(m, unit, g);
	device_dropout(m->dev, &mask, m->masked, false, x, m->o.type, tokens * g->in);
	return m->masked;
}

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

	compute(m, &product);
}

/* y += scale · low · Bᵀ */
static void add_adapters(struct model *m, int unit, const struct group *g, void *y, const void *x,
                         int64_t tokens)
{
	int64_t width = g->adapters * m->rank;

	if (g->adapters == 0)
		return;
	multiply_low(m, unit, g, adapter_input(m, unit, g, x, tokens), tokens);
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

		compute(m, &product);
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

		compute(m, &product);
	}
}

/* dx += d_low · A, through the mask */
static void add_adapters_input_gradient(struct model *m, int unit, const struct group *g, void *dx,
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
	compute(m, &product);
	if (!m->drops || is_listing(m))
		return;
	mask = mask_of(m, unit, g);
	device_dropout(m->dev, &mask, dx, true, m->masked, m->o.type, tokens * g->in);
}

/* What is not trained of an adapter has gradients of 0. */
static void zero_gradients(struct model *m, int unit, const struct group *g)
{
	for (int i = 0; i < g->adapters; i++) {
		const struct columns *c = &g->adapter[i];

		device_zero(m->dev, model_gradient(m, unit, PART_LORA_A, c->role),
		            (size_t)(m->rank * g->in) * sizeof(float));
		device_zero(m->dev, model_gradient(m, unit, PART_LORA_B, c->role),
		            (size_t)(m->rank * c->out) * sizeof(float));
	}
}

/* dA = d_lowᵀ · x, of n rows of A; from: the first of their columns in d_low. */
static void a_gradient(struct model *m, const struct group *g, float *d_a, int64_t from, int64_t n,
                       const void *x, int64_t tokens, bool first)
{
	int64_t width = g->adapters * m->rank;
	struct device_gemm product = {.transpose_a = true,
	                              .m = n,
	                              .n = g->in,
	                              .k = tokens,
	                              .alpha = 1,
	                              .beta = first ? 0 : 1,
	                              .a = at_column(m, m->d_low, from),
	                              .b = x,
	                              .c = d_a,
	                              .lda = width,
	                              .ldb = g->in,
	                              .ldc = g->in,
	                              .ab_type = m->o.type,
	                              .c_type = DTYPE_F32};

	compute(m, &product);
}

/* dA = d_lowᵀ · x, dB = scale · dyᵀ · low */
static void adapters_weight_gradient(struct model *m, int unit, const struct group *g, const void *dy,
                                     const void *input, int64_t tokens, bool first)
{
	int64_t width = g->adapters * m->rank;
	const void *x = adapter_input(m, unit, g, input, tokens);
	bool whole = m->trained_rank == m->rank;

	multiply_d_low(m, unit, g, dy, tokens);
	if (first && !whole && !is_listing(m))
		zero_gradients(m, unit, g);
	if (whole)
		a_gradient(m, g, model_gradient(m, unit, PART_LORA_A, g->adapter[0].role), 0, width, x,
		           tokens, first);
	for (int i = 0; i < g->adapters && !whole; i++)
		a_gradient(m, g, model_gradient(m, unit, PART_LORA_A, g->adapter[i].role), i * m->rank,
		           m->trained_rank, x, tokens, first);
	multiply_low(m, unit, g, x, tokens);
	for (int i = 0; i < g->adapters; i++) {
		const struct columns *c = &g->adapter[i];
		struct device_gemm product = {.transpose_a = true,
		                              .m = c->out,
		                              .n = m->trained_rank,
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

		compute(m, &product);
	}
}

/* ---- DoRA ---- */

static void find_norms(struct model *m, int unit, const struct group *g)
{
	for (int i = 0; i < g->adapters; i++) {
		const struct columns *c = &g->adapter[i];
		struct device_row_norms n = {.rows = c->out,
		                             .cols = g->in,
		                             .rank = m->rank,
		                             .scale = m->adapter_scale,
		                             .transposed = is_transposed(m, unit, c->role),
		                             .type = m->o.type};

		device_row_norms(m->dev, &n, m->norms + c->column, weight(m, unit, c->role),
		                 model_weight(m, unit, PART_LORA_B, c->role),
		                 model_weight(m, unit, PART_LORA_A, c->role));
	}
}

static struct device_columns columns_of(const struct model *m, const struct group *g, const struct columns *c,
                                        int64_t tokens)
{
	return (struct device_columns){
	    .rows = tokens, .cols = c->out, .ld = g->out, .norm = m->norms + c->column, .type = m->o.type};
}

/* y = magnitude / norm · y + bias */
static void scale_outputs(struct model *m, int unit, const struct group *g, void *y, int64_t tokens)
{
	find_norms(m, unit, g);
	for (int i = 0; i < g->adapters; i++) {
		const struct columns *c = &g->adapter[i];
		struct device_columns scaled = columns_of(m, g, c, tokens);
		char *at = at_column(m, y, c->column);

		scaled.magnitude = model_weight(m, unit, PART_MAGNITUDE, c->role);
		scaled.bias = weight(m, unit, bias_of(c->role));
		device_scale_columns(m->dev, &scaled, at, at);
	}
}

/* The gradient of the outputs before they were scaled, once for both gradients of a product; the norms are
 * found with it. Columns without an adapter have none. */
static const void *scaled_gradient(struct model *m, int unit, const struct group *g, const void *dy,
                                   int64_t tokens)
{
	int key = unit * PARAMETER_ROLES + (int)g->product[0].role;

	if (!m->dora || g->adapters == 0)
		return dy;
	if (m->d_scaled_of == key || is_listing(m))
		return m->d_scaled;
	m->d_scaled_of = key;
	find_norms(m, unit, g);
	for (int i = 0; i < g->adapters; i++) {
		const struct columns *c = &g->adapter[i];
		struct device_columns scaled = columns_of(m, g, c, tokens);

		scaled.magnitude = model_weight(m, unit, PART_MAGNITUDE, c->role);
		device_scale_columns(m->dev, &scaled, at_column(m, m->d_scaled, c->column),
		                     at_column(m, dy, c->column));
	}
	return m->d_scaled;
}

/* ---- products ---- */

static struct model_fp8_product in_fp8(const struct model *m, int unit, enum parameter_role leader,
                                       const struct group *g, int index)
{
	const struct columns *c = &g->product[index];

	return (struct model_fp8_product){.unit = unit,
	                                  .index = index,
	                                  .leader = leader,
	                                  .transposed = is_transposed(m, unit, leader),
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
	struct group group = find_group(m, unit, role);
	bool transposed = is_transposed(m, unit, role), fp8 = model_is_fp8(m, unit);

	if (fp8)
		model_fp8_input(m, unit, role, x, tokens, group.in, false);
	for (int i = 0; i < group.n; i++) {
		const struct columns *c = &group.product[i];
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
		                        .bias = later ? NULL : weight(m, unit, bias_of(c->role)),
		                        .by_rows = m->by_rows};

		if (fp8)
			model_fp8_forward(m, &p, &g);
		compute(m, &g);
	}
	add_adapters(m, unit, &group, y, x, tokens);
	if (m->dora && scaled && group.adapters > 0 && !is_listing(m))
		scale_outputs(m, unit, &group, y, tokens);
}

/* d_magnitude[j] += Σ dy[t,j] · (W·x + scale · B·A·x)[t,j] / norm[j] */
static void magnitude_gradient(struct model *m, int unit, enum parameter_role role, const struct group *g,
                               const void *dy, const void *x, int64_t tokens)
{
	multiply(m, unit, role, m->unscaled, m->o.type, x, tokens, false);
	for (int i = 0; i < g->adapters && !is_listing(m); i++) {
		const struct columns *c = &g->adapter[i];
		struct device_columns scaled = columns_of(m, g, c, tokens);
		char *at = at_column(m, m->unscaled, c->column);

		scaled.times = at_column(m, dy, c->column);
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
	struct group group = find_group(m, unit, role);
	bool transposed = is_transposed(m, unit, role);
	const void *scaled = scaled_gradient(m, unit, &group, dy, tokens);

	for (int i = 0; i < group.n; i++) {
		const struct columns *c = &group.product[i];
		const void *from = is_adapted(m, unit, c->role) ? scaled : dy;
		struct model_fp8_product p = in_fp8(m, unit, role, &group, i);
		struct device_gemm g = {.transpose_b = transposed,
		                        .m = tokens,
		                        .n = group.in,
		                        .k = c->out,
		                        .alpha = 1,
		                        .beta = i > 0 ? 1 : 0,
		                        .a = at_column(m, from, c->column),
		                        .b = weight(m, unit, c->role),
		                        .c = dx,
		                        .lda = group.out,
		                        .ldb = transposed ? group.out : group.in,
		                        .ldc = group.in,
		                        .ab_type = m->o.type,
		                        .c_type = m->o.type};

		if (model_is_fp8(m, unit))
			model_fp8_input_gradient(m, &p, g.a, &g);
		compute(m, &g);
	}
	if (group.adapters > 0)
		add_adapters_input_gradient(m, unit, &group, dx, scaled, tokens);
}

/* dw[in, out] = xᵀ · dy. The product sums the rows of its first matrix alone, so the bias is a sum of its
 * own. */
static void transposed_weight_gradient(struct model *m, int unit, enum parameter_role role,
                                       const struct group *group, const void *dy, const void *x,
                                       int64_t tokens, bool first)
{
	struct model_fp8_product p = in_fp8(m, unit, role, group, 0);
	int64_t in = columns_in(m, role), out = rows_of(m, role);
	float *bias = gradient(m, unit, bias_of(role));
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
		compute(m, &g);
	if (bias && !is_listing(m))
		device_bias_backward(m->dev, bias, DTYPE_F32, dy, tokens, out, out, m->o.type);
}

void model_linear_weight_gradient(struct model *m, int unit, enum parameter_role role, const void *dy,
                                  const void *x, int64_t tokens, bool first)
{
	struct group group = find_group(m, unit, role);
	bool transposed = is_transposed(m, unit, role), fp8 = model_is_fp8(m, unit), turned = false;

	if (transposed)
		transposed_weight_gradient(m, unit, role, &group, dy, x, tokens, first);
	for (int i = 0; i < group.n && !transposed; i++) {
		const struct columns *c = &group.product[i];
		struct model_fp8_product p = in_fp8(m, unit, role, &group, i);
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
		                        .c_type = model_matrix_gradient_type(m, unit, c->role),
		                        .d_bias = bias};

		if (g.c && fp8) {
			if (!turned)
				model_fp8_input(m, unit, role, x, tokens, group.in, true);
			turned = true;
			model_fp8_weight_gradient(m, &p, g.a, &g);
		}
		if (g.c)
			compute(m, &g);
		/* The codes of a gradient are no factor of that of a bias. */
		if (bias && (!g.c || fp8) && !is_listing(m))
			device_bias_backward(m->dev, bias, DTYPE_F32, at_column(m, dy, c->column), tokens,
			                     c->out, group.out, m->o.type);
	}
	if (group.adapters == 0)
		return;
	adapters_weight_gradient(m, unit, &group, scaled_gradient(m, unit, &group, dy, tokens), x, tokens,
	                         first);
	if (m->dora)
		magnitude_gradient(m, unit, role, &group, dy, x, tokens);
}
