/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "dtraind/routes.h"

enum { BEHIND_MAX = 16 << 20 };

void route_version(void *context, struct http_request *r)
{
	struct daemon *d = context;

	http_reply_json(r, 200,
	                json_pack("{s:s,s:s,s:s}", "version", DTRAIN_VERSION, "node", d->settings->name,
	                          "controller", d->settings->controller));
}

void route_devices(void *context, struct http_request *r)
{
	struct daemon *d = context;
	int64_t local;

	if (http_request_query_int(r, "local", 0, 1, 0, &local) < 0)
		return;
	if (local)
		http_reply_json(r, 200, json_pack("{s:o}", "devices", node_devices(d->node)));
	else if (!forward_to_controller(d, r))
		http_reply_json(r, 200,
		                json_pack("{s:o}", "devices", members_devices(d->controller->members)));
}

void route_nodes(void *context, struct http_request *r)
{
	struct daemon *d = context;

	if (!forward_to_controller(d, r))
		http_reply_json(r, 200,
		                json_pack("{s:o}", "nodes",
		                          members_to_json(d->controller->members, d->settings->controller)));
}

static void set_drained(struct daemon *d, struct http_request *r, bool drained)
{
	const char *name = http_request_capture(r, 0);
	struct member *m;

	if (forward_to_controller(d, r))
		return;
	m = members_find(d->controller->members, name);
	if (!caller_may(http_request_caller(r), 0))
		http_reply_error(r, 403, "not-allowed", "only root may drain and resume nodes");
	else if (!m)
		http_reply_error(r, 404, "no-such-node", "there is no node %s in the hosts file", name);
	else {
		controller_set_drained(d->controller, m, drained);
		http_reply_json(r, 200, json_pack("{s:s,s:s}", "name", m->name, "state", member_state(m)));
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

	if (forward_to_controller(d, r))
		return;
	s = calloc(1, sizeof(*s));
	if (!s || feed_listen(d->controller->events, FEED_EVENTS, on_event, s, &s->listener, &err) < 0) {
		free(s);
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return;
	}
	s->stream = http_reply_stream(r, 200, "application/x-ndjson");
	http_request_on_close(r, on_closed, s);
}

static void metric(struct strbuf *b, const char *name, const char *type, const char *help)
{
	strbuf_addf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label's value: a name of ours needs no escaping, a user's may. */
static void add_label(struct strbuf *b, const char *s)
{
	for (; *s; s++) {
		if (*s == '\n') {
			strbuf_adds(b, "\\n");
			continue;
		}
		if (*s == '"' || *s == '\\')
			strbuf_addc(b, '\\');
		strbuf_addc(b, *s);
	}
}

static void add_runs(struct strbuf *b, struct controller *c)
{
	static const struct {
		const char *name, *key, *help;
	} gauges[] = {
	    {"dtrain_run_step", "step", "Steps done."},
	    {"dtrain_run_loss", "loss", "Training loss of the last report."},
	    {"dtrain_run_learning_rate", "learning_rate", "Learning rate of the last report."},
	    {"dtrain_run_tokens_per_second", "tokens_per_second", "Tokens per second over the last steps."},
	    {"dtrain_run_eta_seconds", "eta_seconds", "Seconds left, as the worker reckons."},
	};

	for (size_t g = 0; g < ARRAY_SIZE(gauges); g++) {
		metric(b, gauges[g].name, "gauge", gauges[g].help);
		for (size_t i = 0; i < c->queue.count; i++) {
			const struct run *r = c->queue.list[i];
			const json_t *v = json_object_get(r->progress, gauges[g].key);

			if (!json_is_number(v))
				continue;
			strbuf_addf(b, "%s{run=\"%lld\",name=\"", gauges[g].name, (long long)r->id);
			add_label(b, r->name);
			strbuf_addf(b, "\"} %.9g\n", json_number_value(v));
		}
	}
}

void route_prometheus(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_strbuf_ struct strbuf b = {0};
	struct error err = ERROR_INIT;
	int64_t counts[RUN_STATES];
	struct controller *c = d->controller;

	if (forward_to_controller(d, r))
		return;
	if (store_counts(c->store, counts, &err) < 0) {
		http_reply_error(r, 500, "store", "%s", err.message);
		return;
	}
	metric(&b, "dtrain_runs", "gauge", "Runs by state.");
	for (int i = 0; i < RUN_STATES; i++)
		strbuf_addf(&b, "dtrain_runs{state=\"%s\"} %lld\n", run_state_name(i), (long long)counts[i]);
	metric(&b, "dtrain_node_up", "gauge", "1 where the node's heartbeats come.");
	for (size_t i = 0; i < members_count(c->members); i++) {
		struct member *m = members_get(c->members, i);

		strbuf_addf(&b, "dtrain_node_up{node=\"%s\"} %d\n", m->name, m->up);
	}
	metric(&b, "dtrain_slots", "gauge", "Slots of a node.");
	for (size_t i = 0; i < members_count(c->members); i++) {
		struct member *m = members_get(c->members, i);

		strbuf_addf(&b, "dtrain_slots{node=\"%s\"} %zu\n", m->name, m->slots);
	}
	metric(&b, "dtrain_slots_free", "gauge", "Slots of a node that no run has.");
	for (size_t i = 0; i < members_count(c->members); i++) {
		struct member *m = members_get(c->members, i);

		strbuf_addf(&b, "dtrain_slots_free{node=\"%s\"} %zu\n", m->name,
		            m->up ? member_free_slots(m) : 0);
	}
	add_runs(&b, c);
	http_reply_bytes(r, 200, "text/plain; version=0.0.4; charset=utf-8", b.data ? b.data : "", b.len);
}
