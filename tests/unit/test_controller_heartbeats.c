/* SPDX-License-Identifier: Apache-2.0 */
/* Short heartbeats: when a node sends which kind, and that a short one does what a whole one would. */
#include <errno.h>

#include "base/json.h"
#include "controller/foreign.h"
#include "controller/nodes.h"
#include "controller/reconcile.h"
#include "controller/runs.h"
#include "controller_bed_internal.h"

/* Two nodes that have told everything. */
static struct bed *settled_bed(void)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");

	bed_pass(b, 3);
	bed_heartbeats(b, "n2");
	return b;
}

/* A run on n2 alone. */
static int64_t run_on_n2(struct bed *b)
{
	int64_t run;

	controller_set_drained(bed_controller(b), "n1", true, NULL);
	run = bed_submit(b, 1, 1);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	bed_pass(b, 3);
	bed_heartbeats(b, "n2");
	return run;
}

static enum slot_state slot_of_n2(struct bed *b)
{
	const struct member *m = controller_find_node(bed_controller(b), "n2");

	ck_assert_uint_eq(m->slots, 1);
	return m->devices[0].state;
}

#define ck_heartbeats(b, WHOLE, BRIEF, REFUSED)                                                              \
	do {                                                                                                 \
		struct heartbeat_counts counts_ = bed_heartbeats(b, "n2");                                   \
		ck_assert_int_eq(counts_.whole, WHOLE);                                                      \
		ck_assert_int_eq(counts_.brief, BRIEF);                                                      \
		ck_assert_int_eq(counts_.refused, REFUSED);                                                  \
	} while (0)

START_TEST(what_has_not_changed_is_said_in_short)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	struct heartbeat_counts counts;

	bed_pass(b, 3);
	counts = bed_heartbeats(b, "n2");
	ck_assert_int_ge(counts.whole, 1); /* the first, and what its answer has changed */
	ck_assert_int_le(counts.whole, 2);
	ck_assert_int_eq(counts.refused, 0);
	bed_pass(b, 8);
	ck_heartbeats(b, 0, 8, 0);
	ck_assert_int_eq(bed_heartbeats(b, "n1").brief, 0);
	/* What sensors read is not told for so long. */
	bed_pass(b, 60);
	counts = bed_heartbeats(b, "n2");
	ck_assert_int_ge(counts.whole, 3);
	ck_assert_int_le(counts.whole, 5);
	ck_assert_int_eq(counts.whole + counts.brief, 60);
	ck_assert(controller_find_node(bed_controller(b), "n2")->up);
	bed_free(b);
}
END_TEST

static void on_device_set(void *context, const struct peer_result *result)
{
	*(int *)context = result->code;
}

START_TEST(what_has_changed_is_said_at_once)
{
	struct bed *b = settled_bed();
	int code = 1;

	controller_set_device_drained(bed_controller(b), "n2", 0, true, NULL, on_device_set, &code);
	bed_pass(b, 3);
	ck_assert_int_eq(code, 0);
	ck_heartbeats(b, 1, 2, 0);
	ck_assert_int_eq(slot_of_n2(b), SLOT_DRAINED);
	bed_shut_down(b, "n2");
	bed_pass(b, 2);
	ck_heartbeats(b, 1, 1, 0);
	ck_assert(controller_find_node(bed_controller(b), "n2")->shutting_down);
	bed_free(b);
}
END_TEST

/* The lease is shorter than the time between two whole ones. */
START_TEST(short_ones_renew_the_lease)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	struct heartbeat_counts counts;
	int64_t run;

	bed_set_lease(b, 4);
	bed_restart_controller(b);
	bed_pass(b, 3);
	run = run_on_n2(b);
	bed_pass(b, 40);
	counts = bed_heartbeats(b, "n2");
	ck_assert_int_gt(counts.brief, 30);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 1);
	/* Starts carry the time of the newest heartbeat, of either kind. */
	bed_end_ranks(b, "n2", run, 0);
	bed_await(b, run, RUN_SUCCEEDED);
	bed_pass(b, 10);
	run = bed_submit(b, 1, 1);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 1);
	bed_free(b);
}
END_TEST

START_TEST(a_restarted_controller_asks_for_the_whole)
{
	struct bed *b = settled_bed();
	int64_t run = run_on_n2(b);

	/* The next one is whole, too: the answer has told the node of a new epoch. */
	bed_restart_controller(b);
	bed_pass(b, 4);
	ck_heartbeats(b, 2, 2, 1);
	ck_assert_int_eq(slot_of_n2(b), SLOT_LEASED);
	bed_crash_controller(b);
	bed_pass(b, 4);
	ck_heartbeats(b, 2, 2, 1);
	bed_pass(b, 20);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 1);
	bed_free(b);
}
END_TEST

