/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of runs that are stopped to end or to go on: time limits and drains, of what is told of an attempt
 * that has failed, and of runs that take as many nodes as are free, in simulated time (controller_bed.h). */
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "controller/nodes.h"
#include "controller/runs.h"
#include "controller_bed.h"

static int64_t submit_training(struct bed *b, const char *resources)
{
	_cleanup_free_ char *text =
	    str_printf("{\"task\":\"pretrain\",\"directory\":\"/m\",\"model\":{\"init\":\"c\"},"
	               "\"data\":{\"path\":[\"a\"],\"format\":\"text\"},\"train\":{\"max_steps\":5,"
	               "\"accumulation\":12},\"output\":{\"dir\":\"out\"},\"resources\":{%s}}",
	               resources);

	return bed_submit_config(b, text);
}

static void check_stop(const struct bed *b, double save, double grace)
{
	ck_assert_double_eq(bed_last_stop(b).save, save);
	ck_assert_double_eq(bed_last_stop(b).grace, grace);
}

static void drain(struct bed *b, const char *node)
{
	ck_assert_int_eq(controller_set_drained(bed_controller(b), node, true, NULL), 0);
	controller_evict_runs(bed_controller(b), node);
}

/* The words of a worker may name files of the owner. */
START_TEST(the_owner_is_told_why_the_last_attempt_has_failed)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"nodes\":2,\"max_restarts\":2");
	_cleanup_json_ json_t *own = NULL, *other = NULL;

	bed_await(b, run, RUN_RUNNING);
	controller_worker_error(bed_controller(b), run, 1, "cannot write /home/x: No space left on device",
	                        false);
	bed_end_ranks(b, "n2", run, 1);
	bed_pass(b, 0.1);
	bed_restart_controller(b);
	bed_await(b, run, RUN_RUNNING);
	own = run_to_json(bed_run(b, run), true);
	other = run_to_json(bed_run(b, run), false);
	ck_assert_str_eq(json_get_string(own, "last_failure", ""), "attempt 1: rank 1 on n2: exit status 1");
	ck_assert_str_eq(json_get_string(own, "last_detail", ""),
	                 "cannot write /home/x: No space left on device");
	ck_assert_ptr_null(json_object_get(other, "last_detail"));
	bed_free(b);
}
END_TEST

/* Whoever lets a run be started again, for whatever reason, lets it be moved. */
START_TEST(a_run_that_may_begin_again_is_moved)
{
	static const char *const resources[] = {"\"max_restarts\":1", "\"max_node_failures\":1"};
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");

	for (size_t i = 0; i < ARRAY_SIZE(resources); i++) {
		int64_t run = bed_submit_resources(b, resources[i]);

		bed_await(b, run, RUN_RUNNING);
		ck_assert_int_eq(bed_attempt_on(b, "n1", run), 1);
		drain(b, "n1");
		bed_pass(b, 3);
		ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
		ck_assert_int_eq(bed_attempt_on(b, "n2", run), 2);
		bed_end_ranks(b, "n2", run, 0);
		bed_await(b, run, RUN_SUCCEEDED);
		ck_assert_int_eq(controller_set_drained(bed_controller(b), "n1", false, NULL), 0);
		bed_pass(b, 1);
	}
	bed_free(b);
}
END_TEST

/* ---- time limits ---- */

START_TEST(a_time_limit_ends_a_run)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit_resources(
	    b,
	    "\"nodes\":2,\"time_limit\":\"1h30m\",\"save_signal\":\"USR1\",\"save_seconds\":120,\"grace\":7");

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 5398);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	bed_pass(b, 3);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_TIMED_OUT);
	check_stop(b, 120, 7);
	ck_assert_str_eq(bed_run(b, run)->reason,
	                 "its time limit of 1h30m was reached (resources.time_limit)");
	ck_assert_int_eq(bed_count_events(b, "\"timed-out\""), 1);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run) + bed_attempt_on(b, "n2", run), 0);
	bed_free(b);
}
END_TEST

START_TEST(a_training_names_its_checkpoint_at_the_limit)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = submit_training(b, "\"time_limit\":60,\"save_seconds\":\"2m\"");

	bed_await(b, run, RUN_RUNNING);
	controller_set_checkpoint(bed_controller(b), run, 20);
	bed_await(b, run, RUN_TIMED_OUT);
	check_stop(b, 0, 150);
	ck_assert_str_eq(bed_run(b, run)->reason,
	                 "its time limit of 1m00s was reached (resources.time_limit); its newest checkpoint "
	                 "is that of step 20");
	bed_free(b);
}
END_TEST

