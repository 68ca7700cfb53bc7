/* SPDX-License-Identifier: Apache-2.0 */
/* What a node says of itself to the controller, every few seconds, and what the controller answers. */
#pragma once

#include "wire/device_info.h"
#include "wire/report.h"

/* The highest epoch of a cluster that a node has heard of. */
struct known_cluster {
	char *id;
	int64_t epoch;
};

/* What a node knows of clusters (node/clusters.h). */
struct known_clusters {
	int64_t highest_run;
	struct known_cluster *clusters;
	size_t cluster_count;
};

MESSAGE_DECLARE(known_clusters)

/* POST /v1/peer/heartbeat: a whole one. */
struct heartbeat {
	char *node;
	char *hosts;                 /* hosts_hash of its hosts file; optional */
	char *instance;              /* of its service: another one after each of its starts */
	int64_t sequence;            /* grows with each heartbeat of an instance */
	char *version;               /* of its service */
	char *launch;                /* how it starts runs, as node_launch; optional */
	struct device_info *devices; /* by slot */
	size_t device_count;
	struct report *attempts; /* all that the node has, ended ones that are not forgotten included */
	size_t attempt_count;
	int64_t *ports; /* free TCP ports, for the controller to give away; optional */
	size_t port_count;
	int64_t *port_range; /* two: port_range of dtraind.conf, 0 and 0: any port; optional */
	size_t port_range_count;
	bool shutting_down; /* no new runs; optional */
	char *boot;         /* id of the machine's boot; optional */
	bool leases;        /* it ends attempts whose lease has run out; optional */
	double sent;        /* when it was sent, by the clock of the lease; optional: 0, not known */
	struct known_clusters *known; /* optional */
};

MESSAGE_DECLARE(heartbeat)

/* POST /v1/peer/heartbeat/short. It says what a whole heartbeat would say in its place, to a controller that
 * has answered that it keeps the whole one: nothing has changed since that but what is here, the clocks of
 * reports, and what sensors read. */
struct short_heartbeat {
	char *node;
	char *instance;
	int64_t sequence; /* of this one: both kinds are counted together */
	int64_t whole;    /* that of the whole one, of the same instance */
	int64_t *ports;   /* as of a whole one, all of these */
	size_t port_count;
	double sent;
	int64_t highest_run; /* of what it knows of clusters */
};

MESSAGE_DECLARE(short_heartbeat)

/* An end that is on disk: the node need not keep it. */
struct forget {
	int64_t run, attempt;
};

struct heartbeat_answer {
	struct forget *forget;
	size_t forget_count;
	double time;         /* the controller's clock, Unix seconds; optional: 0 */
	char *cluster;       /* id of its cluster; NULL: its epoch is not on disk yet */
	int64_t epoch;       /* optional: 0 */
	int64_t highest_run; /* the newest run number that is on disk; optional: 0 */
	/* Seconds for which the node may keep its attempts, from the moment at which it has sent the
	 * heartbeat. When they have passed without another answer, it has ended those that are not to outlive
	 * a partition, and those that it has begun since the last heartbeat that was answered. optional: 0,
	 * there is no such limit. */
	double lease;
	/* The sequence of the whole heartbeat that the controller keeps: the next ones may be short, and name
	 * it. optional: 0, it keeps none, and the next one has to be whole. */
	int64_t whole;
	/* Seconds from one heartbeat to the next, where the node's own setting is shorter: it has many nodes.
	 * optional: 0, the setting alone counts. */
	double interval;
};

MESSAGE_DECLARE(heartbeat_answer)
