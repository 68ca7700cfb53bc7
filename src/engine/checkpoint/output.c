/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes directories: written under a hidden name, synced, renamed. */
#include "engine/checkpoint/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

struct output {
	char *path, *parent, *partial;
	bool replace;
	int lock; /* a descriptor of `partial`; -1: not made */
};

/* Whether `path` is a directory without entries. */
static bool is_empty(const char *path)
{
	_cleanup_closedir_ DIR *d = opendir(path);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (!str_eq(e->d_name, ".") && !str_eq(e->d_name, ".."))
			return false;
	return d != NULL;
}

/* Splits the path, without slashes at its end, into the directory and the name. */
static int split(struct output *o, const char *path, const char **name, struct error *err)
{
	size_t n = strlen(path);
	char *slash;

	while (n > 1 && path[n - 1] == '/')
		n--;
	o->path = strndup(path, n);
	if (!o->path)
		return error_oom(err);
	slash = strrchr(o->path, '/');
	*name = slash ? slash + 1 : o->path;
	if (!**name || str_eq(*name, ".") || str_eq(*name, ".."))
		return error_set(err, -EINVAL, "%s: the name of a new directory is needed", path);
	o->parent = slash == o->path ? strdup("/")
	            : slash          ? strndup(o->path, (size_t)(slash - o->path))
	                             : strdup(".");
	return o->parent ? 0 : error_oom(err);
}

static int check_existing(const struct output *o, const char *const *inputs, size_t n, struct error *err)
{
	_cleanup_free_ char *real = realpath(o->path, NULL);
	struct stat st;

	if (lstat(o->path, &st) < 0)
		return errno == ENOENT ? 0 : error_errno(err, -errno, "cannot read %s", o->path);
	for (size_t i = 0; i < n && real; i++) {
		_cleanup_free_ char *input = inputs[i] ? realpath(inputs[i], NULL) : NULL;

		if (input && str_starts(input, real) &&
		    (input[strlen(real)] == '\0' || input[strlen(real)] == '/'))
			return error_set(err, -EINVAL, "%s would replace %s, which is read", o->path,
			                 inputs[i]);
	}
	if (S_ISDIR(st.st_mode) && is_empty(o->path))
		return 0;
	if (!o->replace)
		return error_set(err, -EEXIST,
		                 "%s exists already; choose another directory, or give --overwrite", o->path);
	if (!S_ISDIR(st.st_mode) ||
	    (!file_exists_in(o->path, "config.json") && !file_exists_in(o->path, "adapter_config.json")))
		return error_set(err, -EEXIST, "%s is not replaced: it is not the directory of a model",
		                 o->path);
	return 0;
}

/* Makes the directory anew, in place of one that a process which has ended left behind. */
static int make_partial(struct output *o, struct error *err)
{
	int fd;

	if (mkdir(o->partial, 0777) < 0 && errno != EEXIST)
		return error_errno(err, -errno, "cannot make %s", o->partial);
	fd = open(o->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return error_errno(err, -errno, "cannot open %s", o->partial);
	/* Without locks (some network file systems) every process gets it. */
	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
		close(fd);
		return error_set(err, -EBUSY, "another process is writing %s", o->path);
	}
	o->lock = fd;
	if (!is_empty(o->partial)) {
		int r = file_remove_tree(o->partial, err);

		if (r < 0)
			return r;
		close(fd);
		o->lock = -1;
		return make_partial(o, err);
	}
	return 0;
}

int output_create(const char *path, bool replace, const char *const *inputs, size_t n, struct output **out,
                  struct error *err)
{
	_cleanup_(output_freep) struct output *o = calloc(1, sizeof(*o));
	const char *name = NULL;
	int r;

	if (!o)
		return error_oom(err);
	o->lock = -1;
	o->replace = replace;
	if ((r = split(o, path, &name, err)) < 0 || (r = check_existing(o, inputs, n, err)) < 0 ||
	    (r = file_mkdirs(o->parent, 0777, err)) < 0)
		return r;
	o->partial = str_printf("%s/.%s.partial", o->parent, name);
	if (!o->partial)
		return error_oom(err);
	if ((r = make_partial(o, err)) < 0)
		return r;
	*out = steal_pointer(o);
	return 0;
}

const char *output_directory(const struct output *o)
{
	return o->partial;
}

int output_publish(struct output *o, struct error *err)
{
	bool exists;
	int r = file_sync_directory(o->partial, err);

	if (r < 0)
		return r;
	exists = o->replace && file_exists(o->path) && !is_empty(o->path);
	if (exists && renameat2(AT_FDCWD, o->partial, AT_FDCWD, o->path, RENAME_EXCHANGE) < 0)
		return error_errno(err, -errno, "cannot replace %s", o->path);
	if (!exists && rename(o->partial, o->path) < 0)
		return error_errno(err, errno == ENOTEMPTY ? -EEXIST : -errno, "cannot make %s", o->path);
	if ((r = file_sync_directory(o->parent, err)) < 0)
		return r;
	/* Under the hidden name lies what was replaced. */
	r = exists ? file_remove_tree(o->partial, err) : 0;
	close(steal_fd(&o->lock));
	return r;
}

void output_free(struct output *o)
{
	if (!o)
		return;
	if (o->lock >= 0) {
		file_remove_tree(o->partial, NULL);
		close(o->lock);
	}
	free(o->path);
	free(o->parent);
	free(o->partial);
	free(o);
}
