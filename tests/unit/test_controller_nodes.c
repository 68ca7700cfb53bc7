/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the controller's nodes, and of stores that lack what nodes have, in simulated time
 * (controller_bed.h). */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/json.h"
#include "controller/controller.h"
#include "controller/foreign.h"
#include "controller/nodes.h"
#include "controller/runs.h"
#include "controller/submit.h"
#include "controller_bed.h"
#include "failing_memory.h"

START_TEST(a_drained_node_gets_no_runs)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	struct controller *c = bed_controller(b);
	int64_t run;

	ck_assert_int_eq(controller_set_drained(c, "n9", true, NULL), -ENOENT);
	ck_assert_int_eq(controller_set_drained(c, "n2", true, "a new fan"), 0);
	run = bed_submit(b, 2, 1);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	/* It stays so with the next controller. */
	bed_restart_controller(b);
	bed_pass(b, 5);
	c = bed_controller(b);
	ck_assert(controller_find_node(c, "n2")->drained);
	ck_assert_str_eq(controller_find_node(c, "n2")->drain_reason, "a new fan");
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	ck_assert_int_eq(controller_set_drained(c, "n2", false, NULL), 0);
	bed_await(b, run, RUN_RUNNING);
	bed_free(b);
}
END_TEST

static void check_drained(struct bed *b, bool drained)
{
	const struct member *m = controller_find_node(bed_controller(b), "n1");

	ck_assert_int_eq(m->drained, drained);
	ck_assert_pstr_eq(m->drain_reason, drained ? "a new fan" : NULL);
}

/* One allocation after the other fails until none has to: until then the node is as it was, for the next
 * controller, too. */
static void set_drained_without_memory(struct bed *b, bool drained)
{
	bool refused = true;

	for (long n = 1; refused; n++) {
		int r;

		memory_refused = false;
		memory_left = n;
		r = controller_set_drained(bed_controller(b), "n1", drained, drained ? "a new fan" : NULL);
		memory_left = 0;
		refused = memory_refused;
		ck_assert_int_eq(r, refused ? -ENOMEM : 0);
		check_drained(b, drained == !refused);
		bed_pass(b, 1);
		bed_restart_controller(b);
		bed_pass(b, 1);
		check_drained(b, drained == !refused);
	}
}

START_TEST(without_memory_a_node_is_drained_as_before)
{
	struct bed *b = bed_create("n1 slots=1\n");

	set_drained_without_memory(b, true);
	set_drained_without_memory(b, false);
	bed_free(b);
}
END_TEST

/* The hosts file is read again while a node is drained: with the memory for its reason, and without. */
START_TEST(a_new_hosts_file_keeps_the_reason_of_a_drain)
{
	static const char text[] = "n1 slots=1\nn2 slots=1\n";
	struct bed *b = bed_create("n1 slots=1\n");
	bool refused = true;

	ck_assert_int_eq(controller_set_drained(bed_controller(b), "n1", true, "a new fan"), 0);
	bed_pass(b, 1);
	for (long n = 1; refused; n++) {
		_cleanup_(hosts_freep) struct hosts *hosts = NULL;
		struct error err = ERROR_INIT;

		ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
		memory_refused = false;
		memory_left = n;
		controller_set_hosts(bed_controller(b), hosts, 29600, 10, &err);
		memory_left = 0;
		refused = memory_refused;
		check_drained(b, true);
	}
	ck_assert_ptr_nonnull(controller_find_node(bed_controller(b), "n2"));
	bed_free(b);
}
END_TEST

static void on_device_set(void *context, const struct peer_result *result)
{
	*(int *)context = result->code;
}

START_TEST(a_drained_device_gets_no_runs)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=2\n");
	struct controller *c = bed_controller(b);
	int code = 1, missing = 1, unreachable = 1;
	int64_t run;

	ck_assert_int_eq(controller_set_device_drained(c, "n9", 0, true, NULL, on_device_set, &code),
	                 -ENOENT);
	ck_assert_int_eq(controller_set_device_drained(c, "n2", 1, true, NULL, on_device_set, &code), 0);
	ck_assert_int_eq(controller_set_device_drained(c, "n2", 2, true, NULL, on_device_set, &missing), 0);
	bed_pass(b, 1);
	ck_assert_int_eq(code, 0);
	ck_assert_int_eq(missing, -ENOENT);
	run = bed_submit(b, 1, 2);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	ck_assert_int_eq(controller_set_device_drained(c, "n2", 1, false, NULL, on_device_set, &code), 0);
	bed_await(b, run, RUN_RUNNING);
	bed_cut_off(b, "n2", true);
	ck_assert_int_eq(controller_set_device_drained(c, "n2", 1, true, NULL, on_device_set, &unreachable),
	                 0);
	bed_pass(b, 40);
	ck_assert_int_eq(unreachable, -EHOSTUNREACH);
	bed_free(b);
}
END_TEST

