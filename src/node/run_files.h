/* SPDX-License-Identifier: Apache-2.0 */
/* The files that this node keeps of runs that have ended: which are to go, and their removal. Directories
 * named after runs; files by other names stay. */
#pragma once

#include "wire/prune.h"

struct run_files_plan {
	const char *directories[2]; /* of logs, and of metrics on the controller */
	const int64_t *in_use;      /* runs that have not ended, which stay */
	size_t in_use_count;
	double days;  /* 0: none goes for its age */
	int64_t runs; /* 0: none goes for the number of newer ones */
	bool dry_run;
	double now; /* Unix seconds */
};

/* May take long. The answer is to be released by the caller. */
int run_files_prune(const struct run_files_plan *plan, struct prune_answer *answer, struct error *err);
