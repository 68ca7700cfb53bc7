/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the controller asks of a node: to start an attempt of a run, to stop it, and what a node that has
 * started one answers. A node keeps the start request of each attempt on disk, until the attempt is
 * forgotten, and reads it again after an upgrade: what once was written stays readable.
 */
#pragma once

#include "config/run.h"
#include "wire/message.h"

enum { CLUSTER_ID_MAX = 64, PORT_MAX = 65535 };

struct start_rank {
	int64_t rank, local_rank;
	int64_t slot; /* the first of its slots */
	int64_t *slots;
	/* 0: `slot` is its only one. Optional: since one_per_node; "slot" may then be missing */
	size_t slot_count;
};

/* POST /v1/peer/start. "nodes" may also be a list, whose length counts. */
struct start_request {
	char *controller;     /* name of the node that takes itself for the controller; optional */
	char *cluster;        /* id of the cluster that counts the runs so, hexadecimal digits; optional */
	int64_t epoch;        /* of its store; optional: 0 */
	int64_t run, attempt; /* from 1 */
	char *user;
	int64_t uid;
	int64_t gid; /* optional: -1 */
	struct run_config *config;
	int64_t world_size, nodes; /* nodes is optional: 1 */
	int64_t node_rank;         /* optional: 0 */
	int64_t local_world_size;  /* optional: the count of ranks */
	char *master_addr;         /* optional: 127.0.0.1 */
	int64_t master_port;       /* optional: 0, the node chooses one */
	/* later the node does not start it, by the clock of heartbeat.sent: the controller has given it up
	 * by then. Optional: 0, there is no limit */
	double until;
	/* step of the newest one that earlier attempts have left; optional: 0, none is known */
	int64_t checkpoint;
	char *checkpoint_node;    /* where their rank 0 saved it; optional */
	struct start_rank *ranks; /* those of this node, at least one; no rank and no slot is named twice */
	size_t rank_count;
	char unknown_key[128]; /* the first key of "config" that is not known here; "": all are known */
};

MESSAGE_DECLARE(start_request)

/* Whether a start that was refused with this negative errno may succeed at another time, or on another node:
 * something on the node has failed, or did not answer in time. */
bool start_may_succeed_later(int code);
/* The code of the error that answers a start which has failed for want of what the node needs for any. */
#define START_NODE_FAILED "node-failed"

/* The answer to a start and to a stop: the service that has handled it, and where it stands. Later heartbeats
 * of that service know of it. */
struct node_position {
	char *instance;   /* of the service: another one after each of its starts; optional */
	int64_t sequence; /* of its last heartbeat; optional: 0 */
};

MESSAGE_DECLARE(node_position)

/* POST /v1/peer/stop. */
struct stop_request {
	char *controller, *cluster; /* as in the start request; both optional */
	int64_t epoch;              /* optional: 0 */
	int64_t run, attempt;
	double save;  /* seconds between the run's save_signal and TERM; optional: 0, TERM at once */
	double grace; /* seconds between TERM and KILL; optional: 30 */
	bool foreign; /* also where the attempt is of another cluster, with the grace of the run; optional */
};

MESSAGE_DECLARE(stop_request)

/* POST …/drain, of a node or of one of its devices; the body may be missing as a whole. */
struct drain_request {
	char *reason;   /* optional */
	bool keep_runs; /* of a node: what runs there goes on to its end; optional */
};

MESSAGE_DECLARE(drain_request)
