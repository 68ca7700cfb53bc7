/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint consists of, so that a file that is missing or was changed is noticed. Each rank lists
 * what it wrote in dtrain/rank-R-of-W.json; dtrain/index.json, which rank 0 writes last, names for each rank
 * the size and hash of that list, and the node that the files lie on; its own hash is in it, too.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define MANIFEST_INDEX "dtrain/index.json"

/* A run of bytes of a file. */
struct manifest_part {
	const char *name; /* the tensor, "header", or "" for a whole file */
	uint64_t offset, bytes, hash;
};

struct manifest_file {
	const char *name; /* in the checkpoint's directory */
	uint64_t bytes;
	struct manifest_part *parts;
	size_t n;
};

struct manifest {
	struct manifest_file *files;
	size_t n;
	json_t *owner; /* of the names, where they were parsed */
};

struct manifest_rank {
	const char *node;
	uint64_t bytes, hash; /* of its list; 0, 0: it wrote nothing */
};

struct manifest_index {
	struct manifest_rank *ranks;
	int world_size;
	json_t *owner;
};

/* The hash of a part is that of its pieces of so many bytes, each with the one before as its seed. */
#define MANIFEST_PIECE ((size_t)4 << 20)
uint64_t manifest_hash(const void *data, size_t bytes);

/* Owned by the caller; NULL: out of memory. */
char *manifest_text(const struct manifest *m);
char *manifest_index_text(const struct manifest_index *index);
/* -EBADMSG where the text is not what these functions make; `where` names it. Names stay inside of the
 * checkpoint, parts inside of their files. */
int manifest_parse(const char *text, size_t len, const char *where, struct manifest *out, struct error *err);
int manifest_index_parse(const char *text, size_t len, const char *where, struct manifest_index *out,
                         struct error *err);
/* After parsing, also where it failed; {0} too. */
void manifest_free(struct manifest *m);
void manifest_index_free(struct manifest_index *index);

/* Compares the files below `directory` with the list: -EBADMSG naming file and tensor where one is missing,
 * has another size, or another content. */
int manifest_check(const struct manifest *m, const char *directory, struct error *err);
