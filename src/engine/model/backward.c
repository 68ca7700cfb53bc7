/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass: from the loss through the blocks, the last first, with the gradients of each unit. */
#include <errno.h>
#include <string.h>

#include "engine/model/internal.h"

/* Nothing writes the gaps, but the gradient norm includes them, and the memory may have held something
 * else. */
static void zero_gaps(struct model *m, int unit)
{
	size_t size = dtype_size(model_gradient_type(m, unit));

	for (int i = m->layout->unit[unit].gap; i >= 0; i = m->layout->gap[i].next)
		device_zero(m->dev, m->unit[unit].g + (size_t)m->layout->gap[i].first * size,
		            (size_t)m->layout->gap[i].count * size);
}

static void start_place(struct model *m, int unit)
{
	const struct model_unit *u = &m->layout->unit[unit];

	if (u->frozen)
		return;
	if (u->count > u->matrices)
		device_zero(m->dev,
		            model_adds_apart(m, unit) ? m->vectors : (float *)m->unit[unit].g + u->matrices,
		            (size_t)(u->count - u->matrices) * sizeof(float));
	if (!model_is_in_place(m, unit))
		zero_gaps(m, unit);
}

/* Before the first gradient of the unit's matrices is written. */
static void save_vectors(struct model *m, int unit)
{
	const struct model_unit *u = &m->layout->unit[unit];

	if (!model_is_in_place(m, unit) || dtype_size(model_gradient_type(m, unit)) <= m->size)
		return;
	device_copy(m->dev, m->vector_weights, m->unit[unit].w + (size_t)u->matrices * m->size,
	            (size_t)(u->count - u->matrices) * m->size);
	m->vector_weights_of = unit;
}

/* Norms and biases only ever add up: on the first micro-step they start from zero. Matrices are
 * overwritten. */
static void start_unit(struct model *m, int unit, bool first)
{
	int companion = m->layout->unit[unit].companion;

	if (first)
		start_place(m, unit);
	if (first && companion >= 0)
		start_place(m, companion);
}

/* The part of the value head, of n rows from `at` on: added to dx, and the gradient of its matrix. */
static void value_head(struct model *m, int64_t at, int64_t n, const char *x, char *dx, float scale,
                       bool first)
{
	int unit = m->layout->base_units - 1;

	device_scale(m->dev, m->value_factors + at, DTYPE_F32, scale, n);
	device_cast(m->dev, m->d_values, m->o.type, m->value_factors + at, DTYPE_F32, n);
	model_linear_add_input_gradient(m, unit, PARAMETER_VALUE, dx, m->d_values, n);
	model_linear_weight_gradient(m, unit, PARAMETER_VALUE, m->d_values, x, n, first);
}

/* Loss, gradient of the head, and dx behind the final norm. */
static void head(struct model *m, const struct model_pass *p, const char *x, float scale, bool first,
                 double *loss_sum)
{
	int unit = m->layout->base_units - 1, matrix = head_unit(m);
	int64_t tokens = p->b->tokens, rows = p->compact ? p->counted : tokens, hidden = m->c.hidden;
	enum parameter_role role = head_role(m);
	char *dx = p->compact ? m->d_wide : m->dx;
	int64_t chunk = logits_chunk(m, rows);

	save_vectors(m, unit);
	for (int64_t at = 0; at < rows; at += chunk) {
		int64_t n = MIN(chunk, rows - at);
		size_t offset = (size_t)(at * hidden) * m->size;

		if (m->c.scores) {
			/* Their gradients are the factors that weigh has given. */
			device_scale(m->dev, m->factors + at, DTYPE_F32, scale, n);
			device_cast(m->dev, m->logits, m->o.type, m->factors + at, DTYPE_F32, n);
		} else {
			if (!p->has_logits)
				model_linear(m, matrix, role, m->logits, x + offset, n);
			if (m->teacher)
				model_distill(m, at, n, scale);
			else
				model_cross_entropy(m, m->targets + at, n, scale,
				                    p->b->weigh ? m->factors + at : NULL, true);
			device_sum(m->dev, m->losses, n, loss_sum);
		}
		/* Where gradients replace the weights, this is the only chunk. The gradient of the head's
		 * matrix is written last: it reaches over the weights of the value head. */
		model_linear_input_gradient(m, matrix, role, dx + offset, m->logits, n);
		if (m->c.values)
			value_head(m, at, n, x + offset, dx + offset, scale, first && at == 0);
		model_linear_weight_gradient(m, matrix, role, m->logits, x + offset, n, first && at == 0);
	}
	model_scale_logits(m, dx, rows);
	if (p->compact) {
		size_t row = (size_t)hidden * m->size;

		/* Back to all rows: those without a target read the row of zeros behind the others. */
		device_zero(m->dev, dx + (size_t)p->counted * row, row);
		device_embedding_forward(m->dev, m->dx, m->inverse, dx, tokens, m->c.hidden, m->o.type);
	}
	start_unit(m, unit, first);
	model_norm_gradient(m, unit, PARAMETER_FINAL_NORM, m->dx, false, m->dx, m->layer[m->c.layers].input,
	                    tokens);
}

