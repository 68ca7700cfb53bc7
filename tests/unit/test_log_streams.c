/* SPDX-License-Identifier: Apache-2.0 */
/* Logs of ranks as answers. Server, client, node and the files of logs are stand-ins: a test says what there
 * is to read, and sees what the caller got. */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "dtraind/log_streams.h"
#include "failing_memory.h"
#include "fake_client.h"
#include "fake_request.h"
#include "node/log_reader.h"
#include "wire/frame.h"

/* ---- the node and its files ---- */

static struct report reports[2];
static size_t report_count;

const struct report *node_attempt(const struct node *n, size_t i)
{
	return i < report_count ? &reports[i] : NULL;
}

int node_log_path(const struct node *n, int64_t run, int64_t attempt, int rank, char **path,
                  struct error *err)
{
	if (rank == 404)
		return error_set(err, -ENOENT, "rank 404 has no log");
	*path = str_printf("%d.%d.%d", (int)run, (int)attempt, rank);
	return 0;
}

struct log_reader {
	char *path;
	int64_t tail;
	bool follow, finished, closed;
	struct strbuf text; /* to be read */
	int64_t position;
	int code; /* after the text; 0: its end, or -EAGAIN while it is followed */
	log_wakeup_fn wakeup;
	void *context;
};

static struct log_reader readers[4];
static size_t reader_count;
static const char *first_text; /* of each reader */
static int open_code;

int log_reader_open(sd_event *event, const char *path, int64_t tail, bool follow, log_wakeup_fn wakeup,
                    void *context, struct log_reader **out, struct error *err)
{
	struct log_reader *r = &readers[reader_count];

	if (open_code < 0)
		return error_set(err, open_code, "%s cannot be opened", path);
	ck_assert_uint_lt(reader_count, ARRAY_SIZE(readers));
	reader_count++;
	*r = (struct log_reader){
	    .path = strdup(path), .tail = tail, .follow = follow, .wakeup = wakeup, .context = context};
	if (first_text)
		strbuf_adds(&r->text, first_text);
	*out = r;
	return 0;
}

void log_reader_seek(struct log_reader *r, int64_t offset)
{
	r->position = offset;
}

int64_t log_reader_position(const struct log_reader *r)
{
	ck_assert(!r->closed);
	return r->position;
}

ssize_t log_reader_read(struct log_reader *r, void *buf, size_t size)
{
	size_t n = MIN(size, r->text.len);

	ck_assert(!r->closed);
	if (n == 0)
		return r->code ? r->code : r->follow && !r->finished ? -EAGAIN : 0;
	memcpy(buf, r->text.data, n);
	memmove(r->text.data, r->text.data + n, r->text.len - n);
	r->text.len -= n;
	r->position += (int64_t)n;
	return (ssize_t)n;
}

void log_reader_finish(struct log_reader *r)
{
	ck_assert(!r->closed);
	r->finished = true;
}

void log_reader_close(struct log_reader *r)
{
	ck_assert(!r->closed);
	r->closed = true;
	free(r->path);
	strbuf_free(&r->text);
}

static void append(struct log_reader *r, const char *text)
{
	strbuf_adds(&r->text, text);
	r->wakeup(r->context);
}

/* The next allocation is not one of the reader. */
static void append_ready(struct log_reader *r, const char *text)
{
	const long left = memory_left;

	memory_left = 0;
	strbuf_adds(&r->text, text);
	memory_left = left;
	r->wakeup(r->context);
}

/* ---- the service ---- */

static struct daemon d;
static struct http_request request;

static void setup(void)
{
	struct error err = ERROR_INIT;

	reports[0] = (struct report){.run = 7, .attempt = 2, .state = ATTEMPT_RUNNING};
	reports[1] = (struct report){.run = 8, .attempt = 1, .state = ATTEMPT_ENDED};
	report_count = 2;
	ck_ok(log_streams_create(&d, &d.logs, &err), &err);
}

static void teardown(void)
{
	fake_request_close(&request);
	log_streams_destroy(d.logs);
	for (size_t i = 0; i < reader_count; i++)
		ck_assert(readers[i].closed);
	for (size_t i = 0; i < fake_client.count; i++)
		ck_assert(fake_client.transfers[i].done || fake_client.transfers[i].cancelled);
	fake_client_release();
}

static const char *text(void)
{
	return request.stream.text.data ? request.stream.text.data : "";
}

