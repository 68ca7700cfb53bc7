/* SPDX-License-Identifier: Apache-2.0 */
/* Which matrices are multiplied as one, and where they and their outputs lie (linear.c). */
#include "engine/model/linear.h"
#include "engine/model/roles.h"

int64_t linear_rows_of(const struct model *m, enum parameter_role role)
{
	switch (role) {
	case PARAMETER_Q:
		return m->c.fused_qkv ? m->qkv : m->c.gated_attention ? 2 * m->q : m->q;
	case PARAMETER_K:
	case PARAMETER_V:
		return m->kv;
	case PARAMETER_O:
	case PARAMETER_DOWN:
		return m->c.hidden;
	case PARAMETER_GATE:
		return m->c.fused_mlp ? m->gate_up : m->c.intermediate;
	case PARAMETER_UP:
		return m->c.intermediate;
	case PARAMETER_ROUTER:
		return m->c.experts;
	case PARAMETER_VALUE:
		return 1;
	case PARAMETER_DELTA_QKV:
		return m->channels;
	case PARAMETER_DELTA_Z:
		return m->delta_value;
	case PARAMETER_DELTA_B:
	case PARAMETER_DELTA_A:
		return m->c.delta_value_heads;
	case PARAMETER_DELTA_OUT:
		return m->c.hidden;
	default: /* the head */
		return model_config_outputs(&m->c);
	}
}

enum parameter_role linear_bias_of(enum parameter_role role)
{
	switch (role) {
	case PARAMETER_Q:
		return PARAMETER_Q_BIAS;
	case PARAMETER_K:
		return PARAMETER_K_BIAS;
	case PARAMETER_V:
		return PARAMETER_V_BIAS;
	case PARAMETER_O:
		return PARAMETER_O_BIAS;
	case PARAMETER_GATE:
		return PARAMETER_GATE_BIAS;
	case PARAMETER_UP:
		return PARAMETER_UP_BIAS;
	case PARAMETER_DOWN:
		return PARAMETER_DOWN_BIAS;
	default: /* the heads, a router, and linear attention */
		return PARAMETER_ROLES;
	}
}

int64_t linear_columns_in(const struct model *m, enum parameter_role role)
{
	return role == PARAMETER_O           ? m->q
	       : role == PARAMETER_DOWN      ? m->c.intermediate
	       : role == PARAMETER_DELTA_OUT ? m->delta_value
	                                     : m->c.hidden;
}

/* Whether b lies right behind n elements of a, or both are missing. */
static bool lies_behind(const struct model *m, int unit, enum parameter_role a, int64_t n,
                        enum parameter_role b)
{
	int at_a = model_place(m, unit, PART_WEIGHT, a), at_b = model_place(m, unit, PART_WEIGHT, b);

	if (at_a != at_b || at_a < 0)
		return at_a == at_b;
	return m->layout->unit[at_a].offset[PART_WEIGHT][b] ==
	       m->layout->unit[at_a].offset[PART_WEIGHT][a] + n;
}

bool linear_is_adapted(const struct model *m, int unit, enum parameter_role role)
{
	return model_place(m, unit, PART_LORA_A, role) >= 0;
}

struct linear_group linear_find_group(const struct model *m, int unit, enum parameter_role leader)
{
	struct linear_group g = {.in = linear_columns_in(m, leader)};
	enum parameter_role last = PARAMETER_ROLES;

	for (enum parameter_role role = leader; role < PARAMETER_ROLES; role = model_layout_next(role)) {
		int64_t out = linear_rows_of(m, role);

		if (model_place(m, unit, PART_WEIGHT, role) < 0)
			continue;
		if (last < PARAMETER_ROLES &&
		    lies_behind(m, unit, last, linear_rows_of(m, last) * g.in, role) &&
		    lies_behind(m, unit, linear_bias_of(last), linear_rows_of(m, last),
		                linear_bias_of(role)) &&
		    (!m->dora || linear_is_adapted(m, unit, last) == linear_is_adapted(m, unit, role)))
			g.product[g.n - 1].out += out;
		else
			g.product[g.n++] = (struct linear_columns){role, g.out, out};
		if (linear_is_adapted(m, unit, role))
			g.adapter[g.adapters++] = (struct linear_columns){role, g.out, out};
		g.out += out;
		last = role;
	}
	return g;
}

bool linear_is_transposed(const struct model *m, int unit, enum parameter_role role)
{
	int place = model_place(m, unit, PART_WEIGHT, role);

	return role_transposed(&m->c, role) && !(m->o.quantized && m->layout->unit[place].frozen);
}

char *linear_at_column(const struct model *m, const void *y, int64_t column)
{
	return (char *)(uintptr_t)y + (size_t)column * m->size;
}

bool linear_is_listing(const struct model *m)
{
	return m->listing != NULL;
}

void linear_compute(const struct model *m, const struct device_gemm *product)
{
	if (linear_is_listing(m))
		m->listing->each(m->listing->context, product);
	else
		device_gemm(m->dev, product);
}
