/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators of a strategy, and the buffers that they will see. */
#include "engine/shard/offload.h"

#include <stdlib.h>

/* Gathers and reductions of zero3 overlap in the backward pass, so that neither may wait for the other. */
static int make_lanes(struct shard *s, struct error *err)
{
	int group = s->o.rank / s->degree, place = s->o.rank % s->degree, r;

	if (shard_lanes(s) == 0)
		return 0;
	if ((r = comm_split(s->comm, group, place, &s->lane[0], err)) < 0)
		return r;
	s->gather = s->lane[0];
	if (shard_lanes(s) == 1)
		return 0;
	if ((r = comm_split(s->comm, group, place, &s->lane[1], err)) < 0 ||
	    (r = comm_split(s->comm, place, group, &s->lane[2], err)) < 0)
		return r;
	s->reduce = s->lane[1];
	s->replicate = s->lane[2];
	return 0;
}

static size_t ring_buffers(const struct shard_ring *ring, struct comm_buffer *out)
{
	size_t n = 0;

	for (int i = 0; i < ring->slots; i++)
		if (ring->slot[i].memory)
			out[n++] = (struct comm_buffer){ring->slot[i].memory, (size_t)ring->bytes};
	return n;
}

static bool any_in_place(const struct shard *s)
{
	for (int i = 0; i < s->units; i++)
		if (s->unit[i].in_place)
			return true;
	return false;
}

/* What is gathered, or what is reduced. */
static size_t list_buffers(const struct shard *s, bool gradients, struct comm_buffer *out)
{
	size_t size = dtype_size(s->o.type), n = 0;

	for (int i = 0; i < s->units; i++) {
		const struct shard_unit *u = &s->unit[i];

		if (gradients && u->frozen)
			continue;
		if (gradients && !u->in_slot)
			out[n++] = (struct comm_buffer){u->gradients,
			                                (size_t)u->padded * dtype_size(u->gradient_type)};
		else if (gradients && u->own_gradients)
			out[n++] = (struct comm_buffer){u->own_gradients,
			                                (size_t)u->own * dtype_size(u->gradient_type)};
		else if (!gradients && s->degree > 1 && u->whole_weights)
			out[n++] = (struct comm_buffer){u->weights, (size_t)u->padded * size};
		else if (!gradients && s->degree > 1 && u->own_weights)
			out[n++] = (struct comm_buffer){u->own_weights, (size_t)u->own * size};
	}
	if (gradients && s->gradients_end > s->gradients_from)
		out[n++] = (struct comm_buffer){s->gradients_span, s->gradients_end - s->gradients_from};
	for (int i = 0; i < SHARD_RINGS; i++) {
		if (!gradients || any_in_place(s))
			n += ring_buffers(&s->weights[i], out + n);
		if (!gradients)
			continue;
		n += ring_buffers(&s->gradients[i], out + n);
		n += ring_buffers(&s->wire[i], out + n);
		n += ring_buffers(&s->own[i], out + n);
	}
	return n;
}

/* Units that the device steps do so aside. */
static int make_events(struct shard *s, struct error *err)
{
	int r = 0;

	for (int i = 0; i < s->units && r == 0 && !s->o.offload; i++)
		if (!s->unit[i].frozen)
			r = device_event_create(s->dev, &s->unit[i].stepped, err);
	return r;
}

int shard_connect(struct shard *s, struct error *err)
{
	_cleanup_free_ struct comm_buffer *list =
	    calloc(2 * (1 + (size_t)s->units + 4 * SHARD_RINGS * SHARD_SLOTS_MAX), sizeof(*list));
	size_t weights, gradients;
	int r = offload_open(s, err);

	if (r == 0)
		r = make_events(s, err);
	if (r == 0 && s->o.offload_dir)
		r = disk_state_open(s, err);
	if (r < 0 || s->o.world_size == 1)
		return r;
	if (!list)
		return error_oom(err);
	if ((r = make_lanes(s, err)) < 0)
		return r;
	gradients = list_buffers(s, true, list);
	weights = list_buffers(s, false, list + gradients);
	/* Collectives also work with buffers that cannot be registered; they only take longer. */
	if (s->gather == s->reduce)
		r = comm_register(s->comm, list, (int)(gradients + weights), err);
	else if ((r = comm_register(s->reduce, list, (int)gradients, err)) >= 0)
		r = comm_register(s->gather, list + gradients, (int)weights, err);
	return MIN(r, 0);
}

void shard_disconnect(struct shard *s)
{
	disk_state_close(s);
	offload_close(s);
	for (int i = 0; i < s->units; i++) {
		/* The memory is freed next. */
		if (s->unit[i].stepped)
			(void)device_event_finish(s->dev, s->unit[i].stepped, NULL);
		device_event_destroy(s->unit[i].stepped);
		s->unit[i].stepped = NULL;
	}
	for (size_t i = 0; i < ARRAY_SIZE(s->lane); i++) {
		comm_destroy(s->lane[i]);
		s->lane[i] = NULL;
	}
}

double shard_waited_seconds(struct shard *s)
{
	double seconds = s->comm ? comm_waited_seconds(s->comm) : 0;

	for (size_t i = 0; i < ARRAY_SIZE(s->lane); i++)
		seconds += s->lane[i] ? comm_waited_seconds(s->lane[i]) : 0;
	return seconds;
}
