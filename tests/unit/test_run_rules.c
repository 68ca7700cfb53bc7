/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a run, one by one: names, states, delays between attempts, what is kept of failures, and
 * events that come in a state in which they mean nothing. */
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster_fixture.h"

/* ---- what is asked for ---- */

static int make_named(const char *name, struct run **out, struct error *err)
{
	_cleanup_json_ json_t *json =
	    json_pack("{s:s,s:s,s:[s]}", "task", "command", "name", name, "command", "true");
	_cleanup_(run_config_freep) struct run_config *config = fixture_config(json);

	return run_new(config, out, err);
}

START_TEST(a_name_is_a_short_line)
{
	char name[300];
	struct error err = ERROR_INIT;
	static const char *const wrong[] = {"a\nb", "\x1f", "a\x7f", "a\tb",
	                                    "a\xc2\x9b"
	                                    "2J"};
	struct run *r = NULL;

	memset(name, 'n', sizeof(name));
	name[256] = '\0';
	ck_assert_int_eq(make_named(name, &r, &err), -EINVAL);
	ck_assert_str_eq(err.message, "name: at most 255 bytes and no control characters are possible");
	name[255] = '\0';
	ck_ok(make_named(name, &r, &err), &err);
	ck_assert_str_eq(r->name, name);
	ck_assert_str_eq(r->task, "command");
	ck_assert_int_eq(r->exit_status, -1);
	ck_assert_ptr_null(r->output);
	run_free(steal_pointer(r));
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		ck_assert_int_eq(make_named(wrong[i], &r, &err), -EINVAL);
		ck_assert_ptr_null(r);
	}
	ck_ok(make_named(" ~\xc3\xa9", &r, &err), &err);
	run_free(r);
}
END_TEST

START_TEST(states_have_names)
{
	unsigned all = 0;

	for (int i = 0; i < RUN_STATES; i++) {
		ck_assert_uint_eq(run_state_set(run_state_name(i)), 1u << i);
		all |= 1u << i;
	}
	ck_assert_uint_eq(run_state_set("all"), all);
	ck_assert_uint_eq(run_state_set("active"),
	                  1u << RUN_QUEUED | 1u << RUN_STARTING | 1u << RUN_RUNNING | 1u << RUN_STOPPING);
	ck_assert_uint_eq(run_state_set("dancing"), 0);
	ck_assert_uint_eq(run_state_set(""), 0);
}
END_TEST

/* ---- attempts after a failure ---- */

/* An attempt from 100 that has failed. */
static struct run *failed_run(void)
{
	struct run *r = fixture_run(2, 1);

	r->retries.max_restarts = r->retries.max_node_failures = 100;
	fixture_place(r);
	run_set_reason(r, "rank 0 has failed");
	return r;
}

START_TEST(delays_are_doubled_up_to_five_minutes)
{
	static const double delays[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300};
	_cleanup_(run_freep) struct run *r = failed_run();

	for (size_t i = 0; i < ARRAY_SIZE(delays); i++) {
		ck_assert(run_retry(r, i % 2 ? FAILURE_NODE : FAILURE_PROGRAM, 699));
		ck_assert_double_eq(r->retries.record.delay, delays[i]);
	}
	/* After a long attempt they begin anew. */
	ck_assert(run_retry(r, FAILURE_PROGRAM, 700));
	ck_assert_double_eq(r->retries.record.delay, 1);
	ck_assert_int_eq(r->retries.record.restarts, 7);
	ck_assert_int_eq(r->retries.record.node_failures, 6);
	ck_assert(str_ends(r->reason, "; the next one begins in 1 s"));
}
END_TEST

static const struct {
	enum run_failure failure;
	int64_t restarts, node_failures; /* that are possible */
	bool again;
	const char *reason;
} ends[] = {
    {FAILURE_PROGRAM, 1, 0, true, "attempt 1 has failed: it broke; the next one begins in 1 s"},
    {FAILURE_NODE, 0, 1, true, "attempt 1 has failed: it broke; the next one begins in 1 s"},
    {FAILURE_PROGRAM, 0, 1, false, "it broke"},
    {FAILURE_NODE, 1, 0, false, "it broke"},
    {FAILURE_FINAL, 1, 1, false, "it broke"},
    {FAILURE_PROGRAM, -1, 1, false, "it broke; attempt 1 was the last one: resources.max_restarts is 5"},
    {FAILURE_NODE, 1, -1, false, "it broke; attempt 1 was the last one: resources.max_node_failures is 5"},
};

