/* SPDX-License-Identifier: Apache-2.0 */
/* What a node keeps of runs that have ended, and the removal of what is older: the question and the answer of
 * POST /v1/prune, and which runs have not ended. */
#pragma once

#include "wire/message.h"

struct prune_request {
	/* runs in whose files nothing has changed for so long are removed; optional: -1, as dtraind.conf
	 * has it; 0: none for their age */
	double days;
	int64_t runs; /* and all but so many of the newest; the same */
	bool dry_run; /* nothing is removed; optional */
};

MESSAGE_DECLARE(prune_request)

struct pruned_run {
	int64_t run;
	int64_t bytes;  /* on disk */
	double changed; /* Unix seconds */
};

struct prune_answer {
	struct pruned_run *runs; /* oldest first */
	size_t run_count;
	int64_t kept; /* runs of which this node keeps files */
	char *error;  /* why some of it could not be removed; optional */
};

MESSAGE_DECLARE(prune_answer)

/* GET /v1/peer/active-runs: the runs that have not ended, whose files stay on all nodes. */
struct active_runs {
	int64_t *runs;
	size_t count;
};

MESSAGE_DECLARE(active_runs)