static void serve_local(struct http_request *r, int64_t run, int64_t attempt, bool follow)
{
	struct log_query q = {
	    .run = run, .attempt = attempt, .rank = 3, .tail = 17, .follow = follow, .offset = -1};

	logs_serve_local(&d, r, &q);
}

START_TEST(a_log_is_read_to_its_end)
{
	first_text = "one\ntwo";
	serve_local(&request, 7, 2, false);
	ck_assert_str_eq(request.stream.head, "200 text/plain; charset=utf-8");
	ck_assert_str_eq(text(), "one\ntwo");
	ck_assert(request.stream.ended);
	ck_assert_int_eq(readers[0].tail, 17);
	ck_assert(!readers[0].follow);
	ck_assert(readers[0].closed);
}
END_TEST

START_TEST(the_log_is_that_of_the_rank)
{
	serve_local(&request, 7, 2, true);
	ck_assert_str_eq(readers[0].path, "7.2.3");
	ck_assert(readers[0].follow);
	ck_assert(!request.stream.ended);
	/* The caller goes. */
	fake_request_close(&request);
	ck_assert(readers[0].closed);
}
END_TEST

/* What has ended, or is not known here, has nothing to follow. */
START_TEST(an_attempt_that_has_ended_is_not_followed)
{
	static const int attempts[][2] = {{8, 1}, {7, 1}, {9, 2}};

	for (size_t i = 0; i < ARRAY_SIZE(attempts); i++) {
		serve_local(&request, attempts[i][0], attempts[i][1], true);
		ck_assert(!readers[i].follow);
		ck_assert(request.stream.ended);
		fake_request_close(&request);
	}
}
END_TEST

START_TEST(a_log_that_is_not_there_is_an_error)
{
	struct log_query q = {.run = 7, .attempt = 2, .rank = 404};

	logs_serve_local(&d, &request, &q);
	ck_assert_str_eq(request.answer, "404 no-such-log: rank 404 has no log");
	fake_request_close(&request);
	open_code = -EIO;
	serve_local(&request, 7, 2, false);
	ck_assert_str_eq(request.answer, "500 no-such-log: 7.2.3 cannot be opened");
}
END_TEST

/* The end of an attempt ends those who follow it, after what is left, and no others. */
START_TEST(the_end_of_an_attempt_ends_its_followers)
{
	struct http_request others[3] = {0};

	reports[1].state = ATTEMPT_RUNNING;
	serve_local(&others[0], 7, 2, true);
	serve_local(&request, 7, 2, true);
	serve_local(&others[1], 8, 1, true);
	serve_local(&others[2], 7, 2, true);
	/* One in the middle of the list has gone, and then the newest. */
	fake_request_close(&request);
	log_streams_finish(d.logs, 7, 1);
	log_streams_finish(d.logs, 8, 2);
	ck_assert(!readers[0].finished && !readers[2].finished && !readers[3].finished);
	fake_request_close(&others[2]);
	log_streams_finish(d.logs, 7, 2);
	ck_assert(readers[0].finished);
	ck_assert(!readers[2].finished);
	append(&readers[0], "the last words\n");
	ck_assert_str_eq(others[0].stream.text.data, "the last words\n");
	ck_assert(others[0].stream.ended);
	log_streams_finish(d.logs, 8, 1);
	ck_assert(readers[2].finished);
	readers[2].wakeup(readers[2].context);
	ck_assert(others[1].stream.ended);
	fake_request_close(&others[0]);
	fake_request_close(&others[1]);
	log_streams_finish(d.logs, 7, 2);
	log_streams_finish(NULL, 7, 2);
}
END_TEST

START_TEST(a_log_that_cannot_be_read_ends)
{
	serve_local(&request, 7, 2, true);
	readers[0].code = -EIO;
	append(&readers[0], "one\n");
	ck_assert_str_eq(text(), "one\n");
	ck_assert(request.stream.ended);
}
END_TEST

/* No more than a mebibyte and a piece waits in memory for a caller that reads slowly. */
START_TEST(a_slow_caller_holds_the_reading_up)
{
	_cleanup_free_ char *much = malloc(3 << 20);

	memset(much, 'x', 3 << 20);
	much[(3 << 20) - 1] = '\0';
	first_text = much;
	serve_local(&request, 7, 2, false);
	ck_assert_uint_eq(request.stream.pending, 1 << 20); /* of which a piece that is read is a part */
	ck_assert(!request.stream.ended);
	while (!request.stream.ended)
		fake_stream_drain(&request.stream);
	ck_assert_uint_eq(request.stream.text.len, (3 << 20) - 1);
}
END_TEST

