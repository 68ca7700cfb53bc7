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
	char *boot;         /* of its machine when the attempt was placed; optional: not known */
	/* The longest lease that the node was granted meanwhile, in seconds: it ends the attempt when that
	 * has run out; optional: 0, it has none. */
	double lease;
};

/* A part of which it is not known whether it has ended. */
struct lost_record {
	char *node;
	int64_t attempt;
	char *boot;   /* as above */
	double lease; /* the same; 0 also where the attempt outlives it; optional */
};

/* What is known of the failure of a rank, for the owner of the run. */
struct rank_error {
	int64_t rank;
	char *worker;   /* the error that its worker has sent; optional: none */
	bool lost_peer; /* and that is that another rank has gone; optional */
	char *log;      /* the last lines of its log; optional: none */
};

extern const struct message rank_error_message;

/* Results of earlier attempts of the run, and their consequences for the next one. All of it is optional. */
struct retry_record {
	int64_t restarts;          /* attempts that followed a failure of the program, */
	int64_t node_failures;     /* and one of a node or a device */
	int64_t busy_starts;       /* and those that a node refused, since a slot was taken */
	int64_t stalled;           /* failed attempts in a row that have left no newer checkpoint */
	int64_t delays;            /* how often in a row the delay was doubled */
	double delay;              /* seconds that the next attempt waits; 0: not at all */
	int64_t checkpoint;        /* step of the newest checkpoint; 0: none is known */
	char *checkpoint_node;     /* where its rank 0 ran; NULL: not known */
	int64_t checkpoint_before; /* the step when the newest attempt began */
	char *last_failure;        /* "attempt 1: rank 0 on n1: exit status 1"; NULL: none */
	char *last_detail;         /* what the run's detail was then; NULL: nothing, or no failure */
	char **avoid;              /* nodes that failed in the last attempt; NULL: none */
	double used; /* seconds of the time limit that attempts have had; 0: none, or there is no limit */
};

extern const struct message retry_record_message;

/* Slots of a node that are kept for the run, and have none of its ranks. */
struct spare_record {
	char *node;
	int64_t *slots;
	size_t slot_count;
	bool worked; /* they had ranks of the last attempt; optional */
};

extern const struct message spare_record_message;

struct run_record {
	struct part_record *parts; /* those that have ended or failed; optional */
	size_t part_count;
	struct rank_error *rank_errors; /* optional */
	size_t rank_error_count;
	char *device_error;       /* what a node reported first of a device; optional */
	char *device_node;        /* which node that was; optional */
	bool final_failure;       /* the next attempt would fail the same way; optional */
	struct lost_record *lost; /* optional */
	size_t lost_count;
	struct spare_record *spares; /* optional */
	size_t spare_count;
	struct retry_record *retries; /* optional: there was one attempt only */
	bool timed_out;               /* it is stopped since its time limit was reached; optional */
	char *evicted;                /* it is stopped to be started again elsewhere: why; optional */
	json_t *words; /* rank_errors as version 0.1.0 wrote them, by number; NULL after decoding */
};

MESSAGE_DECLARE(run_record)