START_TEST(a_node_that_shuts_down_gets_no_runs)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	bed_shut_down(b, "n2");
	bed_pass(b, 1);
	run = bed_submit(b, 2, 1);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	ck_assert_int_eq(bed_starts(b, "n1"), 0);
	bed_free(b);
}
END_TEST

START_TEST(a_node_that_leaves_the_hosts_file_loses_its_parts)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = bed_submit(b, 2, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_cut_off(b, "n2", true);
	bed_set_hosts(b, "n1 slots=1\nn3 slots=1\n");
	bed_await(b, run, RUN_FAILED);
	ck_assert_ptr_nonnull(strstr(bed_run(b, run)->reason, "removed from the hosts file"));
	bed_set_hosts(b, "n1 slots=1\nn3 slots=1\n");
	ck_assert_uint_eq(controller_node_count(bed_controller(b)), 2);
	ck_assert_ptr_null(controller_find_node(bed_controller(b), "n2"));
	ck_assert_str_eq(controller_node(bed_controller(b), 1)->name, "n3");
	bed_free(b);
}
END_TEST

/* As with a reload. The node cannot be reached: whether its part has ended is not known. */
START_TEST(a_node_that_only_an_earlier_controller_had_loses_its_parts)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	bool cancelled = _i;
	int64_t run = bed_submit(b, 2, 1), count = -1;

	bed_await(b, run, RUN_RUNNING);
	bed_cut_off(b, "n2", true);
	if (cancelled) {
		bed_cancel(b, run);
		bed_pass(b, 3);
		ck_assert_int_eq(bed_run(b, run)->state, RUN_STOPPING);
	}
	bed_restart_with_hosts(b, "n1 slots=1\nn3 slots=1\n");
	bed_await(b, run, cancelled ? RUN_CANCELLED : RUN_FAILED);
	if (!cancelled)
		ck_assert_str_eq(bed_run(b, run)->reason, "node n2 is down: removed from the hosts file");
	/* It is shown as with a reload, and is no node that a run could get. */
	ck_assert_int_eq(member_state(controller_find_node(bed_controller(b), "n2")), NODE_DOWN);
	ck_assert_int_eq(controller_fence(bed_controller(b), "n2", &count), 0);
	ck_assert_int_eq(count, 0);
	run = bed_submit(b, 3, 1);
	bed_pass(b, 3);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	bed_restart_controller(b);
	ck_assert_uint_eq(controller_node_count(bed_controller(b)), 2);
	ck_assert_int_eq(controller_fence(bed_controller(b), "n2", &count), -ENOENT);
	bed_free(b);
}
END_TEST

/* n2 is called n4 from now on, and has the attempt still, which is stopped there. Nobody can know that this
 * was the part of n2, which may be another machine: the next attempt waits for its lease (60 seconds), or for
 * the administrator. */
START_TEST(the_next_attempt_waits_for_the_part_of_a_renamed_node)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"nodes\":2,\"devices_per_node\":1,\"max_node_failures\":1");
	int64_t count = 0;

	bed_await(b, run, RUN_RUNNING);
	bed_rename(b, "n2", "n4");
	bed_restart_with_hosts(b, "n1 slots=1\nn4 slots=1\n");
	bed_pass(b, 55);
	ck_assert_int_eq(bed_attempt_on(b, "n4", run), 0);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	ck_assert_str_eq(bed_run(b, run)->retries.record.last_failure,
	                 "attempt 1: node n2 is down: removed from the hosts file");
	/* The next controller waits, too. */
	bed_restart_controller(b);
	if (_i) {
		bed_pass(b, 5);
		ck_assert_int_eq(controller_fence(bed_controller(b), "N2", &count), 0);
		ck_assert_int_eq(count, 1);
		bed_pass(b, 5);
	} else {
		bed_pass(b, 55);
		ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
		bed_pass(b, 10);
	}
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n4", run), 2);
	bed_free(b);
}
END_TEST

