/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are sent on to another service, and that follow an elected controller. Server, client and
 * election are stand-ins, and so is the clock: a test plays the answers, and sees what was sent and what the
 * caller got. */
#include <string.h>
#include <systemd/sd-event.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "dtraind/proxy.h"
#include "failing_memory.h"
#include "fake_client.h"
#include "fake_request.h"
#include "unit.h"

/* ---- the clock ---- */

static double now;
static uint64_t waited; /* microseconds from the setting of the timer to its time */

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	*ts = (struct timespec){(time_t)now, (long)((now - (double)(time_t)now) * 1e9)};
	return 0;
}

/* Timers are due at once. */
int __real_sd_event_source_set_time(sd_event_source *source, uint64_t usec);
int __wrap_sd_event_source_set_time(sd_event_source *source, uint64_t usec);
int __wrap_sd_event_source_set_time(sd_event_source *source, uint64_t usec)
{
	uint64_t at = 0;

	sd_event_now(sd_event_source_get_event(source), CLOCK_MONOTONIC, &at);
	waited = usec - at;
	return __real_sd_event_source_set_time(source, 0);
}

/* ---- the service ---- */

static struct settings settings = {.name = (char *)"n1",
                                   .controller = (char *)"n9",
                                   .controller_address = (char *)"a9",
                                   .controller_port = 9};
static struct daemon d;

static void setup(void)
{
	d = (struct daemon){.settings = &settings};
	ck_assert_int_ge(sd_event_new(&d.event), 0);
	fake_leader.asked = (struct peer){"n2", "a2", 2};
	now = 1000;
}

static void teardown(void)
{
	ck_assert_ptr_null(d.pipes);
	fake_client_release();
	sd_event_unref(d.event);
}

/* A controller is elected. */
static void setup_elected(void)
{
	setup();
	d.leader = (struct leader *)&d; /* never looked into */
}

/* The next turn of the event loop: whether something was due. */
static bool turn(void)
{
	return sd_event_run(d.event, 0) > 0;
}

static const struct peer n2 = {"n2", "a2", 2};

/* ---- one other service ---- */

START_TEST(a_request_is_sent_on_as_it_is)
{
	static const struct {
		const char *method, *body, *sent;
	} cases[] = {
	    {"GET", NULL, "GET n2 at a2:2 /t | A: b"},
	    {"GET", "x", "GET n2 at a2:2 /t \"x\" | A: b"},
	    {"POST", NULL, "POST n2 at a2:2 /t \"\" | A: b"},
	    {"POST", "{}", "POST n2 at a2:2 /t \"{}\" | A: b"},
	    {"DELETE", NULL, "DELETE n2 at a2:2 /t \"\" | A: b"},
	};
	const char *const headers[] = {"A: b", NULL};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct http_request r = {.method = cases[i].method, .target = "/x", .body = cases[i].body};

		pipe_call(&d, &r, &n2, "/t", headers);
		ck_assert_str_eq(fake_client_last()->text, cases[i].sent);
		ck_assert(fake_client_last()->call.timeout == 0);
		/* The caller goes: no one waits for the answer. */
		fake_request_close(&r);
		ck_assert(fake_client_last()->cancelled);
	}
}
END_TEST

