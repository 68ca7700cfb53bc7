/* SPDX-License-Identifier: Apache-2.0 */
/* The roles of parameters: their names, as Hugging Face has them, their shapes, and the units they are in. */
#include "engine/model/roles.h"

#include <stdio.h>
#include <string.h>

#include "engine/model/multimodal.h"

#define NAME_SIZE 96

static const struct {
	const char *name; /* below the block, or whole */
	bool follows;
} roles[PARAMETER_ROLES] = {
    [PARAMETER_EMBEDDING] = {"model.embed_tokens.weight", false},
    [PARAMETER_INPUT_NORM] = {"input_layernorm.weight", false},
    [PARAMETER_Q] = {"self_attn.q_proj.weight", false},
    [PARAMETER_K] = {"self_attn.k_proj.weight", true},
    [PARAMETER_V] = {"self_attn.v_proj.weight", true},
    [PARAMETER_O] = {"self_attn.o_proj.weight", false},
    [PARAMETER_Q_NORM] = {"self_attn.q_norm.weight", false},
    [PARAMETER_K_NORM] = {"self_attn.k_norm.weight", false},
    [PARAMETER_POST_NORM] = {"post_attention_layernorm.weight", false},
    [PARAMETER_GATE] = {"mlp.gate_proj.weight", false},
    [PARAMETER_UP] = {"mlp.up_proj.weight", true},
    [PARAMETER_DOWN] = {"mlp.down_proj.weight", false},
    [PARAMETER_Q_BIAS] = {"self_attn.q_proj.bias", false},
    [PARAMETER_K_BIAS] = {"self_attn.k_proj.bias", true},
    [PARAMETER_V_BIAS] = {"self_attn.v_proj.bias", true},
    [PARAMETER_O_BIAS] = {"self_attn.o_proj.bias", false},
    [PARAMETER_GATE_BIAS] = {"mlp.gate_proj.bias", false},
    [PARAMETER_UP_BIAS] = {"mlp.up_proj.bias", true},
    [PARAMETER_DOWN_BIAS] = {"mlp.down_proj.bias", false},
    [PARAMETER_FINAL_NORM] = {"model.norm.weight", false},
    [PARAMETER_HEAD] = {"lm_head.weight", false},
    [PARAMETER_POSITIONS] = {"model.embed_positions.weight", false},
    [PARAMETER_ATTENTION_OUT_NORM] = {"post_attention_layernorm.weight", false},
    [PARAMETER_MLP_OUT_NORM] = {"post_feedforward_layernorm.weight", false},
    [PARAMETER_INPUT_NORM_BIAS] = {"input_layernorm.bias", false},
    [PARAMETER_POST_NORM_BIAS] = {"post_attention_layernorm.bias", false},
    [PARAMETER_FINAL_NORM_BIAS] = {"model.norm.bias", false},
    [PARAMETER_ROUTER] = {"mlp.gate.weight", false},
    [PARAMETER_VALUE] = {"v_head.summary.weight", false},
    [PARAMETER_DELTA_QKV] = {"linear_attn.in_proj_qkv.weight", false},
    [PARAMETER_DELTA_Z] = {"linear_attn.in_proj_z.weight", true},
    [PARAMETER_DELTA_B] = {"linear_attn.in_proj_b.weight", true},
    [PARAMETER_DELTA_A] = {"linear_attn.in_proj_a.weight", true},
    [PARAMETER_DELTA_OUT] = {"linear_attn.out_proj.weight", false},
    [PARAMETER_DELTA_CONV] = {"linear_attn.conv1d.weight", false},
    [PARAMETER_DELTA_A_LOG] = {"linear_attn.A_log", false},
    [PARAMETER_DELTA_DT_BIAS] = {"linear_attn.dt_bias", false},
    [PARAMETER_DELTA_NORM] = {"linear_attn.norm.weight", false},
};

