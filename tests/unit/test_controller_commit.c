/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the order in which the controller acts: a change is committed first, and only then answered, started
 * or published; and a commit that takes long, or fails, delays nothing else. The test controls the time, the
 * nodes and the speed of the store.
 */
#include <fcntl.h>
#include <unistd.h>

#include "commit_bed.h"

START_TEST(a_submission_is_on_disk_before_it_is_answered_and_started)
{
	struct answer a;
	struct bed b;
	int begun;

	bed_start(&b);
	begun = held_store_begun(b.held);
	submit(&b, &a);
	turn_held(&b);
	heartbeats(&b);
	turn(&b);
	ck_assert_int_eq(a.count, 0);
	ck_assert_str_eq(b.starts, "");
	ck_assert_int_eq(state_of(&b, 1), -1);
	ck_assert_int_eq(listed(&b, "active"), 0);
	commit_ends(&b);
	ck_assert_int_eq(a.count, 1);
	ck_assert_int_eq(a.id, 1);
	ck_assert_int_eq(a.state, RUN_STARTING);
	ck_assert_str_eq(a.error, "");
	ck_assert_int_eq(state_of(&b, 1), RUN_STARTING);
	ck_assert_int_eq(listed(&b, "active"), 1);
	ck_assert_int_eq(listed(&b, "all"), 1);
	ck_assert_str_eq(b.starts, "n2:1.1 n1:1.1 ");
	ck_assert_int_eq(held_store_begun(b.held), begun + 1); /* one for the run and its start */
	bed_end(&b);
}
END_TEST

/* A submission comes again over another connection, before and after the first one is on disk, and after a
 * restart of the controller: there is one run. */
START_TEST(a_repeated_submission_is_the_same_run)
{
	struct answer first, again, other;
	struct error err = ERROR_INIT;
	enum run_state state;
	int64_t id = 0;
	struct bed b;

	bed_start(&b);
	submit_with(&b, &first, "k1");
	turn_held(&b);
	ck_assert_int_eq(controller_find_submitted(b.controller, 0, "k1", &id, &state, &err), -ENOENT);
	submit_with(&b, &again, "k1");
	ck_assert_int_eq(first.count, 1);
	ck_assert_str_eq(first.error, "the same submission came again, and is answered there");
	submit_with(&b, &other, "k2");
	ck_assert_int_eq(again.count, 0);
	commit_ends(&b);
	ck_assert_int_eq(again.count, 1);
	ck_assert_int_eq(again.id, 1);
	ck_assert_str_eq(again.error, "");
	commits_end(&b);
	ck_assert_int_eq(other.id, 2);
	ck_assert_int_eq(first.count, 1);
	ck_assert_int_eq(listed(&b, "all"), 2);
	for (int i = 0; i < 2; i++) {
		ck_ok(controller_find_submitted(b.controller, 0, "k1", &id, &state, &err), &err);
		ck_assert_int_eq(id, 1);
		ck_assert(i > 0 || state == RUN_STARTING);
		ck_assert_int_eq(controller_find_submitted(b.controller, 0, "k3", &id, &state, &err),
		                 -ENOENT);
		ck_assert_int_eq(controller_find_submitted(b.controller, 1, "k1", &id, &state, &err),
		                 -ENOENT);
		bed_close(&b);
		bed_open(&b);
	}
	bed_end(&b);
}
END_TEST

/* One that failed is not there: the run is made by the next one. */
START_TEST(a_submission_that_failed_can_be_repeated)
{
	struct answer first, again;
	struct bed b;

	bed_start(&b);
	held_store_fail(b.held, 1);
	submit_with(&b, &first, "k1");
	turn_held(&b);
	commit_ends(&b);
	ck_assert_int_eq(first.count, 1);
	ck_assert_str_ne(first.error, "");
	submit_with(&b, &again, "k1");
	turn(&b);
	b.now += 2;
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(again.count, 1);
	ck_assert_str_eq(again.error, "");
	ck_assert_int_eq(listed(&b, "all"), 1);
	bed_end(&b);
}
END_TEST

static void note_commit(void *context, const struct error *err)
{
	*(int *)context = err ? err->code : 0;
}

/* Of a commit whose other runs are on disk; in the next one it is not. */
START_TEST(a_new_run_that_the_store_refuses_fails_alone)
{
	struct answer first, second;
	struct bed b;

	bed_start(&b);
	held_store_refuse(b.held, 1);
	submit(&b, &first);
	submit(&b, &second);
	turn_held(&b);
	commits_end(&b);
	ck_assert_int_eq(first.count, 1);
	ck_assert_str_eq(first.error, "it is too large");
	ck_assert_int_eq(second.count, 1);
	ck_assert_int_eq(second.id, 2);
	ck_assert_str_eq(second.error, "");
	ck_assert_int_eq(state_of(&b, 1), -1);
	ck_assert_int_eq(listed(&b, "all"), 1);
	ck_assert_ptr_null(strstr(b.starts, ":1.1"));
	held_store_refuse(b.held, 0);
	heartbeats(&b);
	turn(&b);
	commits_end(&b);
	ck_assert_ptr_nonnull(strstr(b.starts, "n1:2.1"));
	ck_assert_ptr_null(strstr(b.starts, ":1.1"));
	bed_end(&b);
}
END_TEST

