/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller's memory on disk, and the seam behind which another kind of store can stand: whoever uses it
 * knows no SQL. Changes are collected by value into a batch; store_commit hands the batch to a thread of the
 * store's own, which writes and syncs it, all or nothing; store_dispatch then calls back on the event loop.
 * At most one commit is in flight; what is changed meanwhile is collected for the next one.
 *
 * All functions are for one thread, that of the event loop, and none but store_wait, store_commit_epoch and
 * store_close waits for a commit. What is read is what has been committed.
 */
#pragma once

#include "cluster/run.h"

struct store;

/* The result of a commit or a backup: 0 or negative, with words in err. */
typedef void (*store_done_fn)(void *context, int code, const struct error *err);

/* SQLite with a write-ahead log, synced at each commit. -EBUSY: another process has it; while it is open, no
 * other can read or write it. Older layouts are brought up to date, newer ones refused. The file is for its
 * owner alone: the configurations in there hold the variables of all users. */
int store_open(const char *path, struct store **out, struct error *err);
/* Waits for the commit in flight, and calls no callback. What is not committed is lost. */
void store_close(struct store *s);
DEFINE_CLEANUP(struct store *, store_close)

/* The next batch. */

/* Gives r its id; a number is given once, also where its commit fails. config: the run_config as JSON text.
 * A failed commit forgets the runs of its batch, new and changed ones: the caller has them. */
int store_insert(struct store *s, struct run *r, const char *config, struct error *err);
/* -E2BIG: store_insert of it would fail the commit, with all that is in it. */
int store_check(struct store *s, const struct run *r, const char *config, struct error *err);
/* A failure in here is one of the commit. */
void store_update(struct store *s, const struct run *r);
/* reason: why, or NULL. A failed commit keeps this, and all that follows, for the next one. */
int store_set_drained(struct store *s, const char *node, bool drained, const char *reason, struct error *err);
/* The next epoch, above `above`, too; replace: instead of the one that it follows, in which nothing was
 * started. */
void store_begin_epoch(struct store *s, int64_t above, bool replace);
/* The next run's number is above `highest`. */
void store_lift(struct store *s, int64_t highest);

/* Commits the batch, which must not be done while store_is_busy. */
void store_commit(struct store *s, store_done_fn done, void *context);
/* For the callback of a commit that has succeeded: why this run of it is not in the store, or is there as it
 * was before, since what is to be written of it is more than the store takes; borrowed, NULL: it is there. */
const char *store_refusal(const struct store *s, int64_t id);
bool store_is_busy(const struct store *s); /* a commit is in flight, or its callback is still to be called */
int store_fd(const struct store *s);       /* readable: store_dispatch has something to do */
void store_dispatch(struct store *s);      /* calls the callbacks of what is done */
void store_wait(struct store *s);          /* for the commit in flight, whose callback is called from here */
/* Begins an epoch, commits it and waits for that: a controller does nothing before it has its epoch. */
int store_commit_epoch(struct store *s, struct error *err);

/* Reading. */

/* Without what it asks for (see run_set_request). -ENOENT: no such run. */
int store_get(struct store *s, int64_t id, struct run **out, struct error *err);
int store_config(struct store *s, int64_t id, char **text, struct error *err); /* owned by the caller */
/* The run that the user's submission with this key made. -ENOENT: there is none. */
int store_find_key(struct store *s, int64_t uid, const char *key, int64_t *id, struct error *err);
/* Each run is the callback's to free. A negative return of it ends the listing and is returned. */
int store_list(struct store *s, const struct run_query *query,
               int (*each)(void *context, struct run *r, struct error *err), void *context,
               struct error *err);
int store_counts(struct store *s, int64_t counts[RUN_STATES], struct error *err);
/* *reason: owned by the caller, or NULL. What was set last, committed or not. */
bool store_drained(struct store *s, const char *node, char **reason);

/* The cluster: a random id, made with the store, and the epoch, which grows with each opening by a
 * controller. Both go with all that a controller sends to nodes. */
const char *store_cluster(const struct store *s);
/* The one that is on disk, the only one that may be sent: what was started in another would be foreign to
 * this store after a crash. 0: none has begun. */
int64_t store_epoch(const struct store *s);
int64_t store_newest_epoch(const struct store *s); /* committed or not */
/* Did this store have it? One that was restored lacks those after the copy was made. */
bool store_has_epoch(struct store *s, int64_t epoch);
int64_t store_highest(const struct store *s);        /* the last number of a run that is on disk */
int64_t store_newest_highest(const struct store *s); /* the last one that was given, or lifted to */

/* A copy of the store as it is when the copy is complete, into an empty file at `path`, which the caller has
 * made. The store's thread makes it in slices, between which it commits; these changes are in it. One at a
 * time. */
struct store_backup;

int store_backup_begin(struct store *s, const char *path, store_done_fn done, void *context,
                       struct store_backup **out, struct error *err);
/* Before the store is closed; complete or not. An incomplete one ends without its callback. */
void store_backup_free(struct store_backup *b);
DEFINE_CLEANUP(struct store_backup *, store_backup_free)
