/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out the units that are stored in 4 bits. Nothing in this file needs a device, so that an estimate can
 * use it without one. */
#include "engine/shard/packed.h"

#include <stdlib.h>

#include "engine/device/nf4.h"
#include "engine/shard/offload.h"

/* Every part begins at a multiple of so many bytes, as kernels that read several at a time need it. */
#define PART_ALIGNMENT 64

static size_t align(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

static size_t take(size_t *at, size_t bytes)
{
	size_t place = *at;

	*at = align(place + bytes, PART_ALIGNMENT);
	return place;
}

bool packed_is_sharded(const struct shard *s)
{
	return s->degree > 1 && s->o.strategy >= SHARD_ZERO3;
}

bool packed_has_slots(const struct shard *s)
{
	return packed_is_sharded(s) || s->o.offload == SHARD_OFFLOAD_ALL;
}

static void place_matrix(const struct shard *s, struct packed_matrix *m, size_t *at)
{
	size_t blocks = (size_t)(m->count + NF4_BLOCK - 1) / NF4_BLOCK;
	bool twice = s->o.quantize == SHARD_NF4_DOUBLE;

	if (m->plain) {
		m->codes = take(at, (size_t)m->count * dtype_size(s->o.type));
		return;
	}
	m->codes = take(at, (size_t)(m->count + 1) / 2);
	m->scales = take(at, twice ? blocks : blocks * sizeof(float));
	m->nested = take(at, twice ? (blocks + NF4_SCALES - 1) / NF4_SCALES * sizeof(float) : 0);
	m->mean = take(at, twice ? sizeof(float) : 0);
}

static int lay_out(struct shard *s, int unit, const struct model_layout *layout, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];
	struct packed_unit *p = calloc(1, sizeof(*p));
	size_t at = 0;

	if (!p)
		return error_oom(err);
	u->packed = p;
	p->matrix = calloc((size_t)layout->parameters, sizeof(*p->matrix));
	if (!p->matrix)
		return error_oom(err);
	for (int i = 0; i < layout->parameters; i++) {
		const struct model_parameter *parameter = &layout->parameter[i];

		if (parameter->unit != unit || !parameter->matrix)
			continue;
		p->matrix[p->matrices] =
		    (struct packed_matrix){.offset = parameter->offset,
		                           .count = parameter->count,
		                           .plain = !model_parameter_in_4_bits(parameter)};
		place_matrix(s, &p->matrix[p->matrices++], &at);
		s->largest_packed = MAX(s->largest_packed, parameter->count);
	}
	p->rest = take(&at, (size_t)(u->count - u->matrices) * dtype_size(s->o.type));
	p->bytes = at;
	p->padded = packed_is_sharded(s) ? align(at, (size_t)s->degree * PART_ALIGNMENT) : at;
	p->own = packed_is_sharded(s) ? p->padded / (size_t)s->degree : at;
	u->whole_weights = false;
	return 0;
}

int packed_create(struct shard *s, const struct model_layout *layout, struct error *err)
{
	int r = 0;

	if (s->o.quantize == SHARD_QUANTIZE_NONE)
		return 0;
	for (int i = 1; i + 1 < s->base_units && r == 0; i++)
		if (s->unit[i].frozen && s->unit[i].matrices > 0)
			r = lay_out(s, i, layout, err);
	return r;
}

void packed_free(struct shard *s)
{
	for (int i = 0; i < s->units && s->unit; i++) {
		if (s->unit[i].packed)
			free(s->unit[i].packed->matrix);
		free(s->unit[i].packed);
	}
}

void packed_place(struct shard *s, struct arena *a, struct arena *host)
{
	struct arena *held = s->o.offload == SHARD_OFFLOAD_ALL ? host : a;
	struct shard_ring *ring = &s->packed;
	int members = 0;

	*ring = (struct shard_ring){0};
	for (int i = 0; i < s->units; i++) {
		struct packed_unit *p = s->unit[i].packed;

		if (!p)
			continue;
		p->memory = arena_take(held, BUFFER_WEIGHTS, p->own, "unit %d weights in 4 bits", i);
		p->whole = packed_has_slots(s) ? NULL : p->memory;
		ring->bytes = MAX(ring->bytes, (int64_t)p->padded);
		members++;
	}
	if (!packed_has_slots(s))
		return;
	ring->slots = MIN(members, shard_weight_slots(s));
	for (int i = 0; i < ring->slots; i++) {
		ring->slot[i].unit = ring->slot[i].gradients = -1;
		ring->slot[i].memory = arena_take(a, BUFFER_SLOTS, (size_t)ring->bytes,
		                                  "weights in 4 bits of blocks, slot %d", i);
	}
}

struct device_nf4 packed_nf4(const struct shard *s, const struct packed_matrix *m, char *run)
{
	bool twice = s->o.quantize == SHARD_NF4_DOUBLE;

	return (struct device_nf4){.n = m->count,
	                           .codes = (uint8_t *)run + m->codes,
	                           .absmax = twice ? NULL : (float *)(void *)(run + m->scales),
	                           .absmax8 = twice ? (uint8_t *)run + m->scales : NULL,
	                           .absmax2 = twice ? (float *)(void *)(run + m->nested) : NULL,
	                           .offset = twice ? (float *)(void *)(run + m->mean) : NULL};
}
