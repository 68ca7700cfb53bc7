/* SPDX-License-Identifier: Apache-2.0 */
/* Attempts on a node: how they end, what they leave, and that a restart of the service loses nothing. */
#include "node_fixture.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/str.h"

static struct fixture f; /* Check's fixtures have no other place */

static void setup(void)
{
	fixture_setup(&f);
}

static void teardown(void)
{
	fixture_teardown(&f);
}

static void start(json_t *request)
{
	struct error err = ERROR_INIT;

	ck_ok(node_start(f.node, request, &err), &err);
	json_decref(request);
}

static pid_t await_pid(const char *name)
{
	_cleanup_free_ char *text = fixture_await_file(&f, name);

	ck_assert_int_gt(atoi(text), 1);
	return atoi(text);
}

/* "echo $$ > DIR/NAME; …" */
static json_t *shell_in(int run, int count, const char *fmt)
{
	_cleanup_strbuf_ struct strbuf script = {0};

	for (const char *p = fmt; *p; p++)
		if (*p == '@')
			strbuf_adds(&script, f.dir);
		else
			strbuf_addc(&script, *p);
	return fixture_shell(run, count, script.data);
}

START_TEST(statuses_come_through)
{
	const json_t *report;

	start(fixture_request(1, 1, 2, (const char *const[]){"true", NULL}));
	ck_assert_int_eq(node_free_slots(f.node), 0);
	report = fixture_await(&f, 1, "ended");
	ck_assert_int_eq(node_free_slots(f.node), 2);
	for (int i = 0; i < 2; i++) {
		ck_assert_str_eq(json_get_string(fixture_rank(report, i), "state", ""), "exited");
		ck_assert_int_eq(json_get_int(fixture_rank(report, i), "exit_status", -1), 0);
		ck_assert(json_is_null(json_object_get(fixture_rank(report, i), "signal")));
		ck_assert_ptr_null(json_object_get(fixture_rank(report, i), "error"));
	}
	ck_assert_int_eq(f.ends, 1);

	start(fixture_shell(2, 1, "echo first; echo second >&2; exit 7"));
	report = fixture_await(&f, 2, "ended");
	ck_assert_int_eq(json_get_int(fixture_rank(report, 0), "exit_status", -1), 7);
	ck_assert_str_eq(json_get_string(fixture_rank(report, 0), "error", ""),
	                 "exit status 7\nfirst\nsecond");

	start(fixture_shell(3, 1, "kill -SEGV $$"));
	report = fixture_await(&f, 3, "ended");
	ck_assert_str_eq(json_get_string(fixture_rank(report, 0), "signal", ""), "SIGSEGV");
	ck_assert_int_eq(json_get_int(fixture_rank(report, 0), "exit_status", -1), 128 + SIGSEGV);
	ck_assert(str_starts(json_get_string(fixture_rank(report, 0), "error", ""), "killed by SIGSEGV"));
}
END_TEST

START_TEST(only_the_last_lines_of_a_failure_are_told)
{
	const char *error;

	start(fixture_shell(
	    1, 1,
	    "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; done; printf 'caf\\351\\n'; exit 1"));
	error = json_get_string(fixture_rank(fixture_await(&f, 1, "ended"), 0), "error", "");
	ck_assert_str_eq(error, "exit status 1\nline 2997\nline 2998\nline 2999\nline 3000\ncaf?");
	start(fixture_shell(2, 1,
	                    "echo '{\"message\":{\"message\":\"ValueError: no\",\"extraInfo\":{}}}' > "
	                    "$TORCHELASTIC_ERROR_FILE; exit 1"));
	error = json_get_string(fixture_rank(fixture_await(&f, 2, "ended"), 0), "error", "");
	ck_assert_str_eq(error, "exit status 1: ValueError: no");
}
END_TEST

START_TEST(a_failed_exec_is_told)
{
	_cleanup_free_ char *script = fixture_path(&f, "script");
	struct error err = ERROR_INIT;
	const json_t *rank;

	ck_ok(file_write_atomic(script, "#!/no/such/interpreter\n", 23, 0755, &err), &err);
	start(fixture_request(1, 1, 1, (const char *const[]){script, NULL}));
	rank = fixture_rank(fixture_await(&f, 1, "ended"), 0);
	ck_assert_int_eq(json_get_int(rank, "exit_status", -1), 127);
	ck_assert(str_starts(json_get_string(rank, "error", ""), "cannot execute "));
}
END_TEST

