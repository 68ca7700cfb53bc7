/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine owns: its devices as slots, the leases on them, and the attempts that run here. The node
 * is the only authority over its slots: no two leases on one, whatever the controller believes.
 *
 * All calls from the event loop's thread; nothing blocks. Reports come through the callback, also for
 * attempts that an earlier instance of the service started and this one found again.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "base/error.h"
#include "config/daemon.h"
#include "config/hosts.h"
#include "wire/start_request.h"

struct node;

struct node_callbacks {
	void *context;
	/* The state of one attempt here, sent at each change (borrowed):
	 * {"run":17,"attempt":1,"node":"n1","state":"starting|running|stopping|ended",
	 *  "ranks":[{"rank":0,"slot":0,"state":"starting|running|exited","pid":123,"exit_status":0,"signal":"SIGKILL"|null,
	 *            "ended":1732147200.1,"stopped":bool,"oom":true?,"core_dumped":true?,
	 *            "error":"last lines of its log, where it failed, for its user alone"}]}
	 * "stopped": it ended of node_stop, not by itself.
	 * "ended" comes after every process of the attempt is gone and the lease is free. It is kept, and
	 * comes again after a restart of the service, until node_forget: the receiver takes a second one as
	 * nothing new. "reason" is there where the node itself has something to say (the launcher was killed,
	 * a process that does not die); "device_errors":["GPU 3 (GPU-12…) of n1: Xid 79: fell off the bus"]
	 * where a device of the attempt was drained for an error while it ran; "shutdown":"node n1 is
	 * shutting down" where the attempt was stopped for that; "cluster" and "epoch" as the start named
	 * them; "lost":true where nothing but the record of the start is left, after a restart of the
	 * machine: then "ranks" is empty. */
	void (*report)(void *context, const json_t *report);
	void (*devices_changed)(void *context); /* one is drained, or given back; NULL: nobody cares */
};

/* Finds devices (NVML loaded at run time, else CPU slots) and running attempts (runtime_dir/attempts). */
int node_create(sd_event *event, const struct daemon_config *config, const char *name, int hosts_slots,
                const struct node_callbacks *callbacks, struct node **out, struct error *err);
void node_destroy(struct node *node); /* running attempts go on without us */
int node_slots(const struct node *node);
int node_free_slots(const struct node *node);
/* [{"node","index","kind":"cpu"|"gpu","name","uuid","memory","threads","state":"free"|"leased"|"draining"|"drained",
 *   "run":17|null,"reason":why it is drained|null}], of a GPU also
 * {"gpu":as nvidia-smi counts,"pci","numa","mig":{"gpu_instance","compute_instance"}|null,
 *  "links":["X","NV18","SYS",…] by slot,"driver","cuda","xid":{"code","message","time"}|null,"read":when,
 *  "memory_used","utilization":percent,"temperature","power":W,"power_limit","ecc_errors"}: null where not
 * known. Draining: leased, and drained once it is free. */
json_t *node_devices(const struct node *node);
/* A device by hand: no new runs on it, until it is resumed. -ENOENT: no such slot; -EIO: it is broken still.
 */
int node_drain(struct node *node, int slot, const char *reason, struct error *err);
int node_resume(struct node *node, int slot, struct error *err);
/* The reports of all attempts here, as an array: what a controller that was restarted asks for. */
json_t *node_attempts(const struct node *node);

/* The attempts as the heartbeat has them: the report, "user" and "name" of the run. */
json_t *node_attempts_described(const struct node *node);
/* What this node knows of clusters, for the heartbeat: clusters_to_json. */
json_t *node_known(const struct node *node);
/* What the controller answers: {"cluster","epoch","highest_run"}. -ESTALE: an earlier epoch than is known
 * here: a stale controller, nothing that it says counts. */
int node_learn(struct node *node, const json_t *answer, struct error *err);

typedef void (*node_started_fn)(void *context, int code, const char *message);
/* Leases the slots, looks whether the user could run it here, and starts the ranks of an attempt. Takes what
 * the request owns and leaves it empty, also where it fails. -EBUSY: a slot is leased (message names slot and
 * run) or drained (and why); -EPERM: no such user here, or a uid that differs; -EINVAL …: preflight
 * (directory missing, program not found …) failed: nothing is leased then. -ETIMEDOUT: the preflight hung.
 * The same attempt a second time: 0. -ESTALE: a newer attempt of the run is known here, or a later epoch of
 * the cluster. -ECANCELED: node_stop came first; -ESHUTDOWN: the node is destroyed. A negative return:
 * refused, `started` is not called. 0: it is called once with 0 or such a code and a message, from the event
 * loop, or at once where the attempt is there already. */
int node_start(struct node *node, struct start_request *request, node_started_fn started, void *context,
               struct error *err);
/* TERM to all ranks of the attempt, KILL after grace seconds to all they started. No such attempt: 0. */
int node_stop(struct node *node, int64_t run, int64_t attempt, double grace, struct error *err);
/* The same as a controller asks for it. -ESTALE: a stale controller. -EPERM: the attempt is of another
 * cluster, and the request is not for foreign ones, too. */
int node_stop_request(struct node *node, const struct stop_request *request, struct error *err);
/* Stops all attempts, each with the grace of its run, but at most shutdown_grace, and refuses new ones from
 * now on (-EBUSY): the machine is shutting down, or dtrain is being removed. Returns the longest grace in
 * seconds. */
double node_shut_down(struct node *node);
bool node_is_shutting_down(const struct node *node);
int node_running(const struct node *node); /* attempts that have not ended */
/* The controller has the end of this attempt: nothing about it (but its logs) needs to be kept here. */
void node_forget(struct node *node, int64_t run, int64_t attempt);
/* A free TCP port on this machine for MASTER_PORT, within port_range where there is one: each time another
 * one, so that two runs which start at once do not get the same. -EADDRINUSE: none is free. */
int node_free_port(struct node *node, struct error *err);
/* Path of a rank's log here, owned by the caller; -ENOENT: this node has no such rank. attempt 0: the newest.
 */
int node_log_path(const struct node *node, int64_t run, int64_t attempt, int rank, char **path,
                  struct error *err);
