/* SPDX-License-Identifier: Apache-2.0 */
/* Between services. The caller has proved that it holds the cluster's key, or which node it is. */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/reconcile.h"
#include "dtraind/heartbeat.h"
#include "dtraind/leader.h"
#include "dtraind/log_streams.h"
#include "dtraind/peers.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "wire/node_view.h"
#include "wire/start_request.h"

static int start_status(int code)
{
	switch (code) {
	case -EBUSY:
		return 409;
	case -ESTALE:
		return 410;
	case -EPERM:
		return 403;
	case -ENOENT:
		return 404;
	default:
		return code == -ENOTRECOVERABLE || start_may_succeed_later(code) ? 503 : 400;
	}
}

static const char *start_word(int code)
{
	return code == -EBUSY ? "busy" : code == -ENOTRECOVERABLE ? START_NODE_FAILED : "refused";
}

/* A node obeys the controller of its own hosts file. Services of an older version do not name themselves. */
static bool check_controller(struct daemon *d, struct http_request *r, const char *name)
{
	const char *own = d->settings->controller;

	if (!name || leader_is_candidate(d, name))
		return true;
	http_reply_error(
	    r, 410, "refused",
	    "%s takes itself for the controller, %s takes %s for it: the hosts files or dtraind.conf "
	    "differ",
	    name, d->settings->name, own);
	return false;
}

/* A start that is under way: the caller may go before its answer. */
struct start_wait {
	struct daemon *daemon;
	struct http_request *request; /* NULL: it is gone */
};

static void on_start_closed(void *context)
{
	((struct start_wait *)context)->request = NULL;
}

static void on_started(void *context, int code, const char *message)
{
	_cleanup_free_ struct start_wait *w = context;

	if (!w->request)
		return;
	http_request_on_close(w->request, NULL, NULL);
	if (code < 0)
		http_reply_error(w->request, start_status(code), start_word(code), "%s", message);
	else
		http_reply_json(
		    w->request, 200,
		    node_position_encode(&(struct node_position){
		        (char *)w->daemon->instance, heartbeats_sequence(w->daemon->heartbeats)}));
}

void route_peer_start(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_json_ json_t *body = http_request_json(r);
	_cleanup_(start_request_release) struct start_request request = {0};
	struct error err = ERROR_INIT;
	struct start_wait *w;
	int code;

	if (!body)
		return;
	if (start_request_decode(body, &request, &err) < 0) {
		http_reply_error(r, 400, "refused", "%s", err.message);
		return;
	}
	if (!check_controller(d, r, request.controller))
		return;
	w = calloc(1, sizeof(*w));
	if (!w) {
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return;
	}
	*w = (struct start_wait){d, r};
	http_request_on_close(r, on_start_closed, w);
	code = node_start(d->node, &request, on_started, w, &err);
	if (code < 0)
		on_started(w, code, err.message);
}

void route_peer_stop(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_json_ json_t *body = http_request_json(r);
	_cleanup_(stop_request_release) struct stop_request request = {0};
	struct error err = ERROR_INIT;
	int code;

	if (!body)
		return;
	if (stop_request_decode(body, &request, &err) < 0) {
		http_reply_error(r, 400, "refused", "%s", err.message);
		return;
	}
	if (!check_controller(d, r, request.controller))
		return;
	code = node_stop_request(d->node, &request, &err);
	if (code < 0)
		http_reply_error(r, code == -ESTALE ? 410 : 403, "refused", "%s", err.message);
	else
		http_reply_json(r, 200,
		                node_position_encode(&(struct node_position){
		                    (char *)d->instance, heartbeats_sequence(d->heartbeats)}));
}

/* Where nodes have certificates of their own, each speaks for itself alone. */
static bool check_node(struct http_request *r, const char *node)
{
	const char *caller = http_request_caller(r)->node;

	if (!caller || str_eq_host(caller, node))
		return true;
	http_reply_error(r, 403, "not-allowed", "the certificate is of %s, and the message of %s", caller,
	                 node);
	return false;
}

void route_peer_reports(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_json_ json_t *body = NULL;
	struct error err = ERROR_INIT;
	size_t len, count;
	const char *text = http_request_body(r, &len);
	void *reports = NULL;

	if (json_parse(text, len, "request body", &body, &err) < 0 ||
	    message_decode_list(&report_message, body, &reports, &count, &err) < 0) {
		reply_not_taken(r, "bad-json", &err);
		return;
	}
	for (size_t i = 0; i < count; i++)
		if (!check_node(r, ((const struct report *)reports + i)->node)) {
			message_free_list(&report_message, reports, count);
			return;
		}
	for (size_t i = 0; i < count; i++)
		controller_report(d->controller, (const struct report *)reports + i);
	message_free_list(&report_message, reports, count);
	http_reply_json(r, 200, json_object());
}

