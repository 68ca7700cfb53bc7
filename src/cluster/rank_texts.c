/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap of the texts of ranks, in which each text is found by its number: rank_texts.h. */
#include "cluster/rank_texts.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"

enum { CLASS_UNKNOWN = CAUSE_STOPPED + 1 };

struct rank_text {
	double ended;
	uint32_t number, serial;
	int class; /* enum cause_class, or CLASS_UNKNOWN */
};

int rank_texts_reserve(struct rank_texts *t, size_t count)
{
	size_t room = MAX(2 * t->room, count);
	struct rank_text *heap;
	uint32_t *places;

	if (count <= t->room)
		return 0;
	heap = reallocarray(t->heap, room, sizeof(*heap));
	if (!heap)
		return -ENOMEM;
	t->heap = heap;
	places = reallocarray(t->places, room, sizeof(*places));
	if (!places)
		return -ENOMEM;
	t->places = places;
	while (t->room < room)
		places[t->room++] = 0;
	return 0;
}

bool rank_texts_has(const struct rank_texts *t, size_t number)
{
	return number < t->room && t->places[number] > 0;
}

static bool goes_before(const struct rank_text *a, const struct rank_text *b)
{
	if (a->class != b->class)
		return a->class > b->class;
	if (a->class == CLASS_UNKNOWN)
		return a->serial < b->serial;
	return a->ended != b->ended ? a->ended > b->ended : a->serial > b->serial;
}

static void set(struct rank_texts *t, size_t i, const struct rank_text *text)
{
	t->heap[i] = *text;
	t->places[text->number] = (uint32_t)i + 1;
}

/* Puts the text to its place; place i is free. */
static void sift(struct rank_texts *t, size_t i, const struct rank_text *text)
{
	for (; i > 0 && goes_before(text, &t->heap[(i - 1) / 2]); i = (i - 1) / 2)
		set(t, i, &t->heap[(i - 1) / 2]);
	for (;;) {
		size_t child = 2 * i + 1;

		if (child + 1 < t->count && goes_before(&t->heap[child + 1], &t->heap[child]))
			child++;
		if (child >= t->count || !goes_before(&t->heap[child], text))
			break;
		set(t, i, &t->heap[child]);
		i = child;
	}
	set(t, i, text);
}

static void put(struct rank_texts *t, size_t number, int class, double ended)
{
	struct rank_text text = {.ended = ended, .number = (uint32_t)number, .class = class};
	size_t i;

	if (rank_texts_has(t, number)) {
		i = t->places[number] - 1;
		text.serial = t->heap[i].serial;
	} else {
		i = t->count++;
		text.serial = t->serial++;
	}
	sift(t, i, &text);
}

void rank_texts_put(struct rank_texts *t, size_t number, enum cause_class class, double ended)
{
	put(t, number, (int)class, ended);
}

void rank_texts_put_unknown(struct rank_texts *t, size_t number)
{
	put(t, number, CLASS_UNKNOWN, 0);
}

ptrdiff_t rank_texts_take(struct rank_texts *t)
{
	struct rank_text last;
	ptrdiff_t number;

	if (t->count == 0)
		return -1;
	number = (ptrdiff_t)t->heap[0].number;
	t->places[number] = 0;
	last = t->heap[--t->count];
	if (t->count > 0)
		sift(t, 0, &last);
	return number;
}

void rank_texts_clear(struct rank_texts *t)
{
	free(t->heap);
	free(t->places);
	*t = (struct rank_texts){0};
}
