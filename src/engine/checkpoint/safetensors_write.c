/* SPDX-License-Identifier: Apache-2.0 */
/* Lays tensors out in safetensors files, as many as the largest size asks for, with an index, and writes
 * them. */
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

/* The header of tensors [0, n), its length before it, padded with spaces so that the data start at a multiple
 * of 8; places[i].offset is where tensor i begins in the file. */
static int header_text(const struct tensor_source *tensors, size_t n, struct safetensors_output *out,
                       struct safetensors_place *places, struct error *err)
{
	_cleanup_json_ json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	_cleanup_free_ char *text = NULL;
	_cleanup_strbuf_ struct strbuf b = {0};
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
		places[i].offset = at;
		at += bytes;
	}
	text = json_to_string(header);
	if (!text)
		return error_oom(err);
	strbuf_add(&b, "01234567", 8); /* the length */
	strbuf_adds(&b, text);
	while (b.len % 8 && !b.failed)
		strbuf_addc(&b, ' ');
	if (b.failed)
		return error_oom(err);
	for (int i = 0; i < 8; i++)
		b.data[i] = (char)((uint64_t)(b.len - 8) >> (8 * i));
	for (size_t i = 0; i < n; i++)
		places[i].offset += b.len;
	out->header_bytes = b.len;
	out->bytes = b.len + at;
	out->header = strbuf_steal(&b);
	return 0;
}

void safetensors_layout_free(struct safetensors_layout *l)
{
	for (size_t i = 0; l->files && i < l->n_files; i++) {
		free(l->files[i].name);
		free(l->files[i].header);
	}
	free(l->files);
	free(l->places);
	json_decref(l->index);
	*l = (struct safetensors_layout){0};
}

/* Adds the tensors of a layout to the map of an index. */
static int map_tensors(json_t *map, const struct tensor_source *tensors, size_t n,
                       const struct safetensors_layout *l, uint64_t *total, struct error *err)
{
	for (size_t i = 0; i < n; i++) {
		*total += source_bytes(&tensors[i]);
		if (json_object_set_new(map, tensors[i].name, json_string(l->files[l->places[i].file].name)) <
		    0)
			return error_oom(err);
	}
	return 0;
}

static int set_index(struct safetensors_layout *l, json_t *map, uint64_t total, struct error *err)
{
	json_decref(l->index);
	l->index =
	    json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
	return l->index ? 0 : error_oom(err);
}

static int make_index(const struct tensor_source *tensors, size_t n, struct safetensors_layout *l,
                      struct error *err)
{
	_cleanup_json_ json_t *map = json_object();
	uint64_t total = 0;
	int r = map ? map_tensors(map, tensors, n, l, &total, err) : error_oom(err);

	return r < 0 ? r : set_index(l, map, total, err);
}

int safetensors_layout_join(struct safetensors_layout *l, const struct tensor_source *first, size_t n_first,
                            struct safetensors_layout *added, const struct tensor_source *second,
                            size_t n_second, struct error *err)
{
	_cleanup_json_ json_t *map = json_object();
	struct safetensors_output *files;
	uint64_t total = 0;
	int r = map ? 0 : error_oom(err);

	if (r < 0 || (r = map_tensors(map, first, n_first, l, &total, err)) < 0 ||
	    (r = map_tensors(map, second, n_second, added, &total, err)) < 0 ||
	    (r = set_index(l, map, total, err)) < 0)
		return r;
	if (added->n_files == 0)
		return 0;
	files = realloc(l->files, (l->n_files + added->n_files) * sizeof(*files));
	if (!files)
		return error_oom(err);
	l->files = files;
	memcpy(files + l->n_files, added->files, added->n_files * sizeof(*files));
	for (size_t i = 0; i < n_second; i++)
		added->places[i].file += l->n_files;
	l->n_files += added->n_files;
	added->n_files = 0;
	return 0;
}

int safetensors_layout(const char *stem, const struct tensor_source *tensors, size_t n,
                       uint64_t max_shard_bytes, struct safetensors_layout *l, struct error *err)
{
	uint64_t max = max_shard_bytes ? max_shard_bytes : DEFAULT_SHARD;
	size_t shards = 0;
	int r;

	for (size_t i = 0; i < n; i = shard_end(tensors, n, i, max))
		shards++;
	l->n_files = MAX(shards, 1);
	l->files = calloc(l->n_files, sizeof(*l->files));
	l->places = calloc(n + 1, sizeof(*l->places));
	if (!l->files || !l->places)
		return error_oom(err);
	for (size_t k = 0, first = 0, end; k < l->n_files; k++, first = end) {
		struct safetensors_output *file = &l->files[k];

		end = n ? shard_end(tensors, n, first, max) : 0;
		file->name = l->n_files == 1
		                 ? str_printf("%s.safetensors", stem)
		                 : str_printf("%s-%05zu-of-%05zu.safetensors", stem, k + 1, l->n_files);
		if (!file->name)
			return error_oom(err);
		for (size_t i = first; i < end; i++)
			l->places[i].file = k;
		r = header_text(tensors + first, end - first, file, l->places + first, err);
		if (r < 0)
			return r;
	}
	return l->n_files > 1 ? make_index(tensors, n, l, err) : 0;
}

static int write_file(const char *path, const struct safetensors_output *file,
                      const struct tensor_source *tensors, size_t n, char *piece, struct error *err)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	int r;

	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	if (file_write_all(fd, file->header, file->header_bytes, err) < 0)
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

int safetensors_write_index(const char *directory, const char *stem, const struct safetensors_layout *l,
                            struct error *err)
{
	_cleanup_free_ char *path = str_printf("%s/%s.safetensors.index.json", directory, stem);

	if (!path)
		return error_oom(err);
	return l->index ? json_write_file(path, l->index, 2, true, err) : 0;
}

int safetensors_write(const char *directory, const char *stem, const struct tensor_source *tensors, size_t n,
                      uint64_t max_shard_bytes, struct error *err)
{
	_cleanup_(safetensors_layout_free) struct safetensors_layout l = {0};
	_cleanup_free_ char *piece = malloc(PIECE);
	int r = piece ? safetensors_layout(stem, tensors, n, max_shard_bytes, &l, err) : error_oom(err);

	for (size_t k = 0, first = 0, end; k < l.n_files && r == 0; k++, first = end) {
		_cleanup_free_ char *path = str_path_join(directory, l.files[k].name);

		for (end = first; end < n && l.places[end].file == k; end++)
			;
		r = path ? write_file(path, &l.files[k], tensors + first, end - first, piece, err)
		         : error_oom(err);
	}
	return r < 0 ? r : safetensors_write_index(directory, stem, &l, err);
}
