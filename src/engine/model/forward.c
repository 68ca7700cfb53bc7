/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass: embedding, blocks, final norm, head and loss, in chunks of rows that bound the
 * logits. */
#include <errno.h>
#include <math.h>

#include "engine/model/internal.h"

int model_block_middle(struct model *m, int layer, int64_t tokens, struct error *err)
{
	struct model_activations *a = &m->layer[layer];
	char *out = branch_out(a->attention_out, a->middle);
	int unit = layer + 1;
	const char *x;

	model_linear(m, unit, model_output_projection(m, layer), out, model_mixed(m, layer, tokens), tokens);
	model_branch_end(m, unit, PARAMETER_ATTENTION_OUT_NORM, a->middle, out, tokens);
	model_add_norm(m, unit, PARAMETER_POST_NORM, a->middle, a->input, tokens);
	x = model_branch_place(m, unit, PARAMETER_POST_NORM, a->middle);
	if (m->c.experts)
		return model_experts_begin(m, layer, x, tokens, err);
	model_linear(m, unit, PARAMETER_GATE, a->gate_up, x, tokens);
	return 0;
}

int model_block_forward(struct model *m, const struct model_pass *p, int layer, struct error *err)
{
	struct model_activations *a = &m->layer[layer];
	int64_t tokens = p->b->tokens;
	int r;

	model_project(m, layer, model_branch_place(m, layer + 1, PARAMETER_INPUT_NORM, a->input), tokens);
	r = model_mix(m, p, layer, err);
	return r < 0 ? r : model_block_middle(m, layer, tokens, err);
}

void model_block_end(struct model *m, int layer, int64_t tokens)
{
	struct model_activations *a = &m->layer[layer];
	char *sum = m->layer[layer + 1].input, *out = branch_out(a->mlp_out, sum);

	if (m->c.experts)
		model_experts_end(m, layer, out, tokens);
	else
		model_linear(m, layer + 1, PARAMETER_DOWN, out, model_activate(m, layer, tokens), tokens);
	model_branch_end(m, layer + 1, PARAMETER_MLP_OUT_NORM, sum, out, tokens);
}

void model_head_done(const struct model *m, enum model_phase phase)
{
	if (m->c.tied)
		model_done(m, 0, phase);
	model_done(m, m->layout->base_units - 1, phase);
}

int model_forward_nothing(const struct model *m, enum model_phase phase, struct error *err)
{
	int last = m->layout->base_units - 1, r;

	for (int u = 0; u <= last; u++) {
		if ((r = model_need(m, u, phase, err)) < 0)
			return r;
		if (u < last && (u > 0 || !m->c.tied))
			model_done(m, u, phase);
	}
	model_head_done(m, phase);
	return 0;
}

/* The teacher's own forward pass, up to its head. */
static int teach(struct model *m, const struct model_batch *batch, struct error *err)
{
	struct model_pass p;
	int r = model_begin(m->teacher, batch, &p, err);

	if (r < 0 || (r = model_forward(m->teacher, &p, MODEL_EVALUATE, err)) < 0)
		return r;
	m->lesson = model_head_input(m->teacher, &p);
	return 0;
}

int model_forward(struct model *m, const struct model_pass *p, enum model_phase phase, struct error *err)
{
	int64_t tokens = p->b->tokens;
	int layers = m->c.layers, r = model_need(m, 0, phase, err);

	/* Unit 0 has been asked for: what brings the next units goes on meanwhile. */
	if (r == 0 && phase == MODEL_FORWARD && m->teacher)
		r = teach(m, p->whole, err);
	if (r < 0)
		return r;
	model_embed(m, tokens, phase == MODEL_FORWARD && m->o.neftune_alpha > 0 ? p->b : NULL);
	if (!m->c.tied)
		model_done(m, 0, phase);
	if ((r = model_need(m, 1, phase, err)) < 0)
		return r;
	model_branch_input(m, 1, PARAMETER_INPUT_NORM, m->layer[0].input, tokens);
	for (int l = 0; l < layers; l++) {
		if ((r = model_block_forward(m, p, l, err)) < 0)
			return r;
		model_block_end(m, l, tokens);
		model_done(m, l + 1, phase);
		if ((r = model_need(m, l + 2, phase, err)) < 0)
			return r;
		/* The sum goes into the product's buffer: what it is added to is kept for the backward
		 * pass. */
		model_add_norm(m, l + 2, next_norm(m, l), m->layer[l + 1].input, m->layer[l].middle, tokens);
	}
	return 0;
}

char *model_head_input(struct model *m, const struct model_pass *p)
{
	char *x = p->compact ? m->y : m->h;
	int64_t rows = p->compact ? p->counted : p->b->tokens;

	if (p->compact)
		device_embedding_forward(m->dev, x, m->rows, m->h, rows, m->c.hidden, m->o.type);
	model_scale_logits(m, x, rows);
	return x;
}

