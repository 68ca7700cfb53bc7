/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out the parameters of a model in flat units, and names them as Hugging Face does. */
#include "engine/model/layout.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "engine/model/choice.h"
#include "engine/model/roles.h"

/* 64 bytes of bf16. */
#define ALIGNMENT 32

/* In memory: matrices first, then what does not decay. */
static const enum parameter_role unit_order[] = {PARAMETER_EMBEDDING,
                                                 PARAMETER_POSITIONS,
                                                 PARAMETER_HEAD,
                                                 PARAMETER_VALUE, /* the last matrix of its unit */
                                                 PARAMETER_Q,
                                                 PARAMETER_K,
                                                 PARAMETER_V,
                                                 PARAMETER_O,
                                                 PARAMETER_DELTA_QKV,
                                                 PARAMETER_DELTA_Z,
                                                 PARAMETER_DELTA_B,
                                                 PARAMETER_DELTA_A,
                                                 PARAMETER_DELTA_OUT,
                                                 PARAMETER_ROUTER,
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
                                                 PARAMETER_FINAL_NORM_BIAS,
                                                 PARAMETER_DELTA_CONV,
                                                 PARAMETER_DELTA_A_LOG,
                                                 PARAMETER_DELTA_DT_BIAS,
                                                 PARAMETER_DELTA_NORM};

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
                                                  PARAMETER_DELTA_DT_BIAS,
                                                  PARAMETER_DELTA_A_LOG,
                                                  PARAMETER_DELTA_CONV,
                                                  PARAMETER_DELTA_NORM,
                                                  PARAMETER_DELTA_OUT,
                                                  PARAMETER_DELTA_QKV,
                                                  PARAMETER_DELTA_Z,
                                                  PARAMETER_DELTA_B,
                                                  PARAMETER_DELTA_A,
                                                  PARAMETER_ROUTER,
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
	while (role_follows(role))
		role = before(role);
	return role;
}

enum parameter_role model_layout_next(enum parameter_role role)
{
	for (size_t i = 1; i < ARRAY_SIZE(unit_order); i++)
		if (unit_order[i - 1] == role && role_follows(unit_order[i]))
			return unit_order[i];
	return PARAMETER_ROLES;
}

bool model_layout_reads_input(const struct model_layout *layout, int unit, enum parameter_role leader)
{
	const int places[] = {unit, layout->unit[unit].companion};

	for (enum parameter_role role = leader; role < PARAMETER_ROLES; role = model_layout_next(role))
		for (size_t i = 0; i < ARRAY_SIZE(places) && places[i] >= 0; i++) {
			const struct model_unit *u = &layout->unit[places[i]];

			if (!u->frozen &&
			    (u->offset[PART_WEIGHT][role] >= 0 || u->offset[PART_LORA_A][role] >= 0))
				return true;
		}
	return false;
}

struct builder {
	struct model_layout *l;
	const struct model_config *c;
	const struct model_tuning *tuning;
	struct choice *choice; /* [base units][PARAMETER_ROLES] */
};

/* ---- places ---- */

static void start_unit(struct model_unit *u, int base)
{
	*u = (struct model_unit){.base = base, .companion = -1, .gap = -1};
	for (int part = 0; part < PARAMETER_PARTS; part++)
		for (int i = 0; i < PARAMETER_ROLES; i++)
			u->offset[part][i] = -1;
}

/* The shape of a part of a role's adapter. */
static int part_shape(const struct builder *b, enum parameter_role role, enum parameter_part part, int base,
                      int64_t shape[3])
{
	int dims = role_shape(b->c, role, base, shape);

	if (part == PART_WEIGHT)
		return dims;
	if (role_transposed(b->c, role)) {
		int64_t in = shape[0];

		shape[0] = shape[1];
		shape[1] = in;
	}
	if (part == PART_LORA_A)
		shape[0] = tuning_stored_rank(b->tuning);
	else if (part == PART_LORA_B)
		shape[1] = tuning_stored_rank(b->tuning);
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
		int64_t shape[3];
		int dims = role_shape(b->c, role, u->base, shape);

		if (!choice->there || (dims == 2) != matrices || !(choice->trained ? trained : frozen))
			continue;
		if (!role_follows(role) || u->offset[PART_WEIGHT][before(role)] < 0)
			u->count = align(u->count);
		u->offset[PART_WEIGHT][role] = u->count;
		u->count += role_elements(dims, shape);
		/* Behind those of the first expert come those of the others. */
		if (role_of_experts(b->c, role) && model_layout_next(role) == PARAMETER_ROLES)
			u->count += (b->c->experts - 1) * role_distance(b->c, role);
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
		int64_t shape[3];
		int dims;

		if (!choices[role].adapted)
			continue;
		dims = part_shape(b, role, part, u->base, shape);
		if (part != PART_LORA_A || model_layout_leader(role) != group)
			u->count = align(u->count);
		group = model_layout_leader(role);
		u->offset[part][role] = u->count;
		u->count += role_elements(dims, shape);
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
		l->kept_rank = adapted > 0 ? tuning_stored_rank(b->tuning) - b->tuning->rank : l->kept_rank;
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
	snprintf(p->name, sizeof(p->name), "base_model.model.%.80s%s", name, suffixes[p->part]);
}

