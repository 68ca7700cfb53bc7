/* SPDX-License-Identifier: Apache-2.0 */
/* Residency: which part of which unit this rank holds. Nothing in this file needs a device, so that an
 * estimate can use it without one. */
#include "engine/shard/gradient_layout.h"
#include "engine/shard/offload.h"
#include "engine/shard/packed.h"
#include "engine/shard/rows.h"

#include <errno.h>
#include <stdlib.h>

#include "base/str.h"

/* Elements. Shards begin at multiples of 64 bytes in bf16, and so in every type. */
#define SHARD_ALIGNMENT 32

/* One gradient is written while the one before it is on the wire. */
#define GRADIENT_SLOTS 2

/* With offload of all: own gradients are summed, go down, and have gone down; with replicas they are summed
 * over these, too. */
#define OWN_SLOTS          3
#define OWN_SLOTS_REPLICAS 4

static const char *const names[] = {[SHARD_DDP] = "ddp",
                                    [SHARD_ZERO1] = "zero1",
                                    [SHARD_ZERO2] = "zero2",
                                    [SHARD_ZERO3] = "zero3",
                                    [SHARD_HYBRID] = "hybrid"};

int shard_strategy_parse(const char *name, enum shard_strategy *out)
{
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (str_eq(name, names[i])) {
			*out = (enum shard_strategy)i;
			return 0;
		}
	return -EINVAL;
}

const char *shard_strategy_name(enum shard_strategy strategy)
{
	return names[strategy];
}

int shard_offload_parse(const char *name, enum shard_offload *out)
{
	static const char *const offloads[] = {[SHARD_OFFLOAD_NONE] = "none",
	                                       [SHARD_OFFLOAD_OPTIMIZER] = "optimizer",
	                                       [SHARD_OFFLOAD_ALL] = "all"};

	for (size_t i = 0; i < ARRAY_SIZE(offloads); i++)
		if (str_eq(name, offloads[i])) {
			*out = (enum shard_offload)i;
			return 0;
		}
	return -EINVAL;
}

int shard_quantize_parse(const char *name, enum shard_quantize *out)
{
	static const char *const kinds[] = {
	    [SHARD_QUANTIZE_NONE] = "none", [SHARD_NF4] = "nf4", [SHARD_NF4_DOUBLE] = "nf4_double"};

	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		if (str_eq(name, kinds[i])) {
			*out = (enum shard_quantize)i;
			return 0;
		}
	return -EINVAL;
}

static void divide_unit(struct shard *s, int unit, const struct model_unit *from, bool once)
{
	struct shard_unit *u = &s->unit[unit];
	int64_t step = (int64_t)s->degree * SHARD_ALIGNMENT;

	u->count = from->count;
	u->frozen = from->frozen;
	u->matrices = from->matrices;
	u->gradient_type = once && !u->frozen ? s->o.gradient_type : DTYPE_F32;
	u->padded = s->degree == 1 ? u->count : (u->count + step - 1) / step * step;
	u->own = u->padded / s->degree;
	u->first = s->o.rank % s->degree * u->own;
}

static void choose_residency(struct shard *s, int unit, int base)
{
	struct shard_unit *u = &s->unit[unit];

	u->ring = base == 0 || (base == s->base_units - 1 && !s->tied) ? SHARD_RING_ENDS : SHARD_RING_BLOCKS;
	u->whole_weights = !shard_has_slots(s) || (s->tied && unit == 0) || u->matrices == 0 ||
	                   u->count < s->o.persist_below || unit >= s->base_units;
	/* The gradient of a tied embedding is in its slot from one end of the backward pass to the other. */
	u->gradients_ring = s->tied ? u->ring : SHARD_RING_BLOCKS;
	u->belongs_to = base;
	u->whole_gradients =
	    s->o.offload != SHARD_OFFLOAD_ALL && (s->degree == 1 || s->o.strategy < SHARD_ZERO2);
}