/* Nothing of that is answered before the store takes it, which is tried again; who waits for another run, or
 * for a drain, is answered. */
START_TEST(a_change_that_the_store_refuses_is_kept)
{
	int told = -1, own = 1, other = 1, drain = 1;
	struct answer first, second;
	struct bed b;

	bed_start(&b);
	submit_and_commit(&b, &first);
	both_report(&b, 1, 1, "running");
	turn(&b);
	b.now += 2;
	turn(&b);
	commits_end(&b);
	held_store_refuse(b.held, 1);
	ck_assert_ptr_nonnull(
	    waiter_create(b.controller, 1, 1u << RUN_STOPPING, INT64_MAX, note_state, &told));
	controller_cancel_run(b.controller, 1, "alice");
	ck_assert_ptr_nonnull(commit_waiter_create(b.controller, 1, note_commit, &own));
	ck_assert_ptr_nonnull(commit_waiter_create(b.controller, 2, note_commit, &other));
	ck_assert_int_eq(controller_set_drained(b.controller, "n2", true, NULL), 0);
	ck_assert_ptr_nonnull(commit_waiter_create(b.controller, 0, note_commit, &drain));
	submit(&b, &second);
	turn_held(&b);
	commit_ends(&b);
	ck_assert_int_eq(own, -E2BIG);
	ck_assert_int_eq(other, 0);
	ck_assert_int_eq(drain, 0);
	ck_assert_int_eq(second.count, 1);
	ck_assert_str_eq(second.error, "");
	ck_assert(held_store_is_drained(b.held, "n2"));
	/* Once more. */
	b.now += 2;
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(told, -1);
	held_store_refuse(b.held, 0);
	b.now += 2;
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(told, RUN_STOPPING);
	/* And its end, until which it stays in memory. */
	held_store_refuse(b.held, 1);
	both_report(&b, 1, 1, "ended");
	turn(&b);
	b.now += 2;
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(controller_active_count(b.controller), 2);
	held_store_refuse(b.held, 0);
	b.now += 2;
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(controller_active_count(b.controller), 1);
	bed_end(&b);
}
END_TEST

static const char refusal[] = "it cannot be written into the store: it is too large";

static void check_reason(struct bed *b, int64_t id, const char *reason)
{
	_cleanup_(run_freep) struct run *owned = NULL;
	struct error err = ERROR_INIT;
	const struct run *r;

	ck_ok(controller_find_run(b->controller, id, &r, &owned, &err), &err);
	ck_assert_pstr_eq(r->reason, reason);
}

/* The text that is written to standard error from now on goes into a file. */
static int divert_log(const struct bed *b)
{
	_cleanup_free_ char *path = str_path_join(b->dir, "log");
	int before = dup(STDERR_FILENO), fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_ge(before, 0);
	dup2(fd, STDERR_FILENO);
	close(fd);
	return before;
}

static int count_in_log(const struct bed *b, const char *text, int before)
{
	_cleanup_free_ char *path = str_path_join(b->dir, "log"), *log = NULL;
	struct error err = ERROR_INIT;
	int n = 0;

	dup2(before, STDERR_FILENO);
	close(before);
	ck_ok(file_read(path, 1 << 20, &log, NULL, &err), &err);
	for (const char *at = log; (at = strstr(at, text)); at += strlen(text))
		n++;
	return n;
}

/* It says so until the store takes it, and the log says so once; the store never has that reason. */
START_TEST(a_placement_that_the_store_refuses_has_a_reason)
{
	_cleanup_(run_freep) struct run *stored = NULL;
	struct answer first, second;
	struct error err = ERROR_INIT;
	struct bed b;
	int log;

	bed_start(&b);
	submit_and_commit(&b, &first);
	submit_and_commit(&b, &second);
	held_store_refuse(b.held, 2);
	log = divert_log(&b);
	both_report(&b, 1, 1, "ended");
	for (int i = 0; i < 3; i++) {
		turn(&b);
		commits_end(&b);
		ck_assert_int_eq(state_of(&b, 2), RUN_STARTING);
		check_reason(&b, 2, refusal);
		b.now += 2;
	}
	ck_assert_int_eq(count_in_log(&b, refusal, log), 1);
	ck_assert_ptr_null(strstr(b.starts, ":2.1"));
	held_store_refuse(b.held, 0);
	b.now += 2;
	turn(&b);
	commits_end(&b);
	ck_assert_ptr_nonnull(strstr(b.starts, "n1:2.1"));
	check_reason(&b, 2, NULL);
	ck_ok(store_get(b.store, 2, &stored, &err), &err);
	ck_assert_ptr_null(stored->reason);
	/* The next refusal is logged again. */
	held_store_refuse(b.held, 2);
	log = divert_log(&b);
	both_report(&b, 2, 1, "running");
	turn(&b);
	b.now += 2;
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(count_in_log(&b, refusal, log), 1);
	bed_end(&b);
}
END_TEST

