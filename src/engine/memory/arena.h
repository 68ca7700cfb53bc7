/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One block of device memory, divided once. Whoever needs buffers writes one function that takes them all
 * from an arena. It runs twice: over an arena without memory, which only counts (the plan), and over the
 * same arena once it has memory, which hands out the pointers. So the plan is the run.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum buffer_class {
	BUFFER_WEIGHTS, /* parameters in the compute type */
	BUFFER_GRADIENTS,
	BUFFER_OPTIMIZER,   /* fp32 master weights (where they are apart), first and second moments */
	BUFFER_SLOTS,       /* whole weights and gradients of the units in use, where a rank holds shards */
	BUFFER_ACTIVATIONS, /* kept from forward to backward */
	BUFFER_LOGITS,
	BUFFER_SCRATCH, /* used within one layer, and used again by the next */
	BUFFER_INPUT,   /* token ids, targets, positions, tables */
	BUFFER_CACHE,   /* keys and values of generation */
	BUFFER_CLASSES
};
const char *buffer_class_name(enum buffer_class c);

struct arena_buffer {
	char name[48];
	enum buffer_class class_;
	size_t offset, bytes;
};

#define ARENA_ALIGNMENT 256

static inline size_t arena_round(size_t bytes)
{
	return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

struct arena {
	char *base;  /* NULL while counting */
	size_t used; /* bytes so far, aligned */
	struct arena_buffer *buffers;
	size_t n, cap;
	size_t extra; /* of n: counted, but not in the arena (the device's own scratch) */
	bool failed;  /* out of host memory for the table */
};

/* A buffer of `bytes`, aligned to ARENA_ALIGNMENT: its address, or NULL while counting and for 0 bytes. */
void *arena_take(struct arena *a, enum buffer_class class_, size_t bytes, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The address of an offset; NULL while counting. */
void *arena_at(const struct arena *a, size_t offset);
/* Counts memory that is allocated elsewhere. */
void arena_note(struct arena *a, enum buffer_class class_, size_t bytes, const char *name);
/* After counting: starts the second pass over memory of a->used bytes. */
void arena_bind(struct arena *a, void *base);
void arena_free(struct arena *a);          /* the table; not the memory */
size_t arena_total(const struct arena *a); /* notes included */
/* {"total":…,"classes":{"weights":…},"buffers":[{"name","class","bytes","offset"}]} */
int arena_to_json(const struct arena *a, json_t **out, struct error *err);
