/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the controller reaches nodes: this one by calls, the others over HTTP. It cannot tell the difference,
 * but for how soon the answer comes.
 */
#include "dtraind/peers.h"

#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "dtraind/heartbeat.h"
#include "wire/device_info.h"
#include "wire/error_answer.h"
#include "wire/node_view.h"
#include "wire/start_request.h"

/* Queues of the client: stops do not wait behind the starts of a large run. */
enum call_queue { AT_ONCE, STARTS, STOPS };

enum {
	CALL_SECONDS = 30,
	MISMATCH = 421, /* another node has the address: this one is not reached */
};

struct call {
	struct daemon *daemon;
	peer_done_fn done;
	void *context;
	char node[];
};

static bool is_here(const struct daemon *d, const struct peer *peer)
{
	return str_eq_host(peer->name, d->settings->name);
}

static struct call *call_new(struct daemon *d, const struct peer *peer, peer_done_fn done, void *context)
{
	struct call *call = calloc(1, sizeof(*call) + strlen(peer->name) + 1);

	if (!call) {
		done(context, &(struct peer_result){.code = -ENOMEM, .message = "out of memory"});
		return NULL;
	}
	call->daemon = d;
	call->done = done;
	call->context = context;
	strcpy(call->node, peer->name);
	return call;
}

/* Takes call. */
static void finish(struct call *call, const struct peer_result *result)
{
	call->done(call->context, result);
	free(call);
}

/* Takes call and body. once: as http_call has it. */
static void post(struct call *call, const struct peer *peer, const char *target, enum call_queue queue,
                 bool once, json_t *body, void (*done)(void *context, const struct http_answer *answer))
{
	_cleanup_free_ char *text = body ? json_to_string(body) : NULL;
	struct http_call http = {
	    .method = "POST",
	    .address = peer->address,
	    .port = peer->port,
	    .node = peer->name,
	    .target = target,
	    .body = text,
	    .len = text ? strlen(text) : 0,
	    .headers = (const char *const[]){"Content-Type: application/json", NULL},
	    .timeout = CALL_SECONDS,
	    .once = once,
	    .queue = queue,
	    .context = call,
	    .on_done = done,
	};
	struct error err = ERROR_INIT;

	json_decref(body);
	if (!text)
		error_oom(&err);
	if (!text || http_client_call(call->daemon->peer_client, &http, NULL, &err) < 0)
		finish(call, &(struct peer_result){.code = err.code == -ENOMEM ? -ENOMEM : -EIO,
		                                   .message = err.message});
}

/* The codes of peers.h from those of node.h. -ECANCELED, a start that was stopped before it began, is a
 * refusal there; in peers.h it says that the call itself was not finished, and the codes of connections say
 * that the node was not reached. */
static int start_code(int node_code)
{
	return node_code == -ECANCELED              ? -EREMOTEIO
	       : start_may_succeed_later(node_code) ? -EAGAIN
	                                            : node_code;
}

/* The controller's view of our devices is up to date at once: no backoff is needed. */
static void on_started_here(void *context, int code, const char *message)
{
	struct call *call = context;
	struct daemon *d = call->daemon;

	if (code == -ESHUTDOWN) { /* the controller is gone already */
		finish(call, &(struct peer_result){.code = -ECANCELED, .message = message});
		return;
	}
	heartbeats_refresh_local(d);
	finish(call, &(struct peer_result){.code = start_code(code),
	                                   .message = message,
	                                   .instance = d->instance,
	                                   .sequence = heartbeats_sequence(d->heartbeats)});
}

static void on_started_there(void *context, const struct http_answer *a)
{
	struct call *call = context;
	const struct daemon_config *config = call->daemon->settings->config;
	_cleanup_json_ json_t *json = a->len ? json_loadb(a->body, a->len, 0, NULL) : NULL;
	_cleanup_(node_position_release) struct node_position answer = {0};
	struct peer_result result = {0};
	struct error_answer refusal;
	struct error err = ERROR_INIT;
	bool absent;

	if (a->error.code == -ECANCELED) {
		result.code = -ECANCELED;
	} else if (a->status == 200) {
		if (node_position_decode(json, &answer, &err) < 0)
			log_warn("node %s: %s", call->node, err.message);
		result.instance = answer.instance;
		result.sequence = answer.sequence;
	} else if (a->status == 0) {
		result.code = a->error.code == -ECONNREFUSED ? -ECONNREFUSED : -EHOSTUNREACH;
		result.message = a->error.message;
		result.backoff = config->node_timeout;
	} else {
		error_answer_read(json, &refusal);
		/* A service that is being stopped begins no start, not even one that it has taken. */
		absent = a->status == MISMATCH || str_eq(refusal.code, "stopping");
		result.code = a->status == 409                          ? -EBUSY
		              : a->status == 404                        ? -ENOENT
		              : absent                                  ? -ECONNREFUSED
		              : str_eq(refusal.code, START_NODE_FAILED) ? -ENOTRECOVERABLE
		              : a->status >= 500                        ? -EAGAIN
		                                                        : -EREMOTEIO;
		result.message = refusal.message ? refusal.message : "the node refused the start";
		if (a->status == 409) /* what has its slots is in its next heartbeat */
			result.backoff = config->heartbeat;
		else if (absent)
			result.backoff = config->node_timeout;
	}
	finish(call, &result);
}

static void start(void *context, const struct peer *peer, struct start_request *request, peer_done_fn done,
                  void *done_context)
{
	struct daemon *d = context;
	struct call *call = call_new(d, peer, done, done_context);
	struct error err = ERROR_INIT;
	int r;

	if (!call) {
		start_request_release(request);
		return;
	}
	if (!is_here(d, peer)) {
		post(call, peer, "/v1/peer/start", STARTS, true, start_request_encode(request),
		     on_started_there);
		start_request_release(request);
		return;
	}
	r = node_start(d->node, request, on_started_here, call, &err);
	if (r < 0)
		on_started_here(call, r, err.message);
	else
		heartbeats_refresh_local(d);
}

