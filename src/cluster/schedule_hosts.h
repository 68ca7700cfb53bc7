/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes that a run names, as places in the scheduler's list of nodes: a queue has thousands of runs that
 * name some, and each pass over it would compare all of these names with those of all nodes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/name_index.h"

struct sched_node;

/* Kept with the run from pass to pass; it has to be zero at first. */
struct sched_hosts {
	uint64_t nodes;      /* digest of the nodes' names that it was made for; 0: none */
	size_t *places;      /* upwards, each once */
	size_t count;        /* of these */
	uint64_t digest;     /* of these; two lists with the same one are the same, but for chance */
	const char *unknown; /* the first name that no node has, borrowed from the run; NULL: none */
};

/* The nodes of one pass, by name. */
struct sched_names {
	const struct sched_node *nodes;
	size_t count;
	uint64_t digest;         /* 0: not known yet */
	struct name_index index; /* empty: not made yet */
};

/* names: NULL-terminated. -ENOMEM. */
int sched_hosts_find(struct sched_names *n, char *const *names, struct sched_hosts *out);
/* The same, unless it was made for the same nodes: the names are those of the same run. */
int sched_hosts_update(struct sched_names *n, char *const *names, struct sched_hosts *out);
bool sched_places_have(const size_t *places, size_t count, size_t place); /* these go upwards */
void sched_hosts_clear(struct sched_hosts *h);
static inline void sched_names_clear(struct sched_names *n)
{
	name_index_free(&n->index);
}
