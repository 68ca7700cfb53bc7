/* SPDX-License-Identifier: Apache-2.0 */
/* An attempt that has lost the connection to its launcher or the launcher itself, and one that a later
 * service finds. */
#include "attempt_fixture.h"

#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/json.h"
#include "node/launch/launch.h"

START_TEST(a_closed_connection_is_taken_up_again)
{
	fixture_start();
	/* A unit that is watched notices the end by itself. */
	fixture_close_connection();
	fixture_check_trace("disconnected ");
	fake_unit.watched = false;
	fixture_close_connection();
	fixture_check_trace("reconnect disconnected(again) ");
	fake_codes.connect = -ECONNREFUSED;
	fixture_close_connection();
	fixture_check_trace("reconnect disconnected ");
	fake_codes.connect = 0;
	fake_launcher.connected = true;
	fixture_say_state(ATTEMPT_ENDED);
	fixture_check_trace("acknowledge changed(ended) ");
	fixture_close_connection();
	fixture_check_trace("disconnected ");
}
END_TEST

static void check_lost(const char *why, int status, const char *signal)
{
	struct report end = fixture_recorded();
	double now = clock_realtime();

	ck_assert_int_eq(end.state, ATTEMPT_ENDED);
	ck_assert(end.launcher_lost);
	ck_assert(!end.lost);
	ck_assert_str_eq(end.reason, why);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(end.ranks[i].state, RANK_EXITED);
		ck_assert_int_eq(end.ranks[i].exit_status, status);
		ck_assert(end.ranks[i].stopped);
		ck_assert_double_ge(end.ranks[i].ended, now - 100);
		if (signal)
			ck_assert_str_eq(end.ranks[i].signal, signal);
		else
			ck_assert_ptr_null(end.ranks[i].signal);
	}
	report_release(&end);
}

/* Its processes are killed, and only when none is left has the attempt ended. */
START_TEST(an_attempt_without_its_launcher_is_killed)
{
	bool started = _i == 0;

	fixture_start();
	if (started) {
		fixture_say_state(ATTEMPT_RUNNING);
		fixture_check_trace("changed(running) ");
	}
	fake_unit.owner.exited(fake_unit.owner.context, "dtrain-launch was killed", started);
	fixture_check_trace("receive disconnect kill changed(stopping) ");
	ck_assert(fixture_report()->launcher_lost);
	ck_assert_str_eq(fixture_report()->reason, "dtrain-launch was killed");
	ck_assert(!attempt_has_ended(fixture.attempt));
	attempt_stop(fixture.attempt, (struct stop_times){1, 2});
	attempt_confirm(fixture.attempt);
	fake_unit.owner.remaining(fake_unit.owner.context);
	fixture_say_state(ATTEMPT_ENDED); /* too late */
	fixture_check_trace("");
	fake_unit.owner.exited(fake_unit.owner.context, "again", true);
	fixture_check_trace("receive ");
	fixture_empty_unit();
	fixture_check_trace("changed(ended) settled ");
	check_lost("dtrain-launch was killed", started ? 137 : 126, started ? "SIGKILL" : NULL);
	ck_assert(attempt_is_settled(fixture.attempt));
	fixture_empty_unit();
	fixture_check_trace("settled ");
}
END_TEST

/* The rank that had ended before has its own status. */
START_TEST(what_was_reported_before_stays)
{
	struct launch_report *said = fixture_make_report(ATTEMPT_RUNNING, RANK_RUNNING);

	said->ranks[0].state = RANK_EXITED;
	said->ranks[0].exit_status = 9;
	fixture_start();
	fixture_say(said);
	fake_unit.owner.exited(fake_unit.owner.context, "dtrain-launch was killed", true);
	fixture_empty_unit();
	ck_assert_int_eq(fixture_report()->ranks[0].exit_status, 9);
	ck_assert(!fixture_report()->ranks[0].stopped);
	ck_assert_int_eq(fixture_report()->ranks[1].exit_status, 137);
}
END_TEST

/* The last report may come after the end of the process. */
START_TEST(the_last_report_may_be_on_the_way)
{
	fixture_start();
	fake_launcher.waiting = fixture_make_report(ATTEMPT_ENDED, RANK_EXITED);
	{
		struct launch_report *said = fake_launcher.waiting;

		fake_unit.owner.exited(fake_unit.owner.context, "dtrain-launch ended", true);
		launch_report_release(said);
		free(said);
	}
	fixture_check_trace("receive acknowledge changed(ended) ");
	ck_assert(!fixture_report()->launcher_lost);
	ck_assert_ptr_null(fixture_report()->reason);
	/* It has ended: its connection is no reason for more. */
	fixture_close_connection();
	fixture_check_trace("");
}
END_TEST

