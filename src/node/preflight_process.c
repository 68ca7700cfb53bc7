/* SPDX-License-Identifier: Apache-2.0 */
/* Executes the processes of preflights, and keeps one ready that forks for each request.
 *
 *     none ── prepare, a pause ──> STARTING ── {"ready":true} ──> READY ── take: a fork of it is the caller's
 *       ^                             │                             │
 *       └───────── ended ─────────────┘             ended: another is prepared
 */
#include "node/preflight_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/socket.h"
#include "base/str.h"
#include "node/launch/preflight.h"
#include "node/launch/spawn.h"

/* A start needs the processors for itself: a spare is executed after it. */
enum { PREPARE_USEC = 10000 };

struct preflight_spare {
	sd_event *event;
	sd_event_source *prepare, *answer;
	char *launcher;
	struct stat program; /* of the launcher when it was executed */
	struct preflight_process process;
	int request_fd; /* a socket; -1: there is none */
	bool ready;
};

/* One that hangs in the kernel ends when it can: the event loop has this source until then. */
static int on_reap(sd_event_source *source, int fd, uint32_t events, void *context)
{
	siginfo_t info = {0};

	if (waitid(P_PIDFD, fd, &info, WEXITED | WNOHANG) == 0 && info.si_pid == 0)
		return 0;
	sd_event_source_set_enabled(source, SD_EVENT_OFF);
	sd_event_source_set_floating(source, false);
	return 0;
}

static int watch_end(sd_event *event, int pidfd)
{
	sd_event_source *reap;
	int fd = fcntl(pidfd, F_DUPFD_CLOEXEC, 0), r;

	if (fd < 0)
		return -errno;
	r = sd_event_add_io(event, &reap, fd, EPOLLIN, on_reap, NULL);
	if (r < 0) {
		close(fd);
		return r;
	}
	sd_event_source_set_io_fd_own(reap, true);
	sd_event_source_set_floating(reap, true);
	sd_event_source_unref(reap);
	return 0;
}

static int spawn(const char *launcher, int in, int out, pid_t *pid)
{
	char *argv[] = {(char *)"dtrain-launch", (char *)"--preflight", NULL};
	posix_spawn_file_actions_t actions;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	/* In our session: children of ours in others are what killed launchers left (processes.h). */
	return spawn_program(launcher, argv, environ, &actions, POSIX_SPAWN_SETPGROUP, pid);
}

/* Ours does not block. */
static int make_answer(int *ours, int *theirs)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		return -errno;
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	*ours = fds[0];
	*theirs = fds[1];
	return 0;
}

int preflight_process_start(sd_event *event, const char *launcher, int request_fd,
                            struct preflight_process *out, struct error *err)
{
	_cleanup_close_ int answer = -1, pidfd = -1, theirs = -1;
	int r = make_answer(&answer, &theirs);
	pid_t pid;

	if (r < 0)
		return error_errno(err, r, "cannot make a socket");
	r = spawn(launcher, request_fd, theirs, &pid);
	if (r < 0)
		return error_errno(err, r, "cannot start %s", launcher);
	pidfd = pidfd_open(pid, 0);
	r = pidfd < 0 ? -errno : watch_end(event, pidfd);
	if (r < 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return error_errno(err, r, "cannot watch %s", launcher);
	}
	*out = (struct preflight_process){steal_fd(&answer), steal_fd(&pidfd)};
	return 0;
}

ssize_t preflight_process_read(struct preflight_process *process, char *buf, size_t size)
{
	size_t count = 1;
	int fd;
	ssize_t n = socket_receive(process->answer_fd, buf, size, &fd, &count);

	if (n < 0 || count == 0)
		return n;
	if (process->pidfd < 0)
		process->pidfd = fd;
	else
		close(fd);
	return n;
}

void preflight_process_kill(struct preflight_process *process)
{
	if (process->pidfd >= 0) {
		pidfd_send_signal(process->pidfd, SIGKILL, NULL, 0);
		close(process->pidfd);
	}
	if (process->answer_fd >= 0)
		close(process->answer_fd);
	*process = (struct preflight_process){-1, -1};
}

void preflight_spare_drop(struct preflight_spare *s)
{
	s->answer = sd_event_source_disable_unref(s->answer);
	preflight_process_kill(&s->process);
	if (s->request_fd >= 0)
		close(s->request_fd);
	s->request_fd = -1;
	s->ready = false;
}

