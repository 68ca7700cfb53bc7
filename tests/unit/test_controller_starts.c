/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what the controller starts and what it says of runs that wait or stop, in simulated time
 * (controller_bed.h). */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "controller/controller.h"
#include "controller/nodes.h"
#include "controller/reconcile.h"
#include "controller/runs.h"
#include "controller_bed_internal.h"
#include "wire/heartbeat.h"

/* They are in the order of the node. */
START_TEST(a_rank_may_have_all_slots_of_its_node)
{
	struct bed *b = bed_create("n1 slots=3\n");
	const int64_t *slots;
	size_t count;
	int64_t run;

	run = bed_submit_resources(b, "\"nodes\":1,\"devices_per_node\":2");
	bed_await(b, run, RUN_RUNNING);
	bed_last_slots(b, &count);
	ck_assert_uint_eq(count, 0);
	bed_end_ranks(b, "n1", run, 0);
	bed_await(b, run, RUN_SUCCEEDED);
	run = bed_submit_resources(b, "\"nodes\":1,\"devices_per_node\":3,\"one_per_node\":true");
	bed_await(b, run, RUN_RUNNING);
	ck_assert_uint_eq(bed_run(b, run)->rank_count, 1);
	slots = bed_last_slots(b, &count);
	ck_assert_uint_eq(count, 3);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(slots[i], i);
	bed_free(b);
}
END_TEST

/* Its disk is full, say. What it could not start runs on another node, as does what is submitted then; it is
 * tried again after a time that doubles, and as before when it has started a run. */
START_TEST(a_node_that_starts_nothing_gets_no_runs_for_a_time)
{
	static const char full[] = "cannot create /var/log/dtrain/1/1: No space left on device";
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	_cleanup_free_ char *before = NULL, *after = NULL;
	int64_t first, second, third;
	double since;

	bed_refuse_next(b, "n1", -ENOTRECOVERABLE, full);
	first = bed_submit(b, 1, 1);
	bed_await(b, first, RUN_RUNNING);
	ck_assert_str_eq(bed_run(b, first)->ranks[0].node, "n2");
	before = bed_node_text(b, 0, "failing");
	ck_assert_str_eq(before, full);
	since = b->now;
	second = bed_submit(b, 1, 1);
	bed_pass(b, 10);
	ck_assert_int_eq(bed_run(b, second)->state, RUN_QUEUED);
	third = bed_submit(b, 2, 1);
	bed_pass(b, 1);
	ck_assert_msg(strstr(bed_run(b, third)->reason,
	                     "waits for node n1, which could not start a run: cannot "
	                     "create /var/log/dtrain/1/1: No space left") != NULL,
	              "%s", bed_run(b, third)->reason);
	controller_cancel_run(bed_controller(b), third, "alice");
	bed_refuse_next(b, "n1", -ENOTRECOVERABLE, full);
	bed_pass(b, 25);
	ck_assert_int_eq(bed_run(b, second)->state, RUN_QUEUED);
	/* The second failure was after 30 seconds; the next start is 60 seconds behind it. */
	bed_pass(b, since + 80 - b->now);
	ck_assert_int_eq(bed_run(b, second)->state, RUN_QUEUED);
	bed_await(b, second, RUN_RUNNING);
	ck_assert_double_gt(b->now, since + 88);
	ck_assert_double_lt(b->now, since + 100);
	ck_assert_str_eq(bed_run(b, second)->ranks[0].node, "n1");
	after = bed_node_text(b, 0, "failing");
	ck_assert_ptr_null(after);
	bed_free(b);
}
END_TEST

/* A service that begins anew is tried at once. */
START_TEST(a_node_that_starts_nothing_is_tried_again_when_it_begins_anew)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run;

	bed_refuse_next(b, "n1", -ENOTRECOVERABLE, "no room");
	run = bed_submit(b, 1, 1);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	bed_rename(b, "n1", "n1");
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	bed_free(b);
}
END_TEST

/* None of its nodes hears of an attempt that cannot be prepared. */
static const struct {
	int code;
	bool again; /* it may succeed later */
} codes[] = {{-EHOSTUNREACH, true}, {-EMFILE, true}, {-EINVAL, false}};