START_TEST(the_first_failure_is_told_at_once)
{
	struct error err = ERROR_INIT;
	const json_t *report;

	start(fixture_shell(1, 2, "[ $RANK = 0 ] && exit 3; exec sleep 1000"));
	do {
		report = fixture_await(&f, 1, "running");
		sd_event_run(f.event, 50000);
	} while (!str_eq(json_get_string(fixture_rank(report, 0), "state", ""), "exited"));
	ck_assert_str_eq(json_get_string(fixture_rank(report, 1), "state", ""), "running");
	ck_ok(node_stop(f.node, 1, 1, 30.0, &err), &err);
	report = fixture_await(&f, 1, "ended");
	ck_assert_str_eq(json_get_string(fixture_rank(report, 1), "signal", ""), "SIGTERM");
	/* Ended because we said so: no failure of its own. */
	ck_assert_ptr_null(json_object_get(fixture_rank(report, 1), "error"));
}
END_TEST

START_TEST(what_ranks_leave_behind_is_ended)
{
	pid_t daemon, child;

	/* Both are on file before the rank ends, and its end is theirs. */
	start(shell_in(
	    1, 1,
	    "setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & echo $! > @/child; echo $$ > @/daemon; wait' "
	    "< /dev/null > /dev/null 2>&1 & while ! [ -s @/daemon ]; do sleep 0.01; done; exit 0"));
	child = await_pid("child");
	daemon = await_pid("daemon");
	ck_assert_int_ne(child, daemon);
	fixture_await(&f, 1, "ended");
	fixture_await_gone(&f, daemon);
	fixture_await_gone(&f, child);
}
END_TEST

START_TEST(who_ignores_term_is_killed_after_the_grace)
{
	struct error err = ERROR_INIT;
	const json_t *report;
	pid_t pid;

	start(shell_in(1, 1, "trap '' TERM; echo $$ > @/pid; while :; do sleep 0.05; done"));
	pid = await_pid("pid");
	ck_ok(node_stop(f.node, 1, 1, 0.2, &err), &err);
	fixture_await(&f, 1, "stopping");
	report = fixture_await(&f, 1, "ended");
	ck_assert_str_eq(json_get_string(fixture_rank(report, 0), "signal", ""), "SIGKILL");
	fixture_await_gone(&f, pid);
	/* A long grace cut short by a second word. */
	start(shell_in(2, 1, "trap '' TERM; echo $$ > @/pid2; while :; do sleep 0.05; done"));
	pid = await_pid("pid2");
	ck_ok(node_stop(f.node, 2, 1, 1000, &err), &err);
	ck_ok(node_stop(f.node, 2, 1, 0, &err), &err);
	fixture_await(&f, 2, "ended");
	fixture_await_gone(&f, pid);
	ck_ok(node_stop(f.node, 99, 1, 0, &err), &err);
}
END_TEST

START_TEST(a_stop_gives_time_for_the_last_words)
{
	struct error err = ERROR_INIT;
	_cleanup_free_ char *log = NULL;

	start(shell_in(1, 1,
	               "trap 'echo saved; exit 143' TERM; echo $$ > @/pid; while :; do sleep 0.02; done"));
	await_pid("pid");
	ck_ok(node_stop(f.node, 1, 1, 30, &err), &err);
	ck_assert_int_eq(json_get_int(fixture_rank(fixture_await(&f, 1, "ended"), 0), "exit_status", -1),
	                 143);
	log = fixture_log(&f, 1, 0);
	ck_assert_ptr_nonnull(strstr(log, "saved\n"));
}
END_TEST

START_TEST(a_restart_in_the_middle_loses_nothing)
{
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *other = fixture_request(2, 1, 1, (const char *const[]){"true", NULL});
	const json_t *report;

	start(shell_in(1, 2, "echo $$ > @/pid$RANK; while ! [ -e @/go ]; do sleep 0.02; done; exit 5"));
	await_pid("pid0");
	await_pid("pid1");
	fixture_restart(&f, false);
	ck_assert_int_eq(node_free_slots(f.node), 0);
	ck_fails(node_start(f.node, other, &err), &err, "slot 0 is leased to run 1, attempt 1");
	report = fixture_await(&f, 1, "running");
	ck_assert_int_gt(json_get_int(fixture_rank(report, 1), "pid", 0), 1);
	{
		_cleanup_free_ char *go = fixture_path(&f, "go");

		ck_ok(file_write_atomic(go, "", 0, 0644, &err), &err);
	}
	report = fixture_await(&f, 1, "ended");
	ck_assert_int_eq(json_get_int(fixture_rank(report, 1), "exit_status", -1), 5);
	ck_assert_int_eq(node_free_slots(f.node), 2);
}
END_TEST

