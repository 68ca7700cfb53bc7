/* SPDX-License-Identifier: Apache-2.0 */
/* Finding and ending processes through /proc: what a program started, and what it left behind. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* Sends sig to every descendant of root (not to root itself); returns how many there are that are not
 * zombies, and in *first (may be NULL) one of them. A process that forks meanwhile is found the next time:
 * repeat until 0. */
int processes_signal_descendants(pid_t root, int sig, pid_t *first);

/* Sends sig to every process of user uid whose environment holds all of the NULL-terminated "K=V" entries;
 * returns how many there are. For what is left when the launcher itself was killed, and its tree with it. */
int processes_signal_marked(uid_t uid, const char *const *marks, int sig);

/* How often the kernel's OOM killer has struck since boot; -1 where it does not say. */
int64_t processes_oom_kills(void);

/* "name (pid N)" and, where it is so, "in uninterruptible sleep": for a person, into buf, returned. */
const char *processes_describe(pid_t pid, char *buf, size_t size);
