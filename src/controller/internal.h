/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the controller, for its own files alone. They call each other downwards in this order:
 * controller.c; nodes.c, reconcile.c; start.c; lost.c; foreign.c; origin.c; runs.c; growth.c,
 * schedule_pass.c; limits.c, spares.c; apply.c, commit.c, notify.c; and sched_nodes.c, stop.c, submit.c,
 * time_used.c, waiters.c; user_limits.c.
 */
#pragma once

#include "cluster/feed.h"
#include "cluster/members.h"
#include "cluster/queue.h"
#include "cluster/rendezvous.h"
#include "cluster/store.h"
#include "controller/controller.h"

struct commit_waiter;
struct submission;
struct waiter;

enum { FEED_EVENTS = 0 }; /* the topic of events; other topics: a run's id, for its metrics */

struct controller {
	struct controller_options options; /* hosts are not kept */
	struct store *store;
	struct queue queue;
	struct members *members;
	struct rendezvous *rendezvous;
	struct feed *events, *metrics;
	struct waiter *waiters;               /* who waits for a run to change */
	struct commit_waiter *commit_waiters; /* in their order: who waits for a change to be on disk */
	struct submission *submissions;       /* in their order: who waits for a number, or for the commit */
	/* Of the node whose heartbeat is read: what it had the last time. */
	struct foreign_attempt *foreign_before;
	size_t foreign_before_count;
	char *store_error;  /* why the last commit has failed, as the log has it; NULL: it has not */
	double lazy_commit; /* its timer is set to that, monotonic; 0: it is not set */
	bool commit;        /* one is due */
	int64_t commits;    /* begun so far: the number of the last one, */
	int64_t committed;  /* and of the last one that is on disk */
	void (*on_committed)(struct controller *c); /* of the one in flight */
	size_t not_awaited; /* so many of the first members have reported, or are down */
	bool settled;       /* all nodes have reported, or are down: see foreign.c */
	bool reschedule;    /* slots or queue have changed */
	bool hosts_changed; /* nodes that were removed are to lose their parts */
	bool ending;        /* nothing is started or told any more */
	double began;       /* monotonic */
};

static inline double controller_now(const struct controller *c)
{
	return c->options.clock.monotonic(c->options.clock.context);
}

static inline double controller_time(const struct controller *c)
{
	return c->options.clock.realtime(c->options.clock.context);
}

static inline void controller_set_timer(struct controller *c, enum controller_timer timer, double at)
{
	c->options.clock.set_timer(c->options.clock.context, timer, at);
}

/* Of heartbeats, as heartbeat_answer has it. */
static inline double controller_interval(const struct controller *c)
{
	const struct controller_options *o = &c->options;

	return members_interval(c->members, o->most_heartbeats, o->node_timeout, o->lease);
}

/* Something has changed: a flush is due. */
static inline void controller_touch(struct controller *c)
{
	controller_set_timer(c, CONTROLLER_FLUSH, 0);
}

/* The next commit must be on disk before a change of r is answered or notified, or an attempt of it is
 * started. */
static inline void controller_await_commit(struct controller *c, struct run *r)
{
	r->awaits = c->commits + 1;
	c->commit = true;
}

static inline bool controller_is_committed(const struct controller *c, const struct run *r)
{
	return r->awaits <= c->committed;
}

/* Whether the store has r. Before that, no request can find it. */
static inline bool controller_is_stored(const struct controller *c, const struct run *r)
{
	return r->inserted_by <= c->committed;
}

/* sched_nodes.c */
/* The nodes as the scheduler sees them: a slot is taken where its node says so, or where a run of ours has
 * it. */
int sched_nodes_build(struct controller *c, struct sched_node **out, struct error *err);
void sched_nodes_free(struct sched_node *nodes);
/* Only what they are when they are up and empty, for schedule_possible; freed with free. NULL: out of memory.
 */
struct sched_node *sched_nodes_capacity(struct controller *c);
DEFINE_CLEANUP(struct sched_node *, sched_nodes_free)
/* What a run asks for; user: as user_limits_find has it. */
struct sched_run sched_run_of(const struct run *r, struct sched_user *user);

/* schedule_pass.c: once all nodes have reported. */
void schedule_pass(struct controller *c);
int schedule_pass_check(struct controller *c, const struct run *r, struct error *err);

/* lost.c: parts of which it is not known whether they have ended. */
/* unanswered: the start was sent, and no answer came. */
void lost_add(struct controller *c, struct run *r, struct run_part *part, bool unanswered);
void lost_recover(struct controller *c, struct run *r); /* which comes out of the store */
/* Whether a part of the run is lost; *next: when to ask again, unless an earlier time is there. */
bool lost_hold(struct controller *c, struct run *r, double *next);
void lost_check(struct controller *c, const struct member *m, const struct heartbeat *heartbeat);
void lost_report(struct controller *c, struct run *r, const struct report *report);

