/* SPDX-License-Identifier: Apache-2.0 */
/* Units in 4 bits: their bytes come up from the host where they lie there, are gathered where ranks hold
 * parts of them, and dequantized before a unit is used; they are quantized when weights are loaded. */
#include <string.h>

#include "engine/shard/packed.h"

/* The blocks' slot, which holds the weights of one unit at a time. */
static struct shard_slot *weights_slot(struct shard *s, int unit)
{
	return &s->weights[s->unit[unit].weights_ring].slot[0];
}

/* ---- slots ---- */

static size_t own_first(const struct shard *s, const struct packed_unit *p)
{
	return p->own * (size_t)(s->o.rank % s->degree);
}

/* A gather that is still under way there ends before a new one begins, but not before what comes from the
 * host. A communicator that has failed says so wherever it is waited for. */
static void leave_slot(struct shard *s, struct shard_slot *slot)
{
	struct shard_unit *u;

	if (slot->unit < 0)
		return;
	u = &s->unit[slot->unit];
	if (u->packed->gathering)
		(void)comm_wait(s->gather, u->packed->gathering, NULL);
	u->packed->gathering = 0;
	u->packed->whole = NULL;
	u->coming = false;
	slot->unit = -1;
}

/* Starts a unit's way into a slot that no unit of the window has. There are as many slots as units in it.
 * What read the slot before is queued, and a collective and a transfer start behind that. */
static void start(struct shard *s, int unit, const struct shard_window *w)
{
	struct shard_unit *u = &s->unit[unit];
	struct packed_unit *p = u->packed;

	for (int i = 0; i < s->packed.slots && !p->whole; i++) {
		struct shard_slot *slot = &s->packed.slot[i];

		if (slot->unit >= 0 && shard_in_window(w, slot->unit))
			continue;
		leave_slot(s, slot);
		slot->unit = unit;
		p->whole = slot->memory;
		u->coming = s->o.offload == SHARD_OFFLOAD_ALL;
		if (u->coming)
			device_transfer(s->dev, DEVICE_FROM_HOST, p->whole + own_first(s, p), p->memory,
			                p->own, u->up);
		else
			p->gathering = comm_all_gather_into(s->gather, p->whole, p->memory,
			                                    (int64_t)(p->own / sizeof(float)), DTYPE_F32);
	}
}

/* What comes from the host is there for what is queued from now on, here or on the other ranks. */
static void await_host(struct shard *s, int unit)
{
	struct shard_unit *u = &s->unit[unit];
	struct packed_unit *p = u->packed;

	if (!u->coming)
		return;
	u->coming = false;
	device_event_wait(s->dev, u->up);
	if (s->degree > 1)
		p->gathering =
		    comm_all_gather(s->gather, p->whole, (int64_t)(p->own / sizeof(float)), DTYPE_F32);
}

/* The unit itself, and those that come next. What is gathered from the host's memory has come up while the
 * unit before was computed. */
static void bring(struct shard *s, int unit, enum model_phase phase)
{
	struct shard_window w = {{unit}, 1};

	start(s, unit, &w);
	await_host(s, unit);
	while (w.n < s->packed.slots && shard_next_unit(s, &unit, &phase)) {
		if (!s->unit[unit].packed || shard_in_window(&w, unit))
			continue;
		w.unit[w.n++] = unit;
		start(s, unit, &w);
		if (s->degree > 1 && w.n <= 1 + s->o.prefetch)
			await_host(s, unit);
	}
}

/* ---- use ---- */

static void dequantize(struct shard *s, int unit)
{
	const struct shard_unit *u = &s->unit[unit];
	const struct packed_unit *p = u->packed;
	size_t size = dtype_size(s->o.type);
	char *to = u->weights;

	for (int i = 0; i < p->matrices; i++) {
		const struct packed_matrix *m = &p->matrix[i];
		struct device_nf4 q = packed_nf4(s, m, p->whole);

		if (m->plain)
			device_copy(s->dev, to + (size_t)m->offset * size, p->whole + m->codes,
			            (size_t)m->count * size);
		else
			device_nf4_dequantize(s->dev, to + (size_t)m->offset * size, s->o.type, &q);
	}
	device_copy(s->dev, to + (size_t)u->matrices * size, p->whole + p->rest,
	            (size_t)(u->count - u->matrices) * size);
}

