/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences, a few tokens at a time, against the keys and values of those before. */
#include <errno.h>

#include "engine/model/internal.h"

void model_decode_reset(struct model *m, int sequence)
{
	m->past[sequence] = 0;
	for (int l = 0; l < m->c.layers; l++)
		if (model_config_is_linear(&m->c, l))
			model_state_reset(m, l, sequence);
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
		if (model_config_is_linear(&m->c, l))
			model_state_copy(m, l, from, to);
		else
			device_copy(m->dev, cache_place(m, l, to, 0), cache_place(m, l, from, 0),
			            (size_t)m->past[from] * 2 * (size_t)m->kv * m->size);
	m->past[to] = m->past[from];
}

int model_decode_nothing(struct model *m, struct error *err)
{
	return model_forward_nothing(m, MODEL_EVALUATE, err);
}

/* ---- a pass ---- */

struct decoding {
	const struct model_part *parts;
	int count, n;    /* parts, and their tokens in all */
	int64_t longest; /* the highest of their positions */
};

static void decode_attention(struct model *m, const struct decoding *d, int layer, const char *qk,
                             const char *v)
{
	const struct model_config *c = &m->c;
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
	struct device_cache cache = {d->n, m->o.cache_tokens, d->longest, m->sequences, m->positions};
	char *out = m->layer[layer].attention;

	device_cache_append(m->dev, &cache, m->cache[layer], qk + (size_t)m->q * m->size, v, m->kv, m->qkv,
	                    m->o.type);
	if (m->by_rows) {
		device_attention_rows(m->dev, &attention, &cache, out, qk, m->cache[layer]);
		return;
	}
	for (int i = 0; i < d->count; i++) {
		const struct model_part *part = &d->parts[i];
		char *k = cache_place(m, layer, part->sequence, 0);

		attention.tokens = part->n;
		device_attention_cached(m->dev, &attention, m->past[part->sequence], out, qk, k,
		                        k + (size_t)m->kv * m->size);
		out += (size_t)part->n * (size_t)m->q * m->size;
		qk += (size_t)part->n * (size_t)m->qkv * m->size;
	}
}

static int decode_block(struct model *m, const struct decoding *d, int layer, struct error *err)
{
	struct model_activations *a = &m->layer[layer];
	int unit = layer + 1, n = d->n, r;

	model_project(m, layer, model_branch_place(m, unit, PARAMETER_INPUT_NORM, a->input), n);
	model_fp8_amax(m, model_layer_operand(layer, OPERAND_ATTENTION), false);
	if (model_config_is_linear(&m->c, layer))
		model_mix_carried(m, layer, n, d->count);
	else
		decode_attention(m, d, layer, model_qk(m, layer, a->qkv, n),
		                 a->qkv + (size_t)(m->q + m->kv) * m->size);
	if ((r = model_block_middle(m, layer, n, err)) < 0)
		return r;
	model_block_end(m, layer, n);
	model_done(m, unit, MODEL_EVALUATE);
	if ((r = model_need(m, unit + 1, MODEL_EVALUATE, err)) < 0)
		return r;
	model_add_norm(m, unit + 1, next_norm(m, layer), m->layer[layer + 1].input, a->middle, n);
	return 0;
}

static int next_logits(struct model *m, const struct decoding *d, struct error *err)
{
	size_t row = (size_t)m->c.hidden * m->size, out = (size_t)m->c.vocab * sizeof(float);
	char *last = m->h - row;
	int r = 0;

	for (int i = 0; i < d->count; i++) {
		last += (size_t)d->parts[i].n * row;
		if (last != m->h + (size_t)i * row)
			device_copy(m->dev, m->h + (size_t)i * row, last, row);
	}
	model_scale_logits(m, m->h, d->count);
	model_linear_f32(m, head_unit(m), head_role(m), m->decode_logits, m->h, d->count);
	for (int i = 0; i < d->count && r == 0; i++) {
		float *host = d->parts[i].logits;

		if (!host)
			continue;
		r = device_read(m->dev, host, (char *)m->decode_logits + (size_t)i * out, out, err);
		if (r == 0)
			model_cap_logits(m, host, m->c.vocab);
	}
	return r;
}

