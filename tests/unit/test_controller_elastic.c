/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of runs that go on with more nodes when some come back, in simulated time (controller_bed.h). */
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "controller/controller.h"
#include "controller/nodes.h"
#include "controller/runs.h"
#include "controller_bed.h"

/* A command that saves on a signal, with these resources. */
static int64_t submit(struct bed *b, const char *resources)
{
	_cleanup_free_ char *all =
	    str_printf("\"save_signal\":\"USR1\",\"save_seconds\":50,\"grace\":9,%s", resources);

	return bed_submit_resources(b, all);
}

static void set_drained(struct bed *b, const char *node, bool drained)
{
	ck_assert_int_eq(controller_set_drained(bed_controller(b), node, drained, NULL), 0);
}

/* A run that began on two nodes, since the third one was drained, which it is no more. */
static int64_t begin_small(struct bed *b, const char *resources)
{
	int64_t run;

	set_drained(b, "n3", true);
	run = submit(b, resources);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->nodes, 2);
	bed_pass(b, 100);
	set_drained(b, "n3", false);
	return run;
}

static void check_size(struct bed *b, int64_t run, int64_t attempt, int64_t nodes)
{
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, attempt);
	ck_assert_int_eq(bed_run(b, run)->nodes, nodes);
}

START_TEST(a_run_grows_when_a_node_is_back)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = begin_small(b, "\"nodes\":\"2..3\",\"grow_after\":60");
	_cleanup_json_ json_t *view = NULL;

	bed_pass(b, 59);
	check_size(b, run, 1, 2);
	bed_pass(b, 2);
	check_size(b, run, 2, 3);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	ck_assert_double_eq(bed_last_stop(b).save, 50);
	ck_assert_double_eq(bed_last_stop(b).grace, 9);
	ck_assert_int_eq(bed_count_events(b, "it can have 3 nodes instead of 2: it saves, stops"), 1);
	view = run_to_json(bed_run(b, run), true);
	ck_assert_str_eq(json_get_string(view, "last_failure", ""),
	                 "attempt 1: it can have 3 nodes instead of 2");
	ck_assert_int_eq(json_get_int(view, "restarts", 0) + json_get_int(view, "node_failures", 0), 0);
	bed_pass(b, 1000);
	check_size(b, run, 2, 3);
	bed_free(b);
}
END_TEST

/* A native run saves by itself; the default is five minutes. */
START_TEST(a_training_grows)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	set_drained(b, "n2", true);
	run = bed_submit_config(
	    b, "{\"task\":\"pretrain\",\"directory\":\"/m\",\"model\":{\"init\":\"c\"},\"data\":{\"path\":["
	       "\"a\"],\"format\":\"text\"},\"train\":{\"max_steps\":5},\"output\":{\"dir\":\"out\"},"
	       "\"resources\":{\"nodes\":\"1..2\"}}");
	bed_await(b, run, RUN_RUNNING);
	set_drained(b, "n2", false);
	bed_pass(b, 290);
	check_size(b, run, 1, 1);
	bed_pass(b, 11);
	check_size(b, run, 2, 2);
	bed_free(b);
}
END_TEST

/* A node that comes and goes does not count until it stays. */
START_TEST(nodes_have_to_be_free_without_interruption)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = begin_small(b, "\"nodes\":\"2..3\",\"grow_after\":60");

	for (int i = 0; i < 5; i++) {
		bed_pass(b, 40);
		bed_cut_off(b, "n3", true);
		bed_pass(b, 20);
		bed_cut_off(b, "n3", false);
		bed_pass(b, 2);
	}
	check_size(b, run, 1, 2);
	bed_pass(b, 60);
	check_size(b, run, 2, 3);
	bed_free(b);
}
END_TEST

/* Whatever ended the one before. */
START_TEST(an_attempt_lasts_before_its_size_changes)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run;

	run = submit(b, "\"nodes\":\"2..3\",\"grow_after\":60,\"max_node_failures\":9");
	bed_await(b, run, RUN_RUNNING);
	bed_reboot(b, "n3");
	bed_await(b, run, RUN_QUEUED);
	set_drained(b, "n3", true);
	bed_await(b, run, RUN_RUNNING);
	check_size(b, run, 2, 2);
	set_drained(b, "n3", false);
	bed_pass(b, 55);
	check_size(b, run, 2, 2);
	bed_pass(b, 7);
	check_size(b, run, 3, 3);
	ck_assert_int_eq(bed_run(b, run)->retries.record.node_failures, 1);
	bed_free(b);
}
END_TEST

