/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out the parameters of a model in flat units, and names them as Hugging Face does. */
#include "engine/model/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* 64 bytes of bf16. */
#define ALIGNMENT 32

static const struct {
	const char *name; /* below the block, or whole */
	bool follows;     /* directly behind the role before it in unit_order, without a gap */
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
};

/* Where names differ from those of `roles`. */
static const struct {
	const char *block; /* with the block's number; NULL: model.layers */
	const char *name[PARAMETER_ROLES];
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
};

/* In memory: matrices first, then what does not decay. */
static const enum parameter_role unit_order[] = {PARAMETER_EMBEDDING,
                                                 PARAMETER_POSITIONS,
                                                 PARAMETER_HEAD,
                                                 PARAMETER_Q,
                                                 PARAMETER_K,
                                                 PARAMETER_V,
                                                 PARAMETER_O,
                                                 PARAMETER_GATE,
                                                 PARAMETER_UP,
                                                 PARAMETER_DOWN,
                                                 PARAMETER_INPUT_NORM,
                                                 PARAMETER_POST_NORM,
                                                 PARAMETER_FINAL_NORM,
                                                 PARAMETER_Q_NORM,
                                                 PARAMETER_K_NORM,
                                                 PARAMETER_Q_BIAS,
                                                 PARAMETER_K_BIAS,
                                                 PARAMETER_V_BIAS,
                                                 PARAMETER_O_BIAS,
                                                 PARAMETER_GATE_BIAS,
                                                 PARAMETER_UP_BIAS,
                                                 PARAMETER_DOWN_BIAS,
                                                 PARAMETER_ATTENTION_OUT_NORM,
                                                 PARAMETER_MLP_OUT_NORM,
                                                 PARAMETER_INPUT_NORM_BIAS,
                                                 PARAMETER_POST_NORM_BIAS,
                                                 PARAMETER_FINAL_NORM_BIAS};

/* As transformers' state_dict has the members of a block. */
static const enum parameter_role block_order[] = {PARAMETER_Q,
                                                  PARAMETER_Q_BIAS,
                                                  PARAMETER_K,
                                                  PARAMETER_K_BIAS,
                                                  PARAMETER_V,
                                                  PARAMETER_V_BIAS,
                                                  PARAMETER_O,
                                                  PARAMETER_O_BIAS,
                                                  PARAMETER_Q_NORM,
                                                  PARAMETER_K_NORM,
                                                  PARAMETER_GATE,
                                                  PARAMETER_GATE_BIAS,
                                                  PARAMETER_UP,
                                                  PARAMETER_UP_BIAS,
                                                  PARAMETER_DOWN,
                                                  PARAMETER_DOWN_BIAS,
                                                  PARAMETER_INPUT_NORM,
                                                  PARAMETER_INPUT_NORM_BIAS,
                                                  PARAMETER_ATTENTION_OUT_NORM,
                                                  PARAMETER_POST_NORM,
                                                  PARAMETER_POST_NORM_BIAS,
                                                  PARAMETER_MLP_OUT_NORM};

/* Shape of a role in this model; 0 dims: the model has none. */
static int role_shape(const struct model_config *c, enum parameter_role role, int64_t shape[2])
{
	int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
	int64_t wide = c->gated && c->fused ? 2 * (int64_t)c->intermediate : c->intermediate;
	bool before = c->norm_place != MODEL_NORM_AFTER, after = c->norm_place != MODEL_NORM_BEFORE;
	int64_t out = 0, in = 0;

	switch (role) {
	case PARAMETER_HEAD:
		if (c->tied)
			break;
		/* fallthrough */
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
		out = c->fused ? q + 2 * kv : q, in = c->hidden;
		break;
	case PARAMETER_K:
	case PARAMETER_V:
		out = c->fused ? 0 : kv, in = c->hidden;
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
		out = c->gated && !c->fused ? c->intermediate : 0, in = c->hidden;
		break;
	case PARAMETER_DOWN:
		out = c->hidden, in = c->intermediate;
		break;
	case PARAMETER_Q_BIAS:
		out = !c->qkv_bias ? 0 : c->fused ? q + 2 * kv : q;
		break;
	case PARAMETER_K_BIAS:
	case PARAMETER_V_BIAS:
		out = c->qkv_bias && !c->fused ? kv : 0;
		break;
	case PARAMETER_O_BIAS:
		out = c->o_bias ? c->hidden : 0;
		break;
	case PARAMETER_GATE_BIAS:
		out = c->mlp_bias ? wide : 0;
		break;
	case PARAMETER_UP_BIAS:
		out = c->mlp_bias && c->gated && !c->fused ? c->intermediate : 0;
		break;
	case PARAMETER_DOWN_BIAS:
		out = c->mlp_bias ? c->hidden : 0;
		break;
	case PARAMETER_ROLES:
		break;
	}
	/* The embeddings and the head are never transposed. */
	if (c->transposed && in > 0 && role != PARAMETER_EMBEDDING && role != PARAMETER_HEAD &&
	    role != PARAMETER_POSITIONS) {
		shape[0] = in;
		shape[1] = out;
	} else {
		shape[0] = out;
		shape[1] = in;
	}
	return out == 0 ? 0 : in == 0 ? 1 : 2;
}

