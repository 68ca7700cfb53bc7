/* SPDX-License-Identifier: Apache-2.0 */
/* Executes dtrain-launch for an attempt, speaks with it over its socket, and notices its end. */
#include "node/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "node/launch/launch.h"

struct launcher {
	struct launcher_owner owner;
	char *dir;
	struct strbuf in, out;
	int socket_fd;
	int pidfd;         /* where it is our child, else -1 */
	pid_t pid;         /* 0: not known */
	bool acknowledged; /* its end is on record */
	sd_event_source *socket, *child;
};

static void close_socket(struct launcher *l)
{
	l->socket = sd_event_source_disable_unref(l->socket);
	if (l->socket_fd >= 0)
		close(l->socket_fd);
	l->socket_fd = -1;
}

static void close_child(struct launcher *l)
{
	l->child = sd_event_source_disable_unref(l->child);
	if (l->pidfd >= 0)
		close(l->pidfd);
	l->pidfd = -1;
}

/* bind() and connect() through a descriptor of the directory: its path may be longer than
 * an address holds. */
static int socket_in(const char *dir, int (*act)(int, const struct sockaddr *, socklen_t), int *out,
                     struct error *err)
{
	_cleanup_close_ int dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (dir_fd < 0 || fd < 0)
		return error_errno(err, -errno, "%s/launch.sock", dir);
	snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/launch.sock", dir_fd);
	if (act(fd, (struct sockaddr *)&address, sizeof address) < 0)
		return error_errno(err, -errno, "%s/launch.sock", dir);
	*out = steal_fd(&fd);
	return 0;
}

