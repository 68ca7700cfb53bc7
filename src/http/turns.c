/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The turns of libmicrohttpd: in each it looks at its connections, and calls server.c for what has come. Its
 * epoll descriptor hangs in ours. Between the events, a timer is set for what it has to do without one.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <time.h>

#include "http/internal.h"

enum {
	FRUITLESS = 4,      /* turns that nothing has come of, and the next follows at once */
	LONGEST_PAUSE = 20, /* milliseconds */
	PENDING_USEC = 20,  /* some times what it takes to try a connection in vain */
	MANY_PENDING = 32,
	IDLE_USEC = 1000000, /* a time-out from there on is that of idle connections */
};

static const MHD_UNSIGNED_LONG_LONG NEVER = -1;

/* A connection in the middle of its TLS handshake is ready for libmicrohttpd whether or not there is anything
 * to read: it tries them all in each of its turns, and asks for the next one at once. So while connections
 * are pending, turns that nothing has come of follow each other ever more slowly, and events wait for those
 * that come within a moment, which is the longer, the more of them are tried. */
static uint64_t pause_between_turns(const struct http_listener *l)
{
	uint64_t fruitless =
	    l->fruitless > FRUITLESS ? MIN(l->fruitless - FRUITLESS, LONGEST_PAUSE) * 1000 : 0;

	return l->tls && l->trying > 0 ? MAX(fruitless, l->trying * PENDING_USEC) : 0;
}

/* 0: at once. */
static void set_timer(struct http_listener *l, uint64_t at)
{
	l->wake = at;
	sd_event_source_set_time(l->timer, at);
	sd_event_source_set_enabled(l->timer, SD_EVENT_ONESHOT);
}

/* Milliseconds until MHD has to run without an event. */
static MHD_UNSIGNED_LONG_LONG timeout_of(const struct http_listener *l)
{
	MHD_UNSIGNED_LONG_LONG ms;

	return MHD_get_timeout(l->daemon, &ms) == MHD_YES ? ms : NEVER;
}

static void pump(struct http_listener *l)
{
	MHD_UNSIGNED_LONG_LONG ms;
	uint64_t now;

	l->fruitless++; /* unless it comes to a callback of server.c, or to the body of a stream */
	MHD_run(l->daemon);
	if (http_admit(l) > 0)
		MHD_run(l->daemon);
	ms = timeout_of(l);
	/* A connection that has been answered is ready to MHD until it finds nothing more to read. */
	if (ms == 0 && pause_between_turns(l) == 0) {
		MHD_run(l->daemon);
		ms = timeout_of(l);
	}
	if (l->queue.first || l->starved)
		ms = MIN(ms, (MHD_UNSIGNED_LONG_LONG)LONGEST_PAUSE);
	if (ms == NEVER) {
		sd_event_source_set_enabled(l->timer, SD_EVENT_OFF);
		l->wake = UINT64_MAX;
		return;
	}
	sd_event_now(l->server->event, CLOCK_MONOTONIC, &now);
	ms = MAX(ms * 1000, pause_between_turns(l));
	/* The end of an idle connection moves with each request: that sets no timer, but the one that is set
	 * comes in vain. */
	if (ms < IDLE_USEC || l->wake > now + ms)
		set_timer(l, ms == 0 ? 0 : now + ms);
}

static int on_ready(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	struct http_listener *l = userdata;
	uint64_t now;

	l->fruitless = 0;
	if (!l->tls || l->trying < MANY_PENDING) {
		pump(l);
		return 0;
	}
	sd_event_now(l->server->event, CLOCK_MONOTONIC, &now);
	set_timer(l, now + pause_between_turns(l));
	l->delayed = true;
	return sd_event_source_set_enabled(l->io, SD_EVENT_OFF);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct http_listener *l = userdata;

	l->wake = UINT64_MAX;
	if (l->delayed)
		sd_event_source_set_enabled(l->io, SD_EVENT_ON);
	l->delayed = false;
	http_accept_again(l);
	pump(l);
	return 0;
}

static int on_resumed(sd_event_source *source, void *userdata)
{
	pump(userdata);
	return 0;
}

int http_turns_begin(struct http_listener *l, struct error *err)
{
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	sd_event *event = l->server->event;
	int r;

	if (!info)
		return error_set(err, -EIO, "libmicrohttpd has no epoll");
	if ((r = sd_event_add_io(event, &l->io, info->epoll_fd, EPOLLIN, on_ready, l)) < 0 ||
	    (r = sd_event_add_time(event, &l->timer, CLOCK_MONOTONIC, 0, 1000, on_timer, l)) < 0 ||
	    (r = sd_event_add_defer(event, &l->resumed, on_resumed, l)) < 0)
		return error_errno(err, r, "cannot serve HTTP");
	return 0;
}

void http_turns_end(struct http_listener *l)
{
	l->io = sd_event_source_disable_unref(l->io);
	l->timer = sd_event_source_disable_unref(l->timer);
	l->resumed = sd_event_source_disable_unref(l->resumed);
}
