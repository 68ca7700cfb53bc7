/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a block that are not products with weights: norms, residual connections, rotation, activation.
 * The families differ here. */
#include <math.h>

#include "engine/model/internal.h"

static struct device_norm norm_of(const struct model *m, int64_t tokens)
{
	return (struct device_norm){.rows = tokens,
	                            .groups = 1,
	                            .cols = m->c.hidden,
	                            .ld_x = m->c.hidden,
	                            .ld_y = m->c.hidden,
	                            .eps = m->c.norm_eps,
	                            .w_offset = m->c.norm_plus_one,
	                            .type = m->o.type};
}

static enum parameter_role bias_of(enum parameter_role norm)
{
	return norm == PARAMETER_INPUT_NORM  ? PARAMETER_INPUT_NORM_BIAS
	       : norm == PARAMETER_POST_NORM ? PARAMETER_POST_NORM_BIAS
	                                     : PARAMETER_FINAL_NORM_BIAS;
}

/* What the block keeps of a norm; both are NULL where it keeps nothing, or the norm is the final one. */
static struct model_normed kept_norm(const struct model *m, int unit, enum parameter_role role)
{
	static const enum parameter_role roles[BLOCK_NORMS] = {[NORM_INPUT] = PARAMETER_INPUT_NORM,
	                                                       [NORM_POST] = PARAMETER_POST_NORM,
	                                                       [NORM_ATTENTION_OUT] =
	                                                           PARAMETER_ATTENTION_OUT_NORM,
	                                                       [NORM_MLP_OUT] = PARAMETER_MLP_OUT_NORM};

	for (int i = 0; i < BLOCK_NORMS; i++)
		if (roles[i] == role)
			return m->layer[unit - 1].norm[i];
	return (struct model_normed){NULL, NULL};
}

struct model_normed model_normed(const struct model *m, int unit, enum parameter_role role)
{
	struct model_normed kept = kept_norm(m, unit, role);

	return (struct model_normed){kept.y ? kept.y : m->h, kept.statistics ? kept.statistics : m->rstd};
}

/* Of a norm's output, where it is the input of products in fp8; LayerNorm does not find it. */
static float *norm_amax(struct model *m, int unit, enum parameter_role role)
{
	int operand = OPERAND_NORM;

	if (kept_norm(m, unit, role).y)
		operand = model_layer_operand(unit - 1, role == PARAMETER_INPUT_NORM ? OPERAND_KEPT_INPUT
		                                                                     : OPERAND_KEPT_POST);
	return model_fp8_amax(m, operand, model_is_fp8(m, unit) && !m->c.layer_norm);
}

void model_norm(struct model *m, int unit, enum parameter_role role, void *y, const void *x, int64_t tokens)
{
	struct model_normed at = model_normed(m, unit, role);
	struct device_norm n = norm_of(m, tokens);

	if (y == at.y)
		n.amax = norm_amax(m, unit, role);
	if (m->c.layer_norm)
		device_layernorm_forward(m->dev, &n, y, at.statistics, x, weight(m, unit, role),
		                         weight(m, unit, bias_of(role)));
	else
		device_rmsnorm_forward(m->dev, &n, y, at.statistics, x, weight(m, unit, role));
}

void model_norm_gradient(struct model *m, int unit, enum parameter_role role, void *dx, bool accumulate,
                         const void *dy, const void *x, int64_t tokens)
{
	const float *statistics = model_normed(m, unit, role).statistics;
	struct device_norm n = norm_of(m, tokens);
	float *dw = gradient(m, unit, role);

	if (dx == m->dx)
		n.amax = model_fp8_amax(m, OPERAND_STREAM_GRADIENT, !m->c.layer_norm);
	if (m->c.layer_norm)
		device_layernorm_backward(m->dev, &n, dx, accumulate, dw ? dw : m->unused,
		                          dw ? gradient(m, unit, bias_of(role)) : m->unused, dy, x,
		                          statistics, weight(m, unit, role));
	else
		device_rmsnorm_backward(m->dev, &n, dx, accumulate, dw ? dw : m->unused, DTYPE_F32, dy, x,
		                        statistics, weight(m, unit, role));
}

