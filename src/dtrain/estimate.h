/* SPDX-License-Identifier: Apache-2.0 */
/* What other subcommands ask of estimate. */
#pragma once

#include <jansson.h>

#include "dtrain/client.h"

/* A training run that fits on no device of the cluster, even with rows of one token, as far as can be seen
 * from here: the exit status, after the reason and what would fit were printed. 0: nothing speaks against
 * it. */
int estimate_refuse(struct client *client, const json_t *config);