START_TEST(an_attempt_that_cannot_be_prepared_is_not_started)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	bed_break_ports(b, codes[_i].code);
	run = bed_submit_resources(b, "\"nodes\":2,\"max_node_failures\":3");
	bed_await(b, run, codes[_i].again ? RUN_QUEUED : RUN_FAILED);
	if (!codes[_i].again) {
		ck_assert_ptr_nonnull(strstr(bed_run(b, run)->detail, "no port is free"));
		ck_assert_str_eq(bed_run(b, run)->reason, "node n1: the start has failed");
	}
	bed_pass(b, 2);
	ck_assert_int_eq(bed_starts(b, "n1") + bed_starts(b, "n2"), 0);
	bed_break_ports(b, 0);
	if (codes[_i].again)
		bed_await(b, run, RUN_RUNNING);
	bed_free(b);
}
END_TEST

/* More than one pass places. */
START_TEST(many_runs_are_placed_at_once)
{
	enum { RUNS = 70 };
	struct bed *b = bed_create("n1 slots=8\nn2 slots=8\nn3 slots=8\nn4 slots=8\nn5 slots=8\nn6 slots=8\n"
	                           "n7 slots=8\nn8 slots=8\nn9 slots=8\n");
	struct controller *c = bed_controller(b);
	int64_t first = 0;
	int running = 0;

	for (size_t i = 0; i < controller_node_count(c); i++)
		ck_assert_int_eq(controller_set_drained(c, controller_node(c, i)->name, true, NULL), 0);
	for (int i = 0; i < RUNS; i++) {
		int64_t run = bed_submit_resources(b, "\"nodes\":1");

		first = first ? first : run;
	}
	bed_pass(b, 2);
	for (size_t i = 0; i < controller_node_count(c); i++)
		ck_assert_int_eq(controller_set_drained(c, controller_node(c, i)->name, false, NULL), 0);
	bed_pass(b, 2);
	for (int i = 0; i < RUNS; i++)
		running += bed_run(b, first + i)->state == RUN_RUNNING;
	ck_assert_int_eq(running, RUNS);
	bed_free(b);
}
END_TEST

/* Who follows a run learns of it by its version. */
START_TEST(a_reason_that_changes_is_a_new_version)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run =
	            bed_submit_resources(b, "\"nodes\":2,\"max_node_failures\":9,\"on_partition\":\"keep\""),
	        version;

	bed_await(b, run, RUN_RUNNING);
	bed_cut_off(b, "n2", true);
	bed_await(b, run, RUN_QUEUED);
	version = bed_run(b, run)->version;
	bed_pass(b, 30);
	ck_assert_str_eq(bed_run(b, run)->reason,
	                 "waits for the end of attempt 1 on node n2, which cannot be reached: it has to come "
	                 "back, or to be fenced (dtrain fence)");
	ck_assert_int_gt(bed_run(b, run)->version, version);
	/* And of nothing else: other runs come and go. */
	version = bed_run(b, run)->version;
	for (int i = 0; i < 3; i++) {
		bed_cancel(b, bed_submit_resources(b, "\"nodes\":2"));
		bed_pass(b, 2);
	}
	ck_assert_int_eq(bed_run(b, run)->version, version);
	bed_free(b);
}
END_TEST

START_TEST(each_lost_node_is_fenced_for_itself)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\nn4 slots=1\nn5 slots=1\n");
	int64_t run =
	            bed_submit_resources(b, "\"nodes\":3,\"max_node_failures\":9,\"on_partition\":\"keep\""),
	        count;

	bed_await(b, run, RUN_RUNNING);
	bed_cut_off(b, "n2", true);
	bed_cut_off(b, "n3", true);
	bed_pass(b, 30);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	ck_assert_int_eq(controller_fence(bed_controller(b), "N2", &count), 0);
	ck_assert_int_eq(count, 1);
	bed_pass(b, 10);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	ck_assert_str_eq(bed_run(b, run)->reason,
	                 "waits for the end of attempt 1 on node n3, which cannot be reached: it has to come "
	                 "back, or to be fenced (dtrain fence)");
	ck_assert_int_eq(controller_fence(bed_controller(b), "n2", &count), 0);
	ck_assert_int_eq(count, 0);
	ck_assert_int_eq(controller_fence(bed_controller(b), "n3", &count), 0);
	ck_assert_int_eq(count, 1);
	bed_await(b, run, RUN_RUNNING);
	bed_free(b);
}
END_TEST

START_TEST(a_node_that_was_shut_down_is_the_cause)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit(b, 2, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_shut_down(b, "n2");
	bed_pass(b, 1);
	bed_cut_off(b, "n2", true);
	bed_await(b, run, RUN_FAILED);
	ck_assert_str_eq(bed_run(b, run)->reason, "node n2 was shut down");
	bed_free(b);
}
END_TEST

