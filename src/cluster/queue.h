/* SPDX-License-Identifier: Apache-2.0 */
/* The runs that have not ended, in the order of their ids: the only ones that stay in memory. */
#pragma once

#include "cluster/run.h"

struct queue {
	struct run **list; /* owned */
	size_t count, capacity;
};

/* Takes r, whose id has to be the highest so far. */
int queue_push(struct queue *q, struct run *r, struct error *err);
struct run *queue_find(const struct queue *q, int64_t id);
struct run *queue_take(struct queue *q, int64_t id); /* out of it, the caller's; NULL: not there */
void queue_clear(struct queue *q);