static void mlp_backward(struct model *m, int layer, int64_t tokens, float scale, bool first,
                         double *loss_sum)
{
	struct model_activations *a = &m->layer[layer];
	int unit = layer + 1;
	const char *dy = model_branch_gradient(m, unit, PARAMETER_MLP_OUT_NORM, a->mlp_out, tokens), *x, *y;

	if (m->c.experts) {
		model_experts_backward(m, layer, dy, tokens, scale, first, loss_sum);
		return;
	}
	model_linear_input_gradient(m, unit, PARAMETER_DOWN, m->d_wide, dy, tokens);
	y = model_activation_gradient(m, layer, tokens);
	model_linear_weight_gradient(m, unit, PARAMETER_DOWN, dy, y, tokens, first);
	model_linear_input_gradient(m, unit, PARAMETER_GATE, m->d_wide, a->gate_up, tokens);
	x = model_branch_input_again(m, unit, PARAMETER_POST_NORM, a->middle, tokens);
	model_linear_weight_gradient(m, unit, PARAMETER_GATE, a->gate_up, x, tokens, first);
	model_branch_input_gradient(m, unit, PARAMETER_POST_NORM, m->d_wide, a->middle, tokens);
}

static int attention_backward(struct model *m, const struct model_pass *p, int layer, bool first,
                              struct error *err)
{
	struct model_activations *a = &m->layer[layer];
	int unit = layer + 1;
	int64_t tokens = p->b->tokens;
	/* Nothing below the lowest unit needs the gradient of its input. */
	bool ends = unit == m->layout->lowest && !gradient(m, unit, PARAMETER_INPUT_NORM);
	enum parameter_role first_product = model_projection(m, layer),
	                    second = model_output_projection(m, layer);
	const char *dy =
	               model_branch_gradient(m, unit, PARAMETER_ATTENTION_OUT_NORM, a->attention_out, tokens),
	           *x, *d_projected;
	int r;

	model_linear_input_gradient(m, unit, second, m->d_wide, dy, tokens);
	x = model_mixed(m, layer, tokens);
	model_linear_weight_gradient(m, unit, second, dy, x, tokens, first);
	if ((r = model_mix_backward(m, p, layer, &d_projected, err)) < 0)
		return r;
	if (!ends)
		model_linear_input_gradient(m, unit, first_product, m->d_wide, d_projected, tokens);
	x = model_branch_input_again(m, unit, PARAMETER_INPUT_NORM, a->input, tokens);
	model_linear_weight_gradient(m, unit, first_product, d_projected, x, tokens, first);
	if (!ends)
		model_branch_input_gradient(m, unit, PARAMETER_INPUT_NORM, m->d_wide, a->input, tokens);
	return 0;
}

/* For the compacted head: where row t of the batch finds its gradient. */
static int write_inverse_rows(struct model *m, const struct model_pass *p, struct error *err)
{
	int64_t next = 0;

	for (int64_t t = 0; t < p->b->tokens; t++)
		m->host_targets[t] = p->b->targets[t] >= 0 ? (int32_t)next++ : (int32_t)p->counted;
	return device_write(m->dev, m->inverse, m->host_targets, (size_t)p->b->tokens * sizeof(int32_t), err);
}

/* Nothing reads the unit's weights any more: the gradients of norms and biases come to their place. */
static void end_gradients(struct model *m, int unit)
{
	const struct model_unit *u = &m->layout->unit[unit];
	enum dtype type = model_gradient_type(m, unit);
	char *to = m->unit[unit].g + (size_t)u->matrices * dtype_size(type);
	int64_t n = u->count - u->matrices;

	m->vector_weights_of = -1;
	if (u->frozen)
		return;
	if (model_is_in_place(m, unit))
		zero_gaps(m, unit);
	if (n == 0 || !model_adds_apart(m, unit))
		return;
	if (type == DTYPE_F32)
		device_copy(m->dev, to, m->vectors, (size_t)n * sizeof(float));
	else
		device_cast(m->dev, to, type, m->vectors, DTYPE_F32, n);
}

