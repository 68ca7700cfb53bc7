/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New connections. One on a Unix socket goes to libmicrohttpd at once. One over TLS does when there is a
 * place for its handshake:
 *
 *     accepted --> silent --> queued --> its handshake is worked on --> the head of its first request
 *                  (10 s)                (10 s, the head included)
 *
 * A handshake costs a thousand times what a heartbeat costs, and the other side does not wait for long:
 * worked on all at once, those of a thousand nodes would all end too late, and each node would begin anew. So
 * a few are worked on at a time, and who comes first goes first. One whose caller has gone meanwhile costs
 * nothing.
 *
 * A caller that stops in the middle must not keep a place: it loses it when it has had several times as long
 * as handshakes take of late, and nothing of it waits to be read. Of addresses that wait, the one with the
 * fewest handshakes goes first; one address has a part of the places at most, and so have strangers together.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "http/internal.h"

enum {
	ACCEPTED_AT_ONCE = 64, /* in one turn of the event loop */
	PLACES = 32,
	PLACES_OF_STRANGERS = 24,
	PLACES_OF_ADDRESS = 8,
	STALLED = 4, /* times what a handshake takes */
};

/* What a handshake is taken to last before one has ended, and at least and at most. */
static const double FIRST_SECONDS = 0.06, LEAST_SECONDS = 0.005, MOST_SECONDS = 0.25;

/* Bytes that have come and were not read. */
static int unread(int fd)
{
	int count = 0;

	return ioctl(fd, FIONREAD, &count) < 0 ? 0 : count;
}

/* Its first bytes are there to be read, also where its end has come behind them. */
static bool is_gone(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLRDHUP};

	return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

/* Where MHD cannot take it, it closes the descriptor. */
static void give(struct http_connection *c)
{
	struct http_listener *l = c->listener;
	struct sockaddr_storage from = {0};
	socklen_t len = sizeof(from);

	if (getpeername(c->fd, (struct sockaddr *)&from, &len) < 0)
		len = sizeof(from.ss_family);
	http_connection_begin(c);
	l->admitted = c;
	if (MHD_add_connection(l->daemon, c->fd, (struct sockaddr *)&from, len) != MHD_YES &&
	    l->admitted == c)
		http_connection_free(c);
	l->admitted = NULL;
}

static int on_first(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	struct http_connection *c = userdata;
	struct http_listener *l = c->listener;

	c->first = sd_event_source_disable_unref(c->first);
	if (revents & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
		http_connection_drop(c);
		return 0;
	}
	http_connection_enqueue(c);
	http_turn_soon(l);
	return 0;
}

/* What says nothing is not worth a place. */
static void await_first(struct http_connection *c)
{
	if (unread(c->fd) > 0)
		http_connection_enqueue(c);
	else if (sd_event_add_io(c->listener->server->event, &c->first, c->fd, EPOLLIN | EPOLLRDHUP, on_first,
	                         c) < 0)
		http_connection_drop(c);
}

static int on_acceptable(sd_event_source *source, int listening, uint32_t revents, void *userdata)
{
	struct http_listener *l = userdata;

	for (int i = 0; i < ACCEPTED_AT_ONCE && l->connection_count < http_connection_limit(l); i++) {
		struct http_connection *c;
		int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0 && errno == EAGAIN)
			break;
		l->starved =
		    fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
		if (l->starved)
			break;
		c = fd < 0 ? NULL : http_connection_new(l, fd);
		if (c && l->tls)
			await_first(c);
		else if (c)
			give(c);
	}
	/* The end of a connection turns it on again, as does http_accept_again. */
	if (l->starved || l->connection_count >= http_connection_limit(l))
		sd_event_source_set_enabled(source, SD_EVENT_OFF);
	http_turn_soon(l);
	return 0;
}

int http_accept_begin(struct http_listener *l, struct error *err)
{
	int r = sd_event_add_io(l->server->event, &l->accept, l->fd, EPOLLIN, on_acceptable, l);

	l->handshake_seconds = FIRST_SECONDS;
	return r < 0 ? error_errno(err, r, "cannot serve HTTP") : 0;
}

void http_accept_again(struct http_listener *l)
{
	if (!l->starved)
		return;
	l->starved = false;
	if (l->accept)
		sd_event_source_set_enabled(l->accept, SD_EVENT_ON);
}

void http_accept_end(struct http_listener *l)
{
	l->accept = sd_event_source_disable_unref(l->accept);
	l->starved = false;
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
}

/* Those from which nothing has come for too long give their places to others; they may still go on. */
static void release_stalled(struct http_listener *l)
{
	double seconds = l->server->options.stalled_seconds;
	uint64_t now;

	if (seconds <= 0)
		seconds = STALLED * MIN(MAX(l->handshake_seconds, LEAST_SECONDS), MOST_SECONDS);
	sd_event_now(l->server->event, CLOCK_MONOTONIC, &now);
	for (struct http_connection *c = l->pending.first; c && l->places > 0; c = c->then)
		if (c->place && now - c->begun > (uint64_t)(seconds * 1e6) && unread(c->fd) == 0)
			http_connection_leave_place(c);
}

/* The connection that gets the next place; NULL: none may have one. */
static struct http_connection *find_next(const struct http_listener *l)
{
	struct http_connection *best = NULL;
	size_t strangers = 0, least = PLACES_OF_ADDRESS;

	for (const struct http_connection *x = l->pending.first; x; x = x->then)
		strangers += x->place && !x->known;
	for (struct http_connection *c = l->queue.first; c && least > 0; c = c->then) {
		size_t same = 0;

		if (!c->known && strangers >= PLACES_OF_STRANGERS)
			continue;
		for (const struct http_connection *x = l->pending.first; x; x = x->then)
			same += x->place && memcmp(&x->address, &c->address, sizeof(c->address)) == 0;
		if (same >= least)
			continue;
		best = c;
		least = same;
	}
	return best;
}

size_t http_admit(struct http_listener *l)
{
	struct http_connection *c;
	size_t count = 0;

	if (!l->queue.first)
		return 0;
	release_stalled(l);
	while (l->places < PLACES && (c = find_next(l))) {
		if (is_gone(c->fd)) {
			http_connection_drop(c);
			continue;
		}
		give(c);
		count++;
	}
	return count;
}