void model_add_norm(struct model *m, int unit, enum parameter_role role, void *sum, const void *x,
                    int64_t tokens)
{
	struct model_normed at = model_normed(m, unit, role);
	struct device_norm n = norm_of(m, tokens);

	if (weight(m, unit, role) && !m->c.layer_norm) {
		n.amax = norm_amax(m, unit, role);
		device_add_rmsnorm_forward(m->dev, &n, at.y, at.statistics, sum, x, weight(m, unit, role));
		return;
	}
	device_add(m->dev, sum, x, m->o.type, tokens * m->c.hidden);
	if (weight(m, unit, role))
		model_norm(m, unit, role, at.y, sum, tokens);
}

void model_branch_end(struct model *m, int unit, enum parameter_role role, char *sum, const char *out,
                      int64_t tokens)
{
	if (out != sum)
		model_norm(m, unit, role, sum, out, tokens);
	if (m->c.residual_scale != 1)
		device_scale(m->dev, sum, m->o.type, (float)m->c.residual_scale, tokens * m->c.hidden);
}

const char *model_branch_gradient(struct model *m, int unit, enum parameter_role role, const char *out,
                                  int64_t tokens)
{
	if (!m->d_branch)
		return m->dx;
	device_copy(m->dev, m->d_branch, m->dx, (size_t)(tokens * m->c.hidden) * m->size);
	if (m->c.residual_scale != 1)
		device_scale(m->dev, m->d_branch, m->o.type, (float)m->c.residual_scale,
		             tokens * m->c.hidden);
	if (out) {
		if (!kept_norm(m, unit, role).statistics)
			model_norm(m, unit, role, m->h, out, tokens); /* for its statistics */
		model_norm_gradient(m, unit, role, m->d_branch, false, m->d_branch, out, tokens);
	}
	return m->d_branch;
}

const char *model_branch_place(const struct model *m, int unit, enum parameter_role role, const char *x)
{
	return weight(m, unit, role) ? model_normed(m, unit, role).y : x;
}

const char *model_branch_input(struct model *m, int unit, enum parameter_role role, const char *x,
                               int64_t tokens)
{
	if (weight(m, unit, role))
		model_norm(m, unit, role, model_normed(m, unit, role).y, x, tokens);
	return model_branch_place(m, unit, role, x);
}

const char *model_branch_input_again(struct model *m, int unit, enum parameter_role role, const char *x,
                                     int64_t tokens)
{
	/* Where the statistics alone are kept, nothing but they is read. */
	return kept_norm(m, unit, role).statistics ? model_branch_place(m, unit, role, x)
	                                           : model_branch_input(m, unit, role, x, tokens);
}

void model_branch_input_gradient(struct model *m, int unit, enum parameter_role role, const char *dy,
                                 const char *x, int64_t tokens)
{
	if (weight(m, unit, role)) {
		model_norm_gradient(m, unit, role, m->dx, true, dy, x, tokens);
		return;
	}
	device_add(m->dev, m->dx, dy, m->o.type, tokens * m->c.hidden);
	model_fp8_amax(m, OPERAND_STREAM_GRADIENT, false);
}

/* ---- q and k ---- */
static void turn(struct model *m, const struct device_rope *r, char *x, bool inverse)
{
	if (inverse)
		device_rope_inverse(m->dev, r, x);
	else
		device_rope(m->dev, r, x);
}