/* It is there, and can be reached: what it reports is taken, and the next attempt does not wait for its
 * lease. */
START_TEST(a_node_without_a_line_reports_the_end_of_its_part)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	int64_t run = bed_submit_resources(b, "\"nodes\":2,\"devices_per_node\":1,\"max_node_failures\":1");

	bed_await(b, run, RUN_RUNNING);
	bed_restart_with_hosts(b, "n1 slots=1\nn3 slots=1\n");
	bed_pass(b, 10);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 0);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	bed_free(b);
}
END_TEST

/* The hosts file spells a name in another way, and the services are restarted: those of the controller and of
 * the node, or the controller's reads its files again, or the node's alone has another file. */
START_TEST(a_name_may_be_spelt_in_another_way)
{
	static const char spelt[] = "n1 slots=1\nN2 slots=1\n";
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	const char *shown = _i < 2 ? "N2" : "n2";
	_cleanup_json_ json_t *devices = NULL;
	int64_t run = bed_submit(b, 2, 1);

	bed_await(b, run, RUN_RUNNING);
	bed_rename(b, "n2", "N2");
	if (_i == 0)
		bed_restart_with_hosts(b, spelt);
	else if (_i == 1)
		bed_set_hosts(b, spelt);
	bed_pass(b, 30);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "N2", run), 1);
	/* Everything shows the name as the controller's file has it. */
	ck_assert_str_eq(controller_find_node(bed_controller(b), "n2")->name, shown);
	ck_assert_str_eq(bed_run(b, run)->ranks[1].node, shown);
	devices = controller_devices_to_json(bed_controller(b));
	ck_assert_str_eq(json_get_string(json_array_get(json_object_get(devices, "devices"), 1), "node", ""),
	                 shown);
	bed_end_ranks(b, "n1", run, 0);
	bed_end_ranks(b, "N2", run, 3);
	bed_await(b, run, RUN_FAILED);
	ck_assert_int_eq(bed_run(b, run)->ranks[1].exit_status, 3);
	/* Its slot is free. */
	bed_await(b, bed_submit(b, 2, 1), RUN_RUNNING);
	bed_free(b);
}
END_TEST

START_TEST(a_drained_node_may_be_spelt_in_another_way)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	const struct member *m;

	ck_assert_int_eq(controller_set_drained(bed_controller(b), "n2", true, "a new fan"), 0);
	bed_pass(b, 1);
	bed_rename(b, "n2", "N2");
	if (_i)
		bed_set_hosts(b, "n1 slots=1\nN2 slots=1\n");
	else
		bed_restart_with_hosts(b, "n1 slots=1\nN2 slots=1\n");
	bed_pass(b, 3);
	m = controller_find_node(bed_controller(b), "n2");
	ck_assert_str_eq(m->name, "N2");
	ck_assert_int_eq(member_state(m), NODE_DRAINED);
	ck_assert_str_eq(m->drain_reason, "a new fan");
	/* Under none of the names it is drained any more. */
	ck_assert_int_eq(controller_set_drained(bed_controller(b), "N2", false, NULL), 0);
	bed_pass(b, 1);
	bed_restart_with_hosts(b, "n1 slots=1\nn2 slots=1\n");
	bed_pass(b, 3);
	ck_assert_int_eq(member_state(controller_find_node(bed_controller(b), "n2")), NODE_UP);
	bed_free(b);
}
END_TEST

