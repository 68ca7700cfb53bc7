/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "engine/model/internal.h"

/* A chunk of logits: large enough for a good GEMM, small enough to stay near the cache. */
static int64_t choose_logits_rows(const struct model *m)
{
	int64_t rows = ((int64_t)16 << 20) / (m->c.vocab * (int64_t)m->size) / 64 * 64;

	return MIN(MAX(rows, 256), MAX(m->o.max_tokens, 1));
}

int model_create(struct device *dev, const struct model_config *c, const struct model_layout *layout,
                 const struct model_options *options, struct model **out, struct error *err)
{
	_cleanup_(model_freep) struct model *m = calloc(1, sizeof(*m));
	size_t tokens = (size_t)options->max_tokens;

	if (!m)
		return error_oom(err);
	m->dev = dev;
	m->c = *c;
	m->layout = layout;
	m->o = *options;
	m->size = dtype_size(options->type);
	m->q = (int64_t)c->heads * c->head_dim;
	m->kv = (int64_t)c->kv_heads * c->head_dim;
	m->qkv = m->q + 2 * m->kv;
	m->wide = MAX(MAX(c->intermediate, c->hidden), m->q);
	m->logits_rows = options->logits_rows ? options->logits_rows : choose_logits_rows(m);
	m->unit = calloc((size_t)layout->units, sizeof(*m->unit));
	m->layer = calloc((size_t)c->layers + 1, sizeof(*m->layer));
	m->cache = calloc((size_t)c->layers, sizeof(*m->cache));
	m->host_positions = calloc(tokens + 1, sizeof(int32_t));
	m->host_rows = calloc(tokens + 1, sizeof(int32_t));
	m->host_targets = calloc(tokens + 1, sizeof(int32_t));
	m->host_losses = calloc((size_t)m->logits_rows, sizeof(float));
	if (!m->unit || !m->layer || !m->cache || !m->host_positions || !m->host_rows || !m->host_targets ||
	    !m->host_losses)
		return error_oom(err);
	*out = steal_pointer(m);
	return 0;
}

void model_free(struct model *m)
{
	if (!m)
		return;
	free(m->unit);
	free(m->layer);
	free(m->cache);
	free(m->host_positions);
	free(m->host_rows);
	free(m->host_targets);
	free(m->host_losses);
	free(m);
}

static void take_activations(struct model *m, struct arena *a)
{
	size_t tokens = (size_t)m->o.max_tokens, row = tokens * m->size;

	for (int l = 0; l <= m->c.layers; l++) {
		struct model_activations *act = &m->layer[l];
		bool own_input = l == 0 || m->o.training;

		act->input = own_input ? arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)m->c.hidden,
		                                    "layer %d input", l)
		                       : m->layer[0].input;
		if (l == m->c.layers)
			break;
		if (l > 0 && (!m->o.training || m->o.recompute)) {
			char *input = act->input;

			*act = m->layer[0];
			act->input = input;
			continue;
		}
		act->qkv = arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)m->qkv, "layer %d qkv", l);
		act->attention =
		    arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)m->q, "layer %d attention", l);
		act->lse =
		    arena_take(a, BUFFER_ACTIVATIONS, tokens * (size_t)m->c.heads * 4, "layer %d lse", l);
		act->middle =
		    arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)m->c.hidden, "layer %d middle", l);
		act->gate_up = arena_take(a, BUFFER_ACTIVATIONS, row * 2 * (size_t)m->c.intermediate,
		                          "layer %d gate_up", l);
	}
}

void model_take(struct model *m, struct arena *a)
{
	size_t tokens = (size_t)m->o.max_tokens, row = tokens * m->size, hidden = (size_t)m->c.hidden;
	size_t table = (size_t)m->o.max_sequence * (size_t)(m->c.head_dim / 2) * 4;

	take_activations(m, a);
	m->h = arena_take(a, BUFFER_SCRATCH, row * hidden, "norm output");
	m->y = arena_take(a, BUFFER_SCRATCH, row * (size_t)m->wide, "mlp output");
	m->rstd = arena_take(a, BUFFER_SCRATCH, tokens * (size_t)m->c.heads * 4, "norm statistics");
	if (m->c.qk_norm)
		m->rotated = arena_take(a, BUFFER_SCRATCH, row * (size_t)m->qkv, "normed q and k");
	if (m->o.training) {
		m->d_wide =
		    arena_take(a, BUFFER_SCRATCH, (tokens + 1) * m->size * (size_t)m->wide, "wide gradient");
		m->d_qkv = arena_take(a, BUFFER_SCRATCH, row * (size_t)m->qkv, "qkv gradient");
		m->dx = arena_take(a, BUFFER_SCRATCH, row * hidden, "residual gradient");
	}
	m->logits =
	    arena_take(a, BUFFER_LOGITS, (size_t)m->logits_rows * (size_t)m->c.vocab * m->size, "logits");
	m->losses = arena_take(a, BUFFER_LOGITS, (size_t)m->logits_rows * 4, "losses");
	m->ids = arena_take(a, BUFFER_INPUT, tokens * 4, "ids");
	m->targets = arena_take(a, BUFFER_INPUT, tokens * 4, "targets");
	m->positions = arena_take(a, BUFFER_INPUT, tokens * 4, "positions");
	m->starts = arena_take(a, BUFFER_INPUT, (tokens + 1) * 4, "starts");
	m->rows = arena_take(a, BUFFER_INPUT, tokens * 4, "counted rows");
	if (m->o.training)
		m->inverse = arena_take(a, BUFFER_INPUT, tokens * 4, "places of rows");
	m->cos = arena_take(a, BUFFER_INPUT, table, "rope cos");
	m->sin = arena_take(a, BUFFER_INPUT, table, "rope sin");
	for (int l = 0; l < m->c.layers && m->o.cache_tokens; l++)
		m->cache[l] =
		    arena_take(a, BUFFER_CACHE, (size_t)m->o.cache_tokens * 2 * (size_t)m->kv * m->size,
		               "layer %d kv cache", l);
	if (m->o.cache_tokens)
		m->decode_logits = arena_take(a, BUFFER_LOGITS, (size_t)m->c.vocab * 4, "next logits");
}

