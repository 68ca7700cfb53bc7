/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a checkpoint to go on from: the root sends the index; each rank looks which of the files it finds;
 * each file is compared with what was saved by one of the ranks that find it; all agree on the result.
 */
#include "engine/checkpoint/resume_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"
#include "engine/checkpoint/agreement.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/save_plan.h"

#define INDEX_MAX (1u << 30)

/* What a rank knows of the files that an earlier rank wrote: LOST, where this is the node that they were
 * written on. */
enum { NOT_THERE, LOST, FOUND, OTHER };

/* A rank that is on the node where rank 0 was: whether it finds the index there, which was published last.
 * Another index is that of a save by another attempt. */
enum { ON_OTHER_NODE, PUBLISHED, NOT_PUBLISHED };

void resume_close(struct resume *r)
{
	if (!r)
		return;
	manifest_index_free(&r->index);
	free(r->directory);
	free(r->text);
	free(r->seen);
	free(r);
}

/* ---- opening ---- */

static int read_index(struct resume *r, int64_t *len, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(r->directory, MANIFEST_INDEX);
	_cleanup_free_ char *old = str_path_join(r->directory, "dtrain/optimizer.safetensors");
	_cleanup_free_ char *old_set = str_path_join(r->directory, "dtrain/optimizer.safetensors.index.json");
	size_t n;
	int s;

	if (!path || !old || !old_set)
		return error_oom(err);
	*len = -1;
	if (!file_exists(path) && (file_exists(old) || file_exists(old_set)))
		return 0;
	s = file_read(path, INDEX_MAX, &r->text, &n, err);
	*len = (int64_t)n;
	return s;
}

/* From the root to all. */
static int share_index(struct resume *r, int root, bool *unusable, struct error *err)
{
	_cleanup_free_ char *path = NULL;
	bool broken;
	int64_t len = 0;
	int s = ranks_rank(&r->ranks) == root ? read_index(r, &len, err) : 0;

	if (s == 0 && len < 0 && root != 0)
		s = error_set(err, -EBADMSG,
		              "%s, of an earlier release, is not found by rank 0, which has to read it",
		              r->directory);
	if ((s = ranks_agree(&r->ranks, s, &broken, err)) < 0) {
		*unusable = !broken;
		return s == -ESTALE ? -EIO : s;
	}
	if ((s = ranks_broadcast(&r->ranks, NULL, &len, sizeof(len), root, err)) < 0)
		return s;
	r->plain = len < 0;
	if (r->plain)
		return 0;
	if (ranks_rank(&r->ranks) != root && !(r->text = calloc((size_t)len + 1, 1)))
		return error_oom(err);
	if ((s = ranks_broadcast(&r->ranks, NULL, r->text, (size_t)len, root, err)) < 0)
		return s;
	path = str_path_join(r->directory, MANIFEST_INDEX);
	s = path ? manifest_index_parse(r->text, (size_t)len, path, &r->index, err) : error_oom(err);
	*unusable = s == -EBADMSG;
	return s;
}

static char *list_path(const struct resume *r, int rank)
{
	_cleanup_free_ char *stem = save_plan_stem(rank, r->index.world_size);

	return stem ? str_printf("%s/%s.json", r->directory, stem) : NULL;
}

/* The list of an earlier rank, if it is the one that the index names. */
static int read_list(const struct resume *r, int rank, char **text, size_t *len)
{
	_cleanup_free_ char *path = list_path(r, rank);
	const struct manifest_rank *from = &r->index.ranks[rank];

	if (from->bytes == 0 || !path || !file_exists(path))
		return NOT_THERE;
	if (file_read(path, INDEX_MAX, text, len, NULL) < 0)
		return OTHER;
	return *len == from->bytes && manifest_hash(*text, *len) == from->hash ? FOUND : OTHER;
}

/* Whether an earlier rank was on the node of this one. */
static bool is_node_of(const struct resume *r, int rank)
{
	return r->ranks.node && str_eq(r->ranks.node, r->index.ranks[rank].node);
}

static bool has_index(const struct resume *r, const char *path)
{
	_cleanup_free_ char *text = NULL;
	size_t len;

	return file_exists(path) &&
	       (file_read(path, INDEX_MAX, &text, &len, NULL) < 0 || str_eq(text, r->text));
}

static int look(struct resume *r, struct error *err)
{
	_cleanup_free_ char *index = str_path_join(r->directory, MANIFEST_INDEX);
	int n = r->index.world_size;
	unsigned char *own;

	r->each = ((size_t)n + 4) / 4 * 4;
	if (!index)
		return error_oom(err);
	r->seen = calloc((size_t)ranks_size(&r->ranks), r->each);
	if (!r->seen)
		return error_oom(err);
	own = r->seen + (size_t)ranks_rank(&r->ranks) * r->each;
	for (int i = 0; i < n; i++) {
		_cleanup_free_ char *text = NULL;
		size_t len;

		own[i] = (unsigned char)read_list(r, i, &text, &len);
		if (own[i] == NOT_THERE && is_node_of(r, i))
			own[i] = LOST;
	}
	if (is_node_of(r, 0))
		own[n] = has_index(r, index) ? PUBLISHED : NOT_PUBLISHED;
	return ranks_gather(&r->ranks, NULL, r->seen, r->each, err);
}

static int saw(const struct resume *r, int rank, int file)
{
	return r->seen[(size_t)rank * r->each + (size_t)file];
}

