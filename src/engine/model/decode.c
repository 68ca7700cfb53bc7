/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences, a few tokens at a time, against the keys and values of those before. */
#include <errno.h>

#include "engine/model/internal.h"

void model_decode_reset(struct model *m, int sequence)
{
	m->past[sequence] = 0;
}

/* The place of token `at` of a sequence in a layer's cache. */
static char *cache_place(const struct model *m, int layer, int sequence, int64_t at)
{
	return m->cache[layer] +
	       (size_t)((int64_t)sequence * m->o.cache_tokens + at) * 2 * (size_t)m->kv * m->size;
}

void model_decode_copy(struct model *m, int from, int to)
{
	for (int l = 0; l < m->c.layers; l++)
		device_copy(m->dev, cache_place(m, l, to, 0), cache_place(m, l, from, 0),
		            (size_t)m->past[from] * 2 * (size_t)m->kv * m->size);
	m->past[to] = m->past[from];
}

int model_decode_nothing(struct model *m, struct error *err)
{
	return model_forward_nothing(m, MODEL_EVALUATE, err);
}

/* Keys and values of the new tokens go behind the old ones. */
static void append_cache(struct model *m, int layer, const struct model_part *part, const char *k,
                         const char *v)
{
	size_t half = (size_t)m->kv * m->size, from = (size_t)m->qkv * m->size;
	char *to = cache_place(m, layer, part->sequence, m->past[part->sequence]);

	for (int t = 0; t < part->n; t++, to += 2 * half) {
		device_copy(m->dev, to, k + (size_t)t * from, half);
		device_copy(m->dev, to + half, v + (size_t)t * from, half);
	}
}

static int decode_block(struct model *m, const struct model_part *parts, int count, int layer, int n,
                        struct error *err)
{
	struct model_activations *a = &m->layer[layer];
	const struct model_config *c = &m->c;
	int unit = layer + 1, r;
	char *qk, *v = a->qkv + (size_t)(m->q + m->kv) * m->size;
	struct device_attention attention = {.heads = c->heads,
	                                     .kv_heads = c->kv_heads,
	                                     .head_dim = c->head_dim,
	                                     .scale = model_config_attention_scale(c),
	                                     .cap = (float)c->attention_cap,
	                                     .window = model_config_window(c, layer),
	                                     .ld_q = m->qkv,
	                                     .ld_k = 2 * m->kv,
	                                     .ld_v = 2 * m->kv,
	                                     .ld_o = m->q,
	                                     .type = m->o.type};

	model_linear(m, unit, PARAMETER_Q, a->qkv,
	             model_branch_place(m, unit, PARAMETER_INPUT_NORM, a->input), n);
	qk = model_qk(m, layer, a->qkv, n);
	model_fp8_amax(m, model_layer_operand(layer, OPERAND_ATTENTION), false);
	for (int i = 0, row = 0; i < count; row += parts[i++].n) {
		size_t in = (size_t)row * (size_t)m->qkv * m->size,
		       out = (size_t)row * (size_t)m->q * m->size;
		char *cache = cache_place(m, layer, parts[i].sequence, 0);

		append_cache(m, layer, &parts[i], qk + in + (size_t)m->q * m->size, v + in);
		attention.tokens = parts[i].n;
		device_attention_cached(m->dev, &attention, m->past[parts[i].sequence], a->attention + out,
		                        qk + in, cache, cache + (size_t)m->kv * m->size);
	}
	if ((r = model_block_middle(m, layer, n, err)) < 0)
		return r;
	model_block_end(m, layer, n);
	model_done(m, unit, MODEL_EVALUATE);
	if ((r = model_need(m, unit + 1, MODEL_EVALUATE, err)) < 0)
		return r;
	model_add_norm(m, unit + 1, next_norm(m, layer), m->layer[layer + 1].input, a->middle, n);
	return 0;
}

