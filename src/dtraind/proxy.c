/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another service's answer, passed on as it comes. Where the controller is elected, a request follows it: it
 * is sent again, to the next one, as long as it cannot have been done, or may be done twice.
 */
#include "dtraind/proxy.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/list.h"
#include "base/log.h"
#include "base/str.h"
#include "dtraind/leader.h"
#include "wire/error_answer.h"
#include "wire/submission_key.h"

static const double FOLLOW_SECONDS = 30.0; /* for which a request waits for a controller */
static const double AGAIN_SECONDS = 0.2;
static const double HELD_SECONDS = 10.0; /* one without an answer for so long had found a controller */

enum { PIPE_HIGH = 1 << 20 }; /* more than this waits for the caller: the other side is held up */

struct pipe {
	struct http_request *request;
	struct http_stream *stream; /* NULL: JSON and errors are passed on whole */
	struct http_transfer *transfer;
	struct strbuf body;

	/* To the controller that is elected; daemon is NULL otherwise. */
	struct daemon *daemon;
	struct pipe *prev, *next;
	char *to;               /* the node that is asked */
	char **headers;         /* a list that ends with NULL */
	double begun;           /* when it was sent last */
	double since;           /* when there was no controller first */
	sd_event_source *timer; /* until it is sent again */
	char *why;              /* the last one has not answered */
};

static void pipe_free(struct pipe *p)
{
	if (p->daemon)
		list_remove(p->daemon->pipes, p);
	sd_event_source_disable_unref(p->timer);
	strbuf_free(&p->body);
	free(p->to);
	str_list_free(p->headers);
	free(p->why);
	free(p);
}

static void on_closed(void *context)
{
	struct pipe *p = context;

	http_transfer_cancel(p->transfer);
	pipe_free(p);
}

static void on_drained(void *context)
{
	struct pipe *p = context;

	if (p->transfer)
		http_transfer_pause(p->transfer, false);
}

static void on_headers(void *context, int status, const char *type)
{
	struct pipe *p = context;

	if (status < 200 || status > 299 || (type && str_starts(type, "application/json")))
		return;
	p->stream = http_reply_stream(p->request, status, type ? type : "application/octet-stream");
	http_stream_on_drain(p->stream, on_drained, p);
}

static void on_data(void *context, const void *data, size_t len)
{
	struct pipe *p = context;

	if (!p->stream) {
		strbuf_add(&p->body, data, len);
		return;
	}
	http_stream_write(p->stream, data, len);
	if (http_stream_pending(p->stream) > PIPE_HIGH)
		http_transfer_pause(p->transfer, true);
}

/* Whether it may be sent again after it may have been done. What ranks report of their run may come twice:
 * they repeat it themselves. */
static bool is_repeatable(const struct pipe *p)
{
	return strcmp(http_request_method(p->request), "POST") != 0 ||
	       http_request_header(p->request, SUBMISSION_KEY_HEADER) ||
	       str_starts(http_request_target(p->request), "/v1/nodes/") ||
	       str_starts(http_request_target(p->request), "/v1/runs/");
}

static void wait_for_controller(struct pipe *p)
{
	uint64_t now;

	if (clock_monotonic() - p->since > FOLLOW_SECONDS) {
		http_reply_error(
		    p->request, 503, "no-controller",
		    "there is no controller, and was none for %.0f s: %s; runs go on, and \"dtrain "
		    "runs --local\" shows those of this node",
		    FOLLOW_SECONDS, p->why ? p->why : "no candidate has answered");
		return;
	}
	sd_event_now(p->daemon->event, CLOCK_MONOTONIC, &now);
	sd_event_source_set_time(p->timer, now + (uint64_t)(AGAIN_SECONDS * 1e6));
	sd_event_source_set_enabled(p->timer, SD_EVENT_ONESHOT);
}