/* Another reason is not lost. */
START_TEST(a_refused_change_keeps_the_reason_of_its_run)
{
	_cleanup_(run_freep) struct run *owned = NULL;
	_cleanup_free_ char *reason = NULL;
	struct error err = ERROR_INIT;
	const struct run *r;
	struct answer a;
	struct bed b;

	bed_start(&b);
	submit_and_commit(&b, &a);
	both_report(&b, 1, 1, "running");
	turn(&b);
	held_store_refuse(b.held, 1);
	ck_assert_uint_eq(controller_evict_runs(b.controller, "n2"), 1);
	ck_ok(controller_find_run(b.controller, 1, &r, &owned, &err), &err);
	reason = strdup(r->reason);
	turn(&b);
	commits_end(&b);
	check_reason(&b, 1, reason);
	held_store_refuse(b.held, 0);
	b.now += 2;
	turn(&b);
	commits_end(&b);
	check_reason(&b, 1, reason);
	bed_end(&b);
}
END_TEST

/* Run 1 runs, and has been cancelled when this returns, which the store has refused. *told: the state that a
 * waiter is told. */
static void refuse_cancel(struct bed *b, int *told)
{
	struct answer a;

	*told = -1;
	submit_and_commit(b, &a);
	both_report(b, 1, 1, "running");
	turn(b);
	b->now += 1;
	turn(b);
	commits_end(b);
	ck_assert_ptr_nonnull(
	    waiter_create(b->controller, 1, 1u << RUN_STOPPING, INT64_MAX, note_state, told));
	held_store_refuse(b->held, 1);
	controller_cancel_run(b->controller, 1, "alice");
	turn(b);
	commits_end(b);
	ck_assert_int_eq(held_store_refusals(b->held), 1);
}

static void pass(struct bed *b, double seconds)
{
	b->now += seconds;
	turn(b);
	commits_end(b);
}

/* After each of these seconds, and at no other time, whatever else is committed meanwhile; and where nothing
 * else is to be written, there are no other commits. The log has a line at the first refusal, and one when
 * the store takes it. */
START_TEST(what_the_store_refuses_is_tried_less_and_less)
{
	static const double tries[] = {1, 3, 7, 15, 31, 63, 123, 183};
	bool with_others = _i == 1;
	int told, log, begun, refusals = 1, others = 0;
	double began;
	struct bed b;

	bed_start(&b);
	log = divert_log(&b);
	refuse_cancel(&b, &told);
	began = b.now;
	begun = held_store_begun(b.held);
	for (int i = 1; i <= 2 * 200; i++) {
		bool is_try =
		    refusals <= (int)ARRAY_SIZE(tries) && began + i * 0.5 == began + tries[refusals - 1];

		if (with_others && i % 3 == 0) {
			ck_assert_int_eq(controller_set_drained(b.controller, "n2", i % 2, NULL), 0);
			others += !is_try;
		}
		pass(&b, 0.5);
		refusals += is_try;
		ck_assert_int_eq(held_store_refusals(b.held), refusals);
		ck_assert_int_eq(held_store_begun(b.held), begun + refusals - 1 + others);
		ck_assert_int_eq(told, -1);
	}
	ck_assert_int_eq(refusals, 1 + (int)ARRAY_SIZE(tries));
	held_store_refuse(b.held, 0);
	pass(&b, 42);
	ck_assert_int_eq(told, -1);
	pass(&b, 1);
	ck_assert_int_eq(told, RUN_STOPPING);
	begun = held_store_begun(b.held);
	pass(&b, 100);
	ck_assert_int_eq(held_store_begun(b.held), begun);
	/* The first of its next refusals is followed by the shortest delay. */
	held_store_refuse(b.held, 1);
	both_report(&b, 1, 1, "ended");
	pass(&b, 0);
	pass(&b, 1);
	ck_assert_int_eq(held_store_refusals(b.held), refusals + 2);
	ck_assert_int_eq(count_in_log(&b, "run 1: it ca", log), 3);
	bed_end(&b);
}
END_TEST

/* A change of the run, also one that is no news to anybody, and a caller that waits for the run. Its
 * progress, and who waits for something else, change nothing. */
