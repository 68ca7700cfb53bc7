/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The strategy of a run and what it recomputes, where parallel.strategy or train.recompute is "auto", and
 * whether it fits. Rank 0 chooses by what dtrain estimate predicts. Where it predicts that others are about
 * as fast, and the run is long enough (parallel.trial), a few steps of each are run, and the fastest is
 * taken.
 */
#pragma once

#include "config/run.h"
#include "engine/comm/comm.h"
#include "engine/dataset/dataset.h"
#include "engine/device/device.h"
#include "engine/model/model_config.h"
#include "engine/train/choose.h"
#include "engine/train/options.h"
#include "worker/environment.h"

struct strategy_run {
	const struct run_config *config;
	const struct environment *env;
	struct device *dev;
	struct comm *comm; /* NULL: one rank */
	const struct model_config *model;
	const struct dataset *train, *eval; /* eval: NULL: none */
	/* On rank 0, of the checkpoint that the run goes on from: its step and the rows that it has seen (<
	 * 0: not known); and its strategy, which "auto" keeps where it fits (NULL: it does not). */
	int64_t done, examples;
	const char *began;
};

/* Plans, the same on all ranks. */
struct strategy_trials {
	struct train_options options[CHOICES_MAX];
	int n; /* 0: none is tried */
};

/* Every rank at the same time, before anything is allocated. Sets in options what is "auto": rank 0 chooses.
 * -ENOMEM where the plan is larger than the memory of the device, with what would fit. The trials are those
 * that strategy_try is to make. */
int strategy_choose(const struct strategy_run *run, struct train_options *options,
                    struct strategy_trials *trials, struct error *err);
/* Every rank at the same time, with nothing allocated. Sets in options the fastest of the trials, of which
 * there are some. */
int strategy_try(const struct strategy_run *run, const struct strategy_trials *trials,
                 struct train_options *options, struct error *err);
