/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints in an output directory: finds, publishes, prunes and removes them. */
#include "engine/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/algorithms.h"
#include "engine/checkpoint/claim.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/places.h"

#define TMP ".tmp"

/* Whether the name is checkpoint-STEP, with nothing after it. */
static bool parse_name(const char *name, int64_t *step)
{
	return str_starts(name, "checkpoint-") &&
	       str_to_int64(name + strlen("checkpoint-"), 0, INT64_MAX, step) == 0;
}

struct entry {
	int64_t step;
	char *path;
};

struct entries {
	struct entry *list;
	size_t n;
};

static void entries_free(struct entries *e)
{
	for (size_t i = 0; i < e->n; i++)
		free(e->list[i].path);
	free(e->list);
}

static int newest_first(const void *a, const void *b)
{
	int64_t x = ((const struct entry *)a)->step, y = ((const struct entry *)b)->step;

	return x < y ? 1 : x > y ? -1 : 0;
}

/* Complete checkpoints that this program wrote, which are those with a state. Those of other programs are
 * never touched. */
static int list_checkpoints(const char *output, struct entries *out, struct error *err)
{
	_cleanup_closedir_ DIR *d = opendir(output);
	struct dirent *e;

	if (!d)
		return errno == ENOENT ? 0 : error_errno(err, -errno, "cannot read directory %s", output);
	while ((e = readdir(d))) {
		_cleanup_free_ char *state = NULL;
		struct entry *list;
		int64_t step;

		if (!parse_name(e->d_name, &step))
			continue;
		state = str_printf("%s/%s/dtrain/state.json", output, e->d_name);
		if (!state)
			return error_oom(err);
		if (!file_exists(state))
			continue;
		list = realloc(out->list, (out->n + 1) * sizeof(*list));
		if (!list)
			return error_oom(err);
		out->list = list;
		list[out->n] = (struct entry){step, str_path_join(output, e->d_name)};
		if (!list[out->n++].path)
			return error_oom(err);
	}
	if (out->n)
		qsort(out->list, out->n, sizeof(*out->list), newest_first);
	return 0;
}

/* The first of the list, which is sorted, whose step is at most that. */
static size_t first_up_to(const struct entries *found, int64_t step)
{
	size_t i = 0;

	while (i < found->n && found->list[i].step > step)
		i++;
	return i;
}

int checkpoint_find(const char *output, int64_t before, char **path, int64_t *step, struct error *err)
{
	_cleanup_(entries_free) struct entries found = {0};
	int r = list_checkpoints(output, &found, err);
	size_t i = first_up_to(&found, before - 1);

	*path = NULL;
	if (r < 0 || i == found.n)
		return r;
	*path = steal_pointer(found.list[i].path);
	*step = found.list[i].step;
	return 0;
}

int checkpoint_prune(const char *output, int64_t keep, int64_t step, struct error *err)
{
	_cleanup_(entries_free) struct entries found = {0};
	int r = list_checkpoints(output, &found, err);

	for (size_t i = first_up_to(&found, step) + (size_t)keep; keep > 0 && i < found.n && r == 0; i++) {
		/* It is renamed first, so that an interrupted removal leaves no checkpoint with half its
		 * files. */
		_cleanup_free_ char *tmp = str_printf("%s.old" TMP, found.list[i].path);

		if (!tmp)
			return error_oom(err);
		if (rename(found.list[i].path, tmp) < 0)
			return error_errno(err, -errno, "cannot remove %s", found.list[i].path);
		r = file_remove_tree(tmp, err);
	}
	return r;
}

/* Whether the name is what file_write_atomic leaves of a file of a run when its process is killed:
 * NAME.tmp.PID. */
static bool is_unfinished(const char *name)
{
	static const char *const files[] = {"checkpoint-", "metrics.jsonl", "completions.jsonl",
	                                    REFERENCE_FILE, ALGORITHMS_FILE};
	static const char mark[] = TMP ".";
	size_t end = strlen(name), n = end;

	while (n > 0 && name[n - 1] >= '0' && name[n - 1] <= '9')
		n--;
	if (n == end || n < strlen(mark) || memcmp(name + n - strlen(mark), mark, strlen(mark)) != 0)
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		if (str_starts(name, files[i]))
			return true;
	return false;
}

