/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands in a block between its two products of attention: attention itself, with a gate behind it or
 * without, or linear attention by the gated delta rule (device/delta.h), whose parts are
 *
 *     [q k v | z | b | a] = x Wᵀ;  q k v = silu(conv(q k v));  o = rule(q, k, v, b, a);  y = norm(o) ·
 * silu(z)
 *
 * before the second product. In the backward pass everything but the first product and o is computed again.
 */
#include "engine/model/internal.h"

/* ---- the gate of attention ---- */
/* Between a row of q_proj's output, in which each head of q has its gate behind it, k and v, and rows of q, k
 * and v with the gates apart. */
static struct device_group_copy heads_of(const struct model *m, int64_t tokens)
{
	return (struct device_group_copy){.rows = tokens,
	                                  .groups = m->c.heads,
	                                  .cols = m->c.head_dim,
	                                  .ld_x = m->qkv + m->q,
	                                  .step_x = 2 * m->c.head_dim,
	                                  .ld_y = m->qkv,
	                                  .step_y = m->c.head_dim,
	                                  .type = m->o.type};
}

static struct device_group_copy turned(struct device_group_copy c)
{
	return (struct device_group_copy){c.rows,   c.groups, c.cols,   c.ld_y,
	                                  c.step_y, c.ld_x,   c.step_x, c.type};
}

static struct device_group_copy keys_of(const struct model *m, int64_t tokens)
{
	return (struct device_group_copy){.rows = tokens,
	                                  .groups = 1,
	                                  .cols = (int)(2 * m->kv),
	                                  .ld_x = m->qkv + m->q,
	                                  .ld_y = m->qkv,
	                                  .type = m->o.type};
}

static void part_gates(struct model *m, char *qkv, char *gate, int64_t tokens)
{
	struct device_group_copy q = heads_of(m, tokens), k = keys_of(m, tokens), of_gate = q;
	size_t head = (size_t)m->c.head_dim * m->size, to_k = (size_t)m->q * m->size;

	of_gate.ld_y = m->q;
	device_copy_groups(m->dev, &q, qkv, m->projected);
	device_copy_groups(m->dev, &of_gate, gate, m->projected + head);
	device_copy_groups(m->dev, &k, qkv + to_k, m->projected + 2 * to_k);
}

/* The same back, from m->d_qkv and m->d_gate. */
static void join_gates(struct model *m, int64_t tokens)
{
	struct device_group_copy q = heads_of(m, tokens), of_gate = q, k = keys_of(m, tokens);
	size_t head = (size_t)m->c.head_dim * m->size, to_k = (size_t)m->q * m->size;

	of_gate.ld_y = m->q;
	q = turned(q);
	of_gate = turned(of_gate);
	k = turned(k);
	device_copy_groups(m->dev, &q, m->projected, m->d_qkv);
	device_copy_groups(m->dev, &of_gate, m->projected + head, m->d_gate);
	device_copy_groups(m->dev, &k, m->projected + 2 * to_k, m->d_qkv + to_k);
}

static struct device_gating gating(const struct model *m, int64_t tokens)
{
	return (struct device_gating){.rows = tokens,
	                              .cols = (int)m->q,
	                              .ld_x = m->q,
	                              .ld_gate = m->q,
	                              .ld_y = m->q,
	                              .type = m->o.type};
}

/* ---- linear attention ---- */
/* Bytes from the beginning of a row of the first product to its parts. */
static size_t at_z(const struct model *m)
{
	return (size_t)m->channels * m->size;
}

static size_t at_b(const struct model *m)
{
	return (size_t)(m->channels + m->delta_value) * m->size;
}

static size_t at_a(const struct model *m)
{
	return at_b(m) + (size_t)m->c.delta_value_heads * m->size;
}

static struct device_conv conv_of(const struct model *m, int64_t tokens, int documents, const int32_t *starts,
                                  const int32_t *host_starts)
{
	return (struct device_conv){.tokens = tokens,
	                            .documents = documents,
	                            .starts = starts,
	                            .host_starts = host_starts,
	                            .channels = (int)m->channels,
	                            .width = m->c.conv_width,
	                            .ld_x = m->delta_row,
	                            .ld_y = m->channels,
	                            .type = m->o.type};
}

