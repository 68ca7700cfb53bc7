/* SPDX-License-Identifier: Apache-2.0 */
/* The lease of a node: which attempts end with it, and what a start does after a stop. */
#include <errno.h>
#include <string.h>

#include "base/file.h"
#include "base/lease_file.h"
#include "base/str.h"
#include "node/lease.h"
#include "node_fixture.h"

static struct fixture f;

static void setup(void)
{
	fixture_setup(&f);
}

static void teardown(void)
{
	fixture_teardown(&f);
}

static void start(int run, int slot, const char *on_partition)
{
	_cleanup_json_ json_t *q = fixture_shell(run, 1, "exec sleep 1000");
	json_t *config = json_object_get(q, "config");
	struct error err = ERROR_INIT;

	json_object_set_new(config, "resources",
	                    json_pack("{s:s,s:i}", "on_partition", on_partition, "grace", 1));
	json_object_set_new(json_array_get(json_object_get(q, "ranks"), 0), "slot", json_integer(slot));
	ck_ok(fixture_start(&f, q, &err), &err);
	fixture_await(&f, run, "running");
}

/* An answer to a heartbeat that was sent then. */
static void answer_to(double sent, double lease)
{
	const struct heartbeat_answer answer = {.cluster = (char *)"a1", .epoch = 1, .lease = lease};
	struct error err = ERROR_INIT;

	ck_ok(node_learn(f.node, &answer, sent, &err), &err);
}

/* One to a heartbeat that was sent now; returns that time. */
static double answer(double lease)
{
	double sent = lease_clock();

	answer_to(sent, lease);
	return sent;
}

static struct lease_end end_of_lease(void)
{
	_cleanup_free_ char *path = fixture_path(&f, "run/lease");
	struct lease_end end;

	ck_assert_int_eq(lease_file_read(path, &end), 0);
	return end;
}

/* The file has six decimals. */
static void check_end(double until, double ending)
{
	const struct lease_end end = end_of_lease();

	ck_assert_double_eq_tol(end.until, until, 1e-5);
	ck_assert_double_eq_tol(end.ending, ending, 1e-5);
}

/* From dtrain-launch, which would end the ranks where the service does not. */
static void hide_lease(void)
{
	_cleanup_free_ char *path = fixture_path(&f, "run/lease");
	struct error err = ERROR_INIT;

	ck_ok(lease_file_write(path, &(struct lease_end){lease_clock() + 100000, 1}, &err), &err);
}

static pid_t rank_pid(int run)
{
	const json_t *report = fixture_await(&f, run, "running");

	return (pid_t)json_integer_value(json_object_get(fixture_rank(report, 0), "pid"));
}

static const char *state_of(int run)
{
	char name[16];

	snprintf(name, sizeof(name), "%d", run);
	return json_get_string(json_object_get(f.reports, name), "state", "");
}

START_TEST(what_is_not_to_outlive_a_partition_ends_with_the_lease)
{
	_cleanup_json_ json_t *late = fixture_shell(3, 1, ":");
	struct error err = ERROR_INIT;
	const json_t *report;
	double begin;

	start(1, 0, "stop");
	start(2, 1, "keep");
	begin = lease_clock();
	answer(1.5);
	report = fixture_await(&f, 1, "ended");
	ck_assert_double_gt(lease_clock(), begin + 0.9);
	ck_assert_ptr_nonnull(
	    strstr(json_get_string(report, "shutdown", ""),
	           "has had no answer of its controller: the lease of the attempt has run out"));
	ck_assert_str_eq(state_of(2), "running");
	ck_fails(fixture_start(&f, late, &err), &err, "has had no answer of its controller for too long");
	/* The next answer makes it good. */
	answer(100);
	ck_ok(fixture_start(&f, late, &err), &err);
	fixture_await(&f, 3, "ended");
}
END_TEST

/* Each lease has an end of its own. */
START_TEST(a_lease_that_was_renewed_ends_again)
{
	start(1, 0, "stop");
	answer(1.5);
	fixture_await(&f, 1, "ended");
	answer(100);
	start(2, 0, "stop");
	answer(1.5);
	hide_lease();
	fixture_await(&f, 2, "ended");
}
END_TEST