static int on_answer(sd_event_source *source, int fd, uint32_t events, void *context)
{
	struct preflight_spare *s = context;
	bool was_ready = s->ready;
	char line[sizeof(PREFLIGHT_READY)];
	ssize_t n = read(fd, line, sizeof(line));

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (!s->ready && n == (ssize_t)strlen(PREFLIGHT_READY) && !memcmp(line, PREFLIGHT_READY, n)) {
		s->ready = true;
		return 0;
	}
	/* It has ended, or is not what it should be. One that never was ready would not be the next time. */
	preflight_spare_drop(s);
	if (was_ready)
		preflight_spare_prepare(s, s->launcher);
	return 0;
}

static int start(struct preflight_spare *s, struct error *err)
{
	_cleanup_close_ int theirs = -1;
	int fds[2], r;

	if (stat(s->launcher, &s->program) < 0)
		return error_errno(err, -errno, "%s", s->launcher);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		return error_errno(err, -errno, "cannot make a socket");
	s->request_fd = fds[0];
	theirs = fds[1];
	r = preflight_process_start(s->event, s->launcher, theirs, &s->process, err);
	if (r < 0)
		return r;
	r = sd_event_add_io(s->event, &s->answer, s->process.answer_fd, EPOLLIN, on_answer, s);
	return r < 0 ? error_errno(err, r, "cannot watch %s", s->launcher) : 0;
}

static int on_prepare(sd_event_source *source, uint64_t usec, void *context)
{
	struct preflight_spare *s = context;

	if (s->request_fd < 0 && start(s, NULL) < 0)
		preflight_spare_drop(s);
	return 0;
}

int preflight_spare_create(sd_event *event, struct preflight_spare **out, struct error *err)
{
	struct preflight_spare *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return error_oom(err);
	*s = (struct preflight_spare){.event = event, .process = {-1, -1}, .request_fd = -1};
	r = sd_event_add_time_relative(event, &s->prepare, CLOCK_MONOTONIC, 0, 1000, on_prepare, s);
	if (r >= 0)
		r = sd_event_source_set_enabled(s->prepare, SD_EVENT_OFF);
	if (r >= 0)
		r = sd_event_source_set_priority(s->prepare, SD_EVENT_PRIORITY_IDLE);
	if (r < 0) {
		preflight_spare_destroy(s);
		return error_errno(err, r, "event loop");
	}
	*out = s;
	return 0;
}

void preflight_spare_destroy(struct preflight_spare *s)
{
	if (!s)
		return;
	preflight_spare_drop(s);
	sd_event_source_disable_unref(s->prepare);
	free(s->launcher);
	free(s);
}

void preflight_spare_prepare(struct preflight_spare *s, const char *launcher)
{
	char *copy = strdup(launcher);

	if (!copy)
		return;
	if (s->request_fd >= 0 && !str_eq(s->launcher, launcher))
		preflight_spare_drop(s);
	free(s->launcher);
	s->launcher = copy;
	if (s->request_fd < 0 && sd_event_source_set_time_relative(s->prepare, PREPARE_USEC) >= 0)
		sd_event_source_set_enabled(s->prepare, SD_EVENT_ONESHOT);
}

bool preflight_spare_is_ready(const struct preflight_spare *s)
{
	return s->ready;
}

/* An upgrade puts a new file in the place of the program. */
static bool is_program(const struct preflight_spare *s, const char *launcher)
{
	struct stat now;

	return str_eq(s->launcher, launcher) && stat(launcher, &now) == 0 &&
	       now.st_dev == s->program.st_dev && now.st_ino == s->program.st_ino &&
	       now.st_mtim.tv_sec == s->program.st_mtim.tv_sec &&
	       now.st_mtim.tv_nsec == s->program.st_mtim.tv_nsec;
}

bool preflight_spare_take(struct preflight_spare *s, const char *launcher, int request_fd,
                          struct preflight_process *out)
{
	_cleanup_close_ int answer = -1, theirs = -1;

	if (!s->ready)
		return false;
	if (!is_program(s, launcher) || make_answer(&answer, &theirs) < 0 ||
	    socket_send_fds(s->request_fd, 0, (const int[]){request_fd, theirs}, 2) < 0) {
		preflight_spare_drop(s);
		return false;
	}
	*out = (struct preflight_process){steal_fd(&answer), -1};
	return true;
}
