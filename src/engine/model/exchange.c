/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention, also of a batch that ranks share (DeepSpeed-Ulysses, Jacobs et al. 2023, section 3). Of degree
 * P, a rank has T / P tokens with all heads, and attention needs all tokens, of which it is computed for 1 /
 * P of the heads:
 *
 *     q, k, v [T/P, all heads] -> by ranks -> all_to_all -> [T, heads/P] -> attention -> o [T, heads/P]
 *     o [T, heads/P] -> all_to_all -> by ranks -> o [T/P, all heads]
 *
 * What a rank receives from the others lies in the order of the tokens, and what it sends of o, too. In the
 * backward pass q, k, v and o go the same way once more, so that nothing but a rank's own tokens is kept, and
 * the gradient of o with them; those of q, k and v come back as o does. Where a block is computed again for
 * its backward pass, they have gone already.
 */
#include "engine/model/internal.h"

/* cols: of one of q, k, v and o, of all heads; ld: of all that lie in a row of the whole. */
static struct device_groups groups_of(const struct model *m, int64_t tokens, int64_t cols, int64_t ld)
{
	return (struct device_groups){.rows = tokens,
	                              .cols = cols,
	                              .ld_whole = ld,
	                              .ld_part = ld / m->o.sequence_degree,
	                              .groups = m->o.sequence_degree,
	                              .type = m->o.type};
}

static int exchange(struct model *m, void *out, const void *in, int64_t tokens, int64_t cols,
                    struct error *err)
{
	return m->hooks.exchange(m->hooks.context, out, in, tokens * cols / m->o.sequence_degree, m->o.type,
	                         err);
}

/* From a rank's tokens to its heads: heads is as [tokens, cols]. */
static int send_heads(struct model *m, void *heads, const void *own, int64_t tokens, int64_t cols,
                      struct error *err)
{
	struct device_groups g = groups_of(m, tokens, cols, cols);

	device_part_columns(m->dev, &g, m->exchanged, own);
	return exchange(m, heads, m->exchanged, tokens, cols, err);
}

/* q and k are in qk, v in qkv. */
static int send_qkv(struct model *m, const char *qk, const char *qkv, int64_t tokens, struct error *err)
{
	struct device_groups q = groups_of(m, tokens, m->q, m->qkv), k = groups_of(m, tokens, m->kv, m->qkv);
	size_t to_k = (size_t)m->q * m->size, to_v = (size_t)(m->q + m->kv) * m->size;
	size_t degree = (size_t)m->o.sequence_degree;

	device_part_columns(m->dev, &q, m->exchanged, qk);
	device_part_columns(m->dev, &k, m->exchanged + to_k / degree, qk + to_k);
	device_part_columns(m->dev, &k, m->exchanged + to_v / degree, qkv + to_v);
	return exchange(m, m->heads_qkv, m->exchanged, tokens, m->qkv, err);
}

int model_attend(struct model *m, const struct model_pass *p, int layer, const char *qk, struct error *err)
{
	struct model_activations *a = &m->layer[layer];
	bool shared = m->o.sequence_degree > 1;
	size_t degree = (size_t)m->o.sequence_degree, k = (size_t)m->q * m->size / degree,
	       v = (size_t)(m->q + m->kv) * m->size / degree;
	struct device_attention attention = p->attention;
	struct device_groups o = groups_of(m, p->b->tokens, m->q, m->q);
	int r;

	attention.window = model_config_window(&m->c, layer);
	attention.amax = model_fp8_amax(m, model_layer_operand(layer, OPERAND_ATTENTION), !shared);
	if (!shared) {
		device_attention_forward(m->dev, &attention, a->attention, a->lse, qk, qk + k, a->qkv + v);
		return 0;
	}
	if ((r = send_qkv(m, qk, a->qkv, p->b->tokens, err)) < 0)
		return r;
	m->heads_of = layer;
	device_attention_forward(m->dev, &attention, m->heads_o, a->lse, m->heads_qkv, m->heads_qkv + k,
	                         m->heads_qkv + v);
	if ((r = exchange(m, m->exchanged, m->heads_o, p->b->tokens, m->q, err)) < 0)
		return r;
	device_join_columns(m->dev, &o, a->attention, m->exchanged);
	return 0;
}

static void join_qkv(struct model *m, char *qkv, int64_t tokens)
{
	struct device_groups q = groups_of(m, tokens, m->q, m->qkv), k = groups_of(m, tokens, m->kv, m->qkv);
	size_t to_k = (size_t)m->q * m->size, to_v = (size_t)(m->q + m->kv) * m->size;
	size_t degree = (size_t)m->o.sequence_degree;

	device_join_columns(m->dev, &q, qkv, m->exchanged);
	device_join_columns(m->dev, &k, qkv + to_k, m->exchanged + to_k / degree);
	device_join_columns(m->dev, &k, qkv + to_v, m->exchanged + to_v / degree);
}

int model_attend_backward(struct model *m, const struct model_pass *p, int layer, const char *qk,
                          struct error *err)
{
	struct model_activations *a = &m->layer[layer];
	size_t degree = (size_t)m->o.sequence_degree, k = (size_t)m->q * m->size / degree,
	       v = (size_t)(m->q + m->kv) * m->size / degree;
	struct device_attention attention = p->attention;
	int64_t tokens = p->b->tokens;
	int r;

	attention.window = model_config_window(&m->c, layer);
	if (degree == 1) {
		model_rotation(m, layer, &attention);
		device_attention_backward(m->dev, &attention, m->d_qkv, m->d_qkv + k, m->d_qkv + v, m->d_wide,
		                          a->attention, a->lse, qk, qk + k, a->qkv + v);
		return 0;
	}
	/* Those of the last block, and of one that has just been computed again, are there. */
	if (m->heads_of != layer && ((r = send_qkv(m, qk, a->qkv, tokens, err)) < 0 ||
	                             (r = send_heads(m, m->heads_o, a->attention, tokens, m->q, err)) < 0))
		return r;
	m->heads_of = layer;
	if ((r = send_heads(m, m->heads_d_o, m->d_wide, tokens, m->q, err)) < 0)
		return r;
	device_attention_backward(m->dev, &attention, m->heads_d_qkv, m->heads_d_qkv + k, m->heads_d_qkv + v,
	                          m->heads_d_o, m->heads_o, a->lse, m->heads_qkv, m->heads_qkv + k,
	                          m->heads_qkv + v);
	if ((r = exchange(m, m->exchanged, m->heads_d_qkv, tokens, m->qkv, err)) < 0)
		return r;
	join_qkv(m, m->d_qkv, tokens);
	return 0;
}

int model_share(struct model *m, const float *own, int64_t n, float *all, struct error *err)
{
	int degree = m->o.sequence_degree, r;
	size_t bytes = (size_t)n * sizeof(*own);

	if (degree == 1)
		return 0;
	m->heads_of = -1; /* the numbers come where they were */
	for (int i = 0; i < degree; i++)
		if ((r = device_write(m->dev, m->exchanged + (size_t)i * bytes, own, bytes, err)) < 0)
			return r;
	if ((r = m->hooks.exchange(m->hooks.context, m->heads_qkv, m->exchanged, n, DTYPE_F32, err)) < 0)
		return r;
	return device_read(m->dev, all, m->heads_qkv, (size_t)degree * bytes, err);
}

int model_share_losses(struct model *m, const struct model_pass *p, float *losses, struct error *err)
{
	return model_share(m, losses + m->o.sequence_rank * p->b->tokens, p->b->tokens, losses, err);
}