START_TEST(a_restarted_node_says_the_whole)
{
	struct bed *b = settled_bed();
	int64_t run = run_on_n2(b);

	bed_reboot(b, "n2");
	bed_pass(b, 1);
	ck_heartbeats(b, 1, 0, 0);
	ck_assert_ptr_nonnull(strstr(bed_run(b, run)->reason, "has lost attempt 1"));
	bed_free(b);
}
END_TEST

/* The sequence of another instance may be the same. */
START_TEST(a_short_one_names_the_last_whole_one)
{
	struct bed *b = settled_bed();
	const struct node *n = node_find(b, "n2");
	const struct short_heartbeat wrong[] = {
	    {(char *)"n2", (char *)"boot-77", .sequence = n->sequence + 1, .whole = n->state.sequence},
	    {(char *)"n2", (char *)"boot-0", .sequence = n->sequence + 1, .whole = n->state.sequence - 1},
	    {(char *)"n2", (char *)"boot-0", .sequence = n->sequence + 1, .whole = 0},
	    {(char *)"n9", (char *)"boot-0", .sequence = n->sequence + 1, .whole = n->state.sequence},
	};

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		_cleanup_(heartbeat_answer_release) struct heartbeat_answer answer = {0};
		struct error err = ERROR_INIT;

		ck_assert_int_eq(controller_short_heartbeat(b->controller, &wrong[i], &answer, &err),
		                 str_eq(wrong[i].node, "n9") ? -ENOENT : -ESTALE);
		ck_assert_ptr_null(answer.cluster);
	}
	bed_pass(b, 2);
	ck_heartbeats(b, 0, 2, 0);
	bed_free(b);
}
END_TEST

START_TEST(after_a_lost_answer_the_whole_is_said)
{
	struct bed *b = settled_bed();

	bed_cut_off(b, "n2", true);
	bed_pass(b, 3);
	bed_cut_off(b, "n2", false);
	ck_assert(controller_find_node(bed_controller(b), "n2")->up);
	bed_pass(b, 2);
	ck_heartbeats(b, 1, 1, 0);
	/* Where it was away for so long that it is down, too. */
	bed_cut_off(b, "n2", true);
	bed_pass(b, 30);
	ck_assert(!controller_find_node(bed_controller(b), "n2")->up);
	bed_cut_off(b, "n2", false);
	bed_pass(b, 2);
	ck_heartbeats(b, 1, 1, 0);
	ck_assert(controller_find_node(bed_controller(b), "n2")->up);
	/* It is watched again. */
	bed_cut_off(b, "n2", true);
	bed_pass(b, 30);
	ck_assert(!controller_find_node(bed_controller(b), "n2")->up);
	bed_free(b);
}
END_TEST

/* The node still believes that what it has said holds. */
START_TEST(a_node_that_is_down_has_to_say_the_whole)
{
	struct bed *b = settled_bed();
	struct node *n = node_find(b, "n2");

	n->next_heartbeat += 20;
	bed_pass(b, 15);
	ck_assert(!controller_find_node(bed_controller(b), "n2")->up);
	n->state.at = b->now;
	bed_pass(b, 6);
	ck_assert(controller_find_node(bed_controller(b), "n2")->up);
	ck_assert_int_eq(bed_heartbeats(b, "n2").refused, 1);
	bed_free(b);
}
END_TEST

START_TEST(one_that_comes_twice_changes_nothing)
{
	struct bed *b = settled_bed();

	bed_repeat_heartbeat(b, "n2");
	bed_pass(b, 0.4);
	ck_heartbeats(b, 1, 0, 1); /* the node sends the whole one at once */
	bed_pass(b, 2);
	ck_heartbeats(b, 0, 2, 0);
	bed_free(b);
}
END_TEST