/* Those of its parts that may still be there; a run that was never placed has none. */
START_TEST(a_run_stops_until_all_its_parts_have_ended)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	struct controller *c = bed_controller(b);
	int64_t run = bed_submit(b, 2, 1);

	bed_await(b, run, RUN_RUNNING);
	ck_assert(!controller_is_stopping(c));
	bed_lose_stops(b, "n2", true);
	bed_cancel(b, run);
	bed_pass(b, 1);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_STOPPING);
	ck_assert(controller_is_stopping(c));
	bed_end_ranks(b, "n2", run, 0);
	bed_await(b, run, RUN_CANCELLED);
	ck_assert(!controller_is_stopping(c));
	bed_free(b);
}
END_TEST

static void on_line(void *context, const char *line, size_t len)
{
}

START_TEST(what_is_said_of_runs_that_have_ended_is_ignored)
{
	struct bed *b = bed_create("n1 slots=1\n");
	struct controller *c = bed_controller(b);
	int64_t run = bed_submit(b, 1, 1), version;
	_cleanup_json_ json_t *progress = json_pack("{s:i}", "step", 1);
	struct feed_listener *listener = NULL;
	struct error err = ERROR_INIT;

	bed_await(b, run, RUN_RUNNING);
	bed_end_ranks(b, "n1", run, 0);
	bed_await(b, run, RUN_SUCCEEDED);
	bed_pass(b, 5);
	version = bed_run(b, run)->version;
	for (int64_t id = run; id <= run + 1; id++) {
		controller_set_progress(c, id, progress, "{}\n", 3);
		controller_set_checkpoint(c, id, 5);
		controller_worker_error(c, id, 0, "late", true);
		controller_cancel_run(c, id, "alice");
		ck_fails(controller_listen_metrics(c, id, on_line, NULL, &listener, &err), &err, "has ended");
		ck_assert_int_eq(err.code, -ENOENT);
		ck_assert_ptr_null(listener);
	}
	bed_pass(b, 2);
	ck_assert_int_eq(bed_run(b, run)->version, version);
	ck_assert_ptr_null(bed_run(b, run)->progress);
	bed_free(b);
}
END_TEST

/* Where an earlier store has given numbers that this one does not know. */
START_TEST(the_directories_of_runs_keep_their_numbers)
{
	static const char *const names[] = {"41", "7", "x9", "0", "100x", "-5"};
	struct bed *b = bed_create("n1 slots=1\n");
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		_cleanup_free_ char *path = str_printf("%s/runs/%s", bed_state_dir(b), names[i]);

		ck_ok(file_mkdirs(path, 0755, &err), &err);
	}
	bed_restart_controller(b);
	bed_pass(b, 2);
	ck_assert_int_eq(bed_submit(b, 1, 1), 42);
	bed_free(b);
}
END_TEST

/* Of a node that was removed meanwhile, and one that is not the last of its node. */
START_TEST(only_the_last_heartbeat_of_a_node_is_kept)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	struct controller *c = bed_controller(b);
	const struct member *m = controller_find_node(c, "n2");
	struct heartbeat_answer answer = {.whole = -1};
	struct heartbeat beat = {.node = (char *)"n9", .instance = (char *)"i", .sequence = 1};
	_cleanup_free_ char *instance = NULL;

	controller_keep_heartbeat(c, &beat, &answer);
	ck_assert_int_eq(answer.whole, -1);
	instance = strdup(m->instance);
	beat.node = (char *)"n2";
	beat.sequence = m->sequence;
	controller_keep_heartbeat(c, &beat, &answer);
	ck_assert_int_eq(answer.whole, -1);
	beat.instance = instance;
	beat.sequence = m->sequence - 1;
	controller_keep_heartbeat(c, &beat, &answer);
	ck_assert_int_eq(answer.whole, -1);
	bed_free(b);
}
END_TEST

static void on_set(void *context, const struct peer_result *result)
{
	ck_assert_int_eq(result->code, 0);
}

