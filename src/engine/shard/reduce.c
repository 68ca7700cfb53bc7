/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients: summed over the ranks during the backward pass; each rank keeps its own part of the sums. */
#include "engine/shard/offload.h"
#include "engine/shard/rows.h"

#include <stdlib.h>

static void *own_place(const struct shard_unit *u)
{
	return (char *)u->gradients + (size_t)u->first * dtype_size(u->gradient_type);
}

/* This rank's part of the sum that has been taken in another type. */
static void *own_wire(const struct shard *s, const struct shard_unit *u)
{
	return (char *)u->wire + (size_t)u->first * dtype_size(s->o.wire);
}

/* Whether the sum over the replicas, too, is taken in the type of the wire, before it is rounded. */
static bool sums_on_wire(const struct shard *s, const struct shard_unit *u)
{
	return s->replicate && u->wire && dtype_size(s->o.wire) > dtype_size(u->gradient_type);
}

/* The sum over the replicas has ended. */
static int complete_one(struct shard *s, int unit, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];
	comm_ticket ticket = u->replicating;
	int r;

	if (!ticket)
		return 0;
	u->replicating = 0;
	if ((r = comm_wait(s->replicate, ticket, err)) < 0)
		return r;
	if (u->wire)
		device_cast(s->dev, u->own_gradients, u->gradient_type, own_wire(s, u), s->o.wire, u->own);
	u->wire = NULL;
	offload_gradients(s, unit);
	return 0;
}

/* Adds the sum that has arrived in a slot to this rank's own gradients, and starts the sum over the replicas
 * once they are complete. */
static int finish_one(struct shard *s, int unit, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];
	comm_ticket ticket = u->reducing;
	int r;

	if (!ticket)
		return 0;
	u->reducing = 0;
	if ((r = comm_wait(s->reduce, ticket, err)) < 0)
		return r;
	if (u->adds && s->o.offload == SHARD_OFFLOAD_ALL)
		device_event_wait(s->dev, u->up);
	if (sums_on_wire(s, u)) {
		u->replicating = comm_all_reduce(s->replicate, own_wire(s, u), u->own, s->o.wire, COMM_SUM);
		return 0;
	}
	if (u->wire)
		device_cast(s->dev, own_place(u), u->gradient_type, own_wire(s, u), s->o.wire, u->own);
	u->wire = NULL;
	if (unit == 0 && (r = rows_add(s, u->gradients, err)) < 0)
		return r;
	if (u->adds)
		device_add(s->dev, u->own_gradients, own_place(u), u->gradient_type, u->own);
	else if (u->in_slot && !u->direct && u->own_gradients != own_place(u))
		device_copy(s->dev, u->own_gradients, own_place(u),
		            (size_t)u->own * dtype_size(u->gradient_type));
	if (s->replicate && u->last)
		u->replicating =
		    comm_all_reduce(s->replicate, u->own_gradients, u->own, u->gradient_type, COMM_SUM);
	else if (u->last || s->o.offload == SHARD_OFFLOAD_ALL)
		offload_gradients(s, unit);
	return 0;
}

/* The slot of its sum is needed. */
static int complete_wire(struct shard *s, int unit, struct error *err)
{
	return s->unit[unit].wire ? complete_one(s, unit, err) : 0;
}

/* With offload of all, a unit's squares are added when its gradients go down: in the order of the backward
 * pass, in which they are added without. */
static int in_order(struct shard *s, int unit, int (*one)(struct shard *, int, struct error *),
                    struct error *err)
{
	int r = 0;

	for (int i = s->units - 1; i > unit && r == 0 && s->o.offload == SHARD_OFFLOAD_ALL; i--)
		r = one(s, i, err);
	return r < 0 ? r : one(s, unit, err);
}

static int finish(struct shard *s, int unit, struct error *err)
{
	return in_order(s, unit, finish_one, err);
}

