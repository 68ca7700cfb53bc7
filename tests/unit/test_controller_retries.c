/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what follows a failed attempt of a run, in simulated time (controller_bed.h). */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "controller/controller.h"
#include "controller/nodes.h"
#include "controller/reconcile.h"
#include "controller/runs.h"
#include "controller/submit.h"
#include "controller_bed.h"

/* A command of one slot on each of so many nodes. */
static int64_t submit(struct bed *b, int nodes, int restarts, int node_failures)
{
	_cleanup_free_ char *text = str_printf(
	    "{\"task\":\"command\",\"name\":\"story\",\"command\":[\"true\"],\"directory\":\"/tmp\","
	    "\"resources\":{\"kind\":\"cpu\",\"nodes\":%d,\"max_restarts\":%d,"
	    "\"max_node_failures\":%d}}",
	    nodes, restarts, node_failures);

	return bed_submit_config(b, text);
}

/* On two nodes, and it outlives partitions. */
static int64_t submit_keeping(struct bed *b)
{
	return bed_submit_config(
	    b, "{\"task\":\"command\",\"name\":\"story\",\"command\":[\"true\"],\"directory\":\"/tmp\","
	       "\"resources\":{\"kind\":\"cpu\",\"nodes\":2,\"max_node_failures\":9,\"on_partition\":"
	       "\"keep\"}}");
}

static int64_t submit_training(struct bed *b, int restarts)
{
	_cleanup_free_ char *text =
	    str_printf("{\"task\":\"pretrain\",\"directory\":\"/m\",\"model\":{\"init\":\"c\"},"
	               "\"data\":{\"path\":[\"a\"],\"format\":\"text\"},\"train\":{\"max_steps\":5},"
	               "\"output\":{\"dir\":\"out\"},\"resources\":{\"max_restarts\":%d}}",
	               restarts);

	return bed_submit_config(b, text);
}

static void fail_attempt(struct bed *b, const char *node, int64_t run, int exit_status)
{
	bed_await(b, run, RUN_RUNNING);
	bed_end_ranks(b, node, run, exit_status);
	bed_pass(b, 0.1);
}

START_TEST(a_failed_program_is_started_again)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = submit(b, 2, 2, 0);
	_cleanup_json_ json_t *view = NULL;

	fail_attempt(b, "n2", run, 7);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	ck_assert_str_eq(bed_run(b, run)->reason,
	                 "attempt 1 has failed: rank 1 on n2: exit status 7; the next one begins in 1 s");
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 0);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 2);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 2);
	view = run_to_json(bed_run(b, run), true);
	ck_assert_int_eq(json_get_int(view, "restarts", 0), 1);
	ck_assert_int_eq(json_get_int(view, "max_restarts", 0), 2);
	ck_assert_str_eq(json_get_string(view, "last_failure", ""), "attempt 1: rank 1 on n2: exit status 7");
	bed_end_ranks(b, "n1", run, 0);
	bed_end_ranks(b, "n2", run, 0);
	bed_await(b, run, RUN_SUCCEEDED);
	ck_assert_int_eq(bed_run(b, run)->exit_status, 0);
	ck_assert_int_eq(bed_count_events(b, "\"failed\""), 0);
	bed_free(b);
}
END_TEST

START_TEST(restarts_have_an_end_and_a_growing_delay)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = submit(b, 1, 3, 5);

	for (int i = 0; i < 3; i++) {
		fail_attempt(b, "n1", run, 3);
		bed_pass(b, (1 << i) - 0.5);
		ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
		ck_assert_int_eq(bed_starts(b, "n1"), i + 1);
		bed_pass(b, 1);
		ck_assert_int_eq(bed_starts(b, "n1"), i + 2);
	}
	fail_attempt(b, "n1", run, 4);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_FAILED);
	ck_assert_int_eq(bed_run(b, run)->exit_status, 4);
	ck_assert_str_eq(
	    bed_run(b, run)->reason,
	    "rank 0 on n1: exit status 4; attempt 4 was the last one: resources.max_restarts is 3");
	bed_pass(b, 60);
	ck_assert_int_eq(bed_starts(b, "n1"), 4);
	/* It has left the memory: it is read from the store. */
	ck_assert_int_eq(bed_run(b, run)->retries.max_restarts, 3);
	ck_assert_int_eq(bed_run(b, run)->retries.max_node_failures, 5);
	bed_free(b);
}
END_TEST

