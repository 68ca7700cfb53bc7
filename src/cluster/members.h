/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Membership: the nodes of the hosts file, and what each last said of itself. A node is up while its
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
#include "cluster/scheduler.h"
#include "config/hosts.h"
#include "wire/heartbeat.h"
#include "wire/node_view.h"

struct members;

struct member {
	char *name, *address;
	int port;
	char **labels;
	bool up, drained;
	char *drain_reason;   /* what the admin gave as the reason; NULL: nothing */
	bool shutting_down;   /* as its last heartbeat says: no new runs */
	bool removed;         /* from the hosts file, while a run still names it */
	double heard;         /* monotonic, 0: never */
	double silent_since;  /* monotonic, 0: not known; before the first heartbeat: member_set_silent */
	double last_seen;     /* Unix time */
	double backoff_until; /* monotonic: no new runs before, since calls to it failed; 0: none has */
	char instance[40];
	char hosts_hash[HOSTS_HASH_SIZE]; /* of the hosts file that it has; "": not known */
	bool hosts_told;                  /* that it is not ours is in the log */
	int64_t sequence;
	char boot[40]; /* id of its machine's boot; "": not known */
	bool leases;   /* it ends attempts whose lease has run out, */
	double sent;   /* and has sent its last heartbeat then, by its clock; 0: not known */
	char *version;
	char *launch;                /* as it reports; NULL: not known */
	struct device_info *devices; /* by slot */
	size_t slots;
	/* What member_links returns, once it was asked for with these devices. */
	unsigned char *links;
	bool links_known;
	bool as_sent; /* the devices are those of the last whole heartbeat, */
	/* of which this is the rest, for the short ones that refer to it. Its sequence is 0: it is not kept.
	 */
	struct heartbeat whole;
	int ports[8]; /* free TCP ports there, to be used once each */
	size_t port_count;
	int port_low, port_high;         /* its port_range; 0: any port */
	struct foreign_attempt *foreign; /* attempts there that are not of this store */
	size_t foreign_count;
	int64_t *kept_runs;    /* of the owner: runs for which slots of it are kept, */
	size_t kept_run_count; /* as its devices tell */
	/* The epoch that this controller has sent to it, also before it was removed from the hosts file and
	 * added again; 0: none yet. */
	int64_t epoch;
	char *error; /* why it is down; NULL: not heard from yet */
};

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

/* A whole one: takes the devices out of it. True: the node was down, or shutting down, before. */
bool member_heartbeat(struct member *m, struct heartbeat *heartbeat, double now, double now_realtime);
/* Takes all that is left of it. */
void member_keep(struct member *m, struct heartbeat *heartbeat);
/* The sequence of the whole one to which a short one may refer; 0: none is kept, or it does not hold any
 * more. */
int64_t member_kept(const struct member *m);
void member_short_heartbeat(struct member *m, const struct short_heartbeat *heartbeat, double now,
                            double now_realtime);
/* Takes the reason; NULL: none was given. */
void member_set_drained(struct member *m, bool drained, char *reason);
/* Takes the devices. */
void member_set_devices(struct member *m, struct device_info *devices, size_t count);
/* Is this news to the scheduler? Sensors are none. */
bool member_slots_differ(const struct member *m, const struct device_info *devices, size_t count);
/* How closely the slots are linked: slots × slots weights as topology.h has them, valid until the devices are
 * set; NULL: none of its devices says. */
const unsigned char *member_links(struct member *m);
enum slot_kind member_kind(const struct member *m); /* of its slots */
/* Not heard from since the controller began, but the time for its first heartbeat has not passed: its state
 * is unknown. */
bool member_awaited(const struct member *m);
size_t member_drained_slots(const struct member *m);
/* The devices that `run` held here are free, before the next heartbeat says so, which has to be a whole one.
 */
void member_release(struct member *m, int64_t run);
int member_take_port(struct member *m, uint64_t salt);

/* What a member that had been silent before has of the time-out at least, to find this controller. */
enum { SILENT_PERCENT = 50 };

/* Until its first heartbeat, or until the hosts are set again: it has answered nothing since then, and was
 * asked. */
void member_set_silent(struct member *m, double since);
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
void member_set_down(struct member *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

bool member_hosts_differ(const struct members *m,
                         const struct member *x); /* another hosts file than set here */
/* The answer to GET /v1/nodes: a new reference; NULL: out of memory. */
json_t *members_to_json(const struct members *m, const char *controller);
json_t *members_devices(const struct members *m); /* to GET /v1/devices: the same */
enum node_state member_state(const struct member *m);
size_t member_free_slots(const struct member *m); /* those that are reserved for a run are not */
size_t member_reserved_slots(const struct member *m);