/* Where names differ from those of `roles`. */
static const struct {
	const char *block; /* with the block's number; NULL: model.layers */
	const char *name[PARAMETER_ROLES];
	const char *experts; /* below the block, in front of the expert's number; NULL: mlp.experts */
} namings[MODEL_NAMINGS] = {
    [MODEL_NAMES_PHI3] =
        {.name = {[PARAMETER_Q] = "self_attn.qkv_proj.weight", [PARAMETER_GATE] = "mlp.gate_up_proj.weight"}},
    [MODEL_NAMES_GEMMA] = {.name = {[PARAMETER_POST_NORM] = "pre_feedforward_layernorm.weight"}},
    [MODEL_NAMES_GPT2] = {.block = "transformer.h",
                          .name = {[PARAMETER_EMBEDDING] = "transformer.wte.weight",
                                   [PARAMETER_POSITIONS] = "transformer.wpe.weight",
                                   [PARAMETER_INPUT_NORM] = "ln_1.weight",
                                   [PARAMETER_INPUT_NORM_BIAS] = "ln_1.bias",
                                   [PARAMETER_Q] = "attn.c_attn.weight",
                                   [PARAMETER_Q_BIAS] = "attn.c_attn.bias",
                                   [PARAMETER_O] = "attn.c_proj.weight",
                                   [PARAMETER_O_BIAS] = "attn.c_proj.bias",
                                   [PARAMETER_POST_NORM] = "ln_2.weight",
                                   [PARAMETER_POST_NORM_BIAS] = "ln_2.bias",
                                   [PARAMETER_GATE] = "mlp.c_fc.weight",
                                   [PARAMETER_GATE_BIAS] = "mlp.c_fc.bias",
                                   [PARAMETER_DOWN] = "mlp.c_proj.weight",
                                   [PARAMETER_DOWN_BIAS] = "mlp.c_proj.bias",
                                   [PARAMETER_FINAL_NORM] = "transformer.ln_f.weight",
                                   [PARAMETER_FINAL_NORM_BIAS] = "transformer.ln_f.bias"}},
    [MODEL_NAMES_GLM] = {.name = {[PARAMETER_GATE] = "mlp.gate_up_proj.weight",
                                  [PARAMETER_ATTENTION_OUT_NORM] = "post_self_attn_layernorm.weight",
                                  [PARAMETER_MLP_OUT_NORM] = "post_mlp_layernorm.weight"}},
    [MODEL_NAMES_STARCODER2] = {.name = {[PARAMETER_GATE] = "mlp.c_fc.weight",
                                         [PARAMETER_GATE_BIAS] = "mlp.c_fc.bias",
                                         [PARAMETER_DOWN] = "mlp.c_proj.weight",
                                         [PARAMETER_DOWN_BIAS] = "mlp.c_proj.bias"}},
    [MODEL_NAMES_MIXTRAL] = {.experts = "block_sparse_moe.experts",
                             .name = {[PARAMETER_ROUTER] = "block_sparse_moe.gate.weight",
                                      [PARAMETER_GATE] = "w1.weight",
                                      [PARAMETER_UP] = "w3.weight",
                                      [PARAMETER_DOWN] = "w2.weight"}},
};

bool role_transposed(const struct model_config *c, enum parameter_role role)
{
	/* The embeddings and the head never are. */
	return c->transposed && role_unit(c, role) == 1;
}

/* Of linear attention; its convolution apart. */
static int64_t delta_rows(const struct model_config *c, enum parameter_role role)
{
	switch (role) {
	case PARAMETER_DELTA_QKV:
	case PARAMETER_DELTA_CONV:
		return model_config_channels(c);
	case PARAMETER_DELTA_Z:
		return model_config_delta_value(c);
	case PARAMETER_DELTA_OUT:
		return c->hidden;
	case PARAMETER_DELTA_NORM:
		return c->delta_value_dim;
	default:
		return c->delta_value_heads;
	}
}

static bool is_attention(enum parameter_role role)
{
	switch (role) {
	case PARAMETER_Q:
	case PARAMETER_K:
	case PARAMETER_V:
	case PARAMETER_O:
	case PARAMETER_Q_NORM:
	case PARAMETER_K_NORM:
	case PARAMETER_Q_BIAS:
	case PARAMETER_K_BIAS:
	case PARAMETER_V_BIAS:
	case PARAMETER_O_BIAS:
		return true;
	default:
		return false;
	}
}

