/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where gradients lie: as far as possible in memory that the passes have no use for at that time.
 *
 * The backward pass goes from the last block to the first, and what a block has kept from the forward pass is
 * free once its gradients are computed, up to the next forward pass. The logits are free when the head's
 * gradients are computed. In the arena the activations of the blocks follow each other, then come the logits,
 * and then memory that is there for whole gradients alone (`extra`):
 *
 *     block 0 | block 1 | ... | last block | input of the head | logits | extra
 *     <- used by the pass      <- free while the gradients of the last block are computed
 *
 * Gradients that are kept to the end of the step, whole ones or a rank's own part, lie among the activations
 * where a step has one micro-step: from their end downwards, each behind what is free when it is written.
 *
 * Whole gradients that are only there until their sum over the ranks has ended lie at the end of all this,
 * each behind what is free at that time. Those of one unit are written while those of the unit before are
 * still summed; at the next unit that sum is waited for, and its memory is free. So units lie in turn at the
 * end, and below the one that lies there. Extra memory is needed for the first of them: when the backward
 * pass begins, hardly anything is free.
 *
 * What a forward pass would write over is waited for before (shard_clear_gradients).
 */
#include "engine/shard/gradient_layout.h"

/* Gradients that are there for the whole backward pass have a slot of their own. */
static bool is_placed(const struct shard_unit *u)
{
	return u->in_slot && !u->in_place && u->gradients_ring == SHARD_RING_BLOCKS;
}

static size_t bytes_of(const struct shard_unit *u, int64_t elements)
{
	return arena_round((size_t)elements * dtype_size(u->gradient_type));
}

/* ---- to the end of the step ---- */

/* With offload of all, gradients leave the device before memory that others use would be any gain. */
static bool keeps_in_activations(const struct shard *s)
{
	return !s->o.accumulates && s->o.offload != SHARD_OFFLOAD_ALL;
}

/* The whole gradients of a tied embedding are written from the beginning of the backward pass on. */
static bool may_be_whole(const struct shard *s, int unit)
{
	return !(s->tied && unit == 0);
}

/* A rank's own part of the sum is written when the unit's own block needs its activations no more. But the
 * optimizer may still read it when the next forward pass has begun, up to where that needs the unit. */
static size_t own_from(const struct shard *s, int unit)
{
	return unit == 0 ? s->unit[0].reuse.free_from : s->unit[unit - 1].reuse.written_to;
}

static bool keep(struct shard_unit *u, bool whole, size_t from, size_t *end)
{
	size_t bytes = bytes_of(u, whole ? u->padded : u->own);

	if (*end < from + bytes)
		return false;
	u->kept = true;
	u->in_slot = !whole;
	*end -= bytes;
	u->kept_at = *end;
	return true;
}

/* From the last unit to the first, as the backward pass has them. */
static void keep_in_activations(struct shard *s)
{
	size_t end = s->unit[0].reuse.kept_end;

	for (int i = s->base_units - 1; i >= 0 && keeps_in_activations(s); i--) {
		struct shard_unit *u = &s->unit[i];

		if (u->frozen)
			continue;
		if (!(may_be_whole(s, i) && keep(u, true, u->reuse.free_from, &end)) && u->in_slot)
			keep(u, false, own_from(s, i), &end);
		s->keeps = s->keeps || u->kept;
	}
}

/* ---- until they are summed ---- */

/* The units whose gradients come to this memory, in the order of the backward pass; a companion follows the
 * unit that it belongs to. Returns how many. */
static int list_placed(struct shard *s)
{
	int n = 0;

	for (int base = s->base_units - 1; base >= 0; base--) {
		if (is_placed(&s->unit[base]))
			s->placed[n++] = base;
		for (int i = s->base_units; i < s->units; i++)
			if (s->unit[i].belongs_to == base && is_placed(&s->unit[i]))
				s->placed[n++] = i;
	}
	if (n < s->units)
		s->placed[n] = -1;
	return n;
}