int packed_need(struct shard *s, int unit, enum model_phase phase, struct error *err)
{
	struct shard_slot *slot = weights_slot(s, unit);
	struct packed_unit *p = s->unit[unit].packed;
	int r;

	if (packed_has_slots(s))
		bring(s, unit, phase);
	if (slot->unit == unit)
		return 0;
	if (p->gathering && (r = comm_wait(s->gather, p->gathering, err)) < 0)
		return r;
	p->gathering = 0;
	packed_forget(s, unit);
	slot->unit = unit;
	s->unit[unit].weights = slot->memory;
	dequantize(s, unit);
	return 0;
}

void packed_forget(struct shard *s, int unit)
{
	struct shard_slot *slot = weights_slot(s, unit);

	if (slot->unit >= 0)
		s->unit[slot->unit].weights = NULL;
	slot->unit = -1;
}

/* ---- loading ---- */

/* Where the bytes of the unit that is loaded are put together. */
static char *run_of(struct shard *s, int unit)
{
	return packed_has_slots(s) ? s->packed.slot[0].memory : s->unit[unit].packed->memory;
}

/* What slots have of the unit is old, and the first of them is taken. */
static void take_run(struct shard *s, int unit)
{
	for (int i = 0; i < s->packed.slots; i++)
		if (i == 0 || s->packed.slot[i].unit == unit)
			leave_slot(s, &s->packed.slot[i]);
}

/* This rank's part of the bytes [from, to) of the run goes to where it is held. */
static void keep(struct shard *s, int unit, size_t from, size_t to)
{
	struct shard_unit *u = &s->unit[unit];
	struct packed_unit *p = u->packed;
	size_t first = own_first(s, p), begin = MAX(from, first), end = MIN(to, first + p->own);

	if (!packed_has_slots(s) || begin >= end)
		return;
	if (s->o.offload != SHARD_OFFLOAD_ALL) {
		device_copy(s->dev, p->memory + (begin - first), run_of(s, unit) + begin, end - begin);
		return;
	}
	device_transfer(s->dev, DEVICE_TO_HOST, p->memory + (begin - first), run_of(s, unit) + begin,
	                end - begin, u->down);
	device_event_wait(s->dev, u->down);
}

static size_t place_of(const struct shard *s, const struct model_parameter *p, int64_t first)
{
	const struct shard_unit *u = &s->unit[p->unit];

	return u->packed->rest + (size_t)(p->offset - u->matrices + first) * dtype_size(s->o.type);
}

void *shard_packed_place(struct shard *s, const struct model_parameter *p, int64_t first)
{
	packed_forget(s, p->unit);
	take_run(s, p->unit);
	return p->matrix ? (char *)weights_slot(s, p->unit)->memory +
	                       (size_t)(p->offset + first) * dtype_size(s->o.type)
	                 : run_of(s, p->unit) + place_of(s, p, first);
}

void shard_packed_loaded(struct shard *s, const struct model_parameter *p)
{
	const struct packed_unit *packed = s->unit[p->unit].packed;
	char *run = run_of(s, p->unit), *weights = weights_slot(s, p->unit)->memory;
	size_t size = dtype_size(s->o.type);

	if (!p->matrix)
		keep(s, p->unit, place_of(s, p, 0), place_of(s, p, p->count));
	for (int i = 0; i < packed->matrices && p->matrix; i++) {
		const struct packed_matrix *m = &packed->matrix[i];
		struct device_nf4 q = packed_nf4(s, m, run);

		if (m->offset != p->offset)
			continue;
		if (m->plain)
			device_copy(s->dev, run + m->codes, weights + (size_t)p->offset * size,
			            (size_t)p->count * size);
		else
			device_nf4_quantize(s->dev, &q, weights + (size_t)p->offset * size, s->o.type);
		keep(s, p->unit, m->codes, i + 1 < packed->matrices ? m[1].codes : packed->rest);
	}
}
