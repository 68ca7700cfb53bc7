/* SPDX-License-Identifier: Apache-2.0 */
/* Reads safetensors, one file or a set with an index, and checks every statement of their headers. */
#include "engine/checkpoint/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/nf4_tensors.h"

#define HEADER_MAX 100000000 /* the format's own limit */
#define INDEX_MAX  (256u << 20)

struct shard {
	char *path;          /* NULL when parsed from memory */
	struct file_map map; /* empty when parsed from memory */
	json_t *header;      /* owns the names of its tensors */
	struct tensor *tensors;
	size_t n;
};

struct safetensors {
	struct shard *shards;
	size_t n_shards, n;
	const struct tensor **order; /* as safetensors_at gives them */
	const struct tensor **names; /* sorted by name, for safetensors_find */
	struct tensor_nf4 *nf4;      /* of the weights that are in NF4 */
};

const char *tensor_shape_text(char *buf, size_t size, int dims, const int64_t *shape)
{
	size_t n = 0;

	n += snprintf(buf, size, "[");
	for (int i = 0; i < dims && n < size; i++)
		n += snprintf(buf + n, size - n, "%s%" PRId64, i ? ", " : "", shape[i]);
	if (n < size)
		snprintf(buf + n, size - n, "]");
	return buf;
}

/* One tensor of the header; data_len is what follows the header in the file. */
static int parse_tensor(const char *where, const char *name, const json_t *entry, const char *data,
                        uint64_t data_len, struct tensor *t, struct error *err)
{
	const json_t *shape = json_object_get(entry, "shape"),
	             *offsets = json_object_get(entry, "data_offsets");
	const char *type = json_get_string(entry, "dtype", NULL);
	uint64_t elements = 1, size;
	int64_t begin, end;
	size_t i;

	if (!json_is_object(entry) || !type || !json_is_array(shape) || !json_is_array(offsets))
		return error_set(err, -EINVAL, "%s: tensor %s: dtype, shape and data_offsets are needed",
		                 where, name);
	for (i = 0; i < TENSOR_NF4 && !str_eq(tensor_type_name(i), type); i++)
		;
	if (i == TENSOR_NF4)
		return error_set(err, -EINVAL,
		                 "%s: tensor %s: type %.16s is not known; expected one of F32, BF16, F16",
		                 where, name, type);
	t->name = name;
	t->type = i;
	size = tensor_type_size(t->type);
	if (json_array_size(shape) > TENSOR_MAX_DIMS)
		return error_set(err, -EINVAL, "%s: tensor %s: %zu dimensions, at most %d are possible",
		                 where, name, json_array_size(shape), TENSOR_MAX_DIMS);
	t->dims = json_array_size(shape);
	for (int d = 0; d < t->dims; d++) {
		const json_t *v = json_array_get(shape, d);

		if (!json_is_integer(v) || json_integer_value(v) < 0)
			return error_set(err, -EINVAL, "%s: tensor %s: shape: not a list of sizes", where,
			                 name);
		t->shape[d] = json_integer_value(v);
		if (__builtin_mul_overflow(elements, (uint64_t)t->shape[d], &elements))
			return error_set(err, -EINVAL,
			                 "%s: tensor %s: shape: more elements than can be counted", where,
			                 name);
	}
	if (json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
	    !json_is_integer(json_array_get(offsets, 1)))
		return error_set(err, -EINVAL, "%s: tensor %s: data_offsets: not [begin, end]", where, name);
	begin = json_integer_value(json_array_get(offsets, 0));
	end = json_integer_value(json_array_get(offsets, 1));
	if (begin < 0 || end < begin)
		return error_set(err, -EINVAL,
		                 "%s: tensor %s: data_offsets: [%" PRId64 ", %" PRId64 "] is no range", where,
		                 name, begin, end);
	if ((uint64_t)end > data_len)
		return error_set(err, -EINVAL,
		                 "%s: tensor %s: ends at byte %" PRId64 " of the data, the file has %" PRIu64
		                 " (truncated?)",
		                 where, name, end, data_len);
	if (elements > (uint64_t)INT64_MAX / size || elements * size != (uint64_t)(end - begin)) {
		char text[192];

		return error_set(err, -EINVAL, "%s: tensor %s: %s %s does not fill %" PRId64 " bytes", where,
		                 name, type, tensor_shape_text(text, sizeof(text), t->dims, t->shape),
		                 end - begin);
	}
	t->data = data + begin;
	t->bytes = end - begin;
	return 0;
}

static int by_offset(const void *a, const void *b)
{
	const struct tensor *x = *(const struct tensor *const *)a, *y = *(const struct tensor *const *)b;

	if (x->data != y->data)
		return x->data < y->data ? -1 : 1;
	return x->bytes < y->bytes ? -1
	                           : x->bytes > y->bytes; /* empty tensors before the one that starts there */
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const struct tensor *const *)a)->name, (*(const struct tensor *const *)b)->name);
}

