/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task in a thread of its own. What the thread and the event loop share belongs to both: the one that is
 * done with it last frees it, so that a thread that hangs can be left behind.
 */
#include "base/background.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/thread.h"

struct shared {
	pthread_mutex_t lock;
	struct background_task task;
	int event_fd; /* the event loop's; not written to once it is abandoned */
	bool abandoned, finished;
};

struct background {
	struct shared *shared;
	sd_event_source *finished, *deadline;
	int event_fd;
};

static void shared_free(struct shared *s)
{
	s->task.release(s->task.data);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static void *run(void *context)
{
	struct shared *s = context;
	uint64_t one = 1;
	bool abandoned;

	s->task.work(s->task.data);
	pthread_mutex_lock(&s->lock);
	s->finished = true;
	abandoned = s->abandoned;
	if (!abandoned && write(s->event_fd, &one, sizeof(one)) < 0)
		log_err("cannot wake the event loop: %m");
	pthread_mutex_unlock(&s->lock);
	if (abandoned)
		shared_free(s);
	return NULL;
}

static void background_free(struct background *b)
{
	sd_event_source_disable_unref(b->finished);
	sd_event_source_disable_unref(b->deadline);
	closep(&b->event_fd);
	free(b);
}

/* Leaves the shared part to the thread, unless that has ended. */
void background_cancel(struct background *b)
{
	struct shared *s;
	bool finished;

	if (!b)
		return;
	s = b->shared;
	pthread_mutex_lock(&s->lock);
	s->abandoned = true;
	finished = s->finished;
	pthread_mutex_unlock(&s->lock);
	if (finished)
		shared_free(s);
	background_free(b);
}

static int on_finished(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	struct background *b = userdata;
	struct shared *s = b->shared;

	/* The thread may still be about to leave its last lines. */
	pthread_mutex_lock(&s->lock);
	pthread_mutex_unlock(&s->lock);
	background_free(b);
	s->task.done(s->task.context, s->task.data);
	shared_free(s);
	return 0;
}

static int on_deadline(sd_event_source *source, uint64_t usec, void *userdata)
{
	const struct background_task *task = &((struct background *)userdata)->shared->task;

	task->done(task->context, NULL);
	return 0;
}

static int start_thread(struct shared *s)
{
	pthread_t thread;
	int r = thread_start(&thread, run, s);

	if (r == 0)
		pthread_detach(thread);
	return r;
}

int background_start(sd_event *event, const struct background_task *task, struct background **out,
                     struct error *err)
{
	struct background *b = calloc(1, sizeof(*b));
	struct shared *s = calloc(1, sizeof(*s));
	int r;

	if (!b || !s) {
		free(b);
		free(s);
		task->release(task->data);
		return error_oom(err);
	}
	s->task = *task;
	pthread_mutex_init(&s->lock, NULL);
	b->shared = s;
	b->event_fd = s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = b->event_fd < 0 ? -errno : 0;
	if (r >= 0)
		r = sd_event_add_io(event, &b->finished, b->event_fd, EPOLLIN, on_finished, b);
	if (r >= 0)
		r = sd_event_add_time_relative(event, &b->deadline, CLOCK_MONOTONIC,
		                               (uint64_t)(task->deadline * 1e6), 0, on_deadline, b);
	if (r >= 0)
		r = start_thread(s);
	if (r < 0) {
		background_free(b);
		shared_free(s);
		return error_errno(err, r, "cannot start a thread");
	}
	*out = b;
	return 0;
}
