/* SPDX-License-Identifier: Apache-2.0 */
#include "dtrain/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

void table_begin(struct table *table, size_t columns, const char *const *header)
{
	memset(table, 0, sizeof *table);
	table->columns = MIN(columns, (size_t)TABLE_COLUMNS_MAX);
	for (size_t i = 0; i < table->columns; i++)
		table_add(table, "%s", header[i]);
}

void table_add(struct table *table, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n == 0) {
		free(text);
		text = strdup("-");
	}
	if (n >= 0 && text && table->cells == table->capacity) {
		size_t capacity = table->capacity ? table->capacity * 2 : 256;
		char **list = realloc(table->list, capacity * sizeof *list);

		if (list) {
			table->list = list;
			table->capacity = capacity;
		} else {
			free(text);
			text = NULL;
		}
	}
	if (n < 0 || !text) {
		table->failed = 1;
		return;
	}
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = *c == '\n' ? ' ' : '?';
	table->list[table->cells++] = text;
}

/* Characters, not bytes. */
static size_t width(const char *s)
{
	size_t n = 0;

	for (; *s; s++)
		n += (*s & 0xc0) != 0x80;
	return n;
}

void table_print(struct table *table)
{
	size_t widths[TABLE_COLUMNS_MAX] = {0};

	for (size_t i = 0; i < table->cells; i++)
		widths[i % table->columns] = MAX(widths[i % table->columns], width(table->list[i]));
	for (size_t i = 0; i < table->cells && !table->failed; i++) {
		size_t column = i % table->columns;

		if (column + 1 == table->columns)
			printf("%s\n", table->list[i]);
		else
			printf("%s%*s", table->list[i], (int)(widths[column] - width(table->list[i]) + 2),
			       "");
	}
	for (size_t i = 0; i < table->cells; i++)
		free(table->list[i]);
	free(table->list);
}