static int flush_socket(struct launcher *l)
{
	while (l->out.len > 0 && l->socket_fd >= 0) {
		ssize_t n = send(l->socket_fd, l->out.data, l->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -errno; /* the end of file will tell */
		memmove(l->out.data, l->out.data + n, l->out.len - n);
		l->out.len -= n;
	}
	if (l->socket)
		sd_event_source_set_io_events(l->socket, EPOLLIN | (l->out.len ? EPOLLOUT : 0));
	return 0;
}

static void send_command(struct launcher *l, const struct launch_command *command)
{
	_cleanup_json_ json_t *json = launch_command_encode(command);
	_cleanup_free_ char *text = json_to_string(json);

	if (!text) {
		log_err("run %lld: out of memory", (long long)l->owner.run);
		return;
	}
	strbuf_addf(&l->out, "%s\n", text);
	flush_socket(l);
}

static void take_line(struct launcher *l, const char *line, size_t len)
{
	_cleanup_(launch_report_release) struct launch_report report = {0};
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	if (json_parse(line, len, "dtrain-launch", &json, &err) < 0 ||
	    launch_report_decode(json, &report, &err) < 0) {
		log_err("run %lld: %s", (long long)l->owner.run, err.message);
		return;
	}
	if (report.launcher > 0)
		l->pid = (pid_t)report.launcher;
	l->owner.reported(l->owner.context, &report);
}

static int on_socket(sd_event_source *source, int fd, uint32_t events, void *context);

static int open_socket(struct launcher *l, struct error *err)
{
	int r = socket_in(l->dir, connect, &l->socket_fd, err);

	if (r < 0)
		return r;
	r = sd_event_add_io(l->owner.event, &l->socket, l->socket_fd, EPOLLIN, on_socket, l);
	return r < 0 ? error_errno(err, r, "cannot watch dtrain-launch") : 0;
}

static int on_socket(sd_event_source *source, int fd, uint32_t events, void *context)
{
	struct launcher *l = context;
	char buf[8192], *newline;
	bool closed = false;

	if (events & EPOLLOUT)
		flush_socket(l);
	while (!closed) {
		ssize_t n = recv(fd, buf, sizeof buf, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n <= 0)
			closed = true;
		else
			strbuf_add(&l->in, buf, n);
	}
	while (l->in.len && (newline = memchr(l->in.data, '\n', l->in.len))) {
		size_t used = newline - l->in.data + 1;

		take_line(l, l->in.data, used - 1);
		memmove(l->in.data, l->in.data + used, l->in.len - used);
		l->in.len -= used;
	}
	if (closed) {
		close_socket(l);
		/* Our child's status says how it ended. Where it is another's, its guard holds the socket
		 * open until it has ended all that was left. */
		if (!l->acknowledged && l->pidfd < 0 && open_socket(l, NULL) < 0)
			l->owner.lost(l->owner.context, "dtrain-launch is gone: it was killed");
		l->owner.closed(l->owner.context);
	}
	return 0;
}

static int on_child(sd_event_source *source, int fd, uint32_t events, void *context)
{
	struct launcher *l = context;
	siginfo_t info = {0};
	char why[100];

	if (waitid(P_PIDFD, fd, &info, WEXITED | WNOHANG) == 0 && info.si_pid == 0)
		return 0;
	/* Its last report may still be on the way. */
	if (l->socket_fd >= 0)
		on_socket(l->socket, l->socket_fd, EPOLLIN, l);
	close_child(l);
	if (l->acknowledged) {
		l->owner.closed(l->owner.context);
		return 0;
	}
	if (info.si_code == CLD_EXITED)
		snprintf(why, sizeof why, "dtrain-launch ended with exit status %d", info.si_status);
	else
		snprintf(why, sizeof why, "dtrain-launch was killed by SIG%s",
		         sigabbrev_np(info.si_status) ?: "?");
	l->owner.lost(l->owner.context, why);
	return 0;
}

static int spawn_launcher(struct launcher *l, const char *program, int listen_fd, struct error *err)
{
	char *argv[] = {(char *)"dtrain-launch", l->dir, NULL}, *environment[] = {NULL};
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none, all;
	pid_t pid;
	int r;

	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, listen_fd, LAUNCH_SOCKET_FD);
	posix_spawn_file_actions_addclosefrom_np(&actions, LAUNCH_SOCKET_FD + 1);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(&attributes,
	                         POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	r = posix_spawn(&pid, program, &actions, &attributes, argv, environment);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	if (r != 0)
		return error_errno(err, -r, "cannot start %s", program);
	l->pid = pid;
	l->pidfd = pidfd_open(pid, 0);
	if (l->pidfd < 0 ||
	    (r = sd_event_add_io(l->owner.event, &l->child, l->pidfd, EPOLLIN, on_child, l)) < 0) {
		r = l->pidfd < 0 ? -errno : r;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return error_errno(err, r, "cannot watch %s", program);
	}
	return 0;
}

static int launcher_new(const struct launcher_owner *owner, const char *dir, struct launcher **out,
                        struct error *err)
{
	_cleanup_(launcher_destroyp) struct launcher *l = calloc(1, sizeof(*l));

	if (!l)
		return error_oom(err);
	l->owner = *owner;
	l->socket_fd = l->pidfd = -1;
	l->dir = strdup(dir);
	if (!l->dir)
		return error_oom(err);
	*out = steal_pointer(l);
	return 0;
}

int launcher_start(const struct launcher_owner *owner, const char *dir, const char *program,
                   struct launcher **out, struct error *err)
{
	_cleanup_(launcher_destroyp) struct launcher *l = NULL;
	_cleanup_close_ int listen_fd = -1;
	int r;

	if ((r = launcher_new(owner, dir, &l, err)) < 0 || (r = socket_in(dir, bind, &listen_fd, err)) < 0)
		return r;
	if (listen(listen_fd, 8) < 0)
		return error_errno(err, -errno, "%s/launch.sock", dir);
	/* The connection waits in the socket's queue until dtrain-launch accepts it. */
	if ((r = open_socket(l, err)) < 0 || (r = spawn_launcher(l, program, listen_fd, err)) < 0)
		return r;
	*out = steal_pointer(l);
	return 0;
}

int launcher_connect(const struct launcher_owner *owner, const char *dir, struct launcher **out,
                     struct error *err)
{
	_cleanup_(launcher_destroyp) struct launcher *l = NULL;
	int r;

	if ((r = launcher_new(owner, dir, &l, err)) < 0 || (r = open_socket(l, err)) < 0)
		return r;
	*out = steal_pointer(l);
	return 0;
}

void launcher_destroy(struct launcher *l)
{
	if (!l)
		return;
	close_socket(l);
	close_child(l);
	strbuf_free(&l->in);
	strbuf_free(&l->out);
	free(l->dir);
	free(l);
}

void launcher_stop(struct launcher *l, double grace)
{
	send_command(l, &(struct launch_command){.stop = MAX(grace, 0.0)});
}

void launcher_acknowledge(struct launcher *l)
{
	l->acknowledged = true;
	send_command(l, &(struct launch_command){.stop = -1, .acknowledge = true});
}

void launcher_disconnect(struct launcher *l)
{
	if (l)
		close_socket(l);
}

bool launcher_is_gone(const struct launcher *l)
{
	return !l || (l->pidfd < 0 && l->socket_fd < 0);
}

pid_t launcher_pid(const struct launcher *l)
{
	return l ? l->pid : 0;
}
