/* SPDX-License-Identifier: Apache-2.0 */
/* Finding and ending processes through /proc: what a program started, and what it left behind. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Sends sig to every descendant of root (not to root itself); returns how many there are that are not
 * zombies, and in *first (may be NULL) one of them. A process that forks meanwhile is found the next time:
 * repeat until 0. */
int processes_signal_descendants(pid_t root, int sig, pid_t *first);

/* Sends TERM to every descendant of root whose process group spare() does not name, and CONT, since what is
 * stopped takes TERM only then. */
void processes_terminate_descendants(pid_t root, bool (*spare)(void *context, pid_t group), void *context);

/* Sends sig to every child of the calling process (a subreaper) that has a session other than the caller's,
 * and to all descendants of those; reaps the children that have ended. That is what a killed launcher leaves,
 * since a process may make itself a new session but never enter ours. Children of which spare() is true,
 * launchers that live, are left alone with all below them. Returns how many there are that are not
 * zombies. */
int processes_signal_orphans(bool (*spare)(void *context, pid_t pid), void *context, int sig);

/* Sends sig to all that is below the launcher, "dtrain-launch DIR", of our own user, and to the launcher
 * itself once nothing is; its guard then ends by itself. Returns how many of guard and launcher there are. */
int processes_signal_launcher(const char *dir, int sig);

/* How often the kernel's OOM killer has struck since boot; -1 where it does not say. */
int64_t processes_oom_kills(void);

/* "name (pid N)" and, where it is so, "in uninterruptible sleep": for a person, into buf, returned. */
const char *processes_describe(pid_t pid, char *buf, size_t size);