static int complete(struct shard *s, int unit, struct error *err)
{
	return in_order(s, unit, complete_one, err);
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

/* What was in a slot has gone down before anything is written there. */
static void leave(struct shard *s, int unit)
{
	if (unit >= 0)
		device_event_wait(s->dev, s->unit[unit].down);
}

/* The next of the slots of own gradients. The one after it is needed next: what is there goes down while this
 * unit is computed. */
static int next_own(struct shard *s, int unit, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];
	struct shard_ring *ring = &s->own[u->ring];
	int before = ring->slot[ring->next].unit, after, r;
	void *memory;

	if ((r = next_slot(s, ring, unit, &memory, err)) < 0 ||
	    (before >= 0 && (r = complete(s, before, err)) < 0))
		return r;
	leave(s, before);
	u->own_gradients = memory;
	after = ring->slot[ring->next].unit;
	return after < 0 || s->unit[after].reducing ? 0 : complete(s, after, err);
}

/* With offload of all: memory for the unit's own gradients, with what they are added to. */
static int bring_own(struct shard *s, int unit, int before, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];
	int r = 0;

	if (s->degree > 1) {
		r = next_own(s, unit, err);
	} else {
		leave(s, before);
		u->own_gradients = u->gradients;
	}
	if (r < 0 || s->first_micro_step)
		return r;
	offload_take_back(s, unit);
	if (s->degree == 1)
		device_event_wait(s->dev, u->up);
	return 0;
}

static bool overlap(const struct shard_unit *a, const struct shard_unit *b)
{
	return a->gradients_at < b->gradients_at + (size_t)b->padded * dtype_size(b->gradient_type) &&
	       b->gradients_at < a->gradients_at + (size_t)a->padded * dtype_size(a->gradient_type);
}

/* The gradients of the unit before do not lie where those of this one do, unless that unit was the last of
 * the micro-step before. */
static int clear_place(struct shard *s, const struct shard_ring *ring, int unit, struct error *err)
{
	for (int i = 0; i < ring->slots && s->unit[unit].gradients_memory; i++) {
		int other = ring->slot[i].unit, r;

		if (other < 0 || other == unit || !overlap(&s->unit[other], &s->unit[unit]))
			continue;
		if ((r = finish(s, other, err)) < 0)
			return r;
		if (s->o.offload == SHARD_OFFLOAD_ALL && s->degree == 1)
			leave(s, other);
	}
	return 0;
}

int shard_need_gradients(struct shard *s, int unit, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];
	struct shard_ring *ring = &s->gradients[u->gradients_ring];
	void *memory;
	int before, r;

	if (!u->in_slot || u->in_place || u->frozen)
		return 0;
	before = ring->slot[ring->next].unit;
	/* What the micro-step before has left in another slot. */
	if ((r = finish(s, unit, err)) < 0 || (r = next_slot(s, ring, unit, &memory, err)) < 0 ||
	    (r = clear_place(s, ring, unit, err)) < 0)
		return r;
	u->gradients = u->gradients_memory ? u->gradients_memory : memory;
	return s->o.offload == SHARD_OFFLOAD_ALL ? bring_own(s, unit, before, err) : 0;
}

int shard_finish_gradients(struct shard *s, int unit, struct error *err)
{
	return finish(s, unit, err);
}

int shard_clear_gradients(struct shard *s, int unit, struct error *err)
{
	const struct shard_ring *ring = &s->gradients[SHARD_RING_BLOCKS];

	for (int i = 0; i < ring->slots && unit < s->base_units; i++) {
		int other = ring->slot[i].unit, r;

		if (other >= 0 && s->unit[other].gradients_at < s->unit[unit].reuse.written_to &&
		    (r = finish(s, other, err)) < 0)
			return r;
	}
	return 0;
}

void shard_micro_step(struct shard *s, bool first, bool last)
{
	s->first_micro_step = first;
	s->last_micro_step = last;
	if (last && s->squares)
		device_zero(s->dev, s->squares, sizeof(*s->squares));
}