static void refuse_heartbeat(struct http_request *r, const struct error *err)
{
	if (err->code == -ENOENT)
		http_reply_error(r, 404, "no-such-node", "%s", err->message);
	else if (err->code == -EALREADY)
		http_reply_error(r, 409, "repeated", "%s", err->message);
	else if (err->code == -ESTALE)
		http_reply_error(r, 409, "not-kept", "%s", err->message);
	else
		http_reply_error(r, 500, "out-of-memory", "%s", err->message);
}

static bool check_nodes(struct http_request *r, const struct heartbeat *heartbeat)
{
	for (size_t i = 0; i < heartbeat->attempt_count; i++)
		if (!check_node(r, heartbeat->attempts[i].node))
			return false;
	return check_node(r, heartbeat->node);
}

void route_peer_heartbeat(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_(heartbeat_answer_release) struct heartbeat_answer answer = {0};
	_cleanup_(heartbeat_release) struct heartbeat heartbeat = {0};
	_cleanup_json_ json_t *body = http_request_json(r);
	struct error err = ERROR_INIT;

	if (!body)
		return;
	if (heartbeat_decode(body, &heartbeat, &err) < 0)
		reply_not_taken(r, "bad-json", &err);
	else if (!check_nodes(r, &heartbeat))
		return;
	else if (controller_heartbeat(d->controller, &heartbeat, &answer, &err) < 0)
		refuse_heartbeat(r, &err);
	else {
		controller_keep_heartbeat(d->controller, &heartbeat, &answer);
		http_reply_json(r, 200, heartbeat_answer_encode(&answer));
	}
}

void route_peer_short_heartbeat(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_(heartbeat_answer_release) struct heartbeat_answer answer = {0};
	_cleanup_(short_heartbeat_release) struct short_heartbeat heartbeat = {0};
	_cleanup_json_ json_t *body = http_request_json(r);
	struct error err = ERROR_INIT;

	if (!body)
		return;
	if (short_heartbeat_decode(body, &heartbeat, &err) < 0)
		reply_not_taken(r, "bad-json", &err);
	else if (!check_node(r, heartbeat.node))
		return;
	else if (controller_short_heartbeat(d->controller, &heartbeat, &answer, &err) < 0)
		refuse_heartbeat(r, &err);
	else
		http_reply_json(r, 200, heartbeat_answer_encode(&answer));
}

static void change_device(struct daemon *d, struct http_request *r, bool drain)
{
	_cleanup_(drain_request_release) struct drain_request request = {0};
	struct device_wait *w;
	int64_t slot;

	if (str_to_int64(http_request_capture(r, 0), 0, INT32_MAX, &slot) < 0) {
		http_reply_error(r, 404, "no-such-device", "slots have numbers from 0");
		return;
	}
	if (drain && route_read_drain(r, &request) < 0)
		return;
	w = route_wait_for_device(r);
	if (w)
		peers_set_own_device(d, slot, drain, request.reason, route_on_device_set, w);
}

void route_peer_drain(void *context, struct http_request *r)
{
	change_device(context, r, true);
}

void route_peer_resume(void *context, struct http_request *r)
{
	change_device(context, r, false);
}

void route_peer_logs(void *context, struct http_request *r)
{
	struct log_query q;
	int64_t follow, positions;

	if (http_request_query_int(r, "run", 1, INT64_MAX, 0, &q.run) < 0 ||
	    http_request_query_int(r, "attempt", 0, INT64_MAX, 0, &q.attempt) < 0 ||
	    http_request_query_int(r, "rank", 0, INT32_MAX, 0, &q.rank) < 0 ||
	    http_request_query_int(r, "tail", -1, INT64_MAX, -1, &q.tail) < 0 ||
	    http_request_query_int(r, "follow", 0, 1, 0, &follow) < 0 ||
	    http_request_query_int(r, "positions", 0, 1, 0, &positions) < 0 ||
	    http_request_query_int(r, "offset", 0, INT64_MAX, -1, &q.offset) < 0)
		return;
	q.follow = follow;
	q.positions = positions;
	logs_serve_local(context, r, &q);
}