int model_prepare(struct model *m, struct error *err)
{
	int half = m->c.head_dim / 2, r;
	size_t n = (size_t)m->o.max_sequence * (size_t)half;
	_cleanup_free_ float *table = malloc((n + (size_t)half) * sizeof(float));
	float *inv_freq = table + n;

	if (!table)
		return error_oom(err);
	model_config_rope(&m->c, inv_freq);
	for (int pass = 0; pass < 2; pass++) {
		for (int64_t t = 0; t < m->o.max_sequence; t++)
			for (int i = 0; i < half; i++) {
				/* The angle is rounded to float first, as transformers does. */
				double angle = (float)t * inv_freq[i];

				table[t * half + i] = (float)(pass ? sin(angle) : cos(angle));
			}
		if ((r = device_write(m->dev, pass ? m->sin : m->cos, table, n * sizeof(float), err)) < 0)
			return r;
	}
	return 0;
}

void model_shapes(const struct model *m, struct device_shapes *s)
{
	*s = (struct device_shapes){.tokens = m->o.max_tokens,
	                            .max_sequence = m->o.max_sequence,
	                            .hidden = m->c.hidden,
	                            .intermediate = m->c.intermediate,
	                            .heads = m->c.heads,
	                            .kv_heads = m->c.kv_heads,
	                            .head_dim = m->c.head_dim,
	                            .vocab = m->c.vocab,
	                            .logits_rows = m->logits_rows,
	                            .type = m->o.type};
}

void model_set_unit(struct model *m, int unit, void *parameters, float *gradients)
{
	m->unit[unit].w = parameters;
	m->unit[unit].g = gradients;
}

/* Rows with a target. Where many have none (prompts), only the others go through the head. */
static void choose_rows(struct model *m, struct model_pass *p)
{
	const struct model_batch *b = p->b;

	p->counted = 0;
	for (int64_t t = 0; t < b->tokens && b->targets; t++)
		if (b->targets[t] >= 0) {
			m->host_rows[p->counted] = (int32_t)t;
			m->host_targets[p->counted++] = b->targets[t];
		}
	p->compact = p->counted < b->tokens - b->tokens / 16;
}

int model_begin(struct model *m, const struct model_batch *b, struct model_pass *p, struct error *err)
{
	size_t bytes = (size_t)b->tokens * sizeof(int32_t);
	int r;

	*p = (struct model_pass){.b = b};
	if (b->tokens < 1 || b->tokens > m->o.max_tokens || b->documents < 1 || b->documents > b->tokens ||
	    b->starts[0] != 0 || b->starts[b->documents] != b->tokens)
		return error_set(err, -EINVAL,
		                 "a batch of %lld tokens in %d documents does not fit a model made for %lld",
		                 (long long)b->tokens, b->documents, (long long)m->o.max_tokens);
	for (int d = 0; d < b->documents; d++) {
		int64_t length = (int64_t)b->starts[d + 1] - b->starts[d];

		if (length < 1 || length > m->o.max_sequence)
			return error_set(err, -EINVAL,
			                 "document %d of the batch has %lld tokens (1 to %lld are possible)",
			                 d, (long long)length, (long long)m->o.max_sequence);
		for (int32_t t = b->starts[d]; t < b->starts[d + 1]; t++)
			m->host_positions[t] = t - b->starts[d];
	}
	for (int64_t t = 0; t < b->tokens; t++)
		if (b->ids[t] < 0 || b->ids[t] >= m->c.vocab || (b->targets && b->targets[t] >= m->c.vocab))
			return error_set(err, -EINVAL,
			                 "token id %d is outside the model's vocabulary of %lld: tokenizer "
			                 "and model do not "
			                 "belong together",
			                 b->ids[t] < 0 || b->ids[t] >= m->c.vocab ? b->ids[t] : b->targets[t],
			                 (long long)m->c.vocab);
	choose_rows(m, p);
	if ((r = device_write(m->dev, m->ids, b->ids, bytes, err)) < 0 ||
	    (r = device_write(m->dev, m->positions, m->host_positions, bytes, err)) < 0 ||
	    (r = device_write(m->dev, m->starts, b->starts, ((size_t)b->documents + 1) * sizeof(int32_t),
	                      err)) < 0)
		return r;
	if (b->targets && (r = device_write(m->dev, m->targets, p->compact ? m->host_targets : b->targets,
	                                    p->compact ? (size_t)p->counted * 4 : bytes, err)) < 0)
		return r;
	if (p->compact && p->counted > 0 &&
	    (r = device_write(m->dev, m->rows, m->host_rows, (size_t)p->counted * 4, err)) < 0)
		return r;
	p->attention = (struct device_attention){.tokens = b->tokens,
	                                         .heads = m->c.heads,
	                                         .kv_heads = m->c.kv_heads,
	                                         .head_dim = m->c.head_dim,
	                                         .scale = 1.0f / sqrtf((float)m->c.head_dim),
	                                         .documents = b->documents,
	                                         .starts = m->starts,
	                                         .host_starts = b->starts,
	                                         .ld_q = m->qkv,
	                                         .ld_k = m->qkv,
	                                         .ld_v = m->qkv,
	                                         .ld_o = m->q,
	                                         .type = m->o.type};
	return 0;
}
