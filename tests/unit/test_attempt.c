/* SPDX-License-Identifier: Apache-2.0 */
/* One attempt from its start to its end: what is reported in which order. */
#include "attempt_fixture.h"

#include <sched.h>
#include <string.h>
#include <sys/stat.h>

START_TEST(a_start_is_handed_to_the_unit)
{
	struct stat st;
	_cleanup_free_ char *launch = str_path_join(fixture.path, "launch.json");

	fixture_start();
	ck_assert_str_eq(fake_unit.program, "/w/dtrain-launch");
	/* shutdown_grace is shorter than what the run has */
	ck_assert_double_eq(fake_unit.stop_seconds, 45);
	ck_assert_uint_eq(fake_unit.tasks, 200);
	ck_assert_str_eq(fake_unit.cpus, "");
	ck_assert_int_eq(fake_unit.identity.run, 7);
	ck_assert_int_eq(fake_unit.identity.attempt, 2);
	ck_assert_str_eq(fake_unit.identity.dir, fixture.path);
	ck_assert_int_eq(fake_launcher.owner.run, 7);
	ck_assert_int_eq(stat(launch, &st), 0);
	ck_assert_str_eq(attempt_dir(fixture.attempt), fixture.path);
	ck_assert_int_eq(attempt_request(fixture.attempt)->run, 7);
	ck_assert(!attempt_has_ended(fixture.attempt));
	ck_assert(!attempt_is_settled(fixture.attempt));
	ck_assert_int_eq(fixture_report()->run, 7);
	ck_assert_int_eq(fixture_report()->attempt, 2);
	ck_assert_int_eq(fixture_report()->state, ATTEMPT_STARTING);
	ck_assert_int_eq(fixture_report()->epoch, 3);
	ck_assert_str_eq(fixture_report()->cluster, "c1");
	ck_assert_str_eq(fixture_report()->node, "n1");
	ck_assert_str_eq(fixture_report()->user, "root");
	ck_assert_str_eq(fixture_report()->name, "n");
	ck_assert_ptr_null(fixture_report()->reason);
	ck_assert_uint_eq(fixture_report()->rank_count, 2);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(fixture_report()->ranks[i].rank, i);
		ck_assert_int_eq(fixture_report()->ranks[i].slot, i);
		ck_assert_int_eq(fixture_report()->ranks[i].state, RANK_STARTING);
		ck_assert_int_eq(fixture_report()->ranks[i].exit_status, -1);
	}
}
END_TEST

/* The request stays the caller's, and no file of it. */
START_TEST(a_start_that_fails_leaves_nothing)
{
	static const char *const traces[] = {"new cancel ", "new listen cancel ", "new listen start cancel "};
	static const char *const words[] = {"no unit", "no socket", "no start"};
	int *const codes[] = {&fake_codes.unit, &fake_codes.listen, &fake_codes.start};
	struct error err = ERROR_INIT;
	struct stat st;

	*codes[_i] = -EBUSY;
	ck_assert_int_eq(fixture_try_start(&err), -EBUSY);
	ck_assert_str_eq(err.message, words[_i]);
	fixture_check_trace(traces[_i]);
	ck_assert_int_eq(fixture.request->run, 7);
	ck_assert_ptr_null(fixture.attempt);
	ck_assert_int_eq(stat(fixture.path, &st), -1);
}
END_TEST

/* The files of the devices that it has, and of those that dtraind.conf allows. */
START_TEST(the_devices_of_an_attempt_are_those_of_its_unit)
{
	char *allowed[] = {(char *)"/dev/null", NULL};

	fixture.config->allow_devices = allowed;
	fixture_start();
	fixture.config->allow_devices = NULL;
	ck_assert_msg(strstr(fake_unit.devices, "/dev/null "), "%s", fake_unit.devices);
}
END_TEST

