/* SPDX-License-Identifier: Apache-2.0 */
/* Names of hosts to their places in a list; upper and lower case are the same. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct name_index {
	struct name_slot {
		const char *name; /* borrowed; NULL: free */
		size_t value;
	} * slots;
	size_t size, count; /* size: a power of two */
};

int name_index_add(struct name_index *x, const char *name, size_t value); /* a name that is new; -ENOMEM */
bool name_index_find(const struct name_index *x, const char *name, size_t *value);
void name_index_free(struct name_index *x); /* empty again */