static void rotate(struct model *m, int layer, char *x, int64_t tokens, bool inverse)
{
	int table = model_config_rotary_table(&m->c, layer);
	/* q and k heads lie behind each other. */
	struct device_rope r = {.tokens = tokens,
	                        .ld = m->qkv,
	                        .heads = m->c.heads + m->c.kv_heads,
	                        .head_dim = m->c.head_dim,
	                        .rotary_dim = m->c.rotary_dim,
	                        .interleaved = m->c.interleaved,
	                        .positions = m->positions,
	                        .type = m->o.type};

	if (table < 0)
		return;
	r.cos = m->cos[table];
	r.sin = m->sin[table];
	if (m->c.query_beta > 0) {
		/* Queries have a table of their own, whose angles' sines and cosines are multiplied. */
		r.heads = m->c.kv_heads;
		turn(m, &r, x + (size_t)m->q * m->size, inverse);
		r.heads = m->c.heads;
		r.cos = m->cos[SCALED_TABLE];
		r.sin = m->sin[SCALED_TABLE];
	}
	turn(m, &r, x, inverse);
}

/* Whether attention's backward pass cannot undo the rotation. */
static bool rotates_apart(const struct model *m)
{
	return m->c.interleaved || m->c.query_beta > 0;
}

void model_rotation(const struct model *m, int layer, struct device_attention *a)
{
	int table = model_config_rotary_table(&m->c, layer);

	if (table < 0 || m->c.qk_norm != MODEL_QK_NORM_NONE || rotates_apart(m))
		return;
	a->rotary_dim = m->c.rotary_dim;
	a->positions = m->positions;
	a->cos = m->cos[table];
	a->sin = m->sin[table];
}

/* The norm of q (0) or k (1): of each head, or of all of them. */
static struct device_norm qk_norm_of(const struct model *m, int which, int64_t tokens)
{
	bool heads = m->c.qk_norm == MODEL_QK_NORM_HEADS;
	int n = which ? m->c.kv_heads : m->c.heads;

	return (struct device_norm){.rows = tokens,
	                            .groups = heads ? n : 1,
	                            .cols = heads ? m->c.head_dim : n * m->c.head_dim,
	                            .ld_x = m->qkv,
	                            .ld_y = m->qkv,
	                            .eps = m->c.norm_eps,
	                            .w_offset = m->c.norm_plus_one,
	                            .type = m->o.type};
}

static const enum parameter_role qk_role[2] = {PARAMETER_Q_NORM, PARAMETER_K_NORM};

/* Whether the norm is of heads that are rotated whole behind it. */
static bool norms_rotated_heads(const struct model *m, int table)
{
	return m->c.qk_norm == MODEL_QK_NORM_HEADS && table >= 0 && m->c.rotary_dim == m->c.head_dim &&
	       !rotates_apart(m);
}

static struct device_qk_norm rotated_heads(const struct model *m, int table, int64_t tokens)
{
	return (struct device_qk_norm){.tokens = tokens,
	                               .heads = m->c.heads,
	                               .kv_heads = m->c.kv_heads,
	                               .head_dim = m->c.head_dim,
	                               .ld = m->qkv,
	                               .eps = m->c.norm_eps,
	                               .w_offset = m->c.norm_plus_one,
	                               .positions = m->positions,
	                               .cos = m->cos[table],
	                               .sin = m->sin[table],
	                               .type = m->o.type};
}

static void norm_and_rotate_heads(struct model *m, int unit, int table, char *y, const char *x,
                                  int64_t tokens)
{
	struct device_qk_norm n = rotated_heads(m, table, tokens);

	device_qk_norm_rope(m->dev, &n, y, m->rstd, x, weight(m, unit, PARAMETER_Q_NORM),
	                    weight(m, unit, PARAMETER_K_NORM));
}

