/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From raw files to rows of tokens: readers, templates, masking, truncation and packing (the rules of
 * LLaMA-Factory), tokenized once into a cache that all ranks of a node map. Rows never change: what an epoch
 * sees is decided by the sampler alone.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/tokenizer/tokenizer.h"

/* A row of prompts has a prompt and the answer that the data has for it, if any, whose targets alone count:
 * its bytes as they are, one in the place of each id. It is a prompt alone that max_length is for.
 * A row of pairs has two documents: the prompt with the chosen answer, and the prompt with the rejected one.
 * A row of labels has the prompt with its answer, which the row's label says to be good (1) or not (0), and
 * the prompt with the answer to another one. */
enum dataset_task { DATASET_PRETRAIN, DATASET_SFT, DATASET_PAIRS, DATASET_LABELS, DATASET_PROMPTS };

/* Strings are borrowed for the call. NULL and 0 mean the default that is named with each. Messages of errors
 * name files and lines. */
struct dataset_options {
	enum dataset_task task;
	const char *const *paths; /* NULL-terminated: files or directories */
	/* Holds dataset_info.json; NULL: beside the paths, where there is one. */
	const char *dataset_dir;
	const char *const *datasets; /* NULL-terminated names in dataset_info.json; instead of paths */
	/* auto | text (a document a line) | paragraphs (documents between blank lines) | files (a document a
	 * file) | jsonl (column "text") | alpaca | sharegpt | openai | trl (prompt, chosen and rejected, or
	 * prompt, completion and label). auto: by a file's first record; *.txt is text. */
	const char *format;
	/* {"prompt":"instruction",…}, as dataset_info.json's columns; NULL: the format's. */
	const char *columns_json;
	const char *tags_json; /* {"role_tag":"from",…} */
	/* NULL: the tokenizer's own where it is a known one, else "default"; pretraining needs none. */
	const char *template_name;
	const char *system; /* default system prompt; NULL: the template's */
	/* A file with the text that describes tools to the model, {{tools}} where their list goes; NULL: the
	 * template's words. */
	const char *tool_prompt;
	int max_length; /* tokens of a row at most (LLaMA-Factory's cutoff_len) */
	bool packing;
	/* Packed documents see each other, and positions run on over the row; by default neither. (Those of
	 * LLaMA-Factory without neat_packing see each other, but the positions of each begin at 0.) */
	bool cross_documents;
	bool train_on_prompt, mask_history, efficient_eos;
	/* The column margin of pairs is read, whatever their format; else it may hold anything. */
	bool margins;
	/* Of prompts: NULL-terminated names of columns that the answer of a row has with it: it is then JSON
	 * text, {"answer": text or null, "columns": {name: value or null, …}}. */
	const char *const *kept_columns;
	int64_t max_samples; /* first N examples of each file or dataset; 0: all */
	/* Up to 1, the share of the examples that goes into the held-out evaluation split; above 1, their
	 * number. The seed chooses them. */
	double eval_fraction;
	uint64_t seed;
	/* Where the tokenized rows are kept, keyed by a hash of all of the above and the files; NULL:
	 * nowhere, they go with the dataset. */
	const char *cache_dir;
	/* "tokenizing", done and total in bytes, first with done = 0; or what it waits for, with
	 * total = 0. */
	void (*progress)(void *context, const char *what, int64_t done, int64_t total);
	void *progress_context;
	/* "skipped: x.json:12: REASON", at most a few of them and a count. */
	void (*warn)(void *context, const char *message);
	void *warn_context;
};

struct dataset; /* one split: mapped, read-only, shared by threads */

/* Makes or finds the cache, and opens it. *eval is NULL where nothing is held out. Several processes may
 * call this for the same cache at once: one builds (file lock), the others wait; on a file
 * system without locks each builds. Errors: unreadable file,
 * unknown format, a missing column (file:line and the columns that are there), no usable example. */
int dataset_open(const struct dataset_options *options, const struct tokenizer *tok, struct dataset **train,
                 struct dataset **eval, struct error *err);
void dataset_close(struct dataset *data);
DEFINE_CLEANUP(struct dataset *, dataset_close)

int64_t dataset_rows(const struct dataset *data);
int64_t dataset_tokens(const struct dataset *data);
int64_t dataset_examples(const struct dataset *data); /* before packing */
/* Examples that are longer than max_length has room for, and how many of their tokens were left out: 0 for
 * documents, whose rest is not tokenized. */
int64_t dataset_cut_examples(const struct dataset *data);
int64_t dataset_cut_tokens(const struct dataset *data);
int32_t dataset_max_row(const struct dataset *data);  /* longest row */
const char *dataset_path(const struct dataset *data); /* the file of the rows in the cache */
uint64_t dataset_digest(const struct dataset *data);  /* of all rows and their order; reads all of them */

/* A row: ids[length]; targets[t] is the id to be predicted after ids[t], already shifted, -100 where it does
 * not count (prompts, the end of a document). documents: starts[documents + 1], 0 first, length last;
 * attention stays within a document and positions restart at each. */
struct dataset_row {
	const int32_t *ids, *targets, *starts;
	int32_t length, documents;
	int64_t counted; /* targets that are not -100 */
	int32_t label;   /* of DATASET_LABELS */
	/* of DATASET_PAIRS: by how much the chosen answer is better; 0: not said, or not read */
	float margin;
};
void dataset_row(const struct dataset *data, int64_t index, struct dataset_row *row);
/* The memory of the process has none of the rows afterwards; they are read again, mostly from the system's
 * cache. */
void dataset_release(const struct dataset *data);
int64_t dataset_row_counted(const struct dataset *data, int64_t index); /* without touching the row itself */
