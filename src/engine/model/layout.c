/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out the parameters of a model in flat units, and names them as Hugging Face does. */
#include "engine/model/layout.h"

#include <errno.h>
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
		return l->base_units - 1;
	default:
		return 1;
	}
}

static int64_t align(int64_t n)
{
	return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static enum parameter_role before(enum parameter_role role)
{
	for (size_t i = 1; i < ARRAY_SIZE(unit_order); i++)
		if (unit_order[i] == role)
			return unit_order[i - 1];
	return PARAMETER_ROLES;
}

enum parameter_role model_layout_leader(enum parameter_role role)
{
	while (roles[role].follows)
		role = before(role);
	return role;
}

enum parameter_role model_layout_next(enum parameter_role role)
{
	for (size_t i = 1; i < ARRAY_SIZE(unit_order); i++)
		if (unit_order[i - 1] == role && roles[unit_order[i]].follows)
			return unit_order[i];
	return PARAMETER_ROLES;
}

/* ---- what is trained ---- */

/* What is made of a role in a unit. */
struct choice {
	bool there, trained, adapted;
};

struct builder {
	struct model_layout *l;
	const struct model_config *c;
	const struct model_tuning *tuning;
	struct choice *choice; /* [base units][PARAMETER_ROLES] */
	bool *used[3]; /* of the names in target, saved or modules, extra: whether they name something */
};

static void parameter_name(const struct model_config *c, const struct model_layout *l,
                           enum parameter_role role, int base, char *buf, size_t size)
{
	const char *block = namings[c->naming].block, *name = namings[c->naming].name[role];

	if (!name)
		name = roles[role].name;
	if (role_place(l, role) == 1)
		snprintf(buf, size, "%s.%d.%s", block ? block : "model.layers", base - 1, name);
	else
		snprintf(buf, size, "%s", name);
}

static bool is_named(char *const *list, const char *module, bool whole, bool *used)
{
	bool named = false;

	for (int i = 0; list && list[i]; i++) {
		size_t n = strlen(list[i]), length = strlen(module);
		bool ends = str_ends(module, list[i]) && (n == length || module[length - n - 1] == '.');

		if (str_eq(list[i], "all") || (whole ? ends : tuning_names(list[i], module))) {
			used[i] = true;
			named = true;
		}
	}
	return named;
}

static bool in_layers(const struct model_tuning *t, int layers, int layer)
{
	return layer >= 0 && layer < layers &&
	       (t->layers < 0 ? layer < -t->layers : layer >= layers - t->layers);
}

static struct choice choose(const struct builder *b, enum parameter_role role, int base)
{
	const struct model_tuning *t = b->tuning;
	struct choice choice = {.there = true, .trained = true};
	bool block = role_place(b->l, role) == 1;
	int64_t shape[2];
	char module[96];

	if (role_shape(b->c, role, shape) == 0 || role_place(b->l, role) != (block ? 1 : base) ||
	    block != (base > 0 && base < b->l->base_units - 1))
		return (struct choice){.there = false};
	if (!t || t->kind == TUNE_ALL)
		return choice;
	parameter_name(b->c, b->l, role, base, module, sizeof(module));
	*strrchr(module, '.') = '\0'; /* .weight or .bias */
	if (t->kind == TUNE_LORA) {
		choice.trained = is_named(t->saved, module, false, b->used[1]);
		choice.adapted = block && role_shape(b->c, role, shape) == 2 &&
		                 is_named(t->target, module, true, b->used[0]);
		return choice;
	}
	choice.trained = block ? in_layers(t, b->c->layers, base - 1) &&
	                             (!t->modules || is_named(t->modules, module, false, b->used[1]))
	                       : is_named(t->extra, module, false, b->used[2]);
	return choice;
}

static size_t list_length(char *const *list)
{
	size_t n = 0;

	while (list && list[n])
		n++;
	return n;
}

static int check_names(char *const *list, const bool *used, const char *key, const char *expected,
                       struct error *err)
{
	for (int i = 0; list && list[i]; i++)
		if (!used[i])
			return error_set(err, -EINVAL, "%s: the model has no %s; expected %s", key, list[i],
			                 expected);
	return 0;
}

static int choose_all(struct builder *b, struct error *err)
{
	static const char linears[] = "\"all\", or modules of its layers such as \"q_proj\", \"down_proj\"";
	static const char outside[] = "modules such as \"embed_tokens\", \"norm\"";
	const struct model_tuning *t = b->tuning;
	bool lora = t && t->kind == TUNE_LORA;
	int r;

	for (int u = 0; u < b->l->base_units; u++)
		for (int role = 0; role < PARAMETER_ROLES; role++) {
			struct choice *one = &b->choice[u * PARAMETER_ROLES + role];

			*one = choose(b, (enum parameter_role)role, u);
			if (one->trained && one->adapted)
				return error_set(err, -EINVAL,
				                 "lora.modules_to_save and lora.target both name %s",
				                 roles[role].name);
		}
	if (!t || t->kind == TUNE_ALL)
		return 0;
	if (lora && b->c->transposed)
		return error_set(
		    err, -ENOTSUP,
		    "lora.rank: adapters of this family, which stores its matrices transposed, are "
		    "not supported");
	if (lora && b->c->tied && list_length(t->saved) > 0 && (b->choice[PARAMETER_EMBEDDING].trained))
		return error_set(
		    err, -EINVAL,
		    "lora.modules_to_save: the head of this model is tied to embed_tokens, and PEFT "
		    "would load one without the other; expected modules of a model that is not tied");
	r = lora ? check_names(t->target, b->used[0], "lora.target", linears, err) : 0;
	if (r == 0)
		r = lora ? check_names(t->saved, b->used[1], "lora.modules_to_save", outside, err)
		         : check_names(t->modules, b->used[1], "train.freeze_trainable_modules",
		                       "\"all\", or modules of its layers such as \"self_attn\", \"mlp\"",
		                       err);
	return r == 0 && !lora ? check_names(t->extra, b->used[2], "train.freeze_extra_modules", outside, err)
	                       : r;
}

/* ---- places ---- */

static void start_unit(struct model_unit *u, int base)
{
	*u = (struct model_unit){.base = base, .companion = -1};
	for (int part = 0; part < PARAMETER_PARTS; part++)
		for (int i = 0; i < PARAMETER_ROLES; i++)
			u->offset[part][i] = -1;
}

/* The shape of a part of a role's adapter. */
static int part_shape(const struct builder *b, enum parameter_role role, enum parameter_part part,
                      int64_t shape[2])
{
	int dims = role_shape(b->c, role, shape);

	if (part == PART_WEIGHT)
		return dims;
	if (part == PART_LORA_A)
		shape[0] = b->tuning->rank;
	else if (part == PART_LORA_B)
		shape[1] = b->tuning->rank;
	else
		shape[1] = 0;
	return part == PART_MAGNITUDE ? 1 : 2;
}

/* Parameters of the model: those that are trained, or those that are not, or all. matrices: these alone, else
 * norms and biases. */
static void place_weights(const struct builder *b, struct model_unit *u, bool trained, bool frozen,
                          bool matrices)
{
	const struct choice *choices = &b->choice[u->base * PARAMETER_ROLES];

	for (size_t i = 0; i < ARRAY_SIZE(unit_order); i++) {
		enum parameter_role role = unit_order[i];
		const struct choice *choice = &choices[role];
		int64_t shape[2];
		int dims = role_shape(b->c, role, shape);

		if (!choice->there || (dims == 2) != matrices || !(choice->trained ? trained : frozen))
			continue;
		if (!roles[role].follows || u->offset[PART_WEIGHT][before(role)] < 0)
			u->count = align(u->count);
		u->offset[PART_WEIGHT][role] = u->count;
		u->count += dims == 2 ? shape[0] * shape[1] : shape[0];
	}
	if (matrices)
		u->matrices = align(u->count);
}

/* A, B or the magnitudes of all adapters of a block. */
static void place_adapters(const struct builder *b, struct model_unit *u, enum parameter_part part)
{
	const struct choice *choices = &b->choice[u->base * PARAMETER_ROLES];
	enum parameter_role group = PARAMETER_ROLES;

	for (size_t i = 0; i < ARRAY_SIZE(unit_order); i++) {
		enum parameter_role role = unit_order[i];
		int64_t shape[2];
		int dims;

		if (!choices[role].adapted)
			continue;
		dims = part_shape(b, role, part, shape);
		if (part != PART_LORA_A || model_layout_leader(role) != group)
			u->count = align(u->count);
		group = model_layout_leader(role);
		u->offset[part][role] = u->count;
		u->count += dims == 2 ? shape[0] * shape[1] : shape[0];
	}
	if (part != PART_MAGNITUDE)
		u->matrices = align(u->count);
}

static void place_companion(const struct builder *b, struct model_unit *u)
{
	place_weights(b, u, true, false, true);
	place_adapters(b, u, PART_LORA_A);
	u->first_b = u->matrices;
	place_adapters(b, u, PART_LORA_B);
	u->b = u->matrices - u->first_b;
	place_weights(b, u, true, false, false);
	if (b->tuning->dora)
		place_adapters(b, u, PART_MAGNITUDE);
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

static void place_units(const struct builder *b)
{
	struct model_layout *l = b->l;

	l->units = l->base_units;
	l->lowest = l->base_units;
	for (int i = 0; i < l->base_units; i++) {
		const struct choice *choices = &b->choice[i * PARAMETER_ROLES];
		struct model_unit *u = &l->unit[i];
		int there = 0, trained = 0, adapted = 0;

		for (int role = 0; role < PARAMETER_ROLES; role++) {
			there += choices[role].there;
			trained += choices[role].trained;
			adapted += choices[role].adapted;
		}
		start_unit(u, i);
		u->frozen = trained < there;
		place_weights(b, u, !u->frozen, true, true);
		place_weights(b, u, !u->frozen, true, false);
		u->count = align(u->count);
		l->adapts = l->adapts || adapted > 0;
		if (l->lowest == l->base_units && trained + adapted > 0)
			l->lowest = i;
		if (adapted == 0 && (!u->frozen || trained == 0))
			continue;
		u->companion = l->units++;
		start_unit(&l->unit[u->companion], i);
		/* A unit that is trained as a whole has what is its own. */
		if (!u->frozen)
			for (int role = 0; role < PARAMETER_ROLES; role++)
				b->choice[i * PARAMETER_ROLES + role].trained = false;
		place_companion(b, &l->unit[u->companion]);
	}
}

/* ---- the list of parameters ---- */

/* As PEFT names the parts of an adapter of the module that a parameter is the weight of. */
static void part_name(struct model_parameter *p)
{
	static const char *const suffixes[PARAMETER_PARTS] = {[PART_LORA_A] = "lora_A.weight",
	                                                      [PART_LORA_B] = "lora_B.weight",
	                                                      [PART_MAGNITUDE] = "lora_magnitude_vector"};
	char name[sizeof(p->name)];
	int n = (int)strlen(p->name) - (int)strlen("weight");

	snprintf(name, sizeof(name), "%.*s", n, p->name);
	snprintf(p->name, sizeof(p->name), "base_model.model.%.50s%s", name, suffixes[p->part]);
}

static void add_parameter(const struct builder *b, enum parameter_role role, enum parameter_part part,
                          int base)
{
	struct model_layout *l = b->l;
	struct model_parameter *p = &l->parameter[l->parameters];
	int unit = base;
	int64_t shape[2];
	int dims;

	if (l->unit[unit].offset[part][role] < 0)
		unit = l->unit[base].companion;
	if (unit < 0 || l->unit[unit].offset[part][role] < 0)
		return;
	dims = part_shape(b, role, part, shape);
	parameter_name(b->c, l, role, base, p->name, sizeof(p->name));
	p->role = role;
	p->part = part;
	if (part != PART_WEIGHT)
		part_name(p);
	/* PEFT puts its own two levels of modules before the names of what is trained. */
	snprintf(p->saved, sizeof(p->saved), "%s%s",
	         l->adapts && part == PART_WEIGHT ? "base_model.model." : "", p->name);
	p->base = base;
	p->unit = unit;
	p->frozen = l->unit[unit].frozen;
	p->offset = l->unit[unit].offset[part][role];
	p->dims = dims;
	p->shape[0] = shape[0];
	p->shape[1] = dims == 2 ? shape[1] : 1;
	p->count = p->shape[0] * p->shape[1];
	p->matrix = dims == 2;
	p->start = part == PART_WEIGHT && is_norm(role) && !b->c->norm_plus_one ? 1 : 0;
	if (part == PART_WEIGHT)
		l->elements += p->count;
	if (!p->frozen)
		l->trained += p->count;
	l->parameters++;
}

static void list_parameters(const struct builder *b)
{
	int last = b->l->base_units - 1;

	add_parameter(b, PARAMETER_EMBEDDING, PART_WEIGHT, 0);
	add_parameter(b, PARAMETER_POSITIONS, PART_WEIGHT, 0);
	for (int u = 1; u < last; u++)
		for (size_t i = 0; i < ARRAY_SIZE(block_order); i++)
			add_parameter(b, block_order[i], PART_WEIGHT, u);
	add_parameter(b, PARAMETER_FINAL_NORM, PART_WEIGHT, last);
	add_parameter(b, PARAMETER_FINAL_NORM_BIAS, PART_WEIGHT, last);
	add_parameter(b, PARAMETER_HEAD, PART_WEIGHT, last);
	for (int u = 1; u < last; u++)
		for (size_t i = 0; i < ARRAY_SIZE(block_order); i++)
			for (int part = PART_LORA_A; part < PARAMETER_PARTS; part++)
				add_parameter(b, block_order[i], (enum parameter_part)part, u);
}

static void builder_free(struct builder *b)
{
	free(b->choice);
	for (size_t i = 0; i < ARRAY_SIZE(b->used); i++)
		free(b->used[i]);
}

int model_layout_create_tuned(const struct model_config *c, const struct model_tuning *tuning,
                              struct model_layout **out, struct error *err)
{
	_cleanup_(model_layout_freep) struct model_layout *l = calloc(1, sizeof(*l));
	_cleanup_(builder_free) struct builder b = {.l = l, .c = c, .tuning = tuning};
	char *const *const lists[] = {tuning ? tuning->target : NULL,
	                              !tuning                     ? NULL
	                              : tuning->kind == TUNE_LORA ? tuning->saved
	                                                          : tuning->modules,
	                              tuning ? tuning->extra : NULL};
	size_t units = 2 * ((size_t)c->layers + 2);
	int r;

	if (!l)
		return error_oom(err);
	l->base_units = c->layers + 2;
	l->unit = calloc(units, sizeof(*l->unit));
	l->parameter = calloc(units * PARAMETER_ROLES * PARAMETER_PARTS, sizeof(*l->parameter));
	b.choice = calloc((size_t)l->base_units * PARAMETER_ROLES, sizeof(*b.choice));
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		b.used[i] = calloc(list_length(lists[i]) + 1, sizeof(bool));
	if (!l->unit || !l->parameter || !b.choice || !b.used[0] || !b.used[1] || !b.used[2])
		return error_oom(err);
	if ((r = choose_all(&b, err)) < 0)
		return r;
	place_units(&b);
	list_parameters(&b);
	if (l->trained == 0)
		return error_set(err, -EINVAL, "nothing of the model is trained");
	*out = steal_pointer(l);
	return 0;
}

int model_layout_create(const struct model_config *c, struct model_layout **out, struct error *err)
{
	return model_layout_create_tuned(c, NULL, out, err);
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
