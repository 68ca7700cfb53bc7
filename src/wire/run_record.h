/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the controller's store keeps of an attempt that has not ended, beside its ranks, so that the cause of
 * a failure can be decided by a controller that has started meanwhile: also one of a later version, so what
 * once was written stays readable.
 */
#pragma once

#include "wire/message.h"

/* What one node does for the attempt. */
struct part_record {
	char *node;
	bool ended;         /* optional */
	char *trouble;      /* why it failed as a whole; optional: it did not */
	double trouble_at;  /* Unix seconds, of the controller's clock; optional: 0 */
	double clock_error; /* ± seconds: how well that of the node is known; optional: 0 */
};

/* What is known of the failure of a rank, for the owner of the run. */
struct rank_error {
	int64_t rank;
	char *worker;   /* the error that its worker has sent; optional: none */
	bool lost_peer; /* and that is that another rank has gone; optional */
	char *log;      /* the last lines of its log; optional: none */
};

extern const struct message rank_error_message;

struct run_record {
	struct part_record *parts; /* those that have ended or failed; optional */
	size_t part_count;
	struct rank_error *rank_errors; /* optional */
	size_t rank_error_count;
	char *device_error; /* what a node reported first of a device; optional */
	json_t *words;      /* rank_errors as version 0.1.0 wrote them, by number; NULL after decoding */
};

MESSAGE_DECLARE(run_record)
