/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between ranks over TCP connections of our own, where UCX would carry them over TCP too. UCX copies
 * a message once more on each side and sends it in pieces of 8 KiB, since the way around that (its emulated
 * put) ends the process when a connection breaks. Here a message goes from the buffer to the kernel and from
 * there to the buffer where it belongs.
 *
 * There is nothing to match: between two ranks, receives are posted in the order of the sends (all algorithms
 * of collectives.c do so), and what has not been asked for stays in the connection.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/str.h"
#include "engine/comm/ucx/internal.h"

/* Not where the user has chosen the network for UCX: the bootstrap's addresses do not follow that. */
bool streams_allowed(void)
{
	const char *devices = getenv("UCX_NET_DEVICES");

	return !devices || !*devices || str_eq(devices, "all");
}

void stream_send(struct comm *c, struct transfer *t)
{
	struct stream *s = &c->streams[t->peer];

	*(s->sends ? &s->last_send->next : &s->sends) = t;
	s->last_send = t;
}

void stream_receive(struct comm *c, struct transfer *t)
{
	struct stream *s = &c->streams[t->peer];

	*(s->receives ? &s->last_receive->next : &s->receives) = t;
	s->last_receive = t;
}

/* The rest of a header and what follows it, of which `done` bytes have moved. */
static struct msghdr message_rest(struct iovec iov[2], struct stream_header *header, char *data, size_t len,
                                  size_t done)
{
	size_t of_data = done > sizeof(*header) ? done - sizeof(*header) : 0;
	size_t of_header = done - of_data;

	iov[0] = (struct iovec){(char *)header + of_header, sizeof(*header) - of_header};
	iov[1] = (struct iovec){data + of_data, len - of_data};
	return (struct msghdr){.msg_iov = iov, .msg_iovlen = 2};
}

/* The connection has ended: so do all messages that wait for it. */
static void stream_break(struct stream *s)
{
	for (; s->sends; s->sends = s->sends->next)
		transfer_end(s->sends, UCS_ERR_CONNECTION_RESET, 0);
	for (; s->receives; s->receives = s->receives->next)
		transfer_end(s->receives, UCS_ERR_CONNECTION_RESET, 0);
}

static bool would_wait(void)
{
	return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static bool send_some(struct comm *c, int peer)
{
	struct stream *s = &c->streams[peer];
	struct transfer *t = s->sends;
	struct iovec iov[2];
	struct msghdr message;
	ssize_t n;

	if (!t)
		return false;
	s->out = (struct stream_header){t->tag, t->expected};
	message = message_rest(iov, &s->out, t->data, t->expected, s->out_done);
	n = sendmsg(c->peers[peer].stream_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0) {
		if (would_wait())
			return false;
		stream_break(s);
		return true;
	}
	s->out_done += n;
	if (s->out_done == sizeof(s->out) + t->expected) {
		s->out_done = 0;
		s->sends = t->next;
		transfer_end(t, UCS_OK, t->expected);
	}
	return true;
}

static bool receive_some(struct comm *c, int peer)
{
	struct stream *s = &c->streams[peer];
	struct transfer *t = s->receives;
	struct iovec iov[2];
	struct msghdr message;
	ssize_t n;

	if (!t || s->differs)
		return false;
	message = message_rest(iov, &s->in, t->data, t->expected, s->in_done);
	n = recvmsg(c->peers[peer].stream_fd, &message, MSG_DONTWAIT);
	if (n < 0 && would_wait())
		return false;
	if (n <= 0) {
		stream_break(s);
		return true;
	}
	s->in_done += n;
	if (s->in_done < sizeof(s->in))
		return true;
	/* The collective then makes no progress, and its time-out tells why. */
	s->differs = s->in.tag != t->tag;
	if (!s->differs && (s->in.len != t->expected || s->in_done == sizeof(s->in) + t->expected)) {
		s->in_done = 0;
		s->receives = t->next;
		transfer_end(t, UCS_OK, s->in.len);
	}
	return true;
}

bool streams_progress(struct comm *c)
{
	bool moved = false;

	for (int r = 0; r < c->size; r++)
		if (c->streams[r].used) {
			moved |= send_some(c, r);
			moved |= receive_some(c, r);
		}
	return moved;
}

/* A connection for which nothing waits is taken out: its end, which is reported always, concerns nobody then.
 */
void streams_arm(struct comm *c)
{
	for (int r = 0; r < c->size; r++) {
		struct stream *s = &c->streams[r];
		uint32_t events = (s->sends ? EPOLLOUT : 0) | (s->receives && !s->differs ? EPOLLIN : 0);
		struct epoll_event event = {.events = events, .data.u32 = (uint32_t)r};

		if (!s->used || events == s->armed)
			continue;
		(void)epoll_ctl(c->epoll,
		                !s->armed ? EPOLL_CTL_ADD
		                : events  ? EPOLL_CTL_MOD
		                          : EPOLL_CTL_DEL,
		                c->peers[r].stream_fd, &event);
		s->armed = events;
	}
}
