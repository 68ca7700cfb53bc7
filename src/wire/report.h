/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one attempt on one node, as the node reports it to the controller at each change, and again
 * with every heartbeat. A node keeps the report of an end on disk until the controller has it: what once was
 * written stays readable.
 */
#pragma once

#include "wire/message.h"

enum attempt_state {
	ATTEMPT_STARTING,
	ATTEMPT_RUNNING,
	ATTEMPT_STOPPING,
	ATTEMPT_ENDED,
	ATTEMPT_STATES,
	ATTEMPT_OTHER, /* as RUN_OTHER */
};
enum rank_state {
	RANK_STARTING,
	RANK_RUNNING,
	RANK_EXITED,
	/* No node reports these two: the controller knows them of a run that has ended. */
	RANK_LOST, /* with its node */
	RANK_NOT_STARTED,
	RANK_STATES,
	RANK_OTHER, /* as RUN_OTHER */
};

/* As run_states. */
extern const char *const attempt_states[], *const rank_states[];

struct rank_report {
	int64_t rank;
	int64_t slot; /* the first of its slots; optional: -1 */
	enum rank_state state;
	int64_t pid; /* optional: 0, there is no process yet */
	/* optional: -1, it has not exited; 128 and the signal's number where it was killed */
	int64_t exit_status;
	char *signal;     /* "SIGKILL", optional: it was not killed */
	double ended;     /* Unix seconds, of the node's clock; optional: 0 */
	bool stopped;     /* it ended because its node stopped it, not by itself; optional */
	bool oom;         /* the kernel's OOM killer struck; optional */
	bool core_dumped; /* optional */
	bool lost_peer;   /* it says itself that it failed since another rank has gone; optional */
	char *error;      /* the last lines of its log, where it failed, for its user alone; optional */
};

MESSAGE_DECLARE(rank_report)

struct report {
	int64_t run, attempt;
	char *node;
	/* ATTEMPT_ENDED comes after every process of the attempt is gone and the lease is free. It comes
	 * again, also after a restart of the service, until the controller has it on disk. */
	enum attempt_state state;
	struct rank_report *ranks;
	size_t rank_count;
	char *cluster; /* as in the start request; optional, both */
	int64_t epoch; /* 0 */
	char *user;    /* of the run; optional: not in reports of version 0.1.0, only in heartbeats */
	char *name;    /* of the run; the same */
	char *reason;  /* what the node itself has to say: the launcher was killed …; optional */
	/* dtrain-launch has ended before its ranks, the reason says how: what is left of them is killed;
	 * optional */
	bool launcher_lost;
	char *shutdown; /* "node n1 was shut down", where it was stopped for that; optional */
	/* "GPU 3 (GPU-12…) of n1: Xid 79: …": drained while the attempt ran; optional */
	char **device_errors;
	bool lost; /* nothing but the record of its start is left, after a restart of the machine; optional */
	double clock_offset; /* seconds to add to the node's times for the controller's clock; optional: 0 */
	double clock_error;  /* ± seconds, by which that may be wrong; optional: 0 */
};

MESSAGE_DECLARE(report)