/* Takes up an answer that says that the controller is another node, or none. False: it is another answer. */
static bool take_refusal(struct pipe *p, const struct http_answer *a)
{
	_cleanup_json_ json_t *json = NULL;
	struct error_answer refusal;
	bool gone = a->status == 0, away;

	if (!p->daemon || p->stream || a->error.code == -ECANCELED)
		return false;
	json = p->body.len ? json_loadb(p->body.data, p->body.len, 0, NULL) : NULL;
	error_answer_read(json, &refusal);
	away = (a->status == 421 && str_eq(refusal.code, "not-controller")) ||
	       (a->status == 503 && str_eq(refusal.code, "stopping") && is_repeatable(p));
	if (!away && !(gone && (!a->sent || is_repeatable(p)))) {
		if (gone)
			leader_away(p->daemon, p->to);
		return false;
	}
	str_replace(&p->why, gone ? a->error.message : refusal.message);
	if (refusal.leader)
		leader_learn(p->daemon, refusal.leader);
	else
		leader_away(p->daemon, p->to);
	strbuf_reset(&p->body);
	/* A controller had it until now, as one that waits for a change. */
	if (gone && a->sent && clock_monotonic() - p->begun > HELD_SECONDS)
		p->since = clock_monotonic();
	wait_for_controller(p);
	return true;
}

static void on_done(void *context, const struct http_answer *a)
{
	struct pipe *p = context;
	_cleanup_strbuf_ struct strbuf body = {0};

	p->transfer = NULL;
	if (take_refusal(p, a))
		return;
	if (p->stream) {
		/* The request's end frees p: nothing of it is touched after this. */
		if (a->status)
			http_stream_end(p->stream);
		else
			http_stream_abort(p->stream);
		return;
	}
	/* The answer has a copy, and may be read much later; and its end frees p. */
	body = p->body;
	p->body = (struct strbuf){0};
	if (a->error.code == -ECANCELED)
		http_reply_error(p->request, 503, "stopping", "the service is being stopped");
	else if (a->status == 0)
		http_reply_error(p->request, 502, a->sent ? "no-answer" : "unreachable", "%s",
		                 a->error.message);
	else
		http_reply_bytes(p->request, a->status, a->type ? a->type : "application/json",
		                 body.data ? body.data : "", body.len);
}

void pipe_call(struct daemon *d, struct http_request *r, const struct peer *to, const char *target,
               const char *const *headers)
{
	struct pipe *p = calloc(1, sizeof(*p));
	struct error err = ERROR_INIT;
	size_t len;
	const void *body = http_request_body(r, &len);
	struct http_call call = {
	    .method = http_request_method(r),
	    .address = to->address,
	    .port = to->port,
	    .node = to->name,
	    .target = target,
	    .body = len || strcmp(http_request_method(r), "GET") != 0 ? body : NULL,
	    .len = len,
	    .headers = headers,
	    .context = p,
	    .on_headers = on_headers,
	    .on_data = on_data,
	    .on_done = on_done,
	};

	if (!p || http_client_call(d->client, &call, &p->transfer, &err) < 0) {
		http_reply_error(r, 502, "unreachable", "%s", p ? err.message : "out of memory");
		free(p);
		return;
	}
	p->request = r;
	http_request_on_close(r, on_closed, p);
}

static void send_to_controller(struct pipe *p)
{
	const struct peer to = leader_peer(p->daemon);
	struct error err = ERROR_INIT;
	size_t len;
	const void *body = http_request_body(p->request, &len);
	bool get = strcmp(http_request_method(p->request), "GET") == 0;
	struct http_call call = {
	    .method = http_request_method(p->request),
	    .address = to.address,
	    .port = to.port,
	    .node = to.name,
	    .target = http_request_target(p->request),
	    .body = len || !get ? body : NULL,
	    .len = len,
	    .headers = (const char *const *)p->headers,
	    .once = !is_repeatable(p),
	    .context = p,
	    .on_headers = on_headers,
	    .on_data = on_data,
	    .on_done = on_done,
	};

	p->begun = clock_monotonic();
	if (str_replace(&p->to, to.name) < 0 ||
	    http_client_call(p->daemon->client, &call, &p->transfer, &err) < 0)
		http_reply_error(p->request, 502, "unreachable", "%s",
		                 err.code < 0 ? err.message : "out of memory");
}

static int on_again(sd_event_source *source, uint64_t usec, void *userdata)
{
	send_to_controller(userdata);
	return 0;
}

