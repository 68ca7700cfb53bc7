/* SPDX-License-Identifier: Apache-2.0 */
/* Repeats a piece of work and lets one call of the system after the other fail with EIO: each time the work
 * has to report it. For the one source file of a program that is linked with $(failing_calls_ldflags); the
 * calls of the thread that calls calls_fail_in_turn count. */
#pragma once

#include "unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-event.h>

static _Thread_local long calls_left;           /* until one fails; 0: none does */
static _Thread_local const char *calls_counted; /* " open mkdir ", the names of those that count */
static _Thread_local const char *calls_refused; /* the name of the one that has failed */

static bool call_is_refused(const char *name)
{
	char word[64];

	snprintf(word, sizeof(word), " %s ", name);
	if (calls_left == 0 || !strstr(calls_counted, word) || --calls_left > 0)
		return false;
	calls_refused = name;
	errno = EIO;
	return true;
}

#define DEFINE_FAILING_CALL(TYPE, NAME, FAILURE, PARAMETERS, ...)                                            \
	TYPE __real_##NAME PARAMETERS;                                                                       \
	TYPE __wrap_##NAME PARAMETERS;                                                                       \
	TYPE __wrap_##NAME PARAMETERS                                                                        \
	{                                                                                                    \
		return call_is_refused(#NAME) ? FAILURE : __real_##NAME(__VA_ARGS__);                        \
	}

DEFINE_FAILING_CALL(int, open, -1, (const char *path, int flags, mode_t mode), path, flags, mode)
DEFINE_FAILING_CALL(int, mkdir, -1, (const char *path, mode_t mode), path, mode)
DEFINE_FAILING_CALL(int, rename, -1, (const char *from, const char *to), from, to)
DEFINE_FAILING_CALL(int, unlink, -1, (const char *path), path)
DEFINE_FAILING_CALL(int, fchmod, -1, (int fd, mode_t mode), fd, mode)
DEFINE_FAILING_CALL(int, fchown, -1, (int fd, uid_t uid, gid_t gid), fd, uid, gid)
DEFINE_FAILING_CALL(int, fstat, -1, (int fd, struct stat *st), fd, st)
DEFINE_FAILING_CALL(int, fsync, -1, (int fd), fd)
DEFINE_FAILING_CALL(int, fallocate, -1, (int fd, int mode, off_t at, off_t size), fd, mode, at, size)
DEFINE_FAILING_CALL(ssize_t, write, -1, (int fd, const void *data, size_t size), fd, data, size)
DEFINE_FAILING_CALL(ssize_t, pwrite, -1, (int fd, const void *data, size_t size, off_t at), fd, data, size,
                    at)
DEFINE_FAILING_CALL(DIR *, opendir, NULL, (const char *path), path)
DEFINE_FAILING_CALL(int, socket, -1, (int domain, int type, int protocol), domain, type, protocol)
DEFINE_FAILING_CALL(int, socketpair, -1, (int domain, int type, int protocol, int fds[2]), domain, type,
                    protocol, fds)
DEFINE_FAILING_CALL(int, bind, -1, (int fd, const struct sockaddr *address, socklen_t size), fd, address,
                    size)
DEFINE_FAILING_CALL(int, connect, -1, (int fd, const struct sockaddr *address, socklen_t size), fd, address,
                    size)
DEFINE_FAILING_CALL(int, listen, -1, (int fd, int backlog), fd, backlog)
DEFINE_FAILING_CALL(int, memfd_create, -1, (const char *name, unsigned flags), name, flags)
DEFINE_FAILING_CALL(int, eventfd, -1, (unsigned value, int flags), value, flags)
DEFINE_FAILING_CALL(int, pipe2, -1, (int fds[2], int flags), fds, flags)
DEFINE_FAILING_CALL(pid_t, fork, -1, (void), )
DEFINE_FAILING_CALL(int, pidfd_open, -1, (pid_t pid, unsigned flags), pid, flags)
DEFINE_FAILING_CALL(int, posix_spawn, EIO,
                    (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,
                     const posix_spawnattr_t *attributes, char *const argv[], char *const environment[]),
                    pid, path, actions, attributes, argv, environment)
DEFINE_FAILING_CALL(int, pthread_create, EIO,
                    (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *),
                     void *context),
                    thread, attributes, run, context)
DEFINE_FAILING_CALL(int, sd_event_add_io, -EIO,
                    (sd_event * event, sd_event_source **source, int fd, uint32_t events,
                     sd_event_io_handler_t handler, void *context),
                    event, source, fd, events, handler, context)
DEFINE_FAILING_CALL(int, sd_event_add_time, -EIO,
                    (sd_event * event, sd_event_source **source, clockid_t clock, uint64_t usec,
                     uint64_t accuracy, sd_event_time_handler_t handler, void *context),
                    event, source, clock, usec, accuracy, handler, context)
DEFINE_FAILING_CALL(int, sd_event_add_time_relative, -EIO,
                    (sd_event * event, sd_event_source **source, clockid_t clock, uint64_t usec,
                     uint64_t accuracy, sd_event_time_handler_t handler, void *context),
                    event, source, clock, usec, accuracy, handler, context)
DEFINE_FAILING_CALL(int, sd_event_add_defer, -EIO,
                    (sd_event * event, sd_event_source **source, sd_event_handler_t handler, void *context),
                    event, source, handler, context)
DEFINE_FAILING_CALL(int, sd_event_add_inotify, -EIO,
                    (sd_event * event, sd_event_source **source, const char *path, uint32_t mask,
                     sd_event_inotify_handler_t handler, void *context),
                    event, source, path, mask, handler, context)
DEFINE_FAILING_CALL(int, sd_event_source_set_enabled, -EIO, (sd_event_source * source, int enabled), source,
                    enabled)
DEFINE_FAILING_CALL(int, sd_event_source_set_priority, -EIO, (sd_event_source * source, int64_t priority),
                    source, priority)

/* work: makes something and releases it; 0 or a negative errno. names: " open write ", the calls of it that
 * it cannot do without. At least one has to come. */
static inline void calls_fail_in_turn(int (*work)(void *context, struct error *err), void *context,
                                      const char *names)
{
	calls_counted = names;
	for (long n = 1;; n++) {
		struct error err = ERROR_INIT;
		int r;

		mark_point();
		calls_refused = NULL;
		calls_left = n;
		r = work(context, &err);
		calls_left = 0;
		if (!calls_refused) {
			ck_ok(r, &err);
			ck_assert_int_gt(n, 1);
			break;
		}
		ck_assert_msg(r < 0, "call %ld, %s, failed, and nothing was reported", n, calls_refused);
		ck_assert_msg(r == -EIO, "call %ld, %s, failed: %d, %s", n, calls_refused, r, err.message);
		ck_assert_msg(strstr(err.message, strerror(EIO)), "call %ld, %s: \"%s\" does not say why", n,
		              calls_refused, err.message);
	}
}
