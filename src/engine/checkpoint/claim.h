/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The claim on an output directory, in which only one run at a time may write. Rank 0 holds a lock on the
 * file CLAIM_FILE of the directory as long as its process lives. The file names the run, the attempt and the
 * cluster that were the last to write there. By that a later attempt distinguishes files of its own run from
 * those of another, and an older attempt that is cut off from the cluster, but not from the directory, finds
 * that it may not write any more. The file also lists the runs before: a run that starts again after another
 * run has used its directory must not resume from the other run's checkpoints.
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
	const char *cluster; /* the cluster that gave the run its number; NULL or "": not known */
	int64_t epoch; /* of its store: one restored from an older copy may give an attempt number twice */
	/* The file with the end of the lease under which the attempt runs (base/lease_file.h); NULL, and a
	 * file that is not there: it has no end. */
	const char *lease;
};

/* -EBUSY where a process of another run, or of this attempt or a later one, holds it. One of an earlier
 * attempt may still hold it, on a machine that is paused: that attempt has ended as far as the controller
 * knows, by its lease or by an administrator's word, and claim_check keeps it from publishing when it goes
 * on. -ESTALE where a newer attempt of the same run, or one of a later epoch, has marked it, or another run
 * after this one had. *ours: an attempt of this run was the last to mark it. *fd holds the claim until it is
 * closed. On a file system without locks every process gets the claim. */
int claim_take(const struct claim *claim, int *fd, bool *ours, struct error *err);
/* Marks the directory: its files are this attempt's from now on. Reads the mark again first: -ESTALE as
 * claim_take. If it fails, the previous mark stays. */
int claim_mark(const struct claim *claim, int fd, struct error *err);
/* Called before anything is published, with the descriptor of claim_take, or -1 on another rank: -ESTALE
 * where another attempt or run has marked the directory since, or where the lease has run out, or it cannot
 * be known whether it has: another attempt may begin at any time. */
int claim_check(const struct claim *claim, int fd, struct error *err);
