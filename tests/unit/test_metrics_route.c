/* SPDX-License-Identifier: Apache-2.0 */
/* The reports of a run as an answer: its file, and then what comes. Server, controller and feed are
 * stand-ins. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cluster/feed.h"
#include "controller/runs.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "fake_request.h"
#include "wire/frame.h"

/* ---- what metrics.c calls ---- */

static struct run live = {.id = 7}, *from_store;
static char *path;

const struct run *route_find_run(struct controller *c, struct http_request *r, bool own, struct run **owned)
{
	ck_assert(!own);
	*owned = from_store;
	return from_store ? from_store : &live;
}

void run_free(struct run *run)
{
	free(run);
}

char *metrics_path(struct daemon *d, int64_t run)
{
	ck_assert_int_eq(run, 7);
	return strdup(path);
}

static struct {
	feed_fn fn;
	void *context;
	int code;
	bool removed;
} feed;

int controller_listen_metrics(struct controller *c, int64_t run, feed_fn fn, void *context,
                              struct feed_listener **out, struct error *err)
{
	ck_assert_int_eq(run, 7);
	if (feed.code < 0)
		return error_set(err, feed.code, "no feed");
	feed.fn = fn;
	feed.context = context;
	*out = (struct feed_listener *)&feed;
	return 0;
}

void feed_remove(struct feed_listener *l)
{
	ck_assert_ptr_eq(l, &feed);
	ck_assert(!feed.removed);
	feed.removed = true;
}

static void say(const char *report)
{
	feed.fn(feed.context, report, strlen(report));
}

/* ---- the service ---- */

static char *dir;
static struct settings settings = {.name = "n1"};
static struct daemon d = {.settings = &settings};
static struct http_request request;

static void setup(void)
{
	dir = unit_tmpdir();
	path = str_path_join(dir, "metrics.jsonl");
	ck_assert_int_ge(sd_event_new(&d.event), 0);
}

static void teardown(void)
{
	fake_request_close(&request);
	sd_event_unref(d.event);
	file_remove_tree(dir, NULL);
	free(dir);
	free(path);
}

static void write_file(const char *text, size_t len)
{
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, len, 0600, &err), &err);
}

static void ask(const char *since, const char *follow)
{
	request.queries[0].name = since ? "since" : "-";
	request.queries[0].value = since;
	request.queries[1].name = follow ? "follow" : "-";
	request.queries[1].value = follow;
	route_metrics_get(&d, &request);
}

/* All that can be done until the caller has taken something. */
static void run_due(void)
{
	while (sd_event_run(d.event, 0) > 0)
		;
}

static const char *text(void)
{
	return request.stream.text.data ? request.stream.text.data : "";
}

static const char file[] = "{\"step\": 1}\n{\"loss\": 2.5}\n{\"step\": 2}\n{\"step\": 3}\n";

START_TEST(the_file_is_sent)
{
	write_file(file, strlen(file));
	ask(NULL, NULL);
	ck_assert_str_eq(request.stream.head, "200 application/x-ndjson");
	run_due();
	ck_assert_str_eq(text(), file);
	ck_assert(!request.stream.ended);
	fake_stream_drain(&request.stream);
	run_due();
	ck_assert(request.stream.ended);
}
END_TEST

/* What has no step comes in any case. */
START_TEST(steps_are_left_out_up_to_one)
{
	write_file(file, strlen(file));
	ask("1", NULL);
	run_due();
	fake_stream_drain(&request.stream);
	run_due();
	ck_assert_str_eq(text(), "{\"loss\": 2.5}\n{\"step\": 2}\n{\"step\": 3}\n");
	ck_assert(request.stream.ended);
}
END_TEST

/* A slice of which nothing is sent is followed by the next one at once: no event would ask for that. */
START_TEST(a_file_of_which_nothing_is_new_has_its_end)
{
	_cleanup_strbuf_ struct strbuf long_file = {0};

	while (long_file.len < 300 << 10)
		strbuf_adds(&long_file, "{\"step\": 1}\n");
	strbuf_adds(&long_file, "{\"step\": 9}\n");
	write_file(long_file.data, long_file.len);
	ask("8", NULL);
	run_due();
	ck_assert_str_eq(text(), "{\"step\": 9}\n");
	fake_stream_drain(&request.stream);
	run_due();
	ck_assert(request.stream.ended);
}
END_TEST