/* The last gradients of a step start together with the sums of the step, which the caller queues next. */
static void group_last(struct shard *s, int unit)
{
	if (s->last_micro_step && s->reduce == s->comm && s->unit[unit].belongs_to == s->lowest)
		comm_group_begin(s->reduce);
}

/* ends: the backward pass may end with the unit. */
static void reduce(struct shard *s, int unit, bool ends)
{
	struct shard_unit *u = &s->unit[unit];
	size_t size = dtype_size(u->gradient_type);
	void *buffer;

	u->last = s->last_micro_step;
	if (s->o.world_size == 1 || (!u->last && !shard_reduces_each(s))) {
		if (u->last || s->o.offload == SHARD_OFFLOAD_ALL)
			offload_gradients(s, unit);
		return;
	}
	/* No rank has computed the padding of the last shard, but the gradient norm includes it. */
	device_zero(s->dev, (char *)u->gradients + (size_t)u->count * size,
	            (size_t)(u->padded - u->count) * size);
	u->adds = u->in_slot && s->degree > 1 && !s->first_micro_step;
	buffer = u->gradients;
	if (s->o.wire != u->gradient_type) {
		struct shard_ring *ring = &s->wire[u->wire_ring];
		int before = ring->slot[ring->next].unit;

		/* A communicator that has failed says so wherever it is waited for. */
		(void)next_slot(s, ring, unit, &buffer, NULL);
		if (before >= 0)
			(void)complete_wire(s, before, NULL);
		device_cast(s->dev, buffer, s->o.wire, u->gradients, u->gradient_type, u->padded);
		u->wire = buffer;
	}
	u->direct = u->in_slot && !u->adds && !u->wire;
	if (ends)
		group_last(s, unit);
	u->reducing = s->degree == 1 ? comm_all_reduce(s->reduce, buffer, u->padded, s->o.wire, COMM_SUM)
	              : u->direct    ? comm_reduce_scatter_into(s->reduce, u->own_gradients, buffer, u->own,
	                                                        s->o.wire, COMM_SUM)
	                             : comm_reduce_scatter(s->reduce, buffer, u->own, s->o.wire, COMM_SUM);
}

void shard_gradients(struct shard *s, int unit)
{
	if (unit > 0 || !s->rows.begun)
		reduce(s, unit, true);
}

void shard_head_gradients(struct shard *s, int unit)
{
	if (!shard_gathers_rows(s) || !s->last_micro_step)
		return;
	reduce(s, unit, false);
	s->rows.begun = true;
}

int shard_wait_gradients(struct shard *s, int unit, struct error *err)
{
	int r = 0;

	/* The sums over the replicas of all units are under way before the first is waited for. */
	for (int i = s->units - 1; i >= 0 && r == 0 && s->replicate; i--)
		r = finish(s, i, err);
	if (r == 0)
		r = finish(s, unit, err);
	return r < 0 ? r : complete(s, unit, err);
}

/* Of the units that are trained. */
static bool is_first(const struct shard *s, int unit)
{
	for (int i = 0; i < unit; i++)
		if (!s->unit[i].frozen)
			return false;
	return true;
}

void shard_sum_squares(struct shard *s, int unit, double *sum)
{
	const struct shard_unit *u = &s->unit[unit];

	if (s->o.offload != SHARD_OFFLOAD_ALL)
		device_sum_squares(s->dev, u->own_gradients, u->gradient_type, u->own, sum);
	else if (is_first(s, unit))
		device_copy(s->dev, sum, s->squares, sizeof(*sum));
}

int shard_sum(struct shard *s, double *sums, int64_t n, struct error *err)
{
	if (s->degree == 1)
		return 0;
	return comm_wait(s->reduce, comm_all_reduce_f64(s->reduce, sums, n, COMM_SUM), err);
}
