/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock on a directory (flock). The file holds the process id of who has it, for the one that is refused.
 *
 * flock needs no more than a descriptor to read from. So the file is for its owner alone: whoever else could
 * open it could keep every service from starting. A file that others may open, which an earlier version left,
 * is replaced; whoever replaces it holds a lock on a second file meanwhile, so that of two that start at once
 * the later one finds the file of the earlier one. A file that is for its owner alone is never replaced.
 */
#include "dtraind/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"

static int refuse(const char *key, const char *directory, int fd, struct error *err)
{
	char text[32];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
	int64_t pid = 0;

	text[MAX(n, 0)] = '\0';
	text[strcspn(text, "\n")] = '\0';
	if (str_to_int64(text, 1, INT32_MAX, &pid) < 0)
		return error_set(err, -EBUSY, "another dtraind runs with %s = \"%s\": nothing was changed",
		                 key, directory);
	return error_set(err, -EBUSY,
	                 "another dtraind, process %lld, runs with %s = \"%s\": nothing was changed",
	                 (long long)pid, key, directory);
}

static int open_file(const char *path, struct stat *st, struct error *err)
{
	_cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	if (fd < 0 || fstat(fd, st) < 0)
		return error_errno(err, -errno, "cannot open %s", path);
	return steal_fd(&fd);
}

static bool is_private(const struct stat *st)
{
	return st->st_uid == geteuid() && (st->st_mode & 077) == 0;
}

static int read_name(const char *process, char name[32])
{
	_cleanup_free_ char *path = str_printf("/proc/%s/comm", process);
	_cleanup_close_ int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	struct stat st;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_uid != geteuid())
		return -ENOENT;
	n = read(fd, name, 31);
	name[MAX(n, 0)] = '\0';
	return n > 0 ? 0 : -ENOENT;
}

/* Is the process that the file names a service, of our name and user? */
static bool names_service(int fd)
{
	char text[32], name[32], own[32];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
	int64_t pid;

	text[MAX(n, 0)] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return str_to_int64(text, 1, INT32_MAX, &pid) == 0 && read_name("self", own) == 0 &&
	       read_name(text, name) == 0 && str_eq(name, own);
}

/* Returns a descriptor of the file that has replaced the one at `path`. */
static int replace(const char *key, const char *directory, const char *path, struct error *err)
{
	_cleanup_free_ char *guard_path = str_printf("%s.new", path);
	_cleanup_close_ int guard = -1, fd = -1;
	struct stat st;

	if (!guard_path)
		return error_oom(err);
	guard = open_file(guard_path, &st, err);
	if (guard < 0)
		return guard;
	/* A file system that knows no modes: what others may open there cannot be helped. */
	if (!is_private(&st))
		return open_file(path, &st, err);
	if (flock(guard, LOCK_EX) < 0)
		return error_errno(err, -errno, "cannot lock %s", guard_path);
	fd = open_file(path, &st, err);
	if (fd < 0 || is_private(&st))
		return fd < 0 ? fd : steal_fd(&fd);
	/* The file may be of a service of an earlier version, or of a user who wants to
	 * prevent this start. */
	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && names_service(fd))
		return refuse(key, directory, fd, err);
	if (unlink(path) < 0)
		return error_errno(err, -errno, "cannot remove %s, which other users may lock", path);
	closep(&fd);
	fd = open_file(path, &st, err);
	/* Whoever waits for the guard, or makes a new one, finds the new file. */
	if (fd >= 0)
		unlink(guard_path);
	return steal_fd(&fd);
}

int lock_take(const char *key, const char *directory, int *out, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, "dtraind.lock");
	_cleanup_close_ int fd = -1;
	struct stat st;
	char pid[32];
	int r;

	if (!path)
		return error_oom(err);
	r = file_mkdirs(directory, 0755, err);
	if (r < 0)
		return error_prefix(err, "%s", key);
	fd = open_file(path, &st, err);
	if (fd >= 0 && !is_private(&st)) {
		closep(&fd);
		fd = replace(key, directory, path, err);
	}
	if (fd < 0)
		return fd;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? refuse(key, directory, fd, err)
		                            : error_errno(err, -errno, "cannot lock %s", path);
	snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
	if (ftruncate(fd, 0) < 0 || pwrite(fd, pid, strlen(pid), 0) < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	*out = steal_fd(&fd);
	return 0;
}
