/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the controller: the flush, and who waits for it. */
#pragma once

#include "dtraind/controller.h"

/* Schedules, commits, answers, starts, tells: in this order. */
void controller_flush(struct controller *c);
int controller_write(struct controller *c); /* dirty runs into the store, and the commit */
void controller_arm_soft(struct controller *c);
void submissions_free(struct controller *c);
/* The waiters of a run that has changed, and the feed of events. */
void waiters_tell(struct controller *c, const struct run *r);
/* An attempt that the controller knows nothing of, or has given up. */
void dispatch_stop_stray(struct controller *c, const char *node, int64_t run, int64_t attempt);