/* -1: there were as many as are possible, 5. */
START_TEST(a_run_begins_again_as_often_as_it_may)
{
	_cleanup_(run_freep) struct run *r = failed_run();

	r->retries.max_restarts = ends[_i].restarts;
	r->retries.max_node_failures = ends[_i].node_failures;
	if (ends[_i].restarts < 0)
		r->retries.max_restarts = r->retries.record.restarts = 5;
	if (ends[_i].node_failures < 0)
		r->retries.max_node_failures = r->retries.record.node_failures = 5;
	run_set_reason(r, "it broke");
	ck_assert_int_eq(run_retry(r, ends[_i].failure, 200), ends[_i].again);
	ck_assert_str_eq(r->reason, ends[_i].reason);
	ck_assert_int_eq(r->retries.record.last_failure != NULL, ends[_i].again);
}
END_TEST

START_TEST(what_is_cancelled_does_not_begin_again)
{
	_cleanup_(run_freep) struct run *r = failed_run();

	r->cancelled = true;
	ck_assert(!run_retry(r, FAILURE_PROGRAM, 200));
	ck_assert_str_eq(r->reason, "rank 0 has failed");
	ck_assert_int_eq(r->retries.record.restarts, 0);
}
END_TEST

/* Three attempts in a row that have saved nothing; of a program that does not say what it saves nothing is
 * known. */
START_TEST(attempts_without_a_checkpoint_are_counted)
{
	_cleanup_(run_freep) struct run *r = failed_run();

	r->retries.saves = _i == 1;
	for (int i = 1; i <= 3; i++) {
		ck_assert_int_eq(run_retry(r, FAILURE_PROGRAM, 200), _i == 0 || i < 3);
		ck_assert_int_eq(r->retries.record.stalled, _i == 0 ? 0 : i);
	}
	if (_i == 0)
		return;
	ck_assert(str_ends(r->reason, "; given up after 3 attempts in a row without a newer checkpoint"));
	/* A newer one makes it count from 0. */
	run_set_checkpoint(r, 10);
	ck_assert(run_retry(r, FAILURE_PROGRAM, 200));
	ck_assert_int_eq(r->retries.record.stalled, 0);
	run_begin_attempt(r);
	ck_assert_double_eq(r->retries.record.delay, 0);
	ck_assert_int_eq(r->retries.record.checkpoint_before, 10);
	ck_assert(run_retry(r, FAILURE_PROGRAM, 200));
	ck_assert_int_eq(r->retries.record.stalled, 1);
}
END_TEST

START_TEST(a_checkpoint_has_the_node_of_rank_0)
{
	_cleanup_(run_freep) struct run *r = failed_run(), *waiting = fixture_run(1, 1);
	int64_t version = r->version;

	run_set_checkpoint(r, 5);
	ck_assert_str_eq(r->retries.record.checkpoint_node, "n1");
	ck_assert_int_eq(r->version, version + 1);
	run_set_checkpoint(r, 5);
	run_set_checkpoint(r, 4);
	ck_assert_int_eq(r->retries.record.checkpoint, 5);
	ck_assert_int_eq(r->version, version + 1);
	run_set_checkpoint(waiting, 6);
	ck_assert_int_eq(waiting->retries.record.checkpoint, 6);
	ck_assert_ptr_null(waiting->retries.record.checkpoint_node);
}
END_TEST

