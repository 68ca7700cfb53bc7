/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint that a run goes on from, whatever number of ranks and strategy made it, and whatever these are
 * now. Its files may lie on several nodes: what not all ranks find, one that finds it sends to the others. */
#pragma once

#include <stdbool.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/checkpoint/ranks.h"
#include "engine/checkpoint/weights.h"

struct resume;

/* Called by all ranks, each with the directory as it finds it itself; `root` finds the index. Compares every
 * file with what was saved, the ranks each a part of them. *unusable, with a negative return: the checkpoint
 * is damaged or incomplete; all ranks have the same words for it, which name the file and what of it. -ESTALE
 * of these: the save was interrupted when other nodes had published their parts, but not yet that of rank 0.
 * -ENOENT, which is not one of these: a node has a file that no rank of this run finds. */
int resume_open(const struct ranks *ranks, int root, const char *directory, struct resume **out,
                bool *unusable, struct error *err);
/* Weights and moments into the trainer, bit by bit: each rank takes what it holds. */
int resume_read(struct resume *resume, const struct weights_place *place, struct error *err);
void resume_close(struct resume *resume);
DEFINE_CLEANUP(struct resume *, resume_close)
