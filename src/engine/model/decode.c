/* SPDX-License-Identifier: Apache-2.0 */
/* One sequence, a few tokens at a time, against the keys and values of those before. */
#include <errno.h>

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
	char *qk, *v = a->qkv + (size_t)(m->q + m->kv) * m->size;
	struct device_attention attention = {.tokens = n,
	                                     .heads = c->heads,
	                                     .kv_heads = c->kv_heads,
	                                     .head_dim = c->head_dim,
	                                     .scale = model_config_attention_scale(c),
	                                     .window = model_config_window(c, layer),
	                                     .ld_q = m->qkv,
	                                     .ld_k = 2 * m->kv,
	                                     .ld_v = 2 * m->kv,
	                                     .ld_o = m->q,
	                                     .type = m->o.type};

	model_linear(m, unit, PARAMETER_Q, a->qkv, c->norm_place == MODEL_NORM_AFTER ? a->input : m->h, n);
	qk = model_qk(m, layer, a->qkv, n);
	append_cache(m, layer, qk + (size_t)m->q * m->size, v, n);
	device_attention_cached(m->dev, &attention, m->past, a->attention, qk, m->cache[layer],
	                        m->cache[layer] + (size_t)m->kv * m->size);
	model_block_middle(m, layer, n);
	model_block_end(m, layer, n);
	model_done(m, unit, MODEL_EVALUATE);
	if ((r = model_need(m, unit + 1, MODEL_EVALUATE, err)) < 0)
		return r;
	model_add_norm(m, unit + 1, next_norm(m, layer), m->layer[layer + 1].input, a->middle, n);
	return 0;
}

static int next_logits(struct model *m, int n, float *logits, struct error *err)
{
	char *x = m->h + (size_t)(n - 1) * (size_t)m->c.hidden * m->size;

	model_scale_logits(m, x, 1);
	model_linear_f32(m, head_unit(m), head_role(m), m->decode_logits, x, 1);
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
	model_embed(m, n);
	if (!m->c.tied)
		model_done(m, 0, MODEL_EVALUATE);
	if ((r = model_need(m, 1, MODEL_EVALUATE, err)) < 0)
		return r;
	model_branch_input(m, 1, PARAMETER_INPUT_NORM, m->layer[0].input, n);
	for (int l = 0; l < m->c.layers; l++)
		if ((r = decode_block(m, l, n, err)) < 0)
			return r;
	m->past += n;
	r = logits ? next_logits(m, n, logits, err) : device_synchronize(m->dev, err);
	model_head_done(m, MODEL_EVALUATE);
	return r;
}
