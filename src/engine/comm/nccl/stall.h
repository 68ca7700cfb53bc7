/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out which rank a collective waits for when it makes no progress, which NCCL does not report. A rank
 * that has made no progress for some time writes where it is to the key-value store, under GROUP/at/RANK, and
 * writes again when it goes on. A rank that gives up reads what the others have written. As long as a rank's
 * state does not change, it writes nothing.
 */
#pragma once

#include <stdint.h>

#include "engine/comm/comm.h"

/* Where a rank is. */
enum progress_state {
	BOOTSTRAPPING, /* it is connecting to the other ranks */
	PROGRESSING,   /* its last report is that its collectives end in time */
	QUEUED,        /* it has queued a collective that its GPU has not reached */
	RUNNING,       /* it is in a collective that does not end */
	COMPLETED,     /* it has completed a collective, and has begun no other */
};

struct stall {
	int rank, size;
	struct kv_store store;
	const int *numbers; /* what messages call the ranks; NULL: by their ranks */
	char group[96], node[65];
};

/* Copies what it needs, but for numbers; the store's context has to outlive it. */
void stall_init(struct stall *s, const struct comm_options *options, const int *numbers);
/* Writes where this rank is; takes as long as the store does. Where it fails, the other ranks find the report
 * before this one. */
int stall_report(const struct stall *s, enum progress_state state, uint64_t collective, const char *kind,
                 struct error *err);
/* Writes to `words` why `kind`, collective number `collective` (0: the bootstrap), makes no progress, by what
 * the others have reported: "rank 3 on n2 is past all-gather (collective 811) and has not begun it, rank 5
 * …". Takes some seconds at most. */
void stall_ask(const struct stall *s, uint64_t collective, const char *kind, char *words, size_t size);