START_TEST(each_answer_grants_a_new_lease)
{
	_cleanup_free_ char *path = fixture_path(&f, "run/lease");
	double sent;

	start(1, 0, "stop");
	sent = answer(1000);
	check_end(sent + 1000, 10);
	/* What the controller relies on is its newest answer, also where its lease is shorter. */
	sent = answer(600);
	check_end(sent + 600, 10);
	sent = answer(6);
	check_end(sent + 6, 2);
	/* This answer was long under way. */
	answer_to(sent - 1, 1000);
	check_end(sent + 6, 2);
	answer(0); /* of a controller that knows no leases */
	ck_assert(!file_exists(path));
	sent = answer(600);
	check_end(sent + 600, 10);
	ck_assert_str_eq(state_of(1), "running");
}
END_TEST

/* The controller may not know of what was begun since the last heartbeat that it has answered. */
START_TEST(what_no_heartbeat_has_named_ends_in_any_case)
{
	double sent = lease_clock();

	start(1, 0, "keep");
	answer_to(sent, lease_clock() - sent + 1.5);
	hide_lease();
	fixture_await(&f, 1, "ended");
}
END_TEST

START_TEST(a_restart_of_the_service_does_not_change_the_lease)
{
	_cleanup_json_ json_t *second = fixture_shell(2, 1, ":");
	struct error err = ERROR_INIT;
	double sent;

	json_object_set_new(json_array_get(json_object_get(second, "ranks"), 0), "slot", json_integer(1));
	start(1, 0, "stop");
	sent = answer(120);
	fixture_restart(&f, false);
	/* A start writes the file. */
	ck_ok(fixture_start(&f, second, &err), &err);
	check_end(sent + 120, 10);
	/* A short lease begins to end as late as it did before. */
	sent = answer(6);
	check_end(sent + 6, 2);
	fixture_restart(&f, false);
	sent = answer(9);
	check_end(sent + 9, 3);
	fixture_await(&f, 2, "ended");
	ck_assert_str_ne(state_of(1), "ended");
}
END_TEST

START_TEST(a_lease_that_has_run_out_meanwhile_ends_at_once)
{
	_cleanup_free_ char *path = fixture_path(&f, "run/lease");
	struct error err = ERROR_INIT;

	start(1, 0, "stop");
	start(2, 1, "keep");
	answer(1000);
	fixture_restart(&f, true);
	ck_ok(lease_file_write(path, &(struct lease_end){lease_clock() - 1, 10}, &err), &err);
	fixture_create(&f);
	fixture_await(&f, 1, "ended");
	ck_assert_str_ne(state_of(2), "ended");
}
END_TEST

/* dtrain-launch ends its ranks also while no service runs, and the next service learns why. */
START_TEST(without_a_service_the_ranks_end_with_the_lease)
{
	_cleanup_free_ char *path = fixture_path(&f, "run/lease");
	struct error err = ERROR_INIT;
	pid_t ends, stays, unknown;
	const json_t *report;

	start(1, 0, "stop");
	start(2, 1, "keep");
	answer(1000);
	ends = rank_pid(1);
	stays = rank_pid(2);
	fixture_restart(&f, true);
	ck_ok(lease_file_write(path, &(struct lease_end){lease_clock() + 30, 40}, &err), &err);
	fixture_await_gone(&f, ends);
	ck_assert(!fixture_gone(stays));
	fixture_create(&f);
	report = fixture_await(&f, 1, "ended");
	ck_assert_ptr_nonnull(
	    strstr(json_get_string(report, "shutdown", ""), "the lease of the attempt has run out"));
	/* One that the controller may not know ends, too. */
	answer(1000);
	start(3, 0, "keep");
	unknown = rank_pid(3);
	fixture_restart(&f, true);
	ck_ok(lease_file_write(path, &(struct lease_end){lease_clock() + 30, 40}, &err), &err);
	fixture_await_gone(&f, unknown);
	ck_assert(!fixture_gone(stays));
	fixture_create(&f);
	fixture_await(&f, 3, "ended");
}
END_TEST

/* runtime_dir may be on a disk. */
START_TEST(the_lease_of_another_boot_says_nothing)
{
	static const char other[] =
	    "000000000001.000000 000010.000000 11111111-2222-3333-4444-555555555555\n";
	_cleanup_free_ char *path = fixture_path(&f, "run/lease");
	_cleanup_json_ json_t *second = fixture_shell(2, 1, ":");
	struct error err = ERROR_INIT;

	json_object_set_new(json_array_get(json_object_get(second, "ranks"), 0), "slot", json_integer(1));
	start(1, 0, "stop");
	fixture_restart(&f, true);
	ck_ok(file_write_atomic(path, other, strlen(other), 0644, &err), &err);
	fixture_create(&f);
	ck_ok(fixture_start(&f, second, &err), &err);
	fixture_await(&f, 2, "ended");
	ck_assert(!file_exists(path));
	ck_assert_str_ne(state_of(1), "ended");
}
END_TEST