START_TEST(nodes_are_listed_as_they_are)
{
	struct bed *b = bed_create("n1 slots=2\nn2 slots=1\n");
	_cleanup_json_ json_t *nodes = NULL, *devices = NULL;
	struct controller_status status;
	json_t *list;

	bed_await(b, bed_submit(b, 1, 2), RUN_RUNNING);
	bed_submit(b, 2, 1);
	bed_cut_off(b, "n2", true);
	bed_pass(b, 30);
	controller_get_status(bed_controller(b), &status);
	ck_assert_uint_eq(status.nodes, 2);
	ck_assert_uint_eq(status.nodes_up, 1);
	ck_assert_uint_eq(status.queued, 1);
	ck_assert_uint_eq(status.under_way, 1);
	nodes = controller_nodes_to_json(bed_controller(b));
	list = json_object_get(nodes, "nodes");
	ck_assert_uint_eq(json_array_size(list), 2);
	ck_assert_str_eq(json_get_string(json_array_get(list, 0), "state", ""), "up");
	ck_assert_int_eq(json_get_int(json_array_get(list, 0), "free", -1), 0);
	ck_assert_str_eq(json_get_string(json_array_get(list, 1), "state", ""), "down");
	devices = controller_devices_to_json(bed_controller(b));
	ck_assert_uint_ge(json_array_size(json_object_get(devices, "devices")), 2);
	bed_free(b);
}
END_TEST

/* Which run numbers are free is not known until all nodes have reported or are down. */
START_TEST(submissions_wait_for_all_nodes)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	struct submission *given_up;

	bed_cut_off(b, "n2", true);
	bed_restart_controller(b);
	bed_begin_submission(b, 1, 1);
	bed_pass(b, 3);
	ck_assert_int_eq(bed_submitted(b), -1);
	ck_assert_uint_eq(controller_active_count(bed_controller(b)), 0);
	given_up = bed_begin_submission(b, 1, 1);
	submission_abandon(given_up); /* it never gets a number */
	bed_cut_off(b, "n2", false);
	bed_pass(b, 3);
	ck_assert_int_eq(bed_submitted(b), 1);
	ck_assert_uint_eq(controller_active_count(bed_controller(b)), 1);
	bed_await(b, 1, RUN_RUNNING);
	/* A submission does not wait for a node that is down. */
	bed_cut_off(b, "n2", true);
	bed_restart_controller(b);
	bed_begin_submission(b, 1, 1);
	bed_pass(b, 30);
	ck_assert_int_eq(bed_submitted(b), 2);
	bed_free(b);
}
END_TEST

START_TEST(a_run_whose_submitter_has_gone_stays)
{
	struct bed *b = bed_create("n1 slots=1\n");

	submission_abandon(bed_begin_submission(b, 1, 1));
	bed_pass(b, 1);
	bed_await(b, 1, RUN_RUNNING);
	ck_assert_int_eq(bed_submitted(b), -1);
	bed_free(b);
}
END_TEST

/* How often the log in that file says so. */
static int count_logged(int fd, const char *words)
{
	char text[65536];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
	int count = 0;

	ck_assert_int_ge(n, 0);
	text[n] = '\0';
	for (const char *at = text; (at = strstr(at, words)); at++)
		count++;
	return count;
}

START_TEST(a_restored_store_leaves_newer_runs_alone)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int log = memfd_create("log", MFD_CLOEXEC);
	int64_t old = bed_submit(b, 1, 1), newer, next;

	bed_await(b, old, RUN_RUNNING);
	bed_copy_store(b, false);
	newer = bed_submit(b, 1, 1);
	bed_await(b, newer, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n2", newer), 1);
	bed_pass(b, 3);
	ck_assert_int_ge(dup2(log, STDERR_FILENO), 0);
	bed_copy_store(b, true);
	bed_pass(b, 5);
	/* It is in each heartbeat, and in the log once. */
	ck_assert_int_eq(count_logged(log, ", attempt 1, of this cluster, which this store does not know"),
	                 1);
	/* The store does not know the newer run: it goes on, its number is not given again,
	 * its slot neither. */
	ck_assert_int_eq(bed_attempt_on(b, "n2", newer), 1);
	ck_assert_int_eq(bed_run(b, old)->state, RUN_RUNNING);
	next = bed_submit(b, 1, 1);
	ck_assert_int_gt(next, newer + 50);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, next)->state, RUN_QUEUED);
	ck_assert_uint_eq(controller_find_node(bed_controller(b), "n2")->foreign_count, 1);
	/* A run that the next controller starts is not foreign to it. */
	bed_end_ranks(b, "n1", old, 0);
	bed_await(b, next, RUN_RUNNING);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, next)->state, RUN_RUNNING);
	/* An administrator ends the foreign work. */
	ck_assert_uint_eq(controller_cancel_foreign(bed_controller(b), "n2", 77), 0);
	ck_assert_uint_eq(controller_cancel_foreign(bed_controller(b), "n9", 0), 0);
	ck_assert_uint_eq(controller_cancel_foreign(bed_controller(b), "n2", newer), 1);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_attempt_on(b, "n2", newer), 0);
	ck_assert_uint_eq(controller_find_node(bed_controller(b), "n2")->foreign_count, 0);
	bed_free(b);
}
END_TEST

