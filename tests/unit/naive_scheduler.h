/* SPDX-License-Identifier: Apache-2.0 */
/* What the scheduler has to decide, worked out in the plainest way. */
#pragma once

#include "cluster/scheduler.h"

/* As schedule_some. */
int naive_schedule_some(struct sched_node *nodes, size_t node_count, struct sched_run *queue, size_t count,
                        size_t most, size_t *done, struct error *err);
