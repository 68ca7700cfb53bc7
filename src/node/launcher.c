/* SPDX-License-Identifier: Apache-2.0 */
/* The connection with dtrain-launch: commands, and reports line by line. */
#include "node/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
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
	sd_event_source *socket;
};

static void close_socket(struct launcher *l)
{
	l->socket = sd_event_source_disable_unref(l->socket);
	if (l->socket_fd >= 0)
		close(l->socket_fd);
	l->socket_fd = -1;
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
		l->owner.closed(l->owner.context);
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
	l->socket_fd = -1;
	l->dir = strdup(dir);
	if (!l->dir)
		return error_oom(err);
	*out = steal_pointer(l);
	return 0;
}

int launcher_listen(const struct launcher_owner *owner, const char *dir, int *listen_fd,
                    struct launcher **out, struct error *err)
{
	_cleanup_(launcher_destroyp) struct launcher *l = NULL;
	_cleanup_close_ int fd = -1;
	int r;

	if ((r = launcher_new(owner, dir, &l, err)) < 0 || (r = socket_in(dir, bind, &fd, err)) < 0)
		return r;
	if (listen(fd, 8) < 0)
		return error_errno(err, -errno, "%s/launch.sock", dir);
	r = open_socket(l, err);
	if (r < 0)
		return r;
	*listen_fd = steal_fd(&fd);
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

int launcher_reconnect(struct launcher *l)
{
	return open_socket(l, NULL);
}

void launcher_receive(struct launcher *l)
{
	if (l && l->socket_fd >= 0)
		on_socket(l->socket, l->socket_fd, EPOLLIN, l);
}

void launcher_destroy(struct launcher *l)
{
	if (!l)
		return;
	close_socket(l);
	strbuf_free(&l->in);
	strbuf_free(&l->out);
	free(l->dir);
	free(l);
}

void launcher_stop(struct launcher *l, struct stop_times times)
{
	send_command(l,
	             &(struct launch_command){.stop = MAX(times.grace, 0.0), .save = MAX(times.save, 0.0)});
}

void launcher_acknowledge(struct launcher *l)
{
	send_command(l, &(struct launch_command){.stop = -1, .acknowledge = true});
}

void launcher_confirm(struct launcher *l)
{
	send_command(l, &(struct launch_command){.stop = -1, .confirmed = true});
}

void launcher_disconnect(struct launcher *l)
{
	if (l)
		close_socket(l);
}

bool launcher_is_connected(const struct launcher *l)
{
	return l && l->socket_fd >= 0;
}
