/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that call NVML, and the queue that brings what they find to the event loop. */
#include "node/gpu/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "base/thread.h"

/* WAIT_MS: an end of the service waits so long at most for an NVML that is well. */
enum { WAIT_MS = 200, BACKOFF_MS = 1000, EVENTS_MAX = 256, STOP_SECONDS = 3 };

struct happening {
	size_t device;
	unsigned long long xid; /* 0: an uncorrectable memory error */
	double time;
};

/* What the threads need, theirs as much as ours: the last to go frees it. */
struct shared {
	pthread_mutex_t lock;
	pthread_cond_t wake; /* of the reader: stop, or read at once */
	int references;
	bool stop, now;
	int event_fd;
	const struct nvml *nvml;
	double interval;

	size_t count;
	struct node_device *devices; /* copies */
	struct gpu_reading *readings;
	bool *fresh; /* read, and not yet told */
	/* The call under way: of which device, since when (monotonic; 0: none). */
	size_t current;
	double since;

	struct happening events[EVENTS_MAX]; /* not yet told */
	size_t event_count, dropped;
};

struct gpu_watch {
	struct shared *shared;
	struct gpu_watch_options options;
	pthread_t reader, listener;
	bool reads, listens;
	sd_event_source *io, *timer;
	bool *hung;
};

static void shared_unref(struct shared *s)
{
	bool last;

	pthread_mutex_lock(&s->lock);
	last = --s->references == 0;
	pthread_mutex_unlock(&s->lock);
	if (!last)
		return;
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->wake);
	if (s->event_fd >= 0)
		close(s->event_fd);
	free(s->devices);
	free(s->readings);
	free(s->fresh);
	free(s);
}

static void tell_loop(struct shared *s)
{
	uint64_t one = 1;

	if (write(s->event_fd, &one, sizeof one) < 0)
		return; /* it is full: the loop has been told often enough */
}

static struct timespec in_seconds(double seconds)
{
	double at = clock_monotonic() + seconds;

	return (struct timespec){(time_t)at, (long)((at - (double)(time_t)at) * 1e9)};
}

/* One after the other. A call that hangs keeps the lock free. Called locked. */
static void read_all(struct shared *s)
{
	for (size_t i = 0; i < s->count && !s->stop; i++) {
		struct gpu_reading reading;

		if (!s->devices[i].handle)
			continue;
		s->current = i;
		s->since = clock_monotonic();
		pthread_mutex_unlock(&s->lock);
		gpu_read(s->nvml, &s->devices[i], &reading);
		pthread_mutex_lock(&s->lock);
		s->since = 0;
		s->readings[i] = reading;
		s->fresh[i] = true;
	}
	tell_loop(s);
}

static void *read_thread(void *context)
{
	struct shared *s = context;

	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		struct timespec next;

		s->now = false;
		read_all(s);
		next = in_seconds(s->interval);
		while (!s->stop && !s->now && pthread_cond_timedwait(&s->wake, &s->lock, &next) != ETIMEDOUT)
			;
	}
	pthread_mutex_unlock(&s->lock);
	shared_unref(s);
	return NULL;
}

/* Is the event about this device? uuid: the GPU's, empty where the handle says enough. */
static bool concerns(const struct nvml_event *event, const char *uuid, const struct node_device *d)
{
	if (!d->handle || (event->device != d->parent && (!*uuid || !str_eq(uuid, d->uuid))))
		return false;
	return !d->mig || event->gpu_instance == NVML_NO_INSTANCE || d->gpu_instance == NVML_NO_INSTANCE ||
	       (event->gpu_instance == d->gpu_instance &&
	        (event->compute_instance == NVML_NO_INSTANCE || d->compute_instance == NVML_NO_INSTANCE ||
	         event->compute_instance == d->compute_instance));
}