static struct device_delta rule_of(const struct model *m, int unit, int64_t tokens, int documents,
                                   const int32_t *starts, const int32_t *host_starts)
{
	return (struct device_delta){.tokens = tokens,
	                             .documents = documents,
	                             .starts = starts,
	                             .host_starts = host_starts,
	                             .key_heads = m->c.delta_key_heads,
	                             .value_heads = m->c.delta_value_heads,
	                             .key_dim = m->c.delta_key_dim,
	                             .value_dim = m->c.delta_value_dim,
	                             .ld = m->channels,
	                             .ld_gates = m->delta_row,
	                             .ld_o = m->delta_value,
	                             .a_log = weight(m, unit, PARAMETER_DELTA_A_LOG),
	                             .dt_bias = weight(m, unit, PARAMETER_DELTA_DT_BIAS),
	                             .type = m->o.type};
}

/* Bytes from q to k, and to v, in a row of the convolution's output. */
static size_t to_keys(const struct model *m)
{
	return (size_t)m->delta_key * m->size;
}

static size_t to_values(const struct model *m)
{
	return 2 * to_keys(m);
}

static struct device_norm head_norm(const struct model *m, int64_t tokens)
{
	return (struct device_norm){.rows = tokens,
	                            .groups = m->c.delta_value_heads,
	                            .cols = m->c.delta_value_dim,
	                            .ld_x = m->delta_value,
	                            .ld_y = m->delta_value,
	                            .eps = m->c.norm_eps,
	                            .type = m->o.type};
}

static struct device_gating output_gate(const struct model *m, int64_t tokens)
{
	return (struct device_gating){.rows = tokens,
	                              .cols = (int)m->delta_value,
	                              .ld_x = m->delta_value,
	                              .ld_gate = m->delta_row,
	                              .ld_y = m->delta_value,
	                              .silu = true,
	                              .type = m->o.type};
}

static void linear_forward(struct model *m, const struct model_pass *p, int layer)
{
	struct model_activations *a = &m->layer[layer];
	const struct device_attention *at = &p->attention;
	struct device_conv conv = conv_of(m, at->tokens, at->documents, at->starts, at->host_starts);
	struct device_delta d = rule_of(m, layer + 1, at->tokens, at->documents, at->starts, at->host_starts);

	device_conv_forward(m->dev, &conv, m->convolved, a->qkv, weight(m, layer + 1, PARAMETER_DELTA_CONV));
	device_delta_forward(m->dev, &d, a->attention, m->convolved, m->convolved + to_keys(m),
	                     m->convolved + to_values(m), a->qkv + at_b(m), a->qkv + at_a(m));
}

/* From the gradient of o in m->d_wide to that of the first product's output, in m->d_qkv, but for that of z.
 */
static void linear_backward(struct model *m, const struct model_pass *p, int layer)
{
	struct model_activations *a = &m->layer[layer];
	const struct device_attention *at = &p->attention;
	int unit = layer + 1;
	struct device_conv conv = conv_of(m, at->tokens, at->documents, at->starts, at->host_starts);
	struct device_delta d = rule_of(m, unit, at->tokens, at->documents, at->starts, at->host_starts);
	float *d_w = gradient(m, unit, PARAMETER_DELTA_CONV),
	      *d_rate = gradient(m, unit, PARAMETER_DELTA_A_LOG),
	      *d_bias = gradient(m, unit, PARAMETER_DELTA_DT_BIAS);
	const char *w = weight(m, unit, PARAMETER_DELTA_CONV);

	device_conv_forward(m->dev, &conv, m->convolved, a->qkv, w);
	device_delta_backward(m->dev, &d, m->d_convolved, m->d_convolved + to_keys(m),
	                      m->d_convolved + to_values(m), m->d_qkv + at_b(m), m->d_qkv + at_a(m),
	                      d_rate ? d_rate : m->unused, d_bias ? d_bias : m->unused, m->d_wide,
	                      m->convolved, m->convolved + to_keys(m), m->convolved + to_values(m),
	                      a->qkv + at_b(m), a->qkv + at_a(m));
	device_conv_backward(m->dev, &conv, m->d_qkv, d_w ? d_w : m->unused, m->d_convolved, a->qkv, w);
}

/* norm(o), to m->y, with its statistics in m->rstd. */
static void norm_heads(struct model *m, int layer, int64_t tokens)
{
	struct device_norm n = head_norm(m, tokens);

	device_rmsnorm_forward(m->dev, &n, m->y, m->rstd, m->layer[layer].attention,
	                       weight(m, layer + 1, PARAMETER_DELTA_NORM));
}

