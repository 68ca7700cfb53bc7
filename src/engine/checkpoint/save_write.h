/* SPDX-License-Identifier: Apache-2.0 */
/* Writes this rank's part of a checkpoint (save_plan.h) to its files, and the list of them (manifest.h). */
#pragma once

#include <stdatomic.h>

#include "engine/checkpoint/save_plan.h"

struct save_write {
	const char *directory; /* that the checkpoint is made in */
	const struct save_plan *plan;
	const struct parameter_access *access;
	/* What save_stage has filled; NULL: the values are read from the trainer while they are written. */
	const void *staged;
	/* More files that this rank has written into the directory, to be listed. */
	const char *const *listed;
	size_t n_listed;
	/* Called before each piece of data; a negative return ends the writing. */
	int (*piece)(void *context, struct error *err);
	void *context;
};

/* Copies what is to be written to `staging` (plan->bytes), on the host. */
int save_stage(const struct save_plan *plan, const struct parameter_access *access, void *staging,
               struct error *err);
/* With plan->gathers, on all ranks but 0: takes part in the collectives by which save_write reads the values.
 */
int save_follow(const struct save_plan *plan, const struct parameter_access *access, struct error *err);
/* Writes and syncs the files; with plan->state the list as well, whose size and hash are returned: 0 and 0
 * where this rank has nothing to write. */
int save_write(const struct save_write *w, uint64_t *list_bytes, uint64_t *list_hash, struct error *err);
