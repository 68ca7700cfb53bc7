/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of runs with spare nodes, in simulated time (controller_bed.h). */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "controller/controller.h"
#include "controller/nodes.h"
#include "controller_bed.h"

#define FOUR "n1 slots=1\nn2 slots=1\nn3 slots=1\nn4 slots=1\n"

/* A command on CPU slots with these resources. */
static int64_t submit(struct bed *b, const char *resources)
{
	_cleanup_free_ char *all = str_printf("\"max_node_failures\":9,%s", resources);

	return bed_submit_resources(b, all);
}

static void set_drained(struct bed *b, const char *node, bool drained)
{
	ck_assert_int_eq(controller_set_drained(bed_controller(b), node, drained, NULL), 0);
}

/* "attempt nodes | spares" */
static void check_run(struct bed *b, int64_t run, const char *want)
{
	_cleanup_json_ json_t *view = run_to_json(bed_run(b, run), true);
	_cleanup_strbuf_ struct strbuf text = {0};
	const char *const lists[] = {"nodes", "spares"};
	json_t *name;
	size_t i;

	strbuf_addf(&text, "%d", (int)bed_run(b, run)->attempt);
	for (size_t k = 0; k < ARRAY_SIZE(lists); k++) {
		strbuf_adds(&text, k ? " |" : "");
		json_array_foreach(json_object_get(view, lists[k]), i, name)
		    strbuf_addf(&text, " %s", json_string_value(name));
	}
	ck_assert_str_eq(text.data, want);
}

/* The run gets its nodes and its spare, and another one waits that could have the spare. */
static int64_t begin(struct bed *b, int64_t *other)
{
	int64_t run = submit(b, "\"nodes\":2,\"spares\":1");

	bed_await(b, run, RUN_RUNNING);
	check_run(b, run, "1 n1 n2 | n3");
	*other = submit(b, "\"nodes\":2");
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, *other)->state, RUN_QUEUED);
	ck_assert_str_eq(bed_run(b, *other)->reason, "waits for 2 nodes with 1 free CPU slot: 1 now");
	return run;
}

/* What the controller shows of a node: slots that are free, and the first run for which some are kept. */
static void check_node(struct bed *b, int index, int64_t slots_free, int64_t kept_for)
{
	_cleanup_json_ json_t *view = controller_nodes_to_json(bed_controller(b));
	_cleanup_json_ json_t *devices = controller_devices_to_json(bed_controller(b));
	const json_t *node = json_array_get(json_object_get(view, "nodes"), (size_t)index), *device;

	ck_assert_int_eq(json_get_int(node, "free", -1), slots_free);
	ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(node, "spare_of"), 0)), kept_for);
	device = json_array_get(json_object_get(devices, "devices"), (size_t)index); /* a node has one */
	ck_assert_int_eq(json_get_int(device, "reserved_for", 0), kept_for);
	ck_assert_uint_eq(member_free_slots(controller_node(bed_controller(b), (size_t)index)),
	                  (size_t)slots_free);
	ck_assert_uint_eq(member_reserved_slots(controller_node(bed_controller(b), (size_t)index)),
	                  kept_for > 0);
}

START_TEST(a_spare_takes_the_place_of_a_node_that_fails)
{
	struct bed *b = bed_create(FOUR);
	int64_t other, run = begin(b, &other);

	check_node(b, 0, 0, 0);
	check_node(b, 2, 0, run);
	check_node(b, 3, 1, 0);
	/* The run is the older one: the other one does not get the fourth node before it. */
	bed_reboot(b, "n2");
	bed_pass(b, 1); /* without the second that other runs wait */
	check_run(b, run, "2 n1 n3 | n4");
	ck_assert_int_eq(bed_attempt_on(b, "n3", run), 2);
	/* The third failure leaves no spare. The node that is back is one as soon as no run waits for it. */
	bed_cut_off(b, "n2", true);
	bed_pass(b, 10);
	bed_reboot(b, "n3");
	bed_pass(b, 3);
	check_run(b, run, "3 n1 n4 | n3");
	bed_cancel(b, other);
	bed_cut_off(b, "n3", true);
	bed_pass(b, 10);
	check_run(b, run, "3 n1 n4 |");
	bed_cut_off(b, "n2", false);
	bed_pass(b, 5);
	check_run(b, run, "3 n1 n4 | n2");
	check_node(b, 1, 0, run);
	bed_end_ranks(b, "n1", run, 0);
	bed_end_ranks(b, "n4", run, 0);
	bed_await(b, run, RUN_SUCCEEDED);
	check_run(b, run, "3 n1 n4 |");
	check_node(b, 1, 1, 0);
	bed_free(b);
}
END_TEST