void model_scale_logits(struct model *m, void *x, int64_t rows)
{
	if (m->c.logits_scale != 1)
		device_scale(m->dev, x, m->o.type, (float)m->c.logits_scale, rows * m->c.hidden);
}

void model_cross_entropy(struct model *m, const int32_t *targets, int64_t n, float scale,
                         const float *row_scale, bool backward)
{
	struct device_loss loss = {.cap = (float)m->c.logits_cap};

	if (backward) {
		loss.smoothing = (float)m->o.label_smoothing;
		loss.by_probability = m->o.dft;
	}
	if (loss.cap > 0 || loss.smoothing > 0 || loss.by_probability)
		device_variant_cross_entropy(m->dev, &loss, m->logits, m->o.type, targets, n, m->c.vocab,
		                             scale, row_scale, m->losses, backward);
	else
		device_cross_entropy(m->dev, m->logits, m->o.type, targets, n, m->c.vocab, scale, row_scale,
		                     m->losses, backward);
}

void model_cap_logits(const struct model *m, float *logits, int64_t n)
{
	float cap = (float)m->c.logits_cap;

	for (int64_t i = 0; cap > 0 && i < n; i++)
		logits[i] = cap * tanhf(logits[i] / cap);
}

/* Of n rows from `first` on, on the device, to the places of their tokens. */
static int read_rows(struct model *m, const struct model_pass *p, int64_t first, int64_t n, const float *from,
                     float *to, struct error *err)
{
	int r = device_read(m->dev, m->host_losses, from, (size_t)n * sizeof(float), err);

	for (int64_t i = 0; i < n && r == 0; i++)
		to[p->compact ? m->host_rows[first + i] : first + i] = m->host_losses[i];
	return r;
}

int model_head_losses(struct model *m, const struct model_pass *p, const char *x, double *loss_sum,
                      float *losses, struct error *err)
{
	int64_t rows = p->compact ? p->counted : p->b->tokens, chunk = logits_chunk(m, rows);
	int r;

	for (int64_t first = 0; first < rows; first += chunk) {
		int64_t n = MIN(chunk, rows - first);

		const char *at = x + (size_t)(first * m->c.hidden) * m->size;

		if (m->c.scores) {
			model_linear_f32(m, head_unit(m), head_role(m), m->losses, at, n);
		} else {
			model_linear(m, head_unit(m), head_role(m), m->logits, at, n);
			model_cross_entropy(m, m->targets + first, n, 1, NULL, false);
		}
		if (loss_sum)
			device_sum(m->dev, m->losses, n, loss_sum);
		if (!losses)
			continue;
		if (m->c.values)
			model_linear_f32(m, m->layout->base_units - 1, PARAMETER_VALUE, m->values, at, n);
		if ((r = read_rows(m, p, first, n, m->losses, losses, err)) < 0 ||
		    (m->c.values &&
		     (r = read_rows(m, p, first, n, m->values, losses + p->b->tokens, err)) < 0))
			return r;
	}
	return 0;
}

int model_evaluate(struct model *m, const struct model_batch *batch, double *loss_sum, float *losses,
                   struct error *err)
{
	struct model_pass p;
	int r;

	if (batch->tokens == 0)
		return model_forward_nothing(m, MODEL_EVALUATE, err);
	if ((r = model_begin(m, batch, &p, err)) < 0)
		return r;
	if (!batch->targets)
		return error_set(err, -EINVAL, "evaluation without targets");
	for (int64_t t = 0; t < (m->c.values ? 2 : 1) * batch->tokens && losses; t++)
		losses[t] = 0;
	if (p.all_counted == 0)
		return model_forward_nothing(m, MODEL_EVALUATE, err);
	if ((r = model_forward(m, &p, MODEL_EVALUATE, err)) < 0 ||
	    (r = model_head_losses(m, &p, model_head_input(m, &p), loss_sum,
	                           losses ? losses + m->o.sequence_rank * p.b->tokens : NULL, err)) < 0 ||
	    (losses && (r = model_share_losses(m, &p, losses, err)) < 0))
		return r;
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
	model_scale_logits(m, m->h, b.tokens);
	for (int64_t first = 0; first < b.tokens; first += m->logits_rows) {
		int64_t n = MIN(m->logits_rows, b.tokens - first);

		model_linear(m, head_unit(m), head_role(m), m->logits,
		             m->h + (size_t)(first * m->c.hidden) * m->size, n);
		if ((r = device_read(m->dev, logits + first * m->c.vocab, m->logits,
		                     (size_t)(n * m->c.vocab) * sizeof(float), err)) < 0)
			return r;
		model_cap_logits(m, logits + first * m->c.vocab, n * m->c.vocab);
	}
	model_head_done(m, MODEL_EVALUATE);
	return 0;
}
