/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-ins for the requests and the streams of the server, for tests of single files of the service: a test
 * makes the request, and sees what was answered. */
#pragma once

#include "base/str.h"
#include "http/server.h"
#include "unit.h"

struct http_stream {
	struct strbuf text;
	char *head; /* status and type */
	bool ended, aborted;
	size_t pending;
	void (*drained)(void *context);
	void *drained_context;
};

struct http_request {
	const char *method, *target, *key, *body;
	struct {
		const char *name, *value;
	} queries[4]; /* up to the first without a name */
	struct http_caller caller;
	void (*closed)(void *context);
	void *context;
	char *answer; /* NULL: not yet */
	struct http_stream stream;
};

/* The answer has been sent, or the caller has gone. */
void fake_request_close(struct http_request *r);
/* All that was written has been sent. */
void fake_stream_drain(struct http_stream *s);

/* Another request of the same caller: the answer to the one before is forgotten, and the trace is empty. */
static inline void fake_request_ask(struct http_request *r, struct strbuf *trace, const char *body)
{
	fake_request_close(r);
	strbuf_reset(trace);
	strbuf_adds(trace, "");
	r->body = body;
}

/* The calls in the trace, and how the answer begins. */
static inline void fake_request_check(const struct http_request *r, const struct strbuf *trace,
                                      const char *calls, const char *answer)
{
	ck_assert_str_eq(trace->data, calls);
	ck_assert_ptr_nonnull(r->answer);
	ck_assert_msg(str_starts(r->answer, answer), "%s", r->answer);
}
