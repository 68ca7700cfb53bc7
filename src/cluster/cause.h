/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the ends of an attempt is the first cause of its failure. When one rank dies the others follow
 * within milliseconds, since they lose a peer, and reports arrive in any order: the decision takes all of
 * them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* From what explains most to what explains least. */
enum cause_class {
	CAUSE_NODE,   /* the node refused, shut down, or was lost: all its ranks go with it */
	CAUSE_SIGNAL, /* killed by a signal that dtrain did not send */
	CAUSE_EXIT,   /* ended by itself, with an exit status other than 0 or by abort() */
	CAUSE_PEER,   /* says that it lost a peer, or was killed by SIGPIPE */
	/* its node stopped it: mostly since the controller asked for it, for one of the above */
	CAUSE_STOPPED,
};

struct cause {
	enum cause_class class;
	double time;  /* Unix seconds, of the controller's clock */
	double error; /* ± seconds, by which its node's clock may differ */
};

/* Of a rank that failed. A status of 128 + SIGKILL is a shell's way to say the same as
 * the signal. signal 0: none. stopped: by its node; lost_peer: the worker itself says so. */
enum cause_class cause_of_rank(int exit_status, int signal, bool stopped, bool lost_peer);
/* Index of the first cause; -1 where count is 0. What ended more than a few seconds after the first end is a
 * consequence; of the others the one that explains most counts, and among equals the earliest. Where these
 * are all consequences themselves, as of a peer whose loss is noticed late, it is chosen among all. */
int cause_choose(const struct cause *list, size_t count);