START_TEST(a_long_attempt_makes_the_delay_short_again)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = submit(b, 1, 30, 0);

	for (int i = 0; i < 5; i++)
		fail_attempt(b, "n1", run, 1);
	ck_assert_ptr_nonnull(strstr(bed_run(b, run)->reason, "begins in 16 s"));
	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 700);
	fail_attempt(b, "n1", run, 1);
	ck_assert_ptr_nonnull(strstr(bed_run(b, run)->reason, "begins in 1 s"));
	bed_free(b);
}
END_TEST

/* Others take the slots while the run waits for its next attempt. */
START_TEST(a_run_that_waits_for_its_next_attempt_holds_no_slots)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = submit(b, 1, 1, 0), other;

	bed_await(b, run, RUN_RUNNING);
	other = bed_submit(b, 1, 1);
	bed_end_ranks(b, "n1", run, 1);
	bed_await(b, other, RUN_RUNNING);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	bed_end_ranks(b, "n1", other, 0);
	bed_await(b, run, RUN_RUNNING);
	bed_free(b);
}
END_TEST

START_TEST(a_failed_node_is_avoided_where_others_suffice)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = submit(b, 2, 0, 2);

	bed_await(b, run, RUN_RUNNING);
	bed_reboot(b, "n2");
	bed_await(b, run, RUN_QUEUED);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 2);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	ck_assert_int_eq(bed_run(b, run)->retries.record.node_failures, 1);
	ck_assert_int_eq(bed_run(b, run)->retries.record.restarts, 0);
	bed_free(b);
}
END_TEST

/* A node that failed an attempt may be used again once another attempt has failed elsewhere. */
START_TEST(nodes_of_the_last_attempt_alone_are_avoided)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\nn4 slots=1\n");
	int64_t run = submit(b, 2, 0, 5);
	char **avoid;

	bed_await(b, run, RUN_RUNNING);
	bed_reboot(b, "n2");
	bed_await(b, run, RUN_QUEUED);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_reboot(b, "n3");
	bed_await(b, run, RUN_QUEUED);
	avoid = bed_run(b, run)->retries.record.avoid;
	ck_assert_ptr_nonnull(avoid);
	ck_assert_str_eq(avoid[0], "n3");
	ck_assert_ptr_null(avoid[1]);
	bed_free(b);
}
END_TEST

START_TEST(a_failed_node_is_taken_again_where_others_do_not_suffice)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = submit(b, 2, 0, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_reboot(b, "n2");
	bed_await(b, run, RUN_QUEUED);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 2);
	bed_free(b);
}
END_TEST

/* Each kind of failure has its own count. */
START_TEST(a_node_failure_is_no_restart)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = submit(b, 1, 5, 0);

	bed_await(b, run, RUN_RUNNING);
	bed_reboot(b, "n1");
	bed_await(b, run, RUN_FAILED);
	ck_assert_int_eq(bed_starts(b, "n1"), 1);
	run = submit(b, 1, 0, 5);
	fail_attempt(b, "n1", run, 1);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_FAILED);
	bed_free(b);
}
END_TEST

START_TEST(a_refusal_for_good_is_not_tried_again)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run;

	bed_refuse_next(b, "n1", -EINVAL, "there is no program train");
	run = submit(b, 1, 9, 9);
	bed_await(b, run, RUN_FAILED);
	bed_pass(b, 20);
	ck_assert_int_eq(bed_starts(b, "n1"), 1);
	ck_assert_str_eq(bed_run(b, run)->reason, "node n1: the start has failed");
	bed_free(b);
}
END_TEST

