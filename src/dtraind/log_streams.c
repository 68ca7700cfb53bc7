/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs of ranks as answers. A view is one answer; each of its sources is the log of one rank, which is read
 * from a file here or comes from the service of another node. Sources are merged by whole lines.
 */
#include "dtraind/log_streams.h"

#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/list.h"
#include "base/log.h"
#include "base/str.h"
#include "node/log_reader.h"
#include "wire/frame.h"

enum { HIGH = 1 << 20, BLOCK = 32 * 1024, LONGEST_LINE = 64 * 1024 };

struct log_streams {
	struct daemon *daemon;
	struct source *sources; /* that read files */
};

/* One rank's log on its way into an answer. */
struct source {
	struct view *view;
	struct source *prev, *next; /* among log_streams */
	int64_t rank;
	struct log_reader *reader;
	struct http_transfer *transfer;
	struct strbuf line; /* the part of a line that has come, where lines are prefixed */
	int64_t position;   /* behind what has come; -1: not known */
	struct frame_reader frames;
	bool framed, bad, done; /* of another node's answer: it is frames; it is an error */
	bool none;              /* of these: there is no log */
};

struct view {
	struct log_streams *streams;
	struct http_request *request;
	struct http_stream *stream;
	struct log_query query;
	bool merged; /* of several ranks: line by line */
	struct source *sources;
	size_t count, left;
};

int log_streams_create(struct daemon *d, struct log_streams **out, struct error *err)
{
	struct log_streams *s = calloc(1, sizeof(*s));

	if (!s)
		return error_oom(err);
	s->daemon = d;
	*out = s;
	return 0;
}

void log_streams_destroy(struct log_streams *s)
{
	free(s);
}

void log_streams_finish(struct log_streams *s, int64_t run, int64_t attempt)
{
	struct source *next;

	for (struct source *x = s ? s->sources : NULL; x; x = next) {
		next = x->next;
		if (x->view->query.run == run && x->view->query.attempt == attempt)
			log_reader_finish(x->reader);
	}
}

static void close_reader(struct source *s)
{
	if (!s->reader)
		return;
	log_reader_close(s->reader);
	s->reader = NULL;
	list_remove(s->view->streams->sources, s);
}

static void view_free(struct view *v)
{
	for (size_t i = 0; i < v->count; i++) {
		close_reader(&v->sources[i]);
		http_transfer_cancel(v->sources[i].transfer);
		strbuf_free(&v->sources[i].line);
	}
	free(v->sources);
	free(v);
}

static void on_closed(void *context)
{
	view_free(context);
}

static void write_frame(struct source *s, int64_t end, size_t len)
{
	const struct frame frame = {s->view->query.attempt, s->rank, end, (int64_t)len};
	char head[FRAME_HEAD_MAX];

	http_stream_write(s->view->stream, head, frame_head(&frame, head));
}

/* newline: of the log itself. end: the position behind it; -1: it is not of the log. */
static void write_line(struct source *s, const char *text, size_t len, bool newline, int64_t end)
{
	const bool positions = s->view->query.positions;
	char prefix[32];

	if (positions) {
		write_frame(s, end, len + newline);
	} else {
		snprintf(prefix, sizeof(prefix), "[%lld] ", (long long)s->rank);
		http_stream_write(s->view->stream, prefix, strlen(prefix));
	}
	http_stream_write(s->view->stream, text, len);
	if (newline || !positions)
		http_stream_write(s->view->stream, "\n", 1);
}

static void write_message(struct source *s, const char *text)
{
	write_line(s, text, strlen(text), true, -1);
}

static void write_collected(struct source *s, bool newline, int64_t end)
{
	if (s->line.failed)
		write_message(s, "(dtrain: out of memory: this line is lost)");
	else
		write_line(s, s->line.data ? s->line.data : "", s->line.len, newline, end);
}

/* Whole lines of one rank at a time, however the pieces come. end: the position behind this one. A line ends
 * where the reader has passed over a hole, or begins again with a log that was cut short. */
