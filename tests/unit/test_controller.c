/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the controller in simulated time, which read like stories (controller_bed.h). */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "config/run.h"
#include "controller/controller.h"
#include "controller/nodes.h"
#include "controller/runs.h"
#include "controller/submit.h"
#include "controller/waiters.h"
#include "controller_bed.h"

START_TEST(a_run_goes_through_its_states)
{
	static const char *const states[] = {"\"starting\"", "\"running\"", "\"succeeded\""};
	_cleanup_json_ json_t *progress = json_pack("{s:i}", "step", 1);
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit(b, 2, 1);

	bed_pass(b, 0.1);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 1);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	bed_end_ranks(b, "n1", run, 0);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING); /* the other part goes on */
	controller_set_progress(bed_controller(b), run, progress, "", 0);
	bed_pass(b, 1);
	bed_end_ranks(b, "n2", run, 0);
	bed_await(b, run, RUN_SUCCEEDED);
	ck_assert_int_eq(bed_run(b, run)->exit_status, 0);
	for (size_t i = 0; i < ARRAY_SIZE(states); i++)
		ck_assert_int_eq(bed_count_events(b, states[i]), 1);
	bed_free(b);
}
END_TEST

START_TEST(a_refused_start_leaves_no_trace_on_a_success)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run;

	bed_refuse_next(b, "n1", -EBUSY, "slot 0 is leased");
	run = bed_submit(b, 1, 1);
	bed_pass(b, 0.2);
	ck_assert_int_eq(bed_starts(b, "n1"), 1); /* what has the slot is in the next heartbeat */
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

/* A refusal such as that of a missing program would be the same at the next attempt. */
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

/* A run writes a model on n1; another node does not find it. */
START_TEST(a_model_that_another_node_has_is_named_with_it)
{
	static const struct {
		const char *output, *model;
		int code;
		bool named;
		const char *host; /* that wrote it */
		int64_t uid;      /* who looks for it */
	} cases[] = {
	    {"out", "/m/out", -ENOENT, true, "n1", 1000},
	    {"out", "out/checkpoint-30", -ENOENT, true, "n1", 1000},
	    {"out//", "out/checkpoint-30", -ENOENT, true, "n1", 1000},
	    {"out", "/m/output", -ENOENT, false, "n1", 1000},
	    {"out", "out/checkpoint-30", -EACCES, false, "n1", 1000},
	    {"out", "/m/out", -ENOENT, false, "n2", 1000},
	    {"out", "/m/out", -ENOENT, false, "n1", 1001},
	};
	static const char generate[] =
	    "{\"task\":\"generate\",\"directory\":\"/m\",\"model\":{\"path\":\"%s\"},"
	    "\"generate\":{\"prompt\":\"x\"},\"resources\":{\"hosts\":[\"n2\"]}}";
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	_cleanup_free_ char *text = str_printf(generate, cases[_i].model);
	_cleanup_free_ char *train =
	    str_printf("{\"task\":\"pretrain\",\"directory\":\"/m\",\"model\":{\"init\":\"c\"},"
	               "\"data\":{\"path\":[\"a\"],\"format\":\"text\"},\"train\":{\"max_steps\":5},"
	               "\"output\":{\"dir\":\"%s\"},\"resources\":{\"hosts\":[\"%s\"]}}",
	               cases[_i].output, cases[_i].host);
	int64_t wrote, run;
	const char *detail;

	wrote = bed_submit_config(b, train);
	bed_await(b, wrote, RUN_RUNNING);
	bed_end_ranks(b, cases[_i].host, wrote, 0);
	bed_await(b, wrote, RUN_SUCCEEDED);
	bed_set_user(b, "other", cases[_i].uid);
	bed_refuse_next(b, "n2", cases[_i].code, "model: No such file or directory");
	run = bed_submit_config(b, text);
	bed_await(b, run, RUN_FAILED);
	detail = bed_run(b, run)->detail;
	ck_assert_ptr_nonnull(strstr(detail, "node n2: model: No such file or directory"));
	ck_assert_int_eq(strstr(detail, "run 1 wrote it on node n1") != NULL, cases[_i].named);
	bed_free(b);
}
END_TEST

START_TEST(the_first_failure_is_the_cause)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = bed_submit(b, 3, 1);

	bed_await(b, run, RUN_RUNNING);
	/* The reports of the nodes arrive in the opposite order. */
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
	 * n2 is asked to stop, and attempt 2 runs. */
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

/* Whether the node has begun the attempt is not known: it is given up, and the next one is placed on another
 * node, or waits. */