/* spares.c */
/* Gives back what is kept for runs and cannot be used any more. Is any run under way short of spares? */
bool spares_check(struct controller *c);
/* Gives back what was kept for runs in the queue and went to a run before them, which was placed on it. */
void spares_yield(struct controller *c, const struct sched_run *placed, const struct sched_node *nodes);
/* Writes into the members what is kept of them. */
void spares_note(const struct controller *c);
/* Keeps further nodes for such runs, unless others wait for any. */
void spares_replace(struct controller *c, struct sched_node *nodes, struct sched_user *users);

/* growth.c: runs that may go on with more nodes are stopped for it; sets the timer for the next one. After
 * schedule_pass. */
void growth_check(struct controller *c);

/* time_used.c: what a run has had of its time limit. */
void attempt_begin(struct controller *c, struct run *r); /* an attempt begins, or comes out of the store */
/* An attempt has ended. A run that is queued again has ended, too, where its time is over. */
void time_used_end(struct controller *c, struct run *r);

/* limits.c: runs whose time is over are stopped; sets the timer for the next one. */
void limits_check(struct controller *c);

/* user_limits.c */
/* May the user of r have one more run? waiting: those that have no number yet. -EDQUOT: no. */
int user_limits_check_runs(const struct controller *c, const struct run *r, size_t waiting,
                           struct error *err);
/* The users whose slots are limited, with what their attempts have, for user_limits_find: to be freed. NULL:
 * out of memory. */
struct sched_user *user_limits_list(const struct controller *c);
/* NULL: there is no limit. The run is in the queue. */
struct sched_user *user_limits_find(const struct controller *c, struct sched_user *users,
                                    const struct run *r);
/* The slots that its attempt has, and those that are kept for it. */
int64_t user_limits_slots(const struct run *r);
/* The user of r as if there were no other run. False: there is no limit. */
bool user_limits_alone(const struct controller *c, const struct run *r, struct sched_user *out);

/* start.c: all attempts that were placed, and are on disk. */
void start_placed(struct controller *c);

/* runs.c: what the store has of the run's configuration; owned by the caller. */
int runs_read_config(struct controller *c, int64_t id, struct run_config **out, struct error *err);

/* origin.c: for a run whose model the node does not have, in words, where an earlier run of the user wrote
 * it; owned by the caller. NULL: not known. */
char *origin_of_model(struct controller *c, const struct run *r, const char *node);

/* stop.c: the calls to nodes */
struct peer peer_of(const struct member *m);
/* After a call that has not been canceled, and began then (monotonic): whether it has reached the node. */
void note_reached(struct controller *c, const char *node, double began, const struct peer_result *result);
void stop_part(struct controller *c, const struct run *r, const struct run_part *part);
/* An attempt that the controller has given up. */
void stop_stray(struct controller *c, const char *node, int64_t run, int64_t attempt);
/* One that no controller with this store has started. */
void stop_foreign(struct controller *c, const char *node, int64_t run, int64_t attempt);

/* apply.c: does what the flags of run.h ask for, after an event of r. */
void apply_flags(struct controller *c, struct run *r, unsigned flags);

/* commit.c: begins a commit of all that has changed, unless one is in flight. Once it is on disk, or has
 * failed, submissions are answered, and `done` is called, unless the controller ends. */
void commit_changes(struct controller *c, void (*done)(struct controller *c));
/* Changes that may wait are committed within a second, and what the store has refused of runs when it is to
 * be tried again. */
void commit_lazily(struct controller *c);
/* Is there a run that a commit which begins now has to write? */
bool commit_is_due(const struct controller *c);

/* notify.c: those who wait for runs, and the feed of events. What has ended leaves the memory. */
void notify_changes(struct controller *c);
/* waiters.c */
void waiters_notify(struct controller *c, const struct run *r);
void waiters_free(struct controller *c);

/* submit.c */
/* Those that wait for their numbers get them. */
void submissions_number(struct controller *c);
/* Those of the last commit, which is on disk (err NULL), or has failed. */
void submissions_answer(struct controller *c, const struct error *err);
void submissions_free(struct controller *c);

/* nodes.c: who has not been heard of is down. */
void nodes_expire(struct controller *c);
/* Once all nodes have reported, or are down, numbers are given and runs are placed (foreign.c says why). */
void controller_settle(struct controller *c);
/* Whether a run has, or may have, something on that node: it is kept when the hosts file names it no more. */
bool nodes_need(struct controller *c, const char *name);

/* foreign.c: what a node has or knows that this store does not. */
/* Was this attempt, as a node reports it, not started by a controller with this store? */
bool foreign_is(struct controller *c, const struct report *report);
/* It is noted, shown, and left alone. */
void foreign_note(struct controller *c, struct member *m, const struct report *report);
/* What the node knows of epochs and run numbers: ours become higher. */
void foreign_learn(struct controller *c, struct member *m, const struct known_clusters *known);