int64_t role_elements(int dims, const int64_t shape[3])
{
	return shape[0] * (dims > 1 ? shape[1] : 1) * (dims > 2 ? shape[2] : 1);
}

int role_shape(const struct model_config *c, enum parameter_role role, int base, int64_t shape[3])
{
	bool linear = base > 0 && base <= c->layers && model_config_is_linear(c, base - 1);
	int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
	int64_t wide = c->fused_mlp ? 2 * (int64_t)c->intermediate : c->intermediate;
	bool before = c->norm_place != MODEL_NORM_AFTER, after = c->norm_place != MODEL_NORM_BEFORE;
	int64_t out = 0, in = 0;

	if (linear && is_attention(role))
		return 0;
	switch (role) {
	case PARAMETER_HEAD:
		out = c->tied ? 0 : model_config_outputs(c), in = c->hidden;
		break;
	case PARAMETER_EMBEDDING:
		out = c->vocab, in = c->hidden;
		break;
	case PARAMETER_POSITIONS:
		out = c->learned_positions ? c->max_positions : 0, in = c->hidden;
		break;
	case PARAMETER_INPUT_NORM:
	case PARAMETER_POST_NORM:
		out = before ? c->hidden : 0;
		break;
	case PARAMETER_INPUT_NORM_BIAS:
	case PARAMETER_POST_NORM_BIAS:
		out = before && c->layer_norm ? c->hidden : 0;
		break;
	case PARAMETER_ATTENTION_OUT_NORM:
	case PARAMETER_MLP_OUT_NORM:
		out = after ? c->hidden : 0;
		break;
	case PARAMETER_FINAL_NORM:
		out = c->hidden;
		break;
	case PARAMETER_FINAL_NORM_BIAS:
		out = c->layer_norm ? c->hidden : 0;
		break;
	case PARAMETER_Q:
		out = c->fused_qkv ? q + 2 * kv : c->gated_attention ? 2 * q : q, in = c->hidden;
		break;
	case PARAMETER_K:
	case PARAMETER_V:
		out = c->fused_qkv ? 0 : kv, in = c->hidden;
		break;
	case PARAMETER_O:
		out = c->hidden, in = q;
		break;
	case PARAMETER_Q_NORM:
	case PARAMETER_K_NORM:
		if (c->qk_norm == MODEL_QK_NORM_HEADS)
			out = c->head_dim;
		else if (c->qk_norm == MODEL_QK_NORM_PROJECTION)
			out = role == PARAMETER_Q_NORM ? q : kv;
		break;
	case PARAMETER_GATE:
		out = wide, in = c->hidden;
		break;
	case PARAMETER_UP:
		out = c->gated && !c->fused_mlp ? c->intermediate : 0, in = c->hidden;
		break;
	case PARAMETER_DOWN:
		out = c->hidden, in = c->intermediate;
		break;
	case PARAMETER_Q_BIAS:
		out = !c->qkv_bias ? 0 : c->fused_qkv ? q + 2 * kv : c->gated_attention ? 2 * q : q;
		break;
	case PARAMETER_K_BIAS:
	case PARAMETER_V_BIAS:
		out = c->qkv_bias && !c->fused_qkv ? kv : 0;
		break;
	case PARAMETER_O_BIAS:
		out = c->o_bias ? c->hidden : 0;
		break;
	case PARAMETER_GATE_BIAS:
		out = c->mlp_bias ? wide : 0;
		break;
	case PARAMETER_UP_BIAS:
		out = c->mlp_bias && c->gated && !c->fused_mlp ? c->intermediate : 0;
		break;
	case PARAMETER_DOWN_BIAS:
		out = c->mlp_bias ? c->hidden : 0;
		break;
	case PARAMETER_ROUTER:
		out = c->experts, in = c->hidden;
		break;
	case PARAMETER_VALUE:
		out = c->values, in = c->hidden;
		break;
	case PARAMETER_DELTA_QKV:
	case PARAMETER_DELTA_Z:
	case PARAMETER_DELTA_B:
	case PARAMETER_DELTA_A:
		out = linear ? delta_rows(c, role) : 0, in = c->hidden;
		break;
	case PARAMETER_DELTA_OUT:
		out = linear ? delta_rows(c, role) : 0, in = model_config_delta_value(c);
		break;
	case PARAMETER_DELTA_CONV:
		shape[0] = delta_rows(c, role);
		shape[1] = 1;
		shape[2] = c->conv_width;
		return linear ? 3 : 0;
	case PARAMETER_DELTA_A_LOG:
	case PARAMETER_DELTA_DT_BIAS:
	case PARAMETER_DELTA_NORM:
		out = linear ? delta_rows(c, role) : 0;
		break;
	case PARAMETER_ROLES:
		break;
	}
	if (in > 0 && role_transposed(c, role)) {
		shape[0] = in;
		shape[1] = out;
	} else {
		shape[0] = out;
		shape[1] = in;
	}
	return out == 0 ? 0 : in == 0 ? 1 : 2;
}

