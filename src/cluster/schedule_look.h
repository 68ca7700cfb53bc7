/* SPDX-License-Identifier: Apache-2.0 */
/* How the scheduler sees the nodes for one run. */
#pragma once

#include "cluster/schedule_reason.h"

/* The nodes that a run may use, and their places in the list of all nodes. */
struct choice {
	const struct sched_node *nodes;
	const size_t *places; /* NULL: all of them */
	size_t count;
	uint64_t digest;     /* of places */
	const char *unknown; /* a host that it names, and that is not there; NULL: none */
};

static inline size_t choice_place(const struct choice *c, size_t i)
{
	return c->places ? c->places[i] : i;
}

static inline const struct sched_node *choice_node(const struct choice *c, size_t i)
{
	return &c->nodes[choice_place(c, i)];
}

/* scratch: for a run that keeps nothing from pass to pass; *out is valid as long as that is. -ENOMEM. */
int sched_choose(struct sched_names *names, const struct sched_run *r, struct sched_hosts *scratch,
                 struct choice *out, struct error *err);
size_t sched_free_slots(const struct sched_node *n);
/* Is it up, and could it hold its part of the run if it were empty? */
bool sched_usable(const struct sched_node *n, const struct need *need);
/* Has the ith of the nodes enough free slots now? kept: of all nodes, those that a run before this one waits
 * for; NULL: none. */
bool sched_fits(const struct choice *c, size_t i, const bool *kept, const struct need *need);
/* kept: the same. */
struct view sched_look(const struct choice *c, const bool *kept, const struct sched_run *r);
