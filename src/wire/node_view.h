/* SPDX-License-Identifier: Apache-2.0 */
/* A node as the controller sees it: the answer to GET /v1/nodes. And the devices: GET /v1/devices. */
#pragma once

#include "wire/device_info.h"
#include "wire/report.h"

enum node_state {
	NODE_UP,
	NODE_DOWN,
	NODE_DRAINED,
	/* Not heard from yet, and its time for that has not passed; or a state that only a newer service
	 * has. */
	NODE_UNKNOWN,
};

extern const char *const node_states[]; /* by enum node_state; ends with NULL */

struct drained_slot {
	int64_t index;
	char *reason; /* optional */
};

/* An attempt on a node that no controller with this store has started. */
struct foreign_attempt {
	int64_t run, attempt;
	char *cluster; /* id of the cluster that it is of, "": not known; optional, as all that follows */
	int64_t epoch;
	char *user, *name;
	enum attempt_state state;
	int64_t *slots;
	size_t slot_count;
};

MESSAGE_DECLARE(foreign_attempt)

/* The answer to GET /v1/local/runs: what has not ended on the answering node, whoever started it. */
struct local_runs {
	struct foreign_attempt *runs;
	size_t count;
};

MESSAGE_DECLARE(local_runs)

struct node_view {
	char *name, *address;
	int64_t port;
	enum node_state state;
	bool controller;
	int64_t slots, free;
	int64_t *spare_of; /* runs for which slots of it are kept */
	size_t spare_count;
	char *version; /* NULL: not heard from yet */
	char *launch;  /* how it starts runs: "systemd" or "process"; optional: not known */
	char **labels;
	char *error;       /* why it is down or unknown; NULL: it is not */
	char *unreachable; /* it is up, but the controller's last call did not reach it: why; optional */
	char *failing;     /* it is up, but could not start its last run, nor any other: why; optional */
	struct drained_slot *drained; /* slots that get no new runs */
	size_t drained_count;
	bool hosts_differ; /* its hosts file is not the controller's */
	struct foreign_attempt *foreign;
	size_t foreign_count;
	char *reason;     /* why an administrator has drained it; NULL: none was given */
	double last_seen; /* Unix seconds; 0: never */
};

MESSAGE_DECLARE(node_view)

struct node_list {
	struct node_view *nodes; /* in the order of the hosts file */
	size_t count;
};

MESSAGE_DECLARE(node_list)

struct device_list {
	struct device_info *devices;
	size_t count;
};

MESSAGE_DECLARE(device_list)

/* The answer to GET /v1/version. */
struct service_version {
	char *version, *node, *controller; /* controller: its name */
};

MESSAGE_DECLARE(service_version)

/* The answer to POST /v1/end-runs. */
struct runs_ended {
	int64_t ended; /* attempts that ran when it began */
};

MESSAGE_DECLARE(runs_ended)

/* The answer to POST /v1/nodes/NAME/cancel-foreign. */
struct foreign_stopped {
	char *name;
	int64_t stopping; /* attempts */
};

MESSAGE_DECLARE(foreign_stopped)

/* The answer to draining or resuming a node. */
struct node_drained {
	char *name;
	enum node_state state;
	char *reason; /* optional */
};

MESSAGE_DECLARE(node_drained)

/* The answer to fencing a node. */
struct node_fenced {
	char *name;
	int64_t parts; /* lost parts of runs that count as ended now */
};

MESSAGE_DECLARE(node_fenced)

/* The same for a device. */
struct device_drained {
	char *node;
	int64_t index;
	enum slot_state state;
	char *reason; /* optional */
};

MESSAGE_DECLARE(device_drained)