START_TEST(a_start_without_an_answer_is_tried_again)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run;

	bed_lose_answer(b, "n2");
	run = bed_submit(b, 2, 1);
	bed_pass(b, 35);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 2);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_free(b);
}
END_TEST

START_TEST(a_stop_that_overtakes_the_start_is_sent_again)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	bed_delay_start(b, "n2", 0.1);
	run = bed_submit(b, 2, 1);
	bed_cancel(b, run);
	bed_pass(b, 0.05);
	ck_assert_int_eq(bed_starts(b, "n2"), 0);
	bed_pass(b, 0.1);
	ck_assert_int_eq(bed_starts(b, "n2"), 1);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_CANCELLED);
	bed_free(b);
}
END_TEST

/* The next run gets the slots at once, before the next heartbeats. */
START_TEST(the_end_of_a_run_makes_room)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t first = bed_submit(b, 2, 1), second = bed_submit(b, 2, 1);

	bed_pass(b, 1);
	ck_assert_int_eq(bed_run(b, second)->state, RUN_QUEUED);
	bed_pass(b, 1);
	bed_end_ranks(b, "n1", first, 1);
	bed_pass(b, 0.1);
	ck_assert_int_eq(bed_run(b, first)->state, RUN_FAILED);
	ck_assert_int_eq(bed_attempt_on(b, "n2", first), 0);
	ck_assert_int_eq(bed_attempt_on(b, "n1", second), 1);
	ck_assert_int_eq(bed_attempt_on(b, "n2", second), 1);
	bed_free(b);
}
END_TEST

/* In all tests the bed itself checks that each start follows the commit of its attempt. */
START_TEST(nothing_starts_while_the_store_fails)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t first = bed_submit(b, 1, 1), second = bed_submit(b, 1, 1);

	bed_await(b, first, RUN_RUNNING);
	bed_break_store(b, true);
	ck_assert_int_eq(bed_submit_failing(b), -EIO);
	bed_end_ranks(b, "n1", first, 0);
	for (int i = 0; i < 200; i++) {
		bed_pass(b, 0.1);
		controller_reschedule(bed_controller(b)); /* causes one more turn of the event loop */
	}
	ck_assert_int_eq(bed_starts(b, "n1"), 1);
	ck_assert_int_eq(bed_count_events(b, "\"succeeded\""), 0);
	bed_break_store(b, false);
	bed_await(b, second, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, second)->attempt, 1);
	ck_assert_int_eq(bed_starts(b, "n1"), 2);
	ck_assert_int_eq(bed_run(b, first)->state, RUN_SUCCEEDED);
	/* The run that was refused does not exist. */
	ck_assert_uint_eq(controller_active_count(bed_controller(b)), 1);
	bed_free(b);
}
END_TEST

START_TEST(a_crash_loses_no_more_than_a_second)
{
	struct bed *b = bed_create("n1 slots=1\n");
	int64_t run = bed_submit(b, 1, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 2);
	bed_crash_controller(b);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
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
	/* The node can be reached again, and the attempt that it still has is stopped. */
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

/* Only the store knows that n2 had the part. */
START_TEST(a_part_lost_while_no_controller_was_there_is_found)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit(b, 2, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 2);
	bed_reboot(b, "n2");
	bed_restart_controller(b);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_FAILED);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 0);
	bed_free(b);
}
END_TEST

START_TEST(a_cancelled_run_is_stopped_on_all_nodes)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit(b, 2, 1), queued = bed_submit(b, 2, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_cancel(b, queued);
	/* The run has ended, but that is not on disk yet. */
	ck_assert_int_eq(bed_run(b, queued)->state, RUN_CANCELLED);
	ck_assert(!waiter_is_needless(bed_run(b, queued), 0, INT64_MAX));
	bed_pass(b, 0.1);
	ck_assert(waiter_is_needless(bed_run(b, queued), 0, INT64_MAX));
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

struct seen {
	int calls;
	enum run_state state;
};

static void on_ready(void *context, const struct run *r)
{
	struct seen *seen = context;

	seen->calls++;
	seen->state = r->state;
}

START_TEST(who_waits_for_a_run_is_called_once)
{
	struct bed *b = bed_create("n1 slots=1\n");
	struct controller *c = bed_controller(b);
	struct seen end = {0}, change = {0}, running = {0}, none = {0};
	int64_t run = bed_submit(b, 1, 1);
	struct waiter *given_up;

	bed_await(b, run, RUN_STARTING);
	ck_assert(!waiter_is_needless(bed_run(b, run), 0, INT64_MAX));
	ck_assert(waiter_is_needless(bed_run(b, run), 0, bed_run(b, run)->version - 1));
	ck_assert_ptr_nonnull(waiter_create(c, run, 0, INT64_MAX, on_ready, &end));
	ck_assert_ptr_nonnull(waiter_create(c, run, 0, bed_run(b, run)->version, on_ready, &change));
	ck_assert_ptr_nonnull(waiter_create(c, run, run_state_set("running"), INT64_MAX, on_ready, &running));
	given_up = waiter_create(c, run, 0, INT64_MAX, on_ready, &none);
	waiter_free(given_up);
	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 5);
	ck_assert_int_eq(change.calls, 1);
	ck_assert_int_eq(running.calls, 1);
	ck_assert_int_eq(running.state, RUN_RUNNING);
	ck_assert_int_eq(end.calls, 0);
	bed_end_ranks(b, "n1", run, 7);
	bed_pass(b, 5);
	ck_assert_int_eq(end.calls, 1);
	ck_assert_int_eq(end.state, RUN_FAILED);
	ck_assert_int_eq(none.calls, 0);
	ck_assert(waiter_is_needless(bed_run(b, run), 0, INT64_MAX));
	/* A waiter for an end that does not occur is destroyed together with the controller. */
	ck_assert_ptr_nonnull(waiter_create(c, run + 1, 0, INT64_MAX, on_ready, &none));
	bed_free(b);
	ck_assert_int_eq(none.calls, 0);
}
END_TEST

