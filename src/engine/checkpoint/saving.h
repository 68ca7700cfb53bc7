/* SPDX-License-Identifier: Apache-2.0 */
/* One save that is in progress: every rank writes its part, then rank 0 publishes the whole. Where the nodes
 * have no directory in common, one rank of each publishes what lies there; rank 0 is the last, and with that
 * the checkpoint exists. */
#pragma once

#include <stdbool.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/parameters.h"
#include "engine/checkpoint/ranks.h"
#include "engine/checkpoint/save_plan.h"

/* What the ranks tell each other about a save. */
struct saving_record {
	int64_t state; /* how far this rank is, or a negative errno */
	uint64_t list_bytes, list_hash;
	int64_t publishes; /* 1: it publishes a directory */
	char node[64];
};

/* Everything is borrowed until saving_free. */
struct saving_job {
	struct ranks ranks;
	void *staging;         /* device: one saving_record for each rank; NULL for one rank */
	double timeout_s;      /* a thread that writes nothing for so long has failed */
	double interval_s;     /* without a thread: seconds between two signs of life to the other ranks */
	const char *directory; /* that is filled; it exists */
	const struct save_plan *plan;
	const struct parameter_access *access;
	/* host, plan->bytes: what is written, but not gathered, is copied there first, and written by a
	 * thread; NULL: the values are read while they are written, before saving_start returns */
	void *copy;
	/* On rank 0, and on each rank that publishes a directory of its node; NULL on the others. files:
	 * writes what is there besides the parameters, of which `listed` are in the list of what was saved.
	 * publish: makes the directory a checkpoint; index: as the ranks have written it, NULL where the plan
	 * has no state. Both may run in the thread. */
	int (*files)(void *context, struct error *err);
	const char *const *listed;
	size_t n_listed;
	int (*publish)(void *context, const struct manifest_index *index, struct error *err);
	void *context;
};

struct saving;

/* Called by all ranks, as saving_poll. When it returns, the parameters may change again. */
int saving_start(const struct saving_job *job, struct saving **out, struct error *err);
/* *ended: the save is published. An error is the same on all ranks: nothing is published then. */
int saving_poll(struct saving *s, bool *ended, struct error *err);
/* Ends the thread, if it runs, between two pieces. */
void saving_free(struct saving *s);
DEFINE_CLEANUP(struct saving *, saving_free)
