/* SPDX-License-Identifier: Apache-2.0 */
/* What handlers do with a request: questions, answers, streams, and the end of the caller. libmicrohttpd is a
 * stand-in. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "http/internal.h"
#include "unit.h"

/* ---- libmicrohttpd ---- */

struct MHD_Connection {
	union MHD_ConnectionInfo info;
	bool suspended;
	int resumes;
	const char *query; /* the value of "n"; NULL: none */
	const char *header;
};

struct MHD_Response {
	char *text; /* NULL: it comes from the reader */
	size_t len;
	char type[64];
	MHD_ContentReaderCallback reader;
	void *context;
};

static int responses; /* that are there */

const char *MHD_lookup_connection_value(struct MHD_Connection *c, enum MHD_ValueKind kind, const char *key)
{
	if (kind == MHD_GET_ARGUMENT_KIND && str_eq(key, "n"))
		return c->query;
	return kind == MHD_HEADER_KIND && str_eq(key, "H") ? c->header : NULL;
}

const union MHD_ConnectionInfo *MHD_get_connection_info(struct MHD_Connection *c,
                                                        enum MHD_ConnectionInfoType type, ...)
{
	ck_assert_int_eq(type, MHD_CONNECTION_INFO_CONNECTION_FD);
	return &c->info;
}

void MHD_suspend_connection(struct MHD_Connection *c)
{
	ck_assert(!c->suspended);
	c->suspended = true;
}

void MHD_resume_connection(struct MHD_Connection *c)
{
	ck_assert(c->suspended);
	c->suspended = false;
	c->resumes++;
}

struct MHD_Response *MHD_create_response_from_buffer(size_t size, void *buffer,
                                                     enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *r = calloc(1, sizeof(*r));

	r->text = strndup(buffer, size);
	r->len = size;
	if (mode == MHD_RESPMEM_MUST_FREE)
		free(buffer);
	responses++;
	return r;
}

struct MHD_Response *MHD_create_response_from_callback(uint64_t size, size_t block_size,
                                                       MHD_ContentReaderCallback reader, void *context,
                                                       MHD_ContentReaderFreeCallback release)
{
	struct MHD_Response *r = calloc(1, sizeof(*r));

	ck_assert(size == MHD_SIZE_UNKNOWN && !release);
	r->reader = reader;
	r->context = context;
	responses++;
	return r;
}

enum MHD_Result MHD_add_response_header(struct MHD_Response *r, const char *name, const char *value)
{
	ck_assert_str_eq(name, MHD_HTTP_HEADER_CONTENT_TYPE);
	snprintf(r->type, sizeof(r->type), "%s", value);
	return MHD_YES;
}

void MHD_destroy_response(struct MHD_Response *r)
{
	free(r->text);
	free(r);
	responses--;
}

/* ---- requests ---- */

static struct http_server server;
static struct http_listener listener = {.server = &server};
static struct MHD_Connection connection;
static struct http_request *r;
static int resumed, closed;

static int on_resumed(sd_event_source *source, void *context)
{
	resumed++;
	return 0;
}

static struct http_request *begin(struct MHD_Connection *c)
{
	struct http_request *q = calloc(1, sizeof(*q));

	q->listener = &listener;
	q->connection = c;
	q->dispatched = true;
	q->target = strdup("/x?n=1");
	q->next = listener.requests;
	if (q->next)
		q->next->prev = q;
	listener.requests = q;
	return q;
}

static void setup(void)
{
	ck_assert_int_ge(sd_event_new(&server.event), 0);
	ck_assert_int_ge(sd_event_add_defer(server.event, &listener.resumed, on_resumed, NULL), 0);
	ck_assert_int_ge(sd_event_source_set_enabled(listener.resumed, SD_EVENT_OFF), 0);
	ck_assert_int_ge(sd_event_add_defer(server.event, &server.large_source, on_resumed, NULL), 0);
	ck_assert_int_ge(sd_event_source_set_enabled(server.large_source, SD_EVENT_OFF), 0);
	server.large_end = &server.large;
	connection.info.connect_fd = -1;
	r = begin(&connection);
}

