/* SPDX-License-Identifier: Apache-2.0 */
/* Stories of the controller, in simulated time (controller_bed.h). */
#include <errno.h>
#include <string.h>

#include "controller_bed.h"

START_TEST(a_run_goes_through_its_states)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit(b, 2, 1);

	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 1);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	bed_end_ranks(b, "n1", run, 0);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING); /* the other part goes on */
	bed_end_ranks(b, "n2", run, 0);
	bed_await(b, run, RUN_SUCCEEDED);
	ck_assert_int_eq(bed_run(b, run)->exit_status, 0);
	ck_assert(bed_has_event(b, "\"starting\"") && bed_has_event(b, "\"succeeded\""));
	bed_free(b);
}
END_TEST

START_TEST(a_refused_start_leaves_no_trace_on_a_success)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run;

	bed_refuse_next(b, "n1", -EBUSY, "slot 0 is leased");
	run = bed_submit(b, 1, 1);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	bed_end_ranks(b, "n1", run, 0);
	bed_await(b, run, RUN_SUCCEEDED);
	bed_pass(b, 30);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_SUCCEEDED);
	ck_assert_int_eq(bed_starts(b, "n1"), 2);
	bed_free(b);
}
END_TEST

/* A program that is missing will be missing the next time, too. */
START_TEST(a_refusal_for_good_fails_the_run)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	bed_refuse_next(b, "n2", -EINVAL, "there is no program train");
	run = bed_submit(b, 2, 1);
	bed_await(b, run, RUN_FAILED);
	ck_assert_ptr_nonnull(strstr(bed_run(b, run)->detail, "there is no program train"));
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 0);
	ck_assert_int_eq(bed_starts(b, "n1"), 1);
	bed_free(b);
}
END_TEST

START_TEST(the_first_failure_is_the_cause)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = bed_submit(b, 3, 1);

	bed_await(b, run, RUN_RUNNING);
	/* What they report arrives in the opposite order. */
	bed_set_delay(b, "n2", 1.5);
	bed_set_delay(b, "n3", 0.5);
	bed_end_ranks(b, "n2", run, 3);
	bed_pass(b, 0.2);
	bed_end_ranks(b, "n3", run, 4);
	bed_pass(b, 0.2);
	bed_end_ranks(b, "n1", run, 5);
	bed_await(b, run, RUN_FAILED);
	ck_assert_int_eq(bed_run(b, run)->exit_status, 3);
	ck_assert_str_eq(bed_run(b, run)->reason, "rank 1 on n2: exit status 3");
	bed_free(b);
}
END_TEST

START_TEST(a_late_answer_of_an_earlier_attempt_changes_nothing)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	/* n2 takes its part of attempt 1, but the call is given up half a minute later. Meanwhile n1 refuses,
	 * n2 is told to stop, and attempt 2 runs. */
	bed_refuse_next(b, "n1", -EBUSY, "slot 0 is leased");
	bed_lose_answer(b, "n2");
	run = bed_submit(b, 2, 1);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	bed_pass(b, 60);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 2);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 2);
	bed_free(b);
}
END_TEST

/* That each start follows the commit of its attempt is checked by the bed, in all stories. */
START_TEST(nothing_starts_while_the_store_fails)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t first = bed_submit(b, 1, 1), second = bed_submit(b, 1, 1);

	bed_await(b, first, RUN_RUNNING);
	bed_break_store(b, true);
	ck_assert_int_eq(bed_submit_failing(b), -EIO);
	bed_end_ranks(b, "n1", first, 0);
	bed_pass(b, 20);
	ck_assert_int_eq(bed_starts(b, "n1"), 1);
	ck_assert(!bed_has_event(b, "\"succeeded\""));
	bed_break_store(b, false);
	bed_await(b, second, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, second)->attempt, 1);
	ck_assert_int_eq(bed_starts(b, "n1"), 2);
	ck_assert_int_eq(bed_run(b, first)->state, RUN_SUCCEEDED);
	bed_free(b);
}
END_TEST

