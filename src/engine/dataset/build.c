/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizes the records of all files, packs them into rows, and writes the rows of both splits. */
#include "engine/dataset/build.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/chat/encode.h"
#include "engine/dataset/convert.h"
#include "engine/dataset/detect.h"
#include "engine/dataset/pack.h"
#include "engine/dataset/reader.h"
#include "engine/dataset/sampler.h"

/* LLaMA-Factory packs within batches of this many records; so do we, and the rows are the same. */
#define BATCH        1000
#define WARNINGS_MAX 3

/* One record of a batch, and what becomes of it. */
struct work {
	struct record record;
	const struct source *source;
	const struct records *file;
	bool continued; /* goes on with the document of the record before */
	bool held_out;  /* belongs to the evaluation split */
	struct token_list ids, labels;
	/* Of a preference: the parts that its rows are made of. */
	struct token_list prompt, answer, rejected;
	bool desirable;
	float margin;
	int32_t second; /* where the second document begins */
	int result;     /* 0, or the negative errno of err */
	struct error err;
};

struct batch {
	struct work *items;
	size_t count;
	/* Files whose records are in the batch stay open until it is done. */
	struct records **open;
	size_t open_count, open_cap;
};

struct builder {
	const struct dataset_options *options;
	const struct tokenizer *tok;
	struct encoder encoder;
	int32_t pretrain_eos, bos; /* bos -1: none is put in front */
	struct cache_writer *train, *held_out;
	struct batch batch;
	struct sampler split; /* its permutation chooses what is held out */
	int64_t held_count;   /* how many examples are */
	int64_t index;        /* of the next record, over all files */
	int64_t bytes_done, bytes_total;
	int64_t skipped, used;
};

static void batch_free(struct batch *b)
{
	for (size_t i = 0; b->items && i < BATCH; i++) {
		token_list_free(&b->items[i].ids);
		token_list_free(&b->items[i].labels);
		token_list_free(&b->items[i].prompt);
		token_list_free(&b->items[i].answer);
		token_list_free(&b->items[i].rejected);
	}
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

/* --- one record
 * ------------------------------------------------------------------------------------------ */

static int encode_document(const struct builder *b, struct work *w, const struct example *e)
{
	bool packing = b->options->packing;
	struct text t = e->turns[0].content;
	int r = 0;

	if (w->continued && !packing) /* cut off */
		return 0;
	if (t.len == 0)
		return error_set(&w->err, -EBADMSG, "%s:%lld: the text is empty", records_where(w->file),
		                 (long long)w->record.line);
	if (!packing && b->bos >= 0 && token_list_add(&w->ids, &b->bos, 1) < 0)
		return error_oom(&w->err);
	r = tokenizer_encode(b->tok, t.data, t.len, false, &w->ids, &w->err);
	if (r < 0)
		return r;
	if (!w->record.more && token_list_add(&w->ids, &b->pretrain_eos, 1) < 0)
		return error_oom(&w->err);
	if (!packing && w->ids.len > (size_t)b->options->max_length)
		w->ids.len = b->options->max_length;
	return 0;
}

static bool is_preference(const struct builder *b)
{
	return b->options->task == DATASET_PAIRS || b->options->task == DATASET_LABELS;
}

/* Adds the prompt and an answer to the row of w, with the labels of the answer. */
static int add_document(struct work *w, const struct token_list *answer, int prompt_kept, int answer_kept)
{
	const int32_t ignore = LABEL_IGNORE;
	size_t kept = MIN((size_t)answer_kept, answer->len);

	if (token_list_add(&w->ids, w->prompt.ids, prompt_kept) < 0 ||
	    token_list_add(&w->ids, answer->ids, kept) < 0)
		return -ENOMEM;
	for (int i = 0; i < prompt_kept; i++)
		if (token_list_add(&w->labels, &ignore, 1) < 0)
			return -ENOMEM;
	return token_list_add(&w->labels, answer->ids, kept);
}

/* The prompt and the answers of a preference; a pair gets its row, too. One cut for both answers, by the
 * longer of them, as LLaMA-Factory does. */
static int encode_preference(const struct builder *b, struct work *w, const struct example *e)
{
	bool pair = b->options->task == DATASET_PAIRS;
	int prompt, answer, r;

	w->desirable = e->desirable;
	w->margin = e->margin;
	r = encoder_answers(&b->encoder, e, &w->prompt, &w->answer, pair ? &w->rejected : NULL, &w->err);
	if (r < 0)
		return r;
	if (w->prompt.len == 0 || w->answer.len == 0 || (pair && w->rejected.len == 0))
		return error_set(&w->err, -EBADMSG, "the prompt or an answer is empty");
	if (!pair)
		return 0;
	encoder_budget(w->prompt.len, MAX(w->answer.len, w->rejected.len), b->encoder.cutoff, &prompt,
	               &answer);
	if (prompt == 0 || answer == 0)
		return error_set(&w->err, -EBADMSG,
		                 "data.max_length leaves nothing of the prompt or answers");
	if (add_document(w, &w->answer, prompt, answer) < 0)
		return error_oom(&w->err);
	w->second = w->ids.len;
	return add_document(w, &w->rejected, prompt, answer) < 0 ? error_oom(&w->err) : 0;
}

/* The row of an answer that has a label: the prompt with it, then the prompt with the answer to another. */
static int make_labeled(const struct builder *b, struct work *w, const struct token_list *other)
{
	const struct token_list *answers[] = {&w->answer, other};
	int r = 0;

	for (int i = 0; r == 0 && i < 2; i++) {
		int prompt, answer;

		w->second = w->ids.len;
		encoder_budget(w->prompt.len, answers[i]->len, b->encoder.cutoff, &prompt, &answer);
		r = add_document(w, answers[i], MAX(prompt, 1), MAX(answer, 1));
	}
	return r;
}

static void process_record(const struct builder *b, struct work *w)
{
	struct example e = {0};
	char where[512];

	w->ids.len = w->labels.len = w->prompt.len = w->answer.len = w->rejected.len = 0;
	snprintf(where, sizeof(where), "%s:%lld", records_where(w->file), (long long)w->record.line);
	w->result =
	    example_convert(w->source, b->options->task, w->record.data, w->record.len, where, &e, &w->err);
	if (w->result == 0 && b->options->task == DATASET_PRETRAIN) {
		w->result = encode_document(b, w, &e);
	} else if (w->result == 0) {
		w->result = is_preference(b)
		                ? encode_preference(b, w, &e)
		                : encoder_conversation(&b->encoder, &e, &w->ids, &w->labels, &w->err);
		if (w->result == -EBADMSG)
			error_prefix(&w->err, "%s", where);
	}
	example_clear(&e);
}

/* --- rows of a batch
 * ------------------------------------------------------------------------------------- */

static int write_packed(struct builder *b, struct cache_writer *out, struct work **items, size_t count,
                        struct error *err)
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
	rows = pack_knapsack(lengths, count, b->encoder.cutoff, order, ends);
	if (rows < 0)
		return error_oom(err);
	for (int64_t row = 0; r == 0 && row < rows; row++) {
		size_t from = row ? ends[row - 1] : 0;

		ids.len = labels.len = 0;
		for (size_t k = from; r == 0 && k < ends[row]; k++) {
			const struct work *w = items[order[k]];

			starts[k - from] = ids.len;
			if (token_list_add(&ids, w->ids.ids, w->ids.len) < 0 ||
			    token_list_add(&labels, w->labels.ids, w->labels.len) < 0)
				r = error_oom(err);
		}
		starts[ends[row] - from] = ids.len;
		if (r == 0)
			r = cache_writer_add(out, ids.ids, labels.ids, ids.len, starts, ends[row] - from,
			                     b->options->cross_documents, err);
	}
	token_list_free(&ids);
	token_list_free(&labels);
	return r;
}

