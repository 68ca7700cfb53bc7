/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded: a disk that takes SLOW_WRITE_MS for every write of a kilobyte or more. */
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
