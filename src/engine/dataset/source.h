/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where examples come from: paths and names of dataset_info.json resolved to a list of files, each with its
 * format and the names of its columns and tags (LLaMA-Factory's rules).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/dataset/dataset.h"

enum source_format {
	FORMAT_AUTO,
	FORMAT_TEXT,       /* a document a line */
	FORMAT_PARAGRAPHS, /* documents between blank lines */
	FORMAT_FILES,      /* a document a file */
	FORMAT_JSONL,      /* JSON records with the column "text" */
	FORMAT_ALPACA,
	FORMAT_SHAREGPT,
	FORMAT_OPENAI,
	FORMAT_TRL, /* preferences, as texts or as lists of OpenAI's messages */
};

/* Names of columns; NULL: there is no such column. `given`: named by the user, so that it has to be there. */
struct source_columns {
	bool given;
	const char *prompt, *query, *response, *history, *messages, *system, *tools;
	const char *chosen, *rejected, *margin; /* of pairs */
	const char *label;                      /* of labels */
};

struct source_tags {
	bool given;
	const char *role, *content, *user, *assistant, *observation, *function, *system;
};

struct source {
	char *path;
	enum source_format format;
	struct source_columns columns;
	struct source_tags tags;
	const char *const *kept; /* dataset_options.kept_columns, borrowed; NULL: none */
	int64_t num_samples;     /* of the whole group; -1: all, each once */
	int group;               /* files of one dataset or directory share it */
};

struct source_list {
	struct source *items;
	size_t count, cap;
	int groups;
	json_t *keep; /* owns the strings of columns and tags */
};

/* list: to be freed where it does not fail. */
int source_list_resolve(const struct dataset_options *options, struct source_list *list, struct error *err);
void source_list_free(struct source_list *list);
const char *source_format_name(enum source_format format);

/* Text of a dataset_info.json: adds the files of dataset `name`, relative to `dir`. For the fuzz target. */
int source_list_add_info(struct source_list *list, const char *text, size_t len, const char *where,
                         const char *dir, const char *name, enum dataset_task task, struct error *err);