START_TEST(a_node_that_cannot_start_it_is_avoided)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	bed_refuse_next(b, "n1", -ETIMEDOUT, "/home: no answer within 20 s");
	run = submit(b, 1, 0, 1);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 2);
	ck_assert_int_eq(bed_run(b, run)->retries.record.node_failures, 1);
	ck_assert_str_eq(bed_run(b, run)->retries.record.last_failure,
	                 "attempt 1: node n1: the start has failed");
	bed_free(b);
}
END_TEST

START_TEST(a_run_that_waits_can_be_cancelled)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = submit(b, 1, 9, 0);

	fail_attempt(b, "n1", run, 1);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	bed_cancel(b, run);
	bed_await(b, run, RUN_CANCELLED);
	bed_pass(b, 20);
	ck_assert_int_eq(bed_starts(b, "n1"), 1);
	bed_free(b);
}
END_TEST

/* Counts and delays outlive the controller. */
START_TEST(a_restarted_controller_goes_on_counting)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = submit(b, 1, 2, 0);

	fail_attempt(b, "n1", run, 1);
	bed_restart_controller(b);
	bed_pass(b, 0.6);
	ck_assert_int_eq(bed_starts(b, "n1"), 1);
	fail_attempt(b, "n1", run, 1);
	bed_crash_controller(b);
	fail_attempt(b, "n1", run, 1);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_FAILED);
	ck_assert_int_eq(bed_run(b, run)->retries.record.restarts, 2);
	ck_assert_int_eq(bed_starts(b, "n1"), 3);
	bed_free(b);
}
END_TEST

/* So that an attempt on another node does not begin again where that node lacks the files. */
START_TEST(an_attempt_is_told_which_checkpoint_there_is)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = submit_training(b, 100);
	const char *where;

	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_checkpoint_of(b, "n1", run, &where), 0);
	ck_assert_str_eq(where, "");
	controller_set_checkpoint(bed_controller(b), run, 20);
	controller_set_checkpoint(bed_controller(b), run, 10); /* an older one that was named late */
	bed_restart_controller(b);
	bed_pass(b, 2);
	fail_attempt(b, "n1", run, 1);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_checkpoint_of(b, bed_attempt_on(b, "n2", run) ? "n2" : "n1", run, &where), 20);
	ck_assert_str_eq(where, "n1");
	bed_free(b);
}
END_TEST

START_TEST(a_run_without_newer_checkpoints_is_given_up)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = submit_training(b, 100);

	fail_attempt(b, "n1", run, 1);
	fail_attempt(b, "n1", run, 1);
	bed_await(b, run, RUN_RUNNING);
	controller_set_checkpoint(bed_controller(b), run, 20);
	fail_attempt(b, "n1", run, 1);
	fail_attempt(b, "n1", run, 1);
	bed_await(b, run, RUN_RUNNING);
	controller_set_checkpoint(bed_controller(b), run, 20); /* it was there before */
	fail_attempt(b, "n1", run, 1);
	bed_await(b, run, RUN_RUNNING);
	bed_restart_controller(b);
	bed_pass(b, 2);
	fail_attempt(b, "n1", run, 9);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_FAILED);
	ck_assert_str_eq(
	    bed_run(b, run)->reason,
	    "rank 0 on n1: exit status 9; given up after 3 attempts in a row without a newer checkpoint");
	ck_assert_int_eq(bed_starts(b, "n1"), 6);
	bed_free(b);
}
END_TEST

/* What runs there has ended by itself when the next attempt begins. */
START_TEST(a_lost_node_is_waited_for_until_its_lease_has_run_out)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = submit(b, 2, 0, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_cut_off(b, "n2", true);
	bed_await(b, run, RUN_QUEUED);
	bed_pass(b, 30);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	ck_assert_str_eq(bed_run(b, run)->reason,
	                 "waits for the end of attempt 1 on node n2, which cannot be "
	                 "reached: its lease has to run out");
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	while (bed_run(b, run)->state == RUN_QUEUED) {
		ck_assert_int_eq(bed_attempt_on(b, "n1", run), 0);
		bed_pass(b, 0.01);
	}
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 2);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_cut_off(b, "n2", false);
	bed_pass(b, 10);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	bed_free(b);
}
END_TEST