/* Texts one after the other, cut into blocks; what is left over at the batch's end is dropped. */
static int write_blocks(struct builder *b, struct cache_writer *out, struct work **items, size_t count,
                        bool last, struct error *err)
{
	size_t block = b->options->max_length, total = 0, n = 0, blocks;
	_cleanup_free_ int32_t *bounds = NULL, *starts = malloc((block + 1) * sizeof(*starts));
	struct token_list all = {0};
	int r = 0;

	for (size_t i = 0; i < count; i++)
		total += items[i]->ids.len;
	bounds = malloc((count + 1) * sizeof(*bounds));
	if (!bounds || !starts || total > INT32_MAX)
		return error_oom(err);
	for (size_t i = 0, documents = 0; i < count; i++) {
		if (i == 0 || !items[i - 1]->record.more)
			bounds[documents++] = all.len;
		if (token_list_add(&all, items[i]->ids.ids, items[i]->ids.len) < 0) {
			r = error_oom(err);
			break;
		}
		bounds[documents] = total; /* a bound behind the last document */
	}
	blocks = total / block;
	if (blocks == 0 && last && cache_writer_rows(out) == 0 && total > 0)
		blocks = 1;
	for (size_t k = 0; r == 0 && k < blocks; k++) {
		size_t from = k * block, to = MIN(from + block, total);
		int32_t documents = 0;

		starts[documents++] = 0;
		while (n < count && (size_t)bounds[n] <= from && (size_t)bounds[n] < total)
			n++;
		while (n < count && (size_t)bounds[n] < to && (size_t)bounds[n] < total)
			starts[documents++] = bounds[n++] - from;
		starts[documents] = to - from;
		if (b->bos >= 0)
			all.ids[from] = b->bos;
		r = cache_writer_add(out, all.ids + from, all.ids + from, to - from, starts, documents,
		                     b->options->cross_documents, err);
	}
	token_list_free(&all);
	return r;
}

/* Each answer that has a label goes with that of the example before it, the first of a batch with the last:
 * what the KL divergence is estimated from. */