static void take_event(struct shared *s, const struct nvml_event *event)
{
	char uuid[sizeof s->devices->uuid] = "";
	double now = clock_realtime();
	bool known = false;

	/* Handles are the same for the same GPU; should they ever not be, UUIDs are. */
	for (size_t i = 0; i < s->count; i++)
		known = known || s->devices[i].parent == event->device;
	if (!known && s->nvml->uuid(event->device, uuid, sizeof uuid) != NVML_SUCCESS)
		uuid[0] = '\0';
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->count; i++) {
		if (!concerns(event, uuid, &s->devices[i]))
			continue;
		if (s->event_count == EVENTS_MAX) {
			s->dropped++;
			continue;
		}
		s->events[s->event_count++] =
		    (struct happening){i, event->type == NVML_EVENT_XID ? event->data : 0, now};
	}
	s->now = true; /* the counters may have changed with it */
	pthread_cond_broadcast(&s->wake);
	pthread_mutex_unlock(&s->lock);
	tell_loop(s);
}

/* Each GPU once, for whatever it can tell of. */
static void *make_event_set(struct shared *s)
{
	const struct nvml *nvml = s->nvml;
	const unsigned long long wanted = NVML_EVENT_XID | NVML_EVENT_DOUBLE_BIT_ECC;
	void *set;
	int some = 0;

	if (!nvml->event_set || !nvml->event_register || !nvml->event_wait || !nvml->event_set_free ||
	    nvml->event_set(&set) != NVML_SUCCESS)
		return NULL;
	for (size_t i = 0; i < s->count; i++) {
		void *gpu = s->devices[i].parent;
		unsigned long long types = wanted;
		bool before = !gpu;

		for (size_t k = 0; k < i; k++)
			before = before || s->devices[k].parent == gpu;
		if (before)
			continue;
		if (nvml->event_types && nvml->event_types(gpu, &types) != NVML_SUCCESS)
			types = wanted;
		types &= wanted;
		if (types && nvml->event_register(gpu, types, set) == NVML_SUCCESS)
			some++;
		else
			log_info("GPU %d has no events: its errors are seen by its counters alone",
			         s->devices[i].index);
	}
	if (some > 0)
		return set;
	nvml->event_set_free(set);
	return NULL;
}

static void *listen_thread(void *context)
{
	struct shared *s = context;
	void *set = make_event_set(s);
	bool stop = !set;

	while (!stop) {
		struct nvml_event event = {.gpu_instance = NVML_NO_INSTANCE,
		                           .compute_instance = NVML_NO_INSTANCE};
		int code = s->nvml->event_wait(set, &event, WAIT_MS);

		if (code == NVML_SUCCESS)
			take_event(s, &event);
		pthread_mutex_lock(&s->lock);
		/* "A GPU is lost", without saying which: a reading does. It may say so for good. */
		if (code != NVML_SUCCESS && code != NVML_TIMEOUT && !s->stop) {
			struct timespec next = in_seconds(BACKOFF_MS / 1000.0);

			s->now = true;
			pthread_cond_broadcast(&s->wake);
			while (!s->stop && pthread_cond_timedwait(&s->wake, &s->lock, &next) != ETIMEDOUT)
				;
		}
		stop = s->stop;
		pthread_mutex_unlock(&s->lock);
	}
	if (set)
		s->nvml->event_set_free(set);
	shared_unref(s);
	return NULL;
}