static int role_place(const struct model_layout *l, enum parameter_role role)
{
	switch (role) {
	case PARAMETER_EMBEDDING:
	case PARAMETER_POSITIONS:
		return 0;
	case PARAMETER_FINAL_NORM:
	case PARAMETER_FINAL_NORM_BIAS:
	case PARAMETER_HEAD:
		return l->units - 1;
	default:
		return 1;
	}
}

static int64_t align(int64_t n)
{
	return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void place_unit(struct model_layout *l, const struct model_config *c, int unit)
{
	struct model_unit *u = &l->unit[unit];
	int kind = unit == 0 || unit == l->units - 1 ? unit : 1;

	for (int i = 0; i < PARAMETER_ROLES; i++)
		u->offset[i] = -1;
	for (size_t i = 0; i < ARRAY_SIZE(unit_order); i++) {
		enum parameter_role role = unit_order[i];
		int64_t shape[2];
		int dims = role_shape(c, role, shape);

		if (dims == 0 || role_place(l, role) != kind)
			continue;
		if (!roles[role].follows)
			u->count = align(u->count);
		u->offset[role] = u->count;
		u->count += dims == 2 ? shape[0] * shape[1] : shape[0];
		if (dims == 2)
			u->matrices = align(u->count);
	}
	u->count = align(u->count);
}

static bool is_norm(enum parameter_role role)
{
	switch (role) {
	case PARAMETER_INPUT_NORM:
	case PARAMETER_POST_NORM:
	case PARAMETER_FINAL_NORM:
	case PARAMETER_Q_NORM:
	case PARAMETER_K_NORM:
	case PARAMETER_ATTENTION_OUT_NORM:
	case PARAMETER_MLP_OUT_NORM:
		return true;
	default:
		return false;
	}
}

static void add_parameter(struct model_layout *l, const struct model_config *c, enum parameter_role role,
                          int unit)
{
	struct model_parameter *p = &l->parameter[l->parameters];
	const char *block = namings[c->naming].block, *name = namings[c->naming].name[role];
	int64_t shape[2];
	int dims = role_shape(c, role, shape);

	if (dims == 0)
		return;
	if (!name)
		name = roles[role].name;
	if (role_place(l, role) == 1)
		snprintf(p->name, sizeof(p->name), "%s.%d.%s", block ? block : "model.layers", unit - 1,
		         name);
	else
		snprintf(p->name, sizeof(p->name), "%s", name);
	p->role = role;
	p->unit = unit;
	p->offset = l->unit[unit].offset[role];
	p->dims = dims;
	p->shape[0] = shape[0];
	p->shape[1] = dims == 2 ? shape[1] : 1;
	p->count = p->shape[0] * p->shape[1];
	p->matrix = dims == 2;
	p->start = is_norm(role) && !(c->norm_plus_one) ? 1 : 0;
	l->elements += p->count;
	l->parameters++;
}

int model_layout_create(const struct model_config *c, struct model_layout **out, struct error *err)
{
	_cleanup_(model_layout_freep) struct model_layout *l = calloc(1, sizeof(*l));

	if (!l)
		return error_oom(err);
	l->units = c->layers + 2;
	l->unit = calloc((size_t)l->units, sizeof(*l->unit));
	l->parameter = calloc((size_t)l->units * PARAMETER_ROLES, sizeof(*l->parameter));
	if (!l->unit || !l->parameter)
		return error_oom(err);
	for (int u = 0; u < l->units; u++)
		place_unit(l, c, u);
	add_parameter(l, c, PARAMETER_EMBEDDING, 0);
	add_parameter(l, c, PARAMETER_POSITIONS, 0);
	for (int u = 1; u < l->units - 1; u++)
		for (size_t i = 0; i < ARRAY_SIZE(block_order); i++)
			add_parameter(l, c, block_order[i], u);
	add_parameter(l, c, PARAMETER_FINAL_NORM, l->units - 1);
	add_parameter(l, c, PARAMETER_FINAL_NORM_BIAS, l->units - 1);
	add_parameter(l, c, PARAMETER_HEAD, l->units - 1);
	*out = steal_pointer(l);
	return 0;
}

void model_layout_free(struct model_layout *l)
{
	if (!l)
		return;
	free(l->unit);
	free(l->parameter);
	free(l);
}

const struct model_parameter *model_layout_find(const struct model_layout *l, const char *name)
{
	for (int i = 0; i < l->parameters; i++)
		if (str_eq(l->parameter[i].name, name))
			return &l->parameter[i];
	return NULL;
}
