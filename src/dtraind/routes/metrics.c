/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET /v1/runs/ID/metrics: the file of a run's reports, a slice at a time and no faster than the caller takes
 * it, with the event loop between two slices; then, for who follows, what comes. With positions=1 the answer
 * is frames (wire/frame.h), whose file is a number that another controller does not have: each controller has
 * a file of its own, of the reports that it received.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/runs.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "wire/frame.h"

/* A slice holds the longest report. What a follower may be behind before it is given up. */
enum { SLICE = 2 * METRICS_REPORT_MAX, BEHIND_MAX = 16 << 20 };
enum { SLICE_PRIORITY = 50 }; /* after the sockets */

struct metrics_stream {
	struct daemon *daemon;
	struct http_stream *stream;
	struct feed_listener *listener; /* once the file is through */
	sd_event_source *slice;
	int64_t run, since;
	char *path;
	int64_t file; /* what frames have */
	off_t offset; /* behind what has been read; of a follower, the length of the file */
	int fd;       /* -1: no file, or through */
	bool follow, positions;
};

/* end: the offset behind it in the file; -1: it is not there. */
static void write_lines(struct metrics_stream *m, const char *text, size_t len, int64_t end)
{
	const struct frame frame = {m->file, 0, end, (int64_t)len};
	char head[FRAME_HEAD_MAX];

	if (m->positions)
		http_stream_write(m->stream, head, frame_head(&frame, head));
	http_stream_write(m->stream, text, len);
}

static void write_since(struct metrics_stream *m, const char *text, size_t len, int64_t end)
{
	if (m->since < 0) {
		write_lines(m, text, len, end);
		return;
	}
	while (len > 0) {
		const char *nl = memchr(text, '\n', len);
		size_t n = nl ? (size_t)(nl - text) + 1 : len;
		_cleanup_json_ json_t *o = json_loadb(text, n, 0, NULL);
		struct progress progress;

		len -= n;
		progress_read(o, &progress);
		if (!progress.has_step || progress.step > m->since)
			write_lines(m, text, n, end < 0 ? -1 : end - (int64_t)len);
		text += n;
	}
}

/* Where the report that has just come is in the file; -1: it could not be written there. */
static int64_t find_end(struct metrics_stream *m, size_t len)
{
	off_t before = m->offset;
	struct stat st;

	if (stat(m->path, &st) < 0)
		return -1;
	m->offset = st.st_size;
	return st.st_size == before + (off_t)len ? st.st_size : -1;
}

static void on_metrics(void *context, const char *data, size_t len)
{
	struct metrics_stream *m = context;

	if (!data)
		http_stream_end(m->stream);
	else if (http_stream_pending(m->stream) > BEHIND_MAX)
		http_stream_abort(m->stream); /* a reader that reads no more */
	else
		write_since(m, data, len, m->positions ? find_end(m, len) : -1);
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

/* -1: there is none yet, or it cannot be read. */
static int open_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0 && errno != ENOENT)
		log_warn("cannot read %s: %s", path, strerror(errno));
	return fd;
}

/* Whole lines, as many as a slice holds; what is left at the end of the file is the rest of one. */
static int on_slice(sd_event_source *source, void *userdata)
{
	struct metrics_stream *m = userdata;
	_cleanup_free_ char *text = malloc(SLICE);
	const char *nl;
	ssize_t n;

	/* The first report may have come since the request. */
	if (m->fd < 0)
		m->fd = open_file(m->path);
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
	write_since(m, text, (size_t)n, m->offset);
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
	free(m->path);
	free(m);
}

static void on_closed(void *context)
{
	metrics_stream_free(context);
}

DEFINE_CLEANUP(struct metrics_stream *, metrics_stream_free)

/* Goes on at the position that the caller has reached, where it is one in this file. */
static void seek(struct metrics_stream *m, int64_t file, int64_t offset)
{
	struct stat st;

	if (offset < 0 || file != m->file || m->fd < 0 || fstat(m->fd, &st) < 0 || st.st_size < offset)
		return;
	m->offset = offset;
	m->since = -1;
}

static int64_t number_of(const char *node)
{
	return (int64_t)(hash_bytes(node, strlen(node), 0) >> 1);
}

void route_metrics_get(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_(metrics_stream_freep) struct metrics_stream *m = NULL;
	_cleanup_(run_freep) struct run *owned = NULL;
	int64_t since, follow, positions, file, offset;
	const struct run *run;

	run = route_find_run(d->controller, r, false, &owned);
	if (!run || http_request_query_int(r, "since", -1, INT64_MAX, -1, &since) < 0 ||
	    http_request_query_int(r, "follow", 0, 1, 0, &follow) < 0 ||
	    http_request_query_int(r, "positions", 0, 1, 0, &positions) < 0 ||
	    http_request_query_int(r, "file", 0, INT64_MAX, -1, &file) < 0 ||
	    http_request_query_int(r, "offset", 0, INT64_MAX, -1, &offset) < 0)
		return;
	m = calloc(1, sizeof(*m));
	if (m) {
		m->fd = -1;
		m->path = metrics_path(d, run->id);
	}
	if (!m || !m->path || sd_event_add_defer(d->event, &m->slice, on_slice, m) < 0 ||
	    sd_event_source_set_priority(m->slice, SLICE_PRIORITY) < 0) {
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return;
	}
	m->daemon = d;
	m->run = run->id;
	m->since = since;
	m->follow = follow && !owned;
	m->positions = positions;
	m->file = number_of(d->settings->name);
	m->fd = open_file(m->path);
	seek(m, file, offset);
	m->stream = http_reply_stream(r, 200, positions ? FRAME_TYPE : "application/x-ndjson");
	http_stream_on_drain(m->stream, on_drained, m);
	if (positions)
		write_lines(m, "", 0, m->offset); /* where it begins */
	http_request_on_close(r, on_closed, steal_pointer(m));
}