/* ---- a later service ---- */

static int adopt(struct error *err)
{
	attempt_free(fixture.attempt);
	fixture.attempt = NULL;
	fixture_clear_trace();
	fake_launcher = (struct launcher){0};
	return attempt_adopt(&fixture.owner, fixture.path, &fixture.attempt, err);
}

START_TEST(a_running_attempt_is_found_again)
{
	struct error err = ERROR_INIT;

	fixture_start();
	ck_ok(adopt(&err), &err);
	fixture_check_trace("find connect ");
	ck_assert_str_eq(fake_unit.found_cgroup, "/group/7.2");
	ck_assert_str_eq(fake_unit.found_service, "");
	ck_assert_int_eq(fixture_report()->state, ATTEMPT_RUNNING);
	ck_assert_int_eq(fixture_report()->ranks[1].state, RANK_RUNNING);
	ck_assert_str_eq(fixture_report()->cluster, "c1");
	fixture_say_state(ATTEMPT_STOPPING);
	fixture_check_trace("changed(stopping) ");
}
END_TEST

static void make_begun(void)
{
	_cleanup_free_ char *begun = str_path_join(fixture.path, LAUNCH_BEGUN);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(begun, "", 0, 0600, &err), &err);
}

/* The service was killed before it had executed dtrain-launch: the start may be sent again. */
START_TEST(an_attempt_that_never_began_is_left_out)
{
	static const int codes[] = {-ECONNREFUSED, -ENOENT};
	struct error err = ERROR_INIT;

	fixture_start();
	fake_codes.connect = codes[_i];
	ck_assert_int_eq(adopt(&err), -ECANCELED);
	ck_assert_str_eq(err.message, "dtraind was killed before it had started dtrain-launch");
	fixture_check_trace("find connect cancel ");
	ck_assert_ptr_null(fixture.attempt);
}
END_TEST

/* A connection that fails otherwise says nothing about that. */
START_TEST(an_attempt_that_may_have_begun_is_lost)
{
	struct error err = ERROR_INIT;

	fixture_start();
	fake_codes.connect = -EAGAIN;
	ck_ok(adopt(&err), &err);
	fixture_check_trace("find connect kill ");
}
END_TEST

START_TEST(an_attempt_whose_launcher_is_gone_is_lost)
{
	struct error err = ERROR_INIT;

	fixture_start();
	make_begun();
	fake_codes.connect = -ECONNREFUSED;
	ck_ok(adopt(&err), &err);
	fixture_check_trace("find connect kill ");
	ck_assert_int_eq(fixture_report()->state, ATTEMPT_STOPPING);
	ck_assert(fixture_report()->launcher_lost);
	fixture_empty_unit();
	fixture_check_trace("changed(ended) settled ");
	check_lost("dtrain-launch is gone: it was killed while dtraind did not run", 137, "SIGKILL");
}
END_TEST

/* Its end is announced from the event loop, and acknowledged once more. */
START_TEST(an_end_is_found_again)
{
	struct error err = ERROR_INIT;

	fixture_start();
	fixture_say_state(ATTEMPT_ENDED);
	fake_codes.connect = _i == 1 ? -ECONNREFUSED : 0;
	ck_ok(adopt(&err), &err);
	fixture_check_trace(_i == 1 ? "find connect disconnected " : "find connect acknowledge ");
	ck_assert(attempt_has_ended(fixture.attempt));
	ck_assert_int_eq(fixture_report()->ranks[1].exit_status, 4);
	ck_assert_str_eq(fixture_report()->user, "root");
	ck_assert_int_ge(sd_event_run(fixture.event, 0), 0);
	fixture_check_trace("changed(ended) ");
	ck_assert_int_eq(sd_event_run(fixture.event, 0), 0);
	fixture_check_trace("");
}
END_TEST

/* Version 0.1.0 wrote no user and no name. */
START_TEST(an_old_end_is_completed)
{
	static const char text[] =
	    "{\"run\":7,\"attempt\":2,\"node\":\"n1\",\"state\":\"ended\",\"ranks\":[]}";
	struct error err = ERROR_INIT;

	fixture_start();
	ck_ok(file_write_atomic(fixture.ended, text, strlen(text), 0600, &err), &err);
	ck_ok(adopt(&err), &err);
	ck_assert_str_eq(fixture_report()->user, "root");
	ck_assert_str_eq(fixture_report()->name, "n");
}
END_TEST

