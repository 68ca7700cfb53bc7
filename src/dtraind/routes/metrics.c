/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET /v1/runs/ID/metrics: the file of a run's reports, a slice at a time and no faster than the caller takes
 * it, with the event loop between two slices; then, for who follows, what comes.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/runs.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"

/* A slice holds the longest report. What a follower may be behind before it is given up. */
enum { SLICE = 2 * METRICS_REPORT_MAX, BEHIND_MAX = 16 << 20 };
enum { SLICE_PRIORITY = 50 }; /* after the sockets */

struct metrics_stream {
	struct daemon *daemon;
	struct http_stream *stream;
	struct feed_listener *listener; /* once the file is through */
	sd_event_source *slice;
	int64_t run, since;
	off_t offset;
	int fd; /* -1: no file, or through */
	bool follow;
};

static void write_since(struct http_stream *stream, const char *text, size_t len, int64_t since)
{
	if (since < 0) {
		http_stream_write(stream, text, len);
		return;
	}
	while (len > 0) {
		const char *nl = memchr(text, '\n', len);
		size_t n = nl ? (size_t)(nl - text) + 1 : len;
		_cleanup_json_ json_t *o = json_loadb(text, n, 0, NULL);
		struct progress progress;

		progress_read(o, &progress);
		if (!progress.has_step || progress.step > since)
			http_stream_write(stream, text, n);
		text += n;
		len -= n;
	}
}

static void on_metrics(void *context, const char *data, size_t len)
{
	struct metrics_stream *m = context;

	if (!data)
		http_stream_end(m->stream);
	else if (http_stream_pending(m->stream) > BEHIND_MAX)
		http_stream_abort(m->stream); /* a reader that reads no more */
	else
		write_since(m->stream, data, len, m->since);
}

/* Reports are written to the file and to the feed in one turn of the event loop: nothing falls between the
 * two. */
static void end_of_file(struct metrics_stream *m)
{
	struct error err = ERROR_INIT;
	int code = -ENOENT;

	if (m->fd >= 0)
		close(m->fd);
	m->fd = -1;
	http_stream_on_drain(m->stream, NULL, NULL);
	if (m->follow)
		code = controller_listen_metrics(m->daemon->controller, m->run, on_metrics, m, &m->listener,
		                                 &err);
	if (code == -ENOENT)
		http_stream_end(m->stream);
	else if (code < 0)
		http_stream_abort(m->stream);
}

/* Whole lines, as many as a slice holds; what is left at the end of the file is the rest of one. */
static int on_slice(sd_event_source *source, void *userdata)
{
	struct metrics_stream *m = userdata;
	_cleanup_free_ char *text = malloc(SLICE);
	const char *nl;
	ssize_t n;

	n = m->fd >= 0 && text ? pread(m->fd, text, SLICE, m->offset) : 0;
	if (n <= 0) {
		if (n < 0)
			log_warn("run %lld: metrics: %s", (long long)m->run, strerror(errno));
		end_of_file(m);
		return 0;
	}
	nl = memrchr(text, '\n', n);
	n = nl ? nl + 1 - text : n;
	m->offset += n;
	write_since(m->stream, text, n, m->since);
	/* Nothing of it was asked for: nothing will be drained. */
	return sd_event_source_set_enabled(source,
	                                   http_stream_pending(m->stream) ? SD_EVENT_OFF : SD_EVENT_ONESHOT);
}

static void on_drained(void *context)
{
	struct metrics_stream *m = context;

	sd_event_source_set_enabled(m->slice, SD_EVENT_ONESHOT);
}

static void metrics_stream_free(struct metrics_stream *m)
{
	if (m->listener)
		feed_remove(m->listener);
	sd_event_source_disable_unref(m->slice);
	if (m->fd >= 0)
		close(m->fd);
	free(m);
}

static void on_closed(void *context)
{
	metrics_stream_free(context);
}

DEFINE_CLEANUP(struct metrics_stream *, metrics_stream_free)

void route_metrics_get(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_(metrics_stream_freep) struct metrics_stream *m = NULL;
	_cleanup_(run_freep) struct run *owned = NULL;
	_cleanup_free_ char *path = NULL;
	int64_t since, follow;
	const struct run *run;

	run = route_find_run(d->controller, r, false, &owned);
	if (!run || http_request_query_int(r, "since", -1, INT64_MAX, -1, &since) < 0 ||
	    http_request_query_int(r, "follow", 0, 1, 0, &follow) < 0)
		return;
	path = metrics_path(d, run->id);
	m = calloc(1, sizeof(*m));
	if (m)
		m->fd = -1;
	if (!m || !path || sd_event_add_defer(d->event, &m->slice, on_slice, m) < 0 ||
	    sd_event_source_set_priority(m->slice, SLICE_PRIORITY) < 0) {
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return;
	}
	m->daemon = d;
	m->run = run->id;
	m->since = since;
	m->follow = follow && !owned;
	m->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (m->fd < 0 && errno != ENOENT)
		log_warn("cannot read %s: %s", path, strerror(errno));
	m->stream = http_reply_stream(r, 200, "application/x-ndjson");
	http_stream_on_drain(m->stream, on_drained, m);
	http_request_on_close(r, on_closed, steal_pointer(m));
}
