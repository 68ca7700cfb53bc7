/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run as a store that several controllers share has it: any of them may go on with it, also one of a later
 * version, so what once was written stays readable. What never changes is apart.
 */
#pragma once

#include "wire/message.h"
#include "wire/run_view.h"

struct run_entry {
	int64_t id, attempt;
	int64_t uid, gid;
	enum run_state state;
	double submitted, started, ended; /* Unix seconds; optional: 0, not yet */
	char *reason, *detail;            /* optional */
	int64_t exit_status;              /* optional: -1, none */
	bool cancelled, failed, requeue;
	int64_t nodes, per_node;
	char *ranks;     /* of the newest attempt: a list of run_rank as JSON text; optional */
	char *under_way; /* a run_record as JSON text; optional */
};

MESSAGE_DECLARE(run_entry)

/* In place of a run_entry that is longer than a value may be: its text is in so many other ones, in order. */
struct run_pieces {
	int64_t series; /* which: each time that the run is written, another one */
	int64_t pieces, bytes;
};

MESSAGE_DECLARE(run_pieces)

struct run_origin {
	char *name, *user, *task;
	char *directory, *output; /* optional, both */
	char *key;                /* of the submission, submission_key.h; optional */
	char *config;             /* the run_config as JSON text */
};

MESSAGE_DECLARE(run_origin)
