/* SPDX-License-Identifier: Apache-2.0 */
/* Tables on a terminal: columns as wide as what is in them, within the width of the terminal. */
#include "dtrain/table.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

void table_begin(struct table *table, size_t columns, const char *const *header)
{
	memset(table, 0, sizeof *table);
	table->columns = MIN(columns, (size_t)TABLE_COLUMNS_MAX);
	for (size_t i = 0; i < table->columns; i++)
		table_add_text(table, header[i]);
}

void table_add_text(struct table *table, const char *from)
{
	char *text = strdup(from && *from ? from : "-");

	if (text && table->cells == table->capacity) {
		size_t capacity = table->capacity ? table->capacity * 2 : 256;
		char **list = realloc(table->list, capacity * sizeof *list);
		const char **colors = list ? realloc(table->colors, capacity * sizeof *colors) : NULL;

		table->list = list ? list : table->list;
		if (colors) {
			table->colors = colors;
			table->capacity = capacity;
		} else {
			free(text);
			text = NULL;
		}
	}
	if (!text) {
		table->failed = 1;
		return;
	}
	for (char *c = text; *c; c++)
		memset(c, *c == '\n' ? ' ' : '?', str_control_length(c));
	table->colors[table->cells] = NULL;
	table->list[table->cells++] = text;
}

void table_add(struct table *table, const char *fmt, ...)
{
	_cleanup_free_ char *text = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		table->failed = 1;
	else
		table_add_text(table, text);
}

void table_color(struct table *table, const char *color)
{
	if (table->cells > 0 && !table->failed)
		table->colors[table->cells - 1] = color;
}

/* Characters, not bytes. */
static size_t width(const char *s)
{
	size_t n = 0;

	for (; *s; s++)
		n += (*s & 0xc0) != 0x80;
	return n;
}

/* At most `room` characters of it, the last of which is an ellipsis where it is longer; room 0: all. */
static void print_cell(const char *text, size_t room, const char *color)
{
	bool cut = room > 0 && width(text) > room;
	size_t bytes = 0, n = 0;

	while (text[bytes] && (!cut || (text[bytes] & 0xc0) == 0x80 || n + 1 < room))
		n += (text[bytes++] & 0xc0) != 0x80;
	if (color)
		printf("\033[%sm", color);
	fwrite(text, 1, bytes, stdout);
	if (cut)
		fputs("…", stdout);
	if (color)
		fputs("\033[0m", stdout);
}

void table_print(struct table *table)
{
	size_t widths[TABLE_COLUMNS_MAX] = {0}, before = 0, last = table->columns - 1;

	for (size_t i = 0; i < table->cells; i++)
		widths[i % table->columns] = MAX(widths[i % table->columns], width(table->list[i]));
	for (size_t i = 0; i < last; i++)
		before += widths[i] + 2;
	for (size_t i = 0; i < table->cells && !table->failed; i++) {
		size_t column = i % table->columns;
		const char *text = table->list[i];
		size_t room = 0;

		if (column == last && table->width > 0)
			room = (size_t)table->width > before + 1 ? (size_t)table->width - before : 1;
		print_cell(text, room, table->colors[i]);
		if (column == last)
			putchar('\n');
		else
			for (size_t pad = widths[column] - width(text) + 2; pad > 0; pad--)
				putchar_unlocked(' ');
	}
	for (size_t i = 0; i < table->cells; i++)
		free(table->list[i]);
	free(table->list);
	free(table->colors);
}
