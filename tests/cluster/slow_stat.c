/* SPDX-License-Identifier: Apache-2.0 */
/* A network file system that is down, for test_hung_preflight: loaded with LD_PRELOAD, it never answers for
 * paths with "hung-mount" in them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void hang(const char *path)
{
	while (path && strstr(path, "hung-mount"))
		pause();
}

int stat(const char *restrict path, struct stat *restrict st)
{
	int (*next)(const char *restrict, struct stat *restrict) = dlsym(RTLD_NEXT, "stat");

	hang(path);
	return next(path, st);
}

int faccessat(int fd, const char *path, int mode, int flags)
{
	int (*next)(int, const char *, int, int) = dlsym(RTLD_NEXT, "faccessat");

	hang(path);
	return next(fd, path, mode, flags);
}
