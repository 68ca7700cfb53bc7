/* SPDX-License-Identifier: Apache-2.0 */
/* The runs that have not ended, in the order of their ids: the only ones that stay in memory. */
#pragma once

#include "cluster/run.h"

struct queue {
	struct run **list; /* owned */
	size_t count, capacity;
	/* In the same order: all runs with parts or lost parts, few of many. Some have none any more, until
	 * queue_drop_unplaced. */
	struct run **placed;
	size_t placed_count;
};

/* Takes r, whose id has to be the highest so far. */
int queue_push(struct queue *q, struct run *r, struct error *err);
struct run *queue_find(const struct queue *q, int64_t id);
struct run *queue_take(struct queue *q, int64_t id); /* out of it, the caller's; NULL: not there */
/* A run of the queue has got parts or lost parts. Whoever goes through the list by index upwards meanwhile
 * passes over no run. */
void queue_note_placed(struct queue *q, struct run *r);
void queue_drop_unplaced(struct queue *q);
void queue_clear(struct queue *q);
