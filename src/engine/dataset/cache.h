/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of tokenized rows: written once, then mapped by every rank of a node. Header, rows one after the
 * other, index at the end. A file is believed only where magic, version, key, size and the index's checksum
 * agree; anything else is built anew.
 *
 * row: int32 ids[length], targets[length], starts[documents + 1].
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "engine/tokenizer/tokenizer.h"

struct cache_key {
	uint64_t word[2];
};

/* A running 128-bit hash, which tells keys apart but resists no attacker. */
void cache_key_init(struct cache_key *key);
void cache_key_add(struct cache_key *key, const void *data, size_t len);

struct cache_row {
	uint64_t offset; /* of the row, from the start of the file */
	int32_t length, documents, counted, label;
};

struct cache {
	struct file_map map;
	const struct cache_row *rows;
	int64_t count, tokens, examples;
	int64_t cut_examples, cut_tokens; /* as cache_writer_cut has counted them */
	int32_t max_row;
};

/* -ENOENT: no such file; -EBADMSG: not a whole cache of this key. */
int cache_open(const char *path, const struct cache_key *key, struct cache *out, struct error *err);
/* The checks of cache_open over memory that stays with the caller (out->map is left empty). */
int cache_check(const void *data, size_t len, const struct cache_key *key, struct cache *out,
                struct error *err);
void cache_close(struct cache *c);
/* Of all rows and their order, read anew from the file. */
uint64_t cache_digest(const struct cache *c);

struct cache_writer;
/* Writes to path.tmp; cache_writer_finish syncs it and renames it to path. alone: the caller holds a lock, so
 * that no other process writes to path; without, the temporary file has the name of host and process, too. */
int cache_writer_open(const char *path, const struct cache_key *key, bool alone, struct cache_writer **out,
                      struct error *err);
/* Adds a row of `documents` documents that begin at starts (0 first). labels are unshifted; targets are made
 * of them: across the documents only where `cross`, and then they count as one. `examples`: how many the row
 * stands for. */
int cache_writer_add(struct cache_writer *w, const int32_t *ids, const int32_t *labels, int32_t length,
                     const int32_t *starts, int32_t documents, bool cross, struct error *err);
void cache_writer_label(struct cache_writer *w, int32_t label);       /* of the row added last */
void cache_writer_margin(struct cache_writer *w, float margin);       /* likewise, in place of a label */
void cache_writer_examples(struct cache_writer *w, int64_t examples); /* adds to their count */
/* An example was cut, by so many tokens; 0: it is not known how many. */
void cache_writer_cut(struct cache_writer *w, int64_t tokens);
int64_t cache_writer_rows(const struct cache_writer *w);
int cache_writer_finish(struct cache_writer *w, struct error *err);
void cache_writer_free(struct cache_writer *w); /* unfinished: the temporary file goes */
DEFINE_CLEANUP(struct cache_writer *, cache_writer_free)