/* No waiter is called for an end that is not on disk, since a crash of the machine could undo it. */
START_TEST(who_waits_is_not_called_before_the_commit)
{
	struct bed *b = bed_create("n1 slots=1\n");
	struct seen end = {0};
	int64_t run = bed_submit(b, 1, 1);

	bed_await(b, run, RUN_RUNNING);
	ck_assert_ptr_nonnull(waiter_create(bed_controller(b), run, 0, INT64_MAX, on_ready, &end));
	bed_break_store(b, true);
	bed_end_ranks(b, "n1", run, 0);
	bed_pass(b, 10);
	ck_assert_int_eq(end.calls, 0);
	bed_break_store(b, false);
	bed_pass(b, 3);
	ck_assert_int_eq(end.calls, 1);
	bed_free(b);
}
END_TEST

static int add_id(void *context, const struct run *r, struct error *err)
{
	char *text = context, id[16];

	snprintf(id, sizeof(id), "%lld:%s ", (long long)r->id, run_state_name(r->state));
	strcat(text, id);
	return 0;
}

START_TEST(runs_are_listed_newest_first)
{
	struct bed *b = bed_create("n1 slots=1\n");
	struct controller *c = bed_controller(b);
	char all[100] = "", active[100] = "", older[100] = "", queued[100] = "", eves[100] = "",
	     eves_active[100] = "";
	int64_t first = bed_submit(b, 1, 1), counts[RUN_STATES];
	_cleanup_free_ char *config = NULL;
	struct error err = ERROR_INIT;
	const struct run *found;
	struct run *owned;

	bed_await(b, first, RUN_RUNNING);
	bed_end_ranks(b, "n1", first, 0);
	bed_await(b, first, RUN_SUCCEEDED);
	bed_submit(b, 1, 1);
	bed_set_user(b, "eve", 1001);
	bed_submit(b, 1, 1);
	bed_await(b, first + 1, RUN_RUNNING); /* which is not on disk yet */
	ck_ok(controller_list_runs(c, &(struct run_query){.states = run_state_set("all"), .limit = 10},
	                           add_id, all, &err),
	      &err);
	ck_assert_str_eq(all, "3:queued 2:running 1:succeeded ");
	ck_ok(controller_list_runs(c, &(struct run_query){.states = run_state_set("active"), .limit = 1},
	                           add_id, active, &err),
	      &err);
	ck_assert_str_eq(active, "3:queued ");
	ck_ok(controller_list_runs(
	          c, &(struct run_query){.states = run_state_set("active"), .before = 3, .limit = 10}, add_id,
	          older, &err),
	      &err);
	ck_assert_str_eq(older, "2:running ");
	ck_ok(controller_list_runs(c, &(struct run_query){.states = run_state_set("queued"), .limit = 10},
	                           add_id, queued, &err),
	      &err);
	ck_assert_str_eq(queued, "3:queued ");
	ck_ok(controller_list_runs(
	          c, &(struct run_query){.states = run_state_set("all"), .user = "eve", .limit = 10}, add_id,
	          eves, &err),
	      &err);
	ck_assert_str_eq(eves, "3:queued ");
	ck_ok(controller_list_runs(
	          c, &(struct run_query){.states = run_state_set("active"), .user = "eve", .limit = 10},
	          add_id, eves_active, &err),
	      &err);
	ck_assert_str_eq(eves_active, "3:queued ");
	ck_ok(controller_count_runs(c, counts, &err), &err);
	ck_assert_int_eq(counts[RUN_SUCCEEDED], 1);
	ck_assert_uint_eq(controller_active_count(c), 2);
	ck_assert_int_eq(controller_active_run(c, 0)->id, 2);
	ck_ok(controller_run_config(c, first, &config, &err), &err);
	ck_assert_ptr_nonnull(strstr(config, "\"story\""));
	ck_assert_int_eq(controller_find_run(c, 9, &found, &owned, &err), -ENOENT);
	bed_free(b);
}
END_TEST

