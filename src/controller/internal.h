/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the controller: the flush, and who waits for it. */
#pragma once

#include "controller/controller.h"

/* Schedules, commits, answers, starts, tells: in this order. */
void controller_flush(struct controller *c);
int controller_write(struct controller *c); /* dirty runs into the store, and the commit */
void controller_arm_soft(struct controller *c);
void submissions_free(struct controller *c);
/* The waiters of a run that has changed, and the feed of events. */
void waiters_tell(struct controller *c, const struct run *r);
/* An attempt that the controller knows nothing of, or has given up. */
void dispatch_stop_foreign(struct controller *c, const char *node, int64_t run, int64_t attempt);

/* foreign.c: what a node has or knows that this store does not. */
/* Was this attempt, as a node reports it, not started by a controller with this store? */
bool foreign_is(struct controller *c, const json_t *report);
/* It is noted, shown, and left alone. */
void foreign_note(struct controller *c, struct member *m, const json_t *report);
/* What the node knows of epochs and run numbers: ours become higher. */
void foreign_learn(struct controller *c, struct member *m, const json_t *heartbeat);
/* Once all nodes have reported, or are down, numbers are given and runs are placed. */
void controller_settle(struct controller *c);
/* True: it is taken, and submitted then. */
bool controller_hold(struct controller *c, struct http_request *request, struct run *r, const char *config);
void held_free(struct controller *c);

void dispatch_stop_stray(struct controller *c, const char *node, int64_t run, int64_t attempt);