/* One that was overtaken by a whole one, which says something else. */
START_TEST(one_that_comes_late_changes_nothing)
{
	struct bed *b = settled_bed();
	struct node *n = node_find(b, "n2");

	bed_set_delay(b, "n2", 0.2);
	bed_send_heartbeat(b, "n2"); /* short */
	bed_set_delay(b, "n2", 0);
	n->drained[0] = true;
	bed_send_heartbeat(b, "n2"); /* whole */
	bed_pass(b, 0.1);
	ck_heartbeats(b, 1, 0, 0);
	ck_assert_int_eq(slot_of_n2(b), SLOT_DRAINED);
	bed_pass(b, 0.3);
	ck_assert_int_eq(slot_of_n2(b), SLOT_DRAINED);
	ck_assert_int_eq(bed_heartbeats(b, "n2").refused, 1);
	bed_pass(b, 2);
	ck_assert_int_eq(slot_of_n2(b), SLOT_DRAINED);
	bed_free(b);
}
END_TEST

/* The controller frees the slots of an attempt that it gives up. The node has not changed, and has it. */
START_TEST(a_slot_that_was_given_back_too_early_is_asked_for)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=2\n");
	struct node *n = node_find(b, "n2");
	int64_t run;

	controller_set_drained(bed_controller(b), "n1", true, NULL);
	bed_lose_answer(b, "n2");
	bed_lose_stops(b, "n2", true);
	run = bed_submit(b, 1, 1);
	bed_pass(b, 22);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	n->drained[1] = true; /* a whole one, and none in the next seconds */
	for (int i = 0; i < 100 && bed_run(b, run)->lost_count == 0; i++)
		bed_pass(b, 0.2);
	ck_assert_uint_eq(bed_run(b, run)->lost_count, 1);
	ck_assert_int_gt(bed_heartbeats(b, "n2").brief, 20);
	bed_pass(b, 1.2);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	ck_assert_int_eq(controller_find_node(bed_controller(b), "n2")->devices[0].state, SLOT_LEASED);
	bed_free(b);
}
END_TEST

START_TEST(a_stop_that_did_not_arrive_is_sent_again)
{
	struct bed *b = settled_bed();
	int64_t run = run_on_n2(b);

	bed_lose_stops(b, "n2", true);
	bed_cancel(b, run);
	bed_pass(b, 0.4);
	bed_lose_stops(b, "n2", false);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	ck_heartbeats(b, 0, 0, 0);
	bed_pass(b, 0.2);
	ck_heartbeats(b, 0, 1, 0);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	bed_await(b, run, RUN_CANCELLED);
	bed_free(b);
}
END_TEST

/* An end that is not on disk yet is kept by the node; the answer to a short one says when it may go. */
START_TEST(the_answer_to_a_short_one_forgets_ends)
{
	struct bed *b = settled_bed();
	int64_t run = run_on_n2(b);

	bed_break_store(b, true);
	bed_end_ranks(b, "n2", run, 0);
	bed_pass(b, 5);
	ck_assert_ptr_nonnull(node_find_attempt(node_find(b, "n2"), run, 1));
	ck_assert_int_ge(bed_heartbeats(b, "n2").brief, 3);
	bed_break_store(b, false);
	bed_pass(b, 5);
	ck_assert_ptr_null(node_find_attempt(node_find(b, "n2"), run, 1));
	ck_assert_int_eq(bed_run(b, run)->state, RUN_SUCCEEDED);
	bed_free(b);
}
END_TEST

START_TEST(foreign_work_stays_in_sight)
{
	struct bed *b = settled_bed();

	bed_plant(b, "n2", "0123456789abcdef0123456789abcdef", 1);
	bed_pass(b, 6);
	ck_heartbeats(b, 1, 5, 0);
	ck_assert_uint_eq(controller_find_node(bed_controller(b), "n2")->foreign_count, 1);
	ck_assert_uint_eq(controller_cancel_foreign(bed_controller(b), "n2", 0), 1);
	bed_pass(b, 3);
	ck_assert_uint_eq(controller_find_node(bed_controller(b), "n2")->foreign_count, 0);
	bed_free(b);
}
END_TEST

/* A node that was removed and added again is a new one to the controller. */
START_TEST(a_node_that_is_added_again_says_the_whole)
{
	struct bed *b = settled_bed();

	bed_set_hosts(b, "n1 slots=1\n");
	bed_set_hosts(b, "n1 slots=1\nn2 slots=1\n");
	bed_pass(b, 2);
	ck_heartbeats(b, 1, 1, 1);
	ck_assert(controller_find_node(bed_controller(b), "n2")->up);
	ck_assert_int_eq(slot_of_n2(b), SLOT_FREE);
	bed_free(b);
}
END_TEST

