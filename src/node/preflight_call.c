/* SPDX-License-Identifier: Apache-2.0 */
/* dtraind's side of a preflight: the process that looks, its answer as an event, and a deadline. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "node/launch/preflight.h"

struct preflight_call {
	void (*done)(void *context, const struct run_user *user, const struct error *err);
	void *context;
	sd_event_source *answer, *deadline;
	int answer_fd, pidfd;
	struct strbuf in;
	struct run_user *user; /* as soon as they are known */
	char step[256];        /* what is being looked at */
	double seconds;
};

static void call_free(struct preflight_call *c)
{
	sd_event_source_disable_unref(c->answer);
	sd_event_source_disable_unref(c->deadline);
	if (c->answer_fd >= 0)
		close(c->answer_fd);
	if (c->pidfd >= 0)
		close(c->pidfd);
	strbuf_free(&c->in);
	run_user_free(c->user);
	free(c);
}

void preflight_cancel(struct preflight_call *c)
{
	if (!c)
		return;
	if (c->pidfd >= 0)
		pidfd_send_signal(c->pidfd, SIGKILL, NULL, 0);
	call_free(c);
}

/* Once, and the call is gone. */
static void finish(struct preflight_call *c, const struct error *err)
{
	struct error none = ERROR_INIT;

	if (!err && !c->user) {
		error_set(&none, -EIO, "the preflight ended without an answer");
		err = &none;
	}
	/* It has ended, or may never: what it would still say is of no interest. */
	pidfd_send_signal(c->pidfd, SIGKILL, NULL, 0);
	c->done(c->context, err ? NULL : c->user, err);
	call_free(c);
}

/* True: that was the last line, and the call is gone. */
static bool take_line(struct preflight_call *c, const char *line, size_t len)
{
	_cleanup_(preflight_line_release) struct preflight_line said = {0};
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	if (json_parse(line, len, "preflight", &json, &err) < 0 ||
	    preflight_line_decode(json, &said, &err) < 0) {
		finish(c, &err);
		return true;
	}
	if (said.user && !c->user)
		c->user = steal_pointer(said.user);
	if (said.step)
		snprintf(c->step, sizeof c->step, "%s", said.step);
	if (said.error == PREFLIGHT_UNDER_WAY)
		return false;
	if (said.error != 0)
		error_set(&err, (int)said.error, "%s", said.message ? said.message : "");
	finish(c, said.error != 0 ? &err : NULL);
	return true;
}

static int on_answer(sd_event_source *source, int fd, uint32_t events, void *context)
{
	struct preflight_call *c = context;
	struct error err = ERROR_INIT;
	char buf[4096], *newline;
	ssize_t n = read(fd, buf, sizeof buf);

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n <= 0) {
		error_set(&err, -EIO, "dtrain-launch ended while it looked at %s", c->step);
		finish(c, &err);
		return 0;
	}
	strbuf_add(&c->in, buf, n);
	while (c->in.len && (newline = memchr(c->in.data, '\n', c->in.len))) {
		size_t used = newline - c->in.data + 1;

		if (take_line(c, c->in.data, used - 1))
			return 0;
		memmove(c->in.data, c->in.data + used, c->in.len - used);
		c->in.len -= used;
	}
	return 0;
}

static int on_deadline(sd_event_source *source, uint64_t usec, void *context)
{
	struct preflight_call *c = context;
	struct error err = ERROR_INIT;

	error_set(&err, -ETIMEDOUT,
	          "%s: no answer within %g s: is a network file system or the directory of users down?",
	          c->step, c->seconds);
	finish(c, &err);
	return 0;
}

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
	posix_spawnattr_t attributes;
	sigset_t none, all;
	int r;

	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	/* In our session: children of ours in others are what killed launchers left (processes.h). */
	posix_spawnattr_setflags(&attributes,
	                         POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	r = posix_spawn(pid, launcher, &actions, &attributes, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	return -r;
}

/* A file of its own for the request: a pipe holds less than a PATH may be long. */
static int write_request(const struct preflight_request *what, int *out, struct error *err)
{
	_cleanup_json_ json_t *json = preflight_request_encode(what);
	_cleanup_free_ char *text = json ? json_to_string(json) : NULL;
	_cleanup_close_ int fd = memfd_create("preflight", MFD_CLOEXEC);
	int r;

	if (!text)
		return error_oom(err);
	if (fd < 0)
		return error_errno(err, -errno, "cannot make a file in memory");
	r = file_write_all(fd, text, strlen(text), err);
	if (r == 0)
		*out = steal_fd(&fd);
	return r;
}

DEFINE_CLEANUP(struct preflight_call *, call_free)

int preflight_start(sd_event *event, const char *launcher, const struct preflight_request *what,
                    double seconds,
                    void (*done)(void *context, const struct run_user *user, const struct error *err),
                    void *context, struct preflight_call **out, struct error *err)
{
	_cleanup_(call_freep) struct preflight_call *c = calloc(1, sizeof *c);
	_cleanup_close_ int in = -1, answer = -1;
	int pipe_fds[2], r;
	pid_t pid;

	if (!c)
		return error_oom(err);
	*c = (struct preflight_call){
	    .done = done, .context = context, .answer_fd = -1, .pidfd = -1, .seconds = seconds};
	snprintf(c->step, sizeof c->step, "user %s", what->user);
	r = write_request(what, &in, err);
	if (r < 0)
		return r;
	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return error_errno(err, -errno, "cannot make a pipe");
	c->answer_fd = pipe_fds[0];
	answer = pipe_fds[1];
	fcntl(c->answer_fd, F_SETFL, O_NONBLOCK);
	r = spawn(launcher, in, answer, &pid);
	if (r < 0)
		return error_errno(err, r, "cannot start %s", launcher);
	c->pidfd = pidfd_open(pid, 0);
	r = c->pidfd < 0 ? -errno : watch_end(event, c->pidfd);
	if (r < 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return error_errno(err, r, "cannot watch %s", launcher);
	}
	r = sd_event_add_io(event, &c->answer, c->answer_fd, EPOLLIN, on_answer, c);
	if (r >= 0)
		r = sd_event_add_time_relative(event, &c->deadline, CLOCK_MONOTONIC,
		                               (uint64_t)(seconds * 1e6), 0, on_deadline, c);
	if (r < 0) {
		preflight_cancel(steal_pointer(c));
		return error_errno(err, r, "cannot watch %s", launcher);
	}
	*out = steal_pointer(c);
	return 0;
}
