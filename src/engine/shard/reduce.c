/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients: summed over the ranks during the backward pass; each rank keeps its own part of the sums. */
#include "engine/shard/offload.h"

#include <stdlib.h>

static float *own_place(const struct shard_unit *u)
{
	return u->gradients + u->first;
}

/* Adds the sum that has arrived in a slot to this rank's own gradients, and starts the sum over the replicas
 * once they are complete. */
static int finish(struct shard *s, int unit, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];
	comm_ticket ticket = u->reducing;
	int r;

	if (!ticket)
		return 0;
	u->reducing = 0;
	if ((r = comm_wait(s->reduce, ticket, err)) < 0)
		return r;
	if (u->wire)
		device_cast(s->dev, own_place(u), DTYPE_F32,
		            (char *)u->wire + (size_t)u->first * dtype_size(s->o.wire), s->o.wire, u->own);
	u->wire = NULL;
	if (u->adds)
		device_add(s->dev, u->own_gradients, own_place(u), DTYPE_F32, u->own);
	else if (u->in_slot && !u->direct)
		device_copy(s->dev, u->own_gradients, own_place(u), (size_t)u->own * sizeof(float));
	if (s->replicate && u->last)
		u->replicating = comm_all_reduce(s->replicate, u->own_gradients, u->own, DTYPE_F32, COMM_SUM);
	else if (u->last)
		offload_gradients(s, unit);
	return 0;
}

/* The slot that was taken first, once its unit has no more use for it. */
static int next_slot(struct shard *s, struct shard_ring *ring, int unit, void **memory, struct error *err)
{
	struct shard_slot *slot = &ring->slot[ring->next];
	int r = slot->unit >= 0 ? finish(s, slot->unit, err) : 0;

	ring->next = (ring->next + 1) % ring->slots;
	slot->unit = unit;
	*memory = slot->memory;
	return r;
}

int shard_need_gradients(struct shard *s, int unit, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];
	void *memory;
	int r;

	if (!u->in_slot)
		return 0;
	/* What the micro-step before has left in another slot. */
	if ((r = finish(s, unit, err)) < 0 ||
	    (r = next_slot(s, &s->gradients[u->ring], unit, &memory, err)) < 0)
		return r;
	u->gradients = memory;
	return 0;
}

void shard_micro_step(struct shard *s, bool first, bool last)
{
	s->first_micro_step = first;
	s->last_micro_step = last;
}

void shard_gradients(struct shard *s, int unit)
{
	struct shard_unit *u = &s->unit[unit];
	void *buffer;

	if (s->o.world_size == 1 && s->last_micro_step)
		offload_gradients(s, unit);
	if (s->o.world_size == 1 || (!s->last_micro_step && !shard_reduces_each(s)))
		return;
	/* No rank has computed the padding of the last shard, but the gradient norm includes it. */
	device_zero(s->dev, u->gradients + u->count, (size_t)(u->padded - u->count) * sizeof(float));
	u->adds = u->in_slot && !s->first_micro_step;
	u->last = s->last_micro_step;
	buffer = u->gradients;
	if (s->o.wire != DTYPE_F32) {
		/* A communicator that has failed says so wherever it is waited for. */
		(void)next_slot(s, &s->wire[u->ring], unit, &buffer, NULL);
		device_cast(s->dev, buffer, s->o.wire, u->gradients, DTYPE_F32, u->padded);
		u->wire = buffer;
	}
	u->direct = u->in_slot && !u->adds && !u->wire;
	u->reducing = s->degree == 1 ? comm_all_reduce(s->reduce, buffer, u->padded, s->o.wire, COMM_SUM)
	              : u->direct    ? comm_reduce_scatter_into(s->reduce, u->own_gradients, buffer, u->own,
	                                                        s->o.wire, COMM_SUM)
	                             : comm_reduce_scatter(s->reduce, buffer, u->own, s->o.wire, COMM_SUM);
}

int shard_wait_gradients(struct shard *s, int unit, struct error *err)
{
	comm_ticket ticket;
	int r = 0;

	/* The sums over the replicas of all units are under way before the first is waited for. */
	for (int i = s->units - 1; i >= 0 && r == 0 && s->replicate; i--)
		r = finish(s, i, err);
	if (r == 0)
		r = finish(s, unit, err);
	ticket = s->unit[unit].replicating;
	s->unit[unit].replicating = 0;
	if (r < 0 || !ticket)
		return r;
	r = comm_wait(s->replicate, ticket, err);
	if (r == 0)
		offload_gradients(s, unit);
	return r;
}

int shard_sum(struct shard *s, double *sums, int64_t n, struct error *err)
{
	if (s->degree == 1)
		return 0;
	return comm_wait(s->reduce, comm_all_reduce_f64(s->reduce, sums, n, COMM_SUM), err);
}
