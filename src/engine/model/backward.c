/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass: from the loss through the blocks, the last first, with the gradients of each unit. */
#include "engine/model/internal.h"

static void norm_gradient(struct model *m, void *dx, bool accumulate, float *dw, const void *dy,
                          const void *x, const void *w, int64_t tokens)
{
	struct device_norm n = {.rows = tokens,
	                        .groups = 1,
	                        .cols = m->c.hidden,
	                        .ld_x = m->c.hidden,
	                        .ld_y = m->c.hidden,
	                        .eps = m->c.norm_eps,
	                        .type = m->o.type};

	device_rmsnorm_backward(m->dev, &n, dx, accumulate, dw, DTYPE_F32, dy, x, m->rstd, w);
}

/* Norms and biases only ever add up: on the first micro-step they start from zero. Matrices are overwritten.
 */
static void start_unit(struct model *m, int unit, bool first)
{
	const struct model_unit *u = &m->layout->unit[unit];

	if (first && u->count > u->matrices)
		device_zero(m->dev, m->unit[unit].g + u->matrices,
		            (size_t)(u->count - u->matrices) * sizeof(float));
}

/* Loss, gradient of the head, and dx behind the final norm. */
static void head(struct model *m, const struct model_pass *p, float scale, bool first, double *loss_sum)
{
	int unit = m->layout->units - 1, matrix = head_unit(m);
	int64_t tokens = p->b->tokens, rows = p->compact ? p->counted : tokens, hidden = m->c.hidden;
	enum parameter_role role = head_role(m);
	const char *x = model_head_input(m, p);
	char *dx = p->compact ? m->d_wide : m->dx;
	int64_t chunk = logits_chunk(m, rows);

	for (int64_t at = 0; at < rows; at += chunk) {
		int64_t n = MIN(chunk, rows - at);
		size_t offset = (size_t)(at * hidden) * m->size;

		model_linear(m, matrix, role, m->logits, x + offset, n);
		device_cross_entropy(m->dev, m->logits, m->o.type, m->targets + at, n, m->c.vocab, scale,
		                     NULL, m->losses, true);
		device_sum(m->dev, m->losses, n, loss_sum);
		model_linear_input_gradient(m, matrix, role, dx + offset, m->logits, n);
		model_linear_weight_gradient(m, matrix, role, m->logits, x + offset, n, first && at == 0);
	}
	if (p->compact) {
		size_t row = (size_t)hidden * m->size;

		/* Back to all rows: those without a target read the row of zeros behind the others. */
		device_zero(m->dev, dx + (size_t)p->counted * row, row);
		device_embedding_forward(m->dev, m->dx, m->inverse, dx, tokens, m->c.hidden, m->o.type);
	}
	start_unit(m, unit, first);
	norm_gradient(m, m->dx, false, gradient(m, unit, PARAMETER_FINAL_NORM), m->dx,
	              m->layer[m->c.layers].input, weight(m, unit, PARAMETER_FINAL_NORM), tokens);
}

static void mlp_backward(struct model *m, int layer, int64_t tokens, bool first)
{
	struct model_activations *a = &m->layer[layer];
	int unit = layer + 1;

	model_linear_input_gradient(m, unit, PARAMETER_DOWN, m->d_wide, m->dx, tokens);
	device_swiglu_backward(m->dev, a->gate_up, m->y, m->d_wide, a->gate_up, tokens, m->c.intermediate,
	                       m->o.type);
	model_linear_weight_gradient(m, unit, PARAMETER_DOWN, m->dx, m->y, tokens, first);
	model_norm(m, m->h, a->middle, weight(m, unit, PARAMETER_POST_NORM), tokens);
	model_linear_weight_gradient(m, unit, PARAMETER_GATE, a->gate_up, m->h, tokens, first);
	model_linear_input_gradient(m, unit, PARAMETER_GATE, m->h, a->gate_up, tokens);
	norm_gradient(m, m->dx, true, gradient(m, unit, PARAMETER_POST_NORM), m->h, a->middle,
	              weight(m, unit, PARAMETER_POST_NORM), tokens);
}

/* From gradients of the normed heads to those of the projections, in place in d_qkv. The statistics are those
 * that model_qk_norm_rotate has left. */
static void qk_norm_backward(struct model *m, int unit, const char *qkv, int64_t tokens)
{
	static const enum parameter_role role[2] = {PARAMETER_Q_NORM, PARAMETER_K_NORM};
	int heads[2] = {m->c.heads, m->c.kv_heads};
	const float *rstd = m->rstd;
	size_t at = 0;

	for (int i = 0; i < 2; i++) {
		struct device_norm n = {.rows = tokens,
		                        .groups = heads[i],
		                        .cols = m->c.head_dim,
		                        .ld_x = m->qkv,
		                        .ld_y = m->qkv,
		                        .eps = m->c.norm_eps,
		                        .type = m->o.type};

		device_rmsnorm_backward(m->dev, &n, m->d_qkv + at, false, gradient(m, unit, role[i]),
		                        DTYPE_F32, m->d_qkv + at, qkv + at, rstd, weight(m, unit, role[i]));
		rstd += tokens * heads[i];
		at += (size_t)m->q * m->size;
	}
}

