/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.strategy = "auto", and the refusal of what cannot fit, of a worker that has its device. */
#pragma once

#include "engine/device/device.h"
#include "engine/train/estimate.h"

/* The hardware of `nodes` with per_node devices like this one. Of a GPU that the table does not know, the
 * rates are those of its first row. */
void choose_hardware(const struct device *dev, int nodes, int per_node, struct hardware_set *out);
/* The fastest strategy that fits, with the recomputation that in->options has; where none fits, the one of
 * the least memory. A function of the arguments alone. */
int choose_strategy(const struct estimate_input *in, enum shard_strategy *out, struct error *err);