static void on_stopped_there(void *context, const struct http_answer *a)
{
	struct call *call = context;
	_cleanup_json_ json_t *json = a->len ? json_loadb(a->body, a->len, 0, NULL) : NULL;
	_cleanup_(node_position_release) struct node_position answer = {0};
	struct peer_result result = {0};
	struct error_answer refusal;

	if (a->status == 200 && node_position_decode(json, &answer, NULL) == 0) {
		result.instance = answer.instance;
		result.sequence = answer.sequence;
	}
	if (a->error.code == -ECANCELED)
		result.code = -ECANCELED;
	else if (a->status != 200) {
		result.code = a->status ? -EREMOTEIO : -EHOSTUNREACH;
		error_answer_read(json, &refusal);
		result.message = refusal.message ? refusal.message
		                 : a->status     ? "it answered with an error"
		                                 : a->error.message;
	}
	finish(call, &result);
}

static void stop(void *context, const struct peer *peer, const struct stop_request *request,
                 peer_done_fn done, void *done_context)
{
	struct daemon *d = context;
	struct call *call = call_new(d, peer, done, done_context);
	struct error err = ERROR_INIT;
	int r;

	if (!call)
		return;
	if (!is_here(d, peer)) {
		post(call, peer, "/v1/peer/stop", STOPS, false, stop_request_encode(request),
		     on_stopped_there);
		return;
	}
	r = node_stop_request(d->node, request, &err);
	finish(call, &(struct peer_result){.code = r,
	                                   .message = err.message,
	                                   .instance = d->instance,
	                                   .sequence = heartbeats_sequence(d->heartbeats)});
}

/* A change of a device of this node, which is answered when it is on disk. */
struct device_change {
	peer_done_fn done;
	void *context;
	int64_t slot;
	struct device_info device;
};

static void answer_change(struct device_change *change, int code, const char *message)
{
	struct device_drained now = {change->device.node, change->slot, change->device.state,
	                             change->device.reason};

	change->done(change->context,
	             &(struct peer_result){.code = code, .message = message, .device = &now});
	device_info_release(&change->device);
	free(change);
}

static void on_change_written(void *context, int code, const char *message)
{
	/* Whatever was wrong with the disk, it is not the device that is broken. */
	answer_change(context, code < 0 ? -EREMOTEIO : 0, message);
}

void peers_set_own_device(struct daemon *d, int64_t slot, bool drained, const char *reason, peer_done_fn done,
                          void *context)
{
	struct device_change *change = calloc(1, sizeof(*change));
	struct error err = ERROR_INIT;
	int r;

	if (!change) {
		done(context, &(struct peer_result){.code = -ENOMEM, .message = "out of memory"});
		return;
	}
	*change = (struct device_change){.done = done, .context = context, .slot = slot};
	r = drained ? node_drain(d->node, (int)slot, reason, &err) : node_resume(d->node, (int)slot, &err);
	if (r < 0 || (r = node_describe_device(d->node, (int)slot, &change->device, &err)) < 0 ||
	    (r = node_wait_drains(d->node, on_change_written, change, &err)) < 0)
		answer_change(change, r, err.message);
}

static void on_device_set_there(void *context, const struct http_answer *a)
{
	struct call *call = context;
	_cleanup_json_ json_t *json = a->len ? json_loadb(a->body, a->len, 0, NULL) : NULL;
	_cleanup_(device_drained_release) struct device_drained device = {0};
	struct peer_result result = {.device = &device};
	struct error_answer refusal;
	struct error err = ERROR_INIT;

	if (a->status == 200) {
		/* Done, but how it is now is not known. */
		if (device_drained_decode(json, &device, &err) < 0) {
			result.code = -EBADMSG;
			error_prefix(&err, "the answer of node %s cannot be read", call->node);
		}
		result.message = err.message;
	} else if (a->status == 0) {
		result.code = a->error.code == -ECANCELED ? -ECANCELED : -EHOSTUNREACH;
		result.message = a->error.message;
	} else {
		result.code = a->status == 404        ? -ENOENT
		              : a->status == 409      ? -EIO
		              : a->status == MISMATCH ? -EHOSTUNREACH
		                                      : -EREMOTEIO;
		error_answer_read(json, &refusal);
		result.message = refusal.message ? refusal.message : "the node refused the change";
	}
	finish(call, &result);
}

static void set_device(void *context, const struct peer *peer, int64_t slot, bool drained, const char *reason,
                       peer_done_fn done, void *done_context)
{
	struct drain_request request = {.reason = (char *)reason};
	struct daemon *d = context;
	struct call *call;
	char target[64];

	if (is_here(d, peer)) {
		peers_set_own_device(d, slot, drained, reason, done, done_context);
		return;
	}
	call = call_new(d, peer, done, done_context);
	if (!call)
		return;
	snprintf(target, sizeof(target), "/v1/peer/devices/%lld/%s", (long long)slot,
	         drained ? "drain" : "resume");
	post(call, peer, target, AT_ONCE, false, drain_request_encode(&request), on_device_set_there);
}

static int free_port(void *context, const struct peer *peer, struct error *err)
{
	struct daemon *d = context;

	return is_here(d, peer) ? node_free_port(d->node, err) : 0;
}

struct peers peers_of_daemon(struct daemon *d)
{
	return (struct peers){d, start, stop, set_device, free_port};
}
