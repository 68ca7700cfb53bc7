/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a kind of store implements, and what store.c hands to it. The functions for writing are called from
 * the store's thread alone, those for reading from the event loop's alone, and at the same time: a reader
 * must not wait for a commit.
 */
#pragma once

#include "cluster/store.h"

/* A run as it was when it was put into the batch. */
struct stored_run {
	struct run run;                     /* numbers and texts; ranks, progress and parts are NULL, */
	char *ranks, *progress, *under_way; /* and here as JSON text; NULL: none */
	char *config;                       /* NULL: a run that is there already */
	char
	    *refused; /* why the shared store does not take it, with all of the others taken; NULL: it does */
};

struct stored_drain {
	char *node, *reason;
	bool drained;
};

struct store_batch {
	struct stored_run *runs; /* in the order of the changes */
	size_t run_count;
	struct stored_drain *drains; /* one for each node */
	size_t drain_count;
	int64_t epoch, replaced; /* the epoch that begins, and the one that it replaces; 0: none */
	int64_t highest;         /* the run number that is given out last; 0: no change */
	size_t refused;          /* so many of the runs are */
	bool failed;             /* it lacks something: out of memory */
};

struct store_start {
	char *cluster;          /* owned by the caller */
	int64_t epoch, highest; /* 0: none */
	int64_t least_epoch;    /* the next one is not below this; 0: any */
};

/* What several controllers share. A batch is committed here first, and then into the store of this machine,
 * from which everything is read. */
struct store_primary {
	/* In the store's thread; returns once all of it is there for good, but for runs that it marks as
	 * refused: of these nothing is there, or what was there before. After a failure nothing of it is
	 * there, or this controller is none any more. */
	int (*apply)(void *self, struct store_batch *b, struct error *err);
	/* In that of the event loop: -E2BIG where it could not take the new run. */
	int (*check)(void *self, const struct run *r, const char *config, struct error *err);
	/* In the store's thread: what apply has committed cannot be written here. */
	void (*copy_failed)(void *self, const struct error *err);
	void (*close)(void *self);
};

struct store_backend {
	/* Writing. apply returns once all of it, but for runs that are refused, is synced; on failure nothing
	 * of it is there. */
	int (*apply)(void *self, const struct store_batch *b, struct error *err);
	int (*backup_begin)(void *self, const char *path, void **backup, struct error *err);
	int (*backup_step)(void *backup, bool *done, struct error *err); /* some milliseconds' worth */
	void (*backup_free)(void *backup);
	/* Reading; see store.h. */
	int (*get)(void *self, int64_t id, struct run **out, struct error *err);
	int (*config)(void *self, int64_t id, char **text, struct error *err);
	int (*find_key)(void *self, int64_t uid, const char *key, int64_t *id, struct error *err);
	int (*list)(void *self, const struct run_query *query,
	            int (*each)(void *context, struct run *r, struct error *err), void *context,
	            struct error *err);
	int (*counts)(void *self, int64_t counts[RUN_STATES], struct error *err);
	bool (*drained)(void *self, const char *node, char **reason);
	bool (*has_epoch)(void *self, int64_t epoch);
	void (*close)(void *self); /* nothing is written or read any more */
};

/* store_sqlite.c: what store_open opens; start->cluster is the caller's. */
int store_sqlite_open(const char *path, const struct store_backend **backend, void **self,
                      struct store_start *start, struct error *err);

/* What another store has, into one that store_sqlite_open has opened, and that no thread uses yet: in place
 * of its drains and its runs that have not ended, and beside the others. */
struct store_import {
	const char *cluster;
	const struct store_batch *batch; /* each run with its configuration */
	const int64_t *epochs;
	size_t epoch_count;
};

int store_sqlite_import(void *self, const struct store_import *import, struct error *err);

/* Before the first commit. Takes self. */
void store_set_primary(struct store *s, const struct store_primary *primary, void *self);

/* Takes self, on failure, too. What `start` holds is copied. */
int store_create(const struct store_backend *backend, void *self, const struct store_start *start,
                 struct store **out, struct error *err);

/* store_batch.c */
int store_batch_add_run(struct store_batch *b, const struct run *r, const char *config);
/* Replaces what the batch says of the node. */
int store_batch_set_drained(struct store_batch *b, const char *node, bool drained, const char *reason);
const struct stored_drain *store_batch_find_drain(const struct store_batch *b, const char *node);
void store_batch_clear(struct store_batch *b);
