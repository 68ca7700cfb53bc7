/* SPDX-License-Identifier: Apache-2.0 */
/* One sequence, a few tokens at a time, against the keys and values of those before. */
#include <errno.h>
#include <math.h>

#include "engine/model/internal.h"

void model_decode_reset(struct model *m)
{
	m->past = 0;
}

/* Keys and values of the new tokens go behind the old ones. */
static void append_cache(struct model *m, int layer, const char *k, const char *v, int n)
{
	size_t half = (size_t)m->kv * m->size, from = (size_t)m->qkv * m->size;
	char *to = m->cache[layer] + (size_t)m->past * 2 * half;

	for (int t = 0; t < n; t++, to += 2 * half) {
		device_copy(m->dev, to, k + (size_t)t * from, half);
		device_copy(m->dev, to + half, v + (size_t)t * from, half);
	}
}

static int decode_block(struct model *m, int layer, int n, struct error *err)
{
	struct model_activations *a = &m->layer[layer];
	const struct model_config *c = &m->c;
	int unit = layer + 1, r;
	char *qk = a->qkv, *v = a->qkv + (size_t)(m->q + m->kv) * m->size;
	struct device_attention attention = {.tokens = n,
	                                     .heads = c->heads,
	                                     .kv_heads = c->kv_heads,
	                                     .head_dim = c->head_dim,
	                                     .scale = 1.0f / sqrtf((float)c->head_dim),
	                                     .window = model_config_window(c, layer),
	                                     .ld_q = m->qkv,
	                                     .ld_k = 2 * m->kv,
	                                     .ld_v = 2 * m->kv,
	                                     .ld_o = m->q,
	                                     .type = m->o.type};

	model_linear(m, unit, PARAMETER_Q, a->qkv, m->h, n);
	if (c->qk_norm) {
		qk = m->rotated;
		model_qk_norm_rotate(m, unit, qk, a->qkv, n);
	} else {
		model_rotate(m, qk, n, false);
	}
	append_cache(m, layer, qk + (size_t)m->q * m->size, v, n);
	device_attention_cached(m->dev, &attention, m->past, a->attention, qk, m->cache[layer],
	                        m->cache[layer] + (size_t)m->kv * m->size);
	model_linear(m, unit, PARAMETER_O, a->middle, a->attention, n);
	model_add_norm(m, m->h, a->middle, a->input, weight(m, unit, PARAMETER_POST_NORM), n);
	model_linear(m, unit, PARAMETER_GATE, a->gate_up, m->h, n);
	device_swiglu_forward(m->dev, m->y, a->gate_up, n, c->intermediate, m->o.type);
	model_linear(m, unit, PARAMETER_DOWN, m->layer[layer + 1].input, m->y, n);
	model_done(m, unit, MODEL_EVALUATE);
	if ((r = model_need(m, unit + 1, MODEL_EVALUATE, err)) < 0)
		return r;
	model_add_norm(
	    m, m->h, m->layer[layer + 1].input, a->middle,
	    weight(m, unit + 1, layer == c->layers - 1 ? PARAMETER_FINAL_NORM : PARAMETER_INPUT_NORM), n);
	return 0;
}

static int next_logits(struct model *m, int n, float *logits, struct error *err)
{
	model_linear_f32(m, head_unit(m), head_role(m), m->decode_logits,
	                 m->h + (size_t)(n - 1) * (size_t)m->c.hidden * m->size, 1);
	return device_read(m->dev, logits, m->decode_logits, (size_t)m->c.vocab * sizeof(float), err);
}

int model_decode(struct model *m, const int32_t *ids, int n, float *logits, struct error *err)
{
	size_t bytes = (size_t)n * sizeof(int32_t);
	int r;

	if (n < 1 || n > m->o.max_tokens || m->past + n > MIN(m->o.cache_tokens, m->o.max_sequence))
		return error_set(err, -E2BIG, "%lld tokens are more than the %lld there is room for",
		                 (long long)(m->past + n),
		                 (long long)MIN(m->o.cache_tokens, m->o.max_sequence));
	for (int t = 0; t < n; t++) {
		if (ids[t] < 0 || ids[t] >= m->c.vocab)
			return error_set(err, -EINVAL,
			                 "token id %d is outside the model's vocabulary of %lld", ids[t],
			                 (long long)m->c.vocab);
		m->host_positions[t] = (int32_t)(m->past + t);
	}
	if ((r = device_write(m->dev, m->ids, ids, bytes, err)) < 0 ||
	    (r = device_write(m->dev, m->positions, m->host_positions, bytes, err)) < 0 ||
	    (r = model_need(m, 0, MODEL_EVALUATE, err)) < 0)
		return r;
	device_embedding_forward(m->dev, m->layer[0].input, m->ids, weight(m, 0, PARAMETER_EMBEDDING), n,
	                         m->c.hidden, m->o.type);
	if (!m->c.tied)
		model_done(m, 0, MODEL_EVALUATE);
	if ((r = model_need(m, 1, MODEL_EVALUATE, err)) < 0)
		return r;
	model_norm(m, m->h, m->layer[0].input, weight(m, 1, PARAMETER_INPUT_NORM), n);
	for (int l = 0; l < m->c.layers; l++)
		if ((r = decode_block(m, l, n, err)) < 0)
			return r;
	m->past += n;
	r = logits ? next_logits(m, n, logits, err) : device_synchronize(m->dev, err);
	model_head_done(m, MODEL_EVALUATE);
	return r;
}
