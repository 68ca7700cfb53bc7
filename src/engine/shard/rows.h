/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of shard/ share about the rows of a tied embedding's gradients; rows.c says how they travel.
 */
#pragma once

#include "engine/shard/shard.h"

/* Decides whether they travel by themselves. */
void rows_create(struct shard *s, const struct model_layout *layout);
/* Both passes of the arena. */
void rows_place(struct shard *s, struct arena *a);
/* The sum of the table has ended: adds the rows of all ranks to it, where they travel by themselves. */
int rows_add(struct shard *s, float *gradients, struct error *err);