/* Whether a file of that name is what an interrupted save has left. */
static bool is_leftover(const char *name)
{
	return is_unfinished(name) ||
	       (str_ends(name, TMP) && (str_starts(name, "checkpoint-") || str_starts(name, "model.")));
}

int checkpoint_clean(const char *output, struct error *err)
{
	_cleanup_closedir_ DIR *d = opendir(output);
	struct dirent *e;
	int r = 0;

	if (!d)
		return errno == ENOENT ? 0 : error_errno(err, -errno, "cannot read directory %s", output);
	while (r == 0 && (e = readdir(d))) {
		_cleanup_free_ char *path = NULL;

		if (!is_leftover(e->d_name))
			continue;
		path = str_path_join(output, e->d_name);
		r = path ? file_remove_tree(path, err) : error_oom(err);
	}
	return r;
}

int checkpoint_remove_all(const char *output, struct error *err)
{
	static const char *const files[] = {"metrics.jsonl", "completions.jsonl", "runs"};
	_cleanup_(entries_free) struct entries found = {0};
	int r = list_checkpoints(output, &found, err);

	/* The oldest goes first: after an interruption the newest is still the newest. */
	for (size_t i = found.n; i > 0 && r == 0; i--)
		r = file_remove_tree(found.list[i - 1].path, err);
	for (size_t i = 0; i < ARRAY_SIZE(files) && r == 0; i++) {
		_cleanup_free_ char *path = str_path_join(output, files[i]);

		r = path ? file_remove_tree(path, err) : error_oom(err);
	}
	return r;
}

/* Whether a run that ended before its first checkpoint leaves a file of that name: metrics.jsonl or
 * completions.jsonl, these with a number behind them (worker/step_lines.h), runs, and the reference model's
 * log-probabilities. */
static bool is_early(const char *name)
{
	static const char *const lines[] = {"metrics.jsonl", "completions.jsonl"};

	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		const char *rest = str_starts(name, lines[i]) ? name + strlen(lines[i]) : "x";

		if (!*rest || (*rest == '.' && rest[1] && !rest[1 + strspn(rest + 1, "0123456789")]))
			return true;
	}
	return str_eq(name, "runs") || str_eq(name, REFERENCE_FILE);
}

/* Whether a run has marked the claim. Then files with the names that runs give them are that run's. */
static bool is_marked(const char *output)
{
	_cleanup_free_ char *path = str_path_join(output, CLAIM_FILE);
	struct stat st;

	return path && stat(path, &st) == 0 && st.st_size > 0;
}

int checkpoint_output_in_use(const char *output, bool *used, struct error *err)
{
	_cleanup_closedir_ DIR *d = opendir(output);
	bool marked = is_marked(output);
	struct dirent *e;

	*used = false;
	if (!d)
		return errno == ENOENT ? 0 : error_errno(err, -errno, "cannot read directory %s", output);
	while ((e = readdir(d))) {
		const char *name = e->d_name;

		/* The tokenized data, the algorithms of products, failed checks of attention and the claim
		 * may exist before anything has been trained, and a file by which the ranks of another node
		 * have looked for this directory before a run has marked it. */
		if (str_eq(name, ".") || str_eq(name, "..") || str_eq(name, "cache") ||
		    str_eq(name, ALGORITHMS_FILE) || str_starts(name, ATTENTION_FAILED) ||
		    str_eq(name, CLAIM_FILE) || str_starts(name, PLACES_PROBE))
			continue;
		if (marked && (is_leftover(name) || is_early(name)))
			continue;
		*used = true;
	}
	return 0;
}

int checkpoint_output_refuse(const char *output, bool looked, struct error *err)
{
	return error_set(err, -ENOTEMPTY,
	                 "output.dir %s is not empty%s; choose another or set output.overwrite = true",
	                 output, looked ? " and has no checkpoint to resume from" : "");
}

int checkpoint_output_lacks(const char *output, struct error *err)
{
	return error_set(err, -ENOENT, "output.resume is \"must\", but %s has no checkpoint", output);
}

char *checkpoint_tmp(const char *output, const char *name, int64_t attempt)
{
	return str_printf("%s/%s.%" PRId64 TMP, output, name, attempt);
}

int checkpoint_begin(const char *tmp, struct error *err)
{
	int r = file_remove_tree(tmp, err);

	if (r < 0)
		return r;
	return mkdir(tmp, 0777) < 0 ? error_errno(err, -errno, "cannot make directory %s", tmp) : 0;
}