/* Also those that have to wait for more than is free. */
START_TEST(runs_that_wait_go_first)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run, one, two;

	set_drained(b, "n3", true);
	run = submit(b, "\"nodes\":\"2..3\",\"grow_after\":60");
	one = submit(b, "\"nodes\":1");
	two = submit(b, "\"nodes\":2");
	bed_pass(b, 2);
	set_drained(b, "n3", false);
	bed_await(b, one, RUN_RUNNING);
	bed_pass(b, 100);
	bed_end_ranks(b, "n3", one, 0);
	bed_pass(b, 300);
	check_size(b, run, 1, 2);
	bed_cancel(b, two);
	bed_pass(b, 59);
	check_size(b, run, 1, 2);
	bed_pass(b, 2);
	check_size(b, run, 2, 3);
	bed_free(b);
}
END_TEST

/* What is free for both goes to the first; then the other one has its turn. */
START_TEST(runs_grow_one_after_the_other)
{
	struct bed *b = bed_create("n1 slots=2\nn2 slots=2\nn3 slots=2\n");
	int64_t first, second;

	set_drained(b, "n3", true);
	first = submit(b, "\"nodes\":\"2..3\",\"grow_after\":60");
	second = submit(b, "\"nodes\":\"2..3\",\"grow_after\":60");
	bed_await(b, second, RUN_RUNNING);
	bed_pass(b, 100);
	set_drained(b, "n3", false);
	bed_pass(b, 61);
	check_size(b, first, 2, 3);
	bed_pass(b, 5);
	check_size(b, second, 2, 3);
	bed_free(b);
}
END_TEST

START_TEST(what_cannot_save_does_not_grow)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run;

	if (_i == 0) {
		run = begin_small(b, "\"nodes\":\"2..3\",\"grow_after\":0");
	} else {
		set_drained(b, "n3", true);
		run = bed_submit_config(b, "{\"task\":\"command\",\"command\":[\"true\"],\"directory\":"
		                           "\"/tmp\",\"resources\":{\"kind\":\"cpu\",\"nodes\":\"2..3\"}}");
		bed_await(b, run, RUN_RUNNING);
		set_drained(b, "n3", false);
	}
	bed_pass(b, 5000);
	check_size(b, run, 1, 2);
	bed_free(b);
}
END_TEST

/* What it has counts once: it may have three slots, of which it has two. */
START_TEST(the_limit_of_a_user_holds)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run;

	controller_set_user_limits(bed_controller(b), (struct user_limits){.slots = 2 + _i});
	run = begin_small(b, "\"nodes\":\"2..3\",\"grow_after\":60");
	bed_pass(b, 500);
	check_size(b, run, 1 + _i, 2 + _i);
	bed_free(b);
}
END_TEST

/* How long nodes have been free is not on disk: it is waited for anew. */
START_TEST(a_restarted_controller_lets_runs_grow)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = begin_small(b, "\"nodes\":\"2..3\",\"grow_after\":60");

	bed_pass(b, 50);
	bed_restart_controller(b);
	bed_pass(b, 50);
	check_size(b, run, 1, 2);
	bed_pass(b, 15);
	check_size(b, run, 2, 3);
	bed_free(b);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("elastic");
	TCase *tc = tcase_create("stories");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, a_run_grows_when_a_node_is_back);
	tcase_add_test(tc, a_training_grows);
	tcase_add_test(tc, nodes_have_to_be_free_without_interruption);
	tcase_add_test(tc, an_attempt_lasts_before_its_size_changes);
	tcase_add_test(tc, runs_that_wait_go_first);
	tcase_add_test(tc, runs_grow_one_after_the_other);
	tcase_add_loop_test(tc, what_cannot_save_does_not_grow, 0, 2);
	tcase_add_loop_test(tc, the_limit_of_a_user_holds, 0, 2);
	tcase_add_test(tc, a_restarted_controller_lets_runs_grow);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
