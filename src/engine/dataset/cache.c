/* SPDX-License-Identifier: Apache-2.0 */
/* The file of the rows: written once, checked, and mapped by every process that reads it. */
#include "engine/dataset/cache.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/str.h"

#define CACHE_MAGIC   "DTRNROWS"
#define CACHE_VERSION 2
#define CACHE_ORDER   0x01020304u /* reads differently on a machine of the other byte order */

struct cache_header {
	char magic[8];
	uint32_t version, order;
	struct cache_key key;
	uint64_t size, index; /* of the file; offset of the index */
	int64_t rows, examples, cut_examples, cut_tokens;
	uint64_t checksum; /* of the index, then of the header up to here */
};

void cache_key_init(struct cache_key *key)
{
	key->word[0] = 0xcbf29ce484222325u;
	key->word[1] = 0x84222325cbf29ce4u;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9fb21c651e98df25u;
	return h ^ (h >> 32);
}

void cache_key_add(struct cache_key *key, const void *data, size_t len)
{
	const unsigned char *p = data;
	uint64_t a = mix(key->word[0], len), b = mix(key->word[1], ~len), v;

	for (; len >= 8; p += 8, len -= 8) {
		memcpy(&v, p, 8);
		a = mix(a, v);
		b = mix(b + v, a);
	}
	v = 0;
	if (len)
		memcpy(&v, p, len);
	a = mix(a, v);
	b = mix(b + v, a);
	*key = (struct cache_key){{a, b}};
}

static uint64_t checksum(const struct cache_header *h, const void *index, size_t len)
{
	struct cache_key sum;

	cache_key_init(&sum);
	cache_key_add(&sum, index, len);
	cache_key_add(&sum, h, offsetof(struct cache_header, checksum));
	return sum.word[0] ^ sum.word[1];
}

int cache_check(const void *data, size_t len, const struct cache_key *key, struct cache *out,
                struct error *err)
{
	const struct cache_header *h = data;
	const struct cache_row *rows;

	*out = (struct cache){.map = {"", 0}};
	if (len < sizeof(*h) || memcmp(h->magic, CACHE_MAGIC, sizeof(h->magic)) != 0)
		return error_set(err, -EBADMSG, "not a file of tokenized rows");
	if (h->version != CACHE_VERSION || h->order != CACHE_ORDER)
		return error_set(err, -EBADMSG, "written by another version or kind of machine");
	if (key && memcmp(&h->key, key, sizeof(*key)) != 0)
		return error_set(err, -EBADMSG, "made of other data or options");
	if (h->size != len || h->index < sizeof(*h) || h->index > len || h->index % 8 || h->rows < 0 ||
	    (uint64_t)h->rows != (len - h->index) / sizeof(*rows) || (len - h->index) % sizeof(*rows))
		return error_set(err, -EBADMSG, "not whole");
	rows = (const struct cache_row *)((const char *)data + h->index);
	if (checksum(h, rows, h->rows * sizeof(*rows)) != h->checksum)
		return error_set(err, -EBADMSG, "its checksum does not agree");
	for (int64_t i = 0; i < h->rows; i++) {
		uint64_t words = 2 * (uint64_t)rows[i].length + rows[i].documents + 1;

		if (rows[i].length < 1 || rows[i].documents < 1 || rows[i].documents > rows[i].length ||
		    rows[i].offset % 4 || rows[i].offset < sizeof(*h) || rows[i].offset > h->index ||
		    4 * words > h->index - rows[i].offset)
			return error_set(err, -EBADMSG, "row %lld lies outside of it", (long long)i);
		out->tokens += rows[i].length;
		out->max_row = MAX(out->max_row, rows[i].length);
	}
	out->rows = rows;
	out->count = h->rows;
	out->examples = h->examples;
	out->cut_examples = h->cut_examples;
	out->cut_tokens = h->cut_tokens;
	return 0;
}

int cache_open(const char *path, const struct cache_key *key, struct cache *out, struct error *err)
{
	struct file_map map;
	int r;

	r = file_map_open(path, &map, err);
	if (r < 0)
		return r;
	r = cache_check(map.data, map.len, key, out, err);
	if (r < 0) {
		file_map_close(&map);
		return error_prefix(err, "%s", path);
	}
	out->map = map;
	return 0;
}

void cache_close(struct cache *c)
{
	file_map_close(&c->map);
	*c = (struct cache){.map = {"", 0}};
}

uint64_t cache_digest(const struct cache *c)
{
	/* The header has times and names of the files in its key: equal rows may come from different ones. */
	const size_t skip = sizeof(struct cache_header);

	return c->map.len < skip ? 0 : hash_bytes((const char *)c->map.data + skip, c->map.len - skip, 0);
}

struct cache_writer {
	char *path, *temporary;
	FILE *file;
	struct cache_header header;
	struct cache_row *rows;
	size_t cap;
	uint64_t offset;
	int32_t *targets; /* scratch */
	size_t targets_cap;
};

void cache_writer_free(struct cache_writer *w)
{
	if (!w)
		return;
	if (w->file)
		fclose(w->file);
	if (w->temporary)
		unlink(w->temporary);
	free(w->temporary);
	free(w->path);
	free(w->rows);
	free(w->targets);
	free(w);
}

