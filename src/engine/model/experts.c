/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The MLP of a mixture of experts. The router gives each token the weights of a few experts. The tokens' rows
 * are gathered by expert (places), each expert multiplies those that are its own, and a token's output is the
 * weighted sum of its experts' rows:
 *
 *     x [T] -> spread [places] -> gate_up [places] -> active [places] -> spread [places] -> y [T]
 *
 * The host launches the products of each expert, so it waits for the router of each layer: how many rows an
 * expert has is known to the device first.
 *
 * Backward, with a the activation's output of a place, w its weight and W the matrix of down: the gradient of
 * w is dy · (W·a) = (Wᵀ·dy) · a, so that the experts' outputs need not be kept.
 */
#include <stdlib.h>

#include "engine/model/linear.h"
#include "engine/model/roles.h"

/* ---- the products of each expert with its rows ---- */
/* Rows [first, first + rows) of those that experts compute, and the weights of their expert. */
struct expert {
	int number;
	int64_t first, rows;
};

typedef void (*expert_fn)(struct model *m, const struct expert *e, int unit, enum parameter_role role,
                          void *y, const void *x, bool first);

static void each_expert(struct model *m, int unit, enum parameter_role role, expert_fn product, void *y,
                        const void *x, bool first)
{
	const int32_t *starts = m->layer[unit - 1].routing.starts;

	for (int i = 0; i < m->c.experts; i++) {
		struct expert e = {i, starts[i], starts[i + 1] - starts[i]};

		product(m, &e, unit, role, y, x, first);
	}
}

/* Gate and up are one matrix. */
static int64_t outputs_of(const struct model *m, enum parameter_role role)
{
	return role == PARAMETER_GATE ? m->gate_up : m->c.hidden;
}

static void *row_of(const struct model *m, const void *rows, const struct expert *e, int64_t columns)
{
	return (char *)(uintptr_t)rows + (size_t)(e->first * columns) * m->size;
}

static const void *expert_weights(const struct model *m, const struct expert *e, int unit,
                                  enum parameter_role role)
{
	return weight(m, unit, role) + (size_t)(e->number * role_distance(&m->c, role)) * m->size;
}

/* y[rows, out] = x[rows, in] · wᵀ */
static void expert_forward(struct model *m, const struct expert *e, int unit, enum parameter_role role,
                           void *y, const void *x, bool first)
{
	int64_t in = linear_columns_in(m, role), out = outputs_of(m, role);
	struct device_gemm g = {.transpose_b = true,
	                        .m = e->rows,
	                        .n = out,
	                        .k = in,
	                        .alpha = 1,
	                        .a = row_of(m, x, e, in),
	                        .b = expert_weights(m, e, unit, role),
	                        .c = row_of(m, y, e, out),
	                        .lda = in,
	                        .ldb = in,
	                        .ldc = out,
	                        .ab_type = m->o.type,
	                        .c_type = m->o.type,
	                        .by_rows = m->by_rows};

	(void)first;
	if (e->rows > 0)
		linear_compute(m, &g);
}

/* dx[rows, in] = dy[rows, out] · w */
static void expert_input_gradient(struct model *m, const struct expert *e, int unit, enum parameter_role role,
                                  void *dx, const void *dy, bool first)
{
	int64_t in = linear_columns_in(m, role), out = outputs_of(m, role);
	struct device_gemm g = {.m = e->rows,
	                        .n = in,
	                        .k = out,
	                        .alpha = 1,
	                        .a = row_of(m, dy, e, out),
	                        .b = expert_weights(m, e, unit, role),
	                        .c = row_of(m, dx, e, in),
	                        .lda = out,
	                        .ldb = in,
	                        .ldc = in,
	                        .ab_type = m->o.type,
	                        .c_type = m->o.type};

	(void)first;
	if (e->rows > 0)
		linear_compute(m, &g);
}

/* dw[out, in] = dyᵀ · x where `first`, else added to it. */
static void expert_weight_gradient(struct model *m, const struct expert *e, int unit,
                                   enum parameter_role role, void *dy, const void *x, bool first)
{
	int64_t in = linear_columns_in(m, role), out = outputs_of(m, role);
	enum dtype type = model_matrix_gradient_type(m, unit, role);
	char *dw = (char *)gradient(m, unit, role) +
	           (size_t)(e->number * role_distance(&m->c, role)) * dtype_size(type);
	struct device_gemm g = {.transpose_a = true,
	                        .m = out,
	                        .n = in,
	                        .k = e->rows,
	                        .alpha = 1,
	                        .beta = first ? 0 : 1,
	                        .a = row_of(m, dy, e, out),
	                        .b = row_of(m, x, e, in),
	                        .c = dw,
	                        .lda = out,
	                        .ldb = in,
	                        .ldc = in,
	                        .ab_type = m->o.type,
	                        .c_type = type};

	if (e->rows > 0)
		linear_compute(m, &g);
	else if (first)
		device_zero(m->dev, dw, (size_t)(out * in) * dtype_size(type));
}

