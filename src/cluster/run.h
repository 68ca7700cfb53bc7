/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run as the controller sees it: what was asked for, where it stands, and the state machine of its
 * attempts. No input or output here: reports come in, and what has to be done comes back as flags.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/name_index.h"
#include "cluster/rank_texts.h"
#include "cluster/scheduler.h"
#include "config/run.h"
#include "wire/report.h"
#include "wire/run_record.h"
#include "wire/run_view.h"

const char *run_state_name(enum run_state state);
/* A set of states as bits from "active", "all", or a state's name; 0: no such word. */
unsigned run_state_set(const char *word);

/* The runs of a listing: the newest `limit` of those that fit, newest first. */
struct run_query {
	unsigned states;  /* a set, see run_state_set */
	const char *user; /* name; NULL: of all users */
	int64_t before;   /* ids below it; 0: all */
	int64_t limit;
};

/* What one node does for the attempt. */
struct run_part {
	char *node;
	bool acknowledged; /* the node has taken the start */
	bool answered;     /* the same, as its answer to the start says: `sequence` is known */
	bool running, ended;
	bool lost;                   /* there is a run_lost of it */
	size_t first_rank, end_rank; /* its ranks are among these, and nearly always they are these */
	char *trouble;      /* why the part failed as a whole: "node n2 was shut down"; NULL: nothing did */
	double trouble_at;  /* Unix seconds, of the controller's clock */
	double clock_error; /* ± seconds: how well that of the node is known */
	char *boot;         /* id of the boot of its machine when it was placed; NULL: not known */
	double lease;       /* as part_record has it */
	char instance[40];  /* of the node's service when it acknowledged, */
	int64_t sequence;   /* and its last heartbeat then: only later ones can miss the attempt */
};

/* A part of which it is not known whether it has ended; none of the run begins before it is
 * (controller/lost.c). */
struct run_lost {
	struct lost_record record; /* what the store keeps */
	/* Of the owner. */
	double until; /* monotonic: its lease has run out then; 0: it has none */
	bool asked;   /* a stop is under way */
	/* No start is under way any more. Heartbeats after this one tell whether the part is there. */
	bool confirmed;
	char instance[40];
	int64_t sequence;
};

/* Attempts after a failed one (retry.c). */
struct run_retries {
	int64_t max_restarts, max_node_failures, max_busy_starts; /* what the run asks for */
	bool saves;                 /* its task is one that writes checkpoints */
	struct retry_record record; /* what the store keeps */
	double at; /* of the owner: the next attempt does not begin before, monotonic; 0: at any time */
};

struct run {
	int64_t id, attempt, version;
	char *name, *user, *task, *directory, *output;
	char *key; /* of its submission, of which a user has one with it; NULL: none, or not read */
	int64_t uid, gid;
	enum run_state state;
	double submitted, started, ended; /* Unix seconds; 0: not yet */
	char *reason; /* why it waits, or the first cause of its failure; shown to all users */
	/* The last lines of the failed rank's log, or the error of its worker; shown to the owner only. */
	char *detail;
	int exit_status;        /* -1: none */
	struct run_rank *ranks; /* of the newest attempt, by number */
	size_t rank_count;
	json_t *progress; /* the last metrics; NULL: none yet */

	/* What it asks for. */
	struct key_range nodes_asked; /* an attempt takes the most that are free of so many */
	int64_t nodes;             /* of the newest attempt; before the first one the most that it may take */
	double grow_after;         /* seconds, as resources.grow_after has it; 0: it does not grow */
	struct stop_times stop[3]; /* by enum run_stop */
	double time_limit;         /* seconds that all attempts may run together; 0: no limit */
	int64_t spares_asked;      /* nodes that are kept beside these */
	int64_t per_node;          /* with all_slots what its newest placement came to; 0: none yet */
	bool all_slots;            /* every slot of each node */
	enum slot_kind kind;
	bool one_per_node;         /* one rank a node, on all these slots */
	char **hosts;              /* NULL-terminated; NULL: any */
	struct sched_hosts *found; /* of the scheduler, with hosts */

