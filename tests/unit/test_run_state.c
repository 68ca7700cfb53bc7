/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the state machine of a run: which state follows from reports, refusals and losses. */
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster_fixture.h"

/* A run on all slots of its nodes: the placement decides how many that is, and the store keeps it. */
START_TEST(the_world_size_of_all_slots_is_known_once_placed)
{
	_cleanup_json_ json_t *config =
	    json_pack("{s:s,s:s,s:{s:i,s:s,s:s}}", "task", "command", "directory", "/tmp", "resources",
	              "nodes", 2, "devices_per_node", "all", "kind", "gpu");
	_cleanup_json_ json_t *json = NULL, *placed = NULL;
	_cleanup_(run_config_freep) struct run_config *checked = NULL;
	_cleanup_(run_freep) struct run *r = NULL;
	struct error err = ERROR_INIT;
	char *names[] = {(char *)"n1", (char *)"n2"};
	int slots[] = {0, 1, 0, 1};

	checked = fixture_config(config);
	ck_ok(run_new(checked, &r, &err), &err);
	ck_assert(r->all_slots);
	ck_assert_int_eq(r->kind, SLOT_GPU);
	json = run_to_json(r, true);
	ck_assert(json_is_null(json_object_get(json, "world_size")));
	r->per_node = 2;
	ck_ok(run_place(r, names, slots, 100, &err), &err);
	/* The controller does the same for a run that it reads from the store. */
	ck_ok(run_set_request(r, checked, &err), &err);
	ck_assert_int_eq(r->per_node, 2);
	placed = run_to_json(r, true);
	ck_assert_int_eq(json_get_int(placed, "world_size", 0), 4);
	ck_assert_int_eq(json_array_size(json_object_get(placed, "ranks")), 4);
}
END_TEST

/* With one_per_node a node has one rank, which has all slots of the run there. */
START_TEST(one_rank_per_node_has_all_slots_there)
{
	_cleanup_json_ json_t *config =
	    json_pack("{s:s,s:s,s:s,s:{s:i,s:i,s:b}}", "task", "command", "name", "x", "directory", "/tmp",
	              "resources", "nodes", 2, "devices_per_node", 3, "one_per_node", 1);
	_cleanup_json_ json_t *want = json_pack(
	                          "[{s:i,s:s,s:i,s:[i,i,i],s:s,s:b},{s:i,s:s,s:i,s:[i,i,i],s:s,s:b}]", "rank",
	                          0, "node", "n1", "slot", 4, "slots", 4, 5, 6, "state", "starting",
	                          "stopped", 0, "rank", 1, "node", "n2", "slot", 0, "slots", 0, 1, 2, "state",
	                          "starting", "stopped", 0),
	                      *ranks = NULL;
	_cleanup_(run_config_freep) struct run_config *checked = NULL;
	_cleanup_(run_freep) struct run *r = NULL;
	struct error err = ERROR_INIT;
	char *names[] = {(char *)"n1", (char *)"n2"};
	int slots[] = {4, 5, 6, 0, 1, 2};

	checked = fixture_config(config);
	ck_ok(run_new(checked, &r, &err), &err);
	r->id = 1;
	ck_assert_int_eq(run_world_size(r), 2);
	ck_ok(run_place(r, names, slots, 100, &err), &err);
	ranks = message_encode_list(&run_rank_message, r->ranks, r->rank_count);
	ck_assert(json_equal(ranks, want));
	ck_assert_uint_eq(r->part_count, 2);
	ck_assert_int_eq(run_world_size(r), 2);
	/* Reports about ranks do not change the slots of a part. */
	fixture_report(r, "n1", "ended", "{\"rank\":0,\"slot\":4,\"state\":\"exited\",\"exit_status\":0}");
	ck_assert_uint_eq(r->ranks[0].slot_count, 3);
}
END_TEST

