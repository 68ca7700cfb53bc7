/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank writes which part of a checkpoint. A rank writes what it holds; ranks that hold the same divide
 * it between them. Weights go to their places in the model's files, which all ranks write at once; master
 * weights and moments go to a file of this rank's own, dtrain/rank-R-of-W.safetensors, as flat pieces that
 * are named KIND.PARAMETER@FIRST: elements from FIRST on of a parameter, so that any number of ranks reads
 * them. Where the nodes have no directory in common, each rank's own file lies on its node, and rank 0 writes
 * the model, whose parts it gathers.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/checkpoint/parameters.h"
#include "engine/checkpoint/safetensors.h"

/* Elements: a part that is smaller than this for each of the ranks that hold it is written by one of them. */
#define SAVE_PLAN_WORTH_DIVIDING 16384

struct save_plan_options {
	int rank, world_size;
	/* Of each rank: whether it writes into the directory of rank 0. NULL: all do. */
	const bool *shares;
	bool gathers;             /* rank 0 writes everything; all ranks have its plan */
	bool gathers_model;       /* rank 0 writes the model, each rank its own state: shares is not asked */
	enum dtype type;          /* of the saved weights */
	bool state;               /* moments, too; else the model alone */
	bool master;              /* with state: fp32 master weights, too */
	uint64_t max_shard_bytes; /* of a file of weights; 0: 5 GB */
	/* On rank 0, of a multimodal model whose language model is saved: files with its other parts, which
	 * are saved beside it. Borrowed by the plan. */
	const struct safetensors *whole;
};

/* What this rank writes, in the order of files and offsets. */
struct save_piece {
	enum parameter_state which;
	const struct model_parameter *parameter;
	const struct tensor *other; /* of another part of the model, in place of a parameter */
	int64_t first, n;
	enum dtype type; /* of another part: where it was quantized */
	size_t file;
	uint64_t offset; /* in the file */
	size_t bytes;
	const char *name; /* of the tensor, as the file has it */
};

struct save_plan_file {
	char *name; /* in the checkpoint's directory */
	const char *header;
	size_t header_bytes; /* 0: another rank writes it */
	uint64_t bytes;
};

struct save_plan {
	int rank, world_size; /* that writes it */
	bool state, gathers;
	struct save_plan_file *files;
	size_t n_files;
	struct save_piece *pieces;
	size_t n;
	/* The first so many pieces are in files of rank 0, which reads them by access->gather; all ranks have
	 * the same of them. */
	size_t gathered;
	bool writes_gathered; /* this is rank 0 */
	size_t bytes;         /* of the other pieces that are of parameters */
	/* Behind them. */
	struct safetensors_layout model, own;
	char **names;
	size_t n_names;
};

/* Whether what is saved is a part of a multimodal model: options->whole is then needed on rank 0. */
bool save_plan_needs_whole(const struct parameter_access *access);
int save_plan_create(const struct parameter_access *access, const struct save_plan_options *options,
                     struct save_plan **out, struct error *err);
void save_plan_free(struct save_plan *plan);
DEFINE_CLEANUP(struct save_plan *, save_plan_free)

/* So many consecutive ranks hold all parameters together. */
int save_plan_degree(const struct parameter_access *access, int world_size);
/* "m", "v", "master" */
const char *save_plan_kind(enum parameter_state which);
/* "dtrain/rank-00001-of-00004", without an ending: owned by the caller; NULL: out of memory. */
char *save_plan_stem(int rank, int world_size);