static void end_place(struct model *m, int unit)
{
	model_done(m, unit, MODEL_BACKWARD);
	if (m->hooks.gradients && !m->layout->unit[unit].frozen)
		m->hooks.gradients(m->hooks.context, unit);
}

/* The gradients of a unit are final, and nothing reads its weights any more. */
static void end_unit(struct model *m, int unit)
{
	int companion = m->layout->unit[unit].companion;

	end_place(m, unit);
	if (companion >= 0 && m->hooks.gradients)
		m->hooks.gradients(m->hooks.context, companion);
}

/* The matrix of a tied head is the embedding's, whose gradients are complete at the end only. */
static int need_head(struct model *m, struct error *err)
{
	int r = m->c.tied ? model_need(m, 0, MODEL_BACKWARD, err) : 0;

	return r < 0 ? r : model_need(m, m->layout->base_units - 1, MODEL_BACKWARD, err);
}

/* A tied head that is trained adds to the gradients of unit 0 first, and the embedding last. */
static bool head_shares_unit(const struct model *m)
{
	return m->c.tied && m->layout->lowest == 0;
}

static void end_head(struct model *m)
{
	if (head_shares_unit(m) && !m->layout->unit[0].frozen && m->hooks.head_gradients)
		m->hooks.head_gradients(m->hooks.context, 0);
}

static void zero_place(struct model *m, int unit)
{
	if (!m->layout->unit[unit].frozen)
		device_zero(m->dev, m->unit[unit].g,
		            (size_t)m->layout->unit[unit].count * dtype_size(model_gradient_type(m, unit)));
}

/* The tokens of a batch in which nothing counts are still those that the other ranks expect. */
static void nothing_of_rows(struct model *m, int64_t tokens)
{
	if (!head_shares_unit(m))
		return;
	if (tokens > 0)
		device_zero(m->dev, m->dx, (size_t)(tokens * m->c.hidden) * m->size);
	(void)model_embedding_rows(m);
}

/* Nothing in the batch counts: its gradients are zero. */
static int nothing(struct model *m, const struct model_batch *batch, bool first, struct error *err)
{
	int last = m->layout->base_units - 1, r;

	if ((r = model_forward_nothing(m, MODEL_FORWARD, err)) < 0 ||
	    (batch->weigh && (r = batch->weigh(batch->weigh_context, NULL, NULL, err)) < 0) ||
	    (r = need_head(m, err)) < 0)
		return r;
	if (first && head_shares_unit(m))
		zero_place(m, 0);
	end_head(m);
	for (int u = last; u >= m->layout->lowest; u--) {
		int companion = m->layout->unit[u].companion;

		if (u < last && (u > 0 || !m->c.tied) && (r = model_need(m, u, MODEL_BACKWARD, err)) < 0)
			return r;
		if (first && !(u == 0 && head_shares_unit(m)))
			zero_place(m, u);
		if (first && companion >= 0)
			zero_place(m, companion);
		if (u == 0)
			nothing_of_rows(m, batch->tokens);
		end_unit(m, u);
	}
	if (m->layout->lowest > 0 && m->c.tied)
		model_done(m, 0, MODEL_BACKWARD);
	return 0;
}

/* Asks for the factors of the tokens' losses; those of the rows that go through the head are then in
 * m->factors. */
static int weigh(struct model *m, struct model_pass *p, const char *x, struct error *err)
{
	int64_t tokens = p->b->tokens, all = p->whole->tokens, rows = p->compact ? p->counted : tokens,
	        first = m->o.sequence_rank * tokens, numbers = (m->c.values ? 2 : 1) * all;
	float *factors = m->token_losses + numbers, *of_values = factors + all;
	int r;

	memset(m->token_losses, 0, 2 * (size_t)numbers * sizeof(float));
	if ((r = model_head_losses(m, p, x, NULL, m->token_losses + first, err)) < 0 ||
	    (r = model_share_losses(m, p, m->token_losses, err)) < 0 ||
	    (r = p->b->weigh(p->b->weigh_context, m->token_losses, factors, err)) < 0)
		return r;
	/* Those of the only chunk, which the losses have left as they were. */
	p->has_logits = !m->c.scores && logits_chunk(m, rows) >= rows;
	factors += first;
	for (int64_t i = 0; i < p->counted && p->compact; i++)
		factors[i] = factors[m->host_rows[i]];
	for (int64_t i = 0; i < p->counted && p->compact && m->c.values; i++)
		of_values[i] = of_values[m->host_rows[i]];
	r = device_write(m->dev, m->factors, factors, (size_t)rows * sizeof(float), err);
	return r < 0 || !m->c.values
	           ? r
	           : device_write(m->dev, m->value_factors, of_values, (size_t)rows * sizeof(float), err);
}

