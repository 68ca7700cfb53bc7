/* SPDX-License-Identifier: Apache-2.0 */
/* A key-value store in a directory, for tests and benchmarks on one machine: a key is a file, renamed into
 * place. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/comm/comm.h"

static inline void rendezvous_path(char *path, size_t size, const char *directory, const char *key)
{
	int at = snprintf(path, size, "%s/", directory);

	snprintf(path + at, size - at, "%s", key);
	for (char *p = path + at; *p; p++)
		if (*p == '/')
			*p = '_';
}

static inline int kv_store_put(void *context, const char *key, const void *data, size_t len,
                               struct error *err)
{
	char path[512], temporary[540];
	_cleanup_close_ int fd = -1;

	rendezvous_path(path, sizeof(path), context, key);
	snprintf(temporary, sizeof(temporary), "%s.%d", path, (int)getpid());
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, data, len) != (ssize_t)len || rename(temporary, path) < 0)
		return error_errno(err, -errno, "%s", path);
	return 0;
}

static inline int kv_store_get(void *context, const char *key, int timeout_ms, void **data, size_t *len,
                               struct error *err)
{
	_cleanup_close_ int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	double deadline = clock_monotonic() + timeout_ms * 1e-3;
	char path[512], events[4096];

	rendezvous_path(path, sizeof(path), context, key);
	inotify_add_watch(watch, context, IN_MOVED_TO);
	for (;;) {
		_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
		struct pollfd wait = {.fd = watch, .events = POLLIN};
		double left = deadline - clock_monotonic();
		struct stat st;

		if (fd >= 0) {
			if (fstat(fd, &st) < 0 || !(*data = malloc(st.st_size + 1)))
				return error_oom(err);
			*len = st.st_size;
			if (read(fd, *data, *len) == (ssize_t)*len)
				return 0;
			free(*data);
			return error_set(err, -EIO, "%s: short", path);
		}
		if (left <= 0)
			return error_set(err, -ETIMEDOUT, "%s: not there", path);
		poll(&wait, 1, (int)(left * 1000) + 1);
		(void)!read(watch, events, sizeof(events));
	}
}

static inline struct kv_store kv_store_in(const char *directory)
{
	return (struct kv_store){(void *)directory, kv_store_put, kv_store_get};
}