/* Of what a node says of two of its ranks: the version tells who follows the run that there is news. */
START_TEST(only_news_make_a_new_version)
{
#define FIRST  "{\"rank\":0,\"state\":\"running\",\"pid\":11}"
#define SECOND "{\"rank\":1,\"state\":\"running\",\"pid\":12}"
	static const struct {
		const char *ranks;
		bool news;
	} reports[] = {
	    {FIRST "," SECOND, false},
	    {"", false},
	    {"{\"rank\":0,\"state\":\"running\",\"pid\":13}," SECOND, true},
	    {FIRST ",{\"rank\":1,\"state\":\"running\",\"pid\":13}", true},
	    {"{\"rank\":0,\"state\":\"exited\",\"exit_status\":0}," SECOND, true},
	    {FIRST ",{\"rank\":1,\"state\":\"exited\",\"exit_status\":0}", true},
	};

	for (size_t i = 0; i < ARRAY_SIZE(reports); i++) {
		_cleanup_(run_freep) struct run *r = fixture_run(1, 2);
		int64_t version;

		fixture_place(r);
		fixture_report(r, "n1", "running", FIRST "," SECOND);
		ck_assert_int_eq(r->state, RUN_RUNNING);
		version = r->version;
		r->dirty = r->changed = false;
		fixture_report(r, "n1", "running", reports[i].ranks);
		ck_assert_msg((r->version > version) == reports[i].news, "%s", reports[i].ranks);
		ck_assert_int_eq(r->changed, reports[i].news);
		ck_assert_int_eq(r->dirty, reports[i].news);
	}
	/* The end of a part is no news, but is kept. */
	{
		_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

		fixture_place(r);
		fixture_report(r, "n1", "running", RANK0_OK);
		r->dirty = r->changed = false;
		fixture_report(r, "n1", "ended", RANK0_OK);
		ck_assert(r->dirty && !r->changed);
	}
}
END_TEST

/* A newer checkpoint is news, and is written down. */
START_TEST(only_a_newer_checkpoint_is_news)
{
	static const struct {
		int64_t step;
		bool news;
	} steps[] = {{20, true}, {10, false}, {20, false}, {21, true}};
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);

	fixture_place(r);
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		int64_t version = r->version;

		r->dirty = false;
		run_set_checkpoint(r, steps[i].step);
		ck_assert_int_eq(r->version > version, steps[i].news);
		ck_assert_int_eq(r->dirty, steps[i].news);
		ck_assert_int_eq(r->retries.record.checkpoint, MAX(steps[i].step, 20));
		ck_assert_str_eq(r->retries.record.checkpoint_node, "n1");
	}
}
END_TEST

/* What a node says why its part has failed need not be UTF-8; the first reason counts. */
START_TEST(the_reason_of_a_part_is_text)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);
	struct report report = {.run = 1,
	                        .attempt = 1,
	                        .node = (char *)"n2",
	                        .state = ATTEMPT_RUNNING,
	                        .shutdown = (char *)"going \xff down"};

	fixture_place(r);
	r->dirty = false;
	run_report(r, &report, 150);
	ck_assert(r->dirty);
	ck_assert_double_eq(r->parts[1].trouble_at, 150);
	ck_assert_int_eq(strncmp(r->parts[1].trouble, "going ", 6), 0);
	ck_assert_ptr_null(strchr(r->parts[1].trouble, '\xff'));
	report.shutdown = (char *)"later";
	run_report(r, &report, 160);
	ck_assert_double_eq(r->parts[1].trouble_at, 150);
	ck_assert_ptr_null(strstr(r->parts[1].trouble, "later"));
}
END_TEST

START_TEST(a_run_succeeds_once_all_its_nodes_have_ended_well)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);
	_cleanup_json_ json_t *json = NULL;

	fixture_place(r);
	ck_assert_int_eq(r->state, RUN_STARTING);
	ck_assert_uint_eq(fixture_report(r, "n1", "running", "{\"rank\":0,\"state\":\"running\",\"pid\":11}"),
	                  0);
	ck_assert_int_eq(r->state, RUN_STARTING);
	ck_assert_uint_eq(fixture_report(r, "n2", "running", "{\"rank\":1,\"state\":\"running\",\"pid\":12}"),
	                  0);
	ck_assert_int_eq(r->state, RUN_RUNNING);
	/* A node's report about a rank of another node is ignored. */
	fixture_report(r, "n2", "running", "{\"rank\":0,\"state\":\"exited\",\"exit_status\":9}");
	ck_assert_int_eq(r->state, RUN_RUNNING);
	ck_assert_uint_eq(fixture_report(r, "n1", "ended", RANK0_OK), 0);
	ck_assert_uint_eq(fixture_report(r, "n2", "ended", RANK1_OK), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_SUCCEEDED);
	json = run_to_json(r, true);
	ck_assert_int_eq(json_get_int(json, "exit_status", -1), 0);
	ck_assert_uint_eq(json_array_size(json_object_get(json, "nodes")), 2);
}
END_TEST

