/* SPDX-License-Identifier: Apache-2.0 */
/* An implementation of dataset.h with generated rows in memory, each of one document or of two. */
#include "fake_dataset.h"

#include <stdlib.h>
#include <string.h>

struct dataset {
	int64_t rows;
	struct dataset_row *row;
	int32_t longest;
};

static void make_row(struct dataset_row *row, uint32_t *random, int32_t length, int documents, int32_t vocab,
                     bool masked)
{
	int32_t *ids = malloc((size_t)length * sizeof(int32_t)),
	        *targets = malloc((size_t)length * sizeof(int32_t));
	int32_t *starts = calloc(3, sizeof(int32_t));

	starts[1] = documents == 1 ? length : length / 2;
	starts[2] = length;
	for (int32_t t = 0; t < length; t++) {
		*random = *random * 1664525 + 1013904223;
		ids[t] = *random >> 29 && t > 0 ? (int32_t)(((int64_t)ids[t - 1] * 5 + 3) % vocab)
		                                : (int32_t)((*random >> 7) % (uint32_t)vocab);
	}
	*row = (struct dataset_row){
	    .ids = ids, .targets = targets, .starts = starts, .length = length, .documents = documents};
	for (int32_t t = 0; t < length; t++) {
		bool last = t + 1 == starts[1] || t + 1 == starts[2];

		targets[t] = last || (masked && t < length / 3) ? -100 : ids[t + 1];
		row->counted += targets[t] >= 0;
	}
}

struct dataset *fake_dataset(int64_t rows, int32_t length, int32_t spread, int32_t vocab, bool masked)
{
	struct dataset *d = calloc(1, sizeof(*d));
	uint32_t random = 1;

	d->rows = rows;
	d->row = calloc((size_t)rows, sizeof(*d->row));
	for (int64_t i = 0; i < rows; i++) {
		int32_t n = length + (spread ? (int32_t)(i * 7 % (spread + 1)) : 0);

		make_row(&d->row[i], &random, n, 2, vocab, masked);
		d->longest = MAX(d->longest, n);
	}
	return d;
}

struct dataset *fake_dataset_whole(int64_t rows, int32_t length, int32_t vocab)
{
	struct dataset *d = calloc(1, sizeof(*d));
	uint32_t random = 1;

	d->rows = rows;
	d->row = calloc((size_t)rows, sizeof(*d->row));
	d->longest = length;
	for (int64_t i = 0; i < rows; i++)
		make_row(&d->row[i], &random, length, 1, vocab, false);
	return d;
}

struct dataset *fake_dataset_of(struct dataset_row *row, int64_t rows)
{
	struct dataset *d = calloc(1, sizeof(*d));

	d->rows = rows;
	d->row = row;
	for (int64_t i = 0; i < rows; i++)
		d->longest = MAX(d->longest, row[i].length);
	return d;
}

/* Copies the elements [from, to) of a row's document, which becomes a row. */
static void cut_row(struct dataset_row *out, const struct dataset_row *row, int32_t from, int32_t to)
{
	size_t bytes = (size_t)(to - from) * sizeof(int32_t);
	int32_t *ids = malloc(bytes), *targets = malloc(bytes), *starts = calloc(2, sizeof(*starts));

	memcpy(ids, row->ids + from, bytes);
	memcpy(targets, row->targets + from, bytes);
	starts[1] = to - from;
	*out = (struct dataset_row){
	    .ids = ids, .targets = targets, .starts = starts, .length = to - from, .documents = 1};
	for (int32_t t = 0; t < out->length; t++)
		out->counted += targets[t] >= 0;
}

struct dataset *fake_dataset_unpacked(const struct dataset *packed)
{
	struct dataset *d = calloc(1, sizeof(*d));

	for (int64_t i = 0; i < packed->rows; i++)
		d->rows += packed->row[i].documents;
	d->row = calloc((size_t)d->rows, sizeof(*d->row));
	for (int64_t i = 0, at = 0; i < packed->rows; i++)
		for (int32_t k = 0; k < packed->row[i].documents; k++, at++) {
			const int32_t *starts = packed->row[i].starts;

			cut_row(&d->row[at], &packed->row[i], starts[k], starts[k + 1]);
			d->longest = MAX(d->longest, d->row[at].length);
		}
	return d;
}

void dataset_close(struct dataset *d)
{
	for (int64_t i = 0; i < d->rows; i++) {
		free((void *)d->row[i].ids);
		free((void *)d->row[i].targets);
		free((void *)d->row[i].starts);
	}
	free(d->row);
	free(d);
}

int64_t dataset_rows(const struct dataset *d)
{
	return d->rows;
}

int32_t dataset_max_row(const struct dataset *d)
{
	return d->longest;
}

void dataset_row(const struct dataset *d, int64_t index, struct dataset_row *row)
{
	*row = d->row[index];
}

int64_t dataset_row_counted(const struct dataset *d, int64_t index)
{
	return d->row[index].counted;
}

void dataset_release(const struct dataset *d)
{
}