START_TEST(an_answer_is_passed_on)
{
	static const struct {
		int status;
		const char *type, *body;
		int code;
		bool sent;
		const char *answer, *stream; /* how the caller got it: whole, or in pieces */
		bool aborted;
	} cases[] = {
	    {200, "application/json", "{}", 0, true, "200 application/json {}", NULL, false},
	    {200, "application/json; charset=utf-8", "{}", 0, true, "200 application/json; charset=utf-8 {}",
	     NULL, false},
	    {404, "text/plain", "no", 0, true, "404 text/plain no", NULL, false},
	    {300, "text/plain", "no", 0, true, "300 text/plain no", NULL, false},
	    {204, "application/json", NULL, 0, true, "204 application/json ", NULL, false},
	    {500, NULL, "{}", 0, true, "500 application/json {}", NULL, false},
	    {200, "text/plain", "log", 0, true, NULL, "200 text/plain", false},
	    {299, "text/plain", "log", 0, true, NULL, "299 text/plain", false},
	    {200, NULL, "log", 0, true, NULL, "200 application/octet-stream", false},
	    {0, NULL, NULL, -ECONNREFUSED, false, "502 unreachable: it broke", NULL, false},
	    {0, NULL, NULL, -EIO, true, "502 no-answer: it broke", NULL, false},
	    {0, NULL, NULL, -ECANCELED, true, "503 stopping: the service is being stopped", NULL, false},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct http_request r = {.method = "GET", .target = "/x"};

		pipe_call(&d, &r, &n2, "/t", NULL);
		fake_client_answer(fake_client_last(), cases[i].status, cases[i].type, cases[i].body,
		                   cases[i].code, cases[i].sent);
		ck_assert_msg(str_eq(r.answer, cases[i].answer), "%zu: %s", i, r.answer);
		ck_assert_msg(str_eq(r.stream.head, cases[i].stream), "%zu: %s", i, r.stream.head);
		if (cases[i].stream) {
			ck_assert_str_eq(r.stream.text.data, cases[i].body);
			ck_assert(r.stream.ended && !r.stream.aborted);
		}
		fake_request_close(&r);
		ck_assert(!fake_client_last()->cancelled);
	}
}
END_TEST

START_TEST(an_answer_that_breaks_off_is_broken_off)
{
	struct http_request r = {.method = "GET", .target = "/x"};
	struct http_answer broken = {.status = 0, .sent = true, .body = ""};

	pipe_call(&d, &r, &n2, "/t", NULL);
	fake_client_last()->call.on_headers(fake_client_last()->call.context, 200, "text/plain");
	fake_client_last()->call.on_data(fake_client_last()->call.context, "abc", 3);
	error_set(&broken.error, -EIO, "it broke");
	fake_client_last()->done = true;
	fake_client_last()->call.on_done(fake_client_last()->call.context, &broken);
	ck_assert(r.stream.aborted && !r.stream.ended);
	ck_assert_ptr_null(r.answer);
	fake_request_close(&r);
}
END_TEST

/* No more than 1 MiB waits for a caller who does not read. */
START_TEST(a_slow_caller_holds_the_other_side_up)
{
	enum { MIB = 1 << 20 };
	struct http_request r = {.method = "GET", .target = "/x"};
	_cleanup_free_ char *data = calloc(1, MIB);
	struct http_transfer *t;

	pipe_call(&d, &r, &n2, "/t", NULL);
	t = fake_client_last();
	t->call.on_headers(t->call.context, 200, "text/plain");
	t->call.on_data(t->call.context, data, MIB);
	ck_assert(!t->paused);
	t->call.on_data(t->call.context, data, 1);
	ck_assert(t->paused);
	fake_stream_drain(&r.stream);
	ck_assert(!t->paused);
	fake_client_answer(t, 0, NULL, NULL, -EIO, true);
	/* What is left is sent when the other side has ended. */
	r.stream.drained(r.stream.drained_context);
	fake_request_close(&r);
}
END_TEST

START_TEST(a_call_that_cannot_be_made_is_answered)
{
	struct http_request r = {.method = "GET", .target = "/x"};

	fake_client.refusal = "no cluster key";
	pipe_call(&d, &r, &n2, "/t", NULL);
	ck_assert_str_eq(r.answer, "502 unreachable: no cluster key");
	ck_assert_ptr_null(r.closed);
	fake_request_close(&r);
}
END_TEST

/* ---- the controller ---- */

START_TEST(the_controller_answers_itself)
{
	struct http_request r = {.method = "GET", .target = "/v1/runs", .caller = {.uid = 5, .gid = 6}};

	d.controller = (struct controller *)&d;
	fake_leader.holds = true;
	ck_assert(!forward_to_controller(&d, &r));
	ck_assert(!r.answer && !r.closed);
	ck_assert_uint_eq(fake_client.count, 0);
}
END_TEST