/* From the gradient of norm(o) · silu(z) in m->d_wide to that of o, and of z in m->d_qkv. */
static void output_gate_gradient(struct model *m, int layer, int64_t tokens)
{
	struct device_norm n = head_norm(m, tokens);
	struct device_gating g = output_gate(m, tokens);
	float *dw = gradient(m, layer + 1, PARAMETER_DELTA_NORM);

	norm_heads(m, layer, tokens);
	device_gate_backward(m->dev, &g, m->d_wide, m->d_qkv + at_z(m), m->d_wide, m->y,
	                     m->layer[layer].qkv + at_z(m));
	device_rmsnorm_backward(m->dev, &n, m->d_wide, false, dw ? dw : m->unused, DTYPE_F32, m->d_wide,
	                        m->layer[layer].attention, m->rstd,
	                        weight(m, layer + 1, PARAMETER_DELTA_NORM));
}

/* ---- any of them ---- */
void model_project(struct model *m, int layer, const char *x, int64_t tokens)
{
	struct model_activations *a = &m->layer[layer];
	bool gated = m->c.gated_attention && !model_config_is_linear(&m->c, layer);

	model_linear(m, layer + 1, model_projection(m, layer), gated ? m->projected : a->qkv, x, tokens);
	if (gated)
		part_gates(m, a->qkv, a->gate, tokens);
}

int model_mix(struct model *m, const struct model_pass *p, int layer, struct error *err)
{
	if (!model_config_is_linear(&m->c, layer))
		return model_attend(m, p, layer, model_qk(m, layer, m->layer[layer].qkv, p->b->tokens), err);
	linear_forward(m, p, layer);
	return 0;
}

const char *model_mixed(struct model *m, int layer, int64_t tokens)
{
	struct model_activations *a = &m->layer[layer];
	struct device_gating g;

	if (model_config_is_linear(&m->c, layer)) {
		norm_heads(m, layer, tokens);
		g = output_gate(m, tokens);
		device_gate_forward(m->dev, &g, m->y, m->y, a->qkv + at_z(m));
		return m->y;
	}
	if (!m->c.gated_attention)
		return a->attention;
	g = gating(m, tokens);
	device_gate_forward(m->dev, &g, m->y, a->attention, a->gate);
	return m->y;
}

int model_mix_backward(struct model *m, const struct model_pass *p, int layer, const char **d_projected,
                       struct error *err)
{
	struct model_activations *a = &m->layer[layer];
	int64_t tokens = p->b->tokens;
	bool gated = m->c.gated_attention;
	struct device_gating g = gating(m, tokens);
	char *qk = a->qkv;
	int r;

	*d_projected = m->d_qkv;
	if (model_config_is_linear(&m->c, layer)) {
		output_gate_gradient(m, layer, tokens);
		linear_backward(m, p, layer);
		return 0;
	}
	if (gated)
		device_gate_backward(m->dev, &g, m->d_wide, m->d_gate, m->d_wide, a->attention, a->gate);
	if (m->c.qk_norm != MODEL_QK_NORM_NONE)
		qk = model_qk(m, layer, a->qkv, tokens);
	if ((r = model_attend_backward(m, p, layer, qk, err)) < 0)
		return r;
	model_qk_gradient(m, layer, a->qkv, tokens);
	if (gated) {
		join_gates(m, tokens);
		*d_projected = m->projected;
	}
	return 0;
}

/* ---- sequences that go on ---- */
void model_state_reset(struct model *m, int layer, int sequence)
{
	device_zero(m->dev, m->state[layer] + (size_t)sequence * model_state_floats(m),
	            model_state_floats(m) * sizeof(float));
	device_zero(m->dev, m->last[layer] + (size_t)sequence * model_last_bytes(m), model_last_bytes(m));
}

void model_state_copy(struct model *m, int layer, int from, int to)
{
	device_copy(m->dev, m->state[layer] + (size_t)to * model_state_floats(m),
	            m->state[layer] + (size_t)from * model_state_floats(m),
	            model_state_floats(m) * sizeof(float));
	device_copy(m->dev, m->last[layer] + (size_t)to * model_last_bytes(m),
	            m->last[layer] + (size_t)from * model_last_bytes(m), model_last_bytes(m));
}

void model_mix_carried(struct model *m, int layer, int64_t tokens, int parts)
{
	struct model_activations *a = &m->layer[layer];
	struct device_conv conv = conv_of(m, tokens, parts, m->starts, m->host_parts);
	struct device_delta d = rule_of(m, layer + 1, tokens, parts, m->starts, m->host_parts);

	device_conv_carried(m->dev, &conv, m->last[layer], m->sequences, m->convolved, a->qkv,
	                    weight(m, layer + 1, PARAMETER_DELTA_CONV));
	device_delta_carried(m->dev, &d, m->state[layer], m->sequences, a->attention, m->convolved,
	                     m->convolved + to_keys(m), m->convolved + to_values(m), a->qkv + at_b(m),
	                     a->qkv + at_a(m));
}
