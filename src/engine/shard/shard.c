/* SPDX-License-Identifier: Apache-2.0 */
/* Residency: which part of which unit this rank holds. Nothing in this file needs a device, so that an
 * estimate can use it without one. */
#include "engine/shard/shard.h"

#include <errno.h>
#include <stdlib.h>

/* Elements. Shards begin at multiples of 64 bytes in bf16, and so in every type. */
#define SHARD_ALIGNMENT 32

int shard_create(struct device *dev, struct comm *comm, int rank, int world_size,
                 enum shard_strategy strategy, enum dtype type, bool without_master,
                 const struct model_layout *layout, struct shard **out, struct error *err)
{
	_cleanup_(shard_freep) struct shard *s = calloc(1, sizeof(*s));
	int64_t step = (int64_t)world_size * SHARD_ALIGNMENT, base = 0;

	if (!s)
		return error_oom(err);
	s->dev = dev;
	s->comm = comm;
	s->rank = rank;
	s->world_size = world_size;
	s->strategy = strategy;
	s->type = type;
	s->without_master = without_master;
	s->units = layout->units;
	s->unit = calloc((size_t)layout->units, sizeof(*s->unit));
	if (!s->unit)
		return error_oom(err);
	for (int i = 0; i < s->units; i++) {
		struct shard_unit *u = &s->unit[i];

		u->count = layout->unit[i].count;
		u->matrices = layout->unit[i].matrices;
		u->padded = strategy == SHARD_DDP ? u->count : (u->count + step - 1) / step * step;
		u->own = strategy == SHARD_DDP ? u->padded : u->padded / world_size;
		u->first = strategy == SHARD_DDP ? 0 : rank * u->own;
		u->base = base;
		base += u->count;
	}
	*out = steal_pointer(s);
	return 0;
}

void shard_free(struct shard *s)
{
	if (!s)
		return;
	free(s->unit);
	free(s);
}

void shard_place_buffers(struct shard *s, struct arena *a)
{
	for (int i = 0; i < s->units; i++) {
		struct shard_unit *u = &s->unit[i];

		u->weights = arena_take(a, BUFFER_WEIGHTS, (size_t)u->padded * dtype_size(s->type),
		                        "unit %d weights", i);
		if (u->aliased_bytes >= (size_t)u->padded * 4)
			u->gradients = u->aliased;
		else
			u->gradients =
			    arena_take(a, BUFFER_GRADIENTS, (size_t)u->padded * 4, "unit %d gradients", i);
		if (s->type != DTYPE_F32 && !s->without_master)
			u->master = arena_take(a, BUFFER_OPTIMIZER, (size_t)u->own * 4, "unit %d master", i);
		else if (s->type == DTYPE_F32 && u->weights)
			u->master = (float *)u->weights + u->first;
		u->m = arena_take(a, BUFFER_OPTIMIZER, (size_t)u->own * 4, "unit %d moment 1", i);
		u->v = arena_take(a, BUFFER_OPTIMIZER, (size_t)u->own * 4, "unit %d moment 2", i);
	}
}

int64_t shard_own(const struct shard_unit *u, int64_t first, int64_t n, int64_t *at)
{
	int64_t from = MAX(first, u->first), to = MIN(first + n, u->first + u->own);

	*at = from - u->first;
	return MAX(to - from, 0);
}
