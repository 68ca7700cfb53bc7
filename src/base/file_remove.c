/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes a directory with all that is in it. Its owner may change it meanwhile, and may be another than the
 * one who removes it: each directory is opened within its parent, never through a symbolic link, so that
 * nothing outside of the tree is reached. What lies deeper than the open directories are to be is moved to
 * the top first.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

/* Of directories that are open at once; and of names that are tried for one that is moved. */
enum { DEPTH_MAX = 64, NAMES_MAX = 1000 };

struct removal {
	int top;
	dev_t device;
	unsigned moved;
	bool again; /* something was moved to the top */
	int error;  /* the first */
};

static void fail(struct removal *r)
{
	if (errno != ENOENT && !r->error)
		r->error = -errno;
}

/* A directory without permissions for its owner gets them. */
static int open_directory(int at, const char *name, struct stat *st)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int fd = openat(at, name, flags);

	if (fd < 0 && errno == EACCES && geteuid() != 0 && fchmodat(at, name, 0700, 0) == 0)
		fd = openat(at, name, flags);
	if (fd < 0)
		return -1;
	if (fstat(fd, st) < 0) {
		close(fd);
		return -1;
	}
	if ((st->st_mode & 0700) != 0700 && st->st_uid == geteuid())
		fchmod(fd, 0700);
	return fd;
}

static void move_to_top(struct removal *r, int dir, const char *name)
{
	char target[40];

	for (int i = 0; i < NAMES_MAX; i++) {
		snprintf(target, sizeof(target), ".removed-%u", r->moved++);
		if (renameat(dir, name, r->top, target) == 0) {
			r->again = true;
			return;
		}
		if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
			break;
	}
	fail(r);
}

static void remove_content(struct removal *r, int fd, int depth);

static void remove_directory(struct removal *r, int dir, const char *name, int depth)
{
	struct stat st;
	int fd;

	if (depth == DEPTH_MAX) {
		move_to_top(r, dir, name);
		return;
	}
	fd = open_directory(dir, name, &st);
	if (fd < 0) {
		fail(r);
		return;
	}
	/* What is mounted there is not a part of the tree. */
	if (st.st_dev != r->device)
		close(fd);
	else
		remove_content(r, fd, depth);
	if (unlinkat(dir, name, AT_REMOVEDIR) < 0)
		fail(r);
}

/* Closes fd. */
static void remove_content(struct removal *r, int fd, int depth)
{
	_cleanup_closedir_ DIR *dir = fdopendir(fd);
	struct dirent *entry;

	if (!dir) {
		fail(r);
		close(fd);
		return;
	}
	while ((entry = readdir(dir))) {
		const char *name = entry->d_name;

		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
			continue;
		if (entry->d_type != DT_DIR && unlinkat(dirfd(dir), name, 0) == 0)
			continue;
		if (entry->d_type == DT_DIR || errno == EISDIR)
			remove_directory(r, dirfd(dir), name, depth + 1);
		else
			fail(r);
	}
}

int file_remove_tree(const char *path, struct error *err)
{
	struct removal r = {0};
	struct stat st;
	int copy;

	r.top = open_directory(AT_FDCWD, path, &st);
	if (r.top < 0 && (errno == ENOTDIR || errno == ELOOP)) {
		if (unlink(path) < 0)
			fail(&r);
	} else if (r.top < 0) {
		fail(&r);
	} else {
		r.device = st.st_dev;
		do {
			r.again = false;
			copy = openat(r.top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			if (copy < 0)
				fail(&r);
			else
				remove_content(&r, copy, 0);
		} while (r.again && !r.error);
		close(r.top);
		if (rmdir(path) < 0)
			fail(&r);
	}
	return r.error ? error_errno(err, r.error, "cannot remove %s", path) : 0;
}
