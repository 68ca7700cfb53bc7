/* SPDX-License-Identifier: Apache-2.0 */
#include "dtraind/heartbeat.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "controller/nodes.h"
#include "controller/reconcile.h"
#include "dtraind/log_streams.h"
#include "dtraind/status.h"

enum { SPARE_PORTS = 4 };

#define LOST_SECONDS 0.2

struct link {
	struct daemon *daemon;
	sd_event_source *timer;
	int64_t sequence;
	struct http_transfer *beating, *reporting; /* one of each at a time: they keep their order */
	json_t *pending;                           /* reports to send, the newest of each attempt */
	bool lost;                                 /* the last heartbeat did not arrive */
	bool stale;           /* the controller's store is older than what is known here */
	bool again;           /* there is more to say than the one under way does */
	struct clock_gap gap; /* between our clock and the controller's */
	double sent;          /* the heartbeat under way, by our clock */
};

int64_t link_sequence(const struct link *l)
{
	return l->sequence;
}

bool link_is_idle(const struct link *l)
{
	return !l->beating && !l->reporting && !l->again && json_array_size(l->pending) == 0;
}

json_t *link_ports(struct daemon *d)
{
	json_t *ports = json_array();

	for (int i = 0; i < SPARE_PORTS; i++) {
		int port = node_free_port(d->node, NULL);

		if (port > 0)
			json_array_append_new(ports, json_integer(port));
	}
	return ports;
}

/* Given up in time for another try, over a new connection, before the controller gives the node up. */
static int post(struct link *l, const char *target, const json_t *body,
                void (*done)(void *context, const struct http_answer *answer), struct http_transfer **out)
{
	const struct settings *s = l->daemon->settings;
	_cleanup_free_ char *text = json_to_string(body);
	struct error err = ERROR_INIT;
	struct http_call call = {
	    .method = "POST",
	    .address = s->controller_address,
	    .port = s->controller_port,
	    .target = target,
	    .body = text,
	    .len = text ? strlen(text) : 0,
	    .headers = (const char *const[]){"Content-Type: application/json", NULL},
	    .timeout = s->config->node_timeout / 2,
	    .context = l,
	    .on_done = done,
	};
	int r = text ? http_client_call(l->daemon->peer_client, &call, out, &err) : -ENOMEM;

	if (r < 0)
		log_err("cannot call the controller: %s", err.message);
	return r;
}

static void forget(struct link *l, const json_t *answer)
{
	json_t *entry;
	struct error err = ERROR_INIT;
	size_t i;

	if (node_learn(l->daemon->node, answer, &err) < 0) {
		if (!l->stale)
			log_err("controller %s: %s", l->daemon->settings->controller, err.message);
		l->stale = true;
		return;
	}
	l->stale = false;
	json_array_foreach(json_object_get(answer, "forget"), i, entry)
	    node_forget(l->daemon->node, json_get_int(entry, "run", 0), json_get_int(entry, "attempt", 0));
}

static void on_beaten(void *context, const struct http_answer *a)
{
	struct link *l = context;
	_cleanup_json_ json_t *answer = a->len ? json_loadb(a->body, a->len, 0, NULL) : NULL;
	const char *why = a->status == 0
	                      ? a->error.message
	                      : json_get_string(json_object_get(answer, "error"), "message", "an error");

	l->beating = NULL;
	if (a->error.code == -ECANCELED)
		return;
	if (a->status == 200) {
		if (l->lost)
			log_info("the controller %s is there", l->daemon->settings->controller);
		l->lost = false;
		clock_gap_add(&l->gap, l->sent, json_get_number(answer, "time", 0), clock_realtime());
		forget(l, answer);
	} else if (!l->lost) {
		log_warn("the controller %s cannot be spoken to: %s", l->daemon->settings->controller, why);
		l->lost = true;
		sd_event_source_set_time(l->timer, 0);
	}
	status_notify(l->daemon);
	if (l->again)
		link_heartbeat(l);
}

/* How far the times in the report are from the controller's clock. */
static void add_clock(const struct link *l, json_t *report)
{
	json_object_set_new(report, "clock_offset", json_real(l->gap.offset));
	json_object_set_new(report, "clock_error", json_real(l->gap.error));
}