/* The answer to the first of them was lost. */
START_TEST(a_heartbeat_that_comes_twice_does_not_end_the_lease)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = submit(b, 2, 0, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 2);
	bed_repeat_heartbeat(b, "n2");
	bed_pass(b, 0.1);
	bed_cut_off(b, "n2", true);
	bed_pass(b, 61);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	bed_free(b);
}
END_TEST

/* A lost node that is back stops its part, and the next attempt begins at once. */
START_TEST(a_lost_node_that_is_back_ends_the_wait)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = submit_keeping(b);

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 2); /* a heartbeat confirms the part */
	bed_cut_off(b, "n2", true);
	bed_pass(b, 300);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	ck_assert_str_eq(bed_run(b, run)->reason,
	                 "waits for the end of attempt 1 on node n2, which cannot be "
	                 "reached: it has to come back, or to be fenced (dtrain fence)");
	bed_cut_off(b, "n2", false);
	while (bed_attempt_on(b, "n2", run) == 1)
		bed_pass(b, 0.001);
	ck_assert_str_eq(bed_run(b, run)->reason, "waits until node n2 has stopped attempt 1");
	bed_pass(b, 3);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_free(b);
}
END_TEST

/* It was sent before the start, so that it cannot say that the node has lost the attempt. */
START_TEST(a_heartbeat_from_before_the_start_does_not_end_the_wait)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run;

	bed_set_delay(b, "n2", 20);
	bed_pass(b, 1);
	run = submit_keeping(b);
	bed_await(b, run, RUN_QUEUED);
	for (int i = 0; i < 400; i++) {
		bed_pass(b, 0.1);
		if (bed_attempt_on(b, "n2", run) == 1)
			ck_assert_int_ne(bed_attempt_on(b, "n1", run), 2);
	}
	bed_free(b);
}
END_TEST

/* Nobody waits for the lost parts of a run that has ended, and nobody has to fence them. */
START_TEST(a_run_that_has_ended_has_no_lost_parts)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = submit(b, 2, 0, 0), count;

	bed_await(b, run, RUN_RUNNING);
	bed_cut_off(b, "n2", true);
	bed_await(b, run, RUN_FAILED);
	ck_assert_uint_eq(bed_run(b, run)->lost_count, 0);
	ck_assert_int_eq(controller_fence(bed_controller(b), "n2", &count), 0);
	ck_assert_int_eq(count, 0);
	bed_free(b);
}
END_TEST

/* The start may still arrive after it. */
START_TEST(a_stop_that_did_not_arrive_confirms_nothing)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run;

	bed_delay_start(b, "n2", 45);
	run = submit_keeping(b);
	bed_pass(b, 1);
	bed_cut_off(b, "n2", true);
	bed_give_up_calls(b);
	bed_pass(b, 3);
	ck_assert(bed_run(b, run)->lost[0].asked);
	bed_pass(b, 37); /* the stop is given up, too */
	ck_assert_uint_eq(bed_run(b, run)->lost_count, 1);
	ck_assert(!bed_run(b, run)->lost[0].asked);
	ck_assert(!bed_run(b, run)->lost[0].confirmed);
	bed_free(b);
}
END_TEST

/* Of a node whose version knows no leases only an administrator can say that a lost part has ended. */
START_TEST(a_part_has_a_lease_where_its_node_knows_leases)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n"); /* the first one knows none */
	int64_t run = submit(b, 2, 0, 1);

	bed_await(b, run, RUN_RUNNING);
	ck_assert_str_eq(bed_run(b, run)->parts[0].node, "n1");
	ck_assert_double_eq(bed_run(b, run)->parts[0].lease, 0);
	ck_assert_double_gt(bed_run(b, run)->parts[1].lease, 0);
	/* A part is of a boot of its machine, too. */
	ck_assert_ptr_nonnull(bed_run(b, run)->parts[1].boot);
	bed_free(b);
}
END_TEST

