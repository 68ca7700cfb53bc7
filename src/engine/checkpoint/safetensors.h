/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors files and sharded sets of them (model.safetensors.index.json): mapped for reading, streamed for
 * writing. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/device/dtype.h"

enum tensor_type {
	TENSOR_F64,
	TENSOR_F32,
	TENSOR_F16,
	TENSOR_BF16,
	TENSOR_I64,
	TENSOR_I32,
	TENSOR_I16,
	TENSOR_I8,
	TENSOR_U8,
	TENSOR_BOOL,
	TENSOR_NF4 /* in no file: what nf4_tensors.h makes of several tensors */
};
size_t tensor_type_size(enum tensor_type type);      /* of TENSOR_NF4: 0 */
const char *tensor_type_name(enum tensor_type type); /* "BF16" */

#define TENSOR_MAX_DIMS 8
/* Of a name that a parameter of a model has in any file, with the NUL. */
#define TENSOR_NAME_SIZE 160

struct tensor {
	const char *name;
	enum tensor_type type;
	int dims;
	int64_t shape[TENSOR_MAX_DIMS];
	const void *data; /* little-endian, may be unaligned; of TENSOR_NF4: the codes */
	size_t bytes;
	const struct tensor_nf4 *nf4; /* of TENSOR_NF4 */
};

struct safetensors;

/* path: one file, an index.json, or a directory with model.safetensors or its index. Every statement of the
 * header is checked: length, types, shapes against offsets, no holes, no overlaps, the file's end. Weights in
 * bitsandbytes' NF4 become one tensor each (nf4_tensors.h). */
int safetensors_open(const char *path, struct safetensors **out, struct error *err);
/* From memory; what the fuzz target calls. */
int safetensors_parse(const void *data, size_t len, const char *where, struct safetensors **out,
                      struct error *err);
void safetensors_close(struct safetensors *st);
DEFINE_CLEANUP(struct safetensors *, safetensors_close)

/* The file that holds a tensor of the set; "" where it was parsed from memory. */
const char *safetensors_file(const struct safetensors *st, const struct tensor *t);
/* Elements [first, first + n), which the tensor has, are not needed for now: their memory is given back, and
 * they are read from the file again where they are used after all. */
void safetensors_release(const struct safetensors *st, const struct tensor *t, int64_t first, int64_t n);
size_t safetensors_count(const struct safetensors *st);
const struct tensor *safetensors_at(const struct safetensors *st, size_t i); /* by name order within a file */
const struct tensor *safetensors_find(const struct safetensors *st, const char *name); /* NULL: none */
int64_t tensor_elements(const struct tensor *t);
/* "[512, 64]": into buf, returned. */
const char *tensor_shape_text(char *buf, size_t size, int dims, const int64_t *shape);
/* Converts elements [first, first + n) of t to fp32 (bf16, f16, f32, f64, nf4; others: -EINVAL). */
int tensor_to_f32(const struct tensor *t, int64_t first, int64_t n, float *out, struct error *err);
/* The same of the transpose of a matrix in NF4. */
int tensor_turned_to_f32(const struct tensor *t, int64_t first, int64_t n, float *out, struct error *err);
/* The same to any dtype of the engine; equal types are copied bit by bit. */
int tensor_convert(const struct tensor *t, int64_t first, int64_t n, enum dtype type, void *out,
                   struct error *err);
enum tensor_type tensor_type_of(enum dtype type);

/* Writes `directory`/model.safetensors, or shards with an index where it would exceed max_shard_bytes (0: 5
 * GB). The files have the __metadata__ {"format":"pt"}. fill is called in file order to produce each tensor's
 * bytes in pieces, so that no second copy of the model is needed. Files are synced; the caller renames the
 * directory. */
struct tensor_source {
	const char *name;
	enum tensor_type type;
	int dims;
	int64_t shape[TENSOR_MAX_DIMS];
	/* Bytes [offset, offset + len) of the tensor into buf; offset and len are whole elements. */
	int (*fill)(void *context, size_t index, size_t offset, size_t len, void *buf, struct error *err);
	void *context;
	size_t index; /* handed to fill */
};

/* Which files these are, and where each tensor lies in them. */
struct safetensors_layout {
	struct safetensors_output {
		char *name;
		char *header; /* the first header_bytes of the file */
		size_t header_bytes;
		uint64_t bytes; /* of the whole file */
	} * files;
	struct safetensors_place {
		size_t file;
		uint64_t offset; /* from the start of the file */
	} * places;              /* of each tensor */
	size_t n_files;
	json_t *index; /* NULL: one file needs none */
};
int safetensors_layout(const char *stem, const struct tensor_source *tensors, size_t n,
                       uint64_t max_shard_bytes, struct safetensors_layout *out, struct error *err);
/* Moves the files of another layout behind those of l, whose tensors are `first`, and makes an index of all.
 * `added` keeps its places, which name the files of l then. */
int safetensors_layout_join(struct safetensors_layout *l, const struct tensor_source *first, size_t n_first,
                            struct safetensors_layout *added, const struct tensor_source *second,
                            size_t n_second, struct error *err);
void safetensors_layout_free(struct safetensors_layout *l); /* {0}, and after a failure, too */
/* Writes the index, where there is one. */
int safetensors_write_index(const char *directory, const char *stem, const struct safetensors_layout *l,
                            struct error *err);
int safetensors_write(const char *directory, const char *stem, const struct tensor_source *tensors, size_t n,
                      uint64_t max_shard_bytes, struct error *err);
