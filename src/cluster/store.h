/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller's memory: SQLite with a write-ahead log, synced at each commit. A run is on disk before it
 * is acknowledged. Changes open a transaction by themselves; store_commit ends it, so that what happens in
 * one turn of the event loop costs one sync.
 */
#pragma once

#include "cluster/run.h"

struct store;

/* -EBUSY: another process has it; while it is open, no other can read or write it. Older layouts are brought
 * up to date, newer ones refused. The file is for its owner alone: the configurations in there hold the
 * variables of all users.
 *
 * Nothing in this process may open or close the file (or its -wal) by other means: the kernel would drop the
 * locks that keep others out. */
int store_open(const char *path, struct store **out, struct error *err);
void store_close(struct store *s); /* what is not committed is lost */
DEFINE_CLEANUP(struct store *, store_close)

/* Gives r its id. config: the run_config as JSON text. */
int store_insert(struct store *s, struct run *r, const char *config, struct error *err);
int store_update(struct store *s, const struct run *r, struct error *err);
/* On failure everything since the last commit is undone. */
int store_commit(struct store *s, struct error *err);
void store_rollback(struct store *s);

/* Without what it asks for (see run_set_request). -ENOENT: no such run. */
int store_get(struct store *s, int64_t id, struct run **out, struct error *err);
int store_config(struct store *s, int64_t id, char **text, struct error *err); /* owned by the caller */
/* Newest first, ids below `before` (0: all), states in the set; each run is the callback's to free. A
 * negative return of it ends the listing and is returned. */
int store_list(struct store *s, unsigned states, int64_t before, int64_t limit,
               int (*each)(void *context, struct run *r, struct error *err), void *context,
               struct error *err);
int store_counts(struct store *s, int64_t counts[RUN_STATES], struct error *err);

/* reason: why, or NULL. */
int store_set_drained(struct store *s, const char *node, bool drained, const char *reason, struct error *err);
bool store_drained(struct store *s, const char *node,
                   char **reason); /* *reason: owned by the caller, or NULL */

/* The cluster: a random id, made with the store, and the epoch, which grows with each opening by a
 * controller. Both go with all that a controller sends to nodes. */
const char *store_cluster(const struct store *s);
/* The one that is on disk, the only one that may be sent: one that is not committed may be undone, and what
 * was started in it would be foreign to this store. 0: none has begun. */
int64_t store_epoch(const struct store *s);
int64_t store_newest_epoch(const struct store *s); /* committed or not */
/* The next epoch, above `above`, too; replace: instead of the one that it follows, in which nothing was
 * started. Without a commit it is as if it had not begun. */
int store_begin_epoch(struct store *s, int64_t above, bool replace, struct error *err);
/* Did this store have it? One that was restored lacks those after the copy was made. */
bool store_has_epoch(struct store *s, int64_t epoch);
/* The last number that a run got, and the lifting of it: the next run's is above `highest`. */
int64_t store_highest(struct store *s);
int store_lift(struct store *s, int64_t highest, struct error *err);

/* A copy of the store as it is when the copy is complete, into an empty file at `path`, which the caller has
 * made; a number of pages (of 4 KiB) at a time. Changes in between are in it. */
struct store_backup;

int store_backup_begin(struct store *s, const char *path, struct store_backup **out, struct error *err);
int store_backup_step(struct store_backup *b, int pages, bool *done, struct error *err);
void store_backup_free(struct store_backup *b); /* before the store is closed; complete or not */
DEFINE_CLEANUP(struct store_backup *, store_backup_free)