/* Numbers that another controller has given meanwhile. */
START_TEST(a_short_one_says_the_highest_number)
{
	struct bed *b = settled_bed();
	int64_t run = bed_submit(b, 1, 1);

	bed_pass(b, 2);
	bed_heartbeats(b, "n2");
	node_find(b, "n2")->highest_run = run + 1000;
	bed_pass(b, 1);
	ck_heartbeats(b, 0, 1, 0);
	ck_assert_int_gt(bed_submit(b, 1, 1), run + 1000);
	bed_free(b);
}
END_TEST

/* At once: the next controller gives no number again, whether they are reported to it or not. */
START_TEST(the_highest_number_is_stored)
{
	struct bed *b = settled_bed();

	node_find(b, "n2")->highest_run = 1000;
	bed_send_heartbeat(b, "n2");
	bed_pass(b, 0.01);
	bed_cut_off(b, "n2", true);
	bed_crash_controller(b);
	bed_pass(b, 30);
	node_find(b, "n1")->highest_run = 0;
	ck_assert_int_eq(bed_submit(b, 1, 1), 1101);
	bed_free(b);
}
END_TEST

/* No node says anything that keeps the controller from having a next epoch, and a next number. */
START_TEST(what_leaves_no_room_is_not_learned)
{
	struct bed *b = settled_bed();
	int64_t run = bed_submit(b, 1, 1);
	const int64_t epoch = node_find(b, "n1")->epoch;

	node_find(b, "n2")->highest_run = INT64_MAX;
	node_find(b, "n2")->epoch = INT64_MAX - 1;
	bed_send_heartbeat(b, "n2");
	bed_pass(b, 1);
	ck_assert_int_eq(bed_submit(b, 1, 1), run + 1);
	bed_pass(b, 1);
	ck_assert_int_eq(node_find(b, "n1")->epoch, epoch);
	bed_free(b);
}
END_TEST

/* Two nodes, of which this controller wants one heartbeat a second. */
static struct bed *slow_bed(void)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");

	bed_set_most_heartbeats(b, 1);
	bed_restart_controller(b);
	bed_pass(b, 4);
	bed_heartbeats(b, "n2");
	return b;
}

static int count_of(struct heartbeat_counts counts)
{
	return counts.whole + counts.brief;
}

START_TEST(nodes_are_asked_for_fewer)
{
	struct bed *b = slow_bed();
	int64_t run;

	bed_pass(b, 20);
	ck_assert_int_eq(count_of(bed_heartbeats(b, "n2")), 10);
	ck_assert_int_ge(count_of(bed_heartbeats(b, "n1")), 20); /* the controller's own costs nothing */
	/* A run does not notice. */
	run = run_on_n2(b);
	bed_pass(b, 200);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 1);
	ck_assert_int_lt(count_of(bed_heartbeats(b, "n2")), 103);
	bed_pass(b, 0.1);
	bed_end_ranks(b, "n2", run, 0);
	bed_pass(b, 0.1);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_SUCCEEDED);
	/* A controller that does not ask for it gets all again. */
	bed_set_most_heartbeats(b, 0);
	bed_restart_controller(b);
	bed_pass(b, 3);
	bed_heartbeats(b, "n2");
	bed_pass(b, 20);
	ck_assert_int_eq(count_of(bed_heartbeats(b, "n2")), 20);
	bed_free(b);
}
END_TEST

static enum node_state state_of(struct bed *b, const char *node)
{
	return member_state(controller_find_node(bed_controller(b), node));
}

/* Nothing is placed on it meanwhile, and the run that it has goes on. */
START_TEST(a_node_is_unknown_to_a_new_controller_until_the_time_out)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	bool returns = _i;
	int64_t run = run_on_n2(b);
	double began, seen = 0;

	bed_cut_off(b, "n2", true);
	bed_crash_controller(b);
	began = b->now;
	bed_begin_submission(b, 1, 1);
	while (b->now < began + NODE_TIMEOUT - 0.2) {
		ck_assert_int_eq(state_of(b, "n2"), NODE_UNKNOWN);
		ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
		ck_assert_uint_eq(bed_run(b, run)->lost_count, 0);
		ck_assert_int_eq(bed_starts(b, "n3"), 0);
		bed_pass(b, 0.1);
		if (state_of(b, "n3") == NODE_UP && seen == 0)
			seen = b->now - began;
		if (returns && b->now > began + NODE_TIMEOUT / 2)
			break;
	}
	ck_assert(seen > 0 && seen < 2);
	if (returns) {
		bed_cut_off(b, "n2", false);
		bed_pass(b, 2);
		ck_assert_int_eq(state_of(b, "n2"), NODE_UP);
		bed_pass(b, 30);
		ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
		ck_assert_int_eq(bed_run(b, run)->attempt, 1);
	} else {
		while (state_of(b, "n2") == NODE_UNKNOWN && b->now < began + 60)
			bed_pass(b, 0.1);
		ck_assert_int_eq(state_of(b, "n2"), NODE_DOWN);
		ck_assert(b->now - began >= NODE_TIMEOUT && b->now - began < NODE_TIMEOUT + 2);
		bed_await(b, run, RUN_FAILED);
	}
	bed_pass(b, 3);
	ck_assert_int_eq(bed_starts(b, "n3"), 1);
	bed_free(b);
}
END_TEST

