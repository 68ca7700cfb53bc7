/* SPDX-License-Identifier: Apache-2.0 */
/* Units in 4 bits: their bytes are gathered where ranks hold parts of them, dequantized before a unit is
 * used, and quantized when weights are loaded. */
#include <string.h>

#include "engine/shard/packed.h"

/* The blocks' slot, which holds the weights of one unit at a time. */
static struct shard_slot *weights_slot(struct shard *s, int unit)
{
	return &s->weights[s->unit[unit].weights_ring].slot[0];
}

/* ---- gathers ---- */

/* Starts a gather into a slot that no unit of the window has. There are as many slots as units in it. What
 * read the slot before is queued, and a collective starts behind that. */
static void start(struct shard *s, int unit, const struct shard_window *w)
{
	struct packed_unit *p = s->unit[unit].packed;

	for (int i = 0; i < s->packed.slots && !p->whole; i++) {
		struct shard_slot *slot = &s->packed.slot[i];

		if (slot->unit >= 0 && shard_in_window(w, slot->unit))
			continue;
		if (slot->unit >= 0) {
			s->unit[slot->unit].packed->whole = NULL;
			s->unit[slot->unit].packed->gathering = 0;
		}
		slot->unit = unit;
		p->whole = slot->memory;
		p->gathering = comm_all_gather_into(s->gather, p->whole, p->memory,
		                                    (int64_t)(p->own / sizeof(float)), DTYPE_F32);
	}
}

/* The unit itself, and those that come next. */
static void gather(struct shard *s, int unit, enum model_phase phase)
{
	struct shard_window w = {{unit}, 1};

	start(s, unit, &w);
	while (w.n < s->packed.slots && shard_next_unit(s, &unit, &phase)) {
		if (!s->unit[unit].packed || shard_in_window(&w, unit))
			continue;
		w.unit[w.n++] = unit;
		start(s, unit, &w);
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
		struct device_nf4 q = packed_nf4(s, &p->matrix[i], p->whole);

		device_nf4_dequantize(s->dev, to + (size_t)p->matrix[i].offset * size, s->o.type, &q);
	}
	device_copy(s->dev, to + (size_t)u->matrices * size, p->whole + p->rest,
	            (size_t)(u->count - u->matrices) * size);
}

int packed_need(struct shard *s, int unit, enum model_phase phase, struct error *err)
{
	struct shard_slot *slot = weights_slot(s, unit);
	struct packed_unit *p = s->unit[unit].packed;
	int r;

	if (packed_is_sharded(s))
		gather(s, unit, phase);
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
	return packed_is_sharded(s) ? s->packed.slot[0].memory : s->unit[unit].packed->memory;
}

void *shard_packed_place(struct shard *s, const struct model_parameter *p, int64_t first)
{
	const struct shard_unit *u = &s->unit[p->unit];
	size_t size = dtype_size(s->o.type);

	packed_forget(s, p->unit);
	return p->matrix
	           ? (char *)weights_slot(s, p->unit)->memory + (size_t)(p->offset + first) * size
	           : run_of(s, p->unit) + u->packed->rest + (size_t)(p->offset - u->matrices + first) * size;
}

void shard_packed_loaded(struct shard *s, const struct model_parameter *p)
{
	const struct packed_unit *packed = s->unit[p->unit].packed;
	char *run = run_of(s, p->unit), *weights = weights_slot(s, p->unit)->memory;

	for (int i = 0; i < packed->matrices && p->matrix; i++) {
		struct device_nf4 q = packed_nf4(s, &packed->matrix[i], run);

		if (packed->matrix[i].offset == p->offset)
			device_nf4_quantize(s->dev, &q, weights + (size_t)p->offset * dtype_size(s->o.type),
			                    s->o.type);
	}
	if (packed_is_sharded(s))
		device_copy(s->dev, packed->memory, run + packed->own * (size_t)(s->o.rank % s->degree),
		            packed->own);
}
