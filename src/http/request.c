/* SPDX-License-Identifier: Apache-2.0 */
/* A request from its first line to the end of its answer; handlers see no more of the server than this. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/json.h"
#include "base/list.h"
#include "base/log.h"
#include "http/internal.h"
#include "wire/error_answer.h"

enum { STREAM_BLOCK = 32 * 1024 };

/* Of the memory that the requests of a user take: a user may have hundreds of connections, and send bodies
 * that do not end, or read no answer. What ranks say to each other is shorter than a step; from there on the
 * sum is looked at once in each. */
enum { MEMORY_STEP = 64 << 10, USER_MEMORY = 256 << 20 };

const struct http_caller *http_request_caller(const struct http_request *r)
{
	return &r->caller;
}

const char *http_request_method(const struct http_request *r)
{
	return r->match.route->method;
}

const char *http_request_target(const struct http_request *r)
{
	return r->target;
}

const char *http_request_capture(const struct http_request *r, size_t i)
{
	return i < r->match.count ? r->captures[i] : NULL;
}

const char *http_request_query(const struct http_request *r, const char *name)
{
	return MHD_lookup_connection_value(r->connection, MHD_GET_ARGUMENT_KIND, name);
}

const char *http_request_header(const struct http_request *r, const char *name)
{
	return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

int http_request_query_int(struct http_request *r, const char *name, int64_t min, int64_t max,
                           int64_t fallback, int64_t *out)
{
	const char *s = http_request_query(r, name);

	*out = fallback;
	if (!s || str_to_int64(s, min, max, out) == 0)
		return 0;
	http_reply_error(r, 400, "bad-query", "%s=%s: a whole number from %lld to %lld is needed", name, s,
	                 (long long)min, (long long)max);
	return -EINVAL;
}

const void *http_request_body(const struct http_request *r, size_t *len)
{
	*len = r->body.len;
	return r->body.data ? r->body.data : "";
}

json_t *http_request_json(struct http_request *r)
{
	struct error err = ERROR_INIT;
	json_t *json = NULL;
	size_t len;
	const char *text = http_request_body(r, &len);

	if (json_parse(text, len, "request body", &json, &err) < 0) {
		http_reply_error(r, 400, "bad-json", "%s", err.message);
		return NULL;
	}
	if (!json_is_object(json)) {
		json_decref(json);
		http_reply_error(r, 400, "bad-json", "request body: a JSON object is needed");
		return NULL;
	}
	return json;
}

void http_request_on_close(struct http_request *r, void (*closed)(void *context), void *context)
{
	r->closed = closed;
	r->closed_context = context;
}

static void notify_closed(struct http_request *r)
{
	void (*closed)(void *context) = r->closed;

	r->closed = NULL;
	if (closed)
		closed(r->closed_context);
}

void http_request_queue(struct http_request *r)
{
	struct http_server *s = r->listener->server;

	r->queued = true;
	*s->large_end = r;
	s->large_end = &r->large_next;
	sd_event_source_set_enabled(s->large_source, SD_EVENT_ONESHOT);
}

void http_request_unqueue(struct http_request *r)
{
	struct http_server *s = r->listener->server;

	if (!r->queued)
		return;
	for (struct http_request **p = &s->large; *p; p = &(*p)->large_next) {
		if (*p != r)
			continue;
		*p = r->large_next;
		if (s->large_end == &r->large_next)
			s->large_end = p;
		break;
	}
	r->large_next = NULL;
	r->queued = false;
}

void http_request_free(struct http_request *r)
{
	if (!r)
		return;
	list_remove(r->listener->requests, r);
	sd_event_source_disable_unref(r->hangup);
	http_request_unqueue(r);
	notify_closed(r);
	if (r->response)
		MHD_destroy_response(r->response);
	for (size_t i = 0; i < HTTP_CAPTURES; i++)
		free(r->captures[i]);
	strbuf_free(&r->body);
	strbuf_free(&r->stream.buffer);
	free(r->user);
	free(r->target);
	free(r);
}

/* A suspended connection is out of MHD's sight: whether its caller hangs up is ours to see. */
static int on_hangup(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	struct http_request *r = userdata;

	r->gone = true;
	sd_event_source_set_enabled(source, SD_EVENT_OFF);
	http_request_end(r);
	return 0;
}

void http_request_end(struct http_request *r)
{
	notify_closed(r);
	if (!r->dispatched)
		return;
	if (!r->answered)
		http_reply_error(r, 503, "stopping", "the service is being stopped");
	else if (r->streaming && !r->stream.ended)
		http_stream_abort(&r->stream);
}

void http_request_suspend(struct http_request *r)
{
	const union MHD_ConnectionInfo *info =
	    MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD);

	MHD_suspend_connection(r->connection);
	r->suspended = true;
	if (info && !r->gone &&
	    sd_event_add_io(r->listener->server->event, &r->hangup, info->connect_fd, EPOLLRDHUP, on_hangup,
	                    r) < 0)
		log_debug("cannot watch a waiting connection");
}

void http_request_resume(struct http_request *r)
{
	if (!r->suspended)
		return;
	r->suspended = false;
	r->hangup = sd_event_source_disable_unref(r->hangup);
	MHD_resume_connection(r->connection);
	http_turn_soon(r->listener);
}