int resume_finder(const struct resume *r, int file, int k)
{
	int n = 0, size = ranks_size(&r->ranks);

	for (int i = 0; i < size; i++)
		n += saw(r, i, file) == FOUND;
	for (int i = 0, at = 0; i < size && n; i++)
		if (saw(r, i, file) == FOUND && at++ == k % n)
			return i;
	return -1;
}

bool resume_all_find(const struct resume *r, int file)
{
	for (int i = 0; i < ranks_size(&r->ranks); i++)
		if (saw(r, i, file) != FOUND)
			return false;
	return true;
}

/* Rank 0 publishes last: where its node has nothing, there is no checkpoint. */
static int check_published(const struct resume *r, struct error *err)
{
	bool missing = false;

	if (resume_finder(r, 0, 0) >= 0)
		return 0;
	for (int k = 0; k < ranks_size(&r->ranks); k++) {
		if (saw(r, k, r->index.world_size) == PUBLISHED)
			return 0;
		missing = missing || saw(r, k, r->index.world_size) == NOT_PUBLISHED;
	}
	return missing ? error_set(err, -ESTALE, "%s was not published on node %s", r->directory,
	                           r->index.ranks[0].node)
	               : 0;
}

static bool any_saw(const struct resume *r, int file, int what)
{
	for (int k = 0; k < ranks_size(&r->ranks); k++)
		if (saw(r, k, file) == what)
			return true;
	return false;
}

/* Whether the run has no rank on the node where an earlier rank was, and finds nothing of what was saved
 * there. */
static bool lacks_node(const struct resume *r, int rank)
{
	for (int i = 0; i < r->index.world_size; i++)
		if (str_eq(r->index.ranks[i].node, r->index.ranks[rank].node) &&
		    (any_saw(r, i, LOST) || any_saw(r, i, FOUND) || any_saw(r, i, OTHER)))
			return false;
	return true;
}

/* No rank finds the list of an earlier rank. */
static int explain_missing(const struct resume *r, int rank, struct error *err)
{
	_cleanup_free_ char *path = list_path(r, rank);
	const char *node = r->index.ranks[rank].node;

	if (!path)
		return error_oom(err);
	if (any_saw(r, rank, OTHER))
		return error_set(err, -EBADMSG, "%s is not what was saved: the file is damaged", path);
	return lacks_node(r, rank)
	           ? error_set(err, -ENOENT,
	                       "%s is on node %s, where rank %d saved it, and this run has no rank there; "
	                       "expected %s among its nodes (resources.hosts), or a copy of that directory "
	                       "on one of them",
	                       path, node, rank, node)
	           : error_set(err, -EBADMSG,
	                       "%s is missing, which rank %d saved on node %s; this run has no rank that "
	                       "finds it",
	                       path, rank, node);
}

/* Every file is found by some rank. All ranks come to the same result. -ENOENT: a node is missing, which has
 * what no other has. */
static int check_found(const struct resume *r, struct error *err)
{
	int published = check_published(r, err);

	if (published < 0)
		return published;
	for (int i = 0; i < r->index.world_size; i++)
		if (resume_finder(r, i, 0) < 0 && r->index.ranks[i].bytes > 0)
			return explain_missing(r, i, err);
	return 0;
}

static int compare(const struct resume *r, struct error *err)
{
	int rank = ranks_rank(&r->ranks), s = 0;

	for (int i = 0; i < r->index.world_size && s == 0; i++) {
		_cleanup_(manifest_free) struct manifest m = {0};
		_cleanup_free_ char *text = NULL, *path = list_path(r, i);
		size_t len;

		if (resume_finder(r, i, i) != rank)
			continue;
		if (!path)
			return error_oom(err);
		if (read_list(r, i, &text, &len) != FOUND)
			return error_set(err, -EBADMSG, "%s has changed meanwhile", path);
		s = manifest_parse(text, len, path, &m, err);
		if (s == 0)
			s = manifest_check(&m, r->directory, err);
	}
	return s;
}

int resume_open(const struct ranks *ranks, int root, const char *directory, struct resume **out,
                bool *unusable, struct error *err)
{
	_cleanup_(resume_closep) struct resume *r = calloc(1, sizeof(*r));
	bool broken;
	int s;

	*unusable = false;
	if (!r || !(r->directory = strdup(directory)))
		return error_oom(err);
	r->ranks = *ranks;
	if ((s = share_index(r, root, unusable, err)) < 0)
		return s;
	if (!r->plain) {
		if ((s = look(r, err)) < 0)
			return s;
		s = check_found(r, err);
		*unusable = s == -EBADMSG || s == -ESTALE;
		if (s < 0)
			return s;
		s = ranks_agree(ranks, compare(r, err), &broken, err);
		*unusable = s == -EBADMSG && !broken;
		if (s < 0)
			return s;
	}
	*out = steal_pointer(r);
	return 0;
}

int resume_find_state(const struct resume *r, int rank, char **path, struct error *err)
{
	_cleanup_(manifest_free) struct manifest m = {0};
	_cleanup_free_ char *stem = save_plan_stem(rank, r->index.world_size), *text = NULL,
	                    *list = list_path(r, rank),
	                    *name = stem ? str_printf("%s.safetensors", stem) : NULL;
	size_t len;
	int s;

	if (!name || !list)
		return error_oom(err);
	if (read_list(r, rank, &text, &len) != FOUND)
		return error_set(err, -EBADMSG, "%s has changed meanwhile", list);
	if ((s = manifest_parse(text, len, list, &m, err)) < 0)
		return s;
	for (size_t i = 0; i < m.n; i++)
		if (str_eq(m.files[i].name, name))
			return (*path = str_path_join(r->directory, name)) ? 0 : error_oom(err);
	return 0;
}