START_TEST(a_rank_stopped_after_a_failure_is_not_its_cause)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	fixture_place(r);
	fixture_report(r, "n1", "running", "");
	fixture_report(r, "n2", "running", "");
	ck_assert_uint_eq(fixture_report(r, "n2", "stopping", RANK1_KILLED), RUN_STOP);
	ck_assert_int_eq(r->state, RUN_STOPPING);
	ck_assert_uint_eq(fixture_report(r, "n2", "ended", RANK1_KILLED), 0);
	/* The other rank is ended by the stop, which is not the cause. */
	ck_assert_uint_eq(fixture_report(r, "n1", "ended",
	                                 "{\"rank\":0,\"state\":\"exited\",\"exit_status\":143,\"signal\":"
	                                 "\"SIGTERM\",\"stopped\":true}"),
	                  RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_int_eq(r->exit_status, 137);
	ck_assert_str_eq(r->reason, "rank 1 on n2: killed by SIGKILL");
	ck_assert_str_eq(r->detail, "last line");
	/* A second report of the same end changes nothing. */
	ck_assert_uint_eq(fixture_report(r, "n2", "ended", RANK1_KILLED), 0);
}
END_TEST

/* A device that fails is the cause, whether its node reports it before or after the rank has failed. */
START_TEST(a_failed_device_is_named_before_the_rank)
{
	static const char *const error =
	    "\"device_errors\":[\"GPU 3 (GPU-x) of n2: Xid 79: fell off the bus\"],";
	static const char *const want =
	    "GPU 3 (GPU-x) of n2: Xid 79: fell off the bus; rank 1 on n2: killed by SIGKILL";

	for (int late = 0; late < 2; late++) {
		_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

		fixture_place(r);
		fixture_report(r, "n1", "running", "");
		fixture_report_with(r, "n2", "running", "", late ? "" : error);
		ck_assert_int_eq(r->state, RUN_RUNNING); /* the rank may continue in spite of the error */
		fixture_report_with(r, "n2", "stopping", RANK1_KILLED, late ? "" : error);
		fixture_report_with(r, "n2", "ended", RANK1_KILLED, error);
		fixture_report(r, "n1", "ended", RANK0_OK);
		ck_assert_int_eq(r->state, RUN_FAILED);
		ck_assert_str_eq(r->reason, want);
	}
}
END_TEST

START_TEST(the_node_of_a_failed_device_is_avoided)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	r->retries.max_node_failures = 1;
	fixture_place(r);
	fixture_report(r, "n1", "running", "");
	fixture_report_with(r, "n2", "ended", RANK1_KILLED, "\"device_errors\":[\"GPU 3 of n2: Xid 79\"],");
	fixture_report(r, "n1", "ended", RANK0_OK);
	ck_assert_int_eq(r->state, RUN_QUEUED);
	ck_assert_ptr_nonnull(r->retries.record.avoid);
	ck_assert_str_eq(r->retries.record.avoid[0], "n2");
	ck_assert_ptr_null(r->retries.record.avoid[1]);
}
END_TEST

START_TEST(a_worker_error_is_the_detail)
{
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);

	fixture_place(r);
	run_worker_error(r, 0, "no such column: text", false);
	fixture_report(r, "n1", "ended",
	               "{\"rank\":0,\"state\":\"exited\",\"exit_status\":1,\"error\":\"other lines\"}");
	ck_assert_str_eq(r->reason, "rank 0 on n1: exit status 1");
	ck_assert_str_eq(r->detail, "no such column: text");
}
END_TEST

START_TEST(a_cancelled_run_is_stopped_first_unless_it_waits)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1), *queued = fixture_run(1, 1);

	fixture_place(r);
	ck_assert_uint_eq(run_cancel(r, "alice", 150), RUN_STOP);
	ck_assert_uint_eq(run_cancel(r, "alice", 151), 0);
	fixture_report(r, "n1", "ended", RANK0_OK);
	ck_assert_uint_eq(fixture_report(r, "n2", "ended", RANK1_KILLED), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_CANCELLED);
	ck_assert_uint_eq(run_cancel(queued, "alice", 150), RUN_ENDED);
	ck_assert_int_eq(queued->state, RUN_CANCELLED);
}
END_TEST