/* All attempts together; the time in the queue does not count, nor does a jump of the clock. */
START_TEST(a_time_limit_counts_all_attempts)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"time_limit\":100,\"max_restarts\":9"), other;

	bed_await(b, run, RUN_RUNNING);
	other = bed_submit(b, 1, 1);
	bed_pass(b, 60);
	bed_end_ranks(b, "n1", run, 1);
	bed_await(b, other, RUN_RUNNING);
	bed_pass(b, 500);
	bed_end_ranks(b, "n1", other, 0);
	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 20);
	bed_restart_controller(b);
	bed_pass(b, 18);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	bed_pass(b, 3);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_TIMED_OUT);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	bed_free(b);
}
END_TEST

/* An attempt that fails in its last moment is not followed by one without time. */
START_TEST(a_run_without_time_left_is_not_started_again)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"nodes\":2,\"time_limit\":30,\"max_node_failures\":9");

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 25);
	bed_cut_off(b, "n2", true);
	bed_pass(b, 20);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_TIMED_OUT);
	bed_pass(b, 200);
	ck_assert_int_eq(bed_starts(b, "n1"), 1);
	bed_free(b);
}
END_TEST

START_TEST(a_limit_is_kept_by_the_next_controller)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"time_limit\":100");

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 50);
	bed_crash_controller(b);
	bed_pass(b, 48);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	bed_pass(b, 4);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_TIMED_OUT);
	bed_free(b);
}
END_TEST

START_TEST(a_limit_may_pass_between_two_controllers)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"time_limit\":100");

	bed_await(b, run, RUN_RUNNING);
	bed_restart_later(b, 150);
	bed_await(b, run, RUN_TIMED_OUT);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 0);
	bed_free(b);
}
END_TEST

/* The machine of the next controller has been up for a shorter time than the limit is over. */
START_TEST(a_limit_may_pass_before_a_machine_is_booted)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"time_limit\":100");

	bed_await(b, run, RUN_RUNNING);
	bed_set_clock_ahead(b, 5000);
	bed_restart_later(b, 1);
	bed_await(b, run, RUN_TIMED_OUT);
	bed_free(b);
}
END_TEST

/* ---- starts that are under way when the controller is lost ---- */

/* Its run is being stopped since another part has failed; the node that looks whether it can start has
 * nothing yet, which does not say that it will not begin. */
START_TEST(a_start_under_way_is_waited_for_where_the_run_is_being_stopped)
{
	bool stops = _i;
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run;

	bed_set_preflight(b, "n2", 20);
	bed_lose_stops(b, "n2", !stops);
	run = bed_submit_resources(b, "\"nodes\":2,\"max_restarts\":3,\"max_node_failures\":3");
	bed_pass(b, 1.5);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 1);
	bed_end_ranks(b, "n1", run, 1);
	bed_pass(b, 0.1);
	bed_crash_controller(b);
	for (int i = 0; i < 90; i++) {
		bed_pass(b, 1);
		if (i == 40)
			bed_lose_stops(b, "n2", false);
		ck_assert(bed_attempt_on(b, "n2", run) != 1 || bed_attempt_on(b, "n1", run) != 2);
		ck_assert(bed_attempt_on(b, "n2", run) != 1 || bed_attempt_on(b, "n3", run) != 2);
	}
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	bed_free(b);
}
END_TEST

/* The other part has failed by itself; nothing says that the node has lost its part, which it never had. */
START_TEST(a_part_that_was_not_started_is_not_the_cause)
{
	bool reported = _i;
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	bed_set_preflight(b, "n2", 20);
	run = bed_submit_resources(b, "\"nodes\":2,\"max_node_failures\":3");
	bed_pass(b, 1.5);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 1);
	if (reported)
		bed_end_ranks(b, "n1", run, 3);
	bed_pass(b, 0.1);
	bed_set_delay(b, "n2", 0.5); /* n1 reports first to the next controller, too */
	bed_crash_controller(b);
	if (!reported)
		bed_end_ranks(b, "n1", run, 3);
	bed_await(b, run, RUN_FAILED);
	ck_assert_str_eq(bed_run(b, run)->reason, "rank 0 on n1: exit status 3");
	ck_assert_int_eq(bed_run(b, run)->attempt, 1);
	bed_free(b);
}
END_TEST

/* Lets a minute pass, in which no node begins or has attempt 2 while n2 has attempt 1. */
static void pass_without_two_attempts(struct bed *b, int64_t run)
{
	for (int i = 0; i < 240; i++) {
		bed_pass(b, 0.25);
		ck_assert(bed_attempt_on(b, "n2", run) != 1 || bed_attempt_on(b, "n1", run) != 2);
		ck_assert(bed_attempt_on(b, "n2", run) != 1 || bed_attempt_on(b, "n3", run) != 2);
	}
}

