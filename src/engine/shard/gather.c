/* SPDX-License-Identifier: Apache-2.0 */
/* Weights: gathered from the ranks' shards before a unit is used, into memory of their own or into a slot. */
#include "engine/shard/offload.h"
#include "engine/shard/packed.h"

#include <errno.h>
#include <stdlib.h>

/* ---- steps ---- */

void shard_begin_step(struct shard *s, int unit)
{
	if (s->unit[unit].stepped)
		device_aside_begin(s->dev);
}

void shard_end_step(struct shard *s, int unit)
{
	if (!s->unit[unit].stepped)
		return;
	device_aside_end(s->dev, s->unit[unit].stepped);
	s->unit[unit].stepping = true;
}

void shard_await_step(struct shard *s, int unit)
{
	if (s->unit[unit].stepping)
		device_event_wait(s->dev, s->unit[unit].stepped);
	s->unit[unit].stepping = false;
}

void shard_await_steps(struct shard *s)
{
	for (int i = 0; i < s->units; i++)
		shard_await_step(s, i);
}

/* ---- slots ---- */

/* Where a unit's weights come from the host: what reads them from now on starts behind them, here or on the
 * other ranks. */
static void await_host(struct shard *s, int unit)
{
	struct shard_unit *u = &s->unit[unit];

	if (!u->coming)
		return;
	u->coming = false;
	device_event_wait(s->dev, u->up);
	if (s->degree > 1)
		u->gathering = comm_all_gather(s->gather, u->weights, u->own, s->o.type);
}

static void leave_slot(struct shard *s, struct shard_slot *slot)
{
	struct shard_unit *u = &s->unit[slot->unit];

	/* A gather that is still under way there ends before a new one begins, but not before what comes from
	 * the host. A communicator that has failed says so wherever it is waited for. */
	if (s->o.offload == SHARD_OFFLOAD_ALL && u->gathering)
		(void)comm_wait(s->gather, u->gathering, NULL);
	u->weights = NULL;
	u->gathering = 0;
	u->coming = false;
	slot->unit = -1;
}

/* Frees a slot that no unit of the window has. NULL: there is none. */
static struct shard_slot *free_slot(struct shard *s, struct shard_ring *ring, const struct shard_window *w)
{
	for (int i = 0; i < ring->slots; i++) {
		struct shard_slot *slot = &ring->slot[i];

		if (slot->used || (slot->unit >= 0 && shard_in_window(w, slot->unit)))
			continue;
		if (slot->unit >= 0)
			leave_slot(s, slot);
		/* A communicator that has failed says so wherever it is waited for. */
		if (slot->gradients >= 0)
			(void)shard_finish_gradients(s, slot->gradients, NULL);
		slot->gradients = -1;
		return slot;
	}
	return NULL;
}

/* Starts a unit's way into a slot that no unit of the window has. False: there is none. */
static bool start_gather(struct shard *s, int unit, const struct shard_window *w)
{
	struct shard_unit *u = &s->unit[unit];
	struct shard_slot *slot = free_slot(s, &s->weights[u->weights_ring], w);

	if (!slot)
		return false;
	shard_await_step(s, unit);
	slot->unit = unit;
	u->weights = slot->memory;
	if (s->o.offload == SHARD_OFFLOAD_ALL)
		offload_weights(s, unit);
	else
		u->gathering = comm_all_gather_into(s->gather, u->weights, u->own_weights, u->own, s->o.type);
	return true;
}

static struct shard_slot *slot_of(struct shard *s, int unit)
{
	struct shard_ring *ring = &s->weights[s->unit[unit].weights_ring];

	for (int i = 0; i < ring->slots; i++)
		if (ring->slot[i].unit == unit)
			return &ring->slot[i];
	return NULL;
}

/* Whether a unit comes to a slot before it is needed. Where blocks in 4 bits are dequantized into the slot
 * too, those that are needed before it would be written over it. */
static bool comes_ahead(const struct shard *s, int unit)
{
	const struct shard_unit *u = &s->unit[unit];

	return !u->whole_weights && !u->packed && !s->weights[u->weights_ring].packed;
}

/* The gathers of what comes after a unit. They are queued before the unit's own operations are: a collective
 * starts after what was queued before it, and so runs behind those. What is gathered from the host's memory
 * has come up while the unit before was computed. */
