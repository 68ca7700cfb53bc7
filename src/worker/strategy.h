/* SPDX-License-Identifier: Apache-2.0 */
/* The strategy of a run and what it recomputes, where parallel.strategy or train.recompute is "auto", and
 * whether it fits. */
#pragma once

#include "config/run.h"
#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "engine/model/model_config.h"
#include "engine/train/options.h"
#include "worker/environment.h"

/* Every rank at the same time, before anything is allocated; comm may be NULL for one. Sets in options what
 * is "auto": rank 0 chooses. -ENOMEM where the plan is larger than the memory of the device, with what would
 * fit. max_row: tokens of the longest row. began: on rank 0, the strategy that "auto" keeps, where it fits;
 * NULL: none. */
int strategy_choose(const struct run_config *c, const struct environment *env, struct device *dev,
                    struct comm *comm, const struct model_config *model, int64_t max_row, const char *began,
                    struct train_options *options, struct error *err);
