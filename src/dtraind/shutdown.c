/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of all attempts of this node. It is looked at every 20 ms whether they have ended, and then whether
 * the controller has their reports; both have a limit.
 */
#include "dtraind/shutdown.h"

#include <errno.h>
#include <string.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-daemon.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "controller/runs.h"
#include "dtraind/heartbeat.h"
#include "dtraind/lock.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "http/local.h"

enum { LOOK_USEC = 20000, BUS_TIMEOUT_USEC = 5 * 1000 * 1000 };

/* Beyond the longest grace: until what was killed is gone. And after the last end: until the reports have
 * arrived and the other nodes have the requests to stop their parts. */
static const double KILL_SECONDS = 15.0, TELL_SECONDS = 3.0;

struct shutdown {
	struct daemon *daemon;
	sd_event_source *timer;
	struct http_request *request; /* waits for the end; NULL: none, or its client has gone */
	double give_up;               /* monotonic */
	double ended;                 /* when the last attempt ended; 0: not yet */
	int count;                    /* attempts that ran when it began */
	bool exit;
};

bool shutdown_of_machine(void)
{
	static const char address[] = "unix:path=/run/systemd/private";
	sd_bus_error error = SD_BUS_ERROR_NULL;
	_cleanup_free_ char *state = NULL;
	sd_bus *bus = NULL;
	bool stopping = false;

	/* systemd's own socket: the bus may have been stopped already. */
	if (sd_booted() > 0 && sd_bus_new(&bus) >= 0 && sd_bus_set_address(bus, address) >= 0 &&
	    sd_bus_set_method_call_timeout(bus, BUS_TIMEOUT_USEC) >= 0 && sd_bus_start(bus) >= 0 &&
	    sd_bus_get_property_string(bus, "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
	                               "org.freedesktop.systemd1.Manager", "SystemState", &error,
	                               &state) >= 0)
		stopping = strcmp(state, "stopping") == 0;
	sd_bus_error_free(&error);
	sd_bus_flush_close_unref(bus);
	return stopping;
}

/* Whether all reports and requests to stop have been delivered. */
static bool is_delivered(const struct daemon *d)
{
	return !(d->controller && controller_is_stopping(d->controller)) &&
	       heartbeats_are_idle(d->heartbeats);
}

static void answer(struct shutdown *s)
{
	int left = node_running(s->daemon->node);

	if (!s->request)
		return;
	http_request_on_close(s->request, NULL, NULL);
	if (left)
		http_reply_error(s->request, 500, "still-running", "%d of %d attempts still run here", left,
		                 s->count);
	else
		http_reply_json(s->request, 200, runs_ended_encode(&(struct runs_ended){s->count}));
	s->request = NULL;
}