START_TEST(the_controller_is_told_who_asks)
{
	static const struct {
		struct http_caller caller;
		const char *key, *sent;
	} cases[] = {
	    {{.uid = 5, .gid = 6, .user = "eve"},
	     NULL,
	     "POST n9 at a9:9 /v1/runs?a=b \"x\" | Content-Type: application/json | Dtrain-User: 5:6:eve"},
	    {{.uid = 5, .gid = 6},
	     "k",
	     "POST n9 at a9:9 /v1/runs?a=b \"x\" | Content-Type: application/json | Dtrain-User: 5:6: | "
	     "Dtrain-Key: k"},
	    {{.uid = 5, .gid = 6, .user = "eve", .admin = true},
	     "k",
	     "POST n9 at a9:9 /v1/runs?a=b \"x\" | Content-Type: application/json | Dtrain-User: 5:6:eve | "
	     "Dtrain-Key: k | Dtrain-Admin: yes"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct http_request r = {.method = "POST",
		                         .target = "/v1/runs?a=b",
		                         .key = cases[i].key,
		                         .body = "x",
		                         .caller = cases[i].caller};

		ck_assert(forward_to_controller(&d, &r));
		ck_assert_str_eq(fake_client_last()->text, cases[i].sent);
		fake_client_answer(fake_client_last(), 201, "application/json", "{}", 0, true);
		ck_assert_str_eq(r.answer, "201 application/json {}");
		fake_request_close(&r);
	}
}
END_TEST

/* Without one of its headers it is not sent. */
START_TEST(nothing_is_sent_without_memory)
{
	for (int elected = 0; elected < 2; elected++) {
		const size_t before = fake_client.count;
		bool refused = true;

		d.leader = elected ? (struct leader *)&d : NULL;
		for (long n = 1; refused; n++) {
			struct http_request r = {
			    .method = "POST",
			    .target = "/v1/runs",
			    .key = "k",
			    .body = "x",
			    .caller = {.uid = 5, .gid = 6, .user = "eve", .admin = true}};

			memory_left = n;
			ck_assert(forward_to_controller(&d, &r));
			memory_left = 0;
			refused = fake_client.count == before;
			if (refused)
				ck_assert_msg(str_eq(r.answer, "500 out-of-memory: out of memory") ||
				                  str_eq(r.answer, "502 unreachable: out of memory"),
				              "allocation %ld: %s", n, r.answer);
			else
				ck_assert_int_gt(n, 3);
			fake_request_close(&r);
		}
	}
}
END_TEST

/* A request that another service has sent on is not sent on again. */
START_TEST(a_service_is_told_who_the_controller_is)
{
	static const struct {
		bool elected, controller, holds;
		const char *known, *answer;
	} cases[] = {
	    {false, false, false, NULL,
	     "421 {\"error\":{\"code\":\"not-controller\",\"message\":\"n1 is not the controller, it takes "
	     "n9 "
	     "for it: the hosts files or dtraind.conf differ\"}}"},
	    {true, false, false, "n3",
	     "421 {\"error\":{\"code\":\"not-controller\",\"message\":\"n1 is not the controller; it is n3\","
	     "\"leader\":\"n3\"}}"},
	    {true, false, false, NULL,
	     "421 {\"error\":{\"code\":\"not-controller\",\"message\":\"n1 is not the controller; none is "
	     "known\"}}"},
	    /* It reads the store. Who asks does not turn to the others, of which one may be gone. */
	    {true, false, true, "n3",
	     "421 {\"error\":{\"code\":\"not-controller\",\"message\":\"n1 is becoming the controller\","
	     "\"leader\":\"n1\"}}"},
	    /* It was the controller itself. */
	    {true, true, false, "n1",
	     "421 {\"error\":{\"code\":\"not-controller\",\"message\":\"n1 is not the controller; none is "
	     "known\"}}"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct http_request r = {
		    .method = "GET", .target = "/v1/runs", .caller = {.peer = true, .uid = -1}};

		d.leader = cases[i].elected ? (struct leader *)&d : NULL;
		d.controller = cases[i].controller ? (struct controller *)&d : NULL;
		fake_leader.holds = cases[i].holds;
		fake_leader.known = cases[i].known;
		ck_assert(forward_to_controller(&d, &r));
		ck_assert_str_eq(r.answer, cases[i].answer);
		fake_request_close(&r);
	}
	ck_assert_uint_eq(fake_client.count, 0);
}
END_TEST

/* ---- an elected controller ---- */

#define REFUSAL(code, more) "{\"error\":{\"code\":\"" code "\",\"message\":\"why\"" more "}}"
#define AWAY                REFUSAL("not-controller", "")
#define STOPPING            REFUSAL("stopping", "")

/* Once sent, a request is sent again where it cannot have been done, or may be done twice. */
static const struct {
	const char *method, *target, *key;
	int status;
	const char *body;
	int code;
	bool sent;
	const char *answer; /* that the caller gets; NULL: it is sent again */
	const char *told;
} followed[] = {
    /* It has arrived and was refused by one that is not the controller. */
    {"GET", "/v1/runs", NULL, 421, AWAY, 0, true, NULL, "away n2, "},
    {"POST", "/v1/runs", NULL, 421, AWAY, 0, true, NULL, "away n2, "},
    {"POST", "/v1/runs", NULL, 421, REFUSAL("not-controller", ",\"leader\":\"n3\""), 0, true, NULL,
     "learn n3, "},
    {"GET", "/v1/runs", NULL, 421, REFUSAL("wrong-node", ""), 0, true,
     "421 application/json " REFUSAL("wrong-node", ""), ""},
    {"GET", "/v1/runs", NULL, 409, AWAY, 0, true, "409 application/json " AWAY, ""},
    {"GET", "/v1/runs", NULL, 421, "", 0, true, "421 application/json ", ""},
    /* It may have been done before the service was stopped. */
    {"GET", "/v1/runs", NULL, 503, STOPPING, 0, true, NULL, "away n2, "},
    {"POST", "/v1/runs", NULL, 503, STOPPING, 0, true, "503 application/json " STOPPING, ""},
    {"POST", "/v1/runs", "k", 503, STOPPING, 0, true, NULL, "away n2, "},
    {"GET", "/v1/runs", NULL, 503, REFUSAL("no-store", ""), 0, true,
     "503 application/json " REFUSAL("no-store", ""), ""},
    {"GET", "/v1/runs", NULL, 500, STOPPING, 0, true, "500 application/json " STOPPING, ""},
    /* There is no answer. */
    {"GET", "/v1/runs", NULL, 0, NULL, -EIO, true, NULL, "away n2, "},
    {"DELETE", "/v1/runs/1", NULL, 0, NULL, -EIO, true, NULL, "away n2, "},
    {"POST", "/v1/runs", NULL, 0, NULL, -EIO, true, "502 no-answer: it broke", "away n2, "},
    {"POST", "/v1/runs", "k", 0, NULL, -EIO, true, NULL, "away n2, "},
    {"POST", "/v1/runs/1/events", NULL, 0, NULL, -EIO, true, NULL, "away n2, "},
    {"POST", "/v1/nodes/n2/drain", NULL, 0, NULL, -EIO, true, NULL, "away n2, "},
    {"POST", "/v1/end-runs", NULL, 0, NULL, -EIO, true, "502 no-answer: it broke", "away n2, "},
    {"POST", "/v1/runs", NULL, 0, NULL, -ECONNREFUSED, false, NULL, "away n2, "},
    /* This service itself is being stopped. */
    {"GET", "/v1/runs", NULL, 0, NULL, -ECANCELED, false, "503 stopping: the service is being stopped", ""},
    /* The controller has answered. */
    {"POST", "/v1/runs", NULL, 201, "{}", 0, true, "201 application/json {}", ""},
};

START_TEST(a_request_follows_the_controller)
{
	struct http_request r = {.method = followed[_i].method,
	                         .target = followed[_i].target,
	                         .key = followed[_i].key,
	                         .caller = {.uid = 5, .gid = 6}};
	bool once = str_eq(r.method, "POST") && !r.key && !str_starts(r.target, "/v1/runs/") &&
	            !str_starts(r.target, "/v1/nodes/");

	ck_assert(forward_to_controller(&d, &r));
	ck_assert_uint_eq(fake_client.count, 1);
	ck_assert_int_eq(fake_client_last()->call.once, once);
	fake_client_answer(fake_client_last(), followed[_i].status, "application/json", followed[_i].body,
	                   followed[_i].code, followed[_i].sent);
	ck_assert_msg(str_eq(r.answer, followed[_i].answer), "%d: %s", _i, r.answer);
	ck_assert_str_eq(fake_leader.told.data ? fake_leader.told.data : "", followed[_i].told);
	fake_leader.asked = (struct peer){"n3", "a3", 3};
	if (!followed[_i].answer) {
		_cleanup_free_ char *again = str_printf("%s n3 at a3:3 %s", r.method, r.target);

		/* Before its first turn the loop has no time of its own: microseconds pass. */
		ck_assert(waited > 100000 && waited <= 200000);
		ck_assert(turn());
		ck_assert_uint_eq(fake_client.count, 2);
		ck_assert_msg(str_starts(fake_client_last()->text, again), "%s", fake_client_last()->text);
		/* What it got from the first one is no part of the answer. */
		fake_client_answer(fake_client_last(), 200, "application/json", "{}", 0, true);
		ck_assert_str_eq(r.answer, "200 application/json {}");
	}
	ck_assert(!turn());
	fake_request_close(&r);
}
END_TEST

/* A stream has begun: another service cannot go on with it. */
START_TEST(a_stream_is_not_asked_for_again)
{
	struct http_request r = {.method = "GET", .target = "/v1/events", .caller = {.uid = 5, .gid = 6}};

	ck_assert(forward_to_controller(&d, &r));
	fake_client_last()->call.on_headers(fake_client_last()->call.context, 200, "text/plain");
	fake_client_answer(fake_client_last(), 0, NULL, "x", -EIO, true);
	ck_assert(r.stream.aborted);
	ck_assert(!turn());
	fake_request_close(&r);
}
END_TEST

/* For 30 s without a controller; the last reason is in the answer. */
START_TEST(a_request_waits_for_so_long_for_a_controller)
{
	struct http_request r = {.method = "GET", .target = "/v1/runs", .caller = {.uid = 5, .gid = 6}};

	ck_assert(forward_to_controller(&d, &r));
	now += 29.9;
	fake_client_answer(fake_client_last(), 421, "application/json", AWAY, 0, true);
	ck_assert_ptr_null(r.answer);
	ck_assert(turn());
	now += 0.2;
	fake_client_answer(fake_client_last(), 0, NULL, NULL, -ECONNREFUSED, false);
	ck_assert_str_eq(r.answer,
	                 "503 no-controller: there is no controller, and was none for 30 s: it broke; runs "
	                 "go on, and \"dtrain runs --local\" shows those of this node");
	ck_assert(!turn());
	fake_request_close(&r);
}
END_TEST

/* One that held a request for some time was the controller until then: the wait for the next one begins. */
START_TEST(the_wait_begins_when_a_controller_is_lost)
{
	static const struct {
		double held;
		bool sent, answered;
	} cases[] = {{9, true, true}, {11, true, false}, {11, false, true}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct http_request r = {
		    .method = "GET", .target = "/v1/runs/1?wait=1", .caller = {.uid = 5, .gid = 6}};

		ck_assert(forward_to_controller(&d, &r));
		now += 25;
		fake_client_answer(fake_client_last(), 421, "application/json", AWAY, 0, true);
		ck_assert(turn());
		now += cases[i].held;
		fake_client_answer(fake_client_last(), 0, NULL, NULL, -EIO, cases[i].sent);
		ck_assert_msg(!r.answer == !cases[i].answered, "%zu: %s", i, r.answer);
		fake_request_close(&r);
		ck_assert(!turn());
	}
}
END_TEST

START_TEST(a_call_to_the_controller_that_cannot_be_made_is_answered)
{
	struct http_request r = {.method = "GET", .target = "/v1/runs", .caller = {.uid = 5, .gid = 6}};

	fake_client.refusal = "no cluster key";
	ck_assert(forward_to_controller(&d, &r));
	ck_assert_str_eq(r.answer, "502 unreachable: no cluster key");
	fake_request_close(&r);
}
END_TEST

/* Another controller is elected. Of the requests that wait for the one before, each that may is sent to the
 * new one; those that come first, last and between others go and stay alike. */
START_TEST(what_waits_follows_an_election)
{
	struct http_request get = {.method = "GET", .target = "/v1/runs/1?wait=1", .caller = {.uid = 5}},
	                    post = {.method = "POST", .target = "/v1/runs", .caller = {.uid = 5}},
	                    stream = {.method = "GET", .target = "/v1/events", .caller = {.uid = 5}},
	                    waiting = {.method = "GET", .target = "/v1/nodes", .caller = {.uid = 5}},
	                    gone = {.method = "GET", .target = "/v1/devices", .caller = {.uid = 5}};

	ck_assert(forward_to_controller(&d, &get));
	ck_assert(forward_to_controller(&d, &gone));
	ck_assert(forward_to_controller(&d, &post));
	ck_assert(forward_to_controller(&d, &stream));
	fake_client.transfers[3].call.on_headers(fake_client.transfers[3].call.context, 200, "text/plain");
	ck_assert(forward_to_controller(&d, &waiting));
	fake_client.transfers[0].call.on_data(fake_client.transfers[0].call.context, "{", 1);
	fake_client_answer(&fake_client.transfers[4], 421, "application/json", AWAY, 0, true);
	fake_request_close(&gone); /* between others */
	ck_assert(fake_client.transfers[1].cancelled);
	/* None is known, or it is the one that has them. */
	proxy_follow(&d);
	fake_leader.known = "n2";
	proxy_follow(&d);
	ck_assert(!fake_client.transfers[0].cancelled && !fake_client.transfers[2].cancelled &&
	          !fake_client.transfers[3].cancelled);
	fake_leader.known = "n3";
	fake_leader.asked = (struct peer){"n3", "a3", 3};
	now += 29;
	proxy_follow(&d);
	ck_assert(fake_client.transfers[0].cancelled && !fake_client.transfers[2].cancelled &&
	          fake_client.transfers[3].cancelled);
	ck_assert(stream.stream.aborted && !stream.stream.ended);
	fake_request_close(&stream);
	/* Both that wait are sent, and no other. */
	while (turn())
		;
	ck_assert_uint_eq(fake_client.count, 7);
	for (size_t i = 5; i < 7; i++)
		ck_assert_msg(strstr(fake_client.transfers[i].text, "n3 at a3:3"), "%s",
		              fake_client.transfers[i].text);
	/* The wait has begun anew with the election, but not of one that was without a controller already. */
	now += 29;
	for (size_t i = 5; i < 7; i++)
		fake_client_answer(&fake_client.transfers[i], 421, "application/json", AWAY, 0, true);
	ck_assert_ptr_null(get.answer);
	ck_assert_msg(str_starts(waiting.answer, "503 no-controller: "), "%s", waiting.answer);
	fake_request_close(&waiting); /* the newest, while others are there */
	ck_assert(turn());
	fake_client_answer(fake_client_last(), 200, "application/json", "[]", 0, true);
	ck_assert_str_eq(get.answer, "200 application/json []"); /* without the first one's answer */
	fake_request_close(&get);                                /* the oldest */
	fake_client_answer(&fake_client.transfers[2], 201, "application/json", "{}", 0, true);
	ck_assert_str_eq(post.answer, "201 application/json {}");
	fake_request_close(&post);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("proxy");
	TCase *one = tcase_create("one service"), *elected = tcase_create("elected");

	tcase_add_checked_fixture(one, setup, teardown);
	tcase_add_test(one, a_request_is_sent_on_as_it_is);
	tcase_add_test(one, an_answer_is_passed_on);
	tcase_add_test(one, an_answer_that_breaks_off_is_broken_off);
	tcase_add_test(one, a_slow_caller_holds_the_other_side_up);
	tcase_add_test(one, a_call_that_cannot_be_made_is_answered);
	tcase_add_test(one, the_controller_answers_itself);
	tcase_add_test(one, the_controller_is_told_who_asks);
	tcase_add_test(one, nothing_is_sent_without_memory);
	tcase_add_test(one, a_service_is_told_who_the_controller_is);
	suite_add_tcase(s, one);
	tcase_add_checked_fixture(elected, setup_elected, teardown);
	tcase_add_loop_test(elected, a_request_follows_the_controller, 0, ARRAY_SIZE(followed));
	tcase_add_test(elected, a_stream_is_not_asked_for_again);
	tcase_add_test(elected, a_request_waits_for_so_long_for_a_controller);
	tcase_add_test(elected, the_wait_begins_when_a_controller_is_lost);
	tcase_add_test(elected, a_call_to_the_controller_that_cannot_be_made_is_answered);
	tcase_add_test(elected, what_waits_follows_an_election);
	suite_add_tcase(s, elected);
	return unit_run(s);
}
