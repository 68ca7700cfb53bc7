/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a batch of encoded records. */
#pragma once

#include "engine/dataset/cache.h"
#include "engine/dataset/encoded.h"

/* Appends the rows of items[0 … count) to out, which may be NULL where nothing is to be written. last: no
 * batch follows this one. Errors: -ENOMEM and those of cache_writer_add. */
int rows_write(const struct record_encoder *c, struct cache_writer *out, struct encoded_record **items,
               size_t count, bool last, struct error *err);
