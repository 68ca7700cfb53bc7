/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a node to the controller: a heartbeat at each interval, and reports of attempts as soon as they
 * change. Of each kind one call at a time is under way, so that they arrive in their order. A report that
 * does not arrive is not sent again by itself: the next heartbeat carries the state of all attempts, unless
 * it is a short one, which says that nothing has changed (wire/heartbeat_state.h).
 */
#include "dtraind/heartbeat.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/backoff.h"
#include "base/boot_id.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "controller/nodes.h"
#include "controller/reconcile.h"
#include "dtraind/leader.h"
#include "dtraind/log_streams.h"
#include "dtraind/status.h"
#include "node/lease.h"
#include "wire/error_answer.h"
#include "wire/heartbeat_state.h"

enum { SPARE_PORTS = 4, MOST_PATIENCE = 4 };

/* What a controller may ask for at most: as long as dtraind.conf allows. */
#define LONGEST_INTERVAL 60.0

/* The first pause after a heartbeat that did not arrive; the longest is the interval of heartbeats. */
#define LOST_SECONDS 0.2

/* A report to send. */
struct pending {
	int64_t run, attempt;
	json_t *report;
};

struct heartbeats {
	struct daemon *daemon;
	sd_event_source *timer;
	uint64_t due;    /* when the timer sends the next heartbeat */
	double interval; /* of heartbeats, as the controller asks for it; 0: it does not */
	int64_t sequence;
	struct http_transfer *heartbeat_call, *reporting; /* one of each at a time: they keep their order */
	char asked[256];                                  /* whom the former has been sent to */
	struct pending *pending;                          /* the newest of each attempt */
	size_t pending_count;
	bool lost;                    /* the last heartbeat did not arrive */
	struct backoff backoff;       /* and when another one is sent */
	int patience;                 /* some times the time that a call may take otherwise */
	bool stale;                   /* the controller's store is older than what is known here */
	bool again;                   /* there is more to say than the one under way does */
	struct heartbeat_state state; /* what the controller has of this node */
	bool is_short;                /* the heartbeat under way */
	struct clock_gap gap;         /* between our clock and the controller's */
	double sent;                  /* the heartbeat under way, by our clock, */
	double sent_lease;            /* by that of leases, */
	double sent_monotonic;        /* and by the monotonic one */
	char boot[BOOT_ID_SIZE];      /* of this machine; "": not known */
};

int64_t heartbeats_sequence(const struct heartbeats *l)
{
	return l->sequence;
}

bool heartbeats_are_idle(const struct heartbeats *l)
{
	return !l->heartbeat_call && !l->reporting && !l->again && l->pending_count == 0;
}

/* Given up in time for another try, over a new connection, before the controller gives the node up; but where
 * the controller has many handshakes to do, as after its restart, who gives up has to queue again. */
static int post(struct heartbeats *l, const char *target, const json_t *body,
                void (*done)(void *context, const struct http_answer *answer), struct http_transfer **out)
{
	const struct settings *s = l->daemon->settings;
	const struct peer to = leader_peer(l->daemon);
	_cleanup_free_ char *text = json_to_string(body);
	struct error err = ERROR_INIT;
	struct http_call call = {
	    .method = "POST",
	    .address = to.address,
	    .port = to.port,
	    .node = to.name,
	    .target = target,
	    .body = text,
	    .len = text ? strlen(text) : 0,
	    .headers = (const char *const[]){"Content-Type: application/json", NULL},
	    .timeout = l->patience * s->config->node_timeout / 2,
	    .connect = l->patience * s->config->node_timeout / 2,
	    .context = l,
	    .on_done = done,
	};
	int r = text ? http_client_call(l->daemon->peer_client, &call, out, &err) : -ENOMEM;

	if (r < 0)
		log_err("cannot call the controller: %s", err.message);
	return r;
}

static void take_answer(struct heartbeats *l, const struct heartbeat_answer *answer)
{
	struct error err = ERROR_INIT;

	if (node_learn(l->daemon->node, answer, l->sent_lease, &err) < 0) {
		if (!l->stale)
			log_err("controller %s: %s", leader_peer(l->daemon).name, err.message);
		l->stale = true;
		return;
	}
	l->stale = false;
	for (size_t i = 0; i < answer->forget_count; i++)
		node_forget(l->daemon->node, answer->forget[i].run, answer->forget[i].attempt);
}

