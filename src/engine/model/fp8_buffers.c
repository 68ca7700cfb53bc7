/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of what products in fp8 are made of (fp8.c), which a plan counts without a device. */
#include <errno.h>
#include <stdlib.h>

#include "engine/model/internal.h"

static const enum parameter_role leaders[FP8_GROUPS] = {PARAMETER_Q, PARAMETER_O, PARAMETER_GATE,
                                                        PARAMETER_DOWN};

/* Rows and columns of the matrices that a group has together. */
static int64_t group_out(const struct model *m, int group)
{
	return leaders[group] == PARAMETER_Q      ? m->qkv
	       : leaders[group] == PARAMETER_GATE ? m->gate_up
	                                          : m->c.hidden;
}

static int64_t group_in(const struct model *m, int group)
{
	return leaders[group] == PARAMETER_O      ? m->q
	       : leaders[group] == PARAMETER_DOWN ? m->c.intermediate
	                                          : m->c.hidden;
}

int model_fp8_check(const struct model *m, struct error *err)
{
	const struct {
		const char *name;
		int64_t n;
	} sizes[] = {{"hidden size", m->c.hidden},
	             {"intermediate size", m->c.intermediate},
	             {"width of all heads of queries", m->q},
	             {"width of all heads of keys", m->kv}};

	if (m->o.fp8 && m->c.experts)
		return error_set(
		    err, -EINVAL,
		    "train.precision = \"fp8\" is not supported for mixtures of experts; use bf16");
	if (m->o.fp8 && m->c.delta_value_heads)
		return error_set(err, -EINVAL,
		                 "train.precision = \"fp8\" is not supported for linear attention; use bf16");
	for (size_t i = 0; m->o.fp8 && i < ARRAY_SIZE(sizes); i++)
		if (sizes[i].n % FP8_MULTIPLE)
			return error_set(
			    err, -EINVAL,
			    "train.precision = \"fp8\" needs sizes that are multiples of %d, but the %s "
			    "of the model is %lld; bf16 works",
			    FP8_MULTIPLE, sizes[i].name, (long long)sizes[i].n);
	return 0;
}

/* ---- memory ---- */

/* The elements from one scale, with its largest magnitude behind it, to the next. */
enum { SCALE = FP8_SCALE_ALIGNMENT / sizeof(float) };

static void place_weights(struct model *m, struct arena *a)
{
	int blocks = m->o.fp8_shared ? 1 : m->c.layers;
	float *scales = arena_take(a, BUFFER_WEIGHTS, (size_t)(blocks * FP8_WEIGHTS * SCALE) * sizeof(float),
	                           "fp8 weights' scales");

	for (int i = 0; i < blocks * FP8_GROUPS; i++) {
		struct model_fp8_matrix *w = &m->fp8.weight[i * FP8_PRODUCTS];
		int group = i % FP8_GROUPS;
		size_t bytes = (size_t)(group_out(m, group) * group_in(m, group));

		w->codes = arena_take(a, BUFFER_WEIGHTS, bytes, "block %d fp8 weights", i / FP8_GROUPS);
		w->turned =
		    arena_take(a, BUFFER_WEIGHTS, bytes, "block %d turned fp8 weights", i / FP8_GROUPS);
		for (int j = 0; j < FP8_PRODUCTS; j++)
			w[j].scale = scales ? scales + (i * FP8_PRODUCTS + j) * SCALE : NULL;
	}
}

void model_fp8_place(struct model *m, struct arena *a)
{
	size_t tokens = (size_t)fp8_padded(m->o.max_tokens);
	size_t widest = (size_t)MAX(MAX(m->gate_up, m->qkv), m->c.hidden);
	float *scales, *amax;

	if (!m->o.fp8)
		return;
	place_weights(m, a);
	model_weights_changed(m);
	scales = arena_take(a, BUFFER_SCRATCH, (1 + FP8_PRODUCTS) * SCALE * sizeof(float), "fp8 scales");
	m->fp8.input.codes = arena_take(a, BUFFER_SCRATCH, tokens * (size_t)m->wide, "fp8 input");
	m->fp8.input.turned = m->fp8.input.codes;
	m->fp8.input.scale = scales;
	amax = arena_take(a, BUFFER_SCRATCH, (size_t)model_operands(&m->c) * sizeof(float),
	                  "fp8 largest magnitudes");
	for (int i = 0; i < model_operands(&m->c); i++)
		m->fp8.amax[i].at = amax ? amax + i : NULL;
	if (!m->o.training)
		return;
	m->fp8.gradient[0].codes = arena_take(a, BUFFER_SCRATCH, tokens * widest, "fp8 gradient");
	m->fp8.gradient[0].turned = arena_take(a, BUFFER_SCRATCH, tokens * widest, "turned fp8 gradient");
	for (int i = 0; i < FP8_PRODUCTS; i++)
		m->fp8.gradient[i].scale = scales ? scales + SCALE * (1 + i) : NULL;
}

void model_weights_changed(struct model *m)
{
	for (int i = 0; m->o.fp8 && i < (m->o.fp8_shared ? 1 : m->c.layers) * FP8_WEIGHTS; i++)
		m->fp8.weight[i].unit = -1;
}

void model_fp8_start(struct model *m)
{
	for (int i = 0; i < FP8_PRODUCTS; i++)
		m->fp8.gradient[i].unit = -1;
}

int model_fp8_group(enum parameter_role leader)
{
	int i = 0;

	while (leaders[i] != leader)
		i++;
	return i;
}
