/* SPDX-License-Identifier: Apache-2.0 */
/* Why a run waits, in words, and what the nodes are to it; of the scheduler alone. */
#pragma once

#include "cluster/scheduler.h"

/* What a run asks of each of its nodes, once it is settled by what the cluster has. */
struct need {
	enum slot_kind kind;
	int64_t per_node; /* 0: no number is common to so many nodes */
	bool exact;       /* not more of them than that */
	bool unsettled;   /* the kind depends on nodes that have not reported yet */
};

/* What the nodes are to one run. */
struct view {
	struct need need;
	size_t allowed; /* in the cluster, as far as the run restricts hosts */
	size_t of_kind; /* of these, those with slots of its kind, and those never heard of */
	size_t large;   /* of these, with enough slots when empty */
	size_t usable;  /* of these, up and not drained */
	size_t fitting; /* of these, with enough free slots now and not kept for a run before */
	size_t most;    /* slots of the largest one of its kind */
	bool kept;      /* a run before this one keeps a node that it needs */
	bool mixed;     /* it leaves the kind open, and there are both */
	/* A large node that is down or drained, as a whole or too many of its slots. */
	const struct sched_node *out;
	const struct sched_node *awaited;
	const char *unknown; /* a host that it names, and that is not in the cluster; NULL: none */
};

/* These write the run's reason. It could not run now even on empty nodes. */
void reason_impossible(struct sched_run *r, const struct view *v);
/* It names a host that the cluster, whose nodes these are, does not have. */
void reason_unknown_host(struct sched_run *r, const char *unknown, const struct sched_node *nodes,
                         size_t count);
/* Too few nodes have enough free slots. */
void reason_busy(struct sched_run *r, const struct view *v);
/* It asks for more than a user may have at once; it has a user. */
void reason_above_limit(struct sched_run *r, const struct view *v);
