/* SPDX-License-Identifier: Apache-2.0 */
/* A machine whose clock is wrong by the seconds in the file $CLOCK_SHIFT, loaded with LD_PRELOAD
 * (test_faults). libfaketime would shift the timers of the monotonic clocks too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void)
{
	const char *path = getenv("CLOCK_SHIFT");
	int saved = errno, fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	char text[32] = "";

	if (fd >= 0) {
		if (read(fd, text, sizeof(text) - 1) < 0)
			text[0] = 0;
		close(fd);
	}
	errno = saved;
	return strtol(text, NULL, 10);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int (*next)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
	int r = next(clock, t);

	if (r == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		t->tv_sec += shift();
	return r;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	int (*next)(struct timeval *restrict, void *restrict) = dlsym(RTLD_NEXT, "gettimeofday");
	int r = next(t, zone);

	if (r == 0)
		t->tv_sec += shift();
	return r;
}

time_t time(time_t *out)
{
	struct timespec now;
	time_t t = clock_gettime(CLOCK_REALTIME, &now) == 0 ? now.tv_sec : (time_t)-1;

	if (out)
		*out = t;
	return t;
}