/* ---- forward ---- */
static int find_places(struct model *m, struct model_routing *r, int64_t tokens, struct error *err)
{
	struct device_router router = model_router(m, tokens);

	device_route(m->dev, &router, r->expert, r->weight, r->logits);
	device_expert_places(m->dev, &router, m->expert_starts, r->row, r->place, r->expert);
	return device_read(m->dev, r->starts, m->expert_starts, model_starts(m) * sizeof(int32_t), err);
}

static int64_t places_of(const struct model *m, const struct model_routing *r)
{
	return r->starts[m->c.experts];
}

static void gather_rows(struct model *m, const struct model_routing *r, const void *x, int64_t tokens)
{
	struct device_router router = model_router(m, tokens);

	device_expert_rows(m->dev, &router, m->spread, x, r->row, places_of(m, r), m->c.hidden);
}

void model_experts_gate_up(struct model *m, int layer, const void *x, int64_t tokens)
{
	struct model_activations *a = &m->layer[layer];

	gather_rows(m, &a->routing, x, tokens);
	each_expert(m, layer + 1, PARAMETER_GATE, expert_forward, a->gate_up, m->spread, false);
}

int model_experts_begin(struct model *m, int layer, const void *x, int64_t tokens, struct error *err)
{
	struct model_routing *r = &m->layer[layer].routing;
	int result;

	model_linear(m, layer + 1, PARAMETER_ROUTER, r->logits, x, tokens);
	if ((result = find_places(m, r, tokens, err)) < 0)
		return result;
	model_experts_gate_up(m, layer, x, tokens);
	return 0;
}

void model_experts_end(struct model *m, int layer, void *y, int64_t tokens)
{
	const struct model_routing *r = &m->layer[layer].routing;
	struct device_router router = model_router(m, tokens);
	const char *active = model_activate(m, layer, places_of(m, r));

	each_expert(m, layer + 1, PARAMETER_DOWN, expert_forward, m->spread, active, false);
	device_expert_sum(m->dev, &router, y, m->spread, r->place, r->weight, m->c.hidden);
}

/* ---- backward ---- */
/* Tokens that fill a batch up have chosen experts, too, and do not count. */
static int take_away_filling(struct model *m, int layer, int64_t tokens, double rows, double *share,
                             struct error *err)
{
	int64_t n = m->filling * m->c.chosen_experts;
	_cleanup_free_ int32_t *chosen = NULL;
	int r;

	if (n == 0)
		return 0;
	if (!(chosen = malloc((size_t)n * sizeof(*chosen))))
		return error_oom(err);
	r = device_read(m->dev, chosen,
	                m->layer[layer].routing.expert + (tokens - m->filling) * m->c.chosen_experts,
	                (size_t)n * sizeof(*chosen), err);
	for (int64_t i = 0; i < n && r == 0; i++)
		share[chosen[i]] -= 1 / rows;
	return r;
}

/* Of this rank's tokens in all layers, the part of the batch's that each expert has. */
static int count_shares(struct model *m, int64_t tokens, double rows, double *share, struct error *err)
{
	int r = 0;

	for (int l = 0; l < m->c.layers && r == 0; l++) {
		const int32_t *counts = m->layer[l].routing.starts + m->c.experts + 1;

		for (int e = 0; e < m->c.experts; e++)
			share[e] += counts[e] / rows;
		r = take_away_filling(m, l, tokens, rows, share, err);
	}
	return r;
}

/* Adds those of the other ranks that share the batch. */
static int add_shares(struct model *m, double *share, struct error *err)
{
	float *all = m->host_shares, *own = all + m->o.sequence_rank * m->c.experts;
	int r;

	if (m->o.sequence_degree == 1)
		return 0;
	for (int e = 0; e < m->c.experts; e++)
		own[e] = (float)share[e];
	if ((r = model_share(m, own, m->c.experts, all, err)) < 0)
		return r;
	for (int e = 0; e < m->c.experts; e++) {
		share[e] = 0;
		for (int i = 0; i < m->o.sequence_degree; i++)
			share[e] += (double)all[i * m->c.experts + e];
	}
	return 0;
}

int model_experts_balance(struct model *m, const struct model_pass *p, struct error *err)
{
	double rows = (double)m->c.layers * (double)(p->whole->tokens - p->whole->filling);
	double share[DEVICE_EXPERTS_MAX] = {0};
	float balance[DEVICE_EXPERTS_MAX];
	int r;

	if ((r = count_shares(m, p->b->tokens, rows, share, err)) < 0 || (r = add_shares(m, share, err)) < 0)
		return r;
	for (int e = 0; e < m->c.experts; e++)
		balance[e] =
		    (float)(m->o.router_loss * m->c.experts * share[e] * (double)p->all_counted / rows);
	return device_write(m->dev, m->balance, balance, (size_t)m->c.experts * sizeof(float), err);
}

