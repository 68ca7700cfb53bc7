/* SPDX-License-Identifier: Apache-2.0 */
/* What a model reads on the device: its tables, and the batch. (model.c itself needs no device: the plan.) */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "engine/model/internal.h"

/* What queries at position t are multiplied by. */
static float query_scale(const struct model *m, int table, int64_t t)
{
	if (m->c.query_beta <= 0 || table != SCALED_TABLE)
		return 1;
	return (float)(1 + m->c.query_beta * log(1 + floor((double)t / m->c.query_span)));
}

static int write_angles(struct model *m, int table, float *values, const float *inv_freq, float length,
                        struct error *err)
{
	int half = m->c.rotary_dim / 2, r;
	size_t n = (size_t)m->o.max_sequence * (size_t)half;

	for (int pass = 0; pass < 2; pass++) {
		for (int64_t t = 0; t < m->o.max_sequence; t++)
			for (int i = 0; i < half; i++) {
				/* The angle is rounded to float first, as transformers does. */
				double angle = (float)t * inv_freq[i];

				values[t * half + i] = (float)(pass ? sin(angle) : cos(angle)) * length *
				                       query_scale(m, table, t);
			}
		if ((r = device_write(m->dev, pass ? m->sin[table] : m->cos[table], values, n * sizeof(float),
		                      err)) < 0)
			return r;
	}
	return 0;
}

int model_prepare(struct model *m, struct error *err)
{
	size_t half = (size_t)m->c.rotary_dim / 2, n = (size_t)m->o.max_sequence * half;
	_cleanup_free_ float *values = malloc((n + half) * sizeof(float) + 1);
	float *inv_freq = values + n, length;
	int r = 0;

	if (!values)
		return error_oom(err);
	for (int t = 0; t < model_tables(&m->c) && r == 0; t++) {
		model_config_rope(&m->c, m->c.query_beta > 0 ? 0 : t, m->o.max_sequence, inv_freq, &length);
		r = write_angles(m, t, values, inv_freq, length, err);
	}
	return r;
}

/* Rows with a target. Where many have none (prompts), only the others go through the head. */
static void choose_rows(struct model *m, struct model_pass *p)
{
	const struct model_batch *b = p->b;

	p->counted = 0;
	p->all_counted = 0;
	for (int64_t t = 0; t < p->whole->tokens && b->targets; t++)
		p->all_counted += p->whole->targets[t] >= 0;
	for (int64_t t = 0; t < b->tokens && b->targets; t++)
		if (b->targets[t] >= 0) {
			m->host_rows[p->counted] = (int32_t)t;
			m->host_targets[p->counted++] = b->targets[t];
		}
	/* Of a part without a target one row goes through the head, which has to write its gradients. */
	if (p->counted == 0 && p->all_counted > 0) {
		m->host_rows[0] = 0;
		m->host_targets[0] = -1;
		p->counted = 1;
	}
	/* Of scores, the factors that `weigh` sets are the gradients: a row without a target has none, and
	 * may not go through the head. */
	p->compact = p->counted < b->tokens - (m->c.scores ? 0 : b->tokens / 16);
}

/* This rank's part of the batch: its tokens from *first on. */
static void take_part(struct model *m, const struct model_batch *whole, struct model_pass *p, int64_t *first)
{
	int64_t tokens = whole->tokens / m->o.sequence_degree;

	*first = m->o.sequence_rank * tokens;
	*p = (struct model_pass){.whole = whole, .b = whole};
	m->filling = MAX(MIN(*first + tokens - (whole->tokens - whole->filling), tokens), 0);
	if (m->o.sequence_degree == 1)
		return;
	p->part = *whole;
	p->part.tokens = tokens;
	p->part.ids += *first;
	if (whole->targets)
		p->part.targets += *first;
	p->b = &p->part;
}

int model_begin(struct model *m, const struct model_batch *b, struct model_pass *p, struct error *err)
{
	int64_t degree = m->o.sequence_degree, first, tokens;
	size_t bytes;
	int r;

	take_part(m, b, p, &first);
	tokens = p->b->tokens;
	bytes = (size_t)tokens * sizeof(int32_t);
	if (b->tokens < 1 || b->tokens % degree || tokens > m->o.max_tokens || b->documents < 1 ||
	    b->documents > b->tokens || b->starts[0] != 0 || b->starts[b->documents] != b->tokens)
		return error_set(err, -EINVAL,
		                 "a batch of %lld tokens in %d documents does not fit a model made for %lld",
		                 (long long)b->tokens, b->documents, (long long)(m->o.max_tokens * degree));
	for (int d = 0; d < b->documents; d++) {
		int64_t length = (int64_t)b->starts[d + 1] - b->starts[d];

		if (length < 1 || length > m->o.max_sequence)
			return error_set(err, -EINVAL,
			                 "document %d of the batch has %lld tokens (1 to %lld are possible)",
			                 d, (long long)length, (long long)m->o.max_sequence);
		for (int64_t t = MAX(b->starts[d], first); t < MIN(b->starts[d + 1], first + tokens); t++)
			m->host_positions[t - first] = (int32_t)t - b->starts[d];
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
	if ((r = device_write(m->dev, m->ids, p->b->ids, bytes, err)) < 0 ||
	    (r = device_write(m->dev, m->positions, m->host_positions, bytes, err)) < 0 ||
	    (r = device_write(m->dev, m->starts, b->starts, ((size_t)b->documents + 1) * sizeof(int32_t),
	                      err)) < 0)
		return r;
	if (b->targets && (r = device_write(m->dev, m->targets, p->compact ? m->host_targets : p->b->targets,
	                                    p->compact ? (size_t)p->counted * 4 : bytes, err)) < 0)
		return r;
	if (p->compact && p->counted > 0 &&
	    (r = device_write(m->dev, m->rows, m->host_rows, (size_t)p->counted * 4, err)) < 0)
		return r;
	p->attention = (struct device_attention){.tokens = b->tokens,
	                                         .heads = m->c.heads / (int)degree,
	                                         .kv_heads = m->c.kv_heads / (int)degree,
	                                         .head_dim = m->c.head_dim,
	                                         .scale = model_config_attention_scale(&m->c),
	                                         .cap = (float)m->c.attention_cap,
	                                         .documents = b->documents,
	                                         .starts = m->starts,
	                                         .host_starts = b->starts,
	                                         .ld_q = m->qkv / degree,
	                                         .ld_k = m->qkv / degree,
	                                         .ld_v = m->qkv / degree,
	                                         .ld_o = m->q / degree,
	                                         .type = m->o.type,
	                                         .portable = m->o.portable_attention};
	return 0;
}