/* Each node once, those of the last attempt alone. */
START_TEST(a_node_is_avoided_once)
{
	_cleanup_(run_freep) struct run *r = failed_run();

	ck_assert_int_eq(str_replace(&r->parts[1].trouble, "node n2 is down"), 0);
	ck_assert_int_eq(str_replace(&r->device_node, "n2"), 0);
	ck_assert(run_retry(r, FAILURE_NODE, 200));
	ck_assert_str_eq(r->retries.record.avoid[0], "n2");
	ck_assert_ptr_null(r->retries.record.avoid[1]);
	ck_assert_int_eq(str_replace(&r->device_node, "n1"), 0);
	ck_assert(run_retry(r, FAILURE_NODE, 200));
	ck_assert_str_eq(r->retries.record.avoid[0], "n2");
	ck_assert_str_eq(r->retries.record.avoid[1], "n1");
	ck_assert_ptr_null(r->retries.record.avoid[2]);
	run_count_busy(r, "n3");
	ck_assert_str_eq(r->retries.record.avoid[0], "n3");
	ck_assert_ptr_null(r->retries.record.avoid[1]);
	ck_assert(r->busy);
}
END_TEST

/* Whatever of it there is, the store keeps it. */
START_TEST(what_there_is_of_earlier_attempts_is_kept)
{
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	struct retry_record *x = &r->retries.record;
	int64_t *const numbers[] = {&x->busy_starts, &x->restarts, &x->node_failures, &x->stalled,
	                            &x->checkpoint};

	ck_assert(!run_has_retries(r));
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		*numbers[i] = 1;
		ck_assert(run_has_retries(r));
		*numbers[i] = 0;
	}
	x->used = 0.5;
	ck_assert(run_has_retries(r));
	x->used = 0;
	run_set_last_failure(r, "it broke", "last line");
	ck_assert(run_has_retries(r));
	ck_assert_str_eq(x->last_failure, "attempt 0: it broke");
	ck_assert_str_eq(x->last_detail, "last line");
	run_set_last_failure(r, "again", NULL);
	ck_assert_ptr_null(x->last_detail);
}
END_TEST

/* ---- events in other states ---- */

START_TEST(events_mean_nothing_in_other_states)
{
	for (int state = 0; state < RUN_STATES; state++) {
		_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
		bool final = run_state_final(state), runs = state == RUN_STARTING || state == RUN_RUNNING;

		fixture_place(r);
		r->state = state;
		ck_assert_uint_eq(run_evict(r, "node n1 was drained", 200), runs ? RUN_STOP : 0);
		ck_assert_int_eq(r->evicted != NULL, runs);
		ck_assert_int_eq(r->requeue, runs);
		ck_assert_int_eq((int)r->state, runs ? RUN_STOPPING : state);
		r->state = state;
		ck_assert_int_eq(run_time_out(r, 200) != 0, runs);
		ck_assert_int_eq(r->timed_out, !final && state != RUN_STOPPING);
		r->state = state;
		r->parts[0].ended = false;
		ck_assert_int_eq(run_cancel(r, "alice", 200) != 0, !final && state != RUN_QUEUED);
		ck_assert_int_eq(r->cancelled, !final);
	}
}
END_TEST

/* A copy of the store that is older than an attempt: only a run that waits, and does not know of it, has been
 * overtaken. */
START_TEST(a_run_that_waits_is_superseded)
{
	for (int state = 0; state < RUN_STATES; state++) {
		_cleanup_(run_freep) struct run *r = fixture_run(1, 1);

		fixture_place(r);
		run_clear_parts(r);
		r->state = state;
		ck_assert_uint_eq(run_superseded(r, "n2", 1, 200), 0);
		ck_assert_uint_eq(run_superseded(r, "n2", 2, 200), state == RUN_QUEUED ? RUN_ENDED : 0);
		ck_assert_int_eq((int)r->state, state == RUN_QUEUED ? RUN_FAILED : state);
		ck_assert_int_eq(r->attempt, 1);
	}
}
END_TEST

/* What a run waited for, or had met with, is no reason of its end. */
static void is_queued(struct run *r)
{
	r->state = RUN_QUEUED;
	run_clear_parts(r);
	run_set_reason(r, "waits for 1 node");
}

static void runs(struct run *r)
{
	r->state = RUN_RUNNING;
}