/* From dy to the gradients of down and of gate_up, the latter in place. */
static void down_backward(struct model *m, int layer, const char *dy, int64_t tokens, bool first)
{
	struct model_activations *a = &m->layer[layer];
	struct device_router router = model_router(m, tokens);
	int64_t places = places_of(m, &a->routing);
	int unit = layer + 1;
	char *active;

	gather_rows(m, &a->routing, dy, tokens);
	each_expert(m, unit, PARAMETER_DOWN, expert_input_gradient, m->d_wide, m->spread, false);
	active = a->active ? a->active : (char *)(uintptr_t)model_activate(m, layer, places);
	device_expert_weigh(m->dev, &router, m->d_weights, m->d_wide, active, a->routing.place,
	                    a->routing.weight, m->c.intermediate);
	device_swiglu_backward(m->dev, a->gate_up, NULL, m->d_wide, a->gate_up, places, m->c.intermediate,
	                       m->o.type, NULL);
	if (gradient(m, unit, PARAMETER_DOWN))
		each_expert(m, unit, PARAMETER_DOWN, expert_weight_gradient, m->spread, active, first);
}

/* Of n tokens from `first` on. */
static void route_backward(struct model *m, struct model_routing *r, int64_t first, int64_t n,
                           const float *balance, float scale)
{
	struct device_router router = model_router(m, n);
	char *logits = r->logits + (size_t)(first * m->c.experts) * m->size;
	int64_t choice = first * m->c.chosen_experts;

	if (n > 0)
		device_route_backward(m->dev, &router, logits, logits, r->expert + choice, r->weight + choice,
		                      m->d_weights + choice, balance, scale, m->row_losses);
}

/* From the gradients of gate_up and of the experts' weights to those of gate, up and router, and of x, which
 * is the MLP's input; returns where that is. */
static const char *input_backward(struct model *m, int layer, const char *x, int64_t tokens, float scale,
                                  bool first, double *loss_sum)
{
	struct model_activations *a = &m->layer[layer];
	struct model_routing *r = &a->routing;
	struct device_router router = model_router(m, tokens);
	int unit = layer + 1;

	each_expert(m, unit, PARAMETER_GATE, expert_input_gradient, m->d_wide, a->gate_up, false);
	if (gradient(m, unit, PARAMETER_GATE)) {
		gather_rows(m, r, x, tokens);
		each_expert(m, unit, PARAMETER_GATE, expert_weight_gradient, a->gate_up, m->spread, first);
	}
	device_expert_sum(m->dev, &router, m->spread, m->d_wide, r->place, NULL, m->c.hidden);
	route_backward(m, r, 0, tokens - m->filling, m->balance, scale);
	route_backward(m, r, tokens - m->filling, m->filling, NULL, scale);
	if (m->balance)
		device_sum(m->dev, m->row_losses, tokens - m->filling, loss_sum);
	model_linear_input_gradient(m, unit, PARAMETER_ROUTER, m->y, r->logits, tokens);
	device_add(m->dev, m->spread, m->y, m->o.type, tokens * m->c.hidden);
	model_linear_weight_gradient(m, unit, PARAMETER_ROUTER, r->logits, x, tokens, first);
	return m->spread;
}

void model_experts_backward(struct model *m, int layer, const char *dy, int64_t tokens, float scale,
                            bool first, double *loss_sum)
{
	const char *middle = m->layer[layer].middle, *x;
	int unit = layer + 1;

	down_backward(m, layer, dy, tokens, first);
	x = model_branch_input_again(m, unit, PARAMETER_POST_NORM, middle, tokens);
	model_branch_input_gradient(m, unit, PARAMETER_POST_NORM,
	                            input_backward(m, layer, x, tokens, scale, first, loss_sum), middle,
	                            tokens);
}

/* ---- the list of products ---- */
void model_experts_list(struct model *m, int unit, int64_t tokens, void *place)
{
	static const enum parameter_role roles[] = {PARAMETER_GATE, PARAMETER_DOWN};
	/* What an expert has where all of them have as much, and what it has at most. */
	int64_t share = MAX(tokens * m->c.chosen_experts / m->c.experts, 1), multiple = m->multiple;
	const int64_t rows[] = {(share + multiple - 1) / multiple * multiple,
	                        (tokens + multiple - 1) / multiple * multiple};

	for (size_t i = 0; i < ARRAY_SIZE(roles); i++)
		for (size_t j = 0; j < ARRAY_SIZE(rows); j++) {
			struct expert e = {0, 0, rows[j]};

			expert_forward(m, &e, unit, roles[i], place, place, false);
			if (!m->o.training || unit < m->layout->lowest)
				continue;
			expert_input_gradient(m, &e, unit, roles[i], place, place, false);
			if (!gradient(m, unit, roles[i]))
				continue;
			expert_weight_gradient(m, &e, unit, roles[i], place, place, true);
			if (model_gradient_type(m, unit) == DTYPE_F32)
				expert_weight_gradient(m, &e, unit, roles[i], place, place, false);
		}
}
