/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of an attempt on this node, and how they end: by themselves, or by a stop. Then nothing is left
 * of what they started, and of their temporary files.
 *
 * The process that has them is their parent and the subreaper of what they start. It calls
 * launch_ranks_reap_one() when a rank's pidfd is readable, launch_ranks_reap() after each SIGCHLD and once
 * when all were started, and launch_ranks_take_timer() when timer_fd is readable.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "node/launch/launch.h"
#include "wire/launch.h"

struct launch_ranks {
	/* Filled in by the caller, before the first rank is started. */
	const struct launch_description *description; /* borrowed */
	struct launch_user user;                      /* its groups are owned */
	struct launch_rank *list;                     /* owned */
	size_t count;
	int timer_fd; /* not blocking; the caller's */

	/* To be read, and `changed` to be cleared, by the caller. */
	bool changed;     /* what a report says may be another than before */
	bool ended;       /* nothing is left */
	char remark[128]; /* why the end takes so long; "": there is no reason known */

	/* Of ranks.c alone. */
	bool saving;             /* the save signal was sent, */
	bool stopping;           /* and TERM */
	bool rest_told;          /* also to what the ranks left when they ended by it */
	bool killing;            /* KILL was sent; again until nothing is left */
	bool removed;            /* the removal of temporary files was begun */
	pid_t remover;           /* the process that does it; 0: none */
	double term_at, kill_at; /* monotonic */
	double killed_since;
	/* The OOM killer's count when the ranks were started: that of our control group in this file, or,
	 * where there is none, that of the machine. */
	char *oom_file;
	int64_t oom_kills;
};

/* The count of the OOM killer begins: before the first rank is started. Takes the file, the memory.events of
 * the attempt's control group; NULL: that of the machine counts. */
void launch_ranks_watch_oom(struct launch_ranks *r, char *file);
/* The save signal, after `save` seconds TERM, and after `grace` more KILL. A second stop can only bring them
 * forward. */
void launch_ranks_stop(struct launch_ranks *r, double save, double grace);
void launch_ranks_take_timer(struct launch_ranks *r);
/* The i-th, where it has ended: to be called in the order in which they ended. */
void launch_ranks_reap_one(struct launch_ranks *r, size_t i);
/* Everything that has ended; and once the ranks have, the end of the rest. */
void launch_ranks_reap(struct launch_ranks *r);
enum attempt_state launch_ranks_state(const struct launch_ranks *r);
void launch_ranks_release(struct launch_ranks *r);