/* The machine was restarted before the start was sent, which the controller learns of when the start is under
 * way. */
START_TEST(a_start_may_reach_a_machine_that_was_restarted)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run;

	ck_assert_int_eq(controller_set_drained(bed_controller(b), "n3", true, NULL), 0);
	bed_pass(b, 5);
	bed_cut_off(b, "n2", true);
	bed_reboot(b, "n2");
	bed_delay_start(b, "n2", 25);
	run = bed_submit_resources(b, "\"nodes\":2,\"max_node_failures\":3");
	bed_pass(b, 1);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 1);
	ck_assert_int_eq(controller_set_drained(bed_controller(b), "n3", false, NULL), 0);
	bed_pass(b, 13);
	bed_cut_off(b, "n2", false);
	pass_without_two_attempts(b, run);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	bed_free(b);
}
END_TEST

/* It has no lease yet, without which what it begins would outlive a partition. */
START_TEST(a_restarted_machine_takes_no_start_before_its_first_heartbeat)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=2\nn3 slots=1\n");
	int64_t run;

	bed_pass(b, 5);
	bed_reboot(b, "n2");
	run = bed_submit_resources(b, "\"nodes\":3,\"max_node_failures\":3");
	bed_pass(b, 0.4);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	ck_assert_int_ge(bed_count_events(b, "no heartbeat has been answered"), 1);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), bed_run(b, run)->attempt);
	bed_free(b);
}
END_TEST

/* The answer to its start was lost, but heartbeats have shown the attempt, and so confirmed it: it goes on
 * behind the partition. */
START_TEST(an_attempt_that_was_seen_to_run_is_kept_without_an_answer_to_its_start)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run;

	ck_assert_int_eq(controller_set_drained(bed_controller(b), "n3", true, NULL), 0);
	bed_lose_answer(b, "n2");
	run = bed_submit_resources(b, "\"nodes\":2,\"max_node_failures\":3,\"on_partition\":\"keep\"");
	bed_pass(b, 28);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	ck_assert_int_eq(controller_set_drained(bed_controller(b), "n3", false, NULL), 0);
	bed_cut_off(b, "n2", true);
	bed_pass(b, 60);
	pass_without_two_attempts(b, run);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	bed_cut_off(b, "n2", false);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	bed_free(b);
}
END_TEST

/* ---- drains ---- */

START_TEST(a_drain_moves_a_run)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = bed_submit_resources(
	    b,
	    "\"nodes\":2,\"max_node_failures\":1,\"save_signal\":\"USR2\",\"save_seconds\":50,\"grace\":9");

	bed_await(b, run, RUN_RUNNING);
	drain(b, "n2");
	bed_pass(b, 0.1);
	check_stop(b, 50, 9);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 2);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	/* It was no failure. */
	ck_assert_int_eq(bed_run(b, run)->retries.record.node_failures, 0);
	ck_assert_str_eq(bed_run(b, run)->retries.record.last_failure, "attempt 1: node n2 was drained");
	bed_free(b);
}
END_TEST

START_TEST(a_drain_leaves_alone_what_must_not_start_again)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"nodes\":2");

	bed_await(b, run, RUN_RUNNING);
	drain(b, "n2");
	bed_pass(b, 20);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	bed_end_ranks(b, "n1", run, 0);
	bed_end_ranks(b, "n2", run, 0);
	bed_await(b, run, RUN_SUCCEEDED);
	bed_free(b);
}
END_TEST

START_TEST(a_drained_run_can_be_cancelled)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run =
	    bed_submit_resources(b, "\"max_node_failures\":1,\"save_signal\":\"INT\",\"save_seconds\":50,"
	                            "\"grace\":9,\"hosts\":[\"n2\"]");

	bed_await(b, run, RUN_RUNNING);
	bed_set_delay(b, "n2", 5);
	drain(b, "n2");
	bed_pass(b, 1);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_STOPPING);
	ck_assert_str_eq(bed_run(b, run)->reason, "node n2 was drained: it saves, stops and is queued again");
	bed_cancel(b, run);
	bed_pass(b, 1);
	check_stop(b, 4.5, 4.5);
	bed_await(b, run, RUN_CANCELLED);
	ck_assert_str_eq(bed_run(b, run)->reason, "cancelled by alice");
	bed_free(b);
}
END_TEST

/* What a controller had in mind with a run that stops, the next one does. */
START_TEST(a_restarted_controller_goes_on_moving_a_run)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"nodes\":2,\"max_node_failures\":1");

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 2);
	bed_set_delay(b, "n2", 2);
	drain(b, "n2");
	bed_pass(b, 0.5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_STOPPING);
	bed_crash_controller(b);
	bed_pass(b, 10);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->retries.record.node_failures, 0);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_free(b);
}
END_TEST