START_TEST(what_was_stopped_is_not_started_afterwards)
{
	_cleanup_json_ json_t *q = fixture_shell(7, 1, ":"), *other = fixture_shell(8, 1, ":");
	const struct stop_request stop = {.run = 7, .attempt = 1};
	struct error err = ERROR_INIT;

	ck_ok(node_stop_request(f.node, &stop, &err), &err);
	/* However many others are stopped after it. */
	for (int i = 0; i < 1000; i++) {
		const struct stop_request more = {.run = 100 + i, .attempt = 1};

		ck_ok(node_stop_request(f.node, &more, &err), &err);
	}
	ck_fails(fixture_start(&f, q, &err), &err, "attempt 1 of run 7 was stopped, or has ended already");
	ck_ok(fixture_start(&f, other, &err), &err);
	fixture_await(&f, 8, "ended");
	/* A start that comes a second time, after the controller has the end. */
	node_forget(f.node, 8, 1);
	ck_fails(fixture_start(&f, other, &err), &err,
	         "attempt 1 of run 8 was stopped, or has ended already");
}
END_TEST

/* Another cluster counts its runs by itself, and so does a store that was restored. */
START_TEST(what_was_stopped_is_of_one_cluster)
{
	static const struct {
		const char *cluster;
		int epoch;
		bool starts;
	} cases[] = {{"a1", 3, false}, {"a1", 2, false}, {"", 0, true}, {"a1", 4, true}};
	const struct stop_request stop = {.cluster = (char *)"a1", .epoch = 3, .run = 7, .attempt = 1};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_json_ json_t *q = fixture_shell(7, 1, ":");

		fixture_restart(&f, true);
		fixture_create(&f);
		ck_ok(node_stop_request(f.node, &stop, &err), &err);
		if (*cases[i].cluster) {
			json_object_set_new(q, "cluster", json_string(cases[i].cluster));
			json_object_set_new(q, "epoch", json_integer(cases[i].epoch));
		}
		if (cases[i].starts) {
			ck_ok(fixture_start(&f, q, &err), &err);
			fixture_await(&f, 7, "ended");
			node_forget(f.node, 7, 1);
		} else {
			ck_assert_msg(fixture_start(&f, q, &err) < 0, "epoch %d", cases[i].epoch);
		}
	}
}
END_TEST

/* The controller has given it up by then. */
START_TEST(a_start_that_comes_too_late_is_refused)
{
	_cleanup_json_ json_t *late = fixture_shell(7, 1, ":"), *timely = fixture_shell(8, 1, ":");
	struct error err = ERROR_INIT;

	json_object_set_new(late, "until", json_real(lease_clock()));
	json_object_set_new(timely, "until", json_real(lease_clock() + 1000));
	/* Nothing would end what it begins, were it cut off now. */
	ck_fails(fixture_start(&f, timely, &err), &err, "no heartbeat has been answered");
	ck_assert_int_eq(err.code, -EBUSY);
	answer(60);
	ck_fails(fixture_start(&f, late, &err), &err, "the start of attempt 1 of run 7 has come too late");
	ck_assert_int_eq(err.code, -EBUSY);
	ck_ok(fixture_start(&f, timely, &err), &err);
	fixture_await(&f, 8, "ended");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_lease");
	TCase *tc = tcase_create("lease");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, what_is_not_to_outlive_a_partition_ends_with_the_lease);
	tcase_add_test(tc, a_lease_that_was_renewed_ends_again);
	tcase_add_test(tc, each_answer_grants_a_new_lease);
	tcase_add_test(tc, what_no_heartbeat_has_named_ends_in_any_case);
	tcase_add_test(tc, a_restart_of_the_service_does_not_change_the_lease);
	tcase_add_test(tc, a_lease_that_has_run_out_meanwhile_ends_at_once);
	tcase_add_test(tc, without_a_service_the_ranks_end_with_the_lease);
	tcase_add_test(tc, the_lease_of_another_boot_says_nothing);
	tcase_add_test(tc, what_was_stopped_is_not_started_afterwards);
	tcase_add_test(tc, what_was_stopped_is_of_one_cluster);
	tcase_add_test(tc, a_start_that_comes_too_late_is_refused);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
