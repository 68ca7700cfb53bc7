/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A control group (version 2) for each attempt, below the group of dtraind. A process cannot leave it with
 * the rights of its user, whatever it does to its environment, its session and its parent. Where no group can
 * be made (an ordinary user without delegation, a read-only /sys/fs/cgroup), there is none.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* Of all processes in a group together; UINT64_MAX: as many as there are. */
struct cgroup_limits {
	uint64_t memory;  /* bytes */
	uint64_t tasks;   /* processes and threads */
	const char *cpus; /* "0-7"; NULL: all */
};

/* The directory in which this process may make groups for the attempts of runtime_dir, owned by the caller;
 * NULL: nowhere. It is made with the first group. */
char *cgroup_find_base(const char *runtime_dir);
/* Makes the group and its parent. A negative errno: there is none. */
int cgroup_create(const char *path);
/* Where the controllers can be switched on for it, and so far as they can be. -ENOTSUP: not all of these
 * limits hold. */
int cgroup_limit(const char *path, const struct cgroup_limits *limits);
/* The file that counts how often the OOM killer has struck in the group of this process (version 2, or of the
 * memory controller of version 1), owned by the caller; NULL: there is none. */
char *cgroup_oom_file(void);
/* What that file counts; NULL, or where it cannot be read: -1. */
int64_t cgroup_oom_kills(const char *file);
/* fork() whose child is in the group from its first instruction; NULL, or where it cannot be so: outside of
 * it. For a process of one thread. */
pid_t cgroup_fork(const char *path);
/* KILL to all processes in it and in the groups below it; returns whether there are any, zombies not
 * counted. */
int cgroup_kill(const char *path);
/* Removes it with the groups below it, where no process is in them. */
void cgroup_remove(const char *path);
/* Its parent, where no other group is in that. The service keeps it for the next attempt while it runs. */
void cgroup_remove_parent(const char *path);
