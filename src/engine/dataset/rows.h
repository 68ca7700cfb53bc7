/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a batch of encoded records. */
#pragma once

#include "engine/dataset/cache.h"
#include "engine/dataset/encoded.h"

/* What the batches of a split have left over for its next row, where texts are cut into blocks; {0} before
 * the first batch. */
struct rows_rest {
	struct token_list ids, starts; /* starts: where in ids a document begins; the first is 0 */
	bool open;                     /* the last document goes on in the next batch */
};

/* Appends the rows of items[0 … count) to out, which may be NULL where nothing is to be written. last: no
 * batch follows this one. Errors: -ENOMEM and those of cache_writer_add. */
int rows_write(const struct record_encoder *c, struct cache_writer *out, struct rows_rest *rest,
               struct encoded_record **items, size_t count, bool last, struct error *err);
void rows_rest_clear(struct rows_rest *rest);