int shard_create(struct device *dev, struct comm *comm, const struct shard_options *options,
                 const struct model_layout *layout, struct shard **out, struct error *err)
{
	_cleanup_(shard_freep) struct shard *s = calloc(1, sizeof(*s));
	int64_t base = 0, largest = 0;
	bool sharded = false;
	int r;

	if (!s)
		return error_oom(err);
	s->dev = dev;
	s->comm = s->gather = s->reduce = comm;
	s->o = *options;
	s->degree = s->o.strategy == SHARD_DDP      ? 1
	            : s->o.strategy == SHARD_HYBRID ? s->o.degree
	                                            : s->o.world_size;
	if (s->o.offload == SHARD_OFFLOAD_ALL && s->o.world_size > 1 && s->o.strategy < SHARD_ZERO3)
		return error_set(
		    err, -EINVAL,
		    "parallel.offload = \"all\" keeps shards of the weights in the host's memory, and "
		    "parallel.strategy = \"%s\" has no shards of them; use \"zero3\" or \"hybrid\", or "
		    "parallel.offload = \"optimizer\"",
		    names[s->o.strategy]);
	if (s->degree < 1 || s->o.world_size % s->degree)
		return error_set(err, -EINVAL,
		                 "%d ranks cannot be divided into groups of %d (parallel.shard_degree)",
		                 s->o.world_size, s->degree);
	s->replicas = s->o.world_size / s->degree;
	s->tied = true;
	for (int i = 0; i < layout->units; i++)
		s->tied = s->tied && layout->unit[i].offset[PART_WEIGHT][PARAMETER_HEAD] < 0;
	s->units = layout->units;
	s->base_units = layout->base_units;
	s->lowest = layout->lowest;
	s->unit = calloc((size_t)layout->units, sizeof(*s->unit));
	s->placed = calloc((size_t)layout->units, sizeof(*s->placed));
	if (!s->unit || !s->placed)
		return error_oom(err);
	for (int i = 0; i < s->units; i++) {
		divide_unit(s, i, &layout->unit[i], model_layout_writes_once(layout, i));
		choose_residency(s, i, layout->unit[i].base);
		s->unit[i].base = base;
		base += s->unit[i].count;
		largest = MAX(largest, s->unit[i].count);
		sharded = sharded || !s->unit[i].whole_weights;
	}
	if ((r = packed_create(s, layout, err)) < 0)
		return r;
	rows_create(s, layout);
	if (s->o.persist_below > 0 && shard_has_slots(s) && !sharded)
		return error_set(err, -EINVAL,
		                 "parallel.persist_below is %lld, but the largest unit of this model has "
		                 "%lld elements: no weights would be "
		                 "sharded; expected less than that, or parallel.strategy = \"zero2\"",
		                 (long long)s->o.persist_below, (long long)largest);
	*out = steal_pointer(s);
	return 0;
}

void shard_free(struct shard *s)
{
	if (!s)
		return;
	packed_free(s);
	free(s->placed);
	free(s->unit);
	free(s);
}

bool shard_in_step(const struct shard *s)
{
	return s->degree > 1 && s->o.strategy >= SHARD_ZERO2;
}

bool shard_reduces_each(const struct shard *s)
{
	return shard_in_step(s) && s->o.accumulates;
}

bool shard_has_slots(const struct shard *s)
{
	return s->o.offload == SHARD_OFFLOAD_ALL || (s->degree > 1 && s->o.strategy >= SHARD_ZERO3);
}

static void place_weights(const struct shard *s, int i, struct arena *a)
{
	struct shard_unit *u = &s->unit[i];
	size_t size = dtype_size(s->o.type);
	int64_t n = u->packed                           ? 0
	            : u->whole_weights                  ? u->padded
	            : s->o.offload == SHARD_OFFLOAD_ALL ? 0
	                                                : u->own;
	char *memory = arena_take(a, BUFFER_WEIGHTS, (size_t)n * size, "unit %d weights", i);

	u->weights = u->whole_weights ? memory : NULL;
	u->own_weights = u->whole_weights && memory ? memory + (size_t)u->first * size : memory;
}