static void pass(struct source *s, const char *data, size_t len, int64_t end)
{
	if (s->line.len > 0 && s->position != (end < 0 ? -1 : end - (int64_t)len)) {
		write_collected(s, false, s->position);
		strbuf_reset(&s->line);
	}
	s->position = end;
	if (!s->view->merged) {
		if (s->view->query.positions)
			write_frame(s, end, len);
		http_stream_write(s->view->stream, data, len);
		return;
	}
	while (len > 0) {
		const char *nl = memchr(data, '\n', len);
		size_t n = nl ? (size_t)(nl - data) : len, whole = nl ? n + 1 : n;

		strbuf_add(&s->line, data, n);
		data += whole;
		len -= whole;
		if (nl || s->line.len > LONGEST_LINE) {
			write_collected(s, nl != NULL, end < 0 ? -1 : end - (int64_t)len);
			strbuf_reset(&s->line);
		}
	}
}

static void source_done(struct source *s)
{
	if (s->done)
		return;
	s->done = true;
	close_reader(s);
	if (s->line.len > 0 || s->line.failed)
		write_collected(s, false, s->position);
	if (--s->view->left == 0)
		http_stream_end(s->view->stream);
}

static void read_source(struct source *s)
{
	char buf[BLOCK];

	while (s->reader && http_stream_pending(s->view->stream) < HIGH) {
		ssize_t n = log_reader_read(s->reader, buf, sizeof(buf));

		if (n == -EAGAIN)
			return;
		if (n <= 0) {
			source_done(s);
			return;
		}
		pass(s, buf, (size_t)n, log_reader_position(s->reader));
	}
}

/* With positions, where the log begins is known before there is any of it. */
static void begin_source(struct source *s)
{
	if (s->reader && s->view->query.positions)
		write_frame(s, s->position, 0);
	read_source(s);
}

static void on_wakeup(void *context)
{
	read_source(context);
}

static void on_drained(void *context)
{
	struct view *v = context;

	for (size_t i = 0; i < v->count; i++) {
		if (v->sources[i].transfer)
			http_transfer_pause(v->sources[i].transfer, false);
		else
			read_source(&v->sources[i]);
	}
}

/* Does this attempt still run here? Then its logs may grow. */
static bool is_live(struct daemon *d, int64_t run, int64_t attempt)
{
	const struct report *a;

	for (size_t i = 0; (a = node_attempt(d->node, i)); i++)
		if (a->run == run && a->attempt == attempt)
			return a->state != ATTEMPT_ENDED;
	return false;
}

static int open_local(struct source *s, struct error *err)
{
	struct log_streams *streams = s->view->streams;
	const struct log_query *q = &s->view->query;
	_cleanup_free_ char *path = NULL;
	int r;

	if ((r = node_log_path(streams->daemon->node, q->run, q->attempt, s->rank, &path, err)) < 0 ||
	    (r = log_reader_open(streams->daemon->event, path, q->tail,
	                         q->follow && is_live(streams->daemon, q->run, q->attempt), on_wakeup, s,
	                         &s->reader, err)) < 0)
		return r;
	if (q->offset >= 0)
		log_reader_seek(s->reader, q->offset);
	s->position = log_reader_position(s->reader);
	list_push(streams->sources, s);
	return 0;
}

static void lose_rest(struct source *s)
{
	write_message(s, s->none
	                     ? "(dtrain: there is no log: the rank was not started, or its log was removed)"
	                     : "(dtrain: this log cannot be read to its end)");
}

static void on_headers(void *context, int status, const char *type)
{
	struct source *s = context;

	s->bad = status < 200 || status > 299;
	s->none = status == 404;
	s->framed = str_eq(type, FRAME_TYPE);
	/* Of an older version: without a tail it begins with the first byte. */
	s->position = s->framed || s->view->query.tail >= 0 ? -1 : 0;
}

static int on_frame(void *context, const struct frame *frame, int64_t offset, const char *data, size_t len,
                    struct error *err)
{
	struct source *s = context;

	if (len > 0)
		pass(s, data, len, offset < 0 ? -1 : offset + (int64_t)len);
	else
		write_frame(s, frame->end, 0);
	return 0;
}

