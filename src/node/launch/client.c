/* SPDX-License-Identifier: Apache-2.0 */
/* The connection of dtrain-launch with the service. */
#include "node/launch/client.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 65536 };

static void watch(struct launch_client *c, int op, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.u64 = c->tag};

	epoll_ctl(c->epoll_fd, op, c->fd, &event);
}

static void drop(struct launch_client *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	strbuf_reset(&c->in);
	strbuf_reset(&c->out);
	c->sent = 0;
}

void launch_client_begin(struct launch_client *c, int fd)
{
	drop(c);
	c->fd = fd;
	watch(c, EPOLL_CTL_ADD, EPOLLIN);
}

void launch_client_receive(struct launch_client *c, void (*take)(void *context, const char *line, size_t len),
                           void *context)
{
	char buf[1024], *newline;
	bool closed = false;

	while (c->fd >= 0 && !closed) {
		ssize_t n = recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		closed = n <= 0 || c->in.len > LINE_MAX_BYTES;
		if (n > 0)
			strbuf_add(&c->in, buf, n);
	}
	while (c->in.len && (newline = memchr(c->in.data, '\n', c->in.len))) {
		size_t used = newline - c->in.data + 1;

		take(context, c->in.data, used - 1);
		memmove(c->in.data, c->in.data + used, c->in.len - used);
		c->in.len -= used;
	}
	if (closed) /* only now: the last words may be what counts */
		drop(c);
}

bool launch_client_flush(struct launch_client *c)
{
	while (c->fd >= 0 && c->sent < c->out.len) {
		ssize_t n =
		    send(c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
			return false;
		}
		if (n < 0) {
			drop(c);
			return false;
		}
		c->sent += n;
		if (c->sent == c->out.len)
			watch(c, EPOLL_CTL_MOD, EPOLLIN);
	}
	return c->fd >= 0;
}

void launch_client_put(struct launch_client *c, const char *text)
{
	strbuf_reset(&c->out);
	strbuf_adds(&c->out, text);
	c->sent = 0;
}

void launch_client_end(struct launch_client *c)
{
	drop(c);
	strbuf_free(&c->in);
	strbuf_free(&c->out);
}
