/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-ins for the requests of the server: fake_request.h. */
#include "fake_request.h"

#include <stdarg.h>

const struct http_caller *http_request_caller(const struct http_request *r)
{
	return &r->caller;
}

const char *http_request_method(const struct http_request *r)
{
	return r->method;
}

const char *http_request_target(const struct http_request *r)
{
	return r->target;
}

const char *http_request_header(const struct http_request *r, const char *name)
{
	return str_eq(name, "Dtrain-Key") ? r->key : NULL;
}

const void *http_request_body(const struct http_request *r, size_t *len)
{
	*len = r->body ? strlen(r->body) : 0;
	return r->body ? r->body : "";
}

const char *http_request_query(const struct http_request *r, const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(r->queries) && r->queries[i].name; i++)
		if (str_eq(r->queries[i].name, name))
			return r->queries[i].value;
	return NULL;
}

int http_request_query_int(struct http_request *r, const char *name, int64_t min, int64_t max,
                           int64_t fallback, int64_t *out)
{
	const char *text = http_request_query(r, name);

	*out = fallback;
	if (!text || str_to_int64(text, min, max, out) == 0)
		return 0;
	http_reply_error(r, 400, "bad-query", "%s=%s", name, text);
	return -EINVAL;
}

json_t *http_request_json(struct http_request *r)
{
	json_t *json = json_loads(r->body ? r->body : "", 0, NULL);

	if (!json)
		http_reply_error(r, 400, "bad-json", "no JSON");
	return json;
}

void http_request_on_close(struct http_request *r, void (*closed)(void *context), void *context)
{
	r->closed = closed;
	r->context = context;
}

void http_reply_json(struct http_request *r, int status, json_t *json)
{
	_cleanup_free_ char *text = json_dumps(json, JSON_COMPACT);

	ck_assert_ptr_null(r->answer);
	r->answer = str_printf("%d %s", status, text);
	json_decref(json);
}

void http_reply_bytes(struct http_request *r, int status, const char *type, const void *data, size_t len)
{
	ck_assert_ptr_null(r->answer);
	r->answer = str_printf("%d %s %.*s", status, type, (int)len, (const char *)data);
}

void http_reply_error(struct http_request *r, int status, const char *code, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	ck_assert_ptr_null(r->answer);
	r->answer = str_printf("%d %s: %s", status, code, text);
}

struct http_stream *http_reply_stream(struct http_request *r, int status, const char *type)
{
	ck_assert(!r->answer && !r->stream.head);
	r->stream.head = str_printf("%d %s", status, type);
	return &r->stream;
}

void http_stream_write(struct http_stream *s, const void *data, size_t len)
{
	strbuf_add(&s->text, data, len);
	s->pending += len;
}

void http_stream_end(struct http_stream *s)
{
	ck_assert(!s->ended && !s->aborted);
	s->ended = true;
}

void http_stream_abort(struct http_stream *s)
{
	ck_assert(!s->ended && !s->aborted);
	s->aborted = true;
}

size_t http_stream_pending(const struct http_stream *s)
{
	return s->pending;
}

void http_stream_on_drain(struct http_stream *s, void (*drained)(void *context), void *context)
{
	s->drained = drained;
	s->drained_context = context;
}

void fake_request_close(struct http_request *r)
{
	if (r->closed)
		r->closed(r->context);
	r->closed = NULL;
	free(r->answer);
	strbuf_free(&r->stream.text);
	free(r->stream.head);
	r->answer = NULL;
	r->stream = (struct http_stream){0};
}

void fake_stream_drain(struct http_stream *s)
{
	s->pending = 0;
	if (s->drained)
		s->drained(s->drained_context);
}
