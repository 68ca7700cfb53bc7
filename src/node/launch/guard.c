/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard of dtrain-launch: its parent process, which does nothing but wait. It is a subreaper, too: where
 * the launcher is killed (the kernel's OOM killer, an administrator), all that it started becomes the
 * guard's, and is killed here. The guard holds the listening socket open until that is done, and ends as the
 * launcher ended: so also a dtraind that is not its parent knows when nothing is left.
 *
 *     dtraind ── guard ── launcher ── ranks ── what they start
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "node/launch/cgroup.h"
#include "node/launch/launch.h"
#include "node/launch/processes.h"

static void __attribute__((noreturn)) end_as(int status)
{
	const struct rlimit none = {0, 0};
	sigset_t set;

	if (WIFEXITED(status))
		_exit(WEXITSTATUS(status));
	setrlimit(RLIMIT_CORE, &none); /* the launcher's own core is the one of interest */
	signal(WTERMSIG(status), SIG_DFL);
	sigfillset(&set);
	raise(WTERMSIG(status));
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	_exit(128 + WTERMSIG(status));
}

static void __attribute__((noreturn))
guard(pid_t launcher, pid_t service, const char *cgroup, const sigset_t *signals)
{
	const struct timespec pause = {0, 20 * 1000 * 1000};
	siginfo_t info = {0};
	int status = 0, other;
	pid_t pid;

	/* A shutdown of the machine sends TERM to all processes: it is the launcher's to act on, which may
	 * not have been there yet. */
	while ((pid = waitpid(launcher, &status, WNOHANG)) == 0)
		if (sigwaitinfo(signals, &info) > 0 && info.si_signo != SIGCHLD)
			kill(launcher, info.si_signo);
	for (;;) {
		while ((pid = waitpid(-1, &other, WNOHANG)) > 0)
			;
		/* A subreaper without children has no descendants. */
		if (pid < 0 && (!cgroup || !cgroup_kill(cgroup)))
			break;
		processes_signal_descendants(getpid(), SIGKILL, NULL);
		nanosleep(&pause, NULL);
	}
	if (cgroup) {
		cgroup_remove(cgroup);
		if (getppid() != service)
			cgroup_remove_parent(cgroup);
	}
	end_as(status);
}

int launch_guard(const char *cgroup, struct error *err)
{
	const pid_t service = getppid();
	sigset_t signals;
	pid_t pid;

	if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		return error_errno(err, -errno, "cannot become a subreaper");
	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	pid = cgroup_fork(cgroup);
	if (pid < 0)
		return error_errno(err, -errno, "fork");
	if (pid > 0)
		guard(pid, service, cgroup, &signals);
	return 0;
}
