/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is missing where a collective stands still: NCCL does not tell. A rank that has stood still for a while
 * writes at the rendezvous, under GROUP/at/RANK, where that is, and again when it goes on; the one that gives
 * up reads what the others have written. Where nothing changes for long, nothing is sent.
 */
#pragma once

#include <stdint.h>

#include "engine/comm/comm.h"

enum standing {
	STANDS_COMING, /* to the meeting */
	STANDS_GOING,  /* on, as far as was last known */
	STANDS_BEFORE, /* a collective that it has queued, but its GPU has not come to */
	STANDS_IN,     /* a collective that does not end */
	STANDS_PAST,   /* a collective, and has begun no other */
};

struct stall {
	int rank, size;
	struct rendezvous rendezvous;
	char group[96], node[65];
};

/* Copies what it needs; the rendezvous' context has to outlive it. */
void stall_init(struct stall *s, const struct comm_options *options);
/* May take as long as the rendezvous does. A failure is only worth knowing for what could follow. */
int stall_tell(const struct stall *s, enum standing standing, uint64_t collective, const char *kind,
               struct error *err);
/* Why `kind`, number `collective` (0: the meeting), stands still, as far as the others' words show within
 * some seconds: "rank 3 on n2 is past all-gather (collective 811) and has not begun it, rank 5 …". */
void stall_ask(const struct stall *s, uint64_t collective, const char *kind, char *words, size_t size);
