/* SPDX-License-Identifier: Apache-2.0 */
/* The runs that have not ended, in the order of their ids: the only ones that stay in memory. */
#pragma once

#include "base/name_index.h"
#include "cluster/run.h"

struct node_runs;

struct queue {
	struct run **list; /* owned */
	size_t count, capacity;
	/* In the same order: all runs with parts or lost parts, few of many. Some have none any more, until
	 * queue_drop_unplaced. */
	struct run **placed;
	size_t placed_count;
	/* Of queue_next_on: for each node the ids of the runs that have, or had, something on it. */
	struct node_runs *nodes;
	size_t node_count;
	struct name_index node_index; /* of the nodes */
	bool incomplete;              /* memory was missing for an id: the placed runs are gone through */
};

/* Takes r, whose id has to be the highest so far. */
int queue_push(struct queue *q, struct run *r, struct error *err);
struct run *queue_find(const struct queue *q, int64_t id);
struct run *queue_take(struct queue *q, int64_t id); /* out of it, the caller's; NULL: not there */
/* A run of the queue has got parts or lost parts. Whoever goes through the list by index upwards meanwhile
 * passes over no run. */
void queue_note_placed(struct queue *q, struct run *r);
/* The same, for something on this node alone that was added. */
void queue_note_placed_on(struct queue *q, struct run *r, const char *node);
/* The first run behind the id `after` that has a part or a lost part on the node; NULL: none. */
struct run *queue_next_on(struct queue *q, const char *node, int64_t after);
void queue_drop_unplaced(struct queue *q);
void queue_clear(struct queue *q);
