/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a step will take: a model of costs over the rates of hardware.h.
 *
 * - A matrix product takes the longer of its operations over the peak times the share that products reach,
 *   and its bytes over the memory's bandwidth, and the time to start it.
 * - Attention takes its operations (causal: half of T·T) over the peak times its own shares.
 * - All else, the optimizer with it, takes its bytes over the bandwidth.
 * - A collective takes the bytes that enter a rank over the link of its node, or those that enter a node over
 *   the links of all its ranks, whichever is longer, and a latency for each step; where ranks share the
 *   processors of a CPU that has been measured, the time until the others have had their turn, too.
 * - What of it the computation hides follows from the order of the step: two steps are played through unit by
 *   unit, with a lane for gathers and one for reductions, and the second is the answer.
 */
#pragma once

#include <stdint.h>

#include "engine/model/model_config.h"
#include "engine/train/hardware.h"
#include "engine/train/options.h"
#include "engine/train/plan.h"

struct cost {
	/* Seconds of a step on a rank. */
	double forward, backward, recompute, head, optimizer;
	double generation;    /* of a policy: of its completions, if all are as long as they may be */
	double communication; /* of its collectives, hidden or not */
	double exposed;       /* that the computation waits for them, or is slowed down by them */
	double step;
	int64_t tokens; /* of a step, all ranks */
	double tokens_per_second;
	/* model_config_flops, less what is not computed of what is frozen, over the devices' peak; 0: the
	 * peak is not known */
	double mfu;
};

/* Rows are max_row tokens long. Units and ranks are those of the plan. */
void cost_of_step(const struct plan *plan, const struct model_config *c, const struct train_options *o,
                  int64_t max_row, const struct hardware_set *where, struct cost *out);

/* The parts, for tests. type: of a and b; c_bytes: of an element of C; add: C is read, too. */
double cost_gemm(const struct hardware *h, enum dtype type, enum rate_product kind, double m, double n,
                 double k, double c_bytes, bool add);
/* A gather, or a reduce-scatter, of so many bytes in all over ranks of which per_node are on a node. An
 * all-reduce takes as long as both. */
double cost_gather(const struct hardware *h, double bytes, int nodes, int per_node);
double cost_reduce(const struct hardware *h, double bytes, int nodes, int per_node);
