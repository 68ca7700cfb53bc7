/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the files of a checkpoint with their hashes, as JSON, and compares the files with such a list. */
#include "engine/checkpoint/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"

#define VERSION   1
#define RANKS_MAX (1 << 24)

uint64_t manifest_hash(const void *data, size_t bytes)
{
	uint64_t h = 0;

	for (size_t at = 0; at < bytes; at += MANIFEST_PIECE)
		h = hash_bytes((const char *)data + at, MIN(bytes - at, MANIFEST_PIECE), h);
	return h;
}

/* ---- out ---- */

static json_t *hash_json(uint64_t hash)
{
	char text[20];

	snprintf(text, sizeof(text), "%016" PRIx64, hash);
	return json_string(text);
}

/* As JSON on lines of its own for each part, which json_to_text would spread over many. */
char *manifest_text(const struct manifest *m)
{
	_cleanup_json_ json_t *files = json_array(), *j = NULL;

	for (size_t i = 0; i < m->n && files; i++) {
		const struct manifest_file *f = &m->files[i];
		json_t *parts = json_array();

		for (size_t k = 0; k < f->n; k++)
			json_array_append_new(
			    parts, json_pack("[s,I,I,o]", f->parts[k].name, (json_int_t)f->parts[k].offset,
			                     (json_int_t)f->parts[k].bytes, hash_json(f->parts[k].hash)));
		if (json_array_append_new(files, json_pack("{s:s, s:I, s:o}", "name", f->name, "bytes",
		                                           (json_int_t)f->bytes, "parts", parts)) < 0)
			return NULL;
	}
	j = json_pack("{s:i, s:O}", "version", VERSION, "files", files);
	return json_to_string(j);
}

char *manifest_index_text(const struct manifest_index *index)
{
	_cleanup_json_ json_t *ranks = json_array(), *j = NULL;
	_cleanup_free_ char *text = NULL;

	for (int i = 0; i < index->world_size && ranks; i++)
		if (json_array_append_new(ranks, json_pack("{s:s, s:I, s:o}", "node", index->ranks[i].node,
		                                           "bytes", (json_int_t)index->ranks[i].bytes, "hash",
		                                           hash_json(index->ranks[i].hash))) < 0)
			return NULL;
	text = json_to_string(ranks);
	if (!text)
		return NULL;
	j = json_pack("{s:i, s:O, s:o}", "version", VERSION, "ranks", ranks, "hash",
	              hash_json(manifest_hash(text, strlen(text))));
	return json_to_text(j, 2);
}

/* ---- in ---- */

static int not_ours(const char *where, const char *what, struct error *err)
{
	return error_set(err, -EBADMSG, "%s: %s: not as dtrain writes it", where, what);
}

static bool take_hash(const json_t *v, uint64_t *out)
{
	const char *text = json_string_value(v);
	char *end;

	if (!text || strlen(text) != 16 || text[strspn(text, "0123456789abcdef")])
		return false;
	*out = strtoull(text, &end, 16);
	return true;
}

static bool take_count(const json_t *v, uint64_t *out)
{
	*out = json_is_integer(v) ? (uint64_t)json_integer_value(v) : 0;
	return json_is_integer(v) && json_integer_value(v) >= 0;
}

/* Relative, and without a way up. */
static bool stays_inside(const char *name)
{
	return name && *name && *name != '/' && !str_eq(name, "..") && !str_starts(name, "../") &&
	       !strstr(name, "/../") && !str_ends(name, "/..");
}

static bool take_part(const json_t *v, uint64_t file_bytes, struct manifest_part *out)
{
	out->name = json_string_value(json_array_get(v, 0));
	return json_array_size(v) == 4 && out->name && take_count(json_array_get(v, 1), &out->offset) &&
	       take_count(json_array_get(v, 2), &out->bytes) && take_hash(json_array_get(v, 3), &out->hash) &&
	       out->offset <= file_bytes && out->bytes <= file_bytes - out->offset;
}

static int take_file(const json_t *v, const char *where, struct manifest_file *out, struct error *err)
{
	const json_t *parts = json_object_get(v, "parts");

	out->name = json_get_string(v, "name", NULL);
	if (!stays_inside(out->name) || !take_count(json_object_get(v, "bytes"), &out->bytes) ||
	    !json_is_array(parts))
		return not_ours(where, "files", err);
	out->parts = calloc(json_array_size(parts) + 1, sizeof(*out->parts));
	if (!out->parts)
		return error_oom(err);
	for (; out->n < json_array_size(parts); out->n++)
		if (!take_part(json_array_get(parts, out->n), out->bytes, &out->parts[out->n]))
			return not_ours(where, out->name, err);
	return 0;
}