/* ---- of several ranks ---- */

static const struct log_place places[] = {
    {.rank = 0}, {.rank = 1, .node = "n2", .address = "a2", .port = 2}, {.rank = 12}};

static void serve_merged(size_t count)
{
	struct log_query q = {.run = 7, .attempt = 2, .rank = -1, .tail = -1, .follow = true, .offset = -1};

	logs_serve_merged(&d, &request, &q, places, count);
}

static void on_remote(struct http_transfer *t, const char *data)
{
	t->call.on_data(t->call.context, data, strlen(data));
}

START_TEST(lines_of_ranks_are_kept_whole)
{
	struct http_transfer *t;

	serve_merged(3);
	t = fake_client_last();
	ck_assert_str_eq(t->text, "GET n2 at a2:2 /v1/peer/logs?run=7&attempt=2&rank=1&tail=-1&follow=1");
	ck_assert_uint_eq(fake_client.count, 1);
	ck_assert_str_eq(readers[0].path, "7.2.0");
	ck_assert_str_eq(readers[1].path, "7.2.12");
	t->call.on_headers(t->call.context, 200, "text/plain");
	append(&readers[0], "step ");
	on_remote(t, "loss\n\nst");
	append(&readers[0], "1\nstep 2\nste");
	append(&readers[1], "hello\n");
	ck_assert_str_eq(text(), "[1] loss\n[1] \n[0] step 1\n[0] step 2\n[12] hello\n");
	ck_assert(!request.stream.ended);
	/* The last line of each need not have an end. */
	log_streams_finish(d.logs, 7, 2);
	readers[0].wakeup(readers[0].context);
	readers[1].wakeup(readers[1].context);
	ck_assert(!request.stream.ended);
	fake_client_answer(t, 200, "text/plain", NULL, 0, true);
	ck_assert_str_eq(text(), "[1] loss\n[1] \n[0] step 1\n[0] step 2\n[12] hello\n[0] ste\n[1] st\n");
	ck_assert(request.stream.ended);
}
END_TEST

/* 64 KiB; the rest is as another line. */
START_TEST(a_line_without_an_end_is_divided)
{
	enum { LONGEST = 64 << 10 };
	char line[LONGEST + 2];

	memset(line, 'x', sizeof(line));
	line[LONGEST] = '\0';
	serve_merged(1);
	append(&readers[0], line);
	ck_assert_str_eq(text(), "");
	append(&readers[0], "y");
	ck_assert_uint_eq(request.stream.text.len, LONGEST + 6);
	append(&readers[0], "z\n");
	ck_assert_str_eq(text() + LONGEST + 4, "y\n[0] z\n");
}
END_TEST

/* A line that cannot be kept is named as one that is lost, also where it has no end; the others are there. */
START_TEST(a_line_is_lost_without_memory)
{
	static const char lost[] = "[0] (dtrain: out of memory: this line is lost)\n";
	_cleanup_free_ char *twice = str_printf("%s[0] there\n%s", lost, lost);
	char longer[5000] = "";

	serve_merged(1);
	memory_left = 1;
	append_ready(&readers[0], "gone\n");
	ck_assert_str_eq(text(), lost);
	append(&readers[0], "there\n");
	/* One that does not fit into what there is. */
	memset(longer, 'x', sizeof(longer) - 1);
	memory_left = 1;
	append_ready(&readers[0], longer);
	log_streams_finish(d.logs, 7, 2);
	readers[0].wakeup(readers[0].context);
	ck_assert_str_eq(text(), twice);
	ck_assert(request.stream.ended);
}
END_TEST

/* Nothing has begun by then. */
START_TEST(no_log_is_sent_without_memory)
{
	for (long n = 1; n <= 2; n++) {
		memory_left = n;
		serve_local(&request, 7, 2, true);
		ck_assert_int_eq(memory_left, 0);
		ck_assert_str_eq(request.answer, "500 out-of-memory: out of memory");
		ck_assert_uint_eq(reader_count, 0);
		fake_request_close(&request);
	}
}
END_TEST

/* Each rank whose log is lost says so, and the others go on. */
START_TEST(a_rank_whose_log_is_lost_is_named)
{
	struct http_transfer *t;

	serve_merged(2);
	t = fake_client_last();
	t->call.on_headers(t->call.context, 200, "text/plain");
	on_remote(t, "half a li");
	fake_client_answer(t, 0, NULL, NULL, -EIO, true);
	ck_assert_str_eq(text(), "[1] (dtrain: this log cannot be read to its end)\n[1] half a li\n");
	ck_assert(!request.stream.ended);
	append(&readers[0], "on\n");
	ck_assert_str_eq(strstr(text(), "[0]"), "[0] on\n");
}
END_TEST