/* Another attempt has the slots: the run waits again, and its next attempt has the next number. */
START_TEST(a_run_refused_by_a_busy_node_waits_again)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	fixture_place(r);
	ck_assert_uint_eq(
	    run_refused(r, run_part_find(r, "n2"), REFUSED_BUSY, "slot 1 is leased to run 9", 150), RUN_STOP);
	ck_assert_uint_eq(fixture_report(r, "n1", "ended", RANK0_OK), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_QUEUED);
	fixture_place(r);
	ck_assert_int_eq(r->attempt, 2);
}
END_TEST

/* But not for ever; a start that did not arrive does not count. */
START_TEST(a_run_is_refused_by_busy_nodes_only_so_often)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	r->retries.max_busy_starts = 2;
	for (int i = 0; i < 5; i++) {
		fixture_place(r);
		run_refused(r, run_part_find(r, "n2"), i < 2 ? REFUSED_UNSENT : REFUSED_BUSY,
		            "slot 1 is leased", 150);
		fixture_report(r, "n1", "ended", RANK0_OK);
		ck_assert_int_eq(r->state, i < 4 ? RUN_QUEUED : RUN_FAILED);
		ck_assert_double_eq(r->retries.record.delay, i < 2 ? 0 : 1 << (i - 2));
		if (i >= 2)
			ck_assert_str_eq(r->retries.record.avoid[0], "n2");
	}
	ck_assert_str_eq(r->reason, "node n2: slot 1 is leased; attempt 5 was the last one: "
	                            "resources.max_busy_starts is 2");
}
END_TEST

/* Each refusal marks the run as changed for the store, also while the other parts are being stopped. */
START_TEST(every_refusal_goes_to_the_store)
{
	_cleanup_(run_freep) struct run *r = fixture_run(3, 1);

	fixture_place(r);
	r->dirty = false;
	ck_assert_uint_eq(
	    run_refused(r, run_part_find(r, "n2"), REFUSED_BUSY, "slot 0 is leased to run 9", 150), RUN_STOP);
	ck_assert(r->dirty);
	r->dirty = false;
	ck_assert_uint_eq(run_refused(r, run_part_find(r, "n3"), _i == 0 ? REFUSED_BUSY : REFUSED_FINAL,
	                              "slot 0 is drained", 151),
	                  0);
	ck_assert(r->dirty);
	ck_assert(run_part_find(r, "n3")->ended);
}
END_TEST

/* A refusal of one attempt does not affect how the next attempt ends. */
START_TEST(a_run_refused_once_ends_as_its_next_attempt_ends)
{
	static const struct {
		const char *rank;
		enum run_state state;
	} cases[] = {{RANK1_OK, RUN_SUCCEEDED}, {RANK1_KILLED, RUN_FAILED}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

		fixture_place(r);
		run_refused(r, run_part_find(r, "n2"), REFUSED_BUSY, "slot 1 is leased to run 9", 150);
		ck_assert_uint_eq(fixture_report(r, "n1", "ended", RANK0_OK), RUN_ENDED);
		ck_assert_int_eq(r->state, RUN_QUEUED);
		fixture_place(r);
		ck_assert_ptr_null(r->reason);
		fixture_report(r, "n1", "running", "");
		fixture_report(r, "n2", "running", "");
		fixture_report(r, "n1", "ended", RANK0_OK);
		ck_assert_uint_eq(fixture_report(r, "n2", "ended", cases[i].rank), RUN_ENDED);
		ck_assert_int_eq(r->state, cases[i].state);
	}
}
END_TEST

/* A report about an attempt that has ended does not change the present one. */
START_TEST(a_late_report_of_an_earlier_attempt_is_ignored)
{
	static const struct {
		const char *state, *rank, *more;
	} late[] = {
	    {"running", "{\"rank\":1,\"state\":\"running\",\"pid\":9}", ""},
	    {"running", "", "\"device_errors\":[\"GPU 3 of n2: Xid 79: fell off the bus\"],"},
	    {"stopping", RANK1_KILLED, "\"shutdown\":\"node n2 was shut down\","},
	    {"ended", RANK1_KILLED, ""},
	    {"ended", "", "\"lost\":true,\"reason\":\"attempt 1 was started and is lost\","},
	};
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	fixture_place(r);
	run_refused(r, run_part_find(r, "n2"), REFUSED_BUSY, "slot 1 is leased to run 9", 150);
	fixture_report(r, "n1", "ended", RANK0_OK);
	fixture_place(r);
	fixture_report(r, "n1", "running", "");
	for (size_t i = 0; i < ARRAY_SIZE(late); i++) {
		int64_t version = r->version;

		ck_assert_uint_eq(fixture_report_of(r, 1, "n2", late[i].state, late[i].rank, late[i].more),
		                  0);
		ck_assert_int_eq(r->state, RUN_STARTING);
		ck_assert_int_eq(r->version, version);
	}
	fixture_report(r, "n2", "running", "");
	ck_assert_int_eq(r->state, RUN_RUNNING);
	fixture_report(r, "n1", "ended", RANK0_OK);
	fixture_report(r, "n2", "ended", RANK1_OK);
	ck_assert_int_eq(r->state, RUN_SUCCEEDED);
}
END_TEST

