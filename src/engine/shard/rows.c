/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last gradients of ddp. Those of an embedding to which the head is tied are the sum of two parts: the
 * head writes the whole table when the backward pass begins, and the embedding adds a row for each token when
 * it ends. A sum over the ranks that begins only then is hidden by nothing. In the last micro-step of a step
 * the head's part, with all of the micro-steps before, is therefore summed as soon as it is there, and each
 * rank's rows of that micro-step are gathered at the end, and added by every rank to the sum, in the order of
 * the ranks:
 *
 *     backward pass   head | last block | ... | first block | embedding
 *     collectives          | sum of the table | sums of the blocks ... | gather of the rows | add
 *
 * That pays where the rows of all ranks are much less than the table. Whose tokens they are need not be sent:
 * every rank has the data, and knows what rows the others have.
 */
#include "engine/shard/rows.h"

void shard_set_rows(struct shard *s, const int64_t *counts, const int32_t *ids)
{
	struct shard_rows *w = &s->rows;

	w->counts = counts;
	w->host_ids = ids;
	w->most = 0;
	for (int r = 0; r < s->o.world_size; r++)
		w->most = MAX(w->most, counts[r]);
}

bool shard_embedding_rows(struct shard *s, const void *d_out)
{
	struct shard_rows *w = &s->rows;

	if (!w->begun)
		return false;
	if (w->most > 0) {
		/* With the sums of the step, as the last gradients are (reduce.c). */
		comm_group_begin(s->reduce);
		w->gathering = comm_all_gather_into(s->reduce, w->all, d_out, w->most * w->hidden, s->o.type);
	}
	return true;
}

int rows_add(struct shard *s, float *gradients, struct error *err)
{
	struct shard_rows *w = &s->rows;
	size_t shard = (size_t)(w->most * w->hidden) * dtype_size(s->o.type);
	int r;

	w->begun = false;
	if (!w->gathering)
		return 0;
	if ((r = comm_wait(s->reduce, w->gathering, err)) < 0)
		return r;
	w->gathering = 0;
	for (int rank = 0; rank < s->o.world_size; rank++) {
		const int32_t *ids = w->host_ids + rank * s->o.max_tokens;

		if (w->counts[rank] == 0)
			continue;
		r = device_write(s->dev, w->ids, ids, (size_t)w->counts[rank] * sizeof(*ids), err);
		if (r < 0)
			return r;
		device_embedding_backward(s->dev, gradients + w->place, DTYPE_F32,
		                          (char *)w->all + (size_t)rank * shard, w->ids, ids, w->counts[rank],
		                          w->vocab, (int)w->hidden, s->o.type);
	}
	return 0;
}