/* A slice at a time, and only whole lines of it, however long they are. */
START_TEST(a_long_file_is_sent_as_it_is_taken)
{
	_cleanup_strbuf_ struct strbuf want = {0}, long_file = {0};
	int slices = 0;

	for (int i = 1; long_file.len < 400 << 10; i++) {
		strbuf_addf(&long_file, "{\"step\": %d, \"x\": \"%0*d\"}\n", i, 1 + i % 7000, i);
		if (i > 5)
			strbuf_addf(&want, "{\"step\": %d, \"x\": \"%0*d\"}\n", i, 1 + i % 7000, i);
	}
	write_file(long_file.data, long_file.len);
	ask("5", NULL);
	while (!request.stream.ended) {
		run_due();
		ck_assert_uint_le(request.stream.pending, 2 * METRICS_REPORT_MAX);
		slices += request.stream.pending > 0;
		if (!request.stream.ended)
			fake_stream_drain(&request.stream);
	}
	ck_assert_int_eq(slices, 4);
	ck_assert_uint_eq(request.stream.text.len, want.len);
	ck_assert_int_eq(memcmp(request.stream.text.data, want.data, want.len), 0);
}
END_TEST

/* It is written after the request, and before the answer begins. */
START_TEST(a_first_report_is_not_missed)
{
	ask(NULL, "1");
	write_file("{\"step\": 1}\n", 12);
	run_due();
	ck_assert_str_eq(text(), "{\"step\": 1}\n");
}
END_TEST

START_TEST(a_run_without_reports_has_none)
{
	ask(NULL, NULL);
	run_due();
	ck_assert_str_eq(text(), "");
	ck_assert(request.stream.ended);
}
END_TEST

START_TEST(who_follows_gets_what_comes)
{
	write_file(file, strlen(file));
	ask("2", "1");
	run_due();
	ck_assert_ptr_null(feed.fn);
	fake_stream_drain(&request.stream);
	run_due();
	ck_assert(!request.stream.ended);
	ck_assert_ptr_nonnull(feed.fn);
	say("{\"step\": 2}\n");
	say("{\"step\": 4}\n");
	ck_assert_str_eq(text(), "{\"loss\": 2.5}\n{\"step\": 3}\n{\"step\": 4}\n");
	/* What the caller takes later reads the file no more. */
	ck_assert_ptr_null(request.stream.drained);
	feed.fn(feed.context, NULL, 0);
	ck_assert(request.stream.ended);
	ck_assert(!feed.removed);
	fake_request_close(&request);
	ck_assert(feed.removed);
}
END_TEST

/* 16 MiB. */
START_TEST(a_follower_that_reads_no_more_is_given_up)
{
	ask(NULL, "1");
	run_due();
	request.stream.pending = 16 << 20;
	say("{\"step\": 1}\n");
	ck_assert(!request.stream.aborted);
	ck_assert_str_eq(text(), "{\"step\": 1}\n");
	say("{\"step\": 2}\n");
	ck_assert(request.stream.aborted);
	ck_assert_str_eq(text(), "{\"step\": 1}\n");
}
END_TEST

/* A run that has ended meanwhile has nothing to follow; anything else is an error. */
START_TEST(a_feed_that_cannot_be_had_ends_the_answer)
{
	feed.code = _i ? -ENOMEM : -ENOENT;
	ask(NULL, "1");
	run_due();
	ck_assert_int_eq(request.stream.ended, !_i);
	ck_assert_int_eq(request.stream.aborted, _i);
}
END_TEST

START_TEST(a_run_of_the_store_is_not_followed)
{
	from_store = calloc(1, sizeof(*from_store));
	from_store->id = 7;
	ask(NULL, "1");
	run_due();
	ck_assert(request.stream.ended);
	ck_assert_ptr_null(feed.fn);
}
END_TEST

/* Whoever goes in the middle of the file leaves nothing behind. */
START_TEST(a_caller_may_go)
{
	write_file(file, strlen(file));
	ask(NULL, "1");
	fake_request_close(&request);
	run_due();
	ck_assert_str_eq(text(), "");
	ck_assert_ptr_null(feed.fn);
	ck_assert(!feed.removed);
}
END_TEST

/* ---- with positions ---- */

static void ask_at(const char *file_name, const char *offset, const char *since)
{
	const char *const names[] = {"positions", "file", "offset", "since"},
	                  *values[] = {"1", file_name, offset, since};

	fake_request_close(&request);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		request.queries[i].name = values[i] ? names[i] : "-";
		request.queries[i].value = values[i];
	}
	route_metrics_get(&d, &request);
	run_due();
	fake_stream_drain(&request.stream);
	run_due();
}

static int collect(void *context, const struct frame *frame, int64_t offset, const char *data, size_t len,
                   struct error *err)
{
	ck_assert_int_eq(frame->rank, 0);
	strbuf_addf(context, "%d:%.*s;", (int)offset, (int)len, data);
	return 0;
}