static void teardown(void)
{
	while (listener.requests)
		http_request_free(listener.requests);
	http_request_free(NULL);
	ck_assert_int_eq(responses, 0);
	sd_event_source_disable_unref(listener.resumed);
	sd_event_source_disable_unref(server.large_source);
	sd_event_unref(server.event);
}

static void on_closed(void *context)
{
	ck_assert_ptr_eq(context, &closed);
	closed++;
}

static bool is_answered(const struct http_request *q, int status, const char *type, const char *text)
{
	return q->answered && q->status == status && str_eq(q->response->type, type) &&
	       str_eq(q->response->text, text);
}

START_TEST(what_was_asked_can_be_read)
{
	size_t len = 7;

	connection.header = "value";
	connection.query = "5";
	ck_assert_str_eq(http_request_target(r), "/x?n=1");
	ck_assert_str_eq(http_request_header(r, "H"), "value");
	ck_assert_ptr_null(http_request_header(r, "n"));
	ck_assert_str_eq(http_request_query(r, "n"), "5");
	ck_assert_ptr_null(http_request_query(r, "H"));
	r->match.count = 1;
	r->captures[0] = strdup("a");
	ck_assert_str_eq(http_request_capture(r, 0), "a");
	ck_assert_ptr_null(http_request_capture(r, 1));
	ck_assert_str_eq(http_request_body(r, &len), "");
	ck_assert_uint_eq(len, 0);
}
END_TEST

START_TEST(a_number_has_its_limits)
{
	int64_t n = 7;

	ck_assert_int_eq(http_request_query_int(r, "n", 2, 9, -3, &n), 0);
	ck_assert_int_eq(n, -3);
	connection.query = "9";
	ck_assert_int_eq(http_request_query_int(r, "n", 2, 9, -3, &n), 0);
	ck_assert_int_eq(n, 9);
	ck_assert(!r->answered);
	connection.query = "10";
	ck_assert_int_eq(http_request_query_int(r, "n", 2, 9, -3, &n), -EINVAL);
	ck_assert(
	    is_answered(r, 400, "application/json",
	                "{\"error\":{\"code\":\"bad-query\",\"message\":\"n=10: a whole number from 2 to 9 "
	                "is needed\"}}\n"));
}
END_TEST

START_TEST(a_body_is_an_object)
{
	static const struct {
		const char *body, *words;
	} cases[] = {{"{\"a\": 1}", NULL},
	             {"[1]", "a JSON object is needed"},
	             {"{", "request body"},
	             {"", "request body"}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct http_request *q = begin(&connection);
		json_t *json;

		strbuf_adds(&q->body, cases[i].body);
		json = http_request_json(q);
		ck_assert_int_eq(json != NULL, !cases[i].words);
		ck_assert_int_eq(q->answered, cases[i].words != NULL);
		if (cases[i].words)
			ck_assert(q->status == 400 && strstr(q->response->text, "\"bad-json\"") &&
			          strstr(q->response->text, cases[i].words));
		json_decref(json);
		http_request_free(q);
	}
}
END_TEST

/* The first answer is the answer. */
START_TEST(a_request_is_answered_once)
{
	http_reply_bytes(r, 201, "text/plain", "abcd", 3);
	ck_assert(is_answered(r, 201, "text/plain", "abc"));
	http_reply_json(r, 200, json_object());
	http_reply_error(r, 500, "no", "no");
	ck_assert(is_answered(r, 201, "text/plain", "abc"));
	ck_assert_int_eq(responses, 1);
}
END_TEST

START_TEST(without_json_memory_has_run_out)
{
	http_reply_json(r, 200, NULL);
	ck_assert(is_answered(r, 500, "text/plain", "out of memory\n"));
}
END_TEST