static void read_answer(struct heartbeats *l, const json_t *json)
{
	_cleanup_(heartbeat_answer_release) struct heartbeat_answer answer = {0};
	struct error err = ERROR_INIT;

	if (heartbeat_answer_decode(json, &answer, &err) < 0) {
		log_err("controller %s: %s", leader_peer(l->daemon).name, err.message);
		return;
	}
	heartbeat_state_answered(&l->state, &answer);
	l->interval = MIN(answer.interval, LONGEST_INTERVAL);
	clock_gap_add(&l->gap, l->sent, answer.time, clock_realtime());
	take_answer(l, &answer);
}

static double own_interval(const struct heartbeats *l)
{
	return l->daemon->settings->config->heartbeat;
}

/* The timer sends a heartbeat after so many seconds. */
static void set_timer(struct heartbeats *l, double pause)
{
	uint64_t now;

	sd_event_now(l->daemon->event, CLOCK_MONOTONIC, &now);
	l->due = now + (uint64_t)(pause * 1e6);
	sd_event_source_set_time(l->timer, l->due);
}

/* There is something to say: the longer interval that the controller asks for is not waited for. */
static void hasten(struct heartbeats *l)
{
	uint64_t now;

	sd_event_now(l->daemon->event, CLOCK_MONOTONIC, &now);
	if (l->due > now + (uint64_t)(own_interval(l) * 1e6))
		set_timer(l, own_interval(l));
}

/* A controller that was away is found again soon, but not by all nodes in the same moment. */
static void send_again(struct heartbeats *l)
{
	set_timer(l, backoff_next(&l->backoff, LOST_SECONDS, own_interval(l)));
}

static void on_heartbeat_done(void *context, const struct http_answer *a)
{
	struct heartbeats *l = context;
	_cleanup_json_ json_t *answer = a->len ? json_loadb(a->body, a->len, 0, NULL) : NULL;
	struct error_answer refusal;
	const char *why = a->error.message;

	error_answer_read(answer, &refusal);
	if (a->status != 0)
		why = refusal.message ? refusal.message : "an error";
	l->heartbeat_call = NULL;
	heartbeat_state_answered(&l->state, NULL); /* until the answer says otherwise */
	if (a->error.code == -ECANCELED)
		return;
	if (a->status != 0)
		leader_answered(l->daemon, l->asked, a->status == 200);
	else
		leader_unanswered(l->daemon, l->asked, l->sent_monotonic);
	if (a->status == 200) {
		if (l->lost)
			log_info("reconnected to controller %s", leader_peer(l->daemon).name);
		l->lost = false;
		l->backoff = (struct backoff){0};
		l->patience = 1;
		read_answer(l, answer);
	} else if (l->is_short && (a->status == 409 || a->status == 404)) {
		/* The controller does not keep what a short one refers to, or is of a version that takes
		 * none. */
		log_debug("controller %s: %s", leader_peer(l->daemon).name, why);
		l->again = true;
	} else if (a->status == 409) {
		/* It came a second time, because the answer to it was lost; the next one gets an answer. */
		log_debug("controller %s: %s", leader_peer(l->daemon).name, why);
	} else {
		if (!l->lost) {
			log_warn(a->status == 0 ? "cannot reach controller %s: %s"
			                        : "controller %s refuses the heartbeat: %s",
			         leader_peer(l->daemon).name, why);
			l->lost = true;
		}
		l->patience = a->queued ? MIN(2 * l->patience, MOST_PATIENCE) : 1;
		send_again(l);
		if (refusal.leader)
			leader_learn(l->daemon, refusal.leader);
		else
			leader_away(l->daemon, leader_peer(l->daemon).name);
	}
	status_notify(l->daemon);
	if (l->again)
		heartbeats_send(l);
}

/* How far the times in the report are from the controller's clock. */
static void set_clock(const struct heartbeats *l, struct report *report)
{
	report->clock_offset = l->gap.offset;
	report->clock_error = l->gap.error;
}

/* The reports are copies of the node's without what these own. */
static int add_attempts(struct heartbeats *l, struct heartbeat *out, struct error *err)
{
	const struct report *report;
	size_t count = 0;

	while (node_attempt(l->daemon->node, count))
		count++;
	out->attempts = calloc(count + 1, sizeof(*out->attempts));
	if (!out->attempts)
		return error_oom(err);
	while ((report = node_attempt(l->daemon->node, out->attempt_count))) {
		out->attempts[out->attempt_count] = *report;
		if (!l->daemon->controller)
			set_clock(l, &out->attempts[out->attempt_count]);
		out->attempt_count++;
	}
	return 0;
}

