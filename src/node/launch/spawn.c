/* SPDX-License-Identifier: Apache-2.0 */
/* The one place from which the service executes programs. */
#include "node/launch/spawn.h"

#include <signal.h>

int spawn_program(const char *program, char *const argv[], char *const environment[],
                  posix_spawn_file_actions_t *actions, int flags, pid_t *pid)
{
	posix_spawnattr_t attributes;
	sigset_t none, all;
	int r;

	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(&attributes,
	                         (short)(flags | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
	r = posix_spawn(pid, program, actions, &attributes, argv, environment);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(actions);
	return -r;
}
