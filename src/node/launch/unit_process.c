/* SPDX-License-Identifier: Apache-2.0 */
/* Units without systemd: dtrain-launch as a child, in a control group where one can be made. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "node/launch/cgroup.h"
#include "node/launch/launch.h"
#include "node/launch/processes.h"
#include "node/launch/spawn.h"
#include "node/launch/unit_internal.h"

/* Between two searches for what a killed launcher left; between the end of the connection with dtrain-launch
 * and that of its guard, after which processes that it has left do not die. */
enum { AGAIN_USEC = 20000, SILENCE_USEC = 5 * 1000 * 1000 };

/* Where no control group can be made, dtrain-launch and its guard, as subreapers, keep the processes
 * together. */
static int prepare(struct unit *unit, struct error *err)
{
	const char *name = strrchr(unit->identity.dir, '/');

	if (!unit->units->cgroups || !name)
		return 0;
	unit->cgroup = str_printf("%s%s", unit->units->cgroups, name);
	if (!unit->cgroup)
		return error_oom(err);
	if (cgroup_create(unit->cgroup) < 0)
		free(steal_pointer(unit->cgroup));
	return 0;
}

static void close_child(struct unit *unit)
{
	unit->child = sd_event_source_disable_unref(unit->child);
	if (unit->pidfd >= 0)
		close(unit->pidfd);
	unit->pidfd = -1;
}

/* The guard has ended what was left, unless it was killed, too: the owner asks for a kill where the end was
 * not on record. */
static void report_exit(struct unit *unit, const char *why)
{
	unit_report_exit(unit, why, true);
	if (!unit->killing)
		unit_report_empty(unit);
}

static int on_child(sd_event_source *source, int fd, uint32_t events, void *context)
{
	struct unit *unit = context;
	siginfo_t info = {0};
	char why[100];

	if (waitid(P_PIDFD, fd, &info, WEXITED | WNOHANG) == 0 && info.si_pid == 0)
		return 0;
	close_child(unit);
	if (info.si_code == CLD_EXITED)
		snprintf(why, sizeof why, "dtrain-launch ended with exit status %d", info.si_status);
	else
		snprintf(why, sizeof why, "dtrain-launch was killed by SIG%s",
		         sigabbrev_np(info.si_status) ?: "?");
	report_exit(unit, why);
	return 0;
}

static int spawn_launcher(struct unit *unit, const struct unit_start *start, pid_t *pid)
{
	char *argv[] = {(char *)"dtrain-launch", (char *)unit->identity.dir, NULL}, *environment[] = {NULL};
	posix_spawn_file_actions_t actions;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, start->listen_fd, LAUNCH_SOCKET_FD);
	posix_spawn_file_actions_addclosefrom_np(&actions, LAUNCH_SOCKET_FD + 1);
	return spawn_program(start->program, argv, environment, &actions, POSIX_SPAWN_SETSID, pid);
}

static int start(struct unit *unit, const struct unit_start *start, struct error *err)
{
	pid_t pid;
	int r;

	if (unit->cgroup && cgroup_limit(unit->cgroup, start->limits) < 0)
		log_debug("run %lld: this control group cannot limit memory, tasks and CPUs: %s",
		          (long long)unit->identity.run, unit->cgroup);
	r = spawn_launcher(unit, start, &pid);
	if (r < 0)
		return error_errno(err, r, "cannot start %s", start->program);
	unit->launcher = pid;
	unit->pidfd = pidfd_open(pid, 0);
	r = unit->pidfd < 0
	        ? -errno
	        : sd_event_add_io(unit->units->event, &unit->child, unit->pidfd, EPOLLIN, on_child, unit);
	if (r < 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		close_child(unit);
		return error_errno(err, r, "cannot watch %s", start->program);
	}
	return 0;
}

static bool is_watched(const struct unit *unit)
{
	return unit->pidfd >= 0;
}

static int on_silence(sd_event_source *source, uint64_t usec, void *context)
{
	struct unit *unit = context;

	unit_report_exit(unit, "dtrain-launch was killed, and processes that it has left do not die", true);
	return 0;
}

/* The guard holds the socket open, and does not end, until it has ended all that was left. Where it is not
 * our child, a socket that is closed is its end. */
static void disconnected(struct unit *unit, bool reconnected)
{
	if (unit->pidfd < 0 && !reconnected) {
		if (!unit->killing)
			report_exit(unit, "dtrain-launch is gone: it was killed");
		return;
	}
	if (!unit->silence && sd_event_add_time_relative(unit->units->event, &unit->silence, CLOCK_MONOTONIC,
	                                                 SILENCE_USEC, 0, on_silence, unit) < 0)
		log_err("cannot wait for the guard of run %lld", (long long)unit->identity.run);
}

/* Is this the dtrain-launch of another unit? */
static bool is_launcher(void *context, pid_t pid)
{
	const struct unit *unit = context;

	for (const struct unit *other = unit->units->first; other; other = other->next)
		if (other != unit && other->launcher == pid)
			return true;
	return false;
}

/* What a killed launcher left. The guard of dtrain-launch has ended it, unless it was killed, too. Then the
 * control group knows all of it; without one our own orphans are what became our children. Of a launcher that
 * an earlier dtraind started these became init's, but for the ranks, which are killed when their launcher
 * dies (PR_SET_PDEATHSIG). Where the attempt's directory was removed, guard and launcher may still live. */
static bool kill_unit(struct unit *unit)
{
	const struct unit_identity *id = &unit->identity;
	int left = unit->cgroup ? cgroup_kill(unit->cgroup) : 0;

	if (file_exists(id->dir))
		left += processes_signal_orphans(is_launcher, unit, SIGKILL);
	else
		left += processes_signal_launcher(id->dir, SIGKILL);
	return left > 0;
}

/* The sender of a signal to dtrain-launch is not known here. */
static bool ask_stop(struct unit *unit)
{
	return false;
}

static void remove_unit(struct unit *unit)
{
	if (unit->cgroup)
		cgroup_remove(unit->cgroup);
}

static void release(struct unit *unit)
{
	close_child(unit);
}

const struct unit_method unit_process = {
    .name = "process",
    .prepare = prepare,
    .start = start,
    .is_watched = is_watched,
    .disconnected = disconnected,
    .kill = kill_unit,
    .kill_usec = AGAIN_USEC,
    .ask_stop = ask_stop,
    .remove = remove_unit,
    .release = release,
};
