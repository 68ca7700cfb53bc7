/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller's memory: SQLite with a write-ahead log, synced at each commit. A run is on disk before it
 * is acknowledged. Changes open a transaction by themselves; store_commit ends it, so that what happens in
 * one turn of the event loop costs one sync.
 */
#pragma once

#include "cluster/run.h"

struct store;

/* -EBUSY: another process has it. Older layouts are brought up to date, newer ones refused. */
/* The file is for its owner alone: the configurations in there hold the variables of all users. */
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

int store_set_drained(struct store *s, const char *node, bool drained, struct error *err);
bool store_drained(struct store *s, const char *node);