/* The next one is taken. */
START_TEST(a_heartbeat_is_taken_once)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	struct error err = ERROR_INIT;

	for (int i = 0; i < 3; i++) {
		struct heartbeat heartbeat = {.node = (char *)"n2",
		                              .instance = (char *)"another",
		                              .version = (char *)"1",
		                              .sequence = 7 + i / 2};
		struct heartbeat_answer answer;
		int r = controller_heartbeat(bed_controller(b), &heartbeat, &answer, &err);

		ck_assert_int_eq(r, i == 1 ? -EALREADY : 0);
		heartbeat_answer_release(&answer);
	}
	bed_free(b);
}
END_TEST

START_TEST(a_reboot_of_a_lost_node_ends_the_wait)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = submit_keeping(b);

	bed_await(b, run, RUN_RUNNING);
	bed_cut_off(b, "n2", true);
	bed_pass(b, 100);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	bed_reboot(b, "n2");
	bed_cut_off(b, "n2", false);
	bed_pass(b, 2);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	bed_free(b);
}
END_TEST

START_TEST(a_fence_ends_the_wait)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = submit_keeping(b), count;

	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(controller_fence(bed_controller(b), "n2", &count), -EBUSY);
	ck_assert_int_eq(controller_fence(bed_controller(b), "n9", &count), -ENOENT);
	bed_cut_off(b, "n2", true);
	bed_pass(b, 100);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	/* The next controller waits, too. */
	bed_restart_controller(b);
	bed_pass(b, 100);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	ck_assert_int_eq(controller_fence(bed_controller(b), "n2", &count), 0);
	ck_assert_int_eq(count, 1);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_free(b);
}
END_TEST

/* At once: the next controller does not wait for it any more. */
START_TEST(a_fence_is_stored)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = submit_keeping(b), count;

	bed_await(b, run, RUN_RUNNING);
	bed_cut_off(b, "n2", true);
	bed_pass(b, 100);
	ck_assert_uint_eq(bed_run(b, run)->lost_count, 1);
	ck_assert_int_eq(controller_fence(bed_controller(b), "n2", &count), 0);
	bed_pass(b, 0.01);
	bed_crash_controller(b);
	ck_assert_uint_eq(bed_run(b, run)->lost_count, 0);
	bed_free(b);
}
END_TEST

/* How long ago the node was heard, a restarted controller does not know: it waits for a whole lease. */
START_TEST(a_restarted_controller_waits_for_leases)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = submit(b, 2, 0, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 2);
	bed_cut_off(b, "n2", true);
	bed_restart_controller(b);
	bed_pass(b, 55);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	bed_crash_controller(b);
	bed_pass(b, 55);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	bed_pass(b, 10);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_free(b);
}
END_TEST

/* A node keeps the lease that it was granted, whatever the configuration says later. */
START_TEST(a_shorter_lease_does_not_shorten_those_before_it)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	/* the run was placed under a shorter lease, and kept under a longer one */
	bool placed_before = _i == 1;
	int64_t run = 0;

	if (placed_before) {
		run = submit(b, 2, 0, 1);
		bed_await(b, run, RUN_RUNNING);
	}
	bed_set_lease(b, 600);
	bed_restart_controller(b);
	bed_pass(b, 3);
	if (!placed_before) {
		run = submit(b, 2, 0, 1);
		bed_await(b, run, RUN_RUNNING);
	}
	bed_pass(b, 3);
	bed_cut_off(b, "n2", true);
	bed_set_lease(b, 60);
	bed_restart_controller(b);
	bed_pass(b, 300);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	bed_restart_controller(b);
	bed_pass(b, 280);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	bed_pass(b, 600);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_free(b);
}
END_TEST

/* A start that was held up until its lease had run out, and the node has a new one, does nothing. */
START_TEST(a_start_from_before_a_partition_is_refused)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run;

	bed_delay_start(b, "n2", 100);
	run = submit(b, 2, 0, 1);
	bed_pass(b, 1);
	bed_cut_off(b, "n2", true);
	bed_give_up_calls(b);
	bed_pass(b, 80);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_cut_off(b, "n2", false);
	for (int i = 0; i < 400; i++) {
		bed_pass(b, 0.1);
		ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	}
	ck_assert_int_eq(bed_starts(b, "n2"), 1);
	bed_free(b);
}
END_TEST