static int on_news(sd_event_source *source, int fd, uint32_t revents, void *context)
{
	struct gpu_watch *w = context;
	struct shared *s = w->shared;
	struct happening events[EVENTS_MAX];
	size_t count, dropped;
	uint64_t ignored;

	if (read(fd, &ignored, sizeof ignored) < 0)
		return 0;
	pthread_mutex_lock(&s->lock);
	count = s->event_count;
	dropped = s->dropped;
	memcpy(events, s->events, count * sizeof *events);
	s->event_count = s->dropped = 0;
	pthread_mutex_unlock(&s->lock);
	if (dropped)
		log_warn("%zu more events of GPUs came at once than are kept", dropped);
	for (size_t i = 0; i < count; i++)
		if (events[i].xid)
			w->options.xid(w->options.context, events[i].device, events[i].xid, events[i].time);
		else
			w->options.memory_error(w->options.context, events[i].device);
	for (size_t i = 0; i < s->count; i++) {
		struct gpu_reading reading;
		bool fresh;

		pthread_mutex_lock(&s->lock);
		fresh = s->fresh[i];
		reading = s->readings[i];
		s->fresh[i] = false;
		pthread_mutex_unlock(&s->lock);
		if (fresh && w->hung[i]) {
			w->hung[i] = false;
			w->options.hung(w->options.context, i, false);
		}
		if (fresh)
			w->options.reading(w->options.context, i, &reading);
	}
	return 0;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *context)
{
	struct gpu_watch *w = context;
	struct shared *s = w->shared;
	double since;
	size_t current;

	pthread_mutex_lock(&s->lock);
	since = s->since;
	current = s->current;
	pthread_mutex_unlock(&s->lock);
	if (since > 0 && clock_monotonic() - since > w->options.call_timeout && !w->hung[current]) {
		w->hung[current] = true;
		w->options.hung(w->options.context, current, true);
	}
	sd_event_source_set_time_relative(source, (uint64_t)(w->options.call_timeout * 1e6 / 4));
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

static struct shared *shared_new(const struct devices *devices, double interval)
{
	struct shared *s = calloc(1, sizeof *s);
	pthread_condattr_t monotonic;

	if (!s)
		return NULL;
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&s->wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	s->references = 1;
	s->nvml = devices->nvml;
	s->interval = interval;
	s->count = devices->count;
	s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->devices = calloc(s->count + 1, sizeof *s->devices);
	s->readings = calloc(s->count + 1, sizeof *s->readings);
	s->fresh = calloc(s->count + 1, sizeof *s->fresh);
	if (s->event_fd < 0 || !s->devices || !s->readings || !s->fresh) {
		shared_unref(s);
		return NULL;
	}
	memcpy(s->devices, devices->list, s->count * sizeof *s->devices);
	return s;
}

static int start_thread(struct shared *s, void *(*run)(void *), pthread_t *out)
{
	int r;

	s->references++; /* under the lock of our caller */
	r = thread_start(out, run, s);
	s->references -= r < 0;
	return r;
}

int gpu_watch_start(sd_event *event, const struct devices *devices, const struct gpu_watch_options *options,
                    struct gpu_watch **out, struct error *err)
{
	struct gpu_watch *w = calloc(1, sizeof *w);
	int r;

	if (!w)
		return error_oom(err);
	w->options = *options;
	w->hung = calloc(devices->count + 1, sizeof *w->hung);
	w->shared = shared_new(devices, options->interval);
	if (!w->hung || !w->shared) {
		gpu_watch_stop(w);
		return error_oom(err);
	}
	r = sd_event_add_io(event, &w->io, w->shared->event_fd, EPOLLIN, on_news, w);
	/* Before what the ranks on it do: where both come at once, the GPU is why. */
	if (r >= 0)
		r = sd_event_source_set_priority(w->io, SD_EVENT_PRIORITY_IMPORTANT);
	if (r >= 0)
		r = sd_event_add_time_relative(event, &w->timer, CLOCK_MONOTONIC,
		                               (uint64_t)(options->call_timeout * 1e6 / 4), 0, on_timer, w);
	if (r >= 0) {
		pthread_mutex_lock(&w->shared->lock);
		r = start_thread(w->shared, read_thread, &w->reader);
		w->reads = r == 0;
		if (r == 0)
			r = start_thread(w->shared, listen_thread, &w->listener);
		w->listens = r == 0;
		pthread_mutex_unlock(&w->shared->lock);
	}
	if (r < 0) {
		gpu_watch_stop(w);
		return error_errno(err, r, "cannot watch the GPUs");
	}
	*out = w;
	return 0;
}

/* True once it has ended. */
static bool join(pthread_t thread)
{
	struct timespec until = in_seconds(STOP_SECONDS);

	if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until) == 0)
		return true;
	pthread_detach(thread);
	return false;
}

bool gpu_watch_stop(struct gpu_watch *w)
{
	bool ended = true;

	sd_event_source_disable_unref(w->io);
	sd_event_source_disable_unref(w->timer);
	if (w->shared) {
		pthread_mutex_lock(&w->shared->lock);
		w->shared->stop = true;
		pthread_cond_broadcast(&w->shared->wake);
		pthread_mutex_unlock(&w->shared->lock);
		ended = (!w->reads || join(w->reader)) && ended;
		ended = (!w->listens || join(w->listener)) && ended;
		shared_unref(w->shared);
	}
	free(w->hung);
	free(w);
	return ended;
}
