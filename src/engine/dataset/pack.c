/* SPDX-License-Identifier: Apache-2.0 */
/* Packs documents into rows: each row takes the longest document that still fits, until none does. */
#include "engine/dataset/pack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct item {
	int32_t length;
	size_t index;
};

static int by_length(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	return x->length != y->length ? (x->length > y->length) - (x->length < y->length)
	                              : (x->index > y->index) - (x->index < y->index);
}

/* How many of the sorted items are not longer than `room`. */
static size_t fitting(const struct item *items, size_t count, int32_t room)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (items[mid].length <= room)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

int64_t pack_knapsack(const int32_t *lengths, size_t count, int32_t capacity, size_t *order, size_t *row_ends)
{
	struct item *items = malloc((count ? count : 1) * sizeof(*items));
	int64_t rows = 0;
	size_t left, done = 0;

	if (!items)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		items[i] = (struct item){lengths[i], i};
	qsort(items, count, sizeof(*items), by_length);
	left = fitting(items, count, capacity);
	while (left > 0) {
		int32_t room = capacity;
		size_t n;

		while ((n = fitting(items, left, room)) > 0) {
			room -= items[n - 1].length;
			order[done++] = items[n - 1].index;
			memmove(&items[n - 1], &items[n], (left - n) * sizeof(*items));
			left--;
		}
		row_ends[rows++] = done;
	}
	free(items);
	return rows;
}