	/* The attempt under way. */
	struct run_part *parts;
	size_t part_count;
	struct name_index part_index; /* of their nodes */
	/* So many of the first parts run, or have ended: no report goes through these again. */
	size_t running_parts, ended_parts;
	double recovered; /* Unix seconds: it came out of the store then; 0: it was placed since */
	bool cancelled;   /* a user has cancelled it */
	bool failed;      /* the first cause is in reason once all parts have ended */
	bool busy;        /* a node has refused its part, since a slot was taken */
	bool requeue;   /* nothing wrong with the run itself: back into the queue once all parts have ended */
	bool timed_out; /* it has had its time */
	char *evicted;  /* why it is stopped to go on elsewhere: "node n2 was drained"; NULL: it is not */
	/* Of the owner, monotonic: when the attempt began, and since when there is room for more nodes; 0:
	 * there is none. */
	double attempt_began, room_since;
	double limit_at; /* of the owner: its time limit is reached then, monotonic; 0: never */
	struct rank_error *rank_errors; /* at most one of each rank, in the order in which they came */
	size_t rank_error_count;
	/* By rank: 1 + its place in rank_errors, 0: there is none; and those with a text, by these places.
	 * NULL: neither is made yet. */
	uint32_t *rank_error_places;
	struct rank_texts rank_texts;
	size_t
	    rank_error_bytes; /* of their texts, which are bounded: those of the likeliest causes are kept */
	/* what a node said first of a device that it has, e.g. that it fell off the bus */
	char *device_error;
	char *device_node;  /* and which node that was */
	bool final_failure; /* the next attempt would fail the same way: there is none */
	struct run_retries retries;
	struct run_lost *lost; /* of earlier attempts, and of the newest one */
	size_t lost_count;
	/* What is kept for it: during an attempt idle nodes, between two the nodes of both kinds. */
	struct spare_record *spares;
	size_t spare_count;
	bool stops_on_partition; /* a node that is cut off ends its part when the lease has run out */

	/* Bookkeeping of the owner. */
	bool dirty;   /* has changed since it was last written, or since the store has refused that */
	bool refused; /* what was last written of it: it differs from the store, also where it is not dirty */
	/* That is tried again at `write_at`, monotonic, so many seconds after the refusal. */
	double write_delay, write_at;
	bool changed; /* its version grew after waiters and feed were last notified */
	/* Numbers of the owner's commits: the one that makes the run known to the store, the last one that it
	 * is a part of, and the one that must be on disk before any caller or node learns of its changes. 0:
	 * long ago. */
	int64_t inserted_by, written_by, awaits;
	bool to_start;        /* placed, and the nodes do not know yet */
	int last_event_state; /* 1 + the state that the last event had; 0: there was none */
};

/* From a checked run file: name, task, directory, output and what it asks for. */
int run_new(const struct run_config *config, struct run **out, struct error *err);
/* How often it is started again, and how long it may run. */
void run_set_limits(struct run *r, const struct run_config *config);
/* Only what it asks for: for a run that comes out of the store. */
int run_set_request(struct run *r, const struct run_config *config, struct error *err);
void run_free(struct run *r);
DEFINE_CLEANUP(struct run *, run_free)

/* As run_view.h has it: a new reference; NULL: out of memory. own: for its owner, root or the service's user,
 * with the detail. */