static void met_a_busy_node(struct run *r)
{
	run_refused(r, &r->parts[1], REFUSED_BUSY, "slot 1 is leased to run 9", 150);
}

static void was_not_sent(struct run *r)
{
	run_refused(r, &r->parts[1], REFUSED_UNSENT, "timed out", 150);
}

static void was_refused(struct run *r)
{
	run_refused(r, &r->parts[1], REFUSED_FINAL, "/home/alice is not there", 150);
}

static void has_lost_a_node(struct run *r)
{
	run_part_lost(r, &r->parts[1], "node n2 is down", 150, 150);
}

static void is_evicted(struct run *r)
{
	run_evict(r, "node n1 was drained", 150);
}

static void has_had_its_time(struct run *r)
{
	run_time_out(r, 150);
}

static void (*const before_cancelling[])(struct run *r) = {
    is_queued,       runs,       met_a_busy_node, was_not_sent, was_refused,
    has_lost_a_node, is_evicted, has_had_its_time};

START_TEST(a_cancelled_run_names_its_canceller)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	fixture_place(r);
	before_cancelling[_i](r);
	run_cancel(r, "alice", 200);
	ck_assert_uint_eq(run_cancel(r, "bob", 201), 0);
	ck_assert_int_eq(run_stop_kind(r), RUN_STOP_CANCEL);
	ck_assert_str_eq(r->reason, "cancelled by alice");
	for (size_t i = 0; i < r->part_count; i++)
		run_part_lost(r, &r->parts[i], "node n1 is down", 210, 210);
	ck_assert_int_eq(r->state, RUN_CANCELLED);
	ck_assert_str_eq(r->reason, "cancelled by alice");
	ck_assert_ptr_null(r->detail);
}
END_TEST

/* A part that was lost while no controller was there. */
static const struct {
	double since, recovered;
	bool failed;
	double at;
} losses[] = {{150, 0, false, 150}, {0, 0, false, 200}, {0, 170, false, 170}, {0, 170, true, 200}};

START_TEST(a_part_is_lost_when_it_was_last_heard_of)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	fixture_place(r);
	r->recovered = losses[_i].recovered;
	r->failed = losses[_i].failed;
	ck_assert_uint_eq(run_part_lost(r, &r->parts[0], "node n1 is down", losses[_i].since, 200), RUN_STOP);
	ck_assert_double_eq(r->parts[0].trouble_at, losses[_i].at);
	ck_assert_str_eq(r->parts[0].trouble, "node n1 is down");
	ck_assert_uint_eq(run_part_lost(r, &r->parts[0], "once more", 1, 201), 0);
	ck_assert_str_eq(r->parts[0].trouble, "node n1 is down");
}
END_TEST

START_TEST(an_eviction_is_over_with_its_attempt)
{
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);

	fixture_place(r);
	ck_assert_uint_eq(run_evict(r, "node n1 was drained", 150), RUN_STOP);
	ck_assert_int_eq(run_stop_kind(r), RUN_STOP_SAVE);
	ck_assert_uint_eq(fixture_report(r, "n1", "ended", RANK0_OK), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_QUEUED);
	ck_assert(!r->requeue);
	ck_assert_ptr_null(r->evicted);
	ck_assert_str_eq(r->reason, "node n1 was drained");
	ck_assert_double_eq(r->started, 0);
	ck_assert_double_eq(r->ended, 0);
	ck_assert_int_eq(run_stop_kind(r), RUN_STOP_NOW);
}
END_TEST

/* ---- reports ---- */

static const struct {
	const char *rank, *reason;
	int status;
} deaths[] = {
    {"\"exit_status\":137,\"signal\":\"SIGKILL\",\"oom\":true",
     "rank 0 on n1: killed by SIGKILL (the kernel ran out of memory: OOM killer)", 137},
    {"\"exit_status\":139,\"signal\":\"SIGSEGV\",\"core_dumped\":true",
     "rank 0 on n1: killed by SIGSEGV, core dumped", 139},
    {"\"exit_status\":137,\"oom\":true",
     "rank 0 on n1: exit status 137 (the kernel ran out of memory: OOM killer)", 137},
    {"\"signal\":\"KILL\"", "rank 0 on n1: killed by KILL", 137},
    {"\"signal\":\"SIGNONE\"", "rank 0 on n1: killed by SIGNONE", 128},
    {"\"exit_status\":3", "rank 0 on n1: exit status 3", 3},
};

