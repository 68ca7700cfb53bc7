/* SPDX-License-Identifier: Apache-2.0 */
/* What runs on this node, without the controller. */
#pragma once

#include <stdbool.h>

#include "dtrain/client.h"

/* Prints what has not ended here. Returns the exit status. */
int local_list_runs(struct client *client, bool json);
