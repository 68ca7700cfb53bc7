/* SPDX-License-Identifier: Apache-2.0 */
/* What the columns of a record say about the file that it is in. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "engine/dataset/dataset.h"
#include "engine/dataset/source.h"

/* The names where the run file gives none: alpaca's columns, sharegpt's tags. */
extern const struct source_columns source_columns_default;
extern const struct source_tags source_tags_sharegpt;

/* Fills in what is still open of a file's format, columns and tags, by one of its records: any that tells
 * them. A column may hold null or a value of the wrong type there: that concerns its record alone. Errors:
 * -EINVAL the record tells no format, -ENOKEY it lacks a column that is needed (the message says which are
 * there); s is then as it was. `where`: "file:line". */
int source_detect(struct source *s, const json_t *record, enum dataset_task task, const char *where,
                  struct error *err);