START_TEST(the_cpus_of_all_ranks_are_those_of_the_unit)
{
	cpu_set_t allowed;
	int first = 0;
	char want[16];

	ck_assert_int_eq(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
	while (!CPU_ISSET(first, &allowed))
		first++;
	CPU_SET(first, &fixture.list[0].cpus);
	fixture.list[1].cpus = fixture.list[0].cpus;
	fixture.list[0].gpu = true;
	fixture.list[1].gpu = _i == 0; /* the other case: one rank may run anywhere */
	snprintf(want, sizeof(want), "%d", first);
	fixture_start();
	ck_assert_str_eq(fake_unit.cpus, _i == 0 ? want : "");
}
END_TEST

START_TEST(reports_are_taken_as_they_come)
{
	struct launch_report *said;

	fixture_start();
	said = fixture_make_report(ATTEMPT_RUNNING, RANK_RUNNING);
	said->reason = strdup("sh does not die");
	fixture_say(said);
	fixture_check_trace("changed(running) ");
	ck_assert_int_eq(fake_unit.launcher, 4711);
	ck_assert_int_eq(fixture_report()->ranks[1].pid, 51);
	ck_assert_int_eq(fixture_report()->ranks[1].state, RANK_RUNNING);
	ck_assert_str_eq(fixture_report()->reason, "sh does not die");
	ck_assert_ptr_null(fixture_report()->shutdown);
	fixture_say_state(ATTEMPT_STOPPING);
	fixture_check_trace("changed(stopping) ");
	ck_assert_ptr_null(fixture_report()->reason);
}
END_TEST

/* It is on record before dtrain-launch may go, and after it nothing counts. */
START_TEST(an_end_is_recorded_and_acknowledged)
{
	struct report end;

	fixture_start();
	fixture_say_state(ATTEMPT_ENDED);
	fixture_check_trace("acknowledge changed(ended) ");
	ck_assert(attempt_has_ended(fixture.attempt));
	ck_assert(!attempt_is_settled(fixture.attempt));
	end = fixture_recorded();
	ck_assert_int_eq(end.state, ATTEMPT_ENDED);
	ck_assert_int_eq(end.ranks[1].exit_status, 4);
	report_release(&end);
	fixture_say_state(ATTEMPT_RUNNING);
	ck_assert_int_eq(fixture_report()->state, ATTEMPT_ENDED);
	fake_unit.owner.exited(fake_unit.owner.context, "it ended", true);
	fixture_check_trace("receive ");
	ck_assert_ptr_null(fixture_report()->reason);
	/* The order of its last signs of life does not matter. */
	if (_i == 0) {
		fixture_close_connection();
		fixture_check_trace("");
		fixture_empty_unit();
	} else {
		fixture_empty_unit();
		fixture_check_trace("");
		fixture_close_connection();
	}
	fixture_check_trace("settled ");
	ck_assert(attempt_is_settled(fixture.attempt));
	/* What is asked for after the end is not done. */
	attempt_stop(fixture.attempt, (struct stop_times){1, 2});
	attempt_confirm(fixture.attempt);
	attempt_end_lease(fixture.attempt, 10);
	attempt_shut_down(fixture.attempt, (struct stop_times){1, 2}, "x");
	attempt_add_error(fixture.attempt, "x");
	fixture_check_trace("");
	ck_assert_ptr_null(fixture_report()->shutdown);
	ck_assert_ptr_null(fixture_report()->device_errors);
}
END_TEST

START_TEST(an_end_of_the_lease_is_a_shutdown)
{
	struct launch_report *said = fixture_make_report(ATTEMPT_STOPPING, RANK_RUNNING);
	static const char words[] =
	    "node n1 has had no answer of its controller: the lease of the attempt has run out";

	fixture_start();
	said->lease_ended = true;
	if (_i == 1) { /* the first reason stays */
		attempt_shut_down(fixture.attempt, (struct stop_times){1, 2}, "node n1 was shut down");
		ck_assert_double_eq(fake_launcher.stopped_with.save, 1);
		ck_assert_double_eq(fake_launcher.stopped_with.grace, 2);
		fixture_check_trace("stop ");
	} else if (_i == 2) {
		attempt_end_lease(fixture.attempt, 10);
		ck_assert_double_eq_tol(fake_launcher.stopped_with.save + fake_launcher.stopped_with.grace, 8,
		                        1e-9);
		fixture_check_trace("stop ");
		ck_assert_str_eq(fixture_report()->shutdown, words);
	}
	fixture_say(said);
	fixture_check_trace("changed(stopping) ");
	ck_assert_str_eq(fixture_report()->shutdown, _i == 1 ? "node n1 was shut down" : words);
	fixture_say_state(ATTEMPT_ENDED);
	fixture_check_trace("acknowledge changed(ended) ");
}
END_TEST

static void say_terminated(enum attempt_state state)
{
	struct launch_report *said =
	    fixture_make_report(state, state == ATTEMPT_ENDED ? RANK_EXITED : RANK_RUNNING);

	said->terminated = true;
	fixture_say(said);
}

/* Whether the machine shuts down or an administrator has stopped the unit is asked, once, and an end that
 * comes before the answer waits for it. */
START_TEST(who_has_stopped_it_is_asked)
{
	static const char *const answers[] = {"", "x.service was stopped"};
	static const char *const words[] = {"node n1 was shut down", "x.service was stopped on node n1"};
	bool late = _i >= 2;

	fake_unit.asks = true;
	fixture_start();
	say_terminated(ATTEMPT_STOPPING);
	fixture_check_trace("ask changed(stopping) ");
	if (late) {
		say_terminated(ATTEMPT_ENDED);
		fixture_check_trace("");
		ck_assert(!attempt_has_ended(fixture.attempt));
		ck_assert_int_eq(fixture_report()->state, ATTEMPT_STOPPING);
		/* It is not lost then. */
		fake_unit.owner.exited(fake_unit.owner.context, "it ended", true);
		fixture_check_trace("receive ");
		fixture_close_connection();
		fixture_empty_unit();
		fixture_check_trace("");
	}
	fake_unit.owner.stopped(fake_unit.owner.context, answers[_i % 2]);
	ck_assert_str_eq(fixture_report()->shutdown, words[_i % 2]);
	fixture_check_trace(late ? "acknowledge changed(ended) settled " : "");
	if (!late) {
		say_terminated(ATTEMPT_ENDED);
		fixture_check_trace("acknowledge changed(ended) ");
	}
	ck_assert_str_eq(fixture_report()->shutdown, words[_i % 2]);
	/* A second answer changes nothing. */
	fake_unit.owner.stopped(fake_unit.owner.context, "y");
	ck_assert_str_eq(fixture_report()->shutdown, words[_i % 2]);
	fixture_check_trace("");
}
END_TEST

START_TEST(a_stop_that_is_explained_is_not_asked_about)
{
	fixture_start();
	if (_i == 0) {
		attempt_shut_down(fixture.attempt, (struct stop_times){0, 0}, "node n1 was shut down");
		fixture_check_trace("stop ");
		fake_unit.asks = true;
		say_terminated(ATTEMPT_STOPPING);
		fixture_check_trace("changed(stopping) ");
	} else { /* the unit cannot know */
		say_terminated(ATTEMPT_STOPPING);
		fixture_check_trace("ask changed(stopping) ");
		say_terminated(ATTEMPT_STOPPING);
		fixture_check_trace("changed(stopping) ");
	}
	say_terminated(ATTEMPT_ENDED);
	fixture_check_trace("acknowledge changed(ended) ");
	if (_i == 0)
		ck_assert_str_eq(fixture_report()->shutdown, "node n1 was shut down");
	else
		ck_assert_ptr_null(fixture_report()->shutdown);
}
END_TEST

START_TEST(errors_of_devices_are_listed)
{
	fixture_start();
	attempt_add_error(fixture.attempt, "GPU 0: a");
	attempt_add_error(fixture.attempt, "GPU 1: b");
	attempt_add_error(fixture.attempt, "GPU 0: c");
	ck_assert_str_eq(fixture_report()->device_errors[0], "GPU 0: a");
	ck_assert_str_eq(fixture_report()->device_errors[1], "GPU 1: b");
	ck_assert_str_eq(fixture_report()->device_errors[2], "GPU 0: c");
	ck_assert_ptr_null(fixture_report()->device_errors[3]);
}
END_TEST

START_TEST(a_confirmation_is_passed_on)
{
	fixture_start();
	attempt_confirm(fixture.attempt);
	fixture_check_trace("confirm ");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("attempt");
	TCase *tc = tcase_create("attempt");

	tcase_add_checked_fixture(tc, fixture_setup, fixture_teardown);
	tcase_add_test(tc, a_start_is_handed_to_the_unit);
	tcase_add_loop_test(tc, a_start_that_fails_leaves_nothing, 0, 3);
	tcase_add_loop_test(tc, the_cpus_of_all_ranks_are_those_of_the_unit, 0, 2);
	tcase_add_test(tc, the_devices_of_an_attempt_are_those_of_its_unit);
	tcase_add_test(tc, reports_are_taken_as_they_come);
	tcase_add_loop_test(tc, an_end_is_recorded_and_acknowledged, 0, 2);
	tcase_add_loop_test(tc, an_end_of_the_lease_is_a_shutdown, 0, 3);
	tcase_add_loop_test(tc, who_has_stopped_it_is_asked, 0, 4);
	tcase_add_loop_test(tc, a_stop_that_is_explained_is_not_asked_about, 0, 2);
	tcase_add_test(tc, errors_of_devices_are_listed);
	tcase_add_test(tc, a_confirmation_is_passed_on);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