START_TEST(a_death_is_described)
{
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	_cleanup_free_ char *rank = str_printf("{\"rank\":0,\"state\":\"exited\",%s}", deaths[_i].rank);

	fixture_place(r);
	fixture_report(r, "n1", "ended", rank);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_str_eq(r->reason, deaths[_i].reason);
	ck_assert_int_eq(r->exit_status, deaths[_i].status);
	ck_assert_ptr_null(r->detail);
}
END_TEST

/* What a later report does not say stays as it was; what it says anew makes a new version. */
START_TEST(a_rank_is_what_all_reports_say)
{
	static const char *const news[] = {
	    "{\"rank\":0,\"state\":\"running\",\"pid\":7}", "{\"rank\":0,\"state\":\"running\",\"pid\":8}",
	    "{\"rank\":0,\"state\":\"running\",\"oom\":true}",
	    "{\"rank\":0,\"state\":\"running\",\"core_dumped\":true}",
	    "{\"rank\":0,\"state\":\"exited\",\"exit_status\":0,\"stopped\":true}"};
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	fixture_place(r);
	for (size_t i = 0; i < ARRAY_SIZE(news); i++) {
		int64_t version = r->version;

		fixture_report(r, "n1", "running", news[i]);
		ck_assert_int_gt(r->version, version);
		version = r->version;
		fixture_report(r, "n1", "running", news[i]);
		ck_assert_int_eq(r->version, version);
	}
	ck_assert(r->ranks[0].oom && r->ranks[0].core_dumped && r->ranks[0].stopped);
	ck_assert_int_eq(r->ranks[0].pid, 8);
	/* Ranks that there are not, and one of another node. */
	fixture_report(r, "n1", "running",
	               "{\"rank\":2,\"state\":\"exited\",\"exit_status\":1},"
	               "{\"rank\":1,\"state\":\"exited\",\"exit_status\":1}");
	ck_assert_int_eq(r->state, RUN_STARTING);
	ck_assert_int_eq(r->ranks[1].state, RANK_STARTING);
	ck_assert_int_eq(r->ranks[1].exit_status, -1);
}
END_TEST

/* What has ended stays so; of the others it is known whether they ran. */
START_TEST(ranks_are_closed_with_their_attempt)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 2);

	fixture_place(r);
	fixture_report(r, "n1", "running",
	               "{\"rank\":0,\"state\":\"exited\",\"exit_status\":1,\"pid\":5},"
	               "{\"rank\":1,\"state\":\"running\",\"pid\":6}");
	ck_assert_int_eq(r->state, RUN_STOPPING);
	r->ranks[2].state = RANK_LOST;
	run_part_lost(r, &r->parts[1], "node n2 is down", 190, 200);
	ck_assert_uint_eq(run_part_lost(r, &r->parts[0], "node n1 is down", 190, 200), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_double_eq(r->ended, 200);
	ck_assert_int_eq(r->ranks[0].state, RANK_EXITED);
	ck_assert_int_eq(r->ranks[1].state, RANK_LOST);
	ck_assert_int_eq(r->ranks[2].state, RANK_LOST);
	ck_assert_int_eq(r->ranks[3].state, RANK_NOT_STARTED);
	ck_assert_uint_eq(r->part_count, 0);
}
END_TEST