char *model_qk(struct model *m, int layer, char *qkv, int64_t tokens)
{
	int unit = layer + 1, table = model_config_rotary_table(&m->c, layer);
	float *rstd = m->rstd;
	size_t at = 0;

	if (m->c.qk_norm == MODEL_QK_NORM_NONE) {
		rotate(m, layer, qkv, tokens, false);
		return qkv;
	}
	if (norms_rotated_heads(m, table)) {
		norm_and_rotate_heads(m, unit, table, m->rotated, qkv, tokens);
		return m->rotated;
	}
	for (int i = 0; i < 2; i++) {
		struct device_norm n = qk_norm_of(m, i, tokens);

		device_rmsnorm_forward(m->dev, &n, m->rotated + at, rstd, qkv + at,
		                       weight(m, unit, qk_role[i]));
		rstd += tokens * n.groups;
		at += (size_t)m->q * m->size;
	}
	rotate(m, layer, m->rotated, tokens, false);
	return m->rotated;
}

static void rotated_heads_gradient(struct model *m, int unit, int table, const char *qkv, int64_t tokens)
{
	struct device_qk_norm n = rotated_heads(m, table, tokens);
	float *dq = gradient(m, unit, PARAMETER_Q_NORM), *dk = gradient(m, unit, PARAMETER_K_NORM);

	device_qk_norm_rope_backward(m->dev, &n, m->d_qkv, dq ? dq : m->unused, dk ? dk : m->unused,
	                             DTYPE_F32, qkv, m->rstd, weight(m, unit, PARAMETER_Q_NORM),
	                             weight(m, unit, PARAMETER_K_NORM));
}

void model_qk_gradient(struct model *m, int layer, const char *qkv, int64_t tokens)
{
	int table = model_config_rotary_table(&m->c, layer);
	const float *rstd = m->rstd;
	size_t at = 0;

	if (m->c.qk_norm == MODEL_QK_NORM_NONE) {
		if (m->o.sequence_degree > 1 || rotates_apart(m)) /* else attention has turned them back */
			rotate(m, layer, m->d_qkv, tokens, true);
		return;
	}
	if (norms_rotated_heads(m, table)) {
		rotated_heads_gradient(m, layer + 1, table, qkv, tokens);
		return;
	}
	rotate(m, layer, m->d_qkv, tokens, true);
	for (int i = 0; i < 2; i++) {
		struct device_norm n = qk_norm_of(m, i, tokens);
		float *dw = gradient(m, layer + 1, qk_role[i]);

		device_rmsnorm_backward(m->dev, &n, m->d_qkv + at, false, dw ? dw : m->unused, DTYPE_F32,
		                        m->d_qkv + at, qkv + at, rstd, weight(m, layer + 1, qk_role[i]));
		rstd += tokens * n.groups;
		at += (size_t)m->q * m->size;
	}
}

/* ---- the activation between the products of the MLP ---- */
const char *model_activate(struct model *m, int layer, int64_t tokens)
{
	const struct model_activations *a = &m->layer[layer];
	int operand = a->active ? model_layer_operand(layer, OPERAND_KEPT_ACTIVATION) : OPERAND_ACTIVATION;
	float *amax = model_fp8_amax(m, operand, m->c.activation == MODEL_SILU);
	char *y = a->active ? a->active : m->y;

	if (m->c.activation == MODEL_SILU)
		device_swiglu_forward(m->dev, y, a->gate_up, tokens, m->c.intermediate, m->o.type, amax);
	else
		device_gelu_forward(m->dev, y, a->gate_up, tokens, m->c.intermediate, m->c.gated, m->o.type);
	return y;
}

const char *model_activation_gradient(struct model *m, int layer, int64_t tokens)
{
	const struct model_activations *a = &m->layer[layer];
	char *y = !a->active && model_layout_reads_input(m->layout, layer + 1, PARAMETER_DOWN) ? m->y : NULL;
	float *amax = model_fp8_amax(m, OPERAND_ACTIVATION, m->c.activation == MODEL_SILU);

	model_fp8_amax(m, OPERAND_GATE_GRADIENT, m->c.activation == MODEL_SILU);
	if (m->c.activation == MODEL_SILU)
		device_swiglu_backward(m->dev, a->gate_up, y, m->d_wide, a->gate_up, tokens,
		                       m->c.intermediate, m->o.type, amax);
	else
		device_gelu_backward(m->dev, a->gate_up, y, m->d_wide, a->gate_up, tokens, m->c.intermediate,
		                     m->c.gated, m->o.type);
	return a->active ? a->active : y;
}