static int on_look(sd_event_source *source, uint64_t usec, void *context)
{
	struct shutdown *s = context;
	double now = clock_monotonic();

	if (node_running(s->daemon->node) == 0 && s->ended == 0) {
		s->ended = now;
		heartbeats_send(s->daemon->heartbeats);
	}
	if ((s->ended > 0 && (now > s->ended + TELL_SECONDS || is_delivered(s->daemon))) ||
	    now > s->give_up) {
		answer(s);
		return s->exit ? sd_event_exit(s->daemon->event, 0) : 0;
	}
	sd_event_source_set_time_relative(source, LOOK_USEC);
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

int shutdown_begin(struct daemon *d, bool exit, struct error *err)
{
	struct shutdown *s = d->shutdown;
	double grace;
	int r;

	if (s && s->exit && exit)
		return sd_event_exit(d->event, 0);
	if (!s) {
		s = calloc(1, sizeof(*s));
		if (!s)
			return error_oom(err);
		s->daemon = d;
		r = sd_event_add_time_relative(d->event, &s->timer, CLOCK_MONOTONIC, 0, 1000, on_look, s);
		if (r < 0) {
			free(s);
			return error_errno(err, r, "cannot set up the shutdown");
		}
		d->shutdown = s;
	}
	s->exit = s->exit || exit;
	s->count = node_running(d->node);
	s->ended = 0;
	grace = node_shut_down(d->node);
	s->give_up = clock_monotonic() + grace + KILL_SECONDS;
	log_info("ending %d %s on this node; no new ones until dtraind is started again", s->count,
	         s->count == 1 ? "run" : "runs");
	sd_notifyf(0, "STATUS=Ending %d runs\nEXTEND_TIMEOUT_USEC=%llu", s->count,
	           (unsigned long long)((grace + 2 * KILL_SECONDS) * 1e6));
	heartbeats_send(d->heartbeats); /* no new runs for this node */
	sd_event_source_set_time_relative(s->timer, 0);
	sd_event_source_set_enabled(s->timer, SD_EVENT_ONESHOT);
	return 0;
}

void shutdown_free(struct shutdown *s)
{
	if (!s)
		return;
	if (s->request)
		http_request_on_close(s->request, NULL, NULL);
	sd_event_source_disable_unref(s->timer);
	free(s);
}

static void on_closed(void *context)
{
	((struct shutdown *)context)->request = NULL;
}

void route_end_runs(void *context, struct http_request *r)
{
	struct daemon *d = context;
	struct error err = ERROR_INIT;

	if (!caller_may(http_request_caller(r), 0)) {
		http_reply_error(r, 403, "not-allowed", "only administrators may end all runs of a node");
		return;
	}
	if (d->shutdown && d->shutdown->request) {
		http_reply_error(r, 409, "under-way", "the runs of this node are being ended already");
		return;
	}
	if (shutdown_begin(d, false, &err) < 0) {
		http_reply_error(r, 500, "shutdown", "%s", err.message);
		return;
	}
	d->shutdown->request = r;
	http_request_on_close(r, on_closed, d->shutdown);
}

static void ignore_report(void *context, const struct report *report)
{
}

/* As the service would, which finds its attempts again; their ends stay on record for it. */
static int end_without_service(const struct settings *settings, int *count, struct error *err)
{
	const struct node_callbacks callbacks = {NULL, ignore_report, NULL};
	_cleanup_close_ int lock = -1;
	struct node *node = NULL;
	sd_event *event = NULL;
	double give_up;
	int r;

	r = lock_take("runtime_dir", settings->config->runtime_dir, &lock, err);
	if (r < 0)
		return r;
	if (sd_event_new(&event) < 0)
		return error_oom(err);
	r = node_create(event, settings->config, settings->name, settings->hosts_slots, &callbacks, &node,
	                err);
	if (r == 0) {
		*count = node_running(node);
		give_up = clock_monotonic() + node_shut_down(node) + KILL_SECONDS;
		while (node_running(node) > 0 && clock_monotonic() < give_up)
			if (sd_event_run(event, 200000) < 0)
				break;
		if (node_running(node) > 0)
			r = error_set(err, -EBUSY, "%d of %d attempts still run here", node_running(node),
			              *count);
		node_destroy(node);
	}
	sd_event_unref(event);
	return r;
}

int shutdown_end_runs(const char *config_path, struct error *err)
{
	_cleanup_(settings_freep) struct settings *settings = NULL;
	_cleanup_(http_local_closep) struct http_local *service = NULL;
	_cleanup_json_ json_t *answer = NULL;
	struct runs_ended ended = {0};
	int r = settings_read(config_path, &settings, err), count = 0;

	if (r < 0)
		return r;
	r = http_local_open(settings->config->socket, &service, err);
	if (r == 0) {
		r = http_local_json(service, "POST", "/v1/end-runs", NULL, NULL, NULL, &answer, err);
		if (r == 0)
			r = runs_ended_decode(answer, &ended, err);
		count = (int)ended.ended;
	} else if (r == -ECONNREFUSED || r == -ENOENT) {
		r = end_without_service(settings, &count, err);
	}
	if (r == 0 && count > 0)
		printf("%d %s on this node ended\n", count, count == 1 ? "run" : "runs");
	return r;
}