/* The store keeps of an attempt what its ranks do not say, where there is any. */
START_TEST(what_there_is_of_an_attempt_is_kept)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1), *other = fixture_run(2, 1),
	                                *third = fixture_run(2, 1);
	json_t *record = NULL;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(run_under_way(r, &record), 0);
	ck_assert_ptr_null(record);
	fixture_place(r);
	ck_assert_int_eq(run_under_way(r, &record), 0);
	ck_assert_ptr_null(record);
	r->parts[1].lease = 60;
	ck_assert_int_eq(run_under_way(r, &record), 0);
	ck_assert_ptr_nonnull(record);
	ck_ok(run_set_under_way(other, record, &err), &err);
	ck_assert_uint_eq(other->part_count, 1);
	ck_assert_str_eq(other->parts[0].node, "n2");
	ck_assert_double_eq(other->parts[0].lease, 60);
	json_decref(steal_pointer(record));
	/* Where no attempt is under way there is nothing of one. */
	third->timed_out = third->final_failure = true;
	ck_assert_int_eq(str_replace(&third->evicted, "node n1 was drained"), 0);
	ck_assert_int_eq(str_replace(&third->device_error, "a GPU is gone"), 0);
	ck_assert_int_eq(str_replace(&third->device_node, "n1"), 0);
	ck_assert_int_eq(run_under_way(third, &record), 0);
	ck_assert_ptr_null(record);
	third->retries.record.restarts = 2;
	ck_assert_int_eq(run_under_way(third, &record), 0);
	ck_assert_ptr_nonnull(record);
	ck_assert(!json_object_get(record, "timed_out") && !json_object_get(record, "final_failure"));
	ck_assert(!json_object_get(record, "evicted") && !json_object_get(record, "device_error"));
	json_decref(record);
	third->timed_out = third->final_failure = false;
	ck_assert_int_eq(str_replace(&third->evicted, NULL), 0);
	ck_assert_int_eq(str_replace(&third->device_error, NULL), 0);
	ck_assert_int_eq(str_replace(&third->device_node, NULL), 0);
	ck_ok(run_set_under_way(third, NULL, &err), &err);
	ck_assert_uint_eq(third->part_count, 0);
}
END_TEST

START_TEST(lost_parts_are_found_and_removed_by_attempt)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	fixture_place(r);
	ck_assert_ptr_nonnull(run_add_lost(r, &r->parts[0]));
	ck_assert_ptr_nonnull(run_add_lost(r, &r->parts[1]));
	ck_assert_ptr_nonnull(run_find_lost(r, "n2", 1));
	ck_assert_ptr_null(run_find_lost(r, "n2", 2));
	ck_assert_ptr_null(run_find_lost(r, "n3", 1));
	ck_assert(r->parts[0].lost && r->parts[1].lost);
	r->dirty = false;
	run_remove_lost(r, run_find_lost(r, "n1", 1));
	ck_assert(r->dirty);
	ck_assert_uint_eq(r->lost_count, 1);
	ck_assert_str_eq(r->lost[0].record.node, "n2");
	ck_assert(!r->parts[0].lost && r->parts[1].lost);
	ck_assert_ptr_null(run_find_lost(r, "n1", 1));
	/* That of an earlier attempt says nothing of this one's part. */
	r->attempt = 2;
	run_remove_lost(r, run_find_lost(r, "n2", 1));
	ck_assert(r->parts[1].lost);
	ck_assert_uint_eq(r->lost_count, 0);
}
END_TEST

/* Only lost parts of the attempt itself are those of its parts. */
START_TEST(lost_parts_come_back)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	fixture_place(r);
	ck_assert_ptr_nonnull(run_add_lost(r, &r->parts[0]));
	r->attempt = 2;
	ck_assert_ptr_nonnull(run_add_lost(r, &r->parts[1]));
	ck_assert_int_eq(run_under_way(r, &json), 0);
	run_clear_parts(r);
	run_clear_lost(r);
	ck_ok(run_set_under_way(r, json, &err), &err);
	ck_ok(run_recover(r, 160, &err), &err);
	ck_assert_uint_eq(r->lost_count, 2);
	ck_assert(!run_part_find(r, "n1")->lost && run_part_find(r, "n2")->lost);
}
END_TEST

START_TEST(a_run_without_a_node_does_not_come_back)
{
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	struct error err = ERROR_INIT;

	r->state = RUN_RUNNING;
	ck_assert_int_eq(run_recover(r, 300, &err), -EINVAL);
	ck_assert_str_eq(err.message, "run 1 is running without a node");
	r->state = RUN_QUEUED;
	fixture_place(r);
	run_clear_parts(r);
	r->nodes = 5;
	ck_ok(run_recover(r, 300, &err), &err);
	ck_assert_int_eq(r->nodes, 1);
	ck_assert_double_eq(r->recovered, 300);
}
END_TEST

