/* SPDX-License-Identifier: Apache-2.0 */
/* The controller on the service's event loop: its timers, its clocks, and the ends of its commits. */
#include "dtraind/timers.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "controller/controller.h"
#include "dtraind/leader.h"

static const struct {
	int64_t priority;
	uint64_t accuracy; /* microseconds */
} properties[CONTROLLER_TIMERS] = {
    [CONTROLLER_FLUSH] = {100, 1000},       [CONTROLLER_LAZY_COMMIT] = {0, 100 * 1000},
    [CONTROLLER_EXPIRY] = {200, 10 * 1000}, [CONTROLLER_RETRY] = {0, 10 * 1000},
    [CONTROLLER_LIMIT] = {0, 10 * 1000},    [CONTROLLER_GROWTH] = {0, 10 * 1000},
};

struct timer {
	struct timers *timers;
	enum controller_timer which;
	sd_event_source *source;
};

struct timers {
	struct daemon *daemon;
	struct timer list[CONTROLLER_TIMERS];
	sd_event_source *flush; /* for one that is due at once: no timer has to be set and read */
	sd_event_source *store;
};

/* How soon a controller looks again whether it may take silent nodes for lost. Where that took long, it gives
 * all nodes their whole time again (members_expire). */
enum { UNSURE_USEC = 200 * 1000 };

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct timer *t = userdata;

	if (t->which == CONTROLLER_EXPIRY && !leader_is_sure(t->timers->daemon)) {
		sd_event_source_set_time(source, (uint64_t)(clock_monotonic() * 1e6) + UNSURE_USEC);
		return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
	}
	controller_run_timer(t->timers->daemon->controller, t->which);
	return 0;
}

static int on_flush(sd_event_source *source, void *userdata)
{
	struct timers *t = userdata;

	controller_run_timer(t->daemon->controller, CONTROLLER_FLUSH);
	return 0;
}

static int on_store(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	struct timers *t = userdata;

	/* The next controller knows whether the commit was done: it is not reported as failed. */
	if (!leader_is_lost(t->daemon))
		controller_dispatch_store(t->daemon->controller);
	return 0;
}

static void set_timer(void *context, enum controller_timer which, double at)
{
	struct timers *t = context;
	sd_event_source *source = t->list[which].source;
	bool deferred = which == CONTROLLER_FLUSH && at == 0;

	if (which == CONTROLLER_FLUSH)
		sd_event_source_set_enabled(t->flush, deferred ? SD_EVENT_ONESHOT : SD_EVENT_OFF);
	if (at < 0 || deferred) {
		sd_event_source_set_enabled(source, SD_EVENT_OFF);
		return;
	}
	sd_event_source_set_time(source, (uint64_t)(at * 1e6));
	sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

static double monotonic(void *context)
{
	return clock_monotonic();
}

static double realtime(void *context)
{
	return clock_realtime();
}

struct controller_clock timers_clock(struct timers *t)
{
	return (struct controller_clock){t, monotonic, realtime, set_timer};
}

int timers_create(struct daemon *d, struct timers **out, struct error *err)
{
	struct timers *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return error_oom(err);
	t->daemon = d;
	r = sd_event_add_defer(d->event, &t->flush, on_flush, t);
	if (r >= 0)
		r = sd_event_source_set_priority(t->flush, properties[CONTROLLER_FLUSH].priority);
	if (r >= 0)
		r = sd_event_source_set_enabled(t->flush, SD_EVENT_OFF);
	for (int i = 0; i < CONTROLLER_TIMERS && r >= 0; i++) {
		t->list[i] = (struct timer){.timers = t, .which = i};
		r = sd_event_add_time(d->event, &t->list[i].source, CLOCK_MONOTONIC, 0,
		                      properties[i].accuracy, on_timer, &t->list[i]);
		if (r >= 0)
			r = sd_event_source_set_priority(t->list[i].source, properties[i].priority);
		if (r >= 0)
			r = sd_event_source_set_enabled(t->list[i].source, SD_EVENT_OFF);
	}
	if (r < 0) {
		timers_destroy(t);
		return error_errno(err, r, "cannot set up the controller");
	}
	*out = t;
	return 0;
}

/* A descriptor of its own, which the controller does not close under it. */
int timers_watch_store(struct timers *t, struct error *err)
{
	_cleanup_close_ int fd = fcntl(controller_store_fd(t->daemon->controller), F_DUPFD_CLOEXEC, 0);
	int r = fd < 0 ? -errno : sd_event_add_io(t->daemon->event, &t->store, fd, EPOLLIN, on_store, t);

	if (r >= 0)
		r = sd_event_source_set_io_fd_own(t->store, true);
	if (r < 0)
		return error_errno(err, r, "cannot set up the controller");
	steal_fd(&fd);
	return 0;
}

void timers_destroy(struct timers *t)
{
	if (!t)
		return;
	sd_event_source_disable_unref(t->store);
	sd_event_source_disable_unref(t->flush);
	for (size_t i = 0; i < CONTROLLER_TIMERS; i++)
		sd_event_source_disable_unref(t->list[i].source);
	free(t);
}
