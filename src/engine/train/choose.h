/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.strategy = "auto", and the refusal of what cannot fit, of a worker that has its device. */
#pragma once

#include "engine/device/device.h"
#include "engine/train/estimate.h"

/* The hardware of `nodes` with per_node devices like this one. Of a GPU that the table does not know, the
 * rates are those of its first row. */
void choose_hardware(const struct device *dev, int nodes, int per_node, struct hardware_set *out);
/* The fastest that fits, else the one of the least memory, of those with the strategy and the recomputation
 * that in->options has, where they are not to be chosen. Into `out`; a function of the arguments alone. */
int choose_plan(const struct estimate_input *in, bool strategy, bool recompute, struct train_options *out,
                struct error *err);
