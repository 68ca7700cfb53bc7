/* SPDX-License-Identifier: Apache-2.0 */
/* One node: what it last said of itself, and what the controller has noted of it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "cluster/scheduler.h"
#include "config/hosts.h"
#include "wire/heartbeat.h"
#include "wire/node_view.h"

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
	char *unreachable;    /* why the last call to it did not reach it; NULL: it did */
	double reached;       /* monotonic: when the last call began that has reached it */
	char *failing;        /* why it could not start its last run, nor any other; NULL: it did */
	int failures;         /* how often, without a start in between */
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

void member_free(struct member *m); /* takes NULL */
DEFINE_CLEANUP(struct member *, member_free)

/* What the hosts file says, its spelling of the name included; the member has the name already. Negative: out
 * of memory, and nothing has changed. */
int member_set_host(struct member *m, const struct host *host, int default_port);
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
/* By copy; NULL: a call has reached it. */
void member_set_unreachable(struct member *m, const char *why);
/* A start has failed there for want of what the node needs for any: it gets no new runs for a time, which is
 * longer with each failure. NULL: one has succeeded. */
void member_set_failing(struct member *m, const char *why, double now);
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
bool member_slot_drained(const struct member *m, size_t slot); /* or it is, once it is free */
size_t member_drained_slots(const struct member *m);
/* The devices that `run` held here are free, before the next heartbeat says so, which has to be a whole one.
 */
void member_release(struct member *m, int64_t run);
int member_take_port(struct member *m, uint64_t salt);

/* Until its first heartbeat, or until the hosts are set again: it has answered nothing since then, and was
 * asked. */
void member_set_silent(struct member *m, double since);
void member_set_down(struct member *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

enum node_state member_state(const struct member *m);
size_t member_free_slots(const struct member *m); /* those that are reserved for a run are not */
size_t member_reserved_slots(const struct member *m);
