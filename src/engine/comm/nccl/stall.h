/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is missing where a collective stands still: NCCL does not tell. A rank that has stood still for a while
 * writes in the key-value store, under GROUP/at/RANK, where that is, and again when it goes on; the one that
 * gives up reads what the others have written. Where nothing changes for long, nothing is sent.
 */
#pragma once

#include <stdint.h>

#include "engine/comm/comm.h"

/* Where a rank is. */
enum progress_state {
	BOOTSTRAPPING, /* the rank is on its way to the others */
	PROGRESSING,   /* its collectives end in time, as far as was last known */
	QUEUED,        /* it has queued a collective that its GPU has not come to */
	RUNNING,       /* it is in a collective that does not end */
	COMPLETED,     /* it has completed a collective, and has begun no other */
};

struct stall {
	int rank, size;
	struct kv_store store;
	char group[96], node[65];
};

/* Copies what it needs; the store's context has to outlive it. */
void stall_init(struct stall *s, const struct comm_options *options);
/* May take as long as the store does. A failure matters only for what could follow. */
int stall_report(const struct stall *s, enum progress_state state, uint64_t collective, const char *kind,
                 struct error *err);
/* Why `kind`, number `collective` (0: the bootstrap), makes no progress, as far as the others have reported
 * within some seconds: "rank 3 on n2 is past all-gather (collective 811) and has not begun it, rank 5 …". */
void stall_ask(const struct stall *s, uint64_t collective, const char *kind, char *words, size_t size);