static void add_parameter(const struct builder *b, enum parameter_role role, enum parameter_part part,
                          int base, int expert)
{
	struct model_layout *l = b->l;
	struct model_parameter *p = &l->parameter[l->parameters];
	int unit = base;
	int64_t shape[3];
	int dims;

	if (l->unit[unit].offset[part][role] < 0)
		unit = l->unit[base].companion;
	if (unit < 0 || l->unit[unit].offset[part][role] < 0)
		return;
	dims = part_shape(b, role, part, base, shape);
	role_parameter_name(b->c, role, base, expert, p->name, sizeof(p->name));
	p->role = role;
	p->part = part;
	if (part != PART_WEIGHT)
		part_name(p);
	/* PEFT puts its own two levels of modules before the names of what is trained. */
	if (l->adapts || part != PART_WEIGHT)
		snprintf(p->saved, sizeof(p->saved), "%s%s", part == PART_WEIGHT ? "base_model.model." : "",
		         p->name);
	else
		role_saved_name(b->c, role, base, expert, p->saved, sizeof(p->saved));
	p->expert = expert;
	p->base = base;
	p->unit = unit;
	p->frozen = l->unit[unit].frozen;
	p->tied_embedding = role == PARAMETER_EMBEDDING && part == PART_WEIGHT && b->c->tied;
	p->in_state = role == PARAMETER_VALUE;
	p->random_start = p->in_state || (role == PARAMETER_HEAD && b->c->new_head);
	p->offset = l->unit[unit].offset[part][role] + expert * role_distance(b->c, role);
	p->dims = dims;
	p->shape[0] = shape[0];
	p->shape[1] = dims > 1 ? shape[1] : 1;
	p->shape[2] = dims > 2 ? shape[2] : 1;
	p->count = role_elements(dims, shape);
	p->matrix = dims == 2;
	p->transposed = part == PART_WEIGHT && dims == 2 && role_transposed(b->c, role);
	p->start = part == PART_WEIGHT && (role == PARAMETER_DELTA_NORM || role == PARAMETER_DELTA_DT_BIAS ||
	                                   (is_norm(role) && !b->c->norm_plus_one))
	               ? 1
	               : 0;
	l->parameters++;
	if (p->in_state)
		return;
	if (part == PART_WEIGHT)
		l->elements += p->count;
	if (!p->frozen && (part == PART_LORA_A || part == PART_LORA_B))
		l->trained += p->count / tuning_stored_rank(b->tuning) * b->tuning->rank;
	else if (!p->frozen)
		l->trained += p->count;
}

static void list_block(const struct builder *b, int unit)
{
	for (size_t i = 0; i < ARRAY_SIZE(block_order); i++) {
		enum parameter_role role = block_order[i];

		if (!role_of_experts(b->c, role)) {
			add_parameter(b, role, PART_WEIGHT, unit, 0);
			continue;
		}
		for (int e = 0; e < b->c->experts && role == PARAMETER_GATE; e++) {
			add_parameter(b, PARAMETER_GATE, PART_WEIGHT, unit, e);
			add_parameter(b, PARAMETER_UP, PART_WEIGHT, unit, e);
			add_parameter(b, PARAMETER_DOWN, PART_WEIGHT, unit, e);
		}
	}
}