/* a: of the device, or with offload of the host. */
static void place_state(const struct shard *s, int i, struct arena *a)
{
	struct shard_unit *u = &s->unit[i];
	bool copies = s->o.type != DTYPE_F32 || s->o.offload;

	if (u->frozen)
		return;
	u->state_first = 0;
	if (shard_state_is_on_disk(s, SHARD_MASTER))
		u->master = NULL;
	else if (copies && !s->o.without_master)
		u->master = arena_take(a, BUFFER_OPTIMIZER, (size_t)u->own * 4, "unit %d master", i);
	else if (!copies)
		u->master = u->own_weights;
	u->m = u->v = NULL;
	if (s->o.offload_dir)
		return;
	u->m = arena_take(a, BUFFER_OPTIMIZER, (size_t)(u->own - u->m_from) * 4, "unit %d moment 1", i);
	u->v = arena_take(a, BUFFER_OPTIMIZER, (size_t)(u->own - u->v_from) * 4, "unit %d moment 2", i);
}

/* ---- rings ---- */

enum kind { WEIGHTS, GRADIENTS, WIRE, OWN, KINDS };

static bool comes(const struct shard *s, const struct shard_unit *u, enum kind kind)
{
	return kind == WEIGHTS     ? !u->whole_weights
	       : kind == GRADIENTS ? u->in_slot && !u->in_place
	       : kind == WIRE      ? s->o.world_size > 1 && s->o.wire != u->gradient_type && !u->frozen
	                           : s->o.offload == SHARD_OFFLOAD_ALL && s->degree > 1 && !u->frozen;
}

/* As many as units need at the same time; embedding and head never need weights and gradients at the same
 * time. */
static int most_slots(const struct shard *s, int ring, enum kind kind)
{
	if (kind == OWN)
		return s->replicas > 1 ? OWN_SLOTS_REPLICAS : OWN_SLOTS;
	return ring == SHARD_RING_ENDS ? 1 : kind == WEIGHTS ? shard_weight_slots(s) : GRADIENT_SLOTS;
}

static int ring_of(const struct shard_unit *u, enum kind kind)
{
	return kind == OWN         ? u->ring
	       : kind == WEIGHTS   ? u->weights_ring
	       : kind == GRADIENTS ? u->gradients_ring
	                           : u->wire_ring;
}

/* What a unit takes of a slot. */
static int64_t slot_bytes(const struct shard *s, const struct shard_unit *u, enum kind kind)
{
	size_t size = kind == WEIGHTS ? dtype_size(s->o.type) : kind == WIRE ? dtype_size(s->o.wire) : 4;

	if (kind == WEIGHTS && u->in_place)
		size = MAX(size, dtype_size(u->gradient_type));
	return (kind == OWN ? u->own : u->padded) * (int64_t)size;
}

/* The number of units whose buffers of a kind come to slots, of those to whose place in the model the ring
 * belongs; *bytes: of the largest of them. */
static int count_members(const struct shard *s, int ring, enum kind kind, int64_t *bytes)
{
	int members = 0;

	*bytes = 0;
	for (int i = 0; i < s->units; i++) {
		const struct shard_unit *u = &s->unit[i];

		if (u->ring != ring || !comes(s, u, kind))
			continue;
		members++;
		*bytes = MAX(*bytes, slot_bytes(s, u, kind));
	}
	return members;
}

/* The embedding and the head come to the blocks' slots, where these then take less memory than with a slot of
 * another size for those two. */
static bool shares_ring(const struct shard *s, enum kind kind)
{
	int64_t ends, blocks;
	int n_ends = count_members(s, SHARD_RING_ENDS, kind, &ends);
	int n_blocks = count_members(s, SHARD_RING_BLOCKS, kind, &blocks);
	int most = most_slots(s, SHARD_RING_BLOCKS, kind);

	/* The gradient of a tied embedding is in its slot from one end of the backward pass to the other. */
	if (s->tied)
		return false;
	/* Blocks in 4 bits are dequantized into a slot that nothing else may take. */
	for (int i = 0; i < s->units && kind == WEIGHTS; i++)
		if (s->unit[i].packed)
			return false;
	return MIN(n_ends + n_blocks, most) * MAX(ends, blocks) <
	       MIN(n_ends, 1) * ends + MIN(n_blocks, most) * blocks;
}

static void choose_rings(struct shard *s)
{
	bool weights = shares_ring(s, WEIGHTS), wire = shares_ring(s, WIRE);

	for (int i = 0; i < s->units; i++) {
		struct shard_unit *u = &s->unit[i];

		u->weights_ring = weights ? SHARD_RING_BLOCKS : u->ring;
		u->wire_ring = wire ? SHARD_RING_BLOCKS : u->ring;
	}
}

