/* SPDX-License-Identifier: Apache-2.0 */
/* Routes of the cluster: version, nodes, devices, foreign work, events. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/foreign.h"
#include "controller/nodes.h"
#include "controller/runs.h"
#include "dtraind/leader.h"
#include "dtraind/proxy.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/committed.h"
#include "dtraind/routes/routes.h"
#include "wire/start_request.h"

enum { BEHIND_MAX = 16 << 20 };

void route_version(void *context, struct http_request *r)
{
	struct daemon *d = context;

	http_reply_json(r, 200,
	                service_version_encode(&(struct service_version){
	                    (char *)DTRAIN_VERSION, d->settings->name, (char *)leader_peer(d).name}));
}

void route_devices(void *context, struct http_request *r)
{
	_cleanup_(device_list_release) struct device_list devices = {0};
	struct daemon *d = context;
	struct error err = ERROR_INIT;
	int64_t local;

	if (http_request_query_int(r, "local", 0, 1, 0, &local) < 0)
		return;
	if (local && node_devices(d->node, &devices, &err) < 0)
		http_reply_error(r, 500, "out-of-memory", "%s", err.message);
	else if (local)
		http_reply_json(r, 200, device_list_encode(&devices));
	else if (!forward_to_controller(d, r))
		http_reply_json(r, 200, controller_devices_to_json(d->controller));
}

void route_nodes(void *context, struct http_request *r)
{
	struct daemon *d = context;

	http_reply_json(r, 200, controller_nodes_to_json(d->controller));
}

/* Of the reason that an admin gives: it goes into every list of the nodes. */
enum { REASON_BYTES = 200 };

int route_read_drain(struct http_request *r, struct drain_request *request)
{
	_cleanup_json_ json_t *body = NULL;
	struct error err = ERROR_INIT;
	size_t len;

	http_request_body(r, &len);
	if (len == 0)
		return 0;
	body = http_request_json(r);
	if (!body)
		return -EINVAL;
	if (drain_request_decode(body, request, &err) < 0)
		reply_not_taken(r, "bad-json", &err);
	return err.code;
}

static void set_drained(struct daemon *d, struct http_request *r, bool drained)
{
	_cleanup_(drain_request_release) struct drain_request request = {0};
	const char *name = http_request_capture(r, 0), *reason;
	const struct member *m;

	if (drained && route_read_drain(r, &request) < 0)
		return;
	m = controller_find_node(d->controller, name);
	reason = request.reason;
	if (!caller_may(http_request_caller(r), 0))
		http_reply_error(r, 403, "not-allowed", "only administrators may drain and resume nodes");
	else if (reason && strlen(reason) > REASON_BYTES)
		http_reply_error(r, 400, "bad-json", "reason: %zu bytes; at most %d are possible",
		                 strlen(reason), REASON_BYTES);
	else if (!m)
		http_reply_error(r, 404, "no-such-node", "there is no node %s in the hosts file", name);
	else if (controller_set_drained(d->controller, m->name, drained, reason) < 0)
		http_reply_error(r, 500, "out-of-memory", "out of memory");
	else {
		if (drained && !request.keep_runs)
			log_info("node %s is drained: %zu runs on it save, stop and are queued again",
			         m->name, controller_evict_runs(d->controller, m->name));
		reply_when_committed(
		    d->controller, r, 0, 200,
		    node_drained_encode(&(struct node_drained){m->name, member_state(m), m->drain_reason}));
	}
}

void route_drain(void *context, struct http_request *r)
{
	set_drained(context, r, true);
}

void route_resume(void *context, struct http_request *r)
{
	set_drained(context, r, false);
}

void route_fence(void *context, struct http_request *r)
{
	const char *name = http_request_capture(r, 0);
	struct daemon *d = context;
	int64_t count = 0;
	int code;

	if (!caller_may(http_request_caller(r), 0)) {
		http_reply_error(r, 403, "not-allowed", "only administrators may fence nodes");
		return;
	}
	code = controller_fence(d->controller, name, &count);
	if (code == -EBUSY)
		http_reply_error(r, 409, "busy", "node %s is up: what runs there ends with dtrain cancel",
		                 name);
	else if (code < 0)
		http_reply_error(r, 404, "no-such-node", "there is no node %s in the hosts file", name);
	else {
		log_info("node %s is fenced: %lld lost parts of runs count as ended", name, (long long)count);
		reply_when_committed(d->controller, r, 0, 200,
		                     node_fenced_encode(&(struct node_fenced){(char *)name, count}));
	}
}