static int write_preferences(struct builder *b, struct cache_writer *out, struct work **items, size_t count,
                             struct error *err)
{
	bool labels = b->options->task == DATASET_LABELS;
	int r = 0;

	for (size_t i = 0; r == 0 && i < count; i++) {
		struct work *w = items[i];

		if (labels && make_labeled(b, w, &items[i ? i - 1 : count - 1]->answer) < 0)
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

static int write_split(struct builder *b, struct cache_writer *out, struct work **items, size_t count,
                       bool last, struct error *err)
{
	bool pretrain = b->options->task == DATASET_PRETRAIN;
	int r = 0;

	if (!out || count == 0)
		return 0;
	for (size_t i = 0; i < count; i++)
		cache_writer_examples(out, !items[i]->record.more);
	if (is_preference(b))
		return write_preferences(b, out, items, count, err);
	if (b->options->packing)
		return pretrain ? write_blocks(b, out, items, count, last, err)
		                : write_packed(b, out, items, count, err);
	for (size_t i = 0; r == 0 && i < count; i++) {
		const struct work *w = items[i];
		const int32_t starts[2] = {0, w->ids.len};

		r = cache_writer_add(out, w->ids.ids, pretrain ? w->ids.ids : w->labels.ids, w->ids.len,
		                     starts, 1, false, err);
	}
	return r;
}

/* Sorts the records of a batch into the two splits and counts what is skipped. */
static int collect(struct builder *b, struct work **parts[2], size_t counts[2], struct error *err)
{
	for (size_t i = 0; i < b->batch.count; i++) {
		struct work *w = &b->batch.items[i];
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
	_cleanup_free_ struct work **train = malloc(BATCH * sizeof(*train));
	_cleanup_free_ struct work **held_out = malloc(BATCH * sizeof(*held_out));
	struct work **parts[2] = {train, held_out};
	struct batch *batch = &b->batch;
	size_t counts[2] = {0};
	int r;

	if (!train || !held_out)
		return error_oom(err);
#pragma omp parallel for schedule(dynamic, 8)
	for (size_t i = 0; i < batch->count; i++)
		process_record(b, &batch->items[i]);

	r = collect(b, parts, counts, err);
	if (r == 0)
		r = write_split(b, b->train, train, counts[0], last, err);
	if (r == 0)
		r = write_split(b, b->held_out, held_out, counts[1], last, err);
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
			struct work *w = &b->batch.items[b->batch.count++];

			if (!continued && b->held_count)
				held = sampler_permute(&b->split, -1, b->index) < b->held_count;
			*w = (struct work){.record = record,
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

static int builder_init(struct builder *b, const struct template *template, struct error *err)
{
	const struct dataset_options *o = b->options;

	b->batch.items = calloc(BATCH, sizeof(*b->batch.items));
	if (!b->batch.items)
		return error_oom(err);
	if (o->task != DATASET_PRETRAIN && template->stop_words[0] &&
	    tokenizer_token_to_id(b->tok, template->stop_words[0]) < 0) {
		_cleanup_free_ char *message =
		    str_printf("template %s: the tokenizer has no token %s; it is written "
		               "as plain text",
		               template->name, template->stop_words[0]);

		warn(b, message ? message : "");
	}
	if (o->task != DATASET_PRETRAIN)
		return encoder_init(&b->encoder,
		                    &(struct encoder_options){
		                        .system = o->system,
		                        .cutoff = o->max_length - (o->packing ? 1 : 0),
		                        .train_on_prompt = o->train_on_prompt,
		                        .mask_history = o->mask_history,
		                        .efficient_eos = o->efficient_eos,
		                    },
		                    b->tok, template, err);
	b->pretrain_eos = template_eos(template, b->tok);
	if (template && str_eq(template->name, "llama3") &&
	    tokenizer_token_to_id(b->tok, "<|end_of_text|>") >= 0)
		b->pretrain_eos = tokenizer_token_to_id(b->tok, "<|end_of_text|>");
	b->bos = tokenizer_adds_bos(b->tok) ? tokenizer_bos(b->tok) : -1;
	if (b->pretrain_eos < 0)
		return error_set(
		    err, -EINVAL,
		    "the tokenizer has no end token (eos_token), which has to stand between texts");
	return 0;
}

int dataset_build(const struct dataset_options *options, struct source_list *list,
                  const struct tokenizer *tok, const struct template *template, struct cache_writer *train,
                  struct cache_writer *held_out, struct error *err)
{
	struct builder b = {.options = options, .tok = tok, .train = train, .held_out = held_out, .bos = -1};
	_cleanup_free_ int64_t *counts = calloc(list->groups + 1, sizeof(*counts));
	_cleanup_free_ struct group_state *groups = calloc(list->groups + 1, sizeof(*groups));
	int r;

	if (!counts || !groups)
		return error_oom(err);
	r = builder_init(&b, template, err);
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
	return r;
}