static int next_logits(struct model *m, const struct model_part *parts, int count, struct error *err)
{
	size_t row = (size_t)m->c.hidden * m->size, out = (size_t)m->c.vocab * sizeof(float);
	char *last = m->h - row;
	int r = 0;

	for (int i = 0; i < count; i++) {
		last += (size_t)parts[i].n * row;
		if (last != m->h + (size_t)i * row)
			device_copy(m->dev, m->h + (size_t)i * row, last, row);
	}
	model_scale_logits(m, m->h, count);
	model_linear_f32(m, head_unit(m), head_role(m), m->decode_logits, m->h, count);
	for (int i = 0; i < count && r == 0; i++) {
		if (!parts[i].logits)
			continue;
		r = device_read(m->dev, parts[i].logits, (char *)m->decode_logits + (size_t)i * out, out,
		                err);
		if (r == 0)
			model_cap_logits(m, parts[i].logits, m->c.vocab);
	}
	return r;
}

/* Checks the parts and writes their tokens' positions; the number of tokens. */
static int begin_parts(struct model *m, const struct model_part *parts, int count, const int32_t *ids,
                       struct error *err)
{
	int64_t room = MIN(m->o.cache_tokens, m->o.max_sequence), n = 0;

	if (count > m->o.cache_sequences)
		return error_set(err, -EINVAL, "%d sequences are more than the %d of the cache", count,
		                 m->o.cache_sequences);
	for (int i = 0; i < count; i++) {
		int64_t past;

		if (parts[i].sequence < 0 || parts[i].sequence >= m->o.cache_sequences || parts[i].n < 1)
			return error_set(err, -EINVAL,
			                 "%d tokens for sequence %d: the cache has %d sequences", parts[i].n,
			                 parts[i].sequence, m->o.cache_sequences);
		past = m->past[parts[i].sequence];
		if (past + parts[i].n > room)
			return error_set(err, -E2BIG, "%lld tokens are more than the %lld there is room for",
			                 (long long)(past + parts[i].n), (long long)room);
		if (n + parts[i].n > m->o.max_tokens)
			return error_set(err, -E2BIG, "%lld tokens at once are more than %lld",
			                 (long long)(n + parts[i].n), (long long)m->o.max_tokens);
		for (int t = 0; t < parts[i].n; t++, n++) {
			if (ids[n] < 0 || ids[n] >= m->c.vocab)
				return error_set(err, -EINVAL,
				                 "token id %d is outside the model's vocabulary of %lld",
				                 ids[n], (long long)m->c.vocab);
			m->host_positions[n] = (int32_t)(past + t);
		}
	}
	return (int)n;
}

static bool wants_logits(const struct model_part *parts, int count)
{
	for (int i = 0; i < count; i++)
		if (parts[i].logits)
			return true;
	return false;
}

/* `n` tokens in all. */
static int decode_parts(struct model *m, const struct model_part *parts, int count, const int32_t *ids, int n,
                        struct error *err)
{
	size_t bytes = (size_t)n * sizeof(int32_t);
	int r;

	if ((r = device_write(m->dev, m->ids, ids, bytes, err)) < 0 ||
	    (r = device_write(m->dev, m->positions, m->host_positions, bytes, err)) < 0 ||
	    (r = model_need(m, 0, MODEL_EVALUATE, err)) < 0)
		return r;
	model_embed(m, n, NULL);
	if (!m->c.tied)
		model_done(m, 0, MODEL_EVALUATE);
	if ((r = model_need(m, 1, MODEL_EVALUATE, err)) < 0)
		return r;
	model_branch_input(m, 1, PARAMETER_INPUT_NORM, m->layer[0].input, n);
	for (int l = 0; l < m->c.layers; l++)
		if ((r = decode_block(m, parts, count, l, n, err)) < 0)
			return r;
	for (int i = 0; i < count; i++)
		m->past[parts[i].sequence] += parts[i].n;
	r = wants_logits(parts, count) ? next_logits(m, parts, count, err) : device_synchronize(m->dev, err);
	model_head_done(m, MODEL_EVALUATE);
	return r;
}

int model_decode(struct model *m, const struct model_part *parts, int count, const int32_t *ids,
                 struct error *err)
{
	int n = begin_parts(m, parts, count, ids, err), r;

	if (n < 0)
		return n;
	m->by_rows = n == count;
	r = decode_parts(m, parts, count, ids, n, err);
	m->by_rows = false;
	return r;
}
