/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizes the records of all files, packs them into rows, and writes the rows of both splits. */
#include "engine/dataset/build.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/dataset/detect.h"
#include "engine/dataset/rows.h"
#include "engine/dataset/sampler.h"

/* LLaMA-Factory packs within batches of this many records; so do we, and the rows are the same. It drops what
 * a batch of texts has left over; here the next batch begins with it. */
#define BATCH        1000
#define WARNINGS_MAX 3

struct batch {
	struct encoded_record *items;
	size_t count;
	/* Files whose records are in the batch stay open until it is done. */
	struct records **open;
	size_t open_count, open_cap;
};

struct builder {
	const struct dataset_options *options;
	struct record_encoder encoder;
	struct cache_writer *train, *held_out;
	struct rows_rest train_rest, held_out_rest;
	struct batch batch;
	struct sampler split; /* its permutation chooses what is held out */
	int64_t held_count;   /* how many examples are */
	int64_t index;        /* of the next record, over all files */
	int64_t bytes_done, bytes_total;
	int64_t skipped, used;
};

static void batch_free(struct batch *b)
{
	for (size_t i = 0; b->items && i < BATCH; i++)
		encoded_record_clear(&b->items[i]);
	for (size_t i = 0; i < b->open_count; i++)
		records_close(b->open[i]);
	free(b->open);
	free(b->items);
	*b = (struct batch){0};
}

static void warn(const struct builder *b, const char *message)
{
	if (b->options->warn)
		b->options->warn(b->options->warn_context, message);
}

/* Sorts the records of a batch into the two splits and counts what is skipped. */
static int collect(struct builder *b, struct encoded_record **parts[2], size_t counts[2], struct error *err)
{
	for (size_t i = 0; i < b->batch.count; i++) {
		struct encoded_record *w = &b->batch.items[i];
		int part = w->held_out ? 1 : 0;

		if (w->result < 0 && w->result != -EBADMSG) {
			if (err)
				*err = w->err;
			return w->result;
		}
		if (w->result == 0 && (w->ids.len > 0 || w->prompt.len > 0)) {
			parts[part][counts[part]++] = w;
			b->used++;
		} else if (w->result < 0 && b->skipped++ < WARNINGS_MAX) {
			error_prefix(&w->err, "skipped");
			warn(b, w->err.message);
		}
	}
	return 0;
}

static int flush_batch(struct builder *b, bool last, struct error *err)
{
	_cleanup_free_ struct encoded_record **train = malloc(BATCH * sizeof(*train));
	_cleanup_free_ struct encoded_record **held_out = malloc(BATCH * sizeof(*held_out));
	struct encoded_record **parts[2] = {train, held_out};
	struct batch *batch = &b->batch;
	size_t counts[2] = {0};
	int r;

	if (!train || !held_out)
		return error_oom(err);
#pragma omp parallel for schedule(dynamic, 8)
	for (size_t i = 0; i < batch->count; i++)
		record_encode(&b->encoder, &batch->items[i]);

	r = collect(b, parts, counts, err);
	if (r == 0)
		r = rows_write(&b->encoder, b->train, &b->train_rest, train, counts[0], last, err);
	if (r == 0)
		r = rows_write(&b->encoder, b->held_out, &b->held_out_rest, held_out, counts[1], last, err);
	batch->count = 0;
	/* Only the newest file may still have records to come. */
	while (batch->open_count > 1) {
		records_close(batch->open[0]);
		memmove(batch->open, batch->open + 1, --batch->open_count * sizeof(*batch->open));
	}
	return r;
}

/* --- all files
 * ------------------------------------------------------------------------------------------- */

/* Counts the documents of each group: needed before the first can be drawn or held out. */
static int count_documents(const struct source_list *list, int64_t *counts, struct error *err)
{
	for (size_t i = 0; i < list->count; i++) {
		_cleanup_(records_closep) struct records *file = NULL;
		struct record record;
		int r = records_open(list->items[i].path, source_record_kind(&list->items[i]), &file, err);

		while (r == 0 && (r = records_next(file, &record, err)) > 0) {
			counts[list->items[i].group] += !record.more;
			r = 0;
		}
		if (r < 0)
			return r;
	}
	return 0;
}

static int open_file(struct builder *b, const struct source *s, struct error *err)
{
	struct batch *batch = &b->batch;
	int r;

	if (batch->open_count == batch->open_cap) {
		size_t cap = batch->open_cap ? 2 * batch->open_cap : 8;
		struct records **p = realloc(batch->open, cap * sizeof(struct records *));

		if (!p)
			return error_oom(err);
		batch->open = p;
		batch->open_cap = cap;
	}
	r = records_open(s->path, source_record_kind(s), &batch->open[batch->open_count], err);
	if (r < 0)
		return r;
	/* Of a row that is not packed, all tokens come from one record. */
	if (!b->options->packing)
		records_keep_whole(batch->open[batch->open_count]);
	batch->open_count++;
	return 0;
}

static void report(const struct builder *b, int64_t bytes)
{
	if (b->options->progress)
		b->options->progress(b->options->progress_context, "tokenizing", bytes, b->bytes_total);
}

/* How often document `index` of a group of `count` is drawn. */
static int64_t draws(const struct builder *b, const struct source *s, int64_t index, int64_t count)
{
	struct sampler order = {.rows = count, .seed = b->options->seed, .shuffle = true};

	if (s->num_samples < 0 || count == 0)
		return 1;
	return s->num_samples / count + (sampler_permute(&order, -2, index) < s->num_samples % count);
}

