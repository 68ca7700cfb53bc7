/* SPDX-License-Identifier: Apache-2.0 */
/* Files and directories: read whole, mapped, replaced at once, made, and removed with all below. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"

enum { LEAST_BUFFER = 4096 };

/* O_NONBLOCK: without it, opening a pipe would wait until another process opens it to write. */
int file_open_regular(const char *path, struct stat *st, struct error *err)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	int found;

	if (fd < 0 || fstat(fd, st) < 0)
		return error_errno(err, -errno, "cannot read %s", path);
	if (S_ISDIR(st->st_mode))
		return error_errno(err, -EISDIR, "cannot read %s", path);
	if (!S_ISREG(st->st_mode))
		return error_set(err, -EINVAL, "cannot read %s: it is a %s; a regular file is needed", path,
		                 S_ISFIFO(st->st_mode) ? "pipe" : "device");
	found = fd;
	fd = -1;
	return found;
}

/* Until something can be read, or the other side of a pipe has closed it. */
static bool wait_readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, -1) > 0 || errno == EINTR;
}

/* All that is left of an open file; `size` is what it is expected to hold. */
static int read_rest(int fd, const char *path, size_t size, size_t max, char **data, size_t *len,
                     struct error *err)
{
	/* One byte more than expected, so that a regular file needs no second allocation; pipes and the
	 * files of /proc and /sys, whose size is 0, grow. */
	size_t cap = MAX(size, (size_t)LEAST_BUFFER) + 2, n = 0;
	_cleanup_free_ char *buf = malloc(cap);

	if (!buf)
		return error_oom(err);
	for (;;) {
		ssize_t r;

		if (n + 1 >= cap) {
			char *p = realloc(buf, cap *= 2);

			if (!p)
				return error_oom(err);
			buf = p;
		}
		r = read(fd, buf + n, cap - n - 1);
		if (r < 0 && (errno == EINTR || (errno == EAGAIN && wait_readable(fd))))
			continue;
		if (r < 0)
			return error_errno(err, -errno, "cannot read %s", path);
		if (r == 0)
			break;
		n += r;
		if (max && n > max)
			return error_set(err, -EFBIG, "%s: larger than %zu bytes", path, max);
	}
	buf[n] = '\0';
	*data = steal_pointer(buf);
	if (len)
		*len = n;
	return 0;
}

int file_read(const char *path, size_t max, char **data, size_t *len, struct error *err)
{
	struct stat st;
	_cleanup_close_ int fd = file_open_regular(path, &st, err);

	return fd < 0 ? fd : read_rest(fd, path, (size_t)st.st_size, max, data, len, err);
}

int file_read_stream(const char *path, size_t max, char **data, size_t *len, struct error *err)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	size_t n;
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0)
		return error_errno(err, -errno, "cannot read %s", path);
	if (S_ISDIR(st.st_mode))
		return error_errno(err, -EISDIR, "cannot read %s", path);
	r = read_rest(fd, path, S_ISREG(st.st_mode) ? (size_t)st.st_size : 4096, max, data, &n, err);
	if (r < 0)
		return r;
	if (n == 0 && S_ISFIFO(st.st_mode)) {
		free(steal_pointer(*data));
		return error_set(err, -ENODATA, "cannot read %s: nothing writes to this pipe", path);
	}
	if (len)
		*len = n;
	return 0;
}

int file_write_all(int fd, const void *data, size_t len, struct error *err)
{
	const char *p = data;

	while (len > 0) {
		ssize_t r = write(fd, p, len);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return error_errno(err, -errno, "write failed");
		p += r;
		len -= r;
	}
	return 0;
}

int file_sync_directory(const char *path, struct error *err)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fsync(fd) < 0)
		return error_errno(err, -errno, "cannot sync directory %s", path);
	return 0;
}

int file_write_atomic(const char *path, const void *data, size_t len, mode_t mode, struct error *err)
{
	_cleanup_free_ char *tmp = str_printf("%s.tmp.%ld", path, (long)getpid());
	_cleanup_free_ char *copy = strdup(path);
	_cleanup_close_ int fd = -1;
	int r;

	if (!tmp || !copy)
		return error_oom(err);
	/* In a directory of another user such a file could be that user's, who would read what is written. */
	(void)unlink(tmp);
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	r = file_write_all(fd, data, len, err);
	if (r < 0)
		error_prefix(err, "%s", path);
	else if (fchmod(fd, mode) < 0 || fsync(fd) < 0 || rename(tmp, path) < 0)
		r = error_errno(err, -errno, "cannot write %s", path);
	if (r < 0) {
		unlink(tmp);
		return r;
	}
	return file_sync_directory(dirname(copy), err);
}

int file_mkdirs(const char *path, mode_t mode, struct error *err)
{
	_cleanup_free_ char *p = strdup(path);
	struct stat st;

	if (!p)
		return error_oom(err);
	for (char *s = p + 1;; s++) {
		char c = *s;

		if (c != '/' && c != '\0')
			continue;
		*s = '\0';
		if (mkdir(p, mode) < 0) {
			int code = -errno;

			if (code != -EEXIST && !(code == -EROFS && file_exists(p)))
				return error_errno(err, code, "cannot make directory %s", p);
		}
		*s = c;
		if (c == '\0')
			break;
	}
	if (stat(path, &st) < 0)
		return error_errno(err, -errno, "cannot make directory %s", path);
	if (!S_ISDIR(st.st_mode))
		return error_errno(err, -ENOTDIR, "cannot make directory %s", path);
	return 0;
}

bool file_exists(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0;
}

bool file_exists_in(const char *directory, const char *name)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s/%s", *directory ? directory : ".", name);

	return n > 0 && (size_t)n < sizeof(path) && file_exists(path);
}

int file_copy(const char *from, const char *to, struct error *err)
{
	struct stat st;
	_cleanup_close_ int in = file_open_regular(from, &st, err), out = -1;
	char buf[65536];
	ssize_t n;

	if (in < 0)
		return in;
	out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, st.st_mode & 0777);
	if (out < 0)
		return error_errno(err, -errno, "cannot write %s", to);
	while ((n = read(in, buf, sizeof(buf))) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return error_errno(err, -errno, "cannot read %s", from);
		if (file_write_all(out, buf, n, err) < 0)
			return error_prefix(err, "%s", to);
	}
	return 0;
}

int file_map_open(const char *path, struct file_map *map, struct error *err)
{
	struct stat st;
	_cleanup_close_ int fd = file_open_regular(path, &st, err);
	void *p;

	*map = (struct file_map){"", 0};
	if (fd < 0)
		return fd;
	if (st.st_size == 0)
		return 0;
	p = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return error_errno(err, -errno, "cannot map %s", path);
	map->data = p;
	map->len = st.st_size;
	return 0;
}

void file_map_close(struct file_map *map)
{
	if (map->len)
		munmap((void *)map->data, map->len);
	*map = (struct file_map){"", 0};
}

void file_map_release(const struct file_map *map)
{
	if (map->len)
		(void)madvise((void *)map->data, map->len, MADV_DONTNEED);
}
