/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where each parameter lies. A unit is a flat run of elements that is gathered, reduced and stepped as one:
 * unit 0 is the embedding, 1 … layers the blocks, layers + 1 the final norm and (untied) the head. Within a
 * unit the matrices come first, then norms and biases, so that weight decay is one range; q, k, v lie behind
 * each other, and gate and up, so that each group is one GEMM although a checkpoint has separate tensors.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/model/model_config.h"

enum parameter_role {
	PARAMETER_EMBEDDING,
	PARAMETER_INPUT_NORM,
	PARAMETER_Q,
	PARAMETER_K,
	PARAMETER_V,
	PARAMETER_O,
	PARAMETER_Q_NORM,
	PARAMETER_K_NORM,
	PARAMETER_POST_NORM,
	PARAMETER_GATE,
	PARAMETER_UP,
	PARAMETER_DOWN,
	PARAMETER_Q_BIAS,
	PARAMETER_K_BIAS,
	PARAMETER_V_BIAS,
	PARAMETER_O_BIAS,
	PARAMETER_GATE_BIAS,
	PARAMETER_UP_BIAS,
	PARAMETER_DOWN_BIAS,
	PARAMETER_FINAL_NORM,
	PARAMETER_HEAD,
	PARAMETER_POSITIONS,          /* learned, behind the embedding */
	PARAMETER_ATTENTION_OUT_NORM, /* of attention's output, before it is added to the residual stream */
	PARAMETER_MLP_OUT_NORM,
	PARAMETER_INPUT_NORM_BIAS,
	PARAMETER_POST_NORM_BIAS,
	PARAMETER_FINAL_NORM_BIAS,
	PARAMETER_ROLES
};

struct model_parameter {
	char name[72]; /* as Hugging Face names it */
	enum parameter_role role;
	int unit;
	int64_t offset; /* elements from the start of the unit */
	int dims;
	int64_t shape[2]; /* [out, in] (transposed: [in, out]), or [n] */
	int64_t count;
	bool matrix; /* else a norm or a bias: no weight decay by default */
	float start; /* of a norm or a bias: what a model from nothing begins with */
};

struct model_unit {
	int64_t count;                   /* elements, gaps for alignment included; the gaps are always 0 */
	int64_t matrices;                /* elements before the norms and biases */
	int64_t offset[PARAMETER_ROLES]; /* -1: not in this unit */
};

struct model_layout {
	int units, parameters;
	struct model_unit *unit;
	struct model_parameter *parameter; /* in the order of transformers' state_dict */
	int64_t elements;                  /* of all parameters, without gaps */
};

int model_layout_create(const struct model_config *c, struct model_layout **out, struct error *err);
void model_layout_free(struct model_layout *layout);
DEFINE_CLEANUP(struct model_layout *, model_layout_free)
/* NULL: none of that name. lm_head.weight of a tied model is none. */
const struct model_parameter *model_layout_find(const struct model_layout *layout, const char *name);

/* Produces elements [first, first + n) of a parameter. */
typedef int (*model_fill_fn)(void *context, const struct model_parameter *p, int64_t first, int64_t n,
                             float *out, struct error *err);
/* The fill of a model from nothing: normal(0, std) for matrices, each parameter's start for norms and biases.
 * A value is a function of (seed, parameter, element) alone (Philox 4x32-10), hence the same for any number
 * of ranks. */
struct model_init {
	uint64_t seed;
	double std;
};
int model_init_fill(void *init, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err);