START_TEST(an_error_is_text_whatever_it_quotes)
{
	http_reply_error(r, 404, "no-such", "%s\xff", "a\xc3");
	ck_assert_int_eq(r->status, 404);
	ck_assert_msg(str_starts(r->response->text, "{\"error\":{\"code\":\"no-such\",\"message\":\"a"), "%s",
	              r->response->text);
	ck_assert_ptr_null(strchr(r->response->text, '\xff'));
}
END_TEST

/* ---- the end of the caller ---- */

START_TEST(the_end_is_told_once)
{
	http_request_on_close(r, on_closed, &closed);
	http_request_end(r);
	ck_assert_int_eq(closed, 1);
	ck_assert_int_eq(r->status, 503);
	ck_assert_ptr_nonnull(strstr(r->response->text, "\"stopping\""));
	http_request_end(r);
	http_request_free(r);
	ck_assert_int_eq(closed, 1);
	/* Of a request that goes by itself, too; unless its callback was taken back. */
	r = begin(&connection);
	http_request_on_close(r, on_closed, &closed);
	http_request_free(r);
	ck_assert_int_eq(closed, 2);
	r = begin(&connection);
	http_request_on_close(r, on_closed, &closed);
	http_request_on_close(r, NULL, NULL);
	http_request_free(r);
	ck_assert_int_eq(closed, 2);
	/* One whose body is still coming has no answer yet. */
	r = begin(&connection);
	r->dispatched = false;
	http_request_end(r);
	ck_assert(!r->answered);
}
END_TEST