static void place_ring(struct shard *s, struct arena *a, int ring, enum kind kind)
{
	static const char *const kinds[] = {"weights", "gradients", "summed gradients", "own gradients"};
	struct shard_ring *const rings[] = {s->weights, s->gradients, s->wire, s->own};
	struct shard_ring *r = &rings[kind][ring];
	int members = 0;

	*r = (struct shard_ring){0};
	for (int i = 0; i < s->units; i++) {
		const struct shard_unit *u = &s->unit[i];

		if (ring_of(u, kind) != ring || !comes(s, u, kind))
			continue;
		members++;
		r->packed = r->packed || (kind == WEIGHTS && u->packed);
		r->bytes = MAX(r->bytes, slot_bytes(s, u, kind));
	}
	r->slots = MIN(members, most_slots(s, ring, kind));
	/* Blocks in 4 bits are dequantized one at a time. */
	if (r->packed)
		r->slots = 1;
	for (int i = 0; i < r->slots; i++) {
		r->slot[i].unit = r->slot[i].gradients = -1;
		if (kind == GRADIENTS && ring == SHARD_RING_BLOCKS)
			continue;
		r->slot[i].memory =
		    arena_take(a, BUFFER_SLOTS, (size_t)r->bytes, "%s of %s, slot %d", kinds[kind],
		               ring == SHARD_RING_ENDS ? "embedding, head" : "blocks", i);
	}
}

static void place_host(const struct shard *s, int i, struct arena *host)
{
	struct shard_unit *u = &s->unit[i];
	bool copied = u->frozen ? s->o.offload == SHARD_OFFLOAD_ALL && !u->whole_weights && !u->packed
	                        : s->o.type != DTYPE_F32;

	u->host_gradients = NULL;
	if (!u->frozen)
		u->host_gradients = arena_take(host, BUFFER_GRADIENTS, (size_t)u->own * sizeof(float),
		                               "unit %d gradients", i);
	u->host_copy = arena_take(host, BUFFER_WEIGHTS, copied ? (size_t)u->own * dtype_size(s->o.type) : 0,
	                          "unit %d weights", i);
}

void shard_place_buffers(struct shard *s, struct arena *a, struct arena *host)
{
	gradients_place_buffers(s, a);
	for (int i = 0; i < s->units; i++) {
		place_weights(s, i, a);
		place_state(s, i, s->o.offload ? host : a);
		if (s->o.offload)
			place_host(s, i, host);
	}
	packed_place(s, a, host);
	rows_place(s, a);
	choose_rings(s);
	for (int ring = 0; ring < SHARD_RINGS; ring++)
		for (int kind = WEIGHTS; kind < KINDS; kind++)
			place_ring(s, a, ring, (enum kind)kind);
	if (s->o.offload_dir)
		state_place_buffers(s, host);
	s->squares = s->o.offload == SHARD_OFFLOAD_ALL
	                 ? arena_take(a, BUFFER_SCRATCH, sizeof(*s->squares), "sum of squares")
	                 : NULL;
}

bool shard_in_window(const struct shard_window *w, int unit)
{
	for (int i = 0; i < w->n; i++)
		if (w->unit[i] == unit)
			return true;
	return false;
}

bool shard_next_unit(const struct shard *s, int *unit, enum model_phase *phase)
{
	if (*phase != MODEL_BACKWARD && *unit + 1 < s->base_units)
		return ++*unit, true;
	if (*phase == MODEL_EVALUATE)
		return false;
	if (*phase == MODEL_FORWARD)
		return *phase = MODEL_BACKWARD, true;
	return --*unit >= MAX(s->lowest, 1);
}

int64_t shard_own(const struct shard_unit *u, int64_t first, int64_t n, int64_t *at)
{
	int64_t from = MAX(first, u->first), to = MIN(first + n, u->first + u->own);

	*at = from - u->first;
	return MAX(to - from, 0);
}

int shard_lanes(const struct shard *s)
{
	if (s->degree == 1 || s->o.strategy < SHARD_ZERO3)
		return 0;
	return s->replicas == 1 ? 1 : 3;
}