/* What a block has not kept. The last of those that recompute has written the shared buffers last: its own
 * activations are still there. */
static int recompute(struct model *m, const struct model_pass *p, int layer, struct error *err)
{
	struct model_activations *a = &m->layer[layer];
	int64_t tokens = p->b->tokens;
	int unit = layer + 1, r;
	const char *x;

	if (m->o.recompute == MODEL_RECOMPUTE_BLOCK) {
		model_branch_input(m, unit, PARAMETER_INPUT_NORM, a->input, tokens);
		if ((r = model_block_forward(m, p, layer, err)) < 0)
			return r;
		if (a->mlp_out) { /* no family that has experts has one */
			x = model_activate(m, layer, tokens);
			model_linear(m, unit, PARAMETER_DOWN, a->mlp_out, x, tokens);
		}
		return 0;
	}
	x = model_branch_input(m, unit, PARAMETER_POST_NORM, a->middle, tokens);
	if (m->c.experts)
		model_experts_gate_up(m, layer, x, tokens);
	else
		model_linear(m, unit, PARAMETER_GATE, a->gate_up, x, tokens);
	return 0;
}

static int run_pass(struct model *m, const struct model_batch *batch, float scale, bool first,
                    double *loss_sum, struct error *err)
{
	struct model_pass p;
	int64_t tokens;
	const char *x;
	int r;

	if ((m->c.scores || m->c.values) && !batch->weigh)
		return error_set(err, -EINVAL, "a model of %s needs model_batch.weigh",
		                 m->c.scores ? "scores" : "values");
	if (batch->tokens == 0)
		return nothing(m, batch, first, err);
	r = model_begin(m, batch, &p, err);
	if (r == 0 && p.all_counted == 0)
		return nothing(m, p.b, first, err);
	tokens = p.b->tokens;
	if (r < 0 || (p.compact && (r = write_inverse_rows(m, &p, err)) < 0) ||
	    (r = model_forward(m, &p, MODEL_FORWARD, err)) < 0)
		return r;
	x = model_head_input(m, &p);
	if (batch->weigh && (r = weigh(m, &p, x, err)) < 0)
		return r;
	model_head_done(m, MODEL_FORWARD);
	if ((m->balance && (r = model_experts_balance(m, &p, err)) < 0) || (r = need_head(m, err)) < 0)
		return r;
	m->d_low_of = m->d_scaled_of = -1;
	model_fp8_start(m);
	if (head_shares_unit(m))
		start_unit(m, 0, first);
	head(m, &p, x, scale, first, loss_sum);
	end_gradients(m, m->layout->base_units - 1);
	end_head(m);
	end_unit(m, m->layout->base_units - 1);
	for (int l = m->c.layers - 1; l + 1 >= m->layout->lowest && l >= 0; l--) {
		if ((r = model_need(m, l + 1, MODEL_BACKWARD, err)) < 0)
			return r;
		if (l < model_recomputed(m) - 1 && (r = recompute(m, &p, l, err)) < 0)
			return r;
		start_unit(m, l + 1, first);
		save_vectors(m, l + 1);
		mlp_backward(m, l, tokens, scale, first, loss_sum);
		if ((r = attention_backward(m, &p, l, first, err)) < 0)
			return r;
		end_gradients(m, l + 1);
		end_unit(m, l + 1);
	}
	if (m->layout->lowest > 0) {
		if (m->c.tied)
			model_done(m, 0, MODEL_BACKWARD);
		return 0;
	}
	if (!m->c.tied && (r = model_need(m, 0, MODEL_BACKWARD, err)) < 0)
		return r;
	if (!head_shares_unit(m))
		start_unit(m, 0, first);
	model_embedding_gradient(m, p.b->ids, tokens, first);
	end_unit(m, 0);
	return 0;
}

int model_forward_backward(struct model *m, const struct model_batch *batch, float scale, bool first,
                           double *loss_sum, struct error *err)
{
	int r;

	/* Evaluation has no dropout. */
	m->drops = m->masked != NULL;
	/* Ranks that share a batch have masks of their own. */
	m->number = batch->number * m->o.sequence_degree + m->o.sequence_rank;
	r = run_pass(m, batch, scale, first, loss_sum, err);
	m->drops = false;
	return r;
}
