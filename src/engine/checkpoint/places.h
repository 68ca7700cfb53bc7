/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks find the same output directory: all of them where the nodes share it, those of one node where
 * each node has a directory of that name on a disk of its own. Such a directory is a place, and the lowest
 * rank that finds it is its writer: rank 0 of the first place. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "engine/checkpoint/ranks.h"

/* Beginning of the names of the files by which ranks find out whether they share a directory. */
#define PLACES_PROBE "checkpoint-probe-"

struct places {
	int n;       /* ranks */
	int *writer; /* [n] of the place that a rank finds; -1: it finds none, and cannot make one */
	bool single; /* all ranks find the directory of rank 0 */
};

/* Called by all ranks, each with the directory as it finds it; rank 0 has made it. others: the ranks that do
 * not find what rank 0 writes have places of their own, and make the directory; without, their writer is -1.
 * After a failure, too, places_free. */
int places_find(const struct ranks *ranks, const char *directory, bool others, struct places *out,
                struct error *err);
void places_free(struct places *p);