enum { SIMPLE_NODES = 4, SIMPLE_SLOTS = 4, SIMPLE_RANKS = SIMPLE_NODES * SIMPLE_SLOTS };

/* An attempt in the simplest way, which goes through all ranks and parts at each report. */
struct simple {
	enum rank_state states[SIMPLE_RANKS];
	int64_t statuses[SIMPLE_RANKS];
	bool running[SIMPLE_NODES], ended[SIMPLE_NODES];
	enum run_state state;
	bool failed;
};

static bool is_all(const bool *list)
{
	for (int i = 0; i < SIMPLE_NODES; i++)
		if (!list[i])
			return false;
	return true;
}

static void simple_fail(struct simple *s)
{
	s->failed = s->failed || s->state != RUN_STOPPING;
	s->state = RUN_STOPPING;
}

static void simple_end(struct simple *s)
{
	if (is_all(s->ended))
		s->state = s->failed ? RUN_FAILED : RUN_SUCCEEDED;
}

static void simple_report(struct simple *s, const struct run *r, int node, const char *name,
                          const struct report *report)
{
	bool changed = false;

	if (s->ended[node])
		return;
	for (size_t i = 0; i < report->rank_count; i++) {
		const struct rank_report *theirs = &report->ranks[i];

		if (!str_eq_host(r->ranks[theirs->rank].node, name))
			continue;
		changed = changed || s->states[theirs->rank] != theirs->state ||
		          (theirs->exit_status >= 0 && s->statuses[theirs->rank] != theirs->exit_status);
		s->states[theirs->rank] = theirs->state;
		if (theirs->exit_status >= 0)
			s->statuses[theirs->rank] = theirs->exit_status;
	}
	s->running[node] = s->running[node] || report->state == ATTEMPT_RUNNING;
	s->ended[node] = report->state == ATTEMPT_ENDED;
	for (int i = 0; i < SIMPLE_RANKS; i++)
		if (report->lost && str_eq_host(r->ranks[i].node, name))
			s->states[i] = RANK_LOST;
	for (int i = 0; i < SIMPLE_RANKS && changed; i++)
		if (s->states[i] == RANK_EXITED && s->statuses[i] > 0)
			simple_fail(s);
	if (s->state == RUN_STARTING && is_all(s->running))
		s->state = RUN_RUNNING;
	simple_end(s);
}

/* A run whose ranks lie on its nodes one after the other, or (mixed) as a store of another version may have
 * it. */
static struct run *simple_run(struct simple *s, bool mixed, unsigned *seed)
{
	struct run *r = fixture_run(SIMPLE_NODES, SIMPLE_SLOTS);
	struct error err = ERROR_INIT;

	fixture_place(r);
	for (int i = 0; mixed && i < SIMPLE_RANKS; i++) {
		int other = rand_r(seed) % SIMPLE_RANKS;
		char *name = r->ranks[i].node;

		r->ranks[i].node = r->ranks[other].node;
		r->ranks[other].node = name;
	}
	run_clear_parts(r);
	ck_ok(run_recover(r, 100, &err), &err);
	*s = (struct simple){.state = RUN_STARTING};
	for (int i = 0; i < SIMPLE_RANKS; i++) {
		s->states[i] = r->ranks[i].state;
		s->statuses[i] = r->ranks[i].exit_status;
	}
	return r;
}

