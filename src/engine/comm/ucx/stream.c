/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between ranks over TCP connections of our own, where UCX would carry them over TCP too. UCX copies
 * a message once more on each side and sends it in pieces of 8 KiB, since the way around that (its emulated
 * put) ends the process when a connection breaks. Here a large message is not copied at all on the side of
 * the sender: the kernel is given the pages of the buffer (vmsplice into a pipe, and from there into the
 * connection), and the receiver copies them to where they belong.
 *
 * The sender must not change such a buffer before the receiver has read it: within a collective the
 * algorithms see to that (collectives.c); at its end the receiver's acknowledgement is waited for
 * (streams_settled), which is a header of its own between the messages of the other direction.
 *
 * There is nothing to match: between two ranks, receives are posted in the order of the sends (all algorithms
 * do so), and what has not been asked for stays in the connection.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/str.h"
#include "engine/comm/ucx/internal.h"

#define TAG_ACK   UINT64_MAX
#define WANTS_ACK (UINT64_C(1) << 63) /* in the length of a message */

enum {
	PAGES_MIN = 64 * 1024, /* bytes: a smaller message is copied */
	PIPE_BYTES = 1 << 20,
};

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
	s->acks_due = 0;
	s->sends_ack = false;
}

static bool would_wait(void)
{
	return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/* ---- sending ---- */

static bool open_pipe(struct stream *s)
{
	if (s->no_pipe || s->pipe[1])
		return !s->no_pipe;
	if (pipe2(s->pipe, O_CLOEXEC | O_NONBLOCK) < 0)
		s->pipe[0] = s->pipe[1] = 0;
	s->no_pipe = !s->pipe[1] || fcntl(s->pipe[1], F_SETPIPE_SZ, PIPE_BYTES) < PIPE_BYTES;
	return !s->no_pipe;
}

/* Begins with the header of what is sent next; false: nothing is. */
static bool begin_sending(struct stream *s)
{
	const struct transfer *t = s->sends;

	if (s->out_done || s->sends_ack)
		return true;
	s->sends_ack = s->acks_due > 0;
	if (s->sends_ack) {
		s->out = (struct stream_header){TAG_ACK, s->acks_due};
		s->acks_due = 0;
		return true;
	}
	if (!t)
		return false;
	s->by_pages = t->expected >= PAGES_MIN && open_pipe(s);
	s->out = (struct stream_header){t->tag, t->expected | (s->by_pages ? WANTS_ACK : 0)};
	return true;
}

/* The pages of the data from `at` on, by way of the pipe. Returns as send() does. */
static ssize_t send_pages(struct stream *s, int fd, const struct transfer *t, size_t at)
{
	struct iovec rest = {t->data + at, t->expected - at};
	ssize_t n;

	if (!s->in_pipe) {
		n = vmsplice(s->pipe[1], &rest, 1, SPLICE_F_NONBLOCK);
		if (n <= 0) { /* it is not allowed here: the rest is copied */
			s->no_pipe = true;
			s->by_pages = false;
			errno = EINTR;
			return -1;
		}
		s->in_pipe = n;
	}
	n = splice(s->pipe[0], NULL, fd, NULL, s->in_pipe, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
	if (n > 0)
		s->in_pipe -= n;
	return n;
}

static ssize_t send_part(struct stream *s, int fd, const struct transfer *t)
{
	char *data = s->sends_ack ? NULL : t->data;
	size_t len = s->sends_ack ? 0 : t->expected;
	struct iovec iov[2];
	struct msghdr message;

	if (!s->sends_ack && s->by_pages && s->out_done >= sizeof(s->out))
		return send_pages(s, fd, t, s->out_done - sizeof(s->out) + s->in_pipe);
	message = message_rest(iov, &s->out, data, len, s->out_done);
	if (!s->sends_ack && s->by_pages)
		message.msg_iovlen = 1;
	return sendmsg(fd, &message,
	               MSG_DONTWAIT | MSG_NOSIGNAL | (!s->sends_ack && s->by_pages ? MSG_MORE : 0));
}

static bool send_some(struct comm *c, int peer)
{
	struct stream *s = &c->streams[peer];
	struct transfer *t = s->sends;
	ssize_t n;

	if (!begin_sending(s))
		return false;
	n = send_part(s, c->peers[peer].stream_fd, t);
	if (n < 0) {
		if (would_wait())
			return false;
		stream_break(s);
		return true;
	}
	s->out_done += n;
	if (s->sends_ack && s->out_done == sizeof(s->out)) {
		s->out_done = 0;
		s->sends_ack = false;
	} else if (!s->sends_ack && s->out_done == sizeof(s->out) + t->expected) {
		s->out_done = 0;
		s->sends = t->next;
		s->unconfirmed += s->out.len & WANTS_ACK ? 1 : 0;
		transfer_end(t, UCS_OK, t->expected);
	}
	return true;
}

/* ---- receiving ---- */

/* A header is there, and what follows it so far, `t` or NULL being what is expected. */
static void take_header(struct stream *s, struct transfer *t)
{
	size_t len = s->in.len & ~WANTS_ACK;

	if (s->in.tag == TAG_ACK) {
		s->unconfirmed -= MIN(s->unconfirmed, s->in.len);
		s->in_done = 0;
		return;
	}
	if (!t)
		return;
	/* The collective then makes no progress, and its time-out tells why. */
	s->differs = s->in.tag != t->tag;
	if (s->differs || (len == t->expected && s->in_done < sizeof(s->in) + len))
		return;
	s->in_done = 0;
	s->receives = t->next;
	s->acks_due += s->in.len & WANTS_ACK ? 1 : 0;
	transfer_end(t, UCS_OK, len);
}

/* Where an acknowledgement may come, a header is read alone first. */
static bool receive_some(struct comm *c, int peer)
{
	struct stream *s = &c->streams[peer];
	struct transfer *t = s->receives;
	bool header_alone = s->in_done < sizeof(s->in) && (s->unconfirmed || !t);
	struct iovec iov[2];
	struct msghdr message;
	ssize_t n;

	if (s->differs || (!t && (!s->unconfirmed || s->in_done >= sizeof(s->in))))
		return false;
	message = message_rest(iov, &s->in, t ? t->data : NULL, t ? t->expected : 0, s->in_done);
	if (header_alone)
		message.msg_iovlen = 1;
	n = recvmsg(c->peers[peer].stream_fd, &message, MSG_DONTWAIT);
	if (n < 0 && would_wait())
		return false;
	if (n <= 0) {
		stream_break(s);
		return true;
	}
	s->in_done += n;
	if (s->in_done >= sizeof(s->in))
		take_header(s, t);
	return true;
}

/* ---- all ---- */

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

bool streams_settled(const struct comm *c)
{
	for (int r = 0; r < c->size; r++) {
		const struct stream *s = &c->streams[r];

		if (s->used && (s->unconfirmed || s->acks_due || s->sends_ack))
			return false;
	}
	return true;
}

static uint32_t events_of(const struct stream *s)
{
	bool in = !s->differs && (s->receives || (s->unconfirmed && s->in_done < sizeof(s->in)));

	return (s->sends || s->acks_due || s->sends_ack ? EPOLLOUT : 0) | (in ? EPOLLIN : 0);
}

/* A connection for which nothing waits is taken out: its end, which is always reported, then has no
 * effect. */
void streams_arm(struct comm *c)
{
	for (int r = 0; r < c->size; r++) {
		struct stream *s = &c->streams[r];
		struct epoll_event event = {.events = events_of(s), .data.u32 = (uint32_t)r};

		if (!s->used || event.events == s->armed)
			continue;
		(void)epoll_ctl(c->epoll,
		                !s->armed      ? EPOLL_CTL_ADD
		                : event.events ? EPOLL_CTL_MOD
		                               : EPOLL_CTL_DEL,
		                c->peers[r].stream_fd, &event);
		s->armed = event.events;
	}
}

void streams_close(struct comm *c)
{
	for (int r = 0; c->streams && r < c->size; r++)
		if (c->streams[r].pipe[1]) {
			close(c->streams[r].pipe[0]);
			close(c->streams[r].pipe[1]);
		}
}