/* ---- the embedding, in front of the blocks ---- */
/* The factor of the embeddings, rounded as a table of the type would be. */
static float embedding_scale(const struct model *m)
{
	float scale = (float)m->c.embedding_scale;

	return m->o.type == DTYPE_BF16  ? bf16_to_float(bf16_from_float(scale))
	       : m->o.type == DTYPE_F16 ? f16_to_float(f16_from_float(scale))
	                                : scale;
}

/* b: this rank's part of a batch, whose rows are those of the whole. */
static void add_noise(struct model *m, const struct model_batch *b)
{
	const int32_t *ends = b->row_ends ? b->row_ends : b->starts + 1;
	int rows = b->row_ends ? b->rows : b->documents;
	int64_t from = 0, part = m->o.sequence_rank * b->tokens;

	for (int r = 0; r < rows; from = ends[r++]) {
		int64_t first = MAX(from, part), last = MIN(ends[r], part + b->tokens);
		double n = (double)(ends[r] - from) * m->c.hidden;
		struct device_noise noise = {.magnitude = (float)(m->o.neftune_alpha / sqrt(n)),
		                             .seed = m->o.seed,
		                             .number = b->number,
		                             .first = first * m->c.hidden};

		if (first < last)
			device_add_noise(m->dev, &noise,
			                 m->layer[0].input + (size_t)((first - part) * m->c.hidden) * m->size,
			                 m->o.type, (last - first) * m->c.hidden);
	}
}

void model_embed(struct model *m, int64_t tokens, const struct model_batch *noisy)
{
	device_embedding_forward(m->dev, m->layer[0].input, m->ids, weight(m, 0, PARAMETER_EMBEDDING), tokens,
	                         m->c.hidden, m->o.type);
	if (noisy && m->c.noise_scaled)
		add_noise(m, noisy);
	if (m->c.embedding_scale != 1)
		device_scale(m->dev, m->layer[0].input, m->o.type, embedding_scale(m), tokens * m->c.hidden);
	if (noisy && !m->c.noise_scaled)
		add_noise(m, noisy);
	if (!m->c.learned_positions)
		return;
	device_embedding_forward(m->dev, m->h, m->positions, weight(m, 0, PARAMETER_POSITIONS), tokens,
	                         m->c.hidden, m->o.type);
	device_add(m->dev, m->layer[0].input, m->h, m->o.type, tokens * m->c.hidden);
}

static void positions_gradient(struct model *m, float *table, int64_t tokens, bool first)
{
	if (first)
		device_zero(m->dev, table, (size_t)(m->c.max_positions * m->c.hidden) * sizeof(float));
	device_embedding_backward(m->dev, table, DTYPE_F32, m->dx, m->positions, m->host_positions, tokens,
	                          m->c.max_positions, m->c.hidden, m->o.type);
}

void model_embedding_gradient(struct model *m, const int32_t *host_ids, int64_t tokens, bool first)
{
	float *table = gradient(m, 0, PARAMETER_EMBEDDING), *positions = gradient(m, 0, PARAMETER_POSITIONS);

	if (positions)
		positions_gradient(m, positions, tokens, first);
	if (!table)
		return;
	if (m->c.embedding_scale != 1)
		device_scale(m->dev, m->dx, m->o.type, embedding_scale(m), tokens * m->c.hidden);
	if (model_embedding_rows(m))
		return;
	/* Tied, the head has written the whole table already. */
	if (first && !m->c.tied)
		device_zero(m->dev, table, (size_t)(m->c.vocab * m->c.hidden) * sizeof(float));
	device_embedding_backward(m->dev, table, DTYPE_F32, m->dx, m->ids, host_ids, tokens, m->c.vocab,
	                          m->c.hidden, m->o.type);
}
