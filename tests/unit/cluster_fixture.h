/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of the user alice on the nodes n1, n2 …, and what these nodes report of them. */
#pragma once

#include "cluster/run.h"
#include "unit.h"

/* A run file in its JSON form, as a service that has checked it keeps it; the caller frees it. */
struct run_config *fixture_config(const json_t *json);
/* A command with the id 1 on so many nodes, with so many slots on each; owned by the caller. */
struct run *fixture_run(int nodes, int per_node);
/* Its next attempt, on n1, n2 … at time 100; local rank i has slot i. */
void fixture_place(struct run *r);

/* What a node reports at time 200. state: "running", "stopping" or "ended"; ranks: JSON objects with commas
 * between them, the macros below among them; more: further fields, each with a comma after it, "" for none.
 * Returns what run_report returns. */
unsigned fixture_report(struct run *r, const char *node, const char *state, const char *ranks);
unsigned fixture_report_with(struct run *r, const char *node, const char *state, const char *ranks,
                             const char *more);
/* The same of an attempt that need not be the newest. */
unsigned fixture_report_of(struct run *r, int64_t attempt, const char *node, const char *state,
                           const char *ranks, const char *more);

#define RANK0_OK "{\"rank\":0,\"state\":\"exited\",\"exit_status\":0}"
#define RANK1_OK "{\"rank\":1,\"state\":\"exited\",\"exit_status\":0}"
#define RANK1_KILLED                                                                                         \
	"{\"rank\":1,\"state\":\"exited\",\"exit_status\":137,\"signal\":\"SIGKILL\",\"ended\":5.0,"         \
	"\"error\":\"last line\"}"