/* What another node says of an error is not the log. */
START_TEST(an_error_of_another_node_is_not_a_log)
{
	fake_client.refusal = NULL;
	serve_merged(2);
	fake_client_answer(fake_client_last(), 500, "application/json", "{}\n", 0, true);
	ck_assert_str_eq(text(), "[1] (dtrain: this log cannot be read to its end)\n");
}
END_TEST

/* Another node of the attempt has refused its start, or has ended before this rank was started. */
START_TEST(a_rank_that_was_not_started_has_no_log)
{
	fake_client.refusal = NULL;
	serve_merged(2);
	fake_client_answer(fake_client_last(), 404, "application/json", "{}\n", 0, true);
	ck_assert_str_eq(text(),
	                 "[1] (dtrain: there is no log: the rank was not started, or its log was removed)\n");
}
END_TEST

START_TEST(a_log_that_cannot_be_asked_for_is_named)
{
	fake_client.refusal = "no key";
	open_code = -EIO;
	serve_merged(2);
	ck_assert_str_eq(text(), "[0] 7.2.0 cannot be opened\n[1] no key\n");
	ck_assert(request.stream.ended);
}
END_TEST

START_TEST(a_slow_caller_holds_other_nodes_up)
{
	_cleanup_free_ char *much = malloc((1 << 20) + 1);
	struct http_transfer *t;

	memset(much, 'x', 1 << 20);
	for (int i = 0; i < 1 << 20; i += 1000)
		much[i] = '\n';
	much[1 << 20] = '\0';
	serve_merged(2);
	t = fake_client_last();
	t->call.on_headers(t->call.context, 200, "text/plain");
	on_remote(t, "few\n");
	ck_assert(!t->paused);
	on_remote(t, much);
	ck_assert(t->paused);
	fake_stream_drain(&request.stream);
	ck_assert(!t->paused);
	/* A caller that goes takes back what was asked for. */
	fake_request_close(&request);
	ck_assert(t->cancelled);
}
END_TEST

/* ---- with positions ---- */

static void serve_positions(size_t count, int64_t tail, int64_t offset)
{
	struct log_query q = {.run = 7,
	                      .attempt = 2,
	                      .rank = count ? -1 : 3,
	                      .tail = tail,
	                      .follow = true,
	                      .positions = true,
	                      .offset = offset};

	if (count == 0)
		logs_serve_local(&d, &request, &q);
	else
		logs_serve_merged(&d, &request, &q, places, count);
	ck_assert_str_eq(request.stream.head, "200 " FRAME_TYPE);
}

static void end_remote(struct http_transfer *t)
{
	t->done = true;
	t->call.on_done(t->call.context, &(struct http_answer){.status = 200});
}

START_TEST(a_log_has_positions)
{
	serve_positions(0, 5, 100);
	ck_assert_str_eq(text(), "2 3 100 0\n");
	append(&readers[0], "one\ntw");
	append(&readers[0], "o\n");
	log_streams_finish(d.logs, 7, 2);
	readers[0].wakeup(readers[0].context);
	ck_assert_str_eq(text(), "2 3 100 0\n2 3 106 6\none\ntw2 3 108 2\no\n");
	ck_assert(request.stream.ended);
}
END_TEST

/* Each line is that of one rank, as it is in the log, with its own end or none. */
START_TEST(lines_of_ranks_have_positions)
{
	struct http_transfer *t;

	serve_positions(2, -1, 10);
	t = fake_client_last();
	ck_assert_str_eq(
	    t->text,
	    "GET n2 at a2:2 /v1/peer/logs?run=7&attempt=2&rank=1&tail=-1&follow=1&positions=1&offset=10");
	t->call.on_headers(t->call.context, 200, FRAME_TYPE);
	/* A frame and a line are divided otherwise. */
	on_remote(t, "2 1 50 0\n2 1 5");
	append(&readers[0], "step 1\nst");
	on_remote(t, "8 8\nlo");
	on_remote(t, "ss\nsec");
	append(&readers[0], "ep 2\n");
	on_remote(t, "2 1 62 4\nond\n");
	ck_assert_str_eq(text(), "2 0 10 0\n2 1 50 0\n2 0 17 7\nstep 1\n2 1 55 5\nloss\n2 0 24 7\nstep 2\n"
	                         "2 1 62 7\nsecond\n");
	strbuf_reset(&request.stream.text);
	append(&readers[0], "end");
	log_streams_finish(d.logs, 7, 2);
	readers[0].wakeup(readers[0].context);
	on_remote(t, "2 1 64 2\nof");
	fake_client_answer(t, 0, NULL, NULL, -EIO, true);
	ck_assert_str_eq(text(), "2 0 27 3\nend2 1 -1 45\n(dtrain: this log cannot be read to its end)\n"
	                         "2 1 64 2\nof");
	ck_assert(request.stream.ended);
}
END_TEST