/* A failed preflight is a fault of the run itself, which therefore fails instead of being queued again. */
START_TEST(a_run_whose_preflight_fails_has_failed)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	fixture_place(r);
	ck_assert_uint_eq(run_refused(r, run_part_find(r, "n2"), REFUSED_FINAL, "no directory /data", 150),
	                  RUN_STOP);
	ck_assert_uint_eq(
	    run_refused(r, run_part_find(r, "n1"), REFUSED_FINAL, "no directory /data either", 150),
	    RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_str_eq(r->reason, "node n2: the start has failed");
	ck_assert_str_eq(r->detail, "node n2: no directory /data");
	ck_assert_int_eq(r->ranks[0].state, RANK_NOT_STARTED);
}
END_TEST

/* What has failed on the node counts as a failure of the node; what the run asks for in vain is final, also
 * for a controller that reads it from the store. */
START_TEST(a_refusal_is_final_or_a_failure_of_the_node)
{
	bool final = _i % 2, stored = _i / 2;
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);
	struct error err = ERROR_INIT;

	r->retries.max_node_failures = r->retries.max_restarts = 9;
	fixture_place(r);
	run_refused(r, run_part_find(r, "n2"), final ? REFUSED_FINAL : REFUSED_NODE, "no answer", 150);
	if (stored) {
		_cleanup_json_ json_t *json = NULL;

		ck_assert_int_eq(run_under_way(r, &json), 0);
		run_clear_parts(r);
		r->final_failure = false;
		ck_ok(run_set_under_way(r, json, &err), &err);
		ck_ok(run_recover(r, 160, &err), &err);
	}
	fixture_report(r, "n1", "ended", "");
	ck_assert_int_eq(r->state, final ? RUN_FAILED : RUN_QUEUED);
	ck_assert_int_eq(r->retries.record.node_failures, final ? 0 : 1);
	if (!final)
		ck_assert_str_eq(r->retries.record.avoid[0], "n2");
}
END_TEST

/* The node has another hosts file than the controller had when it placed the run. */
START_TEST(a_node_may_spell_its_name_in_another_way)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);
	static const char gone[] = "\"device_errors\":[\"GPU 0: fell off the bus\"],";

	r->retries.max_node_failures = 1;
	r->spares_asked = 1;
	fixture_place(r);
	ck_assert_ptr_nonnull(run_add_lost(r, &r->parts[1]));
	ck_assert_ptr_eq(run_find_lost(r, "N2", 1), &r->lost[0]);
	run_remove_lost(r, &r->lost[0]);
	fixture_report(r, "N1", "running", "{\"rank\":0,\"slot\":0,\"state\":\"running\",\"pid\":7}");
	ck_assert_int_eq(r->ranks[0].pid, 7);
	fixture_report(r, "N2", "running", "");
	ck_assert_int_eq(r->state, RUN_RUNNING);
	fixture_report_with(r, "N2", "ended",
	                    "{\"rank\":1,\"slot\":0,\"state\":\"exited\",\"pid\":8,\"exit_status\":1}", gone);
	fixture_report(r, "N1", "ended", RANK0_OK);
	/* Once, as the controller spells it. */
	ck_assert_str_eq(r->retries.record.avoid[0], "n2");
	ck_assert_ptr_null(r->retries.record.avoid[1]);
	/* The other one is kept for the next attempt. */
	ck_assert_uint_eq(r->spare_count, 1);
	ck_assert_str_eq(r->spares[0].node, "n1");
}
END_TEST

