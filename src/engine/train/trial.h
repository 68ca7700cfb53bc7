/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a step, measured before the run begins: parallel.strategy = "auto" takes the fastest of the
 * plans whose predictions lie too close to each other. */
#pragma once

#include "engine/comm/comm.h"
#include "engine/dataset/dataset.h"
#include "engine/device/device.h"
#include "engine/model/model_config.h"
#include "engine/train/options.h"

/* About as many seconds as trial_run takes, of a plan whose step takes `step`. */
double trial_seconds(double step, double parameters, int ranks);
/* Runs steps of a trainer with these options, on the first rows of the data and random weights, and frees all
 * of it again. *seconds is the median, the same on all ranks. Every rank calls it at the same time; comm is
 * that of all ranks, which the trainer's own is made from. A failure is that of the run: ranks may wait for
 * this one. */
int trial_run(struct device *dev, struct comm *comm, const struct model_config *c,
              const struct train_options *options, const struct dataset *train, const struct dataset *eval,
              double *seconds, struct error *err);
