/* SPDX-License-Identifier: Apache-2.0 */
/* What this node keeps of runs that have ended: each hour, and when root asks, the logs and metrics of runs
 * beyond keep_days and keep_runs are removed. */
#pragma once

#include "dtraind/daemon.h"

struct retention;

int retention_create(struct daemon *d, struct retention **out, struct error *err);
void retention_destroy(struct retention *retention); /* what is being removed, is removed; NULL: nothing */
