/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs and reports over one connection after another. The service says with each piece which bytes of which
 * file it is (wire/frame.h), and the next request names the position that was reached:
 *
 *     the log of a rank   the attempt and the offset in its file
 *     logs of all ranks   the attempt; what comes again, from the beginning, is left out here, rank by rank
 *     reports             the controller's file and the offset in it; for a controller with another file the
 *                         step of the newest report
 *
 * A service of an older version sends bytes alone. They are a position only where they are all of one log.
 */
#include "dtrain/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "http/local.h"
#include "wire/frame.h"

/* How much of the file of a rank has arrived. */
struct position {
	bool known;
	int64_t end;  /* the offset behind it; known */
	int64_t last; /* behind what came last over this connection; -1: nothing has */
	bool begun;   /* there was a byte of it */
};

struct stream {
	struct client *client;
	const struct stream_request *request;
	struct position *ranks; /* by rank; of reports and of one log, the first alone */
	size_t rank_count;
	int64_t file;      /* that the positions are of; -1: not known */
	bool begun;        /* something was shown */
	bool line_is_open; /* and does not end with a newline */
	bool no_position;  /* something came without one */
	/* Of this connection: */
	bool again;    /* it is not the first */
	bool answered; /* something has come */
	bool doubted;  /* the line on stderr was printed */
	int64_t asked; /* the offset that the request has named; -1: none */
	int64_t skip;  /* of an answer without positions: so many bytes are known */
	bool framed;
	struct frame_reader reader;
	struct strbuf line; /* of logs of all ranks: the part of a frame that has arrived */
};

static int show(struct stream *s, const char *data, size_t len, struct error *err)
{
	if (len == 0)
		return 0;
	s->begun = true;
	s->line_is_open = data[len - 1] != '\n';
	return s->request->piece(s->request->context, data, len, err);
}

/* What comes next may not be what follows on what came before: it begins a line. */
static int doubt(struct stream *s, struct error *err)
{
	int r;

	if (s->doubted)
		return 0;
	s->doubted = true;
	/* On a terminal the message would be appended to the open line. */
	r = s->line_is_open ? show(s, "\n", 1, err) : 0;
	if (r < 0)
		return r;
	if (s->client->before_message)
		s->client->before_message(s->client->message_context);
	client_fail(0, s->request->metrics ? "reports may be missing here, or repeated"
	                                   : "lines may be missing here, or repeated");
	return 0;
}

static bool is_of_all(const struct stream *s)
{
	return !s->request->metrics && s->request->rank < 0;
}

static bool is_one_log(const struct stream *s)
{
	return !s->request->metrics && s->request->rank >= 0;
}

/* The only one, where there is one. */
static struct position *own_position(const struct stream *s)
{
	return s->rank_count > 0 && s->ranks[0].known ? &s->ranks[0] : NULL;
}

static struct position *find_position(struct stream *s, int64_t rank, struct error *err)
{
	size_t i = is_of_all(s) ? (size_t)rank : 0, count = i + 1;
	struct position *grown;

	if (i < s->rank_count)
		return &s->ranks[i];
	grown = reallocarray(s->ranks, count, sizeof(*grown));
	if (!grown) {
		error_oom(err);
		return NULL;
	}
	for (s->ranks = grown; s->rank_count < count; s->rank_count++)
		grown[s->rank_count] = (struct position){.last = -1};
	return &s->ranks[i];
}

static void forget_positions(struct stream *s)
{
	for (size_t i = 0; i < s->rank_count; i++)
		s->ranks[i].known = false;
	s->asked = -1;
}

/* Moves the position behind len bytes at an offset. Returns how many of them are known already. */
static int64_t move(struct stream *s, struct position *p, int64_t offset, int64_t len, bool *gap)
{
	const bool is_first = p->last < 0;
	int64_t known;

	/* The log was cut short by its owner, and begins again. */
	if (is_first ? s->asked > offset : p->last > offset) {
		*gap = is_first;
		p->known = false;
	} else {
		/* log_quota has removed what was there. A log that begins with a hole says so itself. */
		*gap = p->known && offset > p->end && (p->begun || s->again);
	}
	known = p->known && offset < p->end ? MIN(p->end - offset, len) : 0;
	p->end = p->known ? MAX(p->end, offset + len) : offset + len;
	p->last = offset + len;
	p->known = true;
	p->begun = p->begun || len > 0;
	return known;
}

/* The part of a frame that has arrived: all of it, where the logs of all ranks are shown. */
static int show_frame(struct stream *s, int64_t rank, const char *data, size_t len, struct error *err)
{
	char prefix[32];
	int r = 0;

	if (is_of_all(s) && len > 0) {
		snprintf(prefix, sizeof(prefix), "[%lld] ", (long long)rank);
		r = show(s, prefix, strlen(prefix), err);
	}
	if (r == 0)
		r = show(s, data, len, err);
	return r == 0 && is_of_all(s) && s->line_is_open ? show(s, "\n", 1, err) : r;
}