/* NULL: out of memory. */
static char *temporary_name(const char *path, bool alone)
{
	char host[HOST_NAME_MAX + 1] = "";

	if (alone)
		return str_printf("%s.tmp", path);
	gethostname(host, sizeof(host) - 1);
	return str_printf("%s.%s.%lld.tmp", path, host, (long long)getpid());
}

int cache_writer_open(const char *path, const struct cache_key *key, bool alone, struct cache_writer **out,
                      struct error *err)
{
	_cleanup_(cache_writer_freep) struct cache_writer *w = calloc(1, sizeof(*w));

	if (!w || !(w->path = strdup(path)) || !(w->temporary = temporary_name(path, alone)))
		return error_oom(err);
	/* Left by a builder that died: no other process uses this name. */
	unlink(w->temporary);
	w->file = fopen(w->temporary, "wbxe");
	if (!w->file) {
		int code = -errno;

		free(steal_pointer(w->temporary));
		return error_errno(err, code, "cannot write %s", path);
	}
	setvbuf(w->file, NULL, _IOFBF, 1 << 20);
	w->header = (struct cache_header){.version = CACHE_VERSION, .order = CACHE_ORDER, .key = *key};
	memcpy(w->header.magic, CACHE_MAGIC, sizeof(w->header.magic));
	w->offset = sizeof(w->header);
	if (fwrite(&w->header, sizeof(w->header), 1, w->file) != 1)
		return error_errno(err, -errno, "cannot write %s", path);
	*out = steal_pointer(w);
	return 0;
}

/* Grows an array to hold n items of `size`. */
static int reserve(void *array, size_t *cap, size_t n, size_t size)
{
	void **p = array, *grown;
	size_t want = *cap ? *cap : 1024;

	if (n <= *cap)
		return 0;
	while (want < n)
		want *= 2;
	grown = realloc(*p, want * size);
	if (!grown)
		return -ENOMEM;
	*p = grown;
	*cap = want;
	return 0;
}

int cache_writer_add(struct cache_writer *w, const int32_t *ids, const int32_t *labels, int32_t length,
                     const int32_t *starts, int32_t documents, bool cross, struct error *err)
{
	const int32_t whole[2] = {0, length};
	struct cache_row *row;
	int32_t counted = 0;

	if (length < 1)
		return 0;
	if (cross || documents < 1) {
		starts = whole;
		documents = 1;
	}
	if (reserve(&w->rows, &w->cap, w->header.rows + 1, sizeof(*w->rows)) < 0 ||
	    reserve(&w->targets, &w->targets_cap, length, sizeof(*w->targets)) < 0)
		return error_oom(err);
	for (int32_t t = 0; t + 1 < length; t++)
		w->targets[t] = labels[t + 1];
	for (int32_t d = 1; d <= documents; d++) /* nothing is predicted across the end of a document */
		w->targets[(d < documents ? starts[d] : length) - 1] = -100;
	for (int32_t t = 0; t < length; t++)
		counted += w->targets[t] != -100;
	row = &w->rows[w->header.rows++];
	*row = (struct cache_row){w->offset, length, documents, counted, 0};
	if (fwrite(ids, sizeof(*ids), length, w->file) != (size_t)length ||
	    fwrite(w->targets, sizeof(*w->targets), length, w->file) != (size_t)length ||
	    fwrite(starts, sizeof(*starts), documents, w->file) != (size_t)documents ||
	    fwrite(&length, sizeof(length), 1, w->file) != 1)
		return error_errno(err, -errno, "cannot write %s", w->path);
	w->offset += 4 * (2 * (uint64_t)length + documents + 1);
	return 0;
}

void cache_writer_margin(struct cache_writer *w, float margin)
{
	int32_t bits;

	memcpy(&bits, &margin, sizeof(bits));
	cache_writer_label(w, bits);
}

void cache_writer_label(struct cache_writer *w, int32_t label)
{
	w->rows[w->header.rows - 1].label = label;
}

void cache_writer_examples(struct cache_writer *w, int64_t examples)
{
	w->header.examples += examples;
}

void cache_writer_cut(struct cache_writer *w, int64_t tokens)
{
	w->header.cut_examples++;
	w->header.cut_tokens += tokens;
}

int64_t cache_writer_rows(const struct cache_writer *w)
{
	return w->header.rows;
}

int cache_writer_finish(struct cache_writer *w, struct error *err)
{
	_cleanup_free_ char *copy = strdup(w->path);
	size_t index = w->header.rows * sizeof(*w->rows);
	const char zero[8] = {0};
	size_t pad = (8 - w->offset % 8) % 8;

	if (!copy)
		return error_oom(err);
	w->header.index = w->offset + pad;
	w->header.size = w->header.index + index;
	w->header.checksum = checksum(&w->header, w->rows, index);
	if (fwrite(zero, 1, pad, w->file) != pad ||
	    fwrite(w->rows, sizeof(*w->rows), w->header.rows, w->file) != (size_t)w->header.rows ||
	    fseeko(w->file, 0, SEEK_SET) < 0 || fwrite(&w->header, sizeof(w->header), 1, w->file) != 1 ||
	    fflush(w->file) != 0 || fsync(fileno(w->file)) < 0 || rename(w->temporary, w->path) < 0)
		return error_errno(err, -errno, "cannot write %s", w->path);
	free(steal_pointer(w->temporary));
	return file_sync_directory(dirname(copy), err);
}