/* Queued runs are not placed either: they may already run on a node that has not reported yet. */
START_TEST(nothing_is_placed_before_all_nodes_have_reported)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	controller_set_drained(bed_controller(b), "n1", true, NULL);
	controller_set_drained(bed_controller(b), "n2", true, NULL);
	run = bed_submit(b, 1, 1);
	bed_cut_off(b, "n2", true);
	bed_restart_controller(b);
	controller_set_drained(bed_controller(b), "n1", false, NULL);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_starts(b, "n1"), 0);
	bed_cut_off(b, "n2", false);
	bed_pass(b, 2);
	ck_assert_int_eq(bed_attempt_on(b, "n1", run), 1);
	bed_free(b);
}
END_TEST

/* Another controller would wait for 10 seconds. */
START_TEST(a_node_that_was_silent_before_is_not_waited_for_as_long)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\nn3 slots=1\n");
	struct controller *c;

	bed_pass(b, 20);
	bed_cut_off(b, "n2", true);
	bed_cut_off(b, "n3", true);
	bed_restart_controller(b);
	c = bed_controller(b);
	controller_set_silent(c, "n2", 1);
	controller_set_silent(c, "n9", 1);
	bed_pass(b, 4.5);
	ck_assert_int_eq(member_state(controller_find_node(c, "n2")), NODE_UNKNOWN);
	bed_pass(b, 1);
	ck_assert_int_eq(member_state(controller_find_node(c, "n2")), NODE_DOWN);
	ck_assert_int_eq(member_state(controller_find_node(c, "n3")), NODE_UNKNOWN);
	bed_free(b);
}
END_TEST

/* The copy has the run as queued; n2 has its attempt 1, and is away while the run is started again, as
 * attempt 1 too. The epoch tells the two apart. */
START_TEST(a_restored_store_takes_a_new_epoch)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t first = bed_submit(b, 2, 1), waiting = bed_submit(b, 1, 1);

	bed_await(b, first, RUN_RUNNING);
	bed_copy_store(b, false);
	bed_pass(b, 3);
	controller_set_drained(bed_controller(b), "n1", true, NULL);
	bed_cancel(b, first);
	bed_await(b, waiting, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n2", waiting), 1);
	bed_pass(b, 3);
	bed_cut_off(b, "n2", true);
	bed_copy_store(b, true);
	bed_pass(b, 30);
	ck_assert_int_eq(bed_attempt_on(b, "n1", waiting), 1);
	bed_cut_off(b, "n2", false);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_attempt_on(b, "n2", waiting), 1);
	ck_assert_uint_eq(controller_find_node(bed_controller(b), "n2")->foreign_count, 1);
	ck_assert_int_eq(bed_run(b, waiting)->state, RUN_RUNNING);
	bed_free(b);
}
END_TEST

/* In the copy the run is queued. It was started after that, and must not run twice. */
START_TEST(a_restored_store_does_not_start_a_run_twice)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t first = bed_submit(b, 2, 1), waiting = bed_submit(b, 1, 1);

	bed_await(b, first, RUN_RUNNING);
	bed_copy_store(b, false);
	bed_pass(b, 3);
	bed_cancel(b, first);
	bed_await(b, waiting, RUN_RUNNING);
	bed_pass(b, 3);
	bed_copy_store(b, true);
	bed_pass(b, 10);
	ck_assert_int_eq(bed_run(b, waiting)->state, RUN_FAILED);
	ck_assert_ptr_nonnull(strstr(bed_run(b, waiting)->reason, "its result is not known here"));
	ck_assert_int_eq(bed_attempt_on(b, "n1", waiting), 1);
	ck_assert_int_eq(bed_starts(b, "n1"), 2);
	bed_free(b);
}
END_TEST

