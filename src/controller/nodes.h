/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of the hosts file, as the controller knows them. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "cluster/members.h"
#include "config/hosts.h"
#include "controller/peers.h"

struct controller;

/* Takes over a hosts file, as members_set_hosts does. Runs on nodes that are gone, or that the
 * first hosts file of this controller does not name, lose their parts. */
int controller_set_hosts(struct controller *c, const struct hosts *hosts, int default_port,
                         double node_timeout, struct error *err);

/* In the order of the hosts file. What is returned is valid until the hosts are set again. */
size_t controller_node_count(const struct controller *c);
const struct member *controller_node(const struct controller *c, size_t i);
const struct member *controller_find_node(const struct controller *c, const char *name); /* NULL: none */

/* What this service knows of a node from before it was the controller, as member_set_silent. An unknown name
 * is ignored. */
void controller_set_silent(struct controller *c, const char *name, double since);

json_t *controller_nodes_to_json(const struct controller *c); /* the answer to GET /v1/nodes */
/* Brings up to date what the devices of controller_node say of the runs for which they are reserved. */
void controller_note_spares(const struct controller *c);
json_t *controller_devices_to_json(const struct controller *c); /* the answer to GET /v1/devices */

/* A drained node gets no new runs. reason: copied; NULL: none was given. -ENOENT: no such node. -ENOMEM: all
 * is as before. */
int controller_set_drained(struct controller *c, const char *name, bool drained, const char *reason);
/* Runs on a drained node that may be started again after a failure of any kind save, stop there, and are
 * queued again; that counts as no failure. Returns how many. */
size_t controller_evict_runs(struct controller *c, const char *name);
/* An administrator says that nothing of dtrain runs on the node any more: *count lost parts of runs have
 * ended. -EBUSY: the node is up, and says itself what it runs. -ENOENT: no such node. */
int controller_fence(struct controller *c, const char *name, int64_t *count);
/* The same for one of its devices: the node decides, and `done` is called once, from within or later.
 * -ENOENT: no such node; then it is not called. */
int controller_set_device_drained(struct controller *c, const char *name, int64_t slot, bool drained,
                                  const char *reason, peer_done_fn done, void *context);
/* The devices of a node between two heartbeats. Takes what the list owns and leaves it empty. */
void controller_set_devices(struct controller *c, const char *name, struct device_list *devices);
void controller_reschedule(struct controller *c); /* slots have changed */