/* The time-out holds, and one heartbeat may be lost within it. */
START_TEST(a_node_that_reports_seldom_is_down_as_soon)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\nn4 slots=1\nn5 slots=1\nn6 slots=1\n"
	                           "n7 slots=1\nn8 slots=1\nn9 slots=1\n");
	const struct node *n = node_find(b, "n2");
	const struct member *m;
	double heard, lost;
	int64_t run;

	bed_set_most_heartbeats(b, 1);
	bed_restart_controller(b);
	bed_pass(b, 4);
	run = run_on_n2(b);
	m = controller_find_node(bed_controller(b), "n2");
	bed_pass(b, 20);
	ck_assert_int_le(count_of(bed_heartbeats(b, "n2")), 7);
	for (int i = 0; i < 5; i++) {
		for (heard = m->heard; m->heard == heard;)
			bed_pass(b, 0.1);
		bed_cut_off(b, "n2", true);
		for (lost = n->next_heartbeat; n->next_heartbeat == lost;)
			bed_pass(b, 0.1);
		bed_cut_off(b, "n2", false);
		for (heard = m->heard; m->up && m->heard == heard;)
			bed_pass(b, 0.1);
		ck_assert(m->up);
	}
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	bed_cut_off(b, "n2", true);
	heard = m->heard;
	while (m->up && b->now < heard + 60)
		bed_pass(b, 0.1);
	ck_assert(b->now - heard >= NODE_TIMEOUT && b->now - heard < NODE_TIMEOUT + 2);
	ck_assert_str_ne(bed_run(b, run)->reason, "");
	bed_free(b);
}
END_TEST

/* What has the slots is in its next heartbeat. */
START_TEST(a_busy_node_is_left_alone_until_its_next_heartbeat)
{
	struct bed *b = slow_bed();
	const struct member *m = controller_find_node(bed_controller(b), "n2");

	controller_set_drained(bed_controller(b), "n1", true, NULL);
	bed_refuse_next(b, "n2", -EBUSY, "a slot is leased");
	bed_submit(b, 1, 1);
	bed_pass(b, 0.1);
	ck_assert_int_eq(bed_starts(b, "n2"), 1);
	ck_assert(m->backoff_until > b->now + 1.8 && m->backoff_until <= b->now + 2);
	bed_free(b);
}
END_TEST

/* Its heartbeats come, but no call reaches it: a firewall, or a wrong address in the hosts file. */
START_TEST(a_node_that_reports_and_cannot_be_reached_is_named)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	_cleanup_free_ char *before = NULL, *after = NULL;
	int64_t run;

	bed_refuse_next(b, "n2", -ECONNREFUSED, "10.0.0.2 port 29600: Connection refused");
	run = bed_submit(b, 2, 1);
	bed_pass(b, 3);
	ck_assert(controller_find_node(bed_controller(b), "n2")->up);
	ck_assert_str_eq(
	    bed_run(b, run)->reason,
	    "waits for node n2, which cannot be reached: 10.0.0.2 port 29600: Connection refused");
	before = bed_node_text(b, 1, "unreachable");
	ck_assert_str_eq(before, "10.0.0.2 port 29600: Connection refused");
	bed_await(b, run, RUN_RUNNING);
	after = bed_node_text(b, 1, "unreachable");
	ck_assert(!after);
	bed_free(b);
}
END_TEST

/* A call that stops a run says as much as one that starts it; and a service that begins anew is another one.
 */
