/* SPDX-License-Identifier: Apache-2.0 */
/* The lease of the node: its end, the timer before it, and the file for dtrain-launch and workers. */
#include "node/lease.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lease_file.h"
#include "base/log.h"
#include "base/str.h"

/* The last part of the lease is for ending what runs: a third, but at most so many seconds. */
#define ENDING_MOST 10.0

struct lease {
	sd_event_source *timer;
	char *path;
	double sent;          /* the heartbeat that was answered with it; 0: an earlier service got it */
	struct lease_end end; /* until 0: there is no limit */
	bool called;          /* `ending`, for this end */
	lease_ending_fn ending;
	void *context;
};

double lease_clock(void)
{
	return clock_seconds(CLOCK_BOOTTIME);
}

bool lease_is_known(const struct lease *l)
{
	return l->sent > 0 || l->end.until > 0;
}

bool lease_is_ending(const struct lease *l)
{
	return l->end.until > 0 && lease_clock() >= l->end.until - l->end.ending;
}

const char *lease_path(const struct lease *l)
{
	return l->path;
}

void lease_save(struct lease *l)
{
	struct error err = ERROR_INIT;

	if (l->end.until <= 0)
		unlink(l->path);
	else if (lease_file_write(l->path, &l->end, &err) < 0)
		log_warn("%s", err.message);
}

static void set_timer(struct lease *l)
{
	const double at = MAX(l->end.until - l->end.ending, 0.0);

	sd_event_source_set_time(l->timer, (uint64_t)ceil(at * 1e6));
	sd_event_source_set_enabled(l->timer, l->end.until > 0 ? SD_EVENT_ONESHOT : SD_EVENT_OFF);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct lease *l = userdata;

	if (l->called)
		return 0;
	if (!lease_is_ending(l)) {
		set_timer(l);
		return 0;
	}
	l->called = true;
	l->ending(l->context, MAX(l->end.until - lease_clock(), 0.0));
	return 0;
}

static void set_end(struct lease *l, struct lease_end end)
{
	l->end = end;
	l->called = l->called && lease_is_ending(l);
	set_timer(l);
}

void lease_renew(struct lease *l, double sent, double seconds)
{
	/* An answer that was long under way says less than one to a later heartbeat. */
	if (sent < l->sent)
		return;
	l->sent = sent;
	if (seconds <= 0)
		set_end(l, (struct lease_end){0});
	else
		set_end(l, (struct lease_end){sent + seconds, MIN(ENDING_MOST, seconds / 3)});
}

void lease_load(struct lease *l)
{
	struct lease_end end;
	int r = lease_file_read(l->path, &end);

	if (r == 0)
		set_end(l, end);
	else if (r == -ESTALE)
		unlink(l->path);
}

int lease_create(sd_event *event, const char *runtime_dir, lease_ending_fn ending, void *context,
                 struct lease **out, struct error *err)
{
	_cleanup_(lease_destroyp) struct lease *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return error_oom(err);
	l->ending = ending;
	l->context = context;
	l->path = str_path_join(runtime_dir, "lease");
	if (!l->path)
		return error_oom(err);
	r = sd_event_add_time(event, &l->timer, CLOCK_BOOTTIME, UINT64_MAX, 10000, on_timer, l);
	if (r < 0 || (r = sd_event_source_set_enabled(l->timer, SD_EVENT_OFF)) < 0)
		return error_errno(err, r, "cannot set up the lease");
	*out = steal_pointer(l);
	return 0;
}

void lease_destroy(struct lease *l)
{
	if (!l)
		return;
	sd_event_source_disable_unref(l->timer);
	free(l->path);
	free(l);
}
