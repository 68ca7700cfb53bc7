/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of gradients, some of it in activations and logits. */
#pragma once

#include "engine/shard/shard.h"

/* The first buffer that shard takes from an arena, in both passes; the units' `reuse` is set. */
void gradients_place_buffers(struct shard *s, struct arena *a);
