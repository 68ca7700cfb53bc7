/* SPDX-License-Identifier: Apache-2.0 */
/* libcurl's sockets are event sources of the loop, one each, and its timer is another. */
#include "http/curl_loop.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

#include "base/list.h"

struct curl_loop {
	sd_event *event;
	CURLM *multi;
	sd_event_source *timer;
	struct socket_watch *watches;
	void (*ended)(void *context, CURL *easy, CURLcode code);
	void *context;
};

struct socket_watch {
	struct curl_loop *loop;
	struct socket_watch *prev, *next;
	sd_event_source *source;
	int fd;
};

/* A callback may remove its transfer, and others. */
static void collect_ended(struct curl_loop *l)
{
	CURLMsg *m;
	int left;

	while ((m = curl_multi_info_read(l->multi, &left)))
		if (m->msg == CURLMSG_DONE)
			l->ended(l->context, m->easy_handle, m->data.result);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct curl_loop *l = userdata;
	int running;

	curl_multi_socket_action(l->multi, CURL_SOCKET_TIMEOUT, 0, &running);
	collect_ended(l);
	return 0;
}

/* curl asks for a call after ms milliseconds; 0 is "from the loop, soon": never from in here. */
static int set_timer(CURLM *multi, long ms, void *userdata)
{
	struct curl_loop *l = userdata;
	uint64_t now;

	if (ms < 0)
		return sd_event_source_set_enabled(l->timer, SD_EVENT_OFF);
	sd_event_now(l->event, CLOCK_MONOTONIC, &now);
	sd_event_source_set_time(l->timer, ms == 0 ? 0 : now + ms * 1000ull);
	return sd_event_source_set_enabled(l->timer, SD_EVENT_ONESHOT) < 0 ? -1 : 0;
}

static int on_socket(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	struct curl_loop *l = ((struct socket_watch *)userdata)->loop;
	int running, mask = (revents & EPOLLIN ? CURL_CSELECT_IN : 0) |
	                    (revents & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
	                    (revents & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);

	curl_multi_socket_action(l->multi, fd, mask, &running);
	collect_ended(l);
	return 0;
}

static void watch_free(struct socket_watch *w)
{
	list_remove(w->loop->watches, w);
	sd_event_source_disable_unref(w->source);
	free(w);
}

static int set_socket(CURL *easy, curl_socket_t fd, int what, void *userdata, void *socket_data)
{
	struct curl_loop *l = userdata;
	struct socket_watch *w = socket_data;
	uint32_t events = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);

	if (what == CURL_POLL_REMOVE) {
		if (w)
			watch_free(w);
		curl_multi_assign(l->multi, fd, NULL);
		return 0;
	}
	if (w)
		return sd_event_source_set_io_events(w->source, events) < 0 ? -1 : 0;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -1;
	w->loop = l;
	w->fd = fd;
	if (sd_event_add_io(l->event, &w->source, fd, events, on_socket, w) < 0) {
		free(w);
		return -1;
	}
	list_push(l->watches, w);
	curl_multi_assign(l->multi, fd, w);
	return 0;
}

int curl_loop_create(sd_event *event, long kept, void (*ended)(void *context, CURL *easy, CURLcode code),
                     void *context, struct curl_loop **out, struct error *err)
{
	_cleanup_(curl_loop_destroyp) struct curl_loop *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return error_oom(err);
	l->event = sd_event_ref(event);
	l->ended = ended;
	l->context = context;
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || !(l->multi = curl_multi_init()))
		return error_set(err, -ENOMEM, "cannot set up libcurl");
	r = sd_event_add_time(event, &l->timer, CLOCK_MONOTONIC, 0, 1, on_timer, l);
	if (r < 0)
		return error_errno(err, r, "cannot set up the HTTP client");
	sd_event_source_set_enabled(l->timer, SD_EVENT_OFF);
	curl_multi_setopt(l->multi, CURLMOPT_SOCKETFUNCTION, set_socket);
	curl_multi_setopt(l->multi, CURLMOPT_SOCKETDATA, l);
	curl_multi_setopt(l->multi, CURLMOPT_TIMERFUNCTION, set_timer);
	curl_multi_setopt(l->multi, CURLMOPT_TIMERDATA, l);
	curl_multi_setopt(l->multi, CURLMOPT_MAXCONNECTS, kept);
	*out = steal_pointer(l);
	return 0;
}

void curl_loop_destroy(struct curl_loop *l)
{
	if (!l)
		return;
	if (l->multi)
		curl_multi_cleanup(l->multi);
	while (l->watches)
		watch_free(l->watches);
	sd_event_source_disable_unref(l->timer);
	sd_event_unref(l->event);
	free(l);
}

int curl_loop_add(struct curl_loop *l, CURL *easy)
{
	return curl_multi_add_handle(l->multi, easy) == CURLM_OK ? 0 : -EIO;
}

void curl_loop_remove(struct curl_loop *l, CURL *easy)
{
	curl_multi_remove_handle(l->multi, easy);
}