/* A training whose last step was done when it was asked to stop is through. */
START_TEST(a_training_that_is_through_is_not_queued_again)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = submit_training(b, "\"max_node_failures\":1,\"hosts\":[\"n2\"]");

	bed_await(b, run, RUN_RUNNING);
	bed_set_delay(b, "n2", 2);
	bed_end_ranks(b, "n2", run, 0);
	drain(b, "n2");
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_SUCCEEDED);
	ck_assert_ptr_null(bed_run(b, run)->reason);
	bed_free(b);
}
END_TEST

/* ---- as many nodes as are free ---- */

START_TEST(a_range_takes_what_is_free)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\nn4 slots=1\nn5 slots=1\n");
	int64_t other = bed_submit(b, 2, 1), run = bed_submit_resources(b, "\"nodes\":\"2..4\""), more;

	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->rank_count, 3);
	more = bed_submit_resources(b, "\"nodes\":\"2..3\"");
	bed_pass(b, 1);
	ck_assert_str_eq(bed_run(b, more)->reason, "waits for 2 nodes with 1 free CPU slot: 0 now");
	bed_end_ranks(b, "n1", other, 0);
	bed_end_ranks(b, "n2", other, 0);
	bed_await(b, more, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, more)->rank_count, 2);
	bed_restart_controller(b);
	bed_pass(b, 2);
	ck_assert_int_eq(bed_run(b, run)->nodes, 3);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	bed_free(b);
}
END_TEST

START_TEST(a_range_goes_on_with_the_nodes_that_are_left)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\nn4 slots=1\n");
	int64_t run = submit_training(b, "\"nodes\":\"2..4\",\"max_node_failures\":9");

	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->rank_count, 4);
	bed_cut_off(b, "n3", true);
	bed_await(b, run, RUN_QUEUED);
	bed_pass(b, 70); /* the lease */
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->rank_count, 3);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 0);
	/* The node is back; another attempt has all again, also that which failed. */
	bed_cut_off(b, "n3", false);
	bed_pass(b, 5);
	bed_reboot(b, "n2");
	bed_await(b, run, RUN_QUEUED);
	bed_pass(b, 10);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->rank_count, 4);
	bed_free(b);
}
END_TEST

/* A node that has failed is left out only where that makes the run no smaller. */
START_TEST(a_range_avoids_a_node_where_others_suffice)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"nodes\":\"1..2\",\"max_node_failures\":9");

	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	bed_reboot(b, "n2");
	bed_await(b, run, RUN_QUEUED);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 2);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_free(b);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("recovery");
	TCase *tc = tcase_create("stops");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, the_owner_is_told_why_the_last_attempt_has_failed);
	tcase_add_test(tc, a_run_that_may_begin_again_is_moved);
	tcase_add_test(tc, a_time_limit_ends_a_run);
	tcase_add_test(tc, a_training_names_its_checkpoint_at_the_limit);
	tcase_add_test(tc, a_time_limit_counts_all_attempts);
	tcase_add_test(tc, a_run_without_time_left_is_not_started_again);
	tcase_add_test(tc, a_limit_is_kept_by_the_next_controller);
	tcase_add_test(tc, a_limit_may_pass_between_two_controllers);
	tcase_add_test(tc, a_limit_may_pass_before_a_machine_is_booted);
	tcase_add_test(tc, a_start_may_reach_a_machine_that_was_restarted);
	tcase_add_test(tc, a_restarted_machine_takes_no_start_before_its_first_heartbeat);
	tcase_add_test(tc, an_attempt_that_was_seen_to_run_is_kept_without_an_answer_to_its_start);
	tcase_add_loop_test(tc, a_start_under_way_is_waited_for_where_the_run_is_being_stopped, 0, 2);
	tcase_add_loop_test(tc, a_part_that_was_not_started_is_not_the_cause, 0, 2);
	tcase_add_test(tc, a_drain_moves_a_run);
	tcase_add_test(tc, a_drain_leaves_alone_what_must_not_start_again);
	tcase_add_test(tc, a_drained_run_can_be_cancelled);
	tcase_add_test(tc, a_restarted_controller_goes_on_moving_a_run);
	tcase_add_test(tc, a_training_that_is_through_is_not_queued_again);
	tcase_add_test(tc, a_range_takes_what_is_free);
	tcase_add_test(tc, a_range_goes_on_with_the_nodes_that_are_left);
	tcase_add_test(tc, a_range_avoids_a_node_where_others_suffice);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