/* A few free TCP ports, for the controller to give away. */
static int add_ports(struct heartbeats *l, struct heartbeat *out, struct error *err)
{
	const struct daemon_config *config = l->daemon->settings->config;

	out->ports = calloc(SPARE_PORTS, sizeof(*out->ports));
	out->port_range = calloc(2, sizeof(*out->port_range));
	if (!out->ports || !out->port_range)
		return error_oom(err);
	for (int i = 0; i < SPARE_PORTS; i++) {
		int port = node_free_port(l->daemon->node, NULL);

		if (port > 0)
			out->ports[out->port_count++] = port;
	}
	out->port_range[0] = config->port_low;
	out->port_range[1] = config->port_high;
	out->port_range_count = 2;
	return 0;
}

static void release_heartbeat(struct heartbeat *heartbeat)
{
	/* What they own is the node's. */
	free(heartbeat->attempts);
	heartbeat->attempts = NULL;
	heartbeat->attempt_count = 0;
	heartbeat_release(heartbeat);
}

static int make_heartbeat(struct heartbeats *l, struct heartbeat *out, struct error *err)
{
	struct device_list devices = {0};
	char hosts[HOSTS_HASH_SIZE];
	int r;

	r = hosts_hash(l->daemon->settings->hosts, hosts, err);
	if (r < 0)
		return r;
	l->sequence++;
	l->sent = clock_realtime();
	l->sent_lease = lease_clock();
	l->sent_monotonic = clock_monotonic();
	*out = (struct heartbeat){.node = strdup(l->daemon->settings->name),
	                          .hosts = strdup(hosts),
	                          .instance = strdup(l->daemon->instance),
	                          .sequence = l->sequence,
	                          .version = strdup(DTRAIN_VERSION),
	                          .launch = strdup(node_launch(l->daemon->node)),
	                          .shutting_down = node_is_shutting_down(l->daemon->node),
	                          /* The node of the one controller is never cut off from it, and has no
	                           * lease. Of several, another one may follow. */
	                          .leases = !l->daemon->controller || l->daemon->leader,
	                          .sent = l->sent_lease,
	                          .known = calloc(1, sizeof(*out->known))};
	if (l->boot[0] && !(out->boot = strdup(l->boot)))
		return error_oom(err);
	if (!out->node || !out->hosts || !out->instance || !out->version || !out->launch || !out->known)
		return error_oom(err);
	if ((r = node_known(l->daemon->node, out->known, err)) < 0 ||
	    (r = node_devices(l->daemon->node, &devices, err)) < 0)
		return r;
	out->devices = devices.devices;
	out->device_count = devices.count;
	r = add_attempts(l, out, err);
	return r < 0 ? r : add_ports(l, out, err);
}

static void post_heartbeat(struct heartbeats *l, const struct heartbeat *beat)
{
	_cleanup_json_ json_t *body = NULL;
	struct short_heartbeat brief;

	snprintf(l->asked, sizeof(l->asked), "%s", leader_peer(l->daemon).name);
	l->is_short = heartbeat_can_be_short(&l->state, beat, l->sent_lease);
	if (l->is_short) {
		brief = heartbeat_shorten(&l->state, beat);
		body = short_heartbeat_encode(&brief);
	} else
		body = heartbeat_encode(beat);
	if (post(l, l->is_short ? "/v1/peer/heartbeat/short" : "/v1/peer/heartbeat", body, on_heartbeat_done,
	         &l->heartbeat_call) < 0)
		heartbeat_state_answered(&l->state, NULL);
}

void heartbeats_send(struct heartbeats *l)
{
	_cleanup_(heartbeat_answer_release) struct heartbeat_answer answer = {0};
	_cleanup_(release_heartbeat) struct heartbeat beat = {0};
	struct controller *c = l->daemon->controller;
	struct error err = ERROR_INIT;

	l->again = l->heartbeat_call != NULL;
	if (l->heartbeat_call)
		return;
	if (make_heartbeat(l, &beat, &err) < 0) {
		log_err("%s", err.message);
		return;
	}
	if (!c)
		post_heartbeat(l, &beat);
	else if (!leader_holds(l->daemon))
		log_debug("the controller of this node waits for etcd");
	else if (controller_heartbeat(c, &beat, &answer, &err) < 0)
		log_err("%s", err.message);
	else {
		if (!l->daemon->leader)
			answer.lease = 0;
		take_answer(l, &answer);
	}
}

void heartbeats_refresh_local(struct daemon *d)
{
	struct device_list devices;
	struct error err = ERROR_INIT;

	if (!d->controller)
		return;
	if (node_devices(d->node, &devices, &err) < 0)
		log_err("%s", err.message);
	else
		controller_set_devices(d->controller, d->settings->name, &devices);
}

static void send_reports(struct heartbeats *l);

static void clear_pending(struct heartbeats *l)
{
	for (size_t i = 0; i < l->pending_count; i++)
		json_decref(l->pending[i].report);
	l->pending_count = 0;
}