START_TEST(a_stop_that_does_not_arrive_names_the_node)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	_cleanup_free_ char *lost = NULL, *anew = NULL, *again = NULL, *arrived = NULL;
	int64_t run = bed_submit(b, 2, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_lose_stops(b, "n2", true);
	controller_cancel_run(bed_controller(b), run, "alice");
	bed_pass(b, 40);
	lost = bed_node_text(b, 1, "unreachable");
	ck_assert_ptr_nonnull(lost);
	ck_assert(controller_find_node(bed_controller(b), "n2")->up);
	bed_lose_stops(b, "n2", false);
	bed_await(b, run, RUN_CANCELLED);
	bed_pass(b, 1);
	arrived = bed_node_text(b, 1, "unreachable");
	ck_assert(!arrived);
	bed_refuse_next(b, "n2", -ECONNREFUSED, "Connection refused");
	bed_submit(b, 2, 1);
	bed_pass(b, 0.5);
	again = bed_node_text(b, 1, "unreachable");
	ck_assert_ptr_nonnull(again);
	controller_set_drained(bed_controller(b), "n1", true, NULL);
	bed_rename(b, "n2", "n2");
	bed_pass(b, 0.5);
	anew = bed_node_text(b, 1, "unreachable");
	ck_assert(!anew);
	bed_free(b);
}
END_TEST

/* A stop that is given up says nothing of a node that a later start has reached. */
START_TEST(a_later_start_says_more_than_an_earlier_stop)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	_cleanup_free_ char *why = NULL;
	int64_t run = bed_submit(b, 2, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_lose_stops(b, "n2", true);
	controller_cancel_run(bed_controller(b), run, "alice");
	bed_pass(b, 0.2);
	bed_end_ranks(b, "n2", run, 0);
	bed_await(b, run, RUN_CANCELLED);
	bed_await(b, bed_submit(b, 2, 1), RUN_RUNNING);
	bed_pass(b, 40);
	why = bed_node_text(b, 1, "unreachable");
	ck_assert_msg(!why, "%s", why);
	bed_free(b);
}
END_TEST

/* A flush goes through the whole queue. */
START_TEST(what_says_nothing_new_takes_no_flush)
{
	struct bed *b = settled_bed();
	int64_t run = run_on_n2(b), flushes;

	bed_pass(b, 5);
	flushes = b->flushes;
	bed_pass(b, 40);
	ck_assert_int_gt(bed_heartbeats(b, "n2").whole, 1);
	ck_assert_int_eq(b->flushes, flushes);
	bed_end_ranks(b, "n2", run, 0);
	bed_pass(b, 1);
	ck_assert_int_gt(b->flushes, flushes);
	bed_free(b);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("controller heartbeats");
	TCase *tc = tcase_create("stories");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, what_has_not_changed_is_said_in_short);
	tcase_add_test(tc, what_has_changed_is_said_at_once);
	tcase_add_test(tc, short_ones_renew_the_lease);
	tcase_add_test(tc, a_restarted_controller_asks_for_the_whole);
	tcase_add_test(tc, a_restarted_node_says_the_whole);
	tcase_add_test(tc, a_short_one_names_the_last_whole_one);
	tcase_add_test(tc, after_a_lost_answer_the_whole_is_said);
	tcase_add_test(tc, a_node_that_is_down_has_to_say_the_whole);
	tcase_add_test(tc, one_that_comes_twice_changes_nothing);
	tcase_add_test(tc, one_that_comes_late_changes_nothing);
	tcase_add_test(tc, a_slot_that_was_given_back_too_early_is_asked_for);
	tcase_add_test(tc, a_stop_that_did_not_arrive_is_sent_again);
	tcase_add_test(tc, the_answer_to_a_short_one_forgets_ends);
	tcase_add_test(tc, foreign_work_stays_in_sight);
	tcase_add_test(tc, a_node_that_is_added_again_says_the_whole);
	tcase_add_test(tc, a_short_one_says_the_highest_number);
	tcase_add_test(tc, the_highest_number_is_stored);
	tcase_add_test(tc, what_leaves_no_room_is_not_learned);
	tcase_add_test(tc, nodes_are_asked_for_fewer);
	tcase_add_test(tc, a_node_that_reports_seldom_is_down_as_soon);
	tcase_add_loop_test(tc, a_node_is_unknown_to_a_new_controller_until_the_time_out, 0, 2);
	tcase_add_test(tc, a_busy_node_is_left_alone_until_its_next_heartbeat);
	tcase_add_test(tc, a_node_that_reports_and_cannot_be_reached_is_named);
	tcase_add_test(tc, a_stop_that_does_not_arrive_names_the_node);
	tcase_add_test(tc, a_later_start_says_more_than_an_earlier_stop);
	tcase_add_test(tc, what_says_nothing_new_takes_no_flush);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
