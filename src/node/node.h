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
#include "base/file_writer.h"
#include "config/daemon.h"
#include "config/hosts.h"
#include "wire/heartbeat.h"
#include "wire/node_view.h"
#include "wire/start_request.h"

struct node;

struct node_callbacks {
	void *context;
	/* The state of one attempt here, at each change; the report is the node's. */
	void (*report)(void *context, const struct report *report);
	void (*devices_changed)(void *context); /* one is drained, or given back; optional */
};

/* Finds devices (NVML loaded at run time, else CPU slots) and running attempts (runtime_dir/attempts). */
int node_create(sd_event *event, const struct daemon_config *config, const char *name, int hosts_slots,
                const struct node_callbacks *callbacks, struct node **out, struct error *err);
void node_destroy(struct node *node); /* running attempts go on without us */
const char *
node_launch(const struct node *node); /* how runs are started: units_method of node/launch/unit.h */
int node_slots(const struct node *node);
int node_free_slots(const struct node *node);
/* The devices by slot; to be released by the caller, where it succeeds. */
int node_devices(const struct node *node, struct device_list *out, struct error *err);
int node_describe_device(const struct node *node, int slot, struct device_info *out, struct error *err);
/* A device by hand: no new runs on it, until it is resumed. -ENOENT: no such slot; -EIO: it is broken
 * still. */
int node_drain(struct node *node, int slot, const char *reason, struct error *err);
int node_resume(struct node *node, int slot, struct error *err);
/* Calls `done` on the event loop when what was drained and resumed until now is on disk, or could not be
 * written; from node_destroy at the latest. */
int node_wait_drains(struct node *node, file_written_fn done, void *context, struct error *err);
/* The i-th of the reports of all attempts here, oldest first, borrowed until the event loop goes on; NULL:
 * there are no more. */
const struct report *node_attempt(const struct node *node, size_t i);

/* Its user, and its slots, borrowed likewise. */
uid_t node_attempt_owner(const struct node *node, size_t i, const int **slots, size_t *slot_count);
/* Ends the attempts of this run that are here, each with the grace period of the run; their reports name the
 * reason, as at a shutdown of the node. */
void node_end_run(struct node *node, int64_t run, const char *reason);

/* What this node knows of clusters, for the heartbeat; to be released by the caller. */
int node_known(const struct node *node, struct known_clusters *out, struct error *err);
/* What the controller answers to the heartbeat that was sent at `sent`, by lease_clock(): renews the lease.
 * -ESTALE: an earlier epoch than is known here: a stale controller, nothing that it says counts. */
int node_learn(struct node *node, const struct heartbeat_answer *answer, double sent, struct error *err);

typedef void (*node_started_fn)(void *context, int code, const char *message);
/* Leases the slots, looks whether the user could run it here, and starts the ranks of an attempt. Takes what
 * the request owns and leaves it empty, also where it fails. -EBUSY: a slot is leased (message names slot and
 * run) or drained (and why); -EPERM: no such user here, or a uid that differs; -EINVAL …: preflight
 * (directory missing, program not found …) failed: nothing is leased then. -ETIMEDOUT: the preflight hung.
 * The same attempt a second time: 0. -ESTALE: a newer attempt of the run is known here, or a later epoch of
 * the cluster. -ENOTRECOVERABLE: what this node needs for any start has failed, such as a file on a full disk
 * of its own. -ECANCELED: node_stop came first; -ESHUTDOWN: the node is destroyed. A negative return:
 * refused, `started` is not called. 0: it is called once with 0 or such a code and a message, from the event
 * loop, or at once where the attempt is there already. */
int node_start(struct node *node, struct start_request *request, node_started_fn started, void *context,
               struct error *err);
/* TERM to all ranks of the attempt, KILL after grace seconds to all they started. No such attempt: 0. */
int node_stop(struct node *node, int64_t run, int64_t attempt, double grace, struct error *err);
/* The same as a controller asks for it. An attempt that is not here is not started afterwards. -ESTALE: a
 * stale controller. -EPERM: the attempt is of another cluster, and the request is not for foreign ones,
 * too. */
int node_stop_request(struct node *node, const struct stop_request *request, struct error *err);
/* Stops all attempts, each with save_seconds and the grace of its run, but at most shutdown_grace, and
 * refuses new ones from now on (-EBUSY): the machine is shutting down, or dtrain is being removed. Returns
 * the longest time in seconds. */
double node_shut_down(struct node *node);
bool node_is_shutting_down(const struct node *node);
int node_running(const struct node *node); /* attempts that have not ended */
/* The controller has the end of this attempt: nothing about it (but its logs) needs to be kept here. */
void node_forget(struct node *node, int64_t run, int64_t attempt);
/* A free TCP port on this machine for MASTER_PORT, within port_range where there is one: each time another
 * one, so that two runs which start at once do not get the same. -EADDRINUSE: none is free. */
int node_free_port(struct node *node, struct error *err);
/* Path of a rank's log here, owned by the caller; -ENOENT: this node has no such rank. attempt 0: the
 * newest. */
int node_log_path(const struct node *node, int64_t run, int64_t attempt, int rank, char **path,
                  struct error *err);
