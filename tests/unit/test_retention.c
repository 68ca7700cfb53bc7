/* SPDX-License-Identifier: Apache-2.0 */
/* When the files of old runs are removed, which runs stay, and what is answered to who asks for it. Server,
 * client, node, controller and the removal itself are stand-ins. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <systemd/sd-event.h>

#include "base/clock.h"
#include "controller/runs.h"
#include "dtraind/retention.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "fake_client.h"
#include "fake_request.h"
#include "node/run_files.h"
#include "quick_timer.h"

/* ---- what retention.c calls ---- */

static struct report reports[2] = {{.run = 7, .state = ATTEMPT_ENDED}, {.run = 8, .state = ATTEMPT_RUNNING}};
static struct run active[2] = {{.id = 3}, {.id = 4}};

const struct report *node_attempt(const struct node *n, size_t i)
{
	return i < 2 ? &reports[i] : NULL;
}

size_t controller_active_count(const struct controller *c)
{
	return 2;
}

const struct run *controller_active_run(const struct controller *c, size_t i)
{
	return &active[i];
}

bool caller_may(const struct http_caller *caller, int64_t uid)
{
	ck_assert_int_eq(uid, 0);
	return caller->admin;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for what the thread writes */
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static bool held; /* the thread stays in run_files_prune() */
static int removals, code;
static struct strbuf plan; /* of the last removal */
static double plan_time;
static bool hurry; /* the deadline of a removal comes at once */

int run_files_prune(const struct run_files_plan *p, struct prune_answer *answer, struct error *err)
{
	pthread_mutex_lock(&lock);
	removals++;
	strbuf_reset(&plan);
	strbuf_addf(&plan, "%s %s days %g runs %d%s, in use", p->directories[0], p->directories[1], p->days,
	            (int)p->runs, p->dry_run ? " dry" : "");
	for (size_t i = 0; i < p->in_use_count; i++)
		strbuf_addf(&plan, " %d", (int)p->in_use[i]);
	plan_time = p->now;
	while (held)
		pthread_cond_wait(&let_go, &lock);
	pthread_mutex_unlock(&lock);
	if (code < 0)
		return error_set(err, code, "the directory is gone");
	answer->runs = calloc(1, sizeof(*answer->runs));
	answer->runs[0] = (struct pruned_run){.run = 5, .bytes = 1000, .changed = 1};
	answer->run_count = 1;
	answer->kept = 17;
	return 0;
}

static void hold(bool on)
{
	pthread_mutex_lock(&lock);
	held = on;
	pthread_cond_broadcast(&let_go);
	pthread_mutex_unlock(&lock);
}

static int count(void)
{
	int n;

	pthread_mutex_lock(&lock);
	n = removals;
	pthread_mutex_unlock(&lock);
	return n;
}

/* An hour takes 4 ms. */
static uint64_t scale(uint64_t usec)
{
	return usec != 600000000 || hurry ? usec / 1000000 : usec;
}

/* ---- the service ---- */

static struct daemon_config config;
static struct settings settings = {.config = &config};
static struct daemon d = {.settings = &settings};
static struct http_request request;

static void setup(void)
{
	struct error err = ERROR_INIT;

	config = (struct daemon_config){.log_dir = "logs", .state_dir = "state"};
	quick_timer.scale = scale;
	d.controller = (struct controller *)&d; /* never looked into */
	request = (struct http_request){.body = "{}", .caller = {.admin = true}};
	fake_leader.asked = (struct peer){"n1", "a1", 1};
	ck_assert_int_ge(sd_event_new(&d.event), 0);
	ck_ok(retention_create(&d, &d.retention, &err), &err);
}

static void teardown(void)
{
	fake_request_close(&request);
	retention_destroy(d.retention);
	sd_event_unref(d.event);
	fake_client_release();
}

static void turn(void)
{
	ck_assert_int_ge(sd_event_run(d.event, UINT64_MAX), 0);
}

static void await_ticks(int n)
{
	for (int end = quick_timer.again + n; quick_timer.again < end;)
		turn();
}

static void await_count(int n)
{
	while (count() < n)
		turn();
}

static void await_calls(size_t n)
{
	while (fake_client.count < n)
		turn();
}

/* Owned by the test, until the next request. */
static const char *await_answer(void)
{
	while (!request.answer)
		turn();
	return request.answer;
}

START_TEST(without_a_limit_nothing_is_removed)
{
	await_ticks(5);
	ck_assert_int_eq(count(), 0);
	ck_assert_uint_eq(quick_timer.first, 60000000);
	ck_assert_uint_eq(quick_timer.last, 3600000000);
}
END_TEST

START_TEST(each_limit_removes_by_itself)
{
	double before = clock_realtime();

	if (_i)
		config.keep_runs = 5;
	else
		config.keep_days = 2.5;
	await_count(2);
	pthread_mutex_lock(&lock);
	ck_assert_str_eq(plan.data, _i ? "logs state/runs days 0 runs 5, in use 3 4 8"
	                               : "logs state/runs days 2.5 runs 0, in use 3 4 8");
	ck_assert(plan_time >= before && plan_time <= clock_realtime());
	pthread_mutex_unlock(&lock);
}
END_TEST

/* Without the controller's word, the node would take runs for ended that wait in the queue, or go on on other
 * nodes. */
START_TEST(a_node_asks_the_controller_which_runs_have_not_ended)
{
	d.controller = NULL;
	config.keep_runs = 5;
	await_calls(1);
	ck_assert_str_eq(fake_client_last()->text, "GET n1 at a1:1 /v1/peer/active-runs");
	await_ticks(5);
	ck_assert_uint_eq(fake_client.count, 1);
	ck_assert_int_eq(count(), 0);
	fake_client_answer(fake_client_last(), 200, NULL, "{\"runs\":[5,6],\"version\":\"9\"}", 0, true);
	await_count(1);
	pthread_mutex_lock(&lock);
	ck_assert_str_eq(plan.data, "logs state/runs days 0 runs 5, in use 5 6 8");
	pthread_mutex_unlock(&lock);
	await_calls(2);
}
END_TEST

static const struct silence {
	int status;
	const char *body;
	int code;
	const char *why;
} silences[] = {
    {0, NULL, -ETIMEDOUT, "it broke"},
    {404, "{\"error\":{\"code\":\"no-such-route\",\"message\":\"there is no such route\"}}", 0,
     "there is no such route"},
    {503, "", 0, "it answers with an error"},
    {200, "{\"runs\":[0]}", 0, "active runs: runs: 0 is out of range"},
    {200, "{}", 0, "active runs: "},
};

START_TEST(without_its_answer_nothing_is_removed)
{
	const struct silence *s = &silences[_i];

	d.controller = NULL;
	config.keep_runs = 5;
	for (size_t asked = 1; asked <= 2; asked++) {
		await_calls(asked);
		fake_client_answer(fake_client_last(), s->status, NULL, s->body, s->code, true);
		ck_assert_uint_eq(quick_timer.last, 60000000); /* it is asked again soon */
	}
	ck_assert_int_eq(count(), 0);
}
END_TEST

START_TEST(who_asks_for_a_removal_reads_that_there_was_no_answer)
{
	const struct silence *s = &silences[_i];
	_cleanup_free_ char *want = str_printf(
	    "502 unreachable: the controller n1 does not say which runs have not ended: %s", s->why);

	d.controller = NULL;
	route_prune(&d, &request);
	fake_client_answer(fake_client_last(), s->status, NULL, s->body, s->code, true);
	ck_assert_ptr_nonnull(request.answer);
	ck_assert_msg(str_starts(request.answer, want), "%s", request.answer);
	ck_assert_ptr_null(request.closed);
	ck_assert_int_eq(count(), 0);
	/* The next one may come, and has its own limits. */
	fake_request_close(&request);
	request.body = "{\"runs\": 2, \"dry_run\": true}";
	route_prune(&d, &request);
	ck_assert_ptr_null(request.answer);
	fake_client_answer(fake_client_last(), 200, NULL, "{\"runs\":[]}", 0, true);
	ck_assert(str_starts(await_answer(), "200 "));
	pthread_mutex_lock(&lock);
	ck_assert_str_eq(plan.data, "logs state/runs days 0 runs 2 dry, in use 8");
	pthread_mutex_unlock(&lock);
}
END_TEST

START_TEST(a_question_that_cannot_be_asked_is_an_error)
{
	d.controller = NULL;
	fake_client.refusal = "no key";
	route_prune(&d, &request);
	ck_assert_str_eq(request.answer, "500 prune: no key");
}
END_TEST

START_TEST(one_question_is_under_way_at_a_time)
{
	d.controller = NULL;
	route_prune(&d, &request);
	fake_request_close(&request);
	route_prune(&d, &request);
	ck_assert_str_eq(request.answer, "409 under-way: files of old runs are being removed already");
	/* Its caller has gone. */
	fake_request_close(&request);
	fake_client_answer(fake_client_last(), 0, NULL, NULL, -ECONNREFUSED, false);
	ck_assert_ptr_null(request.answer);
	/* The end of the service does not wait. */
	route_prune(&d, &request);
	retention_destroy(d.retention);
	d.retention = NULL;
	ck_assert(fake_client_last()->cancelled);
	ck_assert_ptr_null(request.closed);
}
END_TEST

START_TEST(the_controller_says_which_runs_have_not_ended)
{
	route_peer_active_runs(&d, &request);
	ck_assert_str_eq(request.answer, "200 {\"runs\":[3,4],\"version\":\"" DTRAIN_VERSION "\"}");
}
END_TEST

START_TEST(one_removal_is_under_way_at_a_time)
{
	config.keep_runs = 5;
	hold(true);
	await_count(1);
	await_ticks(5);
	ck_assert_int_eq(count(), 1);
	route_prune(&d, &request);
	ck_assert_str_eq(request.answer, "409 under-way: files of old runs are being removed already");
	hold(false);
	await_count(2);
}
END_TEST

START_TEST(a_request_has_its_answer)
{
	config.keep_days = 30;
	config.keep_runs = 100;
	hold(true);
	request.body = "{\"runs\": 2, \"dry_run\": true}";
	route_prune(&d, &request);
	ck_assert_ptr_null(request.answer);
	hold(false);
	ck_assert_str_eq(await_answer(),
	                 "200 {\"runs\":[{\"run\":5,\"bytes\":1000,\"changed\":1.0}],\"kept\":17}");
	ck_assert_ptr_null(request.closed);
	pthread_mutex_lock(&lock);
	ck_assert_ptr_nonnull(strstr(plan.data, "days 30 runs 2 dry,"));
	pthread_mutex_unlock(&lock);
	/* The next one may come. */
	fake_request_close(&request);
	request.body = "{\"days\": 0}";
	route_prune(&d, &request);
	await_answer();
	pthread_mutex_lock(&lock);
	ck_assert_ptr_nonnull(strstr(plan.data, "days 0 runs 100,"));
	pthread_mutex_unlock(&lock);
}
END_TEST

START_TEST(who_may_not_and_what_is_wrong_is_refused)
{
	request.caller.admin = false;
	route_prune(&d, &request);
	ck_assert_str_eq(request.answer, "403 not-allowed: only administrators may remove the files of runs");
	fake_request_close(&request);
	request.caller.admin = true;
	request.body = "[";
	route_prune(&d, &request);
	ck_assert_str_eq(request.answer, "400 bad-json: no JSON");
	fake_request_close(&request);
	request.body = "{\"runs\": \"many\"}";
	route_prune(&d, &request);
	ck_assert(str_starts(request.answer, "400 bad-json: "));
	ck_assert_int_eq(count(), 0);
}
END_TEST

START_TEST(a_removal_that_fails_says_why)
{
	code = -EIO;
	route_prune(&d, &request);
	ck_assert_str_eq(await_answer(), "500 prune: the directory is gone");
	ck_assert_ptr_null(request.closed);
}
END_TEST

/* The caller is not kept waiting for a file system that hangs; the removal goes on, and is the only one. */
START_TEST(a_removal_that_takes_too_long_is_not_waited_for)
{
	hurry = true;
	hold(true);
	route_prune(&d, &request);
	ck_assert_str_eq(await_answer(), "504 timeout: the removal takes more than 600 s; it goes on");
	ck_assert_ptr_null(request.closed);
	fake_request_close(&request);
	route_prune(&d, &request);
	ck_assert(str_starts(request.answer, "409 "));
	fake_request_close(&request);
	hurry = false;
	hold(false);
	do {
		turn();
		fake_request_close(&request);
		route_prune(&d, &request);
	} while (request.answer);
	ck_assert(str_starts(await_answer(), "200 "));
}
END_TEST

START_TEST(a_caller_may_go)
{
	config.keep_runs = 5;
	hold(true);
	route_prune(&d, &request);
	fake_request_close(&request);
	hold(false);
	await_count(2);
	ck_assert_ptr_null(request.answer);
}
END_TEST

/* The end of the service does not wait. */
START_TEST(the_end_leaves_a_removal_behind)
{
	hold(true);
	route_prune(&d, &request);
	while (count() < 1)
		;
	retention_destroy(d.retention);
	d.retention = NULL;
	ck_assert_ptr_null(request.closed);
	hold(false);
	ck_assert_int_eq(sd_event_run(d.event, 0), 0);
	retention_destroy(NULL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("retention");
	TCase *c = tcase_create("retention");

	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, without_a_limit_nothing_is_removed);
	tcase_add_loop_test(c, each_limit_removes_by_itself, 0, 2);
	tcase_add_test(c, a_node_asks_the_controller_which_runs_have_not_ended);
	tcase_add_loop_test(c, without_its_answer_nothing_is_removed, 0, ARRAY_SIZE(silences));
	tcase_add_loop_test(c, who_asks_for_a_removal_reads_that_there_was_no_answer, 0,
	                    ARRAY_SIZE(silences));
	tcase_add_test(c, a_question_that_cannot_be_asked_is_an_error);
	tcase_add_test(c, one_question_is_under_way_at_a_time);
	tcase_add_test(c, the_controller_says_which_runs_have_not_ended);
	tcase_add_test(c, one_removal_is_under_way_at_a_time);
	tcase_add_test(c, a_request_has_its_answer);
	tcase_add_test(c, who_may_not_and_what_is_wrong_is_refused);
	tcase_add_test(c, a_removal_that_fails_says_why);
	tcase_add_test(c, a_removal_that_takes_too_long_is_not_waited_for);
	tcase_add_test(c, a_caller_may_go);
	tcase_add_test(c, the_end_leaves_a_removal_behind);
	return unit_run(s);
}
