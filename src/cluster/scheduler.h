/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler: a pure function from nodes and queue to placements. First come, first served: a run that
 * could run here but has to wait keeps the nodes it may use from those behind it. A run that no node now up
 * could ever satisfy waits without holding up the others. A gang gets all its slots or none.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct sched_node {
	const char *name;
	bool up, drained;
	size_t slots;  /* 0 while it has never been heard of */
	bool *taken;   /* slots entries; scheduling marks what it gives away */
	size_t broken; /* of these, drained: taken until somebody resumes them */
	const unsigned char
	    *links; /* slots × slots, as topology.h has them; NULL: one is as good as another */
};

struct sched_run {
	int64_t id, nodes, per_node;
	char *const *hosts; /* NULL-terminated; NULL: any */
	/* Out: where it goes, or why it waits. */
	bool placed;
	size_t *chosen; /* nodes entries, in file order; owned by the caller once placed */
	int *slots;     /* nodes × per_node */
	char reason[200];
};

/* Could it run if all nodes were up and empty? False: its reason says why not. */
bool schedule_possible(const struct sched_node *nodes, size_t node_count, struct sched_run *r);
/* Queue in order. -ENOMEM: what is placed so far stands. */
int schedule(struct sched_node *nodes, size_t node_count, struct sched_run *queue, size_t count,
             struct error *err);