static void answer_device(struct http_request *r, const struct peer_result *result)
{
	static const struct {
		int code, status;
		const char *word;
	} errors[] = {
	    {-ENOENT, 404, "no-such-device"},    {-EIO, 409, "broken"},
	    {-EHOSTUNREACH, 502, "unreachable"}, {-EBADMSG, 502, "bad-answer"},
	    {-ECANCELED, 503, "stopping"},       {-ENOMEM, 500, "out-of-memory"},
	};

	if (result->code >= 0) {
		http_reply_json(r, 200, device_drained_encode(result->device));
		return;
	}
	for (size_t i = 0; i < ARRAY_SIZE(errors); i++)
		if (errors[i].code == result->code) {
			http_reply_error(r, errors[i].status, errors[i].word, "%s", result->message);
			return;
		}
	http_reply_error(r, 500, "store", "%s", result->message);
}

/* A caller who waits for a node's answer, or until the change is on disk. */
struct device_wait {
	struct http_request *request; /* NULL: it is gone */
};

static void on_device_closed(void *context)
{
	((struct device_wait *)context)->request = NULL;
}

void route_on_device_set(void *wait, const struct peer_result *result)
{
	_cleanup_free_ struct device_wait *w = wait;

	if (!w->request)
		return;
	http_request_on_close(w->request, NULL, NULL);
	answer_device(w->request, result);
}

struct device_wait *route_wait_for_device(struct http_request *r)
{
	struct device_wait *w = calloc(1, sizeof(*w));

	if (!w) {
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return NULL;
	}
	w->request = r;
	http_request_on_close(r, on_device_closed, w);
	return w;
}

static void change_device(struct daemon *d, struct http_request *r, bool drain)
{
	const char *name = http_request_capture(r, 0), *number = http_request_capture(r, 1);
	_cleanup_(drain_request_release) struct drain_request request = {0};
	struct device_wait *w;
	int64_t slot;

	if (!caller_may(http_request_caller(r), 0)) {
		http_reply_error(r, 403, "not-allowed", "only administrators may drain and resume devices");
		return;
	}
	if (!controller_find_node(d->controller, name)) {
		http_reply_error(r, 404, "no-such-node", "there is no node %s in the hosts file", name);
		return;
	}
	if (str_to_int64(number, 0, INT32_MAX, &slot) < 0) {
		http_reply_error(r, 404, "no-such-device", "there is no slot %s: slots have numbers from 0",
		                 number);
		return;
	}
	if (drain && route_read_drain(r, &request) < 0)
		return;
	w = route_wait_for_device(r);
	if (w)
		controller_set_device_drained(d->controller, name, slot, drain, request.reason,
		                              route_on_device_set, w);
}

void route_device_drain(void *context, struct http_request *r)
{
	change_device(context, r, true);
}

void route_device_resume(void *context, struct http_request *r)
{
	change_device(context, r, false);
}

void route_cancel_foreign(void *context, struct http_request *r)
{
	struct daemon *d = context;
	const char *name = http_request_capture(r, 0);
	const struct member *m;
	int64_t run;
	size_t n;

	if (http_request_query_int(r, "run", 1, INT64_MAX, 0, &run) < 0)
		return;
	m = controller_find_node(d->controller, name);
	if (!caller_may(http_request_caller(r), 0)) {
		http_reply_error(r, 403, "not-allowed", "only administrators may end foreign work");
		return;
	}
	if (!m) {
		http_reply_error(r, 404, "no-such-node", "there is no node %s in the hosts file", name);
		return;
	}
	n = controller_cancel_foreign(d->controller, m->name, run);
	if (n > 0)
		http_reply_json(r, 202,
		                foreign_stopped_encode(&(struct foreign_stopped){m->name, (int64_t)n}));
	else if (run)
		http_reply_error(r, 404, "no-such-run", "there is no foreign run %lld on node %s",
		                 (long long)run, m->name);
	else
		http_reply_error(r, 404, "no-such-run", "there is no foreign work on node %s", m->name);
}

struct event_stream {
	struct http_stream *stream;
	struct feed_listener *listener;
};

static void on_event(void *context, const char *data, size_t len)
{
	struct event_stream *s = context;

	if (data && http_stream_pending(s->stream) > BEHIND_MAX)
		http_stream_abort(s->stream); /* a reader that reads no more */
	else if (data)
		http_stream_write(s->stream, data, len);
}

static void on_closed(void *context)
{
	struct event_stream *s = context;

	feed_remove(s->listener);
	free(s);
}

void route_events(void *context, struct http_request *r)
{
	struct daemon *d = context;
	struct event_stream *s;
	struct error err = ERROR_INIT;

	s = calloc(1, sizeof(*s));
	if (!s || controller_listen_events(d->controller, on_event, s, &s->listener, &err) < 0) {
		free(s);
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return;
	}
	s->stream = http_reply_stream(r, 200, "application/x-ndjson");
	http_request_on_close(r, on_closed, s);
}
