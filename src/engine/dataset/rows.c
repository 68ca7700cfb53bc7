/* SPDX-License-Identifier: Apache-2.0 */
/* Puts encoded records together into rows: packed, in blocks, one a row, or preferences. */
#include "engine/dataset/rows.h"

#include <errno.h>
#include <string.h>

#include "engine/dataset/pack.h"

static int write_packed(const struct record_encoder *c, struct cache_writer *out,
                        struct encoded_record **items, size_t count, struct error *err)
{
	_cleanup_free_ int32_t *lengths = malloc((count + 1) * sizeof(*lengths));
	_cleanup_free_ int32_t *starts = malloc((count + 1) * sizeof(*starts));
	_cleanup_free_ size_t *order = malloc((count + 1) * sizeof(*order));
	_cleanup_free_ size_t *ends = malloc((count + 1) * sizeof(*ends));
	struct token_list ids = {0}, labels = {0};
	int64_t rows;
	int r = 0;

	if (!lengths || !starts || !order || !ends)
		return error_oom(err);
	for (size_t i = 0; i < count; i++)
		lengths[i] = items[i]->ids.len;
	rows = pack_knapsack(lengths, count, c->conversation.cutoff, order, ends);
	if (rows < 0)
		return error_oom(err);
	for (int64_t row = 0; r == 0 && row < rows; row++) {
		size_t from = row ? ends[row - 1] : 0;

		ids.len = labels.len = 0;
		for (size_t k = from; r == 0 && k < ends[row]; k++) {
			const struct encoded_record *w = items[order[k]];

			starts[k - from] = ids.len;
			if (token_list_add(&ids, w->ids.ids, w->ids.len) < 0 ||
			    token_list_add(&labels, w->labels.ids, w->labels.len) < 0)
				r = error_oom(err);
		}
		starts[ends[row] - from] = ids.len;
		if (r == 0)
			r = cache_writer_add(out, ids.ids, labels.ids, ids.len, starts, ends[row] - from,
			                     c->options->cross_documents, err);
	}
	token_list_free(&ids);
	token_list_free(&labels);
	return r;
}

/* Adds the texts to those that are left over. */
static int add_texts(struct rows_rest *rest, struct encoded_record **items, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		int32_t start = (int32_t)rest->ids.len;

		if (rest->ids.len + items[i]->ids.len > INT32_MAX ||
		    (!rest->open && token_list_add(&rest->starts, &start, 1) < 0) ||
		    token_list_add(&rest->ids, items[i]->ids.ids, items[i]->ids.len) < 0)
			return -ENOMEM;
		rest->open = items[i]->record.more;
	}
	return 0;
}

/* Takes the first `length` ids away, and the documents that begin in them; the last may reach further. */
static void take_texts(struct rows_rest *rest, size_t length, size_t documents)
{
	if (!length)
		return;
	rest->ids.len -= length;
	memmove(rest->ids.ids, rest->ids.ids + length, rest->ids.len * sizeof(*rest->ids.ids));
	rest->starts.len -= documents;
	memmove(rest->starts.ids, rest->starts.ids + documents, rest->starts.len * sizeof(*rest->starts.ids));
	for (size_t i = 0; i < rest->starts.len; i++)
		rest->starts.ids[i] -= (int32_t)length;
}

/* Texts one after the other, cut into blocks. What is left over is the beginning of the next batch's first
 * row, and after the last batch a shorter row. An end token alone makes no row, since it predicts nothing. */
static int write_blocks(const struct record_encoder *c, struct cache_writer *out, struct rows_rest *rest,
                        struct encoded_record **items, size_t count, bool last, struct error *err)
{
	size_t block = c->options->max_length, from = 0, n = 0, total;
	_cleanup_free_ int32_t *starts = malloc((block + 1) * sizeof(*starts));
	int r = 0;

	if (!starts || add_texts(rest, items, count) < 0)
		return error_oom(err);
	total = rest->ids.len;
	while (r == 0 && (total - from >= block ||
	                  (last && total > from && (total - from > 1 || cache_writer_rows(out) == 0)))) {
		size_t to = MIN(from + block, total);
		int32_t documents = 0;

		starts[documents++] = 0;
		for (; n < rest->starts.len && (size_t)rest->starts.ids[n] < to; n++)
			if ((size_t)rest->starts.ids[n] > from)
				starts[documents++] = rest->starts.ids[n] - (int32_t)from;
		starts[documents] = (int32_t)(to - from);
		if (c->bos >= 0)
			rest->ids.ids[from] = c->bos;
		r = cache_writer_add(out, rest->ids.ids + from, rest->ids.ids + from, to - from, starts,
		                     documents, c->options->cross_documents, err);
		from = to;
	}
	take_texts(rest, from, n);
	return r;
}

void rows_rest_clear(struct rows_rest *rest)
{
	token_list_free(&rest->ids);
	token_list_free(&rest->starts);
}

/* Each answer that has a label goes with that of the example before it, the first of a batch with the last:
 * what the KL divergence is estimated from. */
static int write_preferences(const struct record_encoder *c, struct cache_writer *out,
                             struct encoded_record **items, size_t count, struct error *err)
{
	bool labels = c->options->task == DATASET_LABELS;
	int r = 0;

	for (size_t i = 0; r == 0 && i < count; i++) {
		struct encoded_record *w = items[i];

		if (labels && record_add_other_answer(c, w, &items[i ? i - 1 : count - 1]->answer) < 0)
			return error_oom(err);
		r = cache_writer_add(out, w->ids.ids, w->labels.ids, w->ids.len,
		                     (const int32_t[]){0, w->second, w->ids.len}, 2, false, err);
		if (r < 0)
			return r;
		if (labels)
			cache_writer_label(out, w->desirable);
		else
			cache_writer_margin(out, w->margin);
	}
	return 0;
}

int rows_write(const struct record_encoder *c, struct cache_writer *out, struct rows_rest *rest,
               struct encoded_record **items, size_t count, bool last, struct error *err)
{
	bool pretrain = c->options->task == DATASET_PRETRAIN;
	int r = 0;

	if (!out || (count == 0 && !last))
		return 0;
	for (size_t i = 0; i < count; i++)
		cache_writer_examples(out, !items[i]->record.more);
	if (record_encoder_prefers(c))
		r = write_preferences(c, out, items, count, err);
	for (size_t i = 0; i < count; i++)
		if (items[i]->cut)
			cache_writer_cut(out, items[i]->cut_tokens);
	if (r < 0 || record_encoder_prefers(c))
		return r;
	if (c->options->packing)
		return pretrain ? write_blocks(c, out, rest, items, count, last, err)
		                : write_packed(c, out, items, count, err);
	for (size_t i = 0; r == 0 && i < count; i++) {
		const struct encoded_record *w = items[i];
		const int32_t starts[2] = {0, w->ids.len};

		r = cache_writer_add(out, w->ids.ids, pretrain ? w->ids.ids : w->labels.ids, w->ids.len,
		                     starts, 1, false, err);
	}
	return r;
}