START_TEST(what_the_store_refuses_is_tried_again_when_it_matters)
{
	_cleanup_json_ json_t *step5 = json_pack("{s:i}", "step", 5);
	_cleanup_(run_freep) struct run *stored = NULL;
	int told, own = 1, other = 1;
	struct error err = ERROR_INIT;
	struct bed b;

	bed_start(&b);
	refuse_cancel(&b, &told);
	for (int i = 0; i < 5; i++)
		pass(&b, 1 << i);
	ck_assert_int_eq(held_store_refusals(b.held), 6);
	controller_set_progress(b.controller, 1, step5, "", 0);
	ck_assert_ptr_nonnull(commit_waiter_create(b.controller, 2, note_commit, &other));
	pass(&b, 0);
	pass(&b, 2);
	ck_assert_int_eq(other, 0);
	ck_assert_int_eq(held_store_refusals(b.held), 6);
	controller_worker_error(b.controller, 1, 0, "no more memory", false);
	pass(&b, 0);
	pass(&b, 1);
	ck_assert_int_eq(held_store_refusals(b.held), 7);
	ck_assert_ptr_nonnull(commit_waiter_create(b.controller, 1, note_commit, &own));
	pass(&b, 0);
	ck_assert_int_eq(own, -E2BIG);
	ck_assert_int_eq(held_store_refusals(b.held), 8);
	pass(&b, 2);
	ck_assert_int_eq(held_store_refusals(b.held), 8);
	held_store_refuse(b.held, 0);
	ck_assert_ptr_nonnull(commit_waiter_create(b.controller, 1, note_commit, &own));
	pass(&b, 0);
	ck_assert_int_eq(own, 0);
	ck_assert_int_eq(told, RUN_STOPPING);
	ck_ok(store_get(b.store, 1, &stored, &err), &err);
	ck_assert_int_eq(json_get_int(stored->progress, "step", 0), 5);
	bed_end(&b);
}
END_TEST

/* The commit that is refused is not the one that has been awaited, which has failed. */
START_TEST(a_refusal_after_a_failed_commit_is_no_success)
{
	struct answer a;
	int told = -1;
	struct bed b;

	bed_start(&b);
	submit_and_commit(&b, &a);
	ck_assert_ptr_nonnull(
	    waiter_create(b.controller, 1, 1u << RUN_STOPPING, INT64_MAX, note_state, &told));
	held_store_fail(b.held, 1);
	controller_cancel_run(b.controller, 1, "alice");
	pass(&b, 0);
	held_store_refuse(b.held, 1);
	pass(&b, 1);
	ck_assert_int_eq(held_store_refusals(b.held), 1);
	ck_assert_int_eq(told, -1);
	bed_end(&b);
}
END_TEST

/* Whatever time is left until it would be tried again. */
START_TEST(the_end_tries_what_the_store_has_refused)
{
	_cleanup_(run_freep) struct run *stored = NULL;
	struct error err = ERROR_INIT;
	struct bed b;
	int told;

	bed_start(&b);
	refuse_cancel(&b, &told);
	held_store_refuse(b.held, 0);
	bed_close(&b);
	bed_open(&b);
	ck_ok(store_get(b.store, 1, &stored, &err), &err);
	ck_assert(stored->cancelled);
	bed_end(&b);
}
END_TEST

/* The answer has the state that is on disk: queued, though the run has been placed meanwhile. */
START_TEST(a_placement_during_a_commit_is_not_in_its_answer)
{
	struct answer first, second;
	struct bed b;

	bed_start(&b);
	submit_and_commit(&b, &first);
	submit(&b, &second);
	turn_held(&b);
	both_report(&b, 1, 1, "ended");
	turn(&b);
	held_store_release(b.held);
	held_store_await_done(b.store);
	turn_held(&b);
	ck_assert_int_eq(second.count, 1);
	ck_assert_int_eq(second.state, RUN_QUEUED);
	ck_assert_ptr_null(strstr(b.starts, "n1:2.1"));
	commits_end(&b);
	ck_assert_ptr_nonnull(strstr(b.starts, "n1:2.1"));
	bed_end(&b);
}
END_TEST

/* Commands are committed at once, not within a second, and their changes are published after that. */
START_TEST(commands_are_committed_at_once)
{
	struct answer a;
	int told = -1, result = 1, next = 1;
	struct bed b;

	bed_start(&b);
	submit_and_commit(&b, &a);
	both_report(&b, 1, 1, "running");
	turn(&b);
	ck_assert_int_eq(controller_set_drained(b.controller, "n2", true, NULL), 0);
	ck_assert_ptr_nonnull(commit_waiter_create(b.controller, 0, note_commit, &result));
	turn_held(&b);
	ck_assert(store_is_busy(b.store));
	/* A waiter that is added now waits for the next commit; one that is removed is not called. */
	ck_assert_ptr_nonnull(commit_waiter_create(b.controller, 0, note_commit, &next));
	commit_waiter_free(commit_waiter_create(b.controller, 0, note_commit, NULL));
	commit_waiter_free(NULL);
	ck_assert_int_eq(result, 1);
	held_store_fail(b.held, 2);
	held_store_release(b.held);
	held_store_await_done(b.store);
	turn_held(&b);
	ck_assert_int_eq(result, -EIO);
	ck_assert_int_eq(next, 1);
	held_store_fail(b.held, 0);
	b.now += 1;
	turn_held(&b);
	commits_end(&b);
	ck_assert_int_eq(next, 0);
	ck_assert(held_store_is_drained(b.held, "n2"));
	ck_assert_ptr_nonnull(
	    waiter_create(b.controller, 1, 1u << RUN_STOPPING, INT64_MAX, note_state, &told));
	controller_cancel_run(b.controller, 1, "alice");
	turn_held(&b);
	ck_assert(store_is_busy(b.store));
	ck_assert_int_eq(told, -1);
	ck_assert_str_eq(b.stops, "n1:1.1 n2:1.1 "); /* a stop waits for nothing */
	commit_ends(&b);
	ck_assert_int_eq(told, RUN_STOPPING);
	bed_end(&b);
}
END_TEST