START_TEST(who_waits_and_hangs_up_is_noticed)
{
	int fds[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	connection.info.connect_fd = fds[0];
	http_request_on_close(r, on_closed, &closed);
	http_request_suspend(r);
	ck_assert(connection.suspended);
	ck_assert_int_eq(sd_event_run(server.event, 0), 0);
	close(fds[1]);
	ck_assert_int_eq(sd_event_run(server.event, UINT64_MAX), 1);
	ck_assert_int_eq(closed, 1);
	ck_assert(!connection.suspended);
	ck_assert_int_eq(r->status, 503);
	ck_assert_int_eq(sd_event_run(server.event, 0), 1);
	ck_assert_int_eq(resumed, 1);
	/* It is not watched any more, and not again. */
	http_request_suspend(r);
	ck_assert_int_eq(sd_event_run(server.event, 0), 0);
	close(fds[0]);
}
END_TEST

/* Whose name is still looked up: the end of the caller is told once, and the connection waits for the name.
 */
START_TEST(who_hangs_up_before_the_request_is_handled_is_noticed_once)
{
	int fds[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	connection.info.connect_fd = fds[0];
	r->dispatched = false;
	http_request_suspend(r);
	close(fds[1]);
	ck_assert_int_eq(sd_event_run(server.event, UINT64_MAX), 1);
	ck_assert(r->gone);
	ck_assert(connection.suspended);
	ck_assert(!r->answered);
	ck_assert_int_eq(sd_event_run(server.event, 0), 0);
	http_request_resume(r);
	ck_assert(!connection.suspended);
	close(fds[0]);
}
END_TEST

START_TEST(an_answer_wakes_who_waits)
{
	http_reply_json(r, 200, json_object());
	ck_assert_int_eq(connection.resumes, 0);
	ck_assert_int_eq(sd_event_run(server.event, 0), 0);
	http_request_free(r);
	r = begin(&connection);
	http_request_suspend(r);
	http_reply_json(r, 200, json_object());
	ck_assert(!connection.suspended);
	ck_assert_int_eq(sd_event_run(server.event, 0), 1);
	ck_assert_int_eq(resumed, 1);
	ck_assert_ptr_null(r->hangup);
}
END_TEST

START_TEST(each_request_leaves_the_list)
{
	struct http_request *list[4];

	http_request_free(r);
	for (size_t i = 0; i < 4; i++)
		list[i] = begin(&connection);
	http_request_free(list[1]);
	ck_assert_ptr_eq(list[2]->next, list[0]);
	ck_assert_ptr_eq(list[0]->prev, list[2]);
	http_request_free(list[3]);
	ck_assert_ptr_eq(listener.requests, list[2]);
	ck_assert_ptr_null(list[2]->prev);
	http_request_free(list[0]);
	ck_assert_ptr_null(list[2]->next);
}
END_TEST

/* ---- large bodies ---- */

/* In the order in which they came, whichever of them goes meanwhile. */
START_TEST(large_bodies_have_an_order)
{
	struct http_request *list[4];
	int enabled;

	for (size_t i = 0; i < 4; i++)
		list[i] = begin(&connection);
	http_request_unqueue(list[0]); /* it is not in the queue */
	for (size_t i = 0; i < 3; i++)
		http_request_queue(list[i]);
	ck_assert_int_ge(sd_event_source_get_enabled(server.large_source, &enabled), 0);
	ck_assert_int_eq(enabled, SD_EVENT_ONESHOT);
	http_request_unqueue(list[1]);
	http_request_unqueue(list[2]);
	http_request_queue(list[3]);
	http_request_queue(list[1]);
	ck_assert_ptr_eq(server.large, list[0]);
	ck_assert_ptr_eq(list[0]->large_next, list[3]);
	ck_assert_ptr_eq(list[3]->large_next, list[1]);
	ck_assert_ptr_null(list[1]->large_next);
	http_request_free(list[0]);
	ck_assert_ptr_eq(server.large, list[3]);
	http_request_free(list[3]);
	http_request_free(list[1]);
	ck_assert_ptr_null(server.large);
	http_request_queue(list[2]);
	ck_assert_ptr_eq(server.large, list[2]);
}
END_TEST

/* ---- streams ---- */

static struct http_stream *s;
static int drained;
static bool refill;

static void on_drained(void *context)
{
	drained++;
	if (refill)
		http_stream_write(s, "more", 4);
}

static void stream(void)
{
	s = http_reply_stream(r, 200, "text/plain");
	http_stream_on_drain(s, on_drained, NULL);
	ck_assert(r->answered && r->status == 200);
	ck_assert_str_eq(r->response->type, "text/plain");
}

/* As libmicrohttpd reads: so many bytes at most. */
static ssize_t take(char *text, size_t max)
{
	ssize_t n = r->response->reader(r->response->context, 0, text, max);

	if (n >= 0)
		text[n] = '\0';
	return n;
}

START_TEST(a_stream_is_taken_as_it_comes)
{
	char text[16];

	stream();
	listener.fruitless = 9;
	ck_assert_int_eq(take(text, 8), 0);
	ck_assert_uint_eq(listener.fruitless, 0);
	ck_assert(connection.suspended);
	http_stream_write(s, "", 0);
	ck_assert(connection.suspended);
	http_stream_write(s, "hello", 5);
	ck_assert(!connection.suspended);
	http_stream_write(s, " world", 6);
	ck_assert_uint_eq(http_stream_pending(s), 11);
	ck_assert_int_eq(take(text, 8), 8);
	ck_assert_str_eq(text, "hello wo");
	ck_assert_uint_eq(http_stream_pending(s), 3);
	ck_assert_int_eq(drained, 0);
	http_stream_write(s, "!", 1);
	ck_assert_int_eq(take(text, 8), 4);
	ck_assert_str_eq(text, "rld!");
	ck_assert_int_eq(drained, 1);
	ck_assert_uint_eq(http_stream_pending(s), 0);
	ck_assert_int_eq(take(text, 8), 0);
	ck_assert(connection.suspended);
	/* The end follows what was written. */
	http_stream_write(s, "end", 3);
	http_stream_end(s);
	http_stream_write(s, "lost", 4);
	refill = true;
	ck_assert_int_eq(take(text, 8), 3);
	ck_assert_str_eq(text, "end");
	ck_assert_int_eq(drained, 1);
	ck_assert_int_eq(take(text, 8), MHD_CONTENT_READER_END_OF_STREAM);
}
END_TEST

START_TEST(a_stream_is_filled_again_when_it_is_drained)
{
	char text[16];

	stream();
	refill = true;
	http_stream_write(s, "a", 1);
	ck_assert_int_eq(take(text, 8), 1);
	ck_assert_uint_eq(http_stream_pending(s), 4);
	ck_assert_int_eq(take(text, 8), 4);
	ck_assert_str_eq(text, "more");
	http_stream_on_drain(s, NULL, NULL);
	ck_assert_int_eq(take(text, 8), 4);
	ck_assert_int_eq(take(text, 8), 0);
	ck_assert_int_eq(drained, 2);
}
END_TEST

/* The caller has to see that something is missing. */
START_TEST(a_stream_that_is_broken_off_has_no_end)
{
	char text[16];

	stream();
	http_stream_write(s, "half", 4);
	if (_i == 0)
		http_stream_abort(s);
	else if (_i == 1)
		http_request_end(r);
	else {
		server.closing = true;
		ck_assert_int_eq(take(text, 8), 4);
	}
	ck_assert_int_eq(take(text, 8), MHD_CONTENT_READER_END_WITH_ERROR);
	if (_i < 2) {
		http_stream_write(s, "more", 4);
		ck_assert_uint_eq(http_stream_pending(s), SIZE_MAX);
	}
}
END_TEST

/* What has its end already is sent when the service ends. */
START_TEST(an_end_is_sent_to_its_end)
{
	char text[16];

	stream();
	ck_assert_int_eq(take(text, 8), 0);
	http_stream_write(s, "all", 3);
	http_stream_end(s);
	ck_assert(!connection.suspended);
	server.closing = true;
	http_request_end(r);
	ck_assert_int_eq(take(text, 8), 3);
	ck_assert_int_eq(take(text, 8), MHD_CONTENT_READER_END_OF_STREAM);
}
END_TEST

START_TEST(who_waits_for_a_stream_is_woken_by_its_end)
{
	char text[16];

	stream();
	ck_assert_int_eq(take(text, 8), 0);
	ck_assert(connection.suspended);
	if (_i)
		http_stream_abort(s);
	else
		http_stream_end(s);
	ck_assert(!connection.suspended);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("http request");
	TCase *c = tcase_create("http request");

	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(suite, c);
	tcase_add_test(c, what_was_asked_can_be_read);
	tcase_add_test(c, a_number_has_its_limits);
	tcase_add_test(c, a_body_is_an_object);
	tcase_add_test(c, a_request_is_answered_once);
	tcase_add_test(c, without_json_memory_has_run_out);
	tcase_add_test(c, an_error_is_text_whatever_it_quotes);
	tcase_add_test(c, the_end_is_told_once);
	tcase_add_test(c, who_waits_and_hangs_up_is_noticed);
	tcase_add_test(c, who_hangs_up_before_the_request_is_handled_is_noticed_once);
	tcase_add_test(c, an_answer_wakes_who_waits);
	tcase_add_test(c, each_request_leaves_the_list);
	tcase_add_test(c, large_bodies_have_an_order);
	tcase_add_test(c, a_stream_is_taken_as_it_comes);
	tcase_add_test(c, a_stream_is_filled_again_when_it_is_drained);
	tcase_add_loop_test(c, a_stream_that_is_broken_off_has_no_end, 0, 3);
	tcase_add_test(c, an_end_is_sent_to_its_end);
	tcase_add_loop_test(c, who_waits_for_a_stream_is_woken_by_its_end, 0, 2);
	return unit_run(suite);
}