/* What is behind a hole, or in a log that begins again, is another line. */
START_TEST(a_line_ends_at_a_hole)
{
	serve_positions(1, -1, -1);
	append(&readers[0], "one\ntw");
	readers[0].position = 4096;
	append(&readers[0], "three\nfo");
	readers[0].position = 0;
	append(&readers[0], "new\n");
	ck_assert_str_eq(text(),
	                 "2 0 0 0\n2 0 4 4\none\n2 0 6 2\ntw2 0 4102 6\nthree\n2 0 4104 2\nfo2 0 4 4\nnew\n");
}
END_TEST

/* It counts no positions: without a tail its first byte is that of the log, with one it is not known. */
START_TEST(a_node_of_an_older_version_sends_text)
{
	static const char *const want[] = {"2 0 0 0\n2 1 4 4\none\n2 1 6 2\ntw",
	                                   "2 0 0 0\n2 1 -1 4\none\n2 1 -1 2\ntw"};
	struct http_transfer *t;

	serve_positions(2, _i ? 5 : -1, -1);
	t = fake_client_last();
	t->call.on_headers(t->call.context, 200, "text/plain; charset=utf-8");
	on_remote(t, "on");
	on_remote(t, "e\ntw");
	end_remote(t);
	ck_assert_str_eq(text(), want[_i]);
}
END_TEST

START_TEST(what_is_no_frame_is_not_a_log)
{
	struct http_transfer *t;

	serve_positions(2, -1, -1);
	t = fake_client_last();
	t->call.on_headers(t->call.context, 200, FRAME_TYPE);
	on_remote(t, "2 1 4 4\none\nnonsense\n2 1 8 4\ntwo\n");
	ck_assert_str_eq(text(), "2 0 0 0\n2 1 4 4\none\n"
	                         "2 1 -1 45\n(dtrain: this log cannot be read to its end)\n");
	/* The attempt goes on, and so does the other rank; the rest of this one is not awaited. */
	ck_assert(t->cancelled);
	ck_assert(!request.stream.ended);
	fake_stream_drain(&request.stream);
	log_streams_finish(d.logs, 7, 2);
	readers[0].wakeup(readers[0].context);
	ck_assert(request.stream.ended);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("log streams");
	TCase *c = tcase_create("log streams");

	tcase_set_timeout(c, 30);
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_log_is_read_to_its_end);
	tcase_add_test(c, the_log_is_that_of_the_rank);
	tcase_add_test(c, an_attempt_that_has_ended_is_not_followed);
	tcase_add_test(c, a_log_that_is_not_there_is_an_error);
	tcase_add_test(c, the_end_of_an_attempt_ends_its_followers);
	tcase_add_test(c, a_log_that_cannot_be_read_ends);
	tcase_add_test(c, a_slow_caller_holds_the_reading_up);
	tcase_add_test(c, lines_of_ranks_are_kept_whole);
	tcase_add_test(c, a_line_without_an_end_is_divided);
	tcase_add_test(c, a_line_is_lost_without_memory);
	tcase_add_test(c, no_log_is_sent_without_memory);
	tcase_add_test(c, a_rank_whose_log_is_lost_is_named);
	tcase_add_test(c, an_error_of_another_node_is_not_a_log);
	tcase_add_test(c, a_rank_that_was_not_started_has_no_log);
	tcase_add_test(c, a_log_that_cannot_be_asked_for_is_named);
	tcase_add_test(c, a_slow_caller_holds_other_nodes_up);
	tcase_add_test(c, a_log_has_positions);
	tcase_add_test(c, lines_of_ranks_have_positions);
	tcase_add_test(c, a_line_ends_at_a_hole);
	tcase_add_loop_test(c, a_node_of_an_older_version_sends_text, 0, 2);
	tcase_add_test(c, what_is_no_frame_is_not_a_log);
	return unit_run(s);
}
