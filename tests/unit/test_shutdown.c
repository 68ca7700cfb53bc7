/* SPDX-License-Identifier: Apache-2.0 */
/* The end of all attempts of a node: for whom and for how long it waits. Node, controller, heartbeats and the
 * clock are stand-ins. */
#include <errno.h>
#include <string.h>
#include <systemd/sd-event.h>
#include <time.h>

#include "controller/runs.h"
#include "dtraind/heartbeat.h"
#include "dtraind/lock.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "dtraind/shutdown.h"
#include "fake_request.h"
#include "http/local.h"

/* ---- what shutdown.c calls ---- */

static int running, shut_downs, heartbeats;
static bool stopping, idle;
static double now;

int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	*ts = (struct timespec){(time_t)now, (long)((now - (double)(time_t)now) * 1e9)};
	return 0;
}

int node_running(const struct node *n)
{
	return running;
}

double node_shut_down(struct node *n)
{
	shut_downs++;
	return 30;
}

bool controller_is_stopping(const struct controller *c)
{
	return stopping;
}

void heartbeats_send(struct heartbeats *l)
{
	heartbeats++;
}

bool heartbeats_are_idle(const struct heartbeats *l)
{
	return idle;
}

bool caller_may(const struct http_caller *caller, int64_t uid)
{
	return caller->admin && uid == 0;
}

/* Only shutdown_end_runs() calls these: its test has a whole service. */
int settings_read(const char *path, struct settings **out, struct error *err)
{
	abort();
}

void settings_free(struct settings *s)
{
	abort();
}

int lock_take(const char *key, const char *directory, int *fd, struct error *err)
{
	abort();
}

int node_create(sd_event *event, const struct daemon_config *config, const char *name, int hosts_slots,
                const struct node_callbacks *callbacks, struct node **out, struct error *err)
{
	abort();
}

void node_destroy(struct node *n)
{
	abort();
}

int http_local_open(const char *path, struct http_local **out, struct error *err)
{
	abort();
}

void http_local_close(struct http_local *l)
{
	abort();
}

int http_local_json(struct http_local *l, const char *method, const char *target, const char *header,
                    const json_t *body, int *status, json_t **answer, struct error *err)
{
	abort();
}

/* ---- the service ---- */

static struct daemon d;
static struct http_request request;

static void setup(void)
{
	now = 1000;
	running = 2;
	d.controller = (struct controller *)&d; /* never looked into */
	request = (struct http_request){.caller = {.admin = true}};
	ck_assert_int_ge(sd_event_new(&d.event), 0);
}

static void teardown(void)
{
	fake_request_close(&request);
	shutdown_free(d.shutdown);
	sd_event_unref(d.event);
}

/* A few looks. The event loop has the clock of the machine. */
static void look(void)
{
	for (int i = 0; i < 3 && !request.answer && sd_event_get_state(d.event) != SD_EVENT_FINISHED; i++)
		ck_assert_int_ge(sd_event_run(d.event, UINT64_MAX), 0);
}

static bool has_ended(void)
{
	return sd_event_get_state(d.event) == SD_EVENT_FINISHED;
}

static void begin(bool exit)
{
	struct error err = ERROR_INIT;

	ck_ok(shutdown_begin(&d, exit, &err), &err);
}

START_TEST(the_last_end_and_its_report_are_waited_for)
{
	begin(true);
	ck_assert_int_eq(shut_downs, 1);
	ck_assert_int_eq(heartbeats, 1); /* no new runs for this node */
	idle = true;
	now += 44;
	look();
	ck_assert(!has_ended());
	ck_assert_int_eq(heartbeats, 1);
	running = 0;
	idle = false;
	look();
	ck_assert(!has_ended());
	ck_assert_int_eq(heartbeats, 2); /* the reports of the ends: once */
	idle = true;
	stopping = true;
	look();
	ck_assert(!has_ended());
	stopping = false;
	look();
	ck_assert(has_ended());
	ck_assert_int_eq(heartbeats, 2);
}
END_TEST