static void on_data(void *context, const void *data, size_t len)
{
	struct source *s = context;

	if (s->bad)
		return;
	if (!s->framed)
		pass(s, data, len, s->position < 0 ? -1 : s->position + (int64_t)len);
	else if (frame_read(&s->frames, data, len, on_frame, s, NULL) < 0) {
		lose_rest(s);
		/* It may otherwise go on for as long as the attempt runs. */
		http_transfer_cancel(s->transfer);
		s->transfer = NULL;
		source_done(s);
		return;
	}
	if (http_stream_pending(s->view->stream) > HIGH)
		http_transfer_pause(s->transfer, true);
}

static void on_done(void *context, const struct http_answer *a)
{
	struct source *s = context;

	s->transfer = NULL;
	if (a->status == 0 || s->bad)
		lose_rest(s);
	source_done(s);
}

char *logs_target(const struct log_query *q, int64_t rank)
{
	struct strbuf b = {0};

	strbuf_addf(&b, "/v1/peer/logs?run=%lld&attempt=%lld&rank=%lld&tail=%lld&follow=%d",
	            (long long)q->run, (long long)q->attempt, (long long)rank, (long long)q->tail, q->follow);
	if (q->positions)
		strbuf_adds(&b, "&positions=1");
	if (q->offset >= 0)
		strbuf_addf(&b, "&offset=%lld", (long long)q->offset);
	return strbuf_steal(&b);
}

static int open_remote(struct source *s, const struct log_place *place, struct error *err)
{
	_cleanup_free_ char *target = logs_target(&s->view->query, place->rank);
	struct http_call call = {
	    .method = "GET",
	    .node = place->node,
	    .address = place->address,
	    .port = place->port,
	    .target = target,
	    .context = s,
	    .on_headers = on_headers,
	    .on_data = on_data,
	    .on_done = on_done,
	};

	return target ? http_client_call(s->view->streams->daemon->client, &call, &s->transfer, err)
	              : error_oom(err);
}

static struct view *view_new(struct daemon *d, struct http_request *r, const struct log_query *q,
                             size_t count)
{
	struct view *v = calloc(1, sizeof(*v));

	if (v)
		v->sources = calloc(count, sizeof(*v->sources));
	if (!v || !v->sources) {
		free(v);
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return NULL;
	}
	v->streams = d->logs;
	v->request = r;
	v->query = *q;
	v->count = v->left = count;
	for (size_t i = 0; i < count; i++)
		v->sources[i].view = v;
	return v;
}

static void view_begin(struct view *v)
{
	v->stream =
	    http_reply_stream(v->request, 200, v->query.positions ? FRAME_TYPE : "text/plain; charset=utf-8");
	http_stream_on_drain(v->stream, on_drained, v);
	http_request_on_close(v->request, on_closed, v);
}

void logs_serve_local(struct daemon *d, struct http_request *r, const struct log_query *q)
{
	struct error err = ERROR_INIT;
	struct view *v = view_new(d, r, q, 1);

	if (!v)
		return;
	v->sources[0].rank = q->rank;
	if (open_local(&v->sources[0], &err) < 0) {
		http_reply_error(r, err.code == -ENOENT ? 404 : 500, "no-such-log", "%s", err.message);
		view_free(v);
		return;
	}
	view_begin(v);
	begin_source(&v->sources[0]);
}

void logs_serve_merged(struct daemon *d, struct http_request *r, const struct log_query *q,
                       const struct log_place *places, size_t count)
{
	struct view *v = view_new(d, r, q, count);

	if (!v)
		return;
	v->merged = true;
	view_begin(v);
	for (size_t i = 0; i < count; i++) {
		struct source *s = &v->sources[i];
		struct error err = ERROR_INIT;

		s->rank = places[i].rank;
		if ((places[i].address ? open_remote(s, &places[i], &err) : open_local(s, &err)) < 0) {
			write_message(s, err.message);
			source_done(s);
		} else
			begin_source(s);
	}
}
