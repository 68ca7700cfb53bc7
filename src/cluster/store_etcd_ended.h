/* SPDX-License-Identifier: Apache-2.0 */
/* The runs of a shared store that have ended, by when they were written: the newest ones are kept there. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	STORE_ETCD_ENDED_MAX = 500, /* runs are kept, */
	STORE_ETCD_ENDED_BYTES =
	    64 << 20, /* the newest, and of those before it no more than have so many bytes in all */
};

struct ended_run {
	int64_t id;
	size_t bytes;
	bool pieces; /* there may be some */
};

/* All 0: none. */
struct ended_runs {
	struct ended_run list[STORE_ETCD_ENDED_MAX]; /* a ring: the oldest one is at `oldest` */
	size_t oldest, count, bytes;
};

/* One that has ended is written again. False: it is not among them. */
bool ended_runs_update(struct ended_runs *e, const struct ended_run *run);
const struct ended_run *ended_runs_find(const struct ended_runs *e, int64_t id); /* NULL: there is none */
/* Takes the oldest one out, where another one of so many bytes has no room. */
bool ended_runs_make_room(struct ended_runs *e, size_t bytes, struct ended_run *oldest);
/* The oldest one is forgotten where there are STORE_ETCD_ENDED_MAX. */
void ended_runs_add(struct ended_runs *e, const struct ended_run *run);