/* The run keeps its nodes while it waits for the end of a lease, also through a crash of the controller. */
START_TEST(nodes_are_kept_until_the_next_attempt)
{
	struct bed *b = bed_create(FOUR);
	int64_t other, run = begin(b, &other);

	if (_i == 1)
		bed_crash_controller(b);
	bed_pass(b, 5);
	check_run(b, run, "1 n1 n2 | n3");
	bed_cut_off(b, "n2", true);
	bed_await(b, run, RUN_QUEUED);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, run)->state, RUN_QUEUED); /* the node may still run its part */
	if (_i == 1)
		bed_crash_controller(b);
	bed_pass(b, 20);
	ck_assert_int_eq(bed_run(b, other)->state, RUN_QUEUED);
	check_run(b, run, "1 n1 n2 | n3 n1");
	bed_await(b, run, RUN_RUNNING);
	check_run(b, run, "2 n1 n3 | n4");
	ck_assert_int_eq(bed_run(b, other)->state, RUN_QUEUED);
	bed_free(b);
}
END_TEST

START_TEST(a_drained_node_is_replaced)
{
	struct bed *b = bed_create(FOUR);
	int64_t run = submit(b, "\"nodes\":2,\"spares\":1");

	bed_await(b, run, RUN_RUNNING);
	/* A spare that is drained is given back, and another one is taken. */
	set_drained(b, "n3", true);
	bed_pass(b, 2);
	check_run(b, run, "1 n1 n2 | n4");
	/* A node of the attempt: the run goes on with the spare. */
	set_drained(b, "n1", true);
	ck_assert_uint_eq(controller_evict_runs(bed_controller(b), "n1"), 1);
	bed_pass(b, 3);
	check_run(b, run, "2 n2 n4 |");
	set_drained(b, "n3", false);
	bed_pass(b, 3);
	check_run(b, run, "2 n2 n4 | n3");
	bed_cancel(b, run);
	bed_await(b, run, RUN_CANCELLED);
	check_run(b, run, "2 n2 n4 |");
	bed_free(b);
}
END_TEST

/* A run begins with its spares, or not at all, and a user has to be allowed to have them. */
START_TEST(spares_count)
{
	struct bed *b = bed_create(FOUR);
	int64_t run, second;

	bed_set_user_limits(b, 0, 3);
	set_drained(b, "n3", true);
	run = submit(b, "\"nodes\":\"2..3\",\"spares\":1");
	bed_await(b, run, RUN_RUNNING);
	check_run(b, run, "1 n1 n2 | n4");
	set_drained(b, "n3", false);
	second = submit(b, "\"nodes\":1");
	bed_pass(b, 3);
	ck_assert_ptr_nonnull(strstr(bed_run(b, second)->reason, "they have 3 of 3 slots"));
	/* That the runs of the user have all they may does not keep this one from its own. */
	bed_reboot(b, "n2");
	bed_pass(b, 3);
	check_run(b, run, "2 n1 n4 | n3");
	bed_cancel(b, second);
	bed_cancel(b, run);
	bed_await(b, run, RUN_CANCELLED);
	bed_await(b, second, RUN_CANCELLED);
	bed_set_user_limits(b, 0, 0);
	run = submit(b, "\"nodes\":3,\"spares\":1");
	bed_await(b, run, RUN_RUNNING);
	second = submit(b, "\"nodes\":1,\"spares\":2");
	bed_pass(b, 3);
	ck_assert_str_eq(bed_run(b, second)->reason,
	                 "waits for 3 nodes (spares included) with 1 free CPU slot: 0 now");
	bed_free(b);
}
END_TEST