/* Takes headers. */
static void follow_controller(struct daemon *d, struct http_request *r, char **headers)
{
	struct pipe *p = calloc(1, sizeof(*p));

	if (!p || sd_event_add_time(d->event, &p->timer, CLOCK_MONOTONIC, 0, 20000, on_again, p) < 0 ||
	    sd_event_source_set_enabled(p->timer, SD_EVENT_OFF) < 0) {
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		if (p)
			sd_event_source_disable_unref(p->timer);
		free(p);
		str_list_free(headers);
		return;
	}
	p->request = r;
	p->daemon = d;
	p->headers = headers;
	p->since = clock_monotonic();
	list_push(d->pipes, p);
	http_request_on_close(r, on_closed, p);
	send_to_controller(p);
}

/* One that was paused keeps its connections open, and answers nothing. */
void proxy_follow(struct daemon *d)
{
	const char *leader = leader_known(d);
	struct pipe *next;

	for (struct pipe *p = d->pipes; p; p = next) {
		next = p->next;
		if (!leader || !p->transfer || str_eq_host(p->to, leader))
			continue;
		if (p->stream) {
			http_transfer_cancel(steal_pointer(p->transfer));
			http_stream_abort(p->stream);
		} else if (is_repeatable(p)) {
			http_transfer_cancel(steal_pointer(p->transfer));
			strbuf_reset(&p->body);
			p->since = clock_monotonic();
			wait_for_controller(p);
		}
	}
}

/* For whom it is, and what it is the repetition of. The list ends with NULL and is the caller's to free, as
 * are its strings; NULL: out of memory. */
static char **make_headers(struct http_request *r)
{
	const struct http_caller *caller = http_request_caller(r);
	const char *key = http_request_header(r, SUBMISSION_KEY_HEADER);
	char **headers = calloc(5, sizeof(*headers));
	size_t count = 0;
	bool complete;

	if (!headers)
		return NULL;
	headers[count++] = strdup("Content-Type: application/json");
	headers[count++] = str_printf("Dtrain-User: %lld:%lld:%s", (long long)caller->uid,
	                              (long long)caller->gid, caller->user ? caller->user : "");
	complete = headers[0] && headers[1];
	if (complete && key)
		complete = (headers[count++] = str_printf(SUBMISSION_KEY_HEADER ": %s", key)) != NULL;
	if (complete && caller->admin)
		complete = (headers[count++] = strdup(HTTP_ADMIN_HEADER ": yes")) != NULL;
	if (complete)
		return headers;
	for (size_t i = 0; i < count; i++)
		free(headers[i]);
	free(headers);
	return NULL;
}

static void refuse_peer(struct daemon *d, struct http_request *r)
{
	const struct settings *s = d->settings;
	/* One that has won the election, and is still reading the store, is to be asked again soon. */
	bool begins = d->leader && !d->controller && leader_holds(d);
	/* One that holds no more is no answer. */
	const char *leader = d->controller ? NULL : begins ? s->name : leader_known(d);
	_cleanup_free_ char *message = NULL;
	struct error_answer refusal = {.code = "not-controller"};

	if (!d->leader)
		message = str_printf(
		    "%s is not the controller, it takes %s for it: the hosts files or dtraind.conf differ",
		    s->name, s->controller);
	else if (begins)
		message = str_printf("%s is becoming the controller", s->name);
	else
		message = str_printf("%s is not the controller; %s%s", s->name,
		                     leader ? "it is " : "none is known", leader ? leader : "");
	refusal.message = message ? message : "out of memory";
	refusal.leader = d->leader ? leader : NULL;
	http_reply_json(r, 421, error_answer_encode(&refusal));
}

bool forward_to_controller(struct daemon *d, struct http_request *r)
{
	const struct settings *s = d->settings;
	char **headers;

	if (d->controller && leader_holds(d))
		return false;
	if (http_request_caller(r)->peer) {
		refuse_peer(d, r);
		return true;
	}
	headers = make_headers(r);
	if (!headers) {
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return true;
	}
	if (d->leader) {
		follow_controller(d, r, headers);
		return true;
	}
	pipe_call(d, r, &(struct peer){s->controller, s->controller_address, s->controller_port},
	          http_request_target(r), (const char *const *)headers);
	str_list_free(headers);
	return true;
}