/* Whatever nodes report of their ranks, in any order, and whichever are lost. */
START_TEST(an_attempt_goes_on_as_in_the_simplest_way)
{
	unsigned seed = (unsigned)_i;
	int states[RUN_STATES] = {0};

	for (int round = 0; round < 500; round++) {
		struct simple s;
		_cleanup_(run_freep) struct run *r = simple_run(&s, round % 2, &seed);
		bool healthy = rand_r(&seed) % 4;

		while (!run_state_final(r->state)) {
			int node = rand_r(&seed) % SIMPLE_NODES;
			_cleanup_free_ char *name =
			    str_printf("%c%d", rand_r(&seed) % 2 ? 'n' : 'N', node + 1);
			struct rank_report ranks[SIMPLE_SLOTS] = {0};
			struct report report = {.run = 1,
			                        .attempt = 1,
			                        .node = name,
			                        .state = rand_r(&seed) % 3 ? ATTEMPT_RUNNING : ATTEMPT_ENDED,
			                        .ranks = ranks,
			                        .rank_count = rand_r(&seed) % (SIMPLE_SLOTS + 1),
			                        .lost = rand_r(&seed) % 10 == 0};

			for (size_t i = 0; i < report.rank_count; i++) {
				bool exited = rand_r(&seed) % 3 == 0;

				ranks[i] =
				    (struct rank_report){.rank = rand_r(&seed) % SIMPLE_RANKS,
				                         .state = exited ? RANK_EXITED : RANK_RUNNING,
				                         .exit_status = !exited   ? -1
				                                        : healthy ? 0
				                                                  : rand_r(&seed) % 8 == 0};
			}
			if (!healthy && rand_r(&seed) % 20 == 0) {
				run_part_lost(r, run_part_find(r, name), "it is gone", 150, 200);
				if (!s.ended[node]) {
					s.ended[node] = true;
					simple_fail(&s);
					simple_end(&s);
				}
			} else {
				run_report(r, &report, 200);
				simple_report(&s, r, node, name, &report);
			}
			ck_assert_int_eq(r->state, s.state);
			states[s.state]++;
			for (int i = 0; i < SIMPLE_RANKS && !run_state_final(r->state); i++) {
				ck_assert_int_eq(r->ranks[i].state, s.states[i]);
				ck_assert_int_eq(r->ranks[i].exit_status, s.statuses[i]);
			}
		}
	}
	ck_assert(states[RUN_STARTING] > 0 && states[RUN_RUNNING] > 0 && states[RUN_STOPPING] > 0);
	ck_assert(states[RUN_SUCCEEDED] > 0 && states[RUN_FAILED] > 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("run rules");
	TCase *tc = tcase_create("rules");

	tcase_add_test(tc, a_name_is_a_short_line);
	tcase_add_test(tc, states_have_names);
	tcase_add_test(tc, delays_are_doubled_up_to_five_minutes);
	tcase_add_loop_test(tc, a_run_begins_again_as_often_as_it_may, 0, ARRAY_SIZE(ends));
	tcase_add_test(tc, what_is_cancelled_does_not_begin_again);
	tcase_add_loop_test(tc, attempts_without_a_checkpoint_are_counted, 0, 2);
	tcase_add_test(tc, a_checkpoint_has_the_node_of_rank_0);
	tcase_add_test(tc, a_node_is_avoided_once);
	tcase_add_test(tc, what_there_is_of_earlier_attempts_is_kept);
	tcase_add_test(tc, events_mean_nothing_in_other_states);
	tcase_add_test(tc, a_run_that_waits_is_superseded);
	tcase_add_loop_test(tc, a_cancelled_run_names_its_canceller, 0, ARRAY_SIZE(before_cancelling));
	tcase_add_loop_test(tc, a_part_is_lost_when_it_was_last_heard_of, 0, ARRAY_SIZE(losses));
	tcase_add_test(tc, an_eviction_is_over_with_its_attempt);
	tcase_add_loop_test(tc, a_death_is_described, 0, ARRAY_SIZE(deaths));
	tcase_add_test(tc, a_rank_is_what_all_reports_say);
	tcase_add_test(tc, ranks_are_closed_with_their_attempt);
	tcase_add_test(tc, what_there_is_of_an_attempt_is_kept);
	tcase_add_test(tc, lost_parts_are_found_and_removed_by_attempt);
	tcase_add_test(tc, lost_parts_come_back);
	tcase_add_test(tc, a_run_without_a_node_does_not_come_back);
	tcase_add_loop_test(tc, an_attempt_goes_on_as_in_the_simplest_way, 0, 4);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