static int take_frame(struct stream *s, const struct frame *frame, int64_t offset, const char *data,
                      size_t len, struct error *err)
{
	struct position *p = find_position(s, frame->rank, err);
	int64_t known = 0;
	bool gap;
	int r = 0;

	if (!p)
		return -ENOMEM;
	if (s->file >= 0 && frame->file != s->file) {
		forget_positions(s);
		r = doubt(s, err);
	}
	s->file = frame->file;
	if (offset < 0) {
		s->no_position = true;
	} else {
		known = move(s, p, offset, (int64_t)len, &gap);
		if (r == 0 && gap)
			r = doubt(s, err);
	}
	return r < 0 ? r : show_frame(s, frame->rank, data + known, len - (size_t)known, err);
}

/* Lines of several ranks are shown whole: what has come of one when the connection breaks comes again. */
static int on_frame(void *context, const struct frame *frame, int64_t offset, const char *data, size_t len,
                    struct error *err)
{
	struct stream *s = context;
	int r;

	if (!is_of_all(s))
		return take_frame(s, frame, offset, data, len, err);
	strbuf_add(&s->line, data, len);
	if (s->line.failed)
		return error_oom(err);
	if ((int64_t)s->line.len < frame->length)
		return 0;
	r = take_frame(s, frame, frame->end < 0 ? -1 : frame->end - frame->length,
	               s->line.data ? s->line.data : "", s->line.len, err);
	strbuf_reset(&s->line);
	return r;
}

/* The first piece of an answer has come. */
static int begin_answer(struct stream *s, struct error *err)
{
	const struct position *p = own_position(s);
	bool in_doubt = s->no_position;

	s->answered = true;
	s->framed = str_eq(http_local_type(s->client->http), FRAME_TYPE);
	s->skip = 0;
	if (!s->framed && is_one_log(s) && p)
		s->skip = p->end;
	else if (!s->framed || s->rank_count == 0)
		in_doubt = true;
	return s->again && s->begun && in_doubt ? doubt(s, err) : 0;
}

/* Of a log that is sent from its first byte. */
static int take_bytes(struct stream *s, const char *data, size_t len, struct error *err)
{
	size_t known = s->skip < (int64_t)len ? (size_t)s->skip : len;
	struct position *p;

	s->skip -= (int64_t)known;
	if (is_one_log(s) && (s->request->tail < 0 || own_position(s))) {
		p = find_position(s, 0, err);
		if (!p)
			return -ENOMEM;
		p->known = true;
		p->end += (int64_t)(len - known);
	} else {
		s->no_position = true;
	}
	return show(s, data + known, len - known, err);
}

static int on_piece(void *context, const char *data, size_t len, struct error *err)
{
	struct stream *s = context;
	int r = s->answered ? 0 : begin_answer(s, err);

	if (r < 0)
		return r;
	return s->framed ? frame_read(&s->reader, data, len, on_frame, s, err)
	                 : take_bytes(s, data, len, err);
}

static void add_number(struct strbuf *b, const char *name, int64_t value)
{
	strbuf_addf(b, "&%s=%lld", name, (long long)value);
}

static void add_log(const struct stream *s, struct strbuf *b)
{
	const struct stream_request *q = s->request;
	int64_t attempt = q->attempt > 0 ? q->attempt : s->file;

	if (q->rank < 0)
		strbuf_adds(b, "/logs?rank=all");
	else
		strbuf_addf(b, "/logs?rank=%lld", (long long)q->rank);
	if (q->follow)
		add_number(b, "follow", 1);
	if (q->tail >= 0 && s->rank_count == 0)
		add_number(b, "tail", q->tail);
	if (attempt > 0)
		add_number(b, "attempt", attempt);
	add_number(b, "positions", 1);
	if (s->asked >= 0)
		add_number(b, "offset", s->asked);
}

static void add_metrics(const struct stream *s, struct strbuf *b)
{
	strbuf_adds(b, "/metrics?follow=1&positions=1");
	if (s->asked >= 0) {
		add_number(b, "file", s->file);
		add_number(b, "offset", s->asked);
	}
	if (s->again && *s->request->step >= 0)
		add_number(b, "since", *s->request->step);
}

static char *make_target(void *context, bool again)
{
	struct stream *s = context;
	const struct position *p = own_position(s);
	struct strbuf b = {0};

	s->again = again;
	s->answered = s->doubted = false;
	s->asked = again && p && !is_of_all(s) ? p->end : -1;
	s->reader = (struct frame_reader){0};
	strbuf_reset(&s->line);
	for (size_t i = 0; i < s->rank_count; i++)
		s->ranks[i].last = -1;
	strbuf_addf(&b, "/v1/runs/%lld", (long long)s->request->run);
	if (s->request->metrics)
		add_metrics(s, &b);
	else
		add_log(s, &b);
	return strbuf_steal(&b);
}

/* Of a rank whose log is shorter than it was, or cannot be read any more, not all came again. */
static int end_answer(struct stream *s, struct error *err)
{
	int r = 0;

	for (size_t i = 0; s->again && s->framed && r == 0 && i < s->rank_count; i++)
		if (s->ranks[i].known && s->ranks[i].last < s->ranks[i].end)
			r = doubt(s, err);
	return r;
}

int stream_read(struct client *client, const struct stream_request *request, bool *begun, struct error *err)
{
	struct stream s = {.client = client, .request = request, .file = -1};
	int status = client_try_stream(client, &(struct client_stream){make_target, on_piece, &s}, err);

	if (status == 0 && end_answer(&s, err) < 0)
		status = EXIT_FAILURE;
	if (begun)
		*begun = s.begun;
	free(s.ranks);
	strbuf_free(&s.line);
	return status;
}
