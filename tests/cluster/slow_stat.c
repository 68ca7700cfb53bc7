/* SPDX-License-Identifier: Apache-2.0 */
/* What a machine depends on and what does not answer, loaded with LD_PRELOAD: a network file system for paths
 * with "hung-mount" in them (test_hung_preflight), DNS for the name "hung-name", and the password database as
 * long as the file $HUNG_USERS is there (test_hung_names); and the disk under the store and the node's
 * own files, which takes 2 s for each sync as long as the file $SLOW_STORE is there (test_slow_store). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
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

int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict out)
{
	int (*next)(const char *restrict, const char *restrict, const struct addrinfo *restrict,
	            struct addrinfo **restrict) = dlsym(RTLD_NEXT, "getaddrinfo");

	while (name && strcmp(name, "hung-name") == 0)
		pause();
	return next(name, service, hints, out);
}

int getpwuid_r(uid_t uid, struct passwd *restrict pw, char *restrict buf, size_t size,
               struct passwd **restrict found)
{
	int (*next)(uid_t, struct passwd *restrict, char *restrict, size_t, struct passwd **restrict) =
	    dlsym(RTLD_NEXT, "getpwuid_r");
	const char *hung = getenv("HUNG_USERS");

	while (hung && access(hung, F_OK) == 0)
		usleep(10000);
	return next(uid, pw, buf, size, found);
}

static void slow_down(int fd)
{
	const char *slow = getenv("SLOW_STORE");
	char link[64], path[4096];
	ssize_t n;

	if (!slow || access(slow, F_OK) < 0)
		return;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
	if (strstr(path, "/dtrain.db") || strstr(path, "/drained.json") || strstr(path, "/clusters.json"))
		sleep(2);
}

int fsync(int fd)
{
	int (*next)(int) = dlsym(RTLD_NEXT, "fsync");

	slow_down(fd);
	return next(fd);
}

int fdatasync(int fd)
{
	int (*next)(int) = dlsym(RTLD_NEXT, "fdatasync");

	slow_down(fd);
	return next(fd);
}