/* After a failure of the program the run keeps its nodes for the time that the next attempt waits. */
START_TEST(a_program_that_fails_keeps_its_nodes)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");
	int64_t run = submit(b, "\"nodes\":1,\"spares\":1,\"max_restarts\":5"), other;

	bed_await(b, run, RUN_RUNNING);
	other = submit(b, "\"nodes\":1");
	bed_end_ranks(b, "n1", run, 1);
	bed_await(b, run, RUN_QUEUED);
	check_run(b, run, "1 n1 | n2 n1");
	bed_await(b, run, RUN_RUNNING);
	check_run(b, run, "2 n1 | n2");
	ck_assert_int_eq(bed_run(b, other)->state, RUN_QUEUED);
	bed_free(b);
}
END_TEST

/* Also where its spare would fit better by now. */
START_TEST(a_program_that_fails_stays_where_it_was)
{
	struct bed *b = bed_create("n1 slots=4\nn2 slots=3\n");
	int64_t run = submit(b, "\"nodes\":1,\"spares\":1,\"max_restarts\":5"), other;

	bed_await(b, run, RUN_RUNNING);
	check_run(b, run, "1 n2 | n1");
	other = submit(b, "\"nodes\":1,\"devices_per_node\":3,\"hosts\":[\"n1\"]");
	bed_await(b, other, RUN_RUNNING);
	bed_end_ranks(b, "n2", run, 1);
	bed_await(b, run, RUN_QUEUED);
	bed_await(b, run, RUN_RUNNING);
	check_run(b, run, "2 n2 | n1");
	bed_free(b);
}
END_TEST

/* The first run waits for a node that is kept for the second one, which waits for a node that the first one,
 * being first, keeps from it: the first one begins. */
START_TEST(what_is_kept_does_not_hold_up_a_run_before)
{
	struct bed *b = bed_create(FOUR);
	int64_t first, second, third;

	set_drained(b, "n1", true);
	first = submit(b, "\"nodes\":2,\"hosts\":[\"n1\",\"n2\"]");
	second = submit(b, "\"nodes\":2,\"spares\":1");
	bed_await(b, second, RUN_RUNNING);
	check_run(b, second, "1 n2 n3 | n4");
	set_drained(b, "n1", false);
	set_drained(b, "n4", true);
	set_drained(b, "n3", true);
	third = submit(b, "\"nodes\":1");
	ck_assert_uint_eq(controller_evict_runs(bed_controller(b), "n3"), 1);
	bed_await(b, first, RUN_RUNNING);
	check_run(b, first, "1 n1 n2 |");
	check_run(b, second, "1 n2 n3 |");
	ck_assert_str_eq(bed_run(b, second)->reason, "waits for 2 nodes with 1 free CPU slot: 0 now");
	ck_assert_int_eq(bed_run(b, third)->state, RUN_QUEUED);
	bed_cancel(b, first);
	bed_await(b, second, RUN_RUNNING);
	check_run(b, second, "2 n1 n2 |");
	bed_free(b);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("spares");
	TCase *tc = tcase_create("stories");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, a_spare_takes_the_place_of_a_node_that_fails);
	tcase_add_loop_test(tc, nodes_are_kept_until_the_next_attempt, 0, 2);
	tcase_add_test(tc, a_drained_node_is_replaced);
	tcase_add_test(tc, spares_count);
	tcase_add_test(tc, a_program_that_fails_keeps_its_nodes);
	tcase_add_test(tc, a_program_that_fails_stays_where_it_was);
	tcase_add_test(tc, what_is_kept_does_not_hold_up_a_run_before);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
