/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass: embedding, blocks, final norm, head and loss, in chunks of rows that bound the
 * logits. */
#include <errno.h>

#include "engine/model/internal.h"

static struct device_norm plain_norm(const struct model *m, int64_t tokens)
{
	return (struct device_norm){.rows = tokens,
	                            .groups = 1,
	                            .cols = m->c.hidden,
	                            .ld_x = m->c.hidden,
	                            .ld_y = m->c.hidden,
	                            .eps = m->c.norm_eps,
	                            .type = m->o.type};
}

void model_norm(struct model *m, void *y, const void *x, const void *w, int64_t tokens)
{
	struct device_norm n = plain_norm(m, tokens);

	device_rmsnorm_forward(m->dev, &n, y, m->rstd, x, w);
}

void model_add_norm(struct model *m, void *y, void *sum, const void *x, const void *w, int64_t tokens)
{
	struct device_norm n = plain_norm(m, tokens);

	device_add_rmsnorm_forward(m->dev, &n, y, m->rstd, sum, x, w);
}

void model_qk_norm_rotate(struct model *m, int unit, char *y, const char *x, int64_t tokens)
{
	struct device_qk_norm n = {.tokens = tokens,
	                           .heads = m->c.heads,
	                           .kv_heads = m->c.kv_heads,
	                           .head_dim = m->c.head_dim,
	                           .ld = m->qkv,
	                           .eps = m->c.norm_eps,
	                           .positions = m->positions,
	                           .cos = m->cos,
	                           .sin = m->sin,
	                           .type = m->o.type};

	device_qk_norm_rope(m->dev, &n, y, m->rstd, x, weight(m, unit, PARAMETER_Q_NORM),
	                    weight(m, unit, PARAMETER_K_NORM));
}

void model_rotate(struct model *m, char *x, int64_t tokens, bool inverse)
{
	/* q and k heads lie behind each other. */
	device_rope(m->dev, x, m->qkv, m->c.heads + m->c.kv_heads, m->c.head_dim, m->positions, m->cos,
	            m->sin, tokens, inverse, m->o.type);
}

void model_block_forward(struct model *m, const struct model_pass *p, int layer)
{
	struct model_activations *a = &m->layer[layer];
	struct device_attention attention = p->attention;
	int64_t tokens = p->b->tokens;
	int unit = layer + 1;
	char *qk = a->qkv;

	model_linear(m, unit, PARAMETER_Q, a->qkv, m->h, tokens);
	if (m->c.qk_norm) {
		qk = m->rotated;
		model_qk_norm_rotate(m, unit, qk, a->qkv, tokens);
	} else {
		model_rotate(m, qk, tokens, false);
	}
	attention.window = model_config_window(&m->c, layer);
	device_attention_forward(m->dev, &attention, a->attention, a->lse, qk, qk + (size_t)m->q * m->size,
	                         a->qkv + (size_t)(m->q + m->kv) * m->size);
	model_linear(m, unit, PARAMETER_O, a->middle, a->attention, tokens);
	model_add_norm(m, m->h, a->middle, a->input, weight(m, unit, PARAMETER_POST_NORM), tokens);
	model_linear(m, unit, PARAMETER_GATE, a->gate_up, m->h, tokens);
}

void model_head_done(const struct model *m, enum model_phase phase)
{
	if (m->c.tied)
		model_done(m, 0, phase);
	model_done(m, m->layout->units - 1, phase);
}

int model_forward_nothing(const struct model *m, enum model_phase phase, struct error *err)
{
	int last = m->layout->units - 1, r;

	for (int u = 0; u <= last; u++) {
		if ((r = model_need(m, u, phase, err)) < 0)
			return r;
		if (u < last && (u > 0 || !m->c.tied))
			model_done(m, u, phase);
	}
	model_head_done(m, phase);
	return 0;
}

