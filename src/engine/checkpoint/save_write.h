/* SPDX-License-Identifier: Apache-2.0 */
/* Writes this rank's part of a checkpoint (save_plan.h) to its files, and the list of them (manifest.h). */
#pragma once

#include "base/cleanup.h"
#include "engine/checkpoint/save_plan.h"

struct save_write {
	const char *directory; /* that the checkpoint is made in */
	const struct save_plan *plan;
	const struct parameter_access *access;
	/* More files that this rank has written into the directory, to be listed. */
	const char *const *listed;
	size_t n_listed;
	/* Called before each piece of data that is not gathered; a negative return ends the writing. */
	int (*piece)(void *context, struct error *err);
	void *context;
};

/* Copies what is to be written, but is not gathered, to `staging` (plan->bytes), on the host. */
int save_stage(const struct save_plan *plan, const struct parameter_access *access, void *staging,
               struct error *err);
/* A save is written in two parts. Everything of w is borrowed until save_writer_free. */
struct save_writer;
int save_writer_create(const struct save_write *w, struct save_writer **out, struct error *err);
void save_writer_free(struct save_writer *writer);
DEFINE_CLEANUP(struct save_writer *, save_writer_free)
/* The files whose pieces rank 0 gathers (plan->gathered); called by all ranks, where there are any. The
 * others take part in the collectives alone. Where rank 0 fails, it goes on with the collectives to the last
 * piece, so that the ranks can agree on the failure afterwards. */
int save_writer_gathered(struct save_writer *writer, struct error *err);
/* The other files of this rank, and with plan->state the list, whose size and hash are returned: 0 and 0
 * where this rank has nothing to write. staged: what save_stage has filled; NULL: the values are read from
 * the trainer while they are written. All files are synced. */
int save_writer_own(struct save_writer *writer, const void *staged, uint64_t *list_bytes, uint64_t *list_hash,
                    struct error *err);