/* The array `key` of an object of this version; borrowed from *owner. */
static int take_array(const char *text, size_t len, const char *where, const char *key, json_t **owner,
                      const json_t **array, struct error *err)
{
	struct error why = ERROR_INIT;

	if (json_parse(text, len, where, owner, &why) < 0)
		return error_set(err, -EBADMSG, "%s: the file is damaged", why.message);
	if (json_get_int(*owner, "version", 0) > VERSION)
		return error_set(err, -EBADMSG, "%s: version %" PRId64 "; this dtrain reads %d", where,
		                 json_get_int(*owner, "version", 0), VERSION);
	*array = json_object_get(*owner, key);
	return json_get_int(*owner, "version", 0) == VERSION && json_is_array(*array)
	           ? 0
	           : not_ours(where, key, err);
}

int manifest_parse(const char *text, size_t len, const char *where, struct manifest *out, struct error *err)
{
	const json_t *files;
	int r;

	*out = (struct manifest){0};
	if ((r = take_array(text, len, where, "files", &out->owner, &files, err)) < 0)
		return r;
	out->files = calloc(json_array_size(files) + 1, sizeof(*out->files));
	if (!out->files)
		return error_oom(err);
	while (r == 0 && out->n < json_array_size(files)) {
		r = take_file(json_array_get(files, out->n), where, &out->files[out->n], err);
		out->n++;
	}
	return r;
}

int manifest_index_parse(const char *text, size_t len, const char *where, struct manifest_index *out,
                         struct error *err)
{
	_cleanup_free_ char *again = NULL;
	const json_t *ranks;
	uint64_t hash;
	int r;

	*out = (struct manifest_index){0};
	if ((r = take_array(text, len, where, "ranks", &out->owner, &ranks, err)) < 0)
		return r;
	if (json_array_size(ranks) < 1 || json_array_size(ranks) > RANKS_MAX)
		return not_ours(where, "ranks", err);
	out->ranks = calloc(json_array_size(ranks), sizeof(*out->ranks));
	if (!out->ranks)
		return error_oom(err);
	for (; out->world_size < (int)json_array_size(ranks); out->world_size++) {
		struct manifest_rank *rank = &out->ranks[out->world_size];
		const json_t *v = json_array_get(ranks, (size_t)out->world_size);

		rank->node = json_get_string(v, "node", NULL);
		if (!rank->node || !take_count(json_object_get(v, "bytes"), &rank->bytes) ||
		    !take_hash(json_object_get(v, "hash"), &rank->hash))
			return not_ours(where, "ranks", err);
	}
	again = json_to_string(ranks);
	if (!again)
		return error_oom(err);
	if (!take_hash(json_object_get(out->owner, "hash"), &hash) ||
	    manifest_hash(again, strlen(again)) != hash)
		return error_set(err, -EBADMSG, "%s is not what was saved: the file is damaged", where);
	return 0;
}

void manifest_free(struct manifest *m)
{
	for (size_t i = 0; i < m->n && m->owner; i++)
		free(m->files[i].parts);
	if (m->owner)
		free(m->files);
	json_decref(m->owner);
	*m = (struct manifest){0};
}

void manifest_index_free(struct manifest_index *index)
{
	if (index->owner)
		free(index->ranks);
	json_decref(index->owner);
	*index = (struct manifest_index){0};
}

/* ---- comparing ---- */

static int check_part(const char *path, const char *data, const struct manifest_part *part, struct error *err)
{
	if (manifest_hash(data + part->offset, part->bytes) == part->hash)
		return 0;
	if (!*part->name || str_eq(part->name, "header"))
		return error_set(err, -EBADMSG, "%s: %sis not what was saved: the file is damaged", path,
		                 *part->name ? "its header " : "");
	return error_set(err, -EBADMSG, "%s: tensor %s is not what was saved: the file is damaged", path,
	                 part->name);
}

/* The tensor at which a file that is too short ends. */
static const char *cut_off(const struct manifest_file *f, uint64_t bytes)
{
	for (size_t i = 0; i < f->n; i++)
		if (f->parts[i].offset + f->parts[i].bytes > bytes && *f->parts[i].name)
			return f->parts[i].name;
	return "its end";
}

int manifest_check(const struct manifest *m, const char *directory, struct error *err)
{
	for (size_t i = 0; i < m->n; i++) {
		const struct manifest_file *f = &m->files[i];
		_cleanup_free_ char *path = str_path_join(directory, f->name);
		_cleanup_file_map_ struct file_map map = {"", 0};
		struct error why = ERROR_INIT;
		int r = 0;

		if (!path)
			return error_oom(err);
		if (file_map_open(path, &map, &why) < 0)
			return error_set(err, -EBADMSG, "%s", why.message);
		if (map.len != f->bytes)
			return error_set(err, -EBADMSG,
			                 "%s has %zu bytes, but %" PRIu64
			                 " were saved: the file is damaged from %s on",
			                 path, map.len, f->bytes, cut_off(f, map.len));
		for (size_t k = 0; k < f->n && r == 0; k++)
			r = check_part(path, map.data, &f->parts[k], err);
		if (r < 0)
			return r;
	}
	return 0;
}