START_TEST(a_heartbeat_from_before_the_start_does_not_end_the_run)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	/* The heartbeat leaves n2 before the start reaches it, and arrives after n2's answer. The answer has
	 * the number of this heartbeat. */
	bed_set_delay(b, "n2", 0.3);
	bed_send_heartbeat(b, "n2");
	run = bed_submit(b, 2, 1);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 1);
	bed_free(b);
}
END_TEST

START_TEST(a_reboot_loses_the_part_of_a_run)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit(b, 2, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_reboot(b, "n2");
	bed_await(b, run, RUN_FAILED);
	ck_assert_ptr_nonnull(strstr(bed_run(b, run)->reason, "node n2 has lost attempt 1"));
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 0);
	bed_free(b);
}
END_TEST

START_TEST(a_lost_node_takes_its_runs_down_and_no_others)
{
	struct bed *b = bed_create("n1 slots=2\nn2 slots=1\nn3 slots=1\n");
	int64_t lost = bed_submit(b, 2, 1), other = bed_submit(b, 1, 1);

	bed_await(b, lost, RUN_RUNNING);
	bed_await(b, other, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n2", lost), 1);
	bed_cut_off(b, "n2", true);
	bed_await(b, lost, RUN_FAILED);
	ck_assert_ptr_nonnull(strstr(bed_run(b, lost)->reason, "node n2 is down"));
	ck_assert_int_eq(bed_attempt_on(b, "n1", lost), 0);
	ck_assert_int_eq(bed_run(b, other)->state, RUN_RUNNING);
	/* It comes back, and what it still has is stopped. */
	ck_assert_int_eq(bed_attempt_on(b, "n2", lost), 1);
	bed_cut_off(b, "n2", false);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_attempt_on(b, "n2", lost), 0);
	bed_free(b);
}
END_TEST

START_TEST(a_restarted_controller_finds_its_runs)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t running = bed_submit(b, 2, 1), queued = bed_submit(b, 1, 1);

	bed_await(b, running, RUN_RUNNING);
	bed_restart_controller(b);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, running)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, queued)->state, RUN_QUEUED);
	bed_end_ranks(b, "n1", running, 0);
	bed_end_ranks(b, "n2", running, 0);
	bed_await(b, running, RUN_SUCCEEDED);
	bed_await(b, queued, RUN_RUNNING);
	ck_assert_int_eq(bed_starts(b, "n2"), 1);
	bed_free(b);
}
END_TEST

START_TEST(a_cancelled_run_is_stopped_on_all_nodes)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit(b, 2, 1), queued = bed_submit(b, 2, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_cancel(b, queued);
	bed_await(b, queued, RUN_CANCELLED);
	/* The first stop does not reach n2: its heartbeat brings it up again. */
	bed_cut_off(b, "n2", true);
	bed_cancel(b, run);
	bed_pass(b, 2);
	bed_cut_off(b, "n2", false);
	bed_await(b, run, RUN_CANCELLED);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 0);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	ck_assert_int_eq(bed_starts(b, "n1"), 1);
	bed_free(b);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("controller");
	TCase *tc = tcase_create("stories");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, a_run_goes_through_its_states);
	tcase_add_test(tc, a_refused_start_leaves_no_trace_on_a_success);
	tcase_add_test(tc, a_refusal_for_good_fails_the_run);
	tcase_add_test(tc, the_first_failure_is_the_cause);
	tcase_add_test(tc, a_late_answer_of_an_earlier_attempt_changes_nothing);
	tcase_add_test(tc, nothing_starts_while_the_store_fails);
	tcase_add_test(tc, a_heartbeat_from_before_the_start_does_not_end_the_run);
	tcase_add_test(tc, a_reboot_loses_the_part_of_a_run);
	tcase_add_test(tc, a_lost_node_takes_its_runs_down_and_no_others);
	tcase_add_test(tc, a_restarted_controller_finds_its_runs);
	tcase_add_test(tc, a_cancelled_run_is_stopped_on_all_nodes);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
