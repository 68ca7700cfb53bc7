/* SPDX-License-Identifier: Apache-2.0 */
/* Executes a program with no signal blocked and none ignored, whatever the service has set. */
#pragma once

#include <spawn.h>
#include <sys/types.h>

/* 0 or -errno. Takes `actions`, which it destroys. flags: POSIX_SPAWN_SETSID, POSIX_SPAWN_SETPGROUP. */
int spawn_program(const char *program, char *const argv[], char *const environment[],
                  posix_spawn_file_actions_t *actions, int flags, pid_t *pid);