static void attention_backward(struct model *m, const struct model_pass *p, int layer, bool first)
{
	struct model_activations *a = &m->layer[layer];
	struct device_attention attention = p->attention;
	int unit = layer + 1;
	int64_t tokens = p->b->tokens;
	size_t k = (size_t)m->q * m->size, v = (size_t)(m->q + m->kv) * m->size;
	char *qk = a->qkv;

	model_linear_input_gradient(m, unit, PARAMETER_O, m->d_wide, m->dx, tokens);
	model_linear_weight_gradient(m, unit, PARAMETER_O, m->dx, a->attention, tokens, first);
	if (m->c.qk_norm) {
		qk = m->rotated;
		model_qk_norm_rotate(m, unit, qk, a->qkv, tokens);
	}
	attention.window = model_config_window(&m->c, layer);
	device_attention_backward(m->dev, &attention, m->d_qkv, m->d_qkv + k, m->d_qkv + v, m->d_wide,
	                          a->attention, a->lse, qk, qk + k, a->qkv + v);
	model_rotate(m, m->d_qkv, tokens, true);
	if (m->c.qk_norm)
		qk_norm_backward(m, unit, a->qkv, tokens);
	model_norm(m, m->h, a->input, weight(m, unit, PARAMETER_INPUT_NORM), tokens);
	model_linear_weight_gradient(m, unit, PARAMETER_Q, m->d_qkv, m->h, tokens, first);
	model_linear_input_gradient(m, unit, PARAMETER_Q, m->h, m->d_qkv, tokens);
	norm_gradient(m, m->dx, true, gradient(m, unit, PARAMETER_INPUT_NORM), m->h, a->input,
	              weight(m, unit, PARAMETER_INPUT_NORM), tokens);
}

static void embedding_backward(struct model *m, const struct model_pass *p, bool first)
{
	float *table = gradient(m, 0, PARAMETER_EMBEDDING);

	/* Tied, the head has written the whole table already. */
	if (first && !m->c.tied)
		device_zero(m->dev, table, (size_t)(m->c.vocab * m->c.hidden) * sizeof(float));
	device_embedding_backward(m->dev, table, DTYPE_F32, m->dx, m->ids, p->b->ids, p->b->tokens,
	                          m->c.vocab, m->c.hidden, m->o.type);
}

/* For the compacted head: where row t of the batch finds its gradient. */
static int write_inverse_rows(struct model *m, const struct model_pass *p, struct error *err)
{
	int64_t next = 0;

	for (int64_t t = 0; t < p->b->tokens; t++)
		m->host_targets[t] = p->b->targets[t] >= 0 ? (int32_t)next++ : (int32_t)p->counted;
	return device_write(m->dev, m->inverse, m->host_targets, (size_t)p->b->tokens * sizeof(int32_t), err);
}

/* The gradients of a unit are final, and nothing reads its weights any more. */
static void end_unit(struct model *m, int unit)
{
	model_done(m, unit, MODEL_BACKWARD);
	if (m->hooks.gradients)
		m->hooks.gradients(m->hooks.context, unit);
}

/* The matrix of a tied head is the embedding's, whose gradients are complete at the end only. */
static int need_head(struct model *m, struct error *err)
{
	int r = m->c.tied ? model_need(m, 0, MODEL_BACKWARD, err) : 0;

	return r < 0 ? r : model_need(m, m->layout->units - 1, MODEL_BACKWARD, err);
}

/* Nothing in the batch counts: its gradients are zero. */
static int nothing(struct model *m, bool first, struct error *err)
{
	int last = m->layout->units - 1, r;

	if ((r = model_forward_nothing(m, MODEL_FORWARD, err)) < 0 || (r = need_head(m, err)) < 0)
		return r;
	for (int u = last; u >= 0; u--) {
		if (u < last && (u > 0 || !m->c.tied) && (r = model_need(m, u, MODEL_BACKWARD, err)) < 0)
			return r;
		if (first)
			device_zero(m->dev, m->unit[u].g, (size_t)m->layout->unit[u].count * sizeof(float));
		end_unit(m, u);
	}
	return 0;
}

/* What a block has not kept. The last of those that recompute has written the shared buffers last: its own
 * activations are still there. */
static void recompute(struct model *m, const struct model_pass *p, int layer)
{
	struct model_activations *a = &m->layer[layer];
	int64_t tokens = p->b->tokens;
	int unit = layer + 1;

	if (m->o.recompute == MODEL_RECOMPUTE_BLOCK) {
		model_norm(m, m->h, a->input, weight(m, unit, PARAMETER_INPUT_NORM), tokens);
		model_block_forward(m, p, layer);
		return;
	}
	model_norm(m, m->h, a->middle, weight(m, unit, PARAMETER_POST_NORM), tokens);
	model_linear(m, unit, PARAMETER_GATE, a->gate_up, m->h, tokens);
}

int model_forward_backward(struct model *m, const struct model_batch *batch, float scale, bool first,
                           double *loss_sum, struct error *err)
{
	struct model_pass p;
	int64_t tokens = batch->tokens;
	int r;

	if (tokens == 0)
		return nothing(m, first, err);
	r = model_begin(m, batch, &p, err);
	if (r == 0 && p.counted == 0)
		return nothing(m, first, err);
	if (r < 0 || (p.compact && (r = write_inverse_rows(m, &p, err)) < 0) ||
	    (r = model_forward(m, &p, MODEL_FORWARD, err)) < 0)
		return r;
	model_head_done(m, MODEL_FORWARD);
	if ((r = need_head(m, err)) < 0)
		return r;
	head(m, &p, scale, first, loss_sum);
	end_unit(m, m->layout->units - 1);
	for (int l = m->c.layers - 1; l >= 0; l--) {
		if ((r = model_need(m, l + 1, MODEL_BACKWARD, err)) < 0)
			return r;
		if (l < model_recomputed(m) - 1)
			recompute(m, &p, l);
		start_unit(m, l + 1, first);
		mlp_backward(m, l, tokens, first);
		attention_backward(m, &p, l, first);
		end_unit(m, l + 1);
	}
	if (!m->c.tied && (r = model_need(m, 0, MODEL_BACKWARD, err)) < 0)
		return r;
	embedding_backward(m, &p, first);
	end_unit(m, 0);
	return 0;
}
