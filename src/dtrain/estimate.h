/* SPDX-License-Identifier: Apache-2.0 */
/* What other subcommands ask of estimate. */
#pragma once

#include <jansson.h>

#include "config/run.h"
#include "dtrain/client.h"

/* A training run that fits on no device of the cluster, even with rows of one token, as far as can be seen
 * from here: the exit status, after the reason and what would fit were printed. 0: nothing speaks against
 * it. */
int estimate_refuse(struct client *client, const json_t *config);
/* The same of train.precision = "fp8" where no device of the cluster that the run could get multiplies it, as
 * far as their names say. */
int estimate_refuse_fp8(struct client *client, const struct run_config *config);
