/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one file in a thread, which lives as long as there is something to write. */
#include "base/file_writer.h"

#include <errno.h>
#include <libgen.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

/* Who waits until contents number `number` are on disk. */
struct waiter {
	struct waiter *next;
	file_written_fn done;
	void *context;
	int64_t number;
};

struct file_writer {
	/* Used by the event loop alone. */
	sd_event_source *source;
	struct waiter *waiters; /* the one that waits longest comes first */
	int64_t put;            /* the number of the newest contents */
	pthread_t thread;
	bool started; /* there is a thread to join */
	char *consequence;

	/* Set once. */
	char *path, *directory;
	int event_fd; /* readable: `written` has changed */

	/* Shared with the thread, under the lock. */
	pthread_mutex_t lock;
	char *waiting;            /* the newest contents, unless they are being written or are written */
	int64_t waiting_number;   /* their number */
	int64_t written;          /* the number of the contents that were written last */
	bool running;             /* the thread will look for contents once more */
	struct error last_result; /* of writing them; code 0: they are on disk */
};

static void write_one(struct file_writer *w, const char *text, struct error *err)
{
	*err = (struct error)ERROR_INIT;
	if (file_mkdirs(w->directory, 0755, err) >= 0)
		file_write_atomic(w->path, text, strlen(text), 0644, err);
}

/* Writes until nothing waits. */
static void *write_all(void *context)
{
	struct file_writer *w = context;
	const uint64_t one = 1;

	pthread_mutex_lock(&w->lock);
	while (w->waiting) {
		_cleanup_free_ char *text = steal_pointer(w->waiting);
		int64_t number = w->waiting_number;
		struct error err;

		pthread_mutex_unlock(&w->lock);
		write_one(w, text, &err);
		pthread_mutex_lock(&w->lock);
		w->written = number;
		w->last_result = err;
		if (write(w->event_fd, &one, sizeof(one)) < 0)
			continue; /* its counter is full, so that the event loop will look anyway */
	}
	w->running = false;
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static void join(struct file_writer *w)
{
	if (w->started)
		pthread_join(w->thread, NULL);
	w->started = false;
}

/* Logs a failure, and tells those whose contents are written. */
static void report(struct file_writer *w)
{
	struct error result;
	int64_t written;

	pthread_mutex_lock(&w->lock);
	result = w->last_result;
	written = w->written;
	pthread_mutex_unlock(&w->lock);
	if (result.code < 0)
		log_err("%s: %s", w->consequence, result.message);
	while (w->waiters && w->waiters->number <= written) {
		_cleanup_free_ struct waiter *first = w->waiters;

		w->waiters = first->next;
		first->done(first->context, result.code, result.message);
	}
}

static int on_written(sd_event_source *source, int fd, uint32_t events, void *context)
{
	struct file_writer *w = context;
	uint64_t count;

	if (read(fd, &count, sizeof(count)) == sizeof(count))
		report(w);
	return 0;
}

int file_writer_create(sd_event *event, const char *path, const char *consequence, struct file_writer **out,
                       struct error *err)
{
	_cleanup_(file_writer_destroyp) struct file_writer *w = calloc(1, sizeof(*w));
	_cleanup_free_ char *copy = strdup(path);
	int r;

	if (!w)
		return error_oom(err);
	pthread_mutex_init(&w->lock, NULL);
	w->path = strdup(path);
	w->directory = copy ? strdup(dirname(copy)) : NULL;
	w->consequence = strdup(consequence);
	w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!w->path || !w->directory || !w->consequence)
		return error_oom(err);
	if (w->event_fd < 0)
		return error_errno(err, -errno, "%s: eventfd", path);
	if ((r = sd_event_add_io(event, &w->source, w->event_fd, EPOLLIN, on_written, w)) < 0)
		return error_errno(err, r, "%s: event loop", path);
	*out = steal_pointer(w);
	return 0;
}

int file_writer_put(struct file_writer *w, char *text, struct error *err)
{
	bool running;

	if (!text)
		return error_oom(err);
	pthread_mutex_lock(&w->lock);
	free(w->waiting);
	w->waiting = text;
	w->waiting_number = ++w->put;
	running = w->running;
	w->running = true;
	pthread_mutex_unlock(&w->lock);
	if (running)
		return 0;
	join(w); /* it has ended, or is about to */
	if (pthread_create(&w->thread, NULL, write_all, w) == 0)
		w->started = true;
	else
		write_all(w); /* slow rather than not at all */
	return 0;
}

int file_writer_wait(struct file_writer *w, file_written_fn done, void *context, struct error *err)
{
	struct waiter *waiter, **end = &w->waiters;
	struct error result;
	bool written;

	pthread_mutex_lock(&w->lock);
	written = w->written == w->put;
	result = w->last_result;
	pthread_mutex_unlock(&w->lock);
	if (written) {
		done(context, result.code, result.message);
		return 0;
	}
	waiter = calloc(1, sizeof(*waiter));
	if (!waiter)
		return error_oom(err);
	*waiter = (struct waiter){.done = done, .context = context, .number = w->put};
	while (*end)
		end = &(*end)->next;
	*end = waiter;
	return 0;
}

bool file_writer_failed(struct file_writer *w)
{
	bool failed;

	pthread_mutex_lock(&w->lock);
	failed = w->last_result.code < 0;
	pthread_mutex_unlock(&w->lock);
	return failed;
}

void file_writer_destroy(struct file_writer *w)
{
	if (!w)
		return;
	join(w);
	(void)on_written(NULL, w->event_fd, 0, w); /* what the event loop has not seen */
	sd_event_source_disable_unref(w->source);
	closep(&w->event_fd);
	pthread_mutex_destroy(&w->lock);
	free(w->consequence);
	free(w->directory);
	free(w->path);
	free(w);
}