static void list_parameters(const struct builder *b)
{
	int last = b->l->base_units - 1;

	add_parameter(b, PARAMETER_EMBEDDING, PART_WEIGHT, 0, 0);
	add_parameter(b, PARAMETER_POSITIONS, PART_WEIGHT, 0, 0);
	for (int u = 1; u < last; u++)
		list_block(b, u);
	add_parameter(b, PARAMETER_FINAL_NORM, PART_WEIGHT, last, 0);
	add_parameter(b, PARAMETER_FINAL_NORM_BIAS, PART_WEIGHT, last, 0);
	add_parameter(b, PARAMETER_HEAD, PART_WEIGHT, last, 0);
	add_parameter(b, PARAMETER_VALUE, PART_WEIGHT, last, 0);
	for (int u = 1; u < last; u++)
		for (size_t i = 0; i < ARRAY_SIZE(block_order); i++)
			for (int part = PART_LORA_A; part < PARAMETER_PARTS; part++)
				add_parameter(b, block_order[i], (enum parameter_part)part, u, 0);
}

/* What lies between the end of a matrix and what comes next in its unit. */
static void find_gap(struct model_layout *l, const struct model_parameter *p)
{
	struct model_unit *u = &l->unit[p->unit];
	int64_t end = p->offset + p->count, next = u->matrices;

	for (int part = 0; part < PARAMETER_PARTS; part++)
		for (int role = 0; role < PARAMETER_ROLES; role++)
			if (u->offset[part][role] >= end)
				next = MIN(next, u->offset[part][role]);
	if (next <= end)
		return;
	l->gap[l->gaps] = (struct model_gap){end, next - end, u->gap};
	u->gap = l->gaps++;
}

/* Whether another expert's matrix lies directly behind it, or that of up of the same expert. */
static bool is_followed(const struct model_config *c, const struct model_parameter *p)
{
	return role_of_experts(c, p->role) && (p->role == PARAMETER_GATE || p->expert + 1 < c->experts);
}

static int list_gaps(const struct model_config *c, struct model_layout *l, struct error *err)
{
	l->gap = calloc((size_t)l->parameters, sizeof(*l->gap));
	if (!l->gap)
		return error_oom(err);
	for (int i = 0; i < l->parameters; i++)
		if (l->parameter[i].matrix && !is_followed(c, &l->parameter[i]))
			find_gap(l, &l->parameter[i]);
	return 0;
}

static void builder_free(struct builder *b)
{
	free(b->choice);
}

int model_layout_create_tuned(const struct model_config *c, const struct model_tuning *tuning,
                              struct model_layout **out, struct error *err)
{
	_cleanup_(model_layout_freep) struct model_layout *l = calloc(1, sizeof(*l));
	_cleanup_(builder_free) struct builder b = {.l = l, .c = c, .tuning = tuning};
	size_t units = 2 * ((size_t)c->layers + 2);
	size_t matrices = 3 * (size_t)c->experts * (size_t)c->layers;
	int r;

	if (!l)
		return error_oom(err);
	l->base_units = c->layers + 2;
	l->unit = calloc(units, sizeof(*l->unit));
	l->parameter = calloc(units * PARAMETER_ROLES * PARAMETER_PARTS + matrices, sizeof(*l->parameter));
	b.choice = calloc((size_t)l->base_units * PARAMETER_ROLES, sizeof(*b.choice));
	if (!l->unit || !l->parameter || !b.choice)
		return error_oom(err);
	if ((r = choice_make(c, tuning, b.choice, err)) < 0)
		return r;
	place_units(&b);
	list_parameters(&b);
	if ((r = list_gaps(c, l, err)) < 0)
		return r;
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
	free(l->gap);
	free(l);
}

const struct model_parameter *model_layout_find(const struct model_layout *l, const char *name)
{
	for (int i = 0; i < l->parameters; i++)
		if (str_eq(l->parameter[i].name, name))
			return &l->parameter[i];
	return NULL;
}

void model_layout_turn(const struct model_parameter *p, bool back, float *to, const float *from)
{
	int64_t rows = p->shape[back ? 1 : 0], columns = p->shape[back ? 0 : 1];

	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < columns; j++)
			to[j * rows + i] = from[i * columns + j];
}

const struct model_parameter *model_layout_matrix(const struct model_layout *l,
                                                  const struct model_parameter *part)
{
	for (int i = 0; i < l->parameters; i++)
		if (l->parameter[i].part == PART_WEIGHT && l->parameter[i].role == part->role &&
		    l->parameter[i].base == part->base)
			return &l->parameter[i];
	return NULL;
}
