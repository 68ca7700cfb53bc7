/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The claim on an output directory: one run at a time writes there. A lock on the file CLAIM_FILE in it, held
 * by rank 0 as long as its process lives; in the file stand the run, the attempt and the cluster that were
 * the last to write there, so that a later attempt knows its own files from those of another run, and an
 * older one, cut off from the cluster but not from the directory, finds that it is no longer the one to
 * write. The runs before that one follow: a run that starts again after another has taken its directory must
 * not go on from the other's checkpoints.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define CLAIM_FILE ".dtrain"

struct claim {
	const char *directory;
	const char *run; /* NULL where runs have no names (tests): then attempts are not compared */
	int64_t attempt;
	const char *cluster; /* whose runs are counted so; NULL or "": not known */
	int64_t epoch;       /* of its store: one restored from an older copy may count an attempt twice */
};

/* -EBUSY where another process holds it; -ESTALE where a newer attempt of the same run, or one of a later
 * epoch, has marked it, or another run after this one had. *ours: an attempt of this run was the last to mark
 * it. *fd holds the claim until it is closed. File systems without locks give it to everybody. */
int claim_take(const struct claim *claim, int *fd, bool *ours, struct error *err);
/* From here on what lies there is this attempt's. Looks at the mark once more: -ESTALE as claim_take. Where
 * it fails the mark that was there stays. */
int claim_mark(const struct claim *claim, int fd, struct error *err);
/* Before anything is published: -ESTALE where another has marked it since. */
int claim_check(const struct claim *claim, struct error *err);