START_TEST(an_end_while_the_service_was_away_is_found)
{
	_cleanup_json_ json_t *attempts = NULL, *none = NULL;
	const json_t *report;
	pid_t pid;

	start(shell_in(1, 1, "echo $$ > @/pid; while ! [ -e @/go ]; do sleep 0.02; done; exit 6"));
	pid = await_pid("pid");
	fixture_restart(&f, true);
	{
		_cleanup_free_ char *go = fixture_path(&f, "go");

		ck_ok(file_write_atomic(go, "", 0, 0644, NULL), &(struct error)ERROR_INIT);
	}
	fixture_await_gone(&f, pid);
	fixture_restart(&f, false);
	report = fixture_await(&f, 1, "ended");
	ck_assert_int_eq(json_get_int(fixture_rank(report, 0), "exit_status", -1), 6);
	/* The end is kept and told again until the controller has it. */
	fixture_restart(&f, false);
	attempts = node_attempts(f.node);
	ck_assert_uint_eq(json_array_size(attempts), 1);
	ck_assert_int_eq(node_free_slots(f.node), 2);
	fixture_await(&f, 1, "ended");
	node_forget(f.node, 1, 1);
	none = node_attempts(f.node);
	ck_assert_uint_eq(json_array_size(none), 0);
	sd_event_run(f.event, 0);
	fixture_restart(&f, false);
	json_decref(none);
	none = node_attempts(f.node);
	ck_assert_uint_eq(json_array_size(none), 0);
}
END_TEST

/* The parent of a rank is its launcher. */
static pid_t launcher_of(pid_t rank)
{
	_cleanup_free_ char *path = str_printf("/proc/%d/stat", (int)rank), *text = NULL;
	struct error err = ERROR_INIT;

	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	return atoi(strrchr(text, ')') + 3);
}

static void kill_launcher(bool away)
{
	const json_t *report;
	pid_t rank, daemon;

	start(shell_in(1, 1,
	               "setsid sh -c 'echo $$ > @/daemon; exec sleep 1000' & echo $$ > @/rank; while :; do "
	               "sleep 0.05; done"));
	rank = await_pid("rank");
	daemon = await_pid("daemon");
	fixture_await(&f, 1, "running");
	if (away)
		fixture_restart(&f, true);
	ck_assert_int_eq(kill(launcher_of(rank), SIGKILL), 0);
	if (away) {
		fixture_await_gone(&f, rank);
		fixture_restart(&f, false);
	}
	report = fixture_await(&f, 1, "ended");
	ck_assert(str_starts(json_get_string(report, "reason", ""), "dtrain-launch "));
	ck_assert_str_eq(json_get_string(fixture_rank(report, 0), "signal", ""), "SIGKILL");
	fixture_await_gone(&f, rank);
	fixture_await_gone(&f, daemon);
	ck_assert_int_eq(node_free_slots(f.node), 2);
}

START_TEST(a_killed_launcher_takes_its_ranks_along)
{
	kill_launcher(false);
}
END_TEST

START_TEST(a_launcher_killed_while_the_service_was_away_is_found)
{
	kill_launcher(true);
}
END_TEST

static void forget_at_once(void *context, const json_t *report)
{
	if (str_eq(json_get_string(report, "state", ""), "ended")) {
		node_forget(f.node, json_get_int(report, "run", 0), json_get_int(report, "attempt", 0));
		f.ends++;
	}
}

START_TEST(an_end_may_be_forgotten_from_its_own_report)
{
	const struct node_callbacks callbacks = {NULL, forget_at_once, NULL};
	_cleanup_json_ json_t *attempts = NULL;
	struct error err = ERROR_INIT;

	fixture_restart(&f, true);
	ck_ok(node_create(f.event, f.config, "n1", 0, &callbacks, &f.node, &err), &err);
	for (int run = 1; run <= 3; run++) {
		start(fixture_request(run, 1, 2, (const char *const[]){"true", NULL}));
		while (f.ends < run)
			ck_assert_int_ge(sd_event_run(f.event, 1000000), 0);
	}
	attempts = node_attempts(f.node);
	ck_assert_uint_eq(json_array_size(attempts), 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node");
	TCase *tc = tcase_create("attempts");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, statuses_come_through);
	tcase_add_test(tc, only_the_last_lines_of_a_failure_are_told);
	tcase_add_test(tc, a_failed_exec_is_told);
	tcase_add_test(tc, the_first_failure_is_told_at_once);
	tcase_add_test(tc, what_ranks_leave_behind_is_ended);
	tcase_add_test(tc, who_ignores_term_is_killed_after_the_grace);
	tcase_add_test(tc, a_stop_gives_time_for_the_last_words);
	tcase_add_test(tc, a_restart_in_the_middle_loses_nothing);
	tcase_add_test(tc, an_end_while_the_service_was_away_is_found);
	tcase_add_test(tc, a_killed_launcher_takes_its_ranks_along);
	tcase_add_test(tc, a_launcher_killed_while_the_service_was_away_is_found);
	tcase_add_test(tc, an_end_may_be_forgotten_from_its_own_report);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
