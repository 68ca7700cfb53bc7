/* SPDX-License-Identifier: Apache-2.0 */
/* Compares by content what has to be the same on all ranks. Each rank reads its files on its own node; if
 * they differed, the ranks would train on different data or weights, and nothing would show it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/comm/comm.h"

/* Strings are borrowed. */
struct agreement_item {
	const char *what; /* "tensor model.norm.weight" */
	const char *file; /* the file that it was read from */
	uint64_t digest;  /* of its content; all ranks have the same items in the same order */
};

/* Called by all ranks; comm may be NULL for one. -EINVAL on every rank, in the same words, where the items
 * differ: node, rank, file and item of the first rank that has another content than most, or than rank 0
 * where no content is more frequent. `node` is this rank's; `remedy` ends the message ("the same files on ...
 * are needed"). */
int agreement_check(const struct agreement_item *items, size_t n, struct device *dev, struct comm *comm,
                    const char *node, const char *remedy, struct error *err);