struct group_state {
	int64_t index, taken; /* documents seen; drawn */
};

static int add_file(struct builder *b, const struct source *s, const int64_t *counts,
                    struct group_state *group, struct error *err)
{
	int64_t limit = b->options->max_samples;
	struct records *file;
	struct record record;
	bool continued = false, held = false;
	int r;

	r = open_file(b, s, err);
	if (r < 0)
		return r;
	file = b->batch.open[b->batch.open_count - 1];
	while ((limit == 0 || group->taken < limit || continued) &&
	       (r = records_next(file, &record, err)) > 0) {
		int64_t times = continued ? 1 : draws(b, s, group->index, counts[s->group]);

		for (; times > 0 && (limit == 0 || group->taken < limit || continued); times--) {
			struct encoded_record *w = &b->batch.items[b->batch.count++];

			if (!continued && b->held_count)
				held = sampler_permute(&b->split, -1, b->index) < b->held_count;
			*w = (struct encoded_record){.record = record,
			                             .source = s,
			                             .file = file,
			                             .continued = continued,
			                             .held_out = held,
			                             .ids = w->ids,
			                             .labels = w->labels,
			                             .prompt = w->prompt,
			                             .answer = w->answer,
			                             .rejected = w->rejected};
			if (!record.more) {
				group->taken++;
				b->index++;
			}
			if (b->batch.count < BATCH)
				continue;
			r = flush_batch(b, false, err);
			if (r < 0)
				return r;
			report(b, b->bytes_done + records_consumed(file));
		}
		group->index += !record.more;
		continued = record.more;
	}
	b->bytes_done += records_consumed(file);
	return MIN(r, 0);
}

/* Finds out what is needed before the first record: formats, sizes, and counts where something is drawn at
 * random. */
static int prepare(struct builder *b, struct source_list *list, int64_t *counts, struct error *err)
{
	bool draw = b->held_out != NULL;
	int64_t total = 0;
	int r = 0;

	for (size_t i = 0; r == 0 && i < list->count; i++) {
		struct source *s = &list->items[i];
		struct file_map map = {"", 0};

		r = file_map_open(s->path, &map, err);
		b->bytes_total += map.len;
		file_map_close(&map);
		if (r == 0)
			r = dataset_detect_file(s, b->options->task, err);
		if (!b->options->margins)
			s->columns.margin = NULL;
		draw = draw || s->num_samples >= 0;
	}
	if (r < 0 || !draw)
		return r;
	r = count_documents(list, counts, err);
	for (size_t i = 0; r == 0 && i < list->count; i++) {
		const struct source *s = &list->items[i];
		int64_t n = s->num_samples >= 0 ? s->num_samples : counts[s->group];

		if (i && s->group == list->items[i - 1].group)
			continue;
		total += b->options->max_samples ? MIN(n, b->options->max_samples) : n;
	}
	if (r < 0 || !b->held_out)
		return r;
	b->held_count = b->options->eval_fraction > 1 ? (int64_t)b->options->eval_fraction
	                                              : (int64_t)ceil(b->options->eval_fraction * total);
	b->split = (struct sampler){.rows = total, .seed = b->options->seed, .shuffle = true};
	if (b->held_count >= total)
		return error_set(
		    err, -EINVAL,
		    "data.eval_fraction holds out all of the %lld examples there are; none is left to "
		    "train on",
		    (long long)total);
	return 0;
}

int dataset_build(const struct dataset_options *options, struct source_list *list,
                  const struct tokenizer *tok, const struct template *template, struct cache_writer *train,
                  struct cache_writer *held_out, struct error *err)
{
	struct builder b = {.options = options, .train = train, .held_out = held_out};
	_cleanup_free_ int64_t *counts = calloc(list->groups + 1, sizeof(*counts));
	_cleanup_free_ struct group_state *groups = calloc(list->groups + 1, sizeof(*groups));
	int r;

	if (!counts || !groups)
		return error_oom(err);
	b.batch.items = calloc(BATCH, sizeof(*b.batch.items));
	if (!b.batch.items)
		return error_oom(err);
	r = record_encoder_init(&b.encoder, options, tok, template, err);
	if (r == 0)
		r = prepare(&b, list, counts, err);
	report(&b, 0);
	for (size_t i = 0; r == 0 && i < list->count; i++)
		r = add_file(&b, &list->items[i], counts, &groups[list->items[i].group], err);
	if (r == 0)
		r = flush_batch(&b, true, err);
	if (r == 0)
		report(&b, b.bytes_total);
	if (r == 0 && b.skipped > WARNINGS_MAX) {
		_cleanup_free_ char *message =
		    str_printf("skipped: %lld examples in all could not be used", (long long)b.skipped);

		warn(&b, message ? message : "");
	}
	if (r == 0 && cache_writer_rows(train) == 0)
		r = error_set(err, -EINVAL, "%s%s: no usable example (%lld skipped)", list->items[0].path,
		              list->count > 1 ? " and the other files" : "", (long long)b.skipped);
	batch_free(&b.batch);
	rows_rest_clear(&b.train_rest);
	rows_rest_clear(&b.held_out_rest);
	record_encoder_clear(&b.encoder);
	return r;
}