/* A drain stops what may be started again, and who waits for that state learns it when it is on disk. */
START_TEST(an_evicted_run_is_committed)
{
	struct answer a;
	int told = -1;
	struct bed b;

	bed_start(&b);
	submit_and_commit(&b, &a);
	both_report(&b, 1, 1, "running");
	turn(&b);
	commits_end(&b);
	ck_assert_ptr_nonnull(
	    waiter_create(b.controller, 1, 1u << RUN_STOPPING, INT64_MAX, note_state, &told));
	ck_assert_uint_eq(controller_evict_runs(b.controller, "n2"), 1);
	turn_held(&b);
	ck_assert(store_is_busy(b.store));
	ck_assert_int_eq(told, -1);
	ck_assert_str_eq(b.stops, "n1:1.1 n2:1.1 ");
	commit_ends(&b);
	ck_assert_int_eq(told, RUN_STOPPING);
	bed_end(&b);
}
END_TEST

/* A commit in progress delays no heartbeat, listing, report or submission; the next commit has all their
 * changes. */
START_TEST(what_comes_during_a_commit_is_in_the_next_one)
{
	_cleanup_free_ char *running1 = report(1, 1, "n1", 0, "running"),
	                    *running2 = report(1, 1, "n2", 1, "running");
	struct answer first, second, third;
	struct bed b;
	int begun;

	bed_start(&b);
	submit_and_commit(&b, &first);
	begun = held_store_begun(b.held);
	submit(&b, &second);
	turn_held(&b);
	submit(&b, &third);
	both_report(&b, 1, 1, "running");
	for (int i = 0; i < 3; i++) {
		free(heartbeat(&b, "n1", running1));
		free(heartbeat(&b, "n2", running2));
		turn(&b);
	}
	ck_assert_int_eq(state_of(&b, 1), RUN_RUNNING);
	ck_assert_int_eq(listed(&b, "active"), 1);
	ck_assert_int_eq(second.count + third.count, 0);
	held_store_release(b.held);
	held_store_await_done(b.store);
	turn_held(&b);
	ck_assert_int_eq(second.count, 1);
	ck_assert_int_eq(third.count, 0);
	ck_assert_int_eq(state_of(&b, 3), -1);
	commits_end(&b);
	ck_assert_int_eq(third.id, 3);
	ck_assert_int_eq(held_store_begun(b.held), begun + 2);
	bed_end(&b);
}
END_TEST

/* The end of a run is published once it is on disk, even if the run ends while its start or its progress is
 * being committed; no node removes the attempt before. */
START_TEST(an_end_during_a_commit_waits_for_the_next_one)
{
	_cleanup_free_ char *ended = report(1, 1, "n1", 0, "ended"), *early = NULL, *late = NULL,
	                    *at_last = NULL;
	struct answer a, other;
	int told = -1;
	struct bed b;

	bed_start(&b);
	submit_and_commit(&b, &a);
	both_report(&b, 1, 1, "running");
	submit(&b, &other); /* something to commit, in which the run is written, too */
	turn_held(&b);
	ck_assert_ptr_nonnull(waiter_create(b.controller, 1, 0, INT64_MAX, note_state, &told));
	both_report(&b, 1, 1, "ended");
	turn(&b);
	early = heartbeat(&b, "n1", ended);
	ck_assert_str_eq(early, "");
	/* The first commit ends: it has the run as it was before. */
	held_store_release(b.held);
	held_store_await_done(b.store);
	turn_held(&b);
	ck_assert_int_eq(other.count, 1);
	ck_assert_int_eq(told, -1);
	late = heartbeat(&b, "n1", ended);
	ck_assert_str_eq(late, "");
	commit_ends(&b);
	ck_assert_int_eq(told, RUN_SUCCEEDED);
	at_last = heartbeat(&b, "n1", ended);
	ck_assert_str_eq(at_last, "1.1 ");
	commits_end(&b);
	ck_assert_ptr_nonnull(strstr(b.starts, "n2:2.1 n1:2.1 "));
	bed_end(&b);
}
END_TEST

/* Changes of a run after its end are written, too, and written again if that commit fails. The run stays in
 * memory until then. */