static void look_ahead(struct shard *s, struct shard_window *w, int unit, enum model_phase phase)
{
	int most = shard_weight_slots(s) - 1;

	for (int ahead = 0; ahead < most && shard_next_unit(s, &unit, &phase);) {
		if (!comes_ahead(s, unit) || shard_in_window(w, unit))
			continue;
		w->unit[w->n++] = unit;
		ahead++;
		if (!s->unit[unit].weights && !start_gather(s, unit, w))
			return; /* its slot is still used: it comes at the next unit */
		if (s->degree > 1 && ahead <= s->o.prefetch)
			await_host(s, unit);
	}
}

/* The gradients of a unit come to the slot of its weights. */
static int replace_weights(struct shard *s, int unit, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];
	struct shard_slot *slot = slot_of(s, unit);
	/* What the micro-step before has left in another slot. */
	int r = shard_finish_gradients(s, unit, err);

	if (r < 0)
		return r;
	/* The gradient of an embedding needs no weights. */
	if (!slot)
		slot = free_slot(s, &s->weights[u->weights_ring], &(struct shard_window){.n = 0});
	if (!slot)
		return error_set(err, -EINVAL, "no slot for the gradients of unit %d", unit);
	slot->gradients = unit;
	u->gradients = slot->memory;
	return 0;
}

static int need_weights(struct shard *s, int unit, enum model_phase phase, struct error *err)
{
	struct shard_window w = {{unit}, 1};
	struct shard_unit *u = &s->unit[unit];
	comm_ticket ticket;
	int r;

	shard_await_step(s, unit);
	if (phase != MODEL_BACKWARD && (r = shard_clear_gradients(s, unit, err)) < 0)
		return r;
	/* The gradient of an embedding needs no weights. */
	if (phase == MODEL_BACKWARD && unit == 0 && !u->whole_weights)
		return 0;
	if (u->packed)
		return packed_need(s, unit, phase, err);
	if (shard_has_slots(s) && unit < s->base_units) {
		if (!u->weights && !start_gather(s, unit, &w))
			return error_set(err, -EINVAL, "no slot for the weights of unit %d", unit);
		await_host(s, unit);
		look_ahead(s, &w, unit, phase);
		if (!u->whole_weights)
			slot_of(s, unit)->used = true;
	}
	ticket = u->gathering;
	u->gathering = 0;
	return ticket ? comm_wait(s->gather, ticket, err) : 0;
}

int shard_need(struct shard *s, int unit, enum model_phase phase, struct error *err)
{
	int r = need_weights(s, unit, phase, err);

	return r == 0 && phase == MODEL_BACKWARD && s->unit[unit].in_place ? replace_weights(s, unit, err)
	                                                                   : r;
}

void shard_done(struct shard *s, int unit, enum model_phase phase)
{
	struct shard_slot *slot = s->unit[unit].whole_weights ? NULL : slot_of(s, unit);

	if (slot)
		slot->used = false;
	/* Its gradients have replaced them. */
	if (slot && slot->gradients == unit)
		leave_slot(s, slot);
}

/* ---- new weights ---- */

void shard_publish(struct shard *s, int unit, bool converted)
{
	struct shard_unit *u = &s->unit[unit];
	struct shard_slot *slot = u->whole_weights ? NULL : slot_of(s, unit);

	if (u->packed) {
		packed_forget(s, unit);
		return;
	}
	if (s->o.offload && !u->frozen)
		offload_publish(s, unit, converted);
	else if (u->master && s->o.type != DTYPE_F32 && !converted)
		device_cast(s->dev, u->own_weights, s->o.type, u->master, DTYPE_F32, u->own);
	if (u->whole_weights && s->degree > 1)
		u->gathering = comm_all_gather(s->gather, u->weights, u->own, s->o.type);
	if (slot) /* what is there is old */
		leave_slot(s, slot);
}

int shard_published(struct shard *s, struct error *err)
{
	struct shard_window w = {{0}, 1};

	if (!shard_has_slots(s))
		return 0;
	if (!s->unit[0].whole_weights && !s->unit[0].weights && !start_gather(s, 0, &w))
		return error_set(err, -EINVAL, "no slot for the weights of unit 0");
	look_ahead(s, &w, 0, MODEL_FORWARD);
	return 0;
}

int shard_settle(struct shard *s, struct error *err)
{
	int r = disk_state_settle(s, err);

	if (r < 0)
		return r;
	shard_await_steps(s);
	for (int i = 0; i < s->units; i++) {
		comm_ticket ticket = s->unit[i].gathering;

		if (s->o.offload && (r = device_event_finish(s->dev, s->unit[i].up, err)) < 0)
			return r;
		s->unit[i].gathering = 0;
		if (ticket && (r = comm_wait(s->gather, ticket, err)) < 0)
			return r;
	}
	return 0;
}
