/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Membership: the nodes of the hosts file, each a struct member (member.h). A node is up while its
 * heartbeats come, and down once none has come for the time-out. Until its first one, or until the time-out
 * has passed since the controller began or the hosts file named the node, it is unknown: nothing is placed
 * there, and its parts of runs are not lost. Of a node that had been silent before the controller began, that
 * time counts, too.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "cluster/member.h"
#include "config/hosts.h"

struct members;

int members_create(double now, struct members **out, struct error *err);
void members_destroy(struct members *m);
DEFINE_CLEANUP(struct members *, members_destroy)

/* Takes over a hosts file, with its spelling of the names: new nodes appear (not heard from yet), missing
 * ones go, or are marked removed where keep(context, name) says that they are still needed. */
int members_set_hosts(struct members *m, const struct hosts *hosts, int default_port, double now,
                      bool (*keep)(void *context, const char *name), void *context, struct error *err);
/* A node of which a run has something, and which neither the hosts file names nor this controller knew: it is
 * marked removed, at the address that is its name. Nothing is done where the node is there. */
int members_add_removed(struct members *m, const char *name, int default_port, struct error *err);
size_t members_count(const struct members *m);
struct member *members_get(struct members *m, size_t i); /* in the order of the hosts file */
struct member *members_find(struct members *m, const char *name);
/* Of members_get. */
bool members_position(const struct members *m, const char *name, size_t *i);

/* What a member that had been silent before has of the time-out at least, to find this controller. */
enum { SILENT_PERCENT = 50 };

/* Marks the members as down that have sent no heartbeat for `timeout` (at first: since the hosts were set, or
 * since member_set_silent, but not before SILENT_PERCENT of it), and calls `down` for each. `self`, the node
 * of the caller, is never marked. After a call that comes much later than was asked for, all members have the
 * whole time-out again. Returns when to call again, monotonic; 0: not before the next heartbeat. */
double members_expire(struct members *m, const char *self, double now, double timeout,
                      void (*down)(void *context, struct member *), void *context);
/* Seconds from one heartbeat of a node to the next, so that no more than `most` come in a second from all;
 * less where the time-out or the lease would not bear it: of a node that is there, one call may be lost
 * within the time-out, which is given up after half of that. 0: as the nodes themselves have it; lease: 0,
 * there is none. */
double members_interval(const struct members *m, int most, double timeout, double lease);
bool member_hosts_differ(const struct members *m,
                         const struct member *x); /* another hosts file than set here */
/* The answer to GET /v1/nodes: a new reference; NULL: out of memory. */
json_t *members_to_json(const struct members *m, const char *controller);
json_t *members_devices(const struct members *m); /* to GET /v1/devices: the same */