START_TEST(a_run_that_has_ended_stays_until_all_of_it_is_on_disk)
{
	_cleanup_json_ json_t *step6 = json_pack("{s:i}", "step", 6);
	_cleanup_(run_freep) struct run *stored = NULL;
	struct error err = ERROR_INIT;
	struct answer a;
	struct bed b;

	bed_start(&b);
	submit_and_commit(&b, &a);
	both_report(&b, 1, 1, "ended");
	turn_held(&b);
	controller_set_progress(b.controller, 1, step6, "", 0);
	commit_ends(&b);
	ck_assert_int_eq(state_of(&b, 1), RUN_SUCCEEDED);
	held_store_fail(b.held, 1);
	b.now += 1;
	turn_held(&b);
	ck_assert(store_is_busy(b.store));
	controller_reschedule(b.controller);
	turn(&b);
	commit_ends(&b);
	b.now += 1;
	turn(&b);
	commits_end(&b);
	ck_ok(store_get(b.store, 1, &stored, &err), &err);
	ck_assert_int_eq(json_get_int(stored->progress, "step", 0), 6);
	bed_end(&b);
}
END_TEST

/* Progress that changes while it is being written is written again. */
START_TEST(progress_during_a_commit_is_not_lost)
{
	_cleanup_json_ json_t *step5 = json_pack("{s:i}", "step", 5), *step6 = json_pack("{s:i}", "step", 6);
	_cleanup_(run_freep) struct run *stored = NULL;
	struct error err = ERROR_INIT;
	struct answer a;
	struct bed b;
	int told = -1;

	bed_start(&b);
	submit_and_commit(&b, &a);
	both_report(&b, 1, 1, "running");
	controller_set_progress(b.controller, 1, step5, "", 0);
	turn(&b);
	b.now += 1;
	turn_held(&b);
	ck_assert_ptr_nonnull(waiter_create(b.controller, 1, 1u << RUN_RUNNING, 0, note_state, &told));
	controller_set_progress(b.controller, 1, step6, "", 0);
	turn(&b);
	ck_assert_int_eq(told, RUN_RUNNING); /* progress is published before it is on disk */
	commit_ends(&b);
	b.now += 1;
	turn(&b);
	commits_end(&b);
	ck_ok(store_get(b.store, 1, &stored, &err), &err);
	ck_assert_int_eq(json_get_int(stored->progress, "step", 0), 6);
	bed_end(&b);
}
END_TEST

/* A run is placed, and cancelled, or loses a node, before that is on disk: no node gets the attempt. */
START_TEST(an_attempt_that_is_given_up_during_its_commit_is_not_started)
{
	static const char less[] = "n1 slots=1\n";
	_cleanup_(hosts_freep) struct hosts *hosts = NULL;
	struct error err = ERROR_INIT;
	struct answer a, b_first;
	struct bed b;
	int told = -1;

	bed_start(&b);
	submit_and_commit(&b, &b_first);
	submit_and_commit(&b, &a); /* waits for the first one's slots */
	ck_assert_int_eq(state_of(&b, 2), RUN_QUEUED);
	both_report(&b, 1, 1, "ended");
	*b.starts = '\0';
	turn_held(&b);
	ck_assert_int_eq(state_of(&b, 2), RUN_STARTING);
	ck_assert_ptr_nonnull(waiter_create(b.controller, 2, 0, INT64_MAX, note_state, &told));
	if (_i == 0)
		controller_cancel_run(b.controller, 2, "alice");
	else {
		ck_ok(hosts_parse(less, strlen(less), "hosts", &hosts, &err), &err);
		ck_ok(controller_set_hosts(b.controller, hosts, 1, 1e6, &err), &err);
	}
	turn(&b);
	ck_assert_int_eq(told, -1);
	commit_ends(&b);
	commits_end(&b);
	ck_assert_str_eq(b.starts, "");
	ck_assert_str_eq(b.stops, "");
	if (_i == 0) {
		ck_assert_int_eq(told, RUN_CANCELLED);
		ck_assert_int_eq(state_of(&b, 2), RUN_CANCELLED);
	} else
		ck_assert_int_ne(state_of(&b, 2), RUN_STARTING);
	bed_end(&b);
}
END_TEST

/* A run that could not be written was not accepted and appears nowhere; the next run is accepted. */
START_TEST(a_submission_whose_commit_fails_is_refused)
{
	struct answer a, meanwhile, next;
	struct bed b;

	bed_start(&b);
	held_store_fail(b.held, 1);
	submit(&b, &a);
	turn_held(&b);
	submit(&b, &meanwhile);
	turn(&b);
	commit_ends(&b);
	ck_assert_int_eq(a.count, 1);
	ck_assert_str_eq(a.error, "the disk is gone");
	ck_assert_int_eq(state_of(&b, a.id), -1);
	ck_assert_int_eq(meanwhile.count, 0);
	ck_assert_str_eq(b.starts, "");
	/* Changes since then are in the next commit. */
	b.now += 1;
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(meanwhile.count, 1);
	ck_assert_str_eq(meanwhile.error, "");
	ck_assert_int_gt(meanwhile.id, a.id);
	ck_assert_int_eq(state_of(&b, meanwhile.id), RUN_STARTING);
	submit_and_commit(&b, &next);
	ck_assert_int_eq(next.count, 1);
	ck_assert_int_eq(listed(&b, "all"), 2);
	bed_end(&b);
}
END_TEST