static json_t *heartbeat(struct link *l)
{
	const struct daemon_config *config = l->daemon->settings->config;
	json_t *attempts = node_attempts_described(l->daemon->node), *report;
	char hosts[HOSTS_HASH_SIZE];
	size_t i;

	json_array_foreach(l->daemon->controller ? NULL : attempts, i, report) add_clock(l, report);
	l->sequence++;
	hosts_hash(l->daemon->settings->hosts, hosts);
	return json_pack("{s:s,s:s,s:s,s:I,s:s,s:o,s:o,s:o,s:[i,i],s:b,s:o}", "node",
	                 l->daemon->settings->name, "hosts", hosts, "instance", l->daemon->instance,
	                 "sequence", (json_int_t)l->sequence, "version", DTRAIN_VERSION, "devices",
	                 node_devices(l->daemon->node), "attempts", attempts, "ports", link_ports(l->daemon),
	                 "port_range", config->port_low, config->port_high, "shutting_down",
	                 node_is_shutting_down(l->daemon->node), "known", node_known(l->daemon->node));
}

void link_heartbeat(struct link *l)
{
	struct controller *c = l->daemon->controller;
	_cleanup_json_ json_t *body = NULL, *answer = NULL;
	struct error err = ERROR_INIT;

	l->again = l->beating != NULL;
	if (l->beating)
		return;
	body = heartbeat(l);
	if (!body)
		return;
	l->sent = clock_realtime();
	if (!c)
		post(l, "/v1/peer/heartbeat", body, on_beaten, &l->beating);
	else if (controller_heartbeat(c, body, &answer, &err) < 0)
		log_err("%s", err.message);
	else
		forget(l, answer);
}

void link_refresh_local(struct daemon *d)
{
	if (d->controller)
		controller_set_devices(d->controller, d->settings->name, node_devices(d->node));
}

static void send_reports(struct link *l);

static void on_reported(void *context, const struct http_answer *a)
{
	struct link *l = context;

	l->reporting = NULL;
	if (a->error.code == -ECANCELED)
		return;
	/* What did not arrive comes again with the heartbeats: they carry all attempts. */
	if (a->status != 200)
		json_array_clear(l->pending);
	send_reports(l);
}

static void send_reports(struct link *l)
{
	if (l->reporting || json_array_size(l->pending) == 0)
		return;
	post(l, "/v1/peer/reports", l->pending, on_reported, &l->reporting);
	json_array_clear(l->pending);
}

static void add_pending(struct link *l, const json_t *report)
{
	json_t *copy = json_deep_copy(report), *old;
	size_t i;

	add_clock(l, copy);
	json_array_foreach(l->pending, i, old)
	{
		if (json_get_int(old, "run", -1) == json_get_int(report, "run", -2) &&
		    json_get_int(old, "attempt", -1) == json_get_int(report, "attempt", -2)) {
			json_array_set_new(l->pending, i, copy);
			return;
		}
	}
	json_array_append_new(l->pending, copy);
}

void link_report(struct link *l, const json_t *report)
{
	const char *state = json_get_string(report, "state", "");

	if (strcmp(state, "ended") == 0)
		log_streams_finish(l->daemon->logs, json_get_int(report, "run", -1),
		                   json_get_int(report, "attempt", -1));
	if (l->daemon->controller) {
		link_refresh_local(l->daemon);
		controller_report(l->daemon->controller, report);
		return;
	}
	if (strcmp(state, "starting") == 0) /* the answer to the start says as much */
		return;
	add_pending(l, report);
	send_reports(l);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
	double interval = ((struct link *)userdata)->daemon->settings->config->heartbeat;
	struct link *l = userdata;
	uint64_t now;

	sd_event_now(l->daemon->event, CLOCK_MONOTONIC, &now);
	if (usec > 0) { /* 0: at once, for a reason */
		l->daemon->loop_lag = (now - usec) / 1e6;
		l->daemon->loop_lag_max = MAX(l->daemon->loop_lag_max, l->daemon->loop_lag);
	}
	/* A controller that was away is found again soon. */
	if (l->lost)
		interval = MIN(interval, LOST_SECONDS);
	if (!l->beating)
		link_heartbeat(l);
	send_reports(l);
	sd_event_source_set_time(source, now + (uint64_t)(interval * 1e6));
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

int link_create(struct daemon *d, struct link **out, struct error *err)
{
	struct link *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return error_oom(err);
	l->daemon = d;
	l->pending = json_array();
	r = sd_event_add_time(d->event, &l->timer, CLOCK_MONOTONIC, 0, 20000, on_timer, l);
	if (r < 0) {
		link_destroy(l);
		return error_errno(err, r, "cannot set up the heartbeat");
	}
	*out = l;
	return 0;
}

void link_destroy(struct link *l)
{
	if (!l)
		return;
	sd_event_source_disable_unref(l->timer);
	http_transfer_cancel(l->beating);
	http_transfer_cancel(l->reporting);
	json_decref(l->pending);
	free(l);
}