START_TEST(what_cannot_be_read_is_not_adopted)
{
	static const char *const files[] = {"request.json", "ended.json", "request.json", "ended.json"};
	static const char *const texts[] = {"{", "{", "{}", "{}"};
	_cleanup_free_ char *path = str_path_join(fixture.path, files[_i]);
	struct error err = ERROR_INIT;

	fixture_start();
	ck_ok(file_write_atomic(path, texts[_i], strlen(texts[_i]), 0600, &err), &err);
	ck_assert_int_eq(adopt(&err), -EINVAL);
	ck_assert_ptr_null(fixture.attempt);
	ck_assert_uint_gt(strlen(err.message), 0);
}
END_TEST

START_TEST(a_unit_that_cannot_be_sought_is_an_error)
{
	struct error err = ERROR_INIT;

	fixture_start();
	fake_codes.unit = -EHOSTUNREACH;
	ck_assert_int_eq(adopt(&err), -EHOSTUNREACH);
	ck_assert_str_eq(err.message, "no unit");
	ck_assert_ptr_null(fixture.attempt);
}
END_TEST

/* Of which nothing is left but the record of its start. */
START_TEST(a_lost_attempt_ends_when_nothing_is_left)
{
	struct error err = ERROR_INIT;
	struct stat st;

	free(fixture.request->cgroup);
	fixture.request->cgroup = strdup("/old/7.2");
	fixture.request->service = strdup("s.service");
	fixture.request->config = NULL; /* borrowed of request->start */
	ck_ok(attempt_lost(&fixture.owner, fixture.path, fixture.request, &fixture.attempt, &err), &err);
	fixture.request = NULL;
	fixture_check_trace("find kill ");
	ck_assert_str_eq(fake_unit.found_cgroup, "/old/7.2");
	ck_assert_str_eq(fake_unit.found_service, "s.service");
	ck_assert_int_eq(fixture_report()->state, ATTEMPT_STOPPING);
	ck_assert_uint_eq(fixture_report()->rank_count, 0);
	ck_assert_ptr_null(fixture_report()->name);
	ck_assert_str_eq(fixture_report()->reason,
	                 "attempt 2 was started and is lost: was the machine restarted?");
	ck_assert_double_eq(attempt_stop_times(fixture.attempt, RUN_STOP_CANCEL).grace, 0);
	attempt_stop(fixture.attempt, (struct stop_times){1, 2});
	fixture_check_trace("");
	if (_i == 1) {
		fake_unit.owner.remaining(fake_unit.owner.context);
		fixture_check_trace("");
	}
	fixture_empty_unit();
	fixture_check_trace("changed(ended) settled ");
	ck_assert(fixture_report()->lost);
	ck_assert(!fixture_report()->launcher_lost);
	ck_assert_str_eq(fixture_report()->reason,
	                 _i == 1 ? "attempt 2 was started and is lost: its directory was removed while it ran"
	                         : "attempt 2 was started and is lost: was the machine restarted?");
	ck_assert_int_eq(stat(fixture.ended, &st), -1);
}
END_TEST

START_TEST(a_lost_attempt_that_cannot_be_sought_stays_the_callers)
{
	struct error err = ERROR_INIT;

	fake_codes.unit = -EHOSTUNREACH;
	ck_assert_int_eq(attempt_lost(&fixture.owner, fixture.path, fixture.request, &fixture.attempt, &err),
	                 -EHOSTUNREACH);
	ck_assert_ptr_nonnull(strstr(err.message, "run 7"));
	ck_assert_int_eq(fixture.request->run, 7);
	ck_assert_ptr_null(fixture.attempt);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("attempt recovery");
	TCase *tc = tcase_create("attempt recovery");

	tcase_add_checked_fixture(tc, fixture_setup, fixture_teardown);
	tcase_add_test(tc, a_closed_connection_is_taken_up_again);
	tcase_add_loop_test(tc, an_attempt_without_its_launcher_is_killed, 0, 2);
	tcase_add_test(tc, what_was_reported_before_stays);
	tcase_add_test(tc, the_last_report_may_be_on_the_way);
	tcase_add_test(tc, a_running_attempt_is_found_again);
	tcase_add_loop_test(tc, an_attempt_that_never_began_is_left_out, 0, 2);
	tcase_add_test(tc, an_attempt_that_may_have_begun_is_lost);
	tcase_add_test(tc, an_attempt_whose_launcher_is_gone_is_lost);
	tcase_add_loop_test(tc, an_end_is_found_again, 0, 2);
	tcase_add_test(tc, an_old_end_is_completed);
	tcase_add_loop_test(tc, what_cannot_be_read_is_not_adopted, 0, 4);
	tcase_add_test(tc, a_unit_that_cannot_be_sought_is_an_error);
	tcase_add_loop_test(tc, a_lost_attempt_ends_when_nothing_is_left, 0, 2);
	tcase_add_test(tc, a_lost_attempt_that_cannot_be_sought_stays_the_callers);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