/* "OFFSET:BYTES;" of each frame. *number: of the file, "" where there is no frame. Owned by the caller. */
static char *frames(char number[24])
{
	struct frame_reader reader = {0};
	struct error err = ERROR_INIT;
	struct strbuf b = {0};

	ck_assert_str_eq(request.stream.head, "200 " FRAME_TYPE);
	ck_ok(frame_read(&reader, text(), request.stream.text.len, collect, &b, &err), &err);
	snprintf(number, 24, "%lld", (long long)reader.frame.file);
	return strbuf_steal(&b);
}

START_TEST(reports_have_positions)
{
	char number[24];
	_cleanup_free_ char *all = NULL, *rest = NULL, *others = NULL, *behind = NULL, *end = NULL,
	                    *other = NULL;

	write_file(file, strlen(file));
	ask_at(NULL, NULL, NULL);
	all = frames(number);
	ck_assert_str_eq(all, "0:;0:{\"step\": 1}\n{\"loss\": 2.5}\n{\"step\": 2}\n{\"step\": 3}\n;");
	/* What the caller has comes no more; its newest step says nothing then. */
	ask_at(number, "26", "3");
	rest = frames(number);
	ck_assert_str_eq(rest, "26:;26:{\"step\": 2}\n{\"step\": 3}\n;");
	/* A position that is none in this file: the newest step is what is known. */
	ask_at("1", "26", "2");
	others = frames(number);
	ck_assert_str_eq(others, "0:;12:{\"loss\": 2.5}\n;38:{\"step\": 3}\n;");
	ask_at(number, "51", "2");
	behind = frames(number);
	ck_assert_str_eq(behind, others);
	ask_at(number, "50", "2");
	end = frames(number);
	ck_assert_str_eq(end, "50:;");
	/* Another controller has another file. */
	settings.name = "n2";
	ask_at(number, "26", NULL);
	other = frames(number);
	ck_assert_str_eq(other, all);
	settings.name = "n1";
}
END_TEST

/* The position of a report is where it is in the file; one that is not there, as where the disk is full, has
 * none. */
START_TEST(a_report_that_comes_has_a_position)
{
	char number[24];
	_cleanup_free_ char *came = NULL;

	write_file(file, strlen(file));
	request.queries[0].name = "positions";
	request.queries[0].value = "1";
	request.queries[1].name = "follow";
	request.queries[1].value = "1";
	route_metrics_get(&d, &request);
	run_due();
	fake_stream_drain(&request.stream);
	run_due();
	strbuf_reset(&request.stream.text);
	say("{\"step\": 4}\n");
	write_file("{\"step\": 1}\n{\"loss\": 2.5}\n{\"step\": 2}\n{\"step\": 3}\n{\"step\": 5}\n", 62);
	say("{\"step\": 5}\n");
	came = frames(number);
	ck_assert_str_eq(came, "-1:{\"step\": 4}\n;50:{\"step\": 5}\n;");
	unlink(path);
	say("{\"step\": 6}\n");
	ck_assert(str_ends(text(), " 0 -1 12\n{\"step\": 6}\n"));
}
END_TEST

START_TEST(wrong_queries_are_refused)
{
	static const struct {
		const char *since, *follow;
	} cases[] = {{"-2", NULL}, {"x", NULL}, {NULL, "2"}, {NULL, "-1"}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		ask(cases[i].since, cases[i].follow);
		ck_assert(str_starts(request.answer, "400 bad-query: "));
		ck_assert_ptr_null(request.stream.head);
		fake_request_close(&request);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("metrics route");
	TCase *c = tcase_create("metrics route");

	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, the_file_is_sent);
	tcase_add_test(c, steps_are_left_out_up_to_one);
	tcase_add_test(c, a_file_of_which_nothing_is_new_has_its_end);
	tcase_add_test(c, a_long_file_is_sent_as_it_is_taken);
	tcase_add_test(c, a_first_report_is_not_missed);
	tcase_add_test(c, reports_have_positions);
	tcase_add_test(c, a_report_that_comes_has_a_position);
	tcase_add_test(c, a_run_without_reports_has_none);
	tcase_add_test(c, who_follows_gets_what_comes);
	tcase_add_test(c, a_follower_that_reads_no_more_is_given_up);
	tcase_add_loop_test(c, a_feed_that_cannot_be_had_ends_the_answer, 0, 2);
	tcase_add_test(c, a_run_of_the_store_is_not_followed);
	tcase_add_test(c, a_caller_may_go);
	tcase_add_test(c, wrong_queries_are_refused);
	return unit_run(s);
}