/* An end and drains whose commit fails are committed again, without any further event, and published then. */
START_TEST(what_a_failed_commit_held_is_committed_again)
{
	struct answer first, second;
	struct bed b;
	int told = -1;

	bed_start(&b);
	submit_and_commit(&b, &first);
	submit_and_commit(&b, &second);
	*b.starts = '\0';
	ck_assert_ptr_nonnull(waiter_create(b.controller, 1, 0, INT64_MAX, note_state, &told));
	held_store_fail(b.held, 2);
	both_report(&b, 1, 1, "ended");
	ck_assert_int_eq(controller_set_drained(b.controller, "n3", true, "a new fan"), -ENOENT);
	ck_assert_int_eq(controller_set_drained(b.controller, "n2", true, "a new fan"), 0);
	ck_assert_int_eq(controller_set_drained(b.controller, "n2", false, NULL), 0);
	ck_assert_int_eq(controller_set_drained(b.controller, "n1", true, "a new fan"), 0);
	turn(&b);
	commits_end(&b);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(told, -1);
		ck_assert_str_eq(b.starts, "");
		ck_assert(!held_store_is_drained(b.held, "n1"));
		b.now += 1;
		turn(&b);
		commits_end(&b);
	}
	ck_assert_int_eq(told, RUN_SUCCEEDED);
	ck_assert(held_store_is_drained(b.held, "n1") && !held_store_is_drained(b.held, "n2"));
	ck_assert_int_eq(state_of(&b, 1), RUN_SUCCEEDED);
	bed_end(&b);
}
END_TEST

/* The log says once that commits fail, however often they do, and that they no longer do. */
START_TEST(a_store_that_cannot_be_written_is_logged_once)
{
	struct bed b;
	int log;

	bed_start(&b);
	for (int again = 0; again < 2; again++) {
		held_store_fail(b.held, 3);
		ck_assert_int_eq(controller_set_drained(b.controller, "n1", !again, NULL), 0);
		log = divert_log(&b);
		for (int i = 0; i < 3; i++) {
			turn(&b);
			commits_end(&b);
			b.now += 1;
		}
		ck_assert_int_eq(count_in_log(&b, "the store cannot be written: the disk is gone", log), 1);
		log = divert_log(&b);
		turn(&b);
		commits_end(&b);
		ck_assert_int_eq(held_store_is_drained(b.held, "n1"), !again);
		ck_assert_int_eq(count_in_log(&b, "the store can be written again", log), 1);
	}
	bed_end(&b);
}
END_TEST

/* A drain that waits for its commit is not undone by a hosts file that is read meanwhile. */
START_TEST(a_drain_during_a_commit_outlives_a_reload)
{
	static const char text[] = "n1 slots=1\nn2 slots=1\nn3 slots=1\n";
	_cleanup_(hosts_freep) struct hosts *hosts = NULL;
	struct error err = ERROR_INIT;
	struct bed b;

	bed_start(&b);
	ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
	ck_assert_int_eq(controller_set_drained(b.controller, "n2", true, "a new fan"), 0);
	turn_held(&b);
	ck_assert_int_eq(controller_set_drained(b.controller, "n1", true, NULL), 0);
	ck_ok(controller_set_hosts(b.controller, hosts, 1, 1e6, &err), &err);
	for (size_t i = 0; i < 3; i++)
		ck_assert_int_eq(controller_node(b.controller, i)->drained, i < 2);
	ck_assert_str_eq(controller_node(b.controller, 1)->drain_reason, "a new fan");
	commits_end(&b);
	bed_end(&b);
}
END_TEST

/* The next attempt is placed, but not on disk. If the node removed the end of the last one now, and the
 * controller were killed, the end would be lost. */
START_TEST(an_attempt_is_not_forgotten_before_the_next_one_is_on_disk)
{
	_cleanup_free_ char *ended = report(1, 1, "n1", 0, "ended"), *early = NULL, *late = NULL;
	struct answer a;
	struct bed b;

	bed_start(&b);
	b.refusal = -EBUSY;
	submit_and_commit(&b, &a);
	ck_assert_ptr_nonnull(strstr(b.stops, "n1:1.1 "));
	b.refusal = 0;
	turn_held(&b);
	free(heartbeat(&b, "n1", ended));
	turn_held(&b);
	b.now += 2;
	turn_held(&b);
	ck_assert_int_eq(state_of(&b, 1), RUN_STARTING);
	early = heartbeat(&b, "n1", ended);
	ck_assert_str_eq(early, "");
	commits_end(&b);
	ck_assert_ptr_nonnull(strstr(b.starts, "n2:1.2 n1:1.2 "));
	late = heartbeat(&b, "n1", ended);
	ck_assert_str_eq(late, "1.1 ");
	commits_end(&b);
	bed_end(&b);
}
END_TEST