static void on_line(void *context, const char *data, size_t len)
{
	if (data)
		strncat(context, data, len);
	else
		strcat(context, "end");
}

START_TEST(progress_goes_to_those_who_listen)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	struct controller *c = bed_controller(b);
	_cleanup_json_ json_t *last = json_pack("{s:i}", "step", 5);
	int64_t run = bed_submit(b, 2, 1);
	struct feed_listener *listener;
	struct error err = ERROR_INIT;
	char text[100] = "";

	bed_await(b, run, RUN_RUNNING);
	ck_ok(controller_listen_metrics(c, run, on_line, text, &listener, &err), &err);
	controller_set_progress(c, run, last, "5\n", 2);
	ck_assert_ptr_eq(bed_run(b, run)->progress, last);
	/* The reason has the error that the failed rank reported; a rank that lost a peer is
	 * not the cause. */
	controller_worker_error(c, run, 0, "lost rank 1", true);
	controller_worker_error(c, run, 1, "the data ends early", false);
	bed_end_ranks(b, "n1", run, 1);
	bed_pass(b, 0.1);
	ck_assert(controller_is_stopping(c) || bed_run(b, run)->state == RUN_FAILED);
	bed_await(b, run, RUN_FAILED);
	ck_assert(!controller_is_stopping(c));
	ck_assert_str_eq(text, "5\nend");
	feed_remove(listener);
	ck_assert_int_eq(controller_listen_metrics(c, run, on_line, text, &listener, &err), -ENOENT);
	/* Progress of a run that has ended is ignored. */
	controller_set_progress(c, run, last, "6\n", 2);
	controller_worker_error(c, run, 0, "late", false);
	controller_cancel_run(c, run, "alice");
	bed_pass(b, 2);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_FAILED);
	bed_free(b);
}
END_TEST

START_TEST(what_the_cluster_could_never_run_is_refused)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	_cleanup_(run_freep) struct run *fits = NULL, *large = NULL;
	_cleanup_(run_config_freep) struct run_config *config = NULL;
	struct error err = ERROR_INIT;

	ck_ok(
	    run_config_parse("command = \"true\"; resources = { nodes = 2; };", "test", NULL, &config, &err),
	    &err);
	ck_ok(run_new(config, &fits, &err), &err);
	config->resources.nodes = (struct key_range){3, 3};
	ck_ok(run_new(config, &large, &err), &err);
	ck_ok(controller_check(bed_controller(b), fits, &err), &err);
	ck_assert_int_eq(controller_check(bed_controller(b), large, &err), -ENODEV);
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
	tcase_add_loop_test(tc, a_model_that_another_node_has_is_named_with_it, 0, 7);
	tcase_add_test(tc, the_first_failure_is_the_cause);
	tcase_add_test(tc, a_late_answer_of_an_earlier_attempt_changes_nothing);
	tcase_add_test(tc, a_start_without_an_answer_is_tried_again);
	tcase_add_test(tc, a_stop_that_overtakes_the_start_is_sent_again);
	tcase_add_test(tc, the_end_of_a_run_makes_room);
	tcase_add_test(tc, a_crash_loses_no_more_than_a_second);
	tcase_add_test(tc, a_part_lost_while_no_controller_was_there_is_found);
	tcase_add_test(tc, nothing_starts_while_the_store_fails);
	tcase_add_test(tc, a_heartbeat_from_before_the_start_does_not_end_the_run);
	tcase_add_test(tc, a_reboot_loses_the_part_of_a_run);
	tcase_add_test(tc, a_lost_node_takes_its_runs_down_and_no_others);
	tcase_add_test(tc, a_restarted_controller_finds_its_runs);
	tcase_add_test(tc, a_cancelled_run_is_stopped_on_all_nodes);
	tcase_add_test(tc, who_waits_for_a_run_is_called_once);
	tcase_add_test(tc, who_waits_is_not_called_before_the_commit);
	tcase_add_test(tc, runs_are_listed_newest_first);
	tcase_add_test(tc, progress_goes_to_those_who_listen);
	tcase_add_test(tc, what_the_cluster_could_never_run_is_refused);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