/* len: of what is in memory as a whole. */
static void answer(struct http_request *r, int status, const char *type, size_t len,
                   struct MHD_Response *response)
{
	if (!response || r->answered) {
		if (response)
			MHD_destroy_response(response);
		else
			log_err("cannot answer a request: out of memory");
		return;
	}
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	r->response = response;
	r->answer_len = len;
	r->status = status;
	r->answered = true;
	http_request_resume(r);
}

static size_t memory_of_user(const struct http_server *s, int64_t uid)
{
	size_t sum = 0;

	for (const struct http_listener *l = s->listeners; l; l = l->next)
		for (const struct http_request *r = l->requests; r; r = r->next)
			if (r->caller.uid == uid)
				sum += r->body.len + r->answer_len + r->stream.buffer.cap;
	return sum;
}

bool http_request_keep(struct http_request *r, size_t kept, size_t more)
{
	const struct http_server *s = r->listener->server;
	const size_t most = s->options.user_memory ? s->options.user_memory : USER_MEMORY;
	const int64_t uid = r->caller.uid;

	if (kept / MEMORY_STEP == (kept + more) / MEMORY_STEP || uid < 0 || http_user_is_privileged(uid) ||
	    memory_of_user(s, uid) + more <= most)
		return true;
	if (!r->answered)
		http_request_refuse(
		    r, 503, "too-many",
		    "requests of the user with uid %lld, and answers to them that were not "
		    "read, have %zu MiB of dtraind's memory, and may not have more: try again "
		    "later",
		    (long long)uid, most >> 20);
	return false;
}

void http_reply_bytes(struct http_request *r, int status, const char *type, const void *data, size_t len)
{
	if (!http_request_keep(r, 0, len))
		return;
	answer(r, status, type, len,
	       MHD_create_response_from_buffer(len, (void *)data, MHD_RESPMEM_MUST_COPY));
}

static void reply_owned(struct http_request *r, int status, char *text, size_t len)
{
	if (!http_request_keep(r, 0, len)) {
		free(text);
		return;
	}
	answer(r, status, "application/json", len,
	       MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE));
}

void http_reply_json(struct http_request *r, int status, json_t *json)
{
	char *text = json ? json_to_string(json) : NULL;
	size_t len;

	json_decref(json);
	if (!text) {
		http_reply_bytes(r, 500, "text/plain", "out of memory\n", 14);
		return;
	}
	len = strlen(text);
	text[len] = '\n';
	reply_owned(r, status, text, len + 1);
}

static void reply_error(struct http_request *r, int status, const char *code, const char *fmt, va_list ap)
{
	char message[1024];

	vsnprintf(message, sizeof(message), fmt, ap);
	str_make_utf8(message); /* paths and words of others may hold anything, and may be cut */
	http_reply_json(r, status,
	                error_answer_encode(&(struct error_answer){.code = code, .message = message}));
}

void http_reply_error(struct http_request *r, int status, const char *code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	reply_error(r, status, code, fmt, ap);
	va_end(ap);
}

void http_request_refuse(struct http_request *r, int status, const char *code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	reply_error(r, status, code, fmt, ap);
	va_end(ap);
}

static ssize_t stream_read(void *cls, uint64_t pos, char *buf, size_t max)
{
	struct http_request *r = cls;
	struct http_stream *s = &r->stream;
	size_t n = MIN(max, s->buffer.len - s->sent);

	r->listener->fruitless = 0;
	if (s->broken)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	if (n > 0) {
		memcpy(buf, s->buffer.data + s->sent, n);
		s->sent += n;
		if (s->sent == s->buffer.len) {
			if (s->buffer.cap > 2 * STREAM_BLOCK) /* a reader that was slow; others need less */
				strbuf_free(&s->buffer);
			strbuf_reset(&s->buffer);
			s->sent = 0;
			if (s->drained && !s->ended)
				s->drained(s->drained_context);
		}
		return n;
	}
	if (s->ended)
		return MHD_CONTENT_READER_END_OF_STREAM;
	if (r->listener->server->closing)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	http_request_suspend(r);
	return 0;
}

static struct http_request *stream_request(struct http_stream *s)
{
	return (struct http_request *)((char *)s - offsetof(struct http_request, stream));
}

struct http_stream *http_reply_stream(struct http_request *r, int status, const char *type)
{
	r->streaming = true;
	answer(r, status, type, 0,
	       MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, stream_read, r, NULL));
	return &r->stream;
}

/* A reader that keeps up may never have read everything. */
static void drop_sent(struct http_stream *s)
{
	if (s->sent <= s->buffer.len / 2)
		return;
	s->buffer.len -= s->sent;
	memmove(s->buffer.data, s->buffer.data + s->sent, s->buffer.len);
	s->sent = 0;
}

void http_stream_write(struct http_stream *s, const void *data, size_t len)
{
	if (len == 0 || s->ended || s->broken)
		return;
	drop_sent(s);
	if (http_request_keep(stream_request(s), s->buffer.len, len))
		strbuf_add(&s->buffer, data, len);
	else
		s->broken = true;
	s->broken = s->broken || s->buffer.failed;
	http_request_resume(stream_request(s));
}

void http_stream_end(struct http_stream *s)
{
	s->ended = true;
	http_request_resume(stream_request(s));
}

void http_stream_abort(struct http_stream *s)
{
	s->broken = true;
	http_request_resume(stream_request(s));
}

size_t http_stream_pending(const struct http_stream *s)
{
	return s->broken ? SIZE_MAX : s->buffer.len - s->sent;
}

void http_stream_on_drain(struct http_stream *s, void (*drained)(void *context), void *context)
{
	s->drained = drained;
	s->drained_context = context;
}
