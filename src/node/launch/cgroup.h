/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A control group (version 2) for each attempt, below the group of dtraind. A process cannot leave it with
 * the rights of its user, whatever it does to its environment, its session and its parent. Where no group can
 * be made (an ordinary user without delegation, a read-only /sys/fs/cgroup), there is none.
 */
#pragma once

#include <sys/types.h>

/* The directory in which this process may make groups for the attempts of runtime_dir, owned by the caller;
 * NULL: nowhere. It is made with the first group. */
char *cgroup_find_base(const char *runtime_dir);
/* Makes the group and its parent. A negative errno: there is none. */
int cgroup_create(const char *path);
/* fork() whose child is in the group from its first instruction; NULL, or where it cannot be so: outside of
 * it. For a process of one thread. */
pid_t cgroup_fork(const char *path);
/* KILL to all processes in it and in the groups below it; returns whether there are any, zombies not counted.
 */
int cgroup_kill(const char *path);
/* Removes it with the groups below it, and its parent, where no process is in them. */
void cgroup_remove(const char *path);
