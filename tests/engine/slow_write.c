/* SPDX-License-Identifier: Apache-2.0 */
/* A library for LD_PRELOAD that delays every write of a kilobyte or more by SLOW_WRITE_MS. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

ssize_t write(int fd, const void *data, size_t len)
{
	ssize_t (*real)(int, const void *, size_t) =
	    (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
	const char *ms = getenv("SLOW_WRITE_MS");

	if (len >= 1024 && ms)
		usleep(1000 * (useconds_t)atoi(ms));
	return real(fd, data, len);
}