START_TEST(a_node_without_the_controller_waits_for_no_report)
{
	d.controller = NULL;
	stopping = idle = true;
	running = 0;
	begin(true);
	look();
	ck_assert(has_ended());
}
END_TEST

/* Three seconds after the last end. */
START_TEST(reports_are_not_waited_for_longer)
{
	running = 0;
	begin(true);
	look();
	now += 2.9;
	look();
	ck_assert(!has_ended());
	now += 0.2;
	look();
	ck_assert(has_ended());
}
END_TEST

/* Fifteen seconds beyond the longest grace. */
START_TEST(what_does_not_end_is_given_up)
{
	route_end_runs(&d, &request);
	now += 44.9;
	look();
	ck_assert_ptr_null(request.answer);
	running = 1;
	now += 0.2;
	look();
	ck_assert_str_eq(request.answer, "500 still-running: 1 of 2 attempts still run here");
	ck_assert_ptr_null(request.closed);
}
END_TEST

/* What asks for it gets the number, and the service goes on. */
START_TEST(a_request_has_its_answer)
{
	route_end_runs(&d, &request);
	ck_assert_ptr_null(request.answer);
	running = 0;
	idle = true;
	look();
	ck_assert_str_eq(request.answer, "200 {\"ended\":2}");
	ck_assert_ptr_null(request.closed);
	ck_assert(!has_ended());
	/* Another one begins anew. */
	fake_request_close(&request);
	running = 3;
	route_end_runs(&d, &request);
	ck_assert_int_eq(shut_downs, 2);
	look();
	ck_assert_ptr_null(request.answer);
	running = 0;
	look();
	ck_assert_str_eq(request.answer, "200 {\"ended\":3}");
}
END_TEST

START_TEST(who_may_not_and_who_is_late_is_refused)
{
	struct http_request other = {.caller = {.admin = true}};

	request.caller.admin = false;
	route_end_runs(&d, &request);
	ck_assert_str_eq(request.answer, "403 not-allowed: only administrators may end all runs of a node");
	ck_assert_int_eq(shut_downs, 0);
	fake_request_close(&request);
	request.caller.admin = true;
	route_end_runs(&d, &request);
	route_end_runs(&d, &other);
	ck_assert_str_eq(other.answer, "409 under-way: the runs of this node are being ended already");
	fake_request_close(&other);
	/* Who waited has gone: another one may wait. */
	fake_request_close(&request);
	route_end_runs(&d, &other);
	ck_assert_ptr_null(other.answer);
	shutdown_free(d.shutdown);
	d.shutdown = NULL;
	ck_assert_ptr_null(other.closed);
	shutdown_free(NULL);
}
END_TEST

/* The end of the machine may come while a caller waits for the end of the runs. */
START_TEST(the_service_ends_where_one_of_both_asks_for_it)
{
	route_end_runs(&d, &request);
	begin(true);
	running = 0;
	idle = true;
	look();
	ck_assert_ptr_nonnull(request.answer);
	fake_request_close(&request);
	look();
	ck_assert(has_ended());
}
END_TEST

START_TEST(a_second_signal_ends_at_once)
{
	begin(true);
	begin(true);
	ck_assert_int_eq(shut_downs, 1);
	look();
	ck_assert(has_ended());
}
END_TEST

int main(void)
{
	Suite *s = suite_create("shutdown");
	TCase *c = tcase_create("shutdown");

	tcase_set_timeout(c, 30);
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, the_last_end_and_its_report_are_waited_for);
	tcase_add_test(c, a_node_without_the_controller_waits_for_no_report);
	tcase_add_test(c, reports_are_not_waited_for_longer);
	tcase_add_test(c, what_does_not_end_is_given_up);
	tcase_add_test(c, a_request_has_its_answer);
	tcase_add_test(c, who_may_not_and_who_is_late_is_refused);
	tcase_add_test(c, the_service_ends_where_one_of_both_asks_for_it);
	tcase_add_test(c, a_second_signal_ends_at_once);
	return unit_run(s);
}