static void *release_held(void *context)
{
	struct held_store *h = context;

	held_store_await_held(h);
	held_store_release(h);
	return NULL;
}

/* Destroying the controller waits for the commit in progress, and commits what has changed since it began. */
START_TEST(the_end_commits_everything)
{
	_cleanup_json_ json_t *step5 = json_pack("{s:i}", "step", 5);
	_cleanup_(run_freep) struct run *stored = NULL;
	struct error err = ERROR_INIT;
	struct answer a, last;
	pthread_t thread;
	struct bed b;

	bed_start(&b);
	submit_and_commit(&b, &a);
	both_report(&b, 1, 1, "running");
	controller_set_progress(b.controller, 1, step5, "", 0);
	turn(&b);
	submit(&b, &last);
	turn_held(&b);
	ck_assert_int_eq(controller_set_drained(b.controller, "n2", true, "a new fan"), 0);
	*b.starts = '\0';
	ck_assert_int_eq(pthread_create(&thread, NULL, release_held, b.held), 0);
	bed_close(&b);
	pthread_join(thread, NULL);
	ck_assert_int_eq(last.count, 1);
	ck_assert_str_eq(b.starts, "");
	bed_open(&b);
	ck_assert_int_eq(state_of(&b, 2), RUN_QUEUED);
	ck_assert(controller_find_node(b.controller, "n2")->drained);
	ck_ok(store_get(b.store, 1, &stored, &err), &err);
	ck_assert_int_eq(json_get_int(stored->progress, "step", 0), 5);
	bed_end(&b);
}
END_TEST

/* A start was committed, and the service ended before it was sent: the run is started again. */
START_TEST(a_start_that_was_never_sent_costs_no_run)
{
	struct answer a;
	pthread_t thread;
	struct bed b;

	bed_start(&b);
	submit(&b, &a);
	turn_held(&b);
	ck_assert_int_eq(pthread_create(&thread, NULL, release_held, b.held), 0);
	bed_close(&b);
	pthread_join(thread, NULL);
	ck_assert_int_eq(a.count, 1);
	ck_assert_str_eq(b.starts, "");
	bed_open(&b);
	/* It begins when the nodes have confirmed that they do not have it. */
	for (int i = 0; i < 3 && state_of(&b, 1) == RUN_QUEUED; i++) {
		heartbeats(&b);
		turn(&b);
		commits_end(&b);
	}
	ck_assert_int_eq(state_of(&b, 1), RUN_STARTING);
	ck_assert(strstr(b.starts, "n2:1.2 ") && strstr(b.starts, "n1:1.2 "));
	bed_end(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("controller");
	TCase *c = tcase_create("commit");

	tcase_set_timeout(c, 120);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_submission_is_on_disk_before_it_is_answered_and_started);
	tcase_add_test(c, a_repeated_submission_is_the_same_run);
	tcase_add_test(c, a_submission_that_failed_can_be_repeated);
	tcase_add_test(c, a_new_run_that_the_store_refuses_fails_alone);
	tcase_add_test(c, a_change_that_the_store_refuses_is_kept);
	tcase_add_test(c, a_placement_that_the_store_refuses_has_a_reason);
	tcase_add_test(c, a_refused_change_keeps_the_reason_of_its_run);
	tcase_add_loop_test(c, what_the_store_refuses_is_tried_less_and_less, 0, 2);
	tcase_add_test(c, what_the_store_refuses_is_tried_again_when_it_matters);
	tcase_add_test(c, a_refusal_after_a_failed_commit_is_no_success);
	tcase_add_test(c, the_end_tries_what_the_store_has_refused);
	tcase_add_test(c, a_placement_during_a_commit_is_not_in_its_answer);
	tcase_add_test(c, commands_are_committed_at_once);
	tcase_add_test(c, an_evicted_run_is_committed);
	tcase_add_test(c, a_start_that_was_never_sent_costs_no_run);
	tcase_add_test(c, what_comes_during_a_commit_is_in_the_next_one);
	tcase_add_test(c, an_end_during_a_commit_waits_for_the_next_one);
	tcase_add_test(c, a_run_that_has_ended_stays_until_all_of_it_is_on_disk);
	tcase_add_test(c, progress_during_a_commit_is_not_lost);
	tcase_add_loop_test(c, an_attempt_that_is_given_up_during_its_commit_is_not_started, 0, 2);
	tcase_add_test(c, a_submission_whose_commit_fails_is_refused);
	tcase_add_test(c, what_a_failed_commit_held_is_committed_again);
	tcase_add_test(c, a_store_that_cannot_be_written_is_logged_once);
	tcase_add_test(c, a_drain_during_a_commit_outlives_a_reload);
	tcase_add_test(c, an_attempt_is_not_forgotten_before_the_next_one_is_on_disk);
	tcase_add_test(c, the_end_commits_everything);
	return unit_run(s);
}