static int tensor_by_name(const void *a, const void *b)
{
	return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

/* Checks that the tensors leave no holes, do not overlap, and end where the file ends. */
static int check_layout(const char *where, const struct shard *s, const char *data, uint64_t data_len,
                        struct error *err)
{
	_cleanup_free_ const struct tensor **sorted = calloc(s->n + 1, sizeof(*sorted));
	const char *at = data, *last = NULL;

	if (!sorted)
		return error_oom(err);
	for (size_t i = 0; i < s->n; i++)
		sorted[i] = &s->tensors[i];
	qsort(sorted, s->n, sizeof(*sorted), by_offset);
	for (size_t i = 0; i < s->n; i++) {
		const char *p = sorted[i]->data;

		if (p < at)
			return error_set(err, -EINVAL, "%s: tensor %s overlaps tensor %s", where,
			                 sorted[i]->name, last);
		if (p > at)
			return error_set(err, -EINVAL,
			                 "%s: tensor %s: %td bytes before it belong to no tensor", where,
			                 sorted[i]->name, p - at);
		at = p + sorted[i]->bytes;
		last = sorted[i]->name;
	}
	if (at != data + data_len)
		return error_set(err, -EINVAL, "%s: %td bytes after the last tensor belong to no tensor",
		                 where, data + data_len - at);
	return 0;
}

static int parse_shard(const void *bytes, size_t len, const char *where, struct shard *s, struct error *err)
{
	const unsigned char *p = bytes;
	uint64_t header_len = 0, data_len;
	json_error_t je;
	const char *name;
	json_t *entry;
	int r;

	if (len < 8)
		return error_set(err, -EINVAL, "%s: %zu bytes are too few for a safetensors file", where,
		                 len);
	for (int i = 7; i >= 0; i--)
		header_len = header_len << 8 | p[i];
	if (header_len > HEADER_MAX)
		return error_set(err, -EINVAL,
		                 "%s: not a safetensors file: a header of %" PRIu64 " bytes (at most %d)",
		                 where, header_len, HEADER_MAX);
	if (header_len > len - 8)
		return error_set(err, -EINVAL, "%s: truncated: a header of %" PRIu64 " bytes, %zu are there",
		                 where, header_len, len - 8);
	data_len = len - 8 - header_len;
	if (header_len == 0 || p[8] != '{')
		return error_set(err, -EINVAL, "%s: not a safetensors file: the header is no JSON object",
		                 where);
	s->header = json_loadb((const char *)p + 8, header_len, JSON_REJECT_DUPLICATES, &je);
	if (!json_is_object(s->header))
		return error_set(err, -EINVAL, "%s: header: not valid JSON: %s", where, je.text);
	s->tensors = calloc(json_object_size(s->header) + 1, sizeof(*s->tensors));
	if (!s->tensors)
		return error_oom(err);
	json_object_foreach(s->header, name, entry)
	{
		for (const char *c = name; *c; c++)
			if ((unsigned char)*c < ' ')
				return error_set(err, -EINVAL, "%s: header: a control character in a name",
				                 where);
		if (str_eq(name, "__metadata__")) {
			if (!json_is_object(entry))
				return error_set(err, -EINVAL, "%s: __metadata__: not an object of strings",
				                 where);
			continue;
		}
		r = parse_tensor(where, name, entry, (const char *)p + 8 + header_len, data_len,
		                 &s->tensors[s->n], err);
		if (r < 0)
			return r;
		s->n++;
	}
	qsort(s->tensors, s->n, sizeof(*s->tensors), tensor_by_name);
	return check_layout(where, s, (const char *)p + 8 + header_len, data_len, err);
}

static int by_address(const void *a, const void *b)
{
	const struct tensor *x = *(const struct tensor *const *)a, *y = *(const struct tensor *const *)b;

	return x < y ? -1 : x > y;
}

/* Leaves out those that are in `sorted` (by address). */
static void leave_out(const struct tensor **list, size_t n, const struct tensor **sorted, size_t n_sorted)
{
	size_t k = 0;

	for (size_t i = 0; i < n; i++)
		if (!bsearch(&list[i], sorted, n_sorted, sizeof(*sorted), by_address))
			list[k++] = list[i];
}

/* The tensor that is named as the weight and a suffix; NULL: none. */
static struct tensor *find_member(const struct safetensors *st, const char *weight, size_t len,
                                  const char *suffix)
{
	_cleanup_free_ char *name = str_printf("%.*s%s", (int)len, weight, suffix);

	return name ? (struct tensor *)safetensors_find(st, name) : NULL;
}

/* Makes one tensor of the members of each weight that is in NF4. */
static int fold_nf4(struct safetensors *st, const char *where, struct error *err)
{
	_cleanup_free_ const struct tensor **members = NULL;
	const char *state = nf4_suffixes[NF4_STATE];
	size_t weights = 0, n = 0;

	for (size_t i = 0; i < st->n; i++)
		weights += str_ends(st->names[i]->name, state);
	if (!weights)
		return 0;
	st->nf4 = calloc(weights, sizeof(*st->nf4));
	members = calloc(weights * NF4_MEMBERS, sizeof(*members));
	if (!st->nf4 || !members)
		return error_oom(err);
	for (size_t i = 0, k = 0; i < st->n; i++) {
		const struct tensor *m[NF4_MEMBERS], *t = st->names[i];
		struct tensor *weight;
		size_t len;
		int r;

		if (!str_ends(t->name, state))
			continue;
		len = strlen(t->name) - strlen(state);
		weight = find_member(st, t->name, len, "");
		if (!weight)
			return error_set(err, -EINVAL, "%s: tensor %.*s is missing beside %s", where,
			                 (int)len, t->name, t->name);
		for (int j = 0; j < NF4_MEMBERS; j++) {
			m[j] = find_member(st, t->name, len, nf4_suffixes[j]);
			if (m[j])
				members[n++] = m[j];
		}
		if ((r = nf4_tensor_read(m, where, weight, &st->nf4[k++], err)) < 0)
			return r;
	}
	qsort(members, n, sizeof(*members), by_address);
	leave_out(st->order, st->n, members, n);
	leave_out(st->names, st->n, members, n);
	st->n -= n;
	return 0;
}

/* Called after all shards have been parsed: makes the two orders. */
static int finish(struct safetensors *st, const char *where, struct error *err)
{
	for (size_t i = 0; i < st->n_shards; i++)
		st->n += st->shards[i].n;
	st->order = calloc(st->n + 1, sizeof(*st->order));
	st->names = calloc(st->n + 1, sizeof(*st->names));
	if (!st->order || !st->names)
		return error_oom(err);
	for (size_t i = 0, k = 0; i < st->n_shards; i++)
		for (size_t j = 0; j < st->shards[i].n; j++)
			st->order[k++] = &st->shards[i].tensors[j];
	memcpy(st->names, st->order, st->n * sizeof(*st->names));
	qsort(st->names, st->n, sizeof(*st->names), by_name);
	for (size_t i = 1; i < st->n; i++)
		if (str_eq(st->names[i - 1]->name, st->names[i]->name))
			return error_set(err, -EINVAL, "%s: tensor %s is in two files of the set", where,
			                 st->names[i]->name);
	return fold_nf4(st, where, err);
}

int safetensors_parse(const void *data, size_t len, const char *where, struct safetensors **out,
                      struct error *err)
{
	_cleanup_(safetensors_closep) struct safetensors *st = calloc(1, sizeof(*st));
	int r;

	if (!st || !(st->shards = calloc(1, sizeof(*st->shards))))
		return error_oom(err);
	st->n_shards = 1;
	if ((r = parse_shard(data, len, where, &st->shards[0], err)) < 0 || (r = finish(st, where, err)) < 0)
		return r;
	*out = steal_pointer(st);
	return 0;
}

static int open_shard(struct safetensors *st, const char *path, struct error *err)
{
	struct shard *s = realloc(st->shards, (st->n_shards + 1) * sizeof(*s));
	int r;

	if (!s)
		return error_oom(err);
	st->shards = s;
	s += st->n_shards++;
	*s = (struct shard){.map = {"", 0}};
	s->path = strdup(path);
	if (!s->path)
		return error_oom(err);
	r = file_map_open(path, &s->map, err);
	return r < 0 ? r : parse_shard(s->map.data, s->map.len, path, s, err);
}

/* The file names of the set, each once, in order; the names are borrowed from the index. */
static int index_files(const char *path, const json_t *map, json_t *files, struct error *err)
{
	const char *name;
	json_t *v;

	json_object_foreach((json_t *)map, name, v)
	{
		const char *file = json_string_value(v);

		if (!file || !*file || strchr(file, '/') || file[0] == '.')
			return error_set(err, -EINVAL,
			                 "%s: weight_map: %s: not the name of a file beside the index", path,
			                 name);
		if (json_object_set_new(files, file, json_null()) < 0)
			return error_oom(err);
	}
	return 0;
}

static int name_order(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* metadata.total_size is not compared with the files, since published models have wrong ones (tied weights
 * counted twice). */
static int open_index(struct safetensors *st, const char *path, struct error *err)
{
	_cleanup_free_ char *text = NULL,
	                    *dir = strndup(path, strrchr(path, '/') ? strrchr(path, '/') - path : 0);
	_cleanup_json_ json_t *index = NULL, *files = json_object();
	_cleanup_free_ const char **sorted = NULL;
	const char *name;
	size_t len, n = 0;
	json_t *map, *v;
	int r;

	if (!dir || !files)
		return error_oom(err);
	if ((r = file_read(path, INDEX_MAX, &text, &len, err)) < 0 ||
	    (r = json_parse(text, len, path, &index, err)) < 0)
		return r;
	map = json_object_get(index, "weight_map");
	if (!json_is_object(map) || !json_object_size(map))
		return error_set(err, -EINVAL, "%s: weight_map is missing", path);
	r = index_files(path, map, files, err);
	if (r < 0)
		return r;
	sorted = calloc(json_object_size(files) + 1, sizeof(*sorted));
	if (!sorted)
		return error_oom(err);
	json_object_foreach(files, name, v)
	{
		sorted[n++] = name;
	}
	qsort(sorted, n, sizeof(*sorted), name_order);
	for (size_t i = 0; i < n; i++) {
		_cleanup_free_ char *file = *dir ? str_path_join(dir, sorted[i]) : strdup(sorted[i]);

		if (!file)
			return error_oom(err);
		r = open_shard(st, file, err);
		if (r < 0)
			return r;
	}
	json_object_foreach(map, name, v)
	{
		struct tensor key = {.name = name};
		size_t i = 0;

		while (!str_eq(sorted[i], json_string_value(v)))
			i++;
		if (!bsearch(&key, st->shards[i].tensors, st->shards[i].n, sizeof(key), tensor_by_name))
			return error_set(err, -EINVAL, "%s: tensor %s is not in %s", path, name, sorted[i]);
	}
	return 0;
}

int safetensors_open(const char *path, struct safetensors **out, struct error *err)
{
	_cleanup_(safetensors_closep) struct safetensors *st = calloc(1, sizeof(*st));
	_cleanup_free_ char *joined = NULL;
	struct stat sb;
	int r;

	if (!st)
		return error_oom(err);
	if (stat(path, &sb) < 0)
		return error_errno(err, -errno, "cannot read %s", path);
	if (S_ISDIR(sb.st_mode)) {
		static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};

		for (size_t i = 0; i < ARRAY_SIZE(names) && !joined; i++) {
			joined = str_path_join(path, names[i]);
			if (!joined)
				return error_oom(err);
			if (!file_exists(joined)) {
				free(joined);
				joined = NULL;
			}
		}
		if (!joined)
			return error_set(
			    err, -ENOENT,
			    "%s: neither model.safetensors nor model.safetensors.index.json is there", path);
	}
	path = joined ? joined : path;
	r = str_ends(path, ".json") ? open_index(st, path, err) : open_shard(st, path, err);
	if (r < 0 || (r = finish(st, path, err)) < 0)
		return r;
	*out = steal_pointer(st);
	return 0;
}

void safetensors_close(struct safetensors *st)
{
	if (!st)
		return;
	for (size_t i = 0; i < st->n_shards; i++) {
		file_map_close(&st->shards[i].map);
		json_decref(st->shards[i].header);
		free(st->shards[i].tensors);
		free(st->shards[i].path);
	}
	free(st->shards);
	free(st->order);
	free(st->names);
	free(st->nf4);
	free(st);
}

const char *safetensors_file(const struct safetensors *st, const struct tensor *t)
{
	for (size_t i = 0; i < st->n_shards; i++)
		if (t >= st->shards[i].tensors && t < st->shards[i].tensors + st->shards[i].n)
			return st->shards[i].path ? st->shards[i].path : "";
	return "";
}

void safetensors_release(const struct safetensors *st, const struct tensor *t, int64_t first, int64_t n)
{
	/* Two elements of NF4 are a byte. */
	bool halves = t->type == TENSOR_NF4;
	size_t size = halves ? 1 : tensor_type_size(t->type), divisor = halves ? 2 : 1;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE),
	          begin = (uintptr_t)t->data + (size_t)first * size / divisor,
	          end = ((uintptr_t)t->data + (size_t)(first + n) * size / divisor) / page * page;

	begin = begin / page * page;
	/* Memory that was parsed is not a mapping of a file. */
	if (*safetensors_file(st, t) && end > begin)
		madvise((void *)begin, end - begin, MADV_DONTNEED);
}

size_t safetensors_count(const struct safetensors *st)
{
	return st->n;
}

const struct tensor *safetensors_at(const struct safetensors *st, size_t i)
{
	return st->order[i];
}

const struct tensor *safetensors_find(const struct safetensors *st, const char *name)
{
	struct tensor key = {.name = name};
	const struct tensor *k = &key;
	const struct tensor **hit = bsearch(&k, st->names, st->n, sizeof(*st->names), by_name);

	return hit ? *hit : NULL;
}