static const char *spell(void *context, const char *node)
{
	const char *const *name = context;

	while (*name && !str_eq_host(*name, node))
		name++;
	return *name;
}

START_TEST(another_spelling_of_its_nodes_is_taken_over)
{
	static const char *const names[] = {"n1", "N2", "N3", NULL};
	static const int slots[] = {0};
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);
	int64_t version;

	fixture_place(r);
	ck_assert_ptr_nonnull(run_add_lost(r, &r->parts[1]));
	ck_assert(run_add_spare(r, "n3", slots));
	ck_assert(run_add_spare(r, "n4", slots));
	r->device_node = strdup("n2");
	r->retries.record.checkpoint_node = strdup("n3");
	r->retries.record.avoid = calloc(3, sizeof(char *));
	r->retries.record.avoid[0] = strdup("n1");
	r->retries.record.avoid[1] = strdup("n2");
	r->dirty = r->changed = false;
	version = r->version;
	run_respell(r, spell, (void *)names);
	ck_assert_int_eq(r->version, version + 1);
	ck_assert(r->dirty && r->changed);
	ck_assert_str_eq(r->ranks[0].node, "n1");
	ck_assert_str_eq(r->ranks[1].node, "N2");
	ck_assert_str_eq(r->parts[0].node, "n1");
	ck_assert_str_eq(r->parts[1].node, "N2");
	ck_assert_str_eq(r->lost[0].record.node, "N2");
	ck_assert_str_eq(r->spares[0].node, "N3");
	ck_assert_str_eq(r->spares[1].node, "n4"); /* which is not known */
	ck_assert_str_eq(r->device_node, "N2");
	ck_assert_str_eq(r->retries.record.checkpoint_node, "N3");
	ck_assert_str_eq(r->retries.record.avoid[0], "n1");
	ck_assert_str_eq(r->retries.record.avoid[1], "N2");
	run_respell(r, spell, (void *)names);
	ck_assert_int_eq(r->version, version + 1);
}
END_TEST

START_TEST(a_lost_node_takes_the_run_down)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	fixture_place(r);
	ck_assert_uint_eq(run_part_lost(r, run_part_find(r, "n2"), "node n2 is down", 160, 160), RUN_STOP);
	ck_assert_uint_eq(run_part_lost(r, run_part_find(r, "n2"), "node n2 is down", 161, 161), 0);
	ck_assert_uint_eq(fixture_report(r, "n1", "ended", RANK0_OK), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_str_eq(r->reason, "node n2 is down");
}
END_TEST

/* The end of a part may be long after that of its dtrain-launch, where a process does not die. */
START_TEST(a_killed_launcher_takes_the_run_down_at_once)
{
	static const char killed[] =
	    "\"launcher_lost\":true,\"reason\":\"dtrain-launch was killed by SIGKILL\",";
	static const char hangs[] = "\"reason\":\"python3 (pid 9) does not die\",";
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	fixture_place(r);
	fixture_report(r, "n1", "running", "");
	fixture_report(r, "n2", "running", "");
	/* Of a rank that has ended by itself a process may be left. */
	ck_assert_uint_eq(fixture_report_of(r, 1, "n2", "running", "", hangs), 0);
	ck_assert_uint_eq(fixture_report_of(r, 1, "n2", "stopping", "", killed), RUN_STOP);
	ck_assert_uint_eq(fixture_report(r, "n1", "ended", RANK0_OK), 0);
	ck_assert_uint_eq(fixture_report_of(r, 1, "n2", "ended", "", killed), RUN_ENDED);
	ck_assert_str_eq(r->reason, "node n2: dtrain-launch was killed by SIGKILL");
}
END_TEST

/* The controller had stored a start and was restarted; one node had begun its part, the other had not. In
 * whichever order their reports arrive, the run has failed and is not executed again. */