int checkpoint_publish(const char *output, const char *name, const char *tmp, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(output, name), *inner = str_path_join(tmp, "dtrain");
	int r;

	if (!path || !inner)
		return error_oom(err);
	if (file_exists(inner) && (r = file_sync_directory(inner, err)) < 0)
		return r;
	r = file_sync_directory(tmp, err);
	if (r < 0)
		return r;
	if (rename(tmp, path) < 0) {
		if (errno != EEXIST && errno != ENOTEMPTY)
			return error_errno(err, -errno, "cannot publish %s", path);
		if (renameat2(AT_FDCWD, tmp, AT_FDCWD, path, RENAME_EXCHANGE) < 0) {
			/* Some network file systems cannot exchange two names. */
			_cleanup_free_ char *old = str_printf("%s.old" TMP, path);

			if (!old)
				return error_oom(err);
			if (file_remove_tree(old, err) < 0)
				return err->code;
			if (rename(path, old) < 0 || rename(tmp, path) < 0)
				return error_errno(err, -errno, "cannot publish %s", path);
			tmp = old;
			r = file_sync_directory(output, err);
			return r < 0 ? r : file_remove_tree(old, err);
		}
		r = file_sync_directory(output, err);
		return r < 0 ? r : file_remove_tree(tmp, err);
	}
	return file_sync_directory(output, err);
}

static bool is_weights(const char *name)
{
	return (str_starts(name, "model") || str_starts(name, "adapter_model")) &&
	       (str_ends(name, ".safetensors") || str_ends(name, ".safetensors.index.json"));
}

/* Moves the files of tmp for which is_weights() returns `weights`, and adds their names to `moved`. */
static int move_files(const char *output, const char *tmp, bool weights, json_t *moved, struct error *err)
{
	_cleanup_closedir_ DIR *d = opendir(tmp);
	struct dirent *e;

	if (!d)
		return error_errno(err, -errno, "cannot read directory %s", tmp);
	while ((e = readdir(d))) {
		_cleanup_free_ char *from = str_path_join(tmp, e->d_name),
		                    *to = str_path_join(output, e->d_name);

		if (!from || !to)
			return error_oom(err);
		if (str_eq(e->d_name, ".") || str_eq(e->d_name, "..") || is_weights(e->d_name) != weights)
			continue;
		if (rename(from, to) < 0)
			return error_errno(err, -errno, "cannot publish %s", to);
		if (json_object_set_new(moved, e->d_name, json_null()) < 0)
			return error_oom(err);
	}
	return 0;
}

/* A config.json that names no model is no model's, and was not written by a run. */
static bool is_of_model(const char *path, const char *name)
{
	_cleanup_json_ json_t *config = NULL;

	return !str_eq(name, "config.json") ||
	       (json_read_python(path, &config, NULL) == 0 && json_get_string(config, "model_type", NULL));
}

/* Removes what a run has written to `output` and is not in `moved`: weights, which are shards, or the single
 * file, of an older model, and the configuration and tokenizer of one. An adapter_config.json would make an
 * adapter of a model. */
static int remove_stale(const char *output, const json_t *moved, struct error *err)
{
	_cleanup_closedir_ DIR *d = opendir(output);
	struct dirent *e;

	if (!d)
		return error_errno(err, -errno, "cannot read directory %s", output);
	while ((e = readdir(d))) {
		_cleanup_free_ char *old = str_path_join(output, e->d_name);

		if (!old)
			return error_oom(err);
		if (json_object_get(moved, e->d_name) ||
		    (!is_weights(e->d_name) && !(hf_saves(e->d_name) && is_of_model(old, e->d_name))))
			continue;
		if (remove(old) < 0)
			return error_errno(err, -errno, "cannot remove %s", old);
	}
	return 0;
}

int checkpoint_publish_files(const char *output, const char *tmp, struct error *err)
{
	_cleanup_json_ json_t *moved = json_object();
	int r;

	if ((r = file_sync_directory(tmp, err)) < 0 || (r = move_files(output, tmp, false, moved, err)) < 0 ||
	    (r = move_files(output, tmp, true, moved, err)) < 0 ||
	    (r = remove_stale(output, moved, err)) < 0 || (r = file_sync_directory(output, err)) < 0)
		return r;
	return file_remove_tree(tmp, err);
}