json_t *run_to_json(const struct run *r, bool own);
/* The same; for the owner with the configuration, too, where it is not NULL. */
json_t *run_to_json_with(const struct run *r, bool own, json_t *config);
/* Something that the world may want to know has changed. */
void run_touch(struct run *r);
void run_set_reason(struct run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* What to do after an event. */
enum {
	RUN_STOP = 1,  /* the parts that have not ended are to be stopped */
	RUN_ENDED = 2, /* all parts have ended: the run is final, or queued again */
};

/* How many ranks; 0: not known before it is placed. */
int64_t run_world_size(const struct run *r);
/* The next attempt on these nodes; slots[i * per_node + j] is rank i * per_node + j's, with one_per_node rank
 * i's. Queued -> starting. */
int run_place(struct run *r, char *const *nodes, const int *slots, double now, struct error *err);
/* For a run that comes out of the store in the middle of an attempt: parts as the ranks say, and as
 * run_set_under_way has set them. */
int run_recover(struct run *r, double now, struct error *err);
/* What the store keeps of an attempt that has not ended, beside the ranks, so that its cause can be decided
 * by a controller that was restarted meanwhile: a struct run_record, a new reference. *out NULL: nothing
 * yet, or no attempt is under way. -ENOMEM. */
int run_under_way(const struct run *r, json_t **out);
/* The same out of the store; NULL: nothing. Where it fails, r is as before. */
int run_set_under_way(struct run *r, const json_t *under_way, struct error *err);
void run_clear_parts(struct run *r);
/* The part may go on somewhere. Valid until the next one is added or removed; NULL: out of memory. */
struct run_lost *run_add_lost(struct run *r, struct run_part *part);
/* Goes through all of them; of a part of the newest attempt, part->lost says whether there is one. */
struct run_lost *run_find_lost(const struct run *r, const char *node, int64_t attempt);
/* One of the list. Those before it stay where they are. */
void run_remove_lost(struct run *r, struct run_lost *lost);
void run_clear_lost(struct run *r);
/* spares.c */
void run_clear_spares(struct run *r);
/* per_node slots; false: out of memory. */
bool run_add_spare(struct run *r, const char *node, const int *slots);
void run_drop_spare(struct run *r, size_t i);
int64_t run_spare_slots(const struct run *r);
static inline bool run_lacks_spares(const struct run *r)
{
	return (r->state == RUN_STARTING || r->state == RUN_RUNNING) &&
	       (int64_t)r->spare_count < r->spares_asked;
}
/* An attempt ends and another one follows: what it leaves in order is kept for that. */
void run_keep_nodes(struct run *r);
/* Is that enough for the next attempt? */
bool run_has_replacements(const struct run *r);
/* The names of its nodes are from now on as `spelling` returns them, which is NULL where a name stays, or the
 * same with other upper and lower case. */
void run_respell(struct run *r, const char *(*spelling)(void *context, const char *node), void *context);
struct run_part *run_part_find(struct run *r, const char *node);

unsigned run_report(struct run *r, const struct report *report, double now);
/* The error of a worker; lost_peer: that another rank has gone, which is a consequence. */
void run_worker_error(struct run *r, int64_t rank, const char *message, bool lost_peer);
/* What the report of a rank says of its failure; run_report calls it. */
void run_rank_error(struct run *r, const struct rank_report *report);
/* A node has an attempt of this run that the store, an older copy, knows nothing of: a run that waits must
 * not be started once more. */
unsigned run_superseded(struct run *r, const char *node, int64_t attempt, double now);
/* Why a node has not started its part. */
enum run_refusal {
	REFUSED_BUSY,   /* a slot is taken: the run goes back into the queue, a limited number of times */
	REFUSED_UNSENT, /* the start did not arrive: the run goes back into the queue */
	REFUSED_NODE,   /* something has failed on the node: another node, or this one later, may start it */
	/* what the run asks for is not there, or not allowed: the next start would fail, too */
	REFUSED_FINAL,
};

unsigned run_refused(struct run *r, struct run_part *part, enum run_refusal why, const char *message,
                     double now);
/* since: when it was last known to be there (Unix seconds); 0: it has not been heard from since the run came
 * out of the store. */
unsigned run_part_lost(struct run *r, struct run_part *part, const char *message, double since, double now);
/* by: a user's name, for the reason, which replaces what the run waited for or had met with. */
unsigned run_cancel(struct run *r, const char *by, double now);
/* It has had its time: it may save, and ends. */
unsigned run_time_out(struct run *r, double now);
/* It may save, and is queued again. why: "node n2 was drained". */
unsigned run_evict(struct run *r, const char *why, double now);
/* How the parts of a run are stopped, after RUN_STOP. */
enum run_stop run_stop_kind(const struct run *r);
/* A checkpoint of the newest attempt is complete: its number grows with the run's progress. */
void run_set_checkpoint(struct run *r, int64_t step);

enum run_failure {
	FAILURE_PROGRAM, /* a rank has ended with another status than 0, or was killed */
	/* a node was lost, shut down or could not start its part, a device has failed, or the network */
	FAILURE_NODE,
	FAILURE_FINAL, /* the next attempt would fail the same way */
};

/* run_cause.c */
/* The reason of a failure until all parts have ended. */
extern const char run_undecided[];
/* NULL: nothing is known of a failure of that rank. */
struct rank_error *run_find_rank_error(const struct run *r, int64_t rank);
/* After rank_errors have come out of the store. */
void run_count_rank_errors(struct run *r);
void run_clear_rank_errors(struct run *r);
bool run_rank_failed(const struct run_rank *rank);
/* With all ends known: reports come in any order, and what dies of another's death may be seen first. Sets
 * the reason, and returns what has failed. */
enum run_failure run_decide_cause(struct run *r);

/* retry.c */

/* The attempt has ended and failed, and r->reason says why: decides whether there is another one. True: there
 * is, and r->retries.record.delay is how many seconds it has to wait at least. r->reason is extended in any
 * case. now: Unix seconds. */
bool run_retry(struct run *r, enum run_failure failure, double now);
/* The node has refused its part, since a slot is taken: another one gets the next attempt, if there
 * is one. */
void run_count_busy(struct run *r, const char *node);
/* The attempt has ended without having failed, for its start was refused or did not arrive. False: no other
 * one follows, since too many were refused so, and r->reason says that. */
bool run_retry_unstarted(struct run *r, double now);
/* Notes the cause of the end of the newest attempt, for as long as the next ones last. detail: for the owner
 * alone; NULL: nothing. */
void run_set_last_failure(struct run *r, const char *cause, const char *detail);
/* Is there anything that the store has to keep? */
bool run_has_retries(const struct run *r);
/* An attempt begins. */
void run_begin_attempt(struct run *r);