START_TEST(a_run_begun_on_one_node_is_not_queued_again)
{
	static const char lost[] = "\"lost\":true,\"reason\":\"attempt 1 was started and is lost\",";

	for (int order = 0; order < 3; order++) {
		_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

		fixture_place(r);
		r->parts[0].acknowledged = r->parts[1].acknowledged = true; /* out of the store */
		if (order == 0)
			fixture_report_with(r, "n1", "ended", "", lost);
		run_refused(r, run_part_find(r, "n2"), REFUSED_BUSY, "not started", 150);
		if (order == 1)
			fixture_report_with(r, "n1", "ended", "", lost);
		if (order == 2)
			run_part_lost(r, run_part_find(r, "n1"), "node n1 is down", 160, 160);
		else if (run_part_find(r, "n2") && !run_part_find(r, "n2")->ended)
			run_part_lost(r, run_part_find(r, "n2"), "node n2 has lost it", 160, 160);
		ck_assert_int_eq(r->state, RUN_FAILED);
		ck_assert_str_eq(r->reason, order == 2 ? "node n1 is down"
		                                       : "node n1: attempt 1 was started and is lost");
		if (order < 2)
			ck_assert_int_eq(r->ranks[0].state, RANK_LOST);
		ck_assert_int_eq(r->ranks[1].state, RANK_NOT_STARTED);
	}
}
END_TEST

START_TEST(a_waiting_run_that_an_unknown_attempt_has_executed_fails)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	ck_assert_uint_eq(run_superseded(r, "n1", 0, 100), 0);
	ck_assert_uint_eq(run_superseded(r, "n1", 1, 100), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_int_eq(r->attempt, 0); /* the attempt on the node is still foreign */
	ck_assert_ptr_nonnull(strstr(r->reason, "attempt 1 was started on node n1"));
}
END_TEST

/* The failed attempt before it, whose ranks are still known, is no reason to start the run again. */
START_TEST(a_run_that_waits_for_a_restart_fails_where_it_was_restarted_already)
{
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);

	r->retries.max_restarts = 100;
	fixture_place(r);
	fixture_report(r, "n1", "ended",
	               "{\"rank\":0,\"state\":\"exited\",\"exit_status\":7,\"error\":\"last line\"}");
	ck_assert_int_eq(r->state, RUN_QUEUED);
	ck_assert_int_eq(r->exit_status, -1);
	ck_assert_uint_eq(run_superseded(r, "n1", 2, 200), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_int_eq(r->attempt, 1);
	ck_assert_int_eq(r->exit_status, -1);
	ck_assert_int_eq(r->retries.record.restarts, 1);
	ck_assert_ptr_null(r->detail);
	ck_assert_double_eq(r->ended, 200);
	ck_assert_ptr_eq(strstr(r->reason, "attempt 2 was started on node n1"), r->reason);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("run state");
	TCase *c = tcase_create("run state");

	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_killed_launcher_takes_the_run_down_at_once);
	tcase_add_test(c, the_world_size_of_all_slots_is_known_once_placed);
	tcase_add_test(c, one_rank_per_node_has_all_slots_there);
	tcase_add_test(c, only_a_newer_checkpoint_is_news);
	tcase_add_test(c, the_reason_of_a_part_is_text);
	tcase_add_test(c, only_news_make_a_new_version);
	tcase_add_test(c, a_run_succeeds_once_all_its_nodes_have_ended_well);
	tcase_add_test(c, a_rank_stopped_after_a_failure_is_not_its_cause);
	tcase_add_test(c, a_failed_device_is_named_before_the_rank);
	tcase_add_test(c, the_node_of_a_failed_device_is_avoided);
	tcase_add_test(c, a_worker_error_is_the_detail);
	tcase_add_test(c, a_cancelled_run_is_stopped_first_unless_it_waits);
	tcase_add_test(c, a_run_refused_by_a_busy_node_waits_again);
	tcase_add_test(c, a_run_is_refused_by_busy_nodes_only_so_often);
	tcase_add_loop_test(c, every_refusal_goes_to_the_store, 0, 2);
	tcase_add_test(c, a_run_refused_once_ends_as_its_next_attempt_ends);
	tcase_add_test(c, a_late_report_of_an_earlier_attempt_is_ignored);
	tcase_add_test(c, a_run_whose_preflight_fails_has_failed);
	tcase_add_loop_test(c, a_refusal_is_final_or_a_failure_of_the_node, 0, 4);
	tcase_add_test(c, a_node_may_spell_its_name_in_another_way);
	tcase_add_test(c, another_spelling_of_its_nodes_is_taken_over);
	tcase_add_test(c, a_lost_node_takes_the_run_down);
	tcase_add_test(c, a_run_begun_on_one_node_is_not_queued_again);
	tcase_add_test(c, a_waiting_run_that_an_unknown_attempt_has_executed_fails);
	tcase_add_test(c, a_run_that_waits_for_a_restart_fails_where_it_was_restarted_already);
	return unit_run(s);
}
