/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The texts in which ranks have told of their failure, in the order in which they are dropped where they are
 * too many: a heap, since tens of thousands of ranks may say something in the same second.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cluster/cause.h"

struct rank_text;

struct rank_texts {
	struct rank_text *heap; /* the first one is the next to be dropped */
	size_t count, room;
	uint32_t *places; /* by number of the text: 1 + its place in the heap, 0: it is not there */
	uint32_t serial;  /* of the next one that comes */
};

/* Room for texts with numbers below `count`. -ENOMEM; all is as before then. */
int rank_texts_reserve(struct rank_texts *t, size_t count);
bool rank_texts_has(const struct rank_texts *t, size_t number);
/* Adds a text, for which there is room, or puts one that is there to where it belongs now. The one goes first
 * that explains less than the others, or else ended later (Unix seconds; 0: not yet), or else came later. */
void rank_texts_put(struct rank_texts *t, size_t number, enum cause_class class, double ended);
/* The same for a text of a rank that the run does not have. They go before all others, in the order in which
 * they came. */
void rank_texts_put_unknown(struct rank_texts *t, size_t number);
/* Takes the first one out, and returns its number; -1: there is none. */
ptrdiff_t rank_texts_take(struct rank_texts *t);
void rank_texts_clear(struct rank_texts *t); /* empty again, without memory */
