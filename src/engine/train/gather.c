/* SPDX-License-Identifier: Apache-2.0 */
/* Copies rows of the data into a micro-batch. */
#include <string.h>

#include "engine/train/internal.h"

/* As one document, where documents may be as long. */
static void fill_up(struct trainer *t, struct model_batch *batch)
{
	int64_t length = 0;

	while (batch->tokens % train_sequence_degree(&t->o)) {
		t->ids[batch->tokens] = 0;
		t->targets[batch->tokens++] = -1;
		batch->filling++;
		if (length++ % t->max_row == 0)
			batch->documents++;
		t->starts[batch->documents] = (int32_t)batch->tokens;
	}
}

void trainer_gather(struct trainer *t, const struct dataset *data, const int64_t *rows, int64_t n,
                    struct model_batch *batch)
{
	*batch = (struct model_batch){
	    .ids = t->ids, .targets = t->targets, .starts = t->starts, .row_ends = t->row_ends};
	t->starts[0] = 0;
	for (int64_t i = 0; i < n; i++) {
		struct dataset_row row;
		size_t bytes;

		if (rows[i] < 0)
			continue;
		dataset_row(data, rows[i], &row);
		bytes = (size_t)row.length * sizeof(int32_t);
		memcpy(t->ids + batch->tokens, row.ids, bytes);
		memcpy(t->targets + batch->tokens, row.targets, bytes);
		for (int d = 1; d <= row.documents; d++)
			t->starts[++batch->documents] = (int32_t)batch->tokens + row.starts[d];
		batch->tokens += row.length;
		t->row_ends[batch->rows++] = (int32_t)batch->tokens;
	}
	fill_up(t, batch);
}