/* What is free when a unit's gradients are written begins here. */
static size_t free_from(const struct shard *s, int unit)
{
	const struct model_reuse *r = &s->unit[unit].reuse;

	if (s->o.offload == SHARD_OFFLOAD_ALL)
		return r->end;
	return s->keeps ? MAX(r->free_from, r->kept_end) : r->free_from;
}

/* Of the unit at a place in the order; 0 behind the last. */
static size_t placed_bytes(const struct shard *s, int n, int i)
{
	const struct shard_unit *u = i < n ? &s->unit[s->placed[i]] : NULL;

	return u ? bytes_of(u, u->padded) : 0;
}

/* Decides how far before the end the gradients of each unit begin. below: those of the first unit leave room
 * at the end for the second. room: so do those of each unit that lies below another. Returns where the end
 * has to be. */
static size_t arrange(struct shard *s, int n, bool below, bool room)
{
	/* The unit before takes [lower, upper) before the end. */
	size_t upper = below ? placed_bytes(s, n, 1) : 0, lower = upper, end = s->unit[0].reuse.end;

	for (int i = 0; i < n; i++) {
		struct shard_unit *u = &s->unit[s->placed[i]];
		size_t bytes = placed_bytes(s, n, i);

		if (i > 0 && bytes <= lower)
			lower = 0;
		else
			lower = i > 0 && room ? MAX(upper, placed_bytes(s, n, i + 1)) : upper;
		upper = lower + bytes;
		u->before_end = upper;
		end = MAX(end, free_from(s, s->placed[i]) + upper);
	}
	return end;
}

/* The way of arranging them that takes the least memory. */
static void place_until_summed(struct shard *s)
{
	int n = list_placed(s), best = 0;
	size_t least = SIZE_MAX;

	for (int way = 0; way < 4; way++) {
		size_t end = arrange(s, n, way & 1, way & 2);

		best = end < least ? way : best;
		least = MIN(least, end);
	}
	s->gradients_end = s->gradients_from = arrange(s, n, best & 1, best & 2);
	for (int i = 0; i < n; i++) {
		struct shard_unit *u = &s->unit[s->placed[i]];

		u->gradients_at = s->gradients_end - u->before_end;
		s->gradients_from = MIN(s->gradients_from, u->gradients_at);
	}
}

/* ---- both ---- */

static void place_unit(struct shard *s, int unit, struct arena *a)
{
	struct shard_unit *u = &s->unit[unit];
	int64_t n = !u->in_slot ? u->padded : s->o.offload == SHARD_OFFLOAD_ALL ? 0 : u->own;
	size_t size = dtype_size(u->gradient_type);
	char *memory = u->kept ? arena_at(a, u->kept_at)
	                       : arena_take(a, BUFFER_GRADIENTS, (size_t)n * size, "unit %d gradients", unit);

	u->gradients = u->in_slot ? NULL : memory;
	u->own_gradients = !u->in_slot && memory ? memory + (size_t)u->first * size : memory;
	u->gradients_memory = is_placed(u) ? arena_at(a, u->gradients_at) : NULL;
}

void gradients_place_buffers(struct shard *s, struct arena *a)
{
	s->keeps = false;
	for (int i = 0; i < s->units; i++) {
		s->unit[i].kept = false;
		s->unit[i].in_slot = !s->unit[i].frozen && !s->unit[i].whole_gradients;
	}
	keep_in_activations(s);
	for (int i = 0; i < s->units; i++) {
		struct shard_unit *u = &s->unit[i];

		u->in_place = u->in_slot && !u->whole_weights && u->reuse.in_place;
	}
	place_until_summed(s);
	/* What the model has taken ends where this begins. */
	arena_take(a, BUFFER_SLOTS, s->gradients_end - s->unit[0].reuse.end, "gradients in use");
	s->gradients_span = arena_at(a, s->gradients_from);
	for (int i = 0; i < s->units; i++)
		if (!s->unit[i].frozen)
			place_unit(s, i, a);
}
