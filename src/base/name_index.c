/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table from the names of hosts to their places in a list. */
#include "base/name_index.h"

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/str.h"

enum { SMALLEST = 64 };

/* The slot of the name, or the free one where it belongs. At most half of them are taken. */
static struct name_slot *find_slot(const struct name_index *x, const char *name)
{
	uint64_t h = 14695981039346656037u;

	for (const char *s = name; *s; s++)
		h = (h ^ (unsigned char)tolower((unsigned char)*s)) * 1099511628211u;
	for (size_t i = h ^ h >> 32;; i++) {
		struct name_slot *slot = &x->slots[i & (x->size - 1)];

		if (!slot->name || str_eq_host(slot->name, name))
			return slot;
	}
}

static int grow(struct name_index *x)
{
	struct name_index larger = {.size = x->size ? x->size * 2 : SMALLEST, .count = x->count};

	larger.slots = calloc(larger.size, sizeof(*larger.slots));
	if (!larger.slots)
		return -ENOMEM;
	for (size_t i = 0; i < x->size; i++)
		if (x->slots[i].name)
			*find_slot(&larger, x->slots[i].name) = x->slots[i];
	free(x->slots);
	*x = larger;
	return 0;
}

int name_index_add(struct name_index *x, const char *name, size_t value)
{
	if (2 * x->count >= x->size && grow(x) < 0)
		return -ENOMEM;
	*find_slot(x, name) = (struct name_slot){name, value};
	x->count++;
	return 0;
}

bool name_index_find(const struct name_index *x, const char *name, size_t *value)
{
	const struct name_slot *slot = x->size ? find_slot(x, name) : NULL;

	if (!slot || !slot->name)
		return false;
	*value = slot->value;
	return true;
}

void name_index_free(struct name_index *x)
{
	free(x->slots);
	*x = (struct name_index){0};
}