/* Checks the parts and writes their tokens' sequences and positions. */
static int begin_parts(struct model *m, struct decoding *d, const int32_t *ids, struct error *err)
{
	int64_t room = MIN(m->o.cache_tokens, m->o.max_sequence), n = 0;

	if (d->count > m->o.cache_sequences)
		return error_set(err, -EINVAL, "%d sequences are more than the %d of the cache", d->count,
		                 m->o.cache_sequences);
	for (int i = 0; i < d->count; i++) {
		const struct model_part *part = &d->parts[i];
		int64_t past;

		if (part->sequence < 0 || part->sequence >= m->o.cache_sequences || part->n < 1)
			return error_set(err, -EINVAL,
			                 "%d tokens for sequence %d: the cache has %d sequences", part->n,
			                 part->sequence, m->o.cache_sequences);
		past = m->past[part->sequence];
		if (past + part->n > room)
			return error_set(err, -E2BIG, "%lld tokens are more than the %lld there is room for",
			                 (long long)(past + part->n), (long long)room);
		if (n + part->n > m->o.max_tokens)
			return error_set(err, -E2BIG, "%lld tokens at once are more than %lld",
			                 (long long)(n + part->n), (long long)m->o.max_tokens);
		for (int t = 0; t < part->n; t++, n++) {
			if (ids[n] < 0 || ids[n] >= m->c.vocab)
				return error_set(err, -EINVAL,
				                 "token id %d is outside the model's vocabulary of %lld",
				                 ids[n], (long long)m->c.vocab);
			m->host_positions[n] = (int32_t)(past + t);
			m->host_sequences[n] = part->sequence;
		}
		d->longest = MAX(d->longest, past + part->n - 1);
		m->host_parts[i + 1] = (int32_t)n;
	}
	d->n = (int)n;
	return 0;
}

static bool wants_logits(const struct decoding *d)
{
	for (int i = 0; i < d->count; i++)
		if (d->parts[i].logits || d->parts[i].chosen)
			return true;
	return false;
}

static int decode_parts(struct model *m, const struct decoding *d, const int32_t *ids, struct error *err)
{
	size_t bytes = (size_t)d->n * sizeof(int32_t);
	int r;

	if ((r = device_write(m->dev, m->ids, ids, bytes, err)) < 0 ||
	    (r = device_write(m->dev, m->positions, m->host_positions, bytes, err)) < 0 ||
	    (r = device_write(m->dev, m->sequences, m->host_sequences, bytes, err)) < 0 ||
	    (m->c.delta_value_heads &&
	     (r = device_write(m->dev, m->starts, m->host_parts, ((size_t)d->count + 1) * sizeof(int32_t),
	                       err)) < 0) ||
	    (r = model_need(m, 0, MODEL_EVALUATE, err)) < 0)
		return r;
	model_embed(m, d->n, NULL);
	if (!m->c.tied)
		model_done(m, 0, MODEL_EVALUATE);
	if ((r = model_need(m, 1, MODEL_EVALUATE, err)) < 0)
		return r;
	model_branch_input(m, 1, PARAMETER_INPUT_NORM, m->layer[0].input, d->n);
	for (int l = 0; l < m->c.layers; l++)
		if ((r = decode_block(m, d, l, err)) < 0)
			return r;
	for (int i = 0; i < d->count; i++)
		m->past[d->parts[i].sequence] += d->parts[i].n;
	r = wants_logits(d) ? next_logits(m, d, err) : device_synchronize(m->dev, err);
	model_head_done(m, MODEL_EVALUATE);
	return r;
}

int model_decode(struct model *m, const struct model_part *parts, int count, const int32_t *ids,
                 struct error *err)
{
	struct decoding d = {.parts = parts, .count = count};
	int r = begin_parts(m, &d, ids, err);

	if (r < 0)
		return r;
	m->by_rows = d.n == count;
	r = decode_parts(m, &d, ids, err);
	m->by_rows = false;
	return r;
}

int model_decode_choose(struct model *m, const struct sampling *s, int64_t ids, int rows, bool of_first,
                        const double *uniform, int32_t *chosen, struct error *err)
{
	struct device_choice choice = sampling_choice(s, ids);
	size_t n = (size_t)rows;
	int r;

	choice.cap = (float)m->c.logits_cap;
	choice.ld = of_first ? 0 : m->c.vocab;
	if ((r = device_write(m->dev, m->uniform, uniform, n * sizeof(*uniform), err)) < 0)
		return r;
	device_choose(m->dev, &choice, m->chosen, m->decode_logits, rows, m->uniform);
	return device_read(m->dev, chosen, m->chosen, n * sizeof(*chosen), err);
}
