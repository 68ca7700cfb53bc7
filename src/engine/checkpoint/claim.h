/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The claim on an output directory: one run at a time writes there. A lock on the file CLAIM_FILE in it, held
 * by rank 0 as long as its process lives; in the file stands the run that was the last to write there, so
 * that a later attempt knows its own files from those of another run.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"

#define CLAIM_FILE ".dtrain"

/* -EBUSY where another process holds it. *ours: `run` (NULL is a name, too) was the last to mark it. *fd is
 * the claim, which ends when it is closed. File systems without locks give it to everybody. */
int claim_take(const char *directory, const char *run, int *fd, bool *ours, struct error *err);
/* From here on what lies there is this run's. */
int claim_mark(int fd, const char *directory, const char *run, struct error *err);
