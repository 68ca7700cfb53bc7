/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of the units: sums of gradients over the ranks, and gathering of weights. */
#include "engine/shard/shard.h"

#include <stdlib.h>

int shard_register(struct shard *s, struct error *err)
{
	_cleanup_free_ struct comm_buffer *buffers = NULL;
	int n = 0, r;

	if (s->world_size == 1)
		return 0;
	buffers = calloc(2 * (size_t)s->units, sizeof(*buffers));
	if (!buffers)
		return error_oom(err);
	for (int i = 0; i < s->units; i++) {
		struct shard_unit *u = &s->unit[i];

		buffers[n++] = (struct comm_buffer){u->gradients, (size_t)u->padded * sizeof(float)};
		if (s->strategy != SHARD_DDP)
			buffers[n++] =
			    (struct comm_buffer){u->weights, (size_t)u->padded * dtype_size(s->type)};
	}
	/* Collectives also work with buffers that cannot be registered; they only take longer. */
	r = comm_register(s->comm, buffers, n, err);
	return MIN(r, 0);
}

void shard_reduce(struct shard *s, int unit)
{
	struct shard_unit *u = &s->unit[unit];

	if (s->world_size == 1)
		return;
	/* No rank has computed the padding of the last shard, but the gradient norm includes it. */
	device_zero(s->dev, u->gradients + u->count, (size_t)(u->padded - u->count) * sizeof(float));
	u->ticket = s->strategy == SHARD_DDP
	                ? comm_all_reduce(s->comm, u->gradients, u->padded, DTYPE_F32, COMM_SUM)
	                : comm_reduce_scatter(s->comm, u->gradients, u->own, DTYPE_F32, COMM_SUM);
}

int shard_wait(struct shard *s, int unit, struct error *err)
{
	comm_ticket ticket = s->unit[unit].ticket;

	s->unit[unit].ticket = 0;
	return ticket ? comm_wait(s->comm, ticket, err) : 0;
}

void shard_all_gather_weights(struct shard *s, int unit, bool converted)
{
	struct shard_unit *u = &s->unit[unit];
	char *own = (char *)u->weights + (size_t)u->first * dtype_size(s->type);

	if (u->master && s->type != DTYPE_F32 && !converted)
		device_cast(s->dev, own, s->type, u->master, DTYPE_F32, u->own);
	if (s->world_size > 1 && s->strategy != SHARD_DDP)
		u->ticket = comm_all_gather(s->comm, u->weights, u->own, s->type);
}