bool role_of_experts(const struct model_config *c, enum parameter_role role)
{
	return c->experts > 0 && (role == PARAMETER_GATE || role == PARAMETER_UP || role == PARAMETER_DOWN);
}

int64_t role_distance(const struct model_config *c, enum parameter_role role)
{
	int64_t one = (int64_t)c->hidden * c->intermediate;

	return role == PARAMETER_DOWN ? one : 2 * one;
}

int role_unit(const struct model_config *c, enum parameter_role role)
{
	switch (role) {
	case PARAMETER_EMBEDDING:
	case PARAMETER_POSITIONS:
		return 0;
	case PARAMETER_FINAL_NORM:
	case PARAMETER_FINAL_NORM_BIAS:
	case PARAMETER_HEAD:
	case PARAMETER_VALUE:
		return c->layers + 1;
	default:
		return 1;
	}
}

bool role_follows(enum parameter_role role)
{
	return roles[role].follows;
}

const char *role_name(enum parameter_role role)
{
	return roles[role].name;
}

/* The name that a model of its own has. */
static void own_name(const struct model_config *c, enum parameter_role role, int base, int expert, char *buf,
                     size_t size)
{
	const char *block = namings[c->naming].block, *name = namings[c->naming].name[role],
	           *experts = namings[c->naming].experts;
	size_t n;

	if (!name && role_of_experts(c, role))
		name = strchr(roles[role].name, '.') + 1;
	if (!name)
		name = roles[role].name;
	if (role == PARAMETER_HEAD && c->scores)
		name = "score.weight";
	if (role_unit(c, role) != 1) {
		snprintf(buf, size, "%s", name);
		return;
	}
	n = (size_t)snprintf(buf, size, "%s.%d.", block ? block : "model.layers", base - 1);
	if (n < size && role_of_experts(c, role))
		n += (size_t)snprintf(buf + n, size - n, "%s.", experts ? experts : "mlp.experts");
	if (n < size && role_of_experts(c, role) && expert >= 0)
		n += (size_t)snprintf(buf + n, size - n, "%d.", expert);
	if (n < size)
		snprintf(buf + n, size - n, "%s", name);
}

void role_parameter_name(const struct model_config *c, enum parameter_role role, int base, int expert,
                         char *buf, size_t size)
{
	char name[NAME_SIZE];

	own_name(c, role, base, expert, name, sizeof(name));
	if (c->multimodal)
		multimodal_name(name, buf, size);
	else
		snprintf(buf, size, "%s", name);
}

void role_saved_name(const struct model_config *c, enum parameter_role role, int base, int expert, char *buf,
                     size_t size)
{
	char name[NAME_SIZE];

	own_name(c, role, base, expert, name, sizeof(name));
	if (c->multimodal)
		multimodal_saved_name(c->multimodal, name, buf, size);
	else
		snprintf(buf, size, "%s", name);
}