/* What a node has that was removed from the hosts file is stopped once it is back. */
START_TEST(a_lost_node_that_was_removed_ends_the_wait)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = submit_keeping(b);

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 2);
	bed_cut_off(b, "n2", true);
	bed_pass(b, 20);
	bed_set_hosts(b, "n1 slots=1\nn3 slots=1\n");
	bed_set_hosts(b, "n1 slots=1\nn3 slots=1\n");
	bed_pass(b, 100);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	bed_cut_off(b, "n2", false);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_set_hosts(b, "n1 slots=1\nn3 slots=1\n");
	ck_assert_ptr_null(controller_find_node(bed_controller(b), "n2"));
	bed_free(b);
}
END_TEST

/* A controller that has started since the node was removed knows of it from the run alone. */
START_TEST(a_lost_node_outside_of_the_hosts_file_is_fenced)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = submit_keeping(b), count;

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 2);
	bed_cut_off(b, "n2", true);
	bed_pass(b, 20);
	bed_set_hosts(b, "n1 slots=1\nn3 slots=1\n");
	bed_restart_controller(b);
	bed_pass(b, 20);
	ck_assert_str_eq(bed_run(b, run)->reason,
	                 "waits for the end of attempt 1 on node n2, which is not in the hosts file: an "
	                 "administrator has to fence it (dtrain fence)");
	ck_assert_int_eq(controller_fence(bed_controller(b), "n2", &count), 0);
	bed_await(b, run, RUN_RUNNING);
	bed_free(b);
}
END_TEST

/* Whether a run on one device of each node could run; refusal: what is said, NULL: it could. */
static void check_resources(struct bed *b, const char *resources, const char *refusal)
{
	_cleanup_free_ char *text =
	    str_printf("{\"task\":\"command\",\"command\":[\"true\"],\"directory\":\"/tmp\","
	               "\"resources\":{\"devices_per_node\":1,%s}}",
	               resources);
	_cleanup_json_ json_t *given = json_loads(text, 0, NULL);
	_cleanup_(run_config_freep) struct run_config *config = NULL;
	struct error err = ERROR_INIT;
	struct run *r = NULL;

	ck_ok(run_config_from_json(given, &config, &err), &err);
	ck_ok(run_new(config, &r, &err), &err);
	ck_assert_int_eq(controller_check(bed_controller(b), r, &err), refusal ? -ENODEV : 0);
	if (refusal)
		ck_assert_str_eq(err.message, refusal);
	run_free(r);
}

/* It still has a part of a run, but it is no node of the cluster for a new one: whether this controller knew
 * it, or has started since. */
START_TEST(a_node_that_was_removed_takes_no_new_run)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = submit_keeping(b);

	bed_await(b, run, RUN_RUNNING);
	bed_cut_off(b, "n2", true);
	bed_pass(b, 20);
	bed_set_hosts(b, "n1 slots=1\n");
	if (_i)
		bed_restart_controller(b);
	bed_pass(b, 20);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	check_resources(b, "\"nodes\":2", "the run asks for 2 nodes; the cluster has 1 node");
	check_resources(b, "\"hosts\":[\"n2\"]",
	                "the run asks for host n2, which is not in the cluster; its nodes are n1");
	check_resources(b, "\"hosts\":[\"n1\"]", NULL);
	bed_free(b);
}
END_TEST

/* Nobody knows whether a start without an answer has arrived, or will. */
START_TEST(a_start_without_an_answer_may_arrive_late)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run;

	bed_delay_start(b, "n2", 45);
	run = bed_submit(b, 2, 1);
	bed_pass(b, 1);
	ck_assert_int_eq(bed_starts(b, "n2"), 0);
	bed_give_up_calls(b);
	bed_pass(b, 100);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	ck_assert_int_eq(
	    bed_attempt_on(b, "n1", run) + bed_attempt_on(b, "n2", run) + bed_attempt_on(b, "n3", run), 4);
	bed_free(b);
}
END_TEST

