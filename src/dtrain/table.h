/* SPDX-License-Identifier: Apache-2.0 */
/* Columns for a person: as wide as what is in them, the last one not padded. */
#pragma once

#include <stddef.h>

enum { TABLE_COLUMNS_MAX = 20 };

struct table {
	size_t columns, cells, capacity;
	char **list;
	const char **colors; /* of each cell: the parameters of an escape sequence, or NULL */
	int width;           /* the last column is cut to fit into it; 0: it may be as wide as it is */
	int failed;
};

/* The header first, then cell after cell, row after row. */
void table_begin(struct table *table, size_t columns, const char *const *header);
/* What a terminal would take as a command comes out as "?". NULL and "" come out as "-". The text is
 * copied. */
void table_add_text(struct table *table, const char *text);
void table_add(struct table *table, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_color(struct table *table, const char *color); /* of the newest cell; borrowed */
void table_print(struct table *table);                    /* on stdout; releases the table */
