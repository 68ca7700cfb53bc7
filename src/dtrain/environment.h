/* SPDX-License-Identifier: Apache-2.0 */
/* What of the submitter's environment goes with a run. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "config/run.h"
#include "dtrain/options.h"

struct environment_options {
	struct option_list variables; /* "NAME=VALUE", or "NAME": as it is here */
	struct option_list files;     /* of NAME=VALUE lines */
	bool none;                    /* nothing but these */
};

/* Into the run's environment, the later over the earlier: what a command takes along by itself, what its run
 * file says, the files, the variables. */
int environment_collect(const struct environment_options *options, struct run_config *config,
                        struct error *err);
