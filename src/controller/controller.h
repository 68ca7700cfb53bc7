/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller: store, queue, members, and what follows from each event. Events change runs in memory; one
 * flush per turn of the event loop then schedules, commits to the store, and only after that answers, starts
 * attempts and tells who waits.
 */
#pragma once

#include "cluster/feed.h"
#include "cluster/members.h"
#include "cluster/queue.h"
#include "cluster/rendezvous.h"
#include "cluster/store.h"
#include "dtraind/daemon.h"

struct backup;
struct held;
struct waiter;
struct submission;

enum { FEED_EVENTS = 0 }; /* other topics: a run's id, for its metrics */

struct controller {
	struct daemon *daemon;
	struct store *store;
	struct queue queue;
	struct members *members;
	struct rendezvous *rendezvous;
	struct feed *events, *metrics;
	struct waiter *waiters;         /* requests that wait for a run */
	struct submission *submissions; /* requests that wait for the commit */
	json_t *foreign_before;         /* of the node whose heartbeat is read: what it had the last time */
	struct held *held;              /* submissions that wait until it is settled */
	struct backup *backup;          /* the one under way, or NULL */
	sd_event_source *flush, *soft, *expiry;
	bool commit;       /* something must be committed before replies */
	bool settled;      /* all nodes have reported, or are down: see foreign.c */
	int64_t announced; /* the last run number that is on disk */
	bool reschedule;   /* slots or queue have changed */
};

int controller_create(struct daemon *d, struct controller **out, struct error *err);
void controller_destroy(struct controller *c);
int controller_set_hosts(struct controller *c, struct error *err); /* from the daemon's settings */

/* Writes the run down and answers the request once it is on disk. Takes r. */
void controller_submit(struct controller *c, struct http_request *request, struct run *r, const char *config);
/* -ENODEV: this cluster could never run it, were it empty. */
int controller_check(struct controller *c, const struct run *r, struct error *err);
/* Does what the flags of run.h ask for, after an event of r. */
void controller_after(struct controller *c, struct run *r, unsigned flags);
void controller_touch(struct controller *c); /* something changed: a flush is due */
void controller_cancel(struct controller *c, struct run *r);
void controller_set_drained(struct controller *c, struct member *m, bool drained, const char *reason);

/* An administrator ends foreign work on a node: that of one run, or (0) all. How much there is. */
size_t controller_cancel_foreign(struct controller *c, struct member *m, int64_t run);

/* What nodes say. */
void controller_report(struct controller *c, const json_t *report);
/* *answer: {"forget":[{"run","attempt"}…],"time","cluster","epoch","highest_run"}: the ends that are on disk,
 * our clock, and what the node is to remember of the store; "cluster" null: its epoch is not on disk yet. */
int controller_heartbeat(struct controller *c, const json_t *heartbeat, json_t **answer, struct error *err);

/* The run, from memory or (then the caller's to free, *owned) from the store. -ENOENT. */
int controller_find(struct controller *c, int64_t id, struct run **out, struct run **owned,
                    struct error *err);
/* Answers with the run as it is now, "config" included as far as the caller may see it. */
void controller_reply_run(struct controller *c, struct http_request *request, const struct run *r);
/* Holds the request until the run's version exceeds `version`, or it is in one of `states`, or has ended. */
void controller_wait(struct controller *c, struct http_request *request, struct run *r, unsigned states,
                     int64_t version);
/* The same for code: `ready` is called once, from the flush; the waiter is gone after it. */
struct waiter *controller_wait_call(struct controller *c, int64_t run, unsigned states, int64_t version,
                                    void (*ready)(void *context, const struct run *r), void *context);
void waiter_free(struct waiter *w);

/* dispatch.c */
int dispatch_start(struct controller *c, struct run *r, struct error *err);
void dispatch_stop(struct controller *c, struct run *r, struct run_part *part);
