/* SPDX-License-Identifier: Apache-2.0 */
/* A run followed from its submission to its end: why it waits, then the log of a rank, attempt after
 * attempt. */
#pragma once

#include "base/error.h"
#include "dtrain/client.h"

/* Prints why the run waits on stderr, each time that the reason changes, and the log of the rank on stdout. 0
 * and the ended run (to be released by the caller; raw: as client_wait_run has it), or the exit status after
 * the error was printed. A log that cannot be read is no failure of the run: it is reported only where the
 * run itself has nothing to report. */
int follow_run(struct client *client, int64_t id, int rank, struct run_view *run, json_t **raw);
/* For stream_read: straight to stdout. */
int follow_print(void *context, const char *data, size_t len, struct error *err);