/* Only n2 knows the newest epoch, and it cannot be reached while the next controller starts a run. */
START_TEST(a_new_epoch_leaves_the_runs_of_this_controller)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	bed_copy_store(b, false);
	bed_pass(b, 3);
	bed_cut_off(b, "n1", true);
	for (int i = 0; i < 3; i++) {
		bed_restart_controller(b);
		bed_pass(b, 3);
	}
	bed_cut_off(b, "n1", false);
	bed_cut_off(b, "n2", true);
	bed_copy_store(b, true);
	bed_pass(b, 30);
	run = bed_submit(b, 1, 1);
	bed_await(b, run, RUN_RUNNING);
	bed_cut_off(b, "n2", false);
	bed_pass(b, 5);
	ck_assert_uint_eq(controller_find_node(bed_controller(b), "n1")->foreign_count, 0);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, run)->attempt, 1);
	bed_end_ranks(b, "n1", run, 0);
	bed_await(b, run, RUN_SUCCEEDED);
	bed_free(b);
}
END_TEST

START_TEST(work_of_another_cluster_is_left_alone)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run;

	bed_plant(b, "n1", "0123456789abcdef0123456789abcdef", 1);
	bed_pass(b, 2);
	run = bed_submit(b, 1, 1); /* the same number, of another cluster */
	ck_assert_int_eq(run, 1);
	bed_await(b, run, RUN_RUNNING);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_attempt_on(b, "n1", 1), 1);
	ck_assert_int_eq(bed_starts(b, "n1"), 0);
	ck_assert_int_eq(bed_starts(b, "n2"), 1);
	ck_assert_uint_eq(controller_find_node(bed_controller(b), "n1")->foreign_count, 1);
	ck_assert_uint_eq(controller_cancel_foreign(bed_controller(b), "n1", 0), 1);
	bed_pass(b, 2);
	ck_assert_int_eq(bed_attempt_on(b, "n1", 1), 0);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_RUNNING);
	/* Nor does a run that waits end for it. */
	bed_plant(b, "n1", "0123456789abcdef0123456789abcdef", 2);
	bed_pass(b, 2);
	run = bed_submit(b, 1, 1);
	ck_assert_int_eq(run, 2);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED);
	bed_end_ranks(b, "n2", 1, 0);
	bed_await(b, run, RUN_RUNNING);
	ck_assert_int_eq(bed_attempt_on(b, "n2", run), 1);
	bed_free(b);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("controller nodes");
	TCase *tc = tcase_create("stories");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, a_drained_node_gets_no_runs);
	tcase_add_test(tc, without_memory_a_node_is_drained_as_before);
	tcase_add_test(tc, a_new_hosts_file_keeps_the_reason_of_a_drain);
	tcase_add_test(tc, a_drained_device_gets_no_runs);
	tcase_add_test(tc, a_node_that_shuts_down_gets_no_runs);
	tcase_add_test(tc, nothing_is_placed_before_all_nodes_have_reported);
	tcase_add_test(tc, a_node_that_was_silent_before_is_not_waited_for_as_long);
	tcase_add_test(tc, a_restored_store_takes_a_new_epoch);
	tcase_add_test(tc, a_new_epoch_leaves_the_runs_of_this_controller);
	tcase_add_test(tc, a_node_that_leaves_the_hosts_file_loses_its_parts);
	tcase_add_loop_test(tc, a_node_that_only_an_earlier_controller_had_loses_its_parts, 0, 2);
	tcase_add_loop_test(tc, the_next_attempt_waits_for_the_part_of_a_renamed_node, 0, 2);
	tcase_add_test(tc, a_node_without_a_line_reports_the_end_of_its_part);
	tcase_add_loop_test(tc, a_name_may_be_spelt_in_another_way, 0, 3);
	tcase_add_loop_test(tc, a_drained_node_may_be_spelt_in_another_way, 0, 2);
	tcase_add_test(tc, nodes_are_listed_as_they_are);
	tcase_add_test(tc, submissions_wait_for_all_nodes);
	tcase_add_test(tc, a_run_whose_submitter_has_gone_stays);
	tcase_add_test(tc, a_restored_store_leaves_newer_runs_alone);
	tcase_add_test(tc, a_restored_store_does_not_start_a_run_twice);
	tcase_add_test(tc, work_of_another_cluster_is_left_alone);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
