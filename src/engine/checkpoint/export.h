/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a model, or an adapter, as a new Hugging Face directory: another number format, other file sizes, an
 * adapter merged into it. Tensors are streamed: the memory needed is that of the largest adapter matrices and
 * some MiB, whatever the size of the model. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/device/dtype.h"

struct export_options {
	const char *model;   /* a Hugging Face directory, a checkpoint, or an adapter */
	const char *adapter; /* merged into the model; NULL: none */
	const char *output;
	/* Directory of the tokenizer; NULL: the adapter's where it has one, else the model's. */
	const char *tokenizer;
	bool convert; /* to `type`; else each tensor keeps its own */
	enum dtype type;
	uint64_t max_shard_bytes; /* 0: as safetensors_write; an adapter is always one file */
	bool overwrite;           /* an output directory that holds a model or an adapter is replaced */
	void (*progress)(void *context, uint64_t done, uint64_t total); /* bytes written; may be NULL */
	void *context;
};

struct export_result {
	uint64_t bytes;
	size_t tensors, merged; /* merged: modules whose adapter is in their weights now */
	bool untied;            /* the output layer has a weight of its own now */
};

/* The directory appears under its name when it is complete and synced; until then it is ".NAME.partial" in
 * the same place, which a later export to the same output replaces. -EBUSY where another process is writing
 * it, -EEXIST where the output exists. */
int export_run(const struct export_options *options, struct export_result *result, struct error *err);
