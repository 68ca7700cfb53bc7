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

enum { CHOICES_MAX = 5 };
/* The same and its rivals, the fastest by the prediction first: of each other strategy the plan that
 * choose_plan would take, where that takes at most `within` times the time. All of them leave a twentieth of
 * the memory free, else there is none but the first; and rivals take no more of the host's memory or disk
 * than the first. Returns how many there are in out, [CHOICES_MAX]. */
int choose_rivals(const struct estimate_input *in, bool recompute, double within, struct estimate *out,
                  struct error *err);
/* What out has of e. */
void choose_take(const struct estimate *e, struct train_options *out);
