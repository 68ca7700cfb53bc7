/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run on more and more devices: 1, 2, 4 … 1,024 of one kind, on nodes of `per_node`. Each rank keeps its
 * micro-batch, so that the global batch grows with the devices. The times are those of cost.h, from the table
 * of rates and the links of hardware.h, or from measured rates.
 */
#pragma once

#include "engine/train/estimate.h"

enum { SCALE_POINTS = 11 };

struct scale_point {
	int nodes, per_node;
	bool possible; /* false: so many ranks cannot be divided so; e is not filled in */
	struct estimate e;
	/* Tokens a second of a device, as a share of those at the first possible point; 0: not known. */
	double efficiency;
};

/* in->where: the device, and the devices of a full node. strategy and recompute as in estimate_best: what the
 * run asks for, or -1. */
int scale_run(const struct estimate_input *in, int strategy, int recompute,
              struct scale_point points[SCALE_POINTS], struct error *err);
/* {"model":…,"devices":…,"step":…,"scale":[…]}; dtrain(1) describes it. */
int scale_to_json(const struct estimate_input *in, const struct scale_point points[SCALE_POINTS],
                  json_t **out, struct error *err);
