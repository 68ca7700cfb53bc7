/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler: a pure function from nodes and queue to placements. First come, first served: a run that
 * could run here but has to wait keeps the nodes it may use from those behind it. A run that no node now up
 * could ever satisfy waits without holding up the others, and so does one that waits for the end of other
 * runs of its user; it only holds up the later ones of that user. A gang gets all its slots or none.
 *
 * All slots of a run are of one kind. One that leaves the kind open gets GPUs where the cluster has nodes
 * with enough of them, be they taken, drained or down; CPU slots only where it has none.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "cluster/schedule_hosts.h"
#include "wire/run_record.h"

enum slot_kind {
	SLOT_ANY, /* of a node: not known, it has never been heard of. Of a run: see above */
	SLOT_CPU,
	SLOT_GPU,
};

struct sched_node {
	const char *name;
	bool up, drained;
	const char *unreachable; /* why it is not up although it reports; NULL: it does not */
	const char *failing;     /* likewise, where it is reached and starts nothing */
	size_t slots;            /* 0 while it has never been heard of */
	bool *taken;             /* slots entries; scheduling marks what it gives away */
	/* The run for which a free slot is kept; 0: none. Such a slot is taken for all others.
	 * NULL: none is. */
	int64_t *kept_for;
	size_t broken; /* of these, drained: taken until somebody resumes them */
	/* slots × slots, as topology.h has them; NULL: one is as good as another */
	const unsigned char *links;
	enum slot_kind kind;
	bool awaited; /* never heard of, but the time in which it has to report has not passed */
};

/* A user who may have so many slots, in all runs together. */
struct sched_user {
	int64_t uid;
	const char *name;
	int64_t limit;
	int64_t held; /* scheduling adds what it gives away */
	/* the first run that waits because of the limit; 0: none. Those behind it wait, too */
	int64_t waiting;
};

struct sched_run {
	int64_t id;
	struct sched_user *user; /* whose it is; NULL: there is no limit */
	int64_t nodes, most;     /* at least, and (more than that) at most: as many as have room now */
	/* Of these, so many are spares, which get no ranks, as far as at least `working` others are left. */
	int64_t spares, working;
	const struct spare_record *held; /* what is kept for it now: it takes these nodes first */
	size_t held_count;
	/* 0: every slot of each node, and as many on each: the most that so many nodes have in common. In
	 * what was placed it is that number. */
	int64_t per_node;
	enum slot_kind kind;
	char *const *hosts; /* NULL-terminated; NULL: any */
	/* Kept for the next pass, with the names in hosts; NULL: the nodes that they name are found in each
	 * pass. */
	struct sched_hosts *found;
	char *const *avoid; /* nodes that it gets only where it cannot be placed now without them; the same */
	/* Out: where it goes, or why it waits. */
	bool placed;
	int64_t placed_nodes, placed_spares;
	/* placed_nodes entries, in file order, and then the spares; owned by the caller once placed */
	size_t *chosen;
	int *slots; /* as many × per_node */
	char reason[200];
};

/* Could it run if all nodes were up and empty, and its user had no other run? -ENODEV: no, and its reason
 * says why not. Of the nodes name, slots, kind and awaited count alone; taken may be NULL where none is up.
 */
int schedule_possible(const struct sched_node *nodes, size_t node_count, struct sched_run *r,
                      struct error *err);
/* One more spare for a run under way, whose nodes are those that `has` says; nodes = most = 1, and per_node
 * is what the others have. */
int schedule_spare(struct sched_node *nodes, size_t node_count, const bool *has, struct sched_run *r,
                   struct error *err);
/* Queue in order, until `most` runs are placed. *done: so many of the queue have been looked at; those behind
 * them are as they came. -ENOMEM: what is placed so far stands. */
int schedule_some(struct sched_node *nodes, size_t node_count, struct sched_run *queue, size_t count,
                  size_t most, size_t *done, struct error *err);
/* The whole queue. */
int schedule(struct sched_node *nodes, size_t node_count, struct sched_run *queue, size_t count,
             struct error *err);