int model_forward(struct model *m, const struct model_pass *p, enum model_phase phase, struct error *err)
{
	int64_t tokens = p->b->tokens;
	int layers = m->c.layers, r = model_need(m, 0, phase, err);

	if (r < 0)
		return r;
	device_embedding_forward(m->dev, m->layer[0].input, m->ids, weight(m, 0, PARAMETER_EMBEDDING), tokens,
	                         m->c.hidden, m->o.type);
	if (!m->c.tied)
		model_done(m, 0, phase);
	if ((r = model_need(m, 1, phase, err)) < 0)
		return r;
	model_norm(m, m->h, m->layer[0].input, weight(m, 1, PARAMETER_INPUT_NORM), tokens);
	for (int l = 0; l < layers; l++) {
		struct model_activations *a = &m->layer[l];
		bool last = l == layers - 1;

		model_block_forward(m, p, l);
		device_swiglu_forward(m->dev, m->y, a->gate_up, tokens, m->c.intermediate, m->o.type);
		model_linear(m, l + 1, PARAMETER_DOWN, m->layer[l + 1].input, m->y, tokens);
		model_done(m, l + 1, phase);
		if ((r = model_need(m, l + 2, phase, err)) < 0)
			return r;
		/* The sum goes into the product's buffer: what it is added to is kept for the backward pass.
		 */
		model_add_norm(m, m->h, m->layer[l + 1].input, a->middle,
		               weight(m, l + 2, last ? PARAMETER_FINAL_NORM : PARAMETER_INPUT_NORM), tokens);
	}
	return 0;
}

const char *model_head_input(struct model *m, const struct model_pass *p)
{
	if (!p->compact)
		return m->h;
	device_embedding_forward(m->dev, m->y, m->rows, m->h, p->counted, m->c.hidden, m->o.type);
	return m->y;
}

int model_evaluate(struct model *m, const struct model_batch *batch, double *loss_sum, float *losses,
                   struct error *err)
{
	struct model_pass p;
	const char *x;
	int64_t rows, chunk;
	int r;

	if (batch->tokens == 0)
		return model_forward_nothing(m, MODEL_EVALUATE, err);
	if ((r = model_begin(m, batch, &p, err)) < 0)
		return r;
	if (!batch->targets)
		return error_set(err, -EINVAL, "evaluation without targets");
	for (int64_t t = 0; t < batch->tokens && losses; t++)
		losses[t] = 0;
	if (p.counted == 0)
		return model_forward_nothing(m, MODEL_EVALUATE, err);
	if ((r = model_forward(m, &p, MODEL_EVALUATE, err)) < 0)
		return r;
	x = model_head_input(m, &p);
	rows = p.compact ? p.counted : batch->tokens;
	chunk = logits_chunk(m, rows);
	for (int64_t first = 0; first < rows; first += chunk) {
		int64_t n = MIN(chunk, rows - first);

		model_linear(m, head_unit(m), head_role(m), m->logits,
		             x + (size_t)(first * m->c.hidden) * m->size, n);
		device_cross_entropy(m->dev, m->logits, m->o.type, m->targets + first, n, m->c.vocab, 1, NULL,
		                     m->losses, false);
		device_sum(m->dev, m->losses, n, loss_sum);
		if (!losses)
			continue;
		if ((r = device_read(m->dev, m->host_losses, m->losses, (size_t)n * sizeof(float), err)) < 0)
			return r;
		for (int64_t i = 0; i < n; i++)
			losses[p.compact ? m->host_rows[first + i] : first + i] = m->host_losses[i];
	}
	model_head_done(m, MODEL_EVALUATE);
	return 0;
}

int model_logits(struct model *m, const struct model_batch *batch, float *logits, struct error *err)
{
	struct model_pass p;
	struct model_batch b = *batch;
	int r;

	b.targets = NULL;
	if (m->o.type != DTYPE_F32)
		return error_set(err, -EINVAL, "all logits are to be had in fp32 only");
	if ((r = model_begin(m, &b, &p, err)) < 0)
		return r;
	if ((r = model_forward(m, &p, MODEL_EVALUATE, err)) < 0)
		return r;
	for (int64_t first = 0; first < b.tokens; first += m->logits_rows) {
		int64_t n = MIN(m->logits_rows, b.tokens - first);

		model_linear(m, head_unit(m), head_role(m), m->logits,
		             m->h + (size_t)(first * m->c.hidden) * m->size, n);
		if ((r = device_read(m->dev, logits + first * m->c.vocab, m->logits,
		                     (size_t)(n * m->c.vocab) * sizeof(float), err)) < 0)
			return r;
	}
	model_head_done(m, MODEL_EVALUATE);
	return 0;
}
