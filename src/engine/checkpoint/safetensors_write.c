/* SPDX-License-Identifier: Apache-2.0 */
/* Writes safetensors, in as many files as the largest size asks for, with an index. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/safetensors.h"

#define PIECE         (4u << 20)
#define DEFAULT_SHARD 5000000000ull

static uint64_t source_bytes(const struct tensor_source *t)
{
	uint64_t n = tensor_type_size(t->type);

	for (int d = 0; d < t->dims; d++)
		n *= t->shape[d];
	return n;
}

/* Where the shard that starts at `first` ends. */
static size_t shard_end(const struct tensor_source *t, size_t n, size_t first, uint64_t max)
{
	uint64_t bytes = 0;
	size_t i = first;

	do
		bytes += source_bytes(&t[i++]);
	while (i < n && bytes + source_bytes(&t[i]) <= max);
	return i;
}

/* The header of tensors [0, n), padded with spaces so that the data start at a multiple of 8. */
static int header_text(const struct tensor_source *tensors, size_t n, struct strbuf *b, struct error *err)
{
	_cleanup_json_ json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	_cleanup_free_ char *text = NULL;
	uint64_t at = 0;

	if (!header)
		return error_oom(err);
	for (size_t i = 0; i < n; i++) {
		const struct tensor_source *t = &tensors[i];
		uint64_t bytes = source_bytes(t);
		json_t *shape = json_array();

		for (int d = 0; d < t->dims; d++)
			json_array_append_new(shape, json_integer(t->shape[d]));
		if (json_object_get(header, t->name)) {
			json_decref(shape);
			return error_set(err, -EINVAL, "tensor %s would be written twice", t->name);
		}
		if (json_object_set_new(header, t->name,
		                        json_pack("{s:s, s:o, s:[I,I]}", "dtype", tensor_type_name(t->type),
		                                  "shape", shape, "data_offsets", (json_int_t)at,
		                                  (json_int_t)(at + bytes))) < 0)
			return error_oom(err);
		at += bytes;
	}
	text = json_to_string(header);
	if (!text)
		return error_oom(err);
	strbuf_adds(b, text);
	while (b->len % 8 && !b->failed)
		strbuf_addc(b, ' ');
	return b->failed ? error_oom(err) : 0;
}

static int write_file(const char *path, const struct tensor_source *tensors, size_t n, char *piece,
                      struct error *err)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	_cleanup_strbuf_ struct strbuf header = {0};
	unsigned char len[8];
	int r;

	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	r = header_text(tensors, n, &header, err);
	if (r < 0)
		return r;
	for (int i = 0; i < 8; i++)
		len[i] = (uint64_t)header.len >> (8 * i);
	if (file_write_all(fd, len, 8, err) < 0 || file_write_all(fd, header.data, header.len, err) < 0)
		return error_prefix(err, "%s", path);
	for (size_t i = 0; i < n; i++) {
		uint64_t bytes = source_bytes(&tensors[i]);

		for (uint64_t at = 0; at < bytes; at += PIECE) {
			size_t k = MIN(bytes - at, PIECE);

			r = tensors[i].fill(tensors[i].context, tensors[i].index, at, k, piece, err);
			if (r < 0)
				return r;
			if (file_write_all(fd, piece, k, err) < 0)
				return error_prefix(err, "%s", path);
		}
	}
	if (fsync(fd) < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	return 0;
}

int safetensors_write(const char *directory, const char *stem, const struct tensor_source *tensors, size_t n,
                      uint64_t max_shard_bytes, struct error *err)
{
	uint64_t max = max_shard_bytes ? max_shard_bytes : DEFAULT_SHARD, total = 0;
	_cleanup_json_ json_t *map = json_object(), *index = NULL;
	_cleanup_free_ char *piece = malloc(PIECE), *path = NULL, *name = NULL;
	size_t shards = 0;
	int r;

	if (!piece || !map)
		return error_oom(err);
	for (size_t i = 0; i < n; i = shard_end(tensors, n, i, max))
		shards++;
	if (shards <= 1) {
		path = str_printf("%s/%s.safetensors", directory, stem);
		return path ? write_file(path, tensors, n, piece, err) : error_oom(err);
	}
	for (size_t first = 0, k = 1; first < n; k++) {
		_cleanup_free_ char *file = str_printf("%s-%05zu-of-%05zu.safetensors", stem, k, shards);
		_cleanup_free_ char *full = str_path_join(directory, file);
		size_t end = shard_end(tensors, n, first, max);

		if (!file || !full)
			return error_oom(err);
		r = write_file(full, tensors + first, end - first, piece, err);
		if (r < 0)
			return r;
		for (; first < end; first++) {
			total += source_bytes(&tensors[first]);
			if (json_object_set_new(map, tensors[first].name, json_string(file)) < 0)
				return error_oom(err);
		}
	}
	index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
	path = str_printf("%s/%s.safetensors.index.json", directory, stem);
	return index && path ? json_write_file(path, index, 2, true, err) : error_oom(err);
}