/* A backup was taken while the run waited for attempt 2, and is put back while that one runs. */
START_TEST(an_attempt_that_a_restored_store_does_not_know_is_left_alone)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = submit(b, 1, 100, 100);

	fail_attempt(b, "n1", run, 1);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	bed_copy_store(b, false);
	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 2);
	bed_copy_store(b, true);
	bed_await(b, run, RUN_FAILED);
	bed_pass(b, 30);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_FAILED);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 2);
	ck_assert_int_eq(bed_starts(b, "n1") + bed_starts(b, "n2"), 2);
	bed_free(b);
}
END_TEST

/* The attempt has failed before that, but its end takes so long that no time is left for another one. */
START_TEST(no_attempt_follows_where_the_time_is_over)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"nodes\":2,\"time_limit\":\"1m\",\"max_restarts\":3");

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 50);
	bed_lose_stops(b, "n2", true);
	bed_end_ranks(b, "n1", run, 1);
	bed_pass(b, 20);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_STOPPING);
	bed_lose_stops(b, "n2", false);
	bed_await(b, run, RUN_TIMED_OUT);
	ck_assert_int_eq(bed_run(b, run)->attempt, 1);
	ck_assert_str_eq(bed_run(b, run)->reason,
	                 "its time limit of 1m00s was reached (resources.time_limit)");
	bed_free(b);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("retries");
	TCase *tc = tcase_create("stories");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, a_failed_program_is_started_again);
	tcase_add_test(tc, restarts_have_an_end_and_a_growing_delay);
	tcase_add_test(tc, a_long_attempt_makes_the_delay_short_again);
	tcase_add_test(tc, a_run_that_waits_for_its_next_attempt_holds_no_slots);
	tcase_add_test(tc, a_failed_node_is_avoided_where_others_suffice);
	tcase_add_test(tc, nodes_of_the_last_attempt_alone_are_avoided);
	tcase_add_test(tc, a_failed_node_is_taken_again_where_others_do_not_suffice);
	tcase_add_test(tc, a_node_failure_is_no_restart);
	tcase_add_test(tc, a_refusal_for_good_is_not_tried_again);
	tcase_add_test(tc, a_node_that_cannot_start_it_is_avoided);
	tcase_add_test(tc, a_run_that_waits_can_be_cancelled);
	tcase_add_test(tc, a_restarted_controller_goes_on_counting);
	tcase_add_test(tc, an_attempt_is_told_which_checkpoint_there_is);
	tcase_add_test(tc, a_run_without_newer_checkpoints_is_given_up);
	tcase_add_test(tc, a_lost_node_is_waited_for_until_its_lease_has_run_out);
	tcase_add_test(tc, a_lost_node_that_is_back_ends_the_wait);
	tcase_add_test(tc, a_heartbeat_from_before_the_start_does_not_end_the_wait);
	tcase_add_test(tc, a_run_that_has_ended_has_no_lost_parts);
	tcase_add_test(tc, a_stop_that_did_not_arrive_confirms_nothing);
	tcase_add_test(tc, a_part_has_a_lease_where_its_node_knows_leases);
	tcase_add_test(tc, a_heartbeat_is_taken_once);
	tcase_add_test(tc, a_reboot_of_a_lost_node_ends_the_wait);
	tcase_add_test(tc, a_fence_ends_the_wait);
	tcase_add_test(tc, a_fence_is_stored);
	tcase_add_test(tc, a_restarted_controller_waits_for_leases);
	tcase_add_test(tc, a_heartbeat_that_comes_twice_does_not_end_the_lease);
	tcase_add_test(tc, a_start_without_an_answer_may_arrive_late);
	tcase_add_loop_test(tc, a_shorter_lease_does_not_shorten_those_before_it, 0, 2);
	tcase_add_test(tc, a_start_from_before_a_partition_is_refused);
	tcase_add_test(tc, a_lost_node_that_was_removed_ends_the_wait);
	tcase_add_test(tc, a_lost_node_outside_of_the_hosts_file_is_fenced);
	tcase_add_loop_test(tc, a_node_that_was_removed_takes_no_new_run, 0, 2);
	tcase_add_test(tc, an_attempt_that_a_restored_store_does_not_know_is_left_alone);
	tcase_add_test(tc, no_attempt_follows_where_the_time_is_over);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