/* A slot of it that is drained makes a spare node useless. */
START_TEST(a_spare_with_a_drained_slot_is_replaced)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=2\nn3 slots=2\n");
	int64_t run = bed_submit_resources(b, "\"nodes\":1,\"spares\":1,\"max_node_failures\":9");

	bed_await(b, run, RUN_RUNNING);
	ck_assert_uint_eq(bed_run(b, run)->spare_count, 1);
	ck_assert_str_eq(bed_run(b, run)->spares[0].node, "n2");
	ck_assert_int_eq(bed_run(b, run)->spares[0].slots[0], 0);
	/* One that is not kept for it makes no difference. */
	for (int slot = 1; slot >= 0; slot--) {
		ck_assert_int_eq(
		    controller_set_device_drained(bed_controller(b), "n2", slot, true, NULL, on_set, NULL),
		    0);
		bed_pass(b, 3);
		ck_assert_uint_eq(bed_run(b, run)->spare_count, 1);
		ck_assert_str_eq(bed_run(b, run)->spares[0].node, slot == 1 ? "n2" : "n3");
	}
	bed_free(b);
}
END_TEST

START_TEST(a_run_may_have_several_spares)
{
	struct bed *b = bed_create("n1 slots=2\nn2 slots=2\nn3 slots=2\nn4 slots=2\n");
	int64_t run = bed_submit_resources(
	    b, "\"nodes\":1,\"spares\":2,\"devices_per_node\":2,\"max_node_failures\":9");

	bed_await(b, run, RUN_RUNNING);
	ck_assert_uint_eq(bed_run(b, run)->spare_count, 2);
	ck_assert_uint_eq(bed_run(b, run)->spares[0].slot_count, 2);
	ck_assert_int_eq(controller_set_drained(bed_controller(b), "n2", true, NULL), 0);
	bed_pass(b, 3);
	ck_assert_uint_eq(bed_run(b, run)->spare_count, 2);
	ck_assert_str_eq(bed_run(b, run)->spares[0].node, "n3");
	ck_assert_str_eq(bed_run(b, run)->spares[1].node, "n4");
	bed_free(b);
}
END_TEST

/* Of a run that waits: submitted, why it waits, and that it was cancelled. */
START_TEST(each_change_of_a_run_is_a_version)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t running = bed_submit(b, 1, 1), waiting;

	bed_await(b, running, RUN_RUNNING);
	waiting = bed_submit(b, 1, 1);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, waiting)->state, RUN_QUEUED);
	ck_assert_int_eq(bed_run(b, waiting)->version, 2);
	ck_assert_double_gt(bed_run(b, waiting)->submitted, bed_run(b, running)->started);
	bed_cancel(b, waiting);
	bed_await(b, waiting, RUN_CANCELLED);
	ck_assert_int_eq(bed_run(b, waiting)->version, 3);
	bed_free(b);
}
END_TEST

/* What the node that was given up has begun is stopped there at once, while another node still ends its part
 * of the attempt. */
START_TEST(a_part_that_was_given_up_does_not_wait_for_the_others)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	bed_lose_answer(b, "n2");
	bed_lose_stops(b, "n1", true);
	run = bed_submit(b, 2, 1);
	bed_pass(b, 35);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_STOPPING);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 1);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	bed_lose_stops(b, "n1", false);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	bed_free(b);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("starts");
	TCase *tc = tcase_create("stories");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, a_rank_may_have_all_slots_of_its_node);
	tcase_add_loop_test(tc, an_attempt_that_cannot_be_prepared_is_not_started, 0, ARRAY_SIZE(codes));
	tcase_add_test(tc, a_node_that_starts_nothing_gets_no_runs_for_a_time);
	tcase_add_test(tc, a_node_that_starts_nothing_is_tried_again_when_it_begins_anew);
	tcase_add_test(tc, many_runs_are_placed_at_once);
	tcase_add_test(tc, a_reason_that_changes_is_a_new_version);
	tcase_add_test(tc, each_lost_node_is_fenced_for_itself);
	tcase_add_test(tc, a_node_that_was_shut_down_is_the_cause);
	tcase_add_test(tc, a_run_stops_until_all_its_parts_have_ended);
	tcase_add_test(tc, what_is_said_of_runs_that_have_ended_is_ignored);
	tcase_add_test(tc, the_directories_of_runs_keep_their_numbers);
	tcase_add_test(tc, only_the_last_heartbeat_of_a_node_is_kept);
	tcase_add_test(tc, a_spare_with_a_drained_slot_is_replaced);
	tcase_add_test(tc, a_run_may_have_several_spares);
	tcase_add_test(tc, each_change_of_a_run_is_a_version);
	tcase_add_test(tc, a_part_that_was_given_up_does_not_wait_for_the_others);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
