/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a row of a data set as one JSON object, for the Python programs that compare rows. */
#pragma once

#include <stdio.h>

#include "engine/dataset/dataset.h"

static inline void print_ids(const char *name, const int32_t *ids, int64_t n)
{
	printf("\"%s\":[", name);
	for (int64_t i = 0; i < n; i++)
		printf("%s%d", i ? "," : "", ids[i]);
	printf("]");
}

static inline void print_row(const struct dataset_row *row)
{
	printf("{");
	print_ids("ids", row->ids, row->length);
	printf(",");
	print_ids("targets", row->targets, row->length);
	printf(",");
	print_ids("starts", row->starts, row->documents + 1);
	printf("}");
}