static void on_reported(void *context, const struct http_answer *a)
{
	struct heartbeats *l = context;

	l->reporting = NULL;
	if (a->error.code == -ECANCELED)
		return;
	/* What did not arrive comes again with the heartbeats: they carry all attempts. */
	if (a->status != 200) {
		clear_pending(l);
		hasten(l);
	}
	send_reports(l);
}

static void send_reports(struct heartbeats *l)
{
	_cleanup_json_ json_t *reports = NULL;

	if (l->reporting || l->pending_count == 0)
		return;
	reports = json_array();
	for (size_t i = 0; i < l->pending_count; i++)
		json_array_append(reports, l->pending[i].report);
	post(l, "/v1/peer/reports", reports, on_reported, &l->reporting);
	clear_pending(l);
}

static void add_pending(struct heartbeats *l, const struct report *report)
{
	struct report stamped = *report; /* what it owns is the node's */
	struct pending *list, new = {report->run, report->attempt, NULL};

	set_clock(l, &stamped);
	new.report = report_encode(&stamped);
	if (!new.report)
		return;
	for (size_t i = 0; i < l->pending_count; i++)
		if (l->pending[i].run == new.run && l->pending[i].attempt == new.attempt) {
			json_decref(l->pending[i].report);
			l->pending[i] = new;
			return;
		}
	list = reallocarray(l->pending, l->pending_count + 1, sizeof(*list));
	if (!list) {
		json_decref(new.report); /* the next heartbeat has it */
		return;
	}
	l->pending = list;
	list[l->pending_count++] = new;
}

void heartbeats_report(struct heartbeats *l, const struct report *report)
{
	if (report->state == ATTEMPT_ENDED)
		log_streams_finish(l->daemon->logs, report->run, report->attempt);
	if (l->daemon->controller) {
		heartbeats_refresh_local(l->daemon);
		controller_report(l->daemon->controller, report);
		return;
	}
	if (report->state == ATTEMPT_STARTING) /* the answer to the start says as much */
		return;
	add_pending(l, report);
	send_reports(l);
}

void heartbeats_follow(struct heartbeats *l)
{
	/* While there is no controller, requests of users look for it, too, and may come here so often that
	 * no heartbeat to a lost one would ever be given up. */
	if (l->heartbeat_call)
		leader_unanswered(l->daemon, l->asked, l->sent_monotonic);
	http_transfer_cancel(steal_pointer(l->heartbeat_call));
	http_transfer_cancel(steal_pointer(l->reporting));
	clear_pending(l);
	heartbeat_state_answered(&l->state, NULL);
	l->patience = 1;
	l->interval = 0;
	l->backoff = (struct backoff){0};
	heartbeats_send(l);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct heartbeats *l = userdata;
	uint64_t now;

	sd_event_now(l->daemon->event, CLOCK_MONOTONIC, &now);
	if (usec > 0) { /* 0: at once, for a reason */
		l->daemon->loop_lag = (now - usec) / 1e6;
		l->daemon->loop_lag_max = MAX(l->daemon->loop_lag_max, l->daemon->loop_lag);
	}
	if (!l->heartbeat_call)
		heartbeats_send(l);
	send_reports(l);
	set_timer(l, MAX(own_interval(l), l->interval));
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

int heartbeats_create(struct daemon *d, struct heartbeats **out, struct error *err)
{
	struct heartbeats *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return error_oom(err);
	l->daemon = d;
	l->patience = 1;
	boot_id_read(l->boot);
	r = sd_event_add_time(d->event, &l->timer, CLOCK_MONOTONIC, 0, 20000, on_timer, l);
	if (r < 0) {
		heartbeats_destroy(l);
		return error_errno(err, r, "cannot set up the heartbeat");
	}
	*out = l;
	return 0;
}

void heartbeats_destroy(struct heartbeats *l)
{
	if (!l)
		return;
	sd_event_source_disable_unref(l->timer);
	http_transfer_cancel(l->heartbeat_call);
	http_transfer_cancel(l->reporting);
	clear_pending(l);
	free(l->pending);
	free(l);
}

static void on_node_report(void *context, const struct report *report)
{
	struct daemon *d = context;

	/* What comes while the node is being set up, the first heartbeat says again. */
	if (d->heartbeats)
		heartbeats_report(d->heartbeats, report);
}

static void on_devices_changed(void *context)
{
	struct daemon *d = context;

	if (d->heartbeats)
		heartbeats_send(d->heartbeats);
	/* A report may have brought the devices already, then the heartbeat is no news. */
	if (d->controller)
		controller_reschedule(d->controller);
}

struct node_callbacks heartbeats_of_node(struct daemon *d)
{
	return (struct node_callbacks){d, on_node_report, on_devices_changed};
}
