/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer over flat units: gradient norm, clipping, AdamW. */
#pragma once

#include "base/error.h"
#include "engine/shard/shard.h"

struct adamw_options {
	double learning_rate, beta1, beta2, epsilon, weight_decay;
	bool decay_all; /* decay norms and biases, too */
	double clip;    /* the largest gradient norm; 0: no limit */
	int64_t step;   /* 1 for the first step */
	uint64_t seed;  /* of the stochastic rounding of weights without a master copy */
};

/* Device memory that a step needs. */
struct adamw_work {
	double *sum_squares;
	float *scale, *norm;
};

/* Waits for each unit's reduction, computes the norm over all parameters and ranks into work->norm, clips and
 * steps, and starts the gathers where weights are sharded. */
int adamw_step(struct shard *s, const struct adamw_options *o, const struct adamw_work *work,
               struct error *err);
