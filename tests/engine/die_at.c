/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library for LD_PRELOAD that counts the calls by which a process changes what lies below the directory
 * DIE_BELOW, and sends the process the signal DIE_SIGNAL before call number DIE_AT. A write is cut in half:
 * the first half of it is written. At its end a process writes the number of its calls to DIE_COUNT.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(result, name, ...) result (*real)(__VA_ARGS__) = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static atomic_long calls;

static int is_below(const char *path)
{
	const char *below = getenv("DIE_BELOW");

	return below && !strncmp(path, below, strlen(below));
}

/* Of an open file or directory, with a name in it or NULL. */
static int is_below_open(int fd, const char *name)
{
	char link[64], path[PATH_MAX];
	ssize_t n;

	if (name && (*name == '/' || fd == AT_FDCWD))
		return is_below(name);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return 0;
	path[n] = '\0';
	return is_below(path);
}

/* Whether this call is the one. */
static int is_last(int counts)
{
	const char *at = getenv("DIE_AT");

	return counts && atomic_fetch_add(&calls, 1) + 1 == (at ? atol(at) : 0);
}

static void die(void)
{
	const char *number = getenv("DIE_SIGNAL");

	kill(getpid(), number ? atoi(number) : SIGKILL);
}

static void check(int counts)
{
	if (is_last(counts))
		die();
}

__attribute__((destructor)) static void report(void)
{
	const char *path = getenv("DIE_COUNT");
	FILE *f = path ? fopen(path, "w") : NULL;

	if (f) {
		fprintf(f, "%ld\n", atomic_load(&calls));
		fclose(f);
	}
}

int open(const char *path, int flags, ...)
{
	REAL(int, "open", const char *, int, ...);
	va_list more;
	mode_t mode = 0;

	if (flags & (O_CREAT | O_TMPFILE)) {
		va_start(more, flags);
		mode = va_arg(more, mode_t);
		va_end(more);
	}
	check((flags & (O_CREAT | O_TRUNC)) && is_below(path));
	return real(path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t len)
{
	REAL(ssize_t, "write", int, const void *, size_t);

	if (fd > 2 && is_last(is_below_open(fd, NULL))) {
		ssize_t n = len > 1 ? real(fd, data, len / 2) : 0;

		die();
		return n > 0 ? n : real(fd, data, len);
	}
	return real(fd, data, len);
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t at)
{
	REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);

	check(is_below_open(fd, NULL));
	return real(fd, data, len, at);
}

int ftruncate(int fd, off_t length)
{
	REAL(int, "ftruncate", int, off_t);

	check(is_below_open(fd, NULL));
	return real(fd, length);
}

int fsync(int fd)
{
	REAL(int, "fsync", int);

	check(is_below_open(fd, NULL));
	return real(fd);
}

int mkdir(const char *path, mode_t mode)
{
	REAL(int, "mkdir", const char *, mode_t);

	check(is_below(path));
	return real(path, mode);
}

int rename(const char *from, const char *to)
{
	REAL(int, "rename", const char *, const char *);

	check(is_below(to));
	return real(from, to);
}

int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned int flags)
{
	REAL(int, "renameat2", int, const char *, int, const char *, unsigned int);

	check(is_below_open(to_directory, to));
	return real(from_directory, from, to_directory, to, flags);
}

int unlink(const char *path)
{
	REAL(int, "unlink", const char *);

	check(is_below(path));
	return real(path);
}

int unlinkat(int directory, const char *name, int flags)
{
	REAL(int, "unlinkat", int, const char *, int);

	check(is_below_open(directory, name));
	return real(directory, name, flags);
}

int rmdir(const char *path)
{
	REAL(int, "rmdir", const char *);

	check(is_below(path));
	return real(path);
}

int remove(const char *path)
{
	REAL(int, "remove", const char *);

	check(is_below(path));
	return real(path);
}
