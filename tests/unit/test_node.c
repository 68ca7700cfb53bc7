/* SPDX-License-Identifier: Apache-2.0 */
/* Attempts on a node: how they end, which processes are left, and that a restart of the service loses
 * nothing. */
#include "node_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "node/launch/cgroup.h"
#include "node/launch/processes.h"
#include "node/lease.h"

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

	ck_ok(fixture_start(&f, request, &err), &err);
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

/* The parent of a rank is its launcher, whose parent is its guard. */
static pid_t parent_of(pid_t pid)
{
	_cleanup_free_ char *path = str_printf("/proc/%d/stat", (int)pid), *text = NULL;
	struct error err = ERROR_INIT;

	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	return atoi(strrchr(text, ')') + 3);
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
	                 "last lines of the log:\nfirst\nsecond");

	start(fixture_shell(3, 1, "kill -SEGV $$"));
	report = fixture_await(&f, 3, "ended");
	ck_assert_str_eq(json_get_string(fixture_rank(report, 0), "signal", ""), "SIGSEGV");
	ck_assert_int_eq(json_get_int(fixture_rank(report, 0), "exit_status", -1), 128 + SIGSEGV);
	ck_assert(!json_get_bool(fixture_rank(report, 0), "stopped", true));
	ck_assert_ptr_null(json_object_get(fixture_rank(report, 0), "error"));
}
END_TEST

START_TEST(only_the_last_lines_of_a_failure_are_told)
{
	const char *error;
	const json_t *rank;

	start(fixture_shell(
	    1, 1,
	    "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; done; printf 'caf\\351\\n'; exit 1"));
	error = json_get_string(fixture_rank(fixture_await(&f, 1, "ended"), 0), "error", "");
	ck_assert_str_eq(error, "last lines of the log:\nline 2997\nline 2998\nline 2999\nline 3000\ncaf?");
	start(fixture_shell(2, 1,
	                    "echo '{\"message\":{\"message\":\"ValueError: no\",\"extraInfo\":{}}}' > "
	                    "$TORCHELASTIC_ERROR_FILE; exit 1"));
	rank = fixture_rank(fixture_await(&f, 2, "ended"), 0);
	ck_assert_str_eq(json_get_string(rank, "error", ""), "ValueError: no");
	ck_assert_ptr_null(json_object_get(rank, "lost_peer"));
	start(fixture_shell(3, 1,
	                    "echo '{\"message\":{\"message\":\"no\",\"extraInfo\":{\"lost_peer\":true}}}' > "
	                    "$TORCHELASTIC_ERROR_FILE; exit 1"));
	rank = fixture_rank(fixture_await(&f, 3, "ended"), 0);
	ck_assert(json_get_bool(rank, "lost_peer", false));
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
	/* It ended because it was stopped: that is not a failure. */
	ck_assert(json_get_bool(fixture_rank(report, 1), "stopped", false));
	ck_assert(!json_get_bool(fixture_rank(report, 0), "stopped", true));
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
	/* A second stop shortens a long grace period. */
	start(shell_in(2, 1, "trap '' TERM; echo $$ > @/pid2; while :; do sleep 0.05; done"));
	pid = await_pid("pid2");
	ck_ok(node_stop(f.node, 2, 1, 1000, &err), &err);
	ck_ok(node_stop(f.node, 2, 1, 0, &err), &err);
	fixture_await(&f, 2, "ended");
	fixture_await_gone(&f, pid);
	ck_ok(node_stop(f.node, 99, 1, 0, &err), &err);
}
END_TEST

static json_t *with_save(json_t *request, const char *save_signal, int seconds)
{
	json_t *resources = json_object_get(json_object_get(request, "config"), "resources");

	json_object_set_new(resources, "save_signal", json_string(save_signal));
	json_object_set_new(resources, "save_seconds", json_integer(seconds));
	return request;
}

static void stop(int64_t run, double save, double grace)
{
	const struct stop_request request = {
	    .cluster = "", .run = run, .attempt = 1, .save = save, .grace = grace};
	struct error err = ERROR_INIT;

	ck_ok(node_stop_request(f.node, &request, &err), &err);
}

/* The signal goes to the process of the rank alone: what it has started goes on. */
START_TEST(a_stop_asks_to_save_first)
{
	_cleanup_free_ char *log = NULL;
	const json_t *rank;

	start(with_save(
	    shell_in(1, 1,
	             "sleep 600 & echo $! > @/child; "
	             "trap 'kill -0 $! && echo saved; exit 0' USR1; trap 'echo term' TERM; echo $$ > @/pid; "
	             "while :; do sleep 0.02; done"),
	    "USR1", 1000));
	await_pid("pid");
	stop(1, 1000, 1000);
	rank = fixture_rank(fixture_await(&f, 1, "ended"), 0);
	ck_assert_int_eq(json_get_int(rank, "exit_status", -1), 0);
	ck_assert(json_get_bool(rank, "stopped", false));
	log = fixture_log(&f, 1, 0);
	ck_assert_str_eq(log, "saved\n");
}
END_TEST

/* A program that goes on gets TERM, and then KILL. A second stop brings both forward, and no later one puts
 * them off. */
START_TEST(saving_has_an_end)
{
	static const char script[] = "trap 'echo saved' USR2; trap 'echo term' TERM; echo $$ > @/pid; "
	                             "while :; do sleep 0.02; done";
	_cleanup_free_ char *log = NULL, *again = NULL;

	start(with_save(shell_in(1, 1, script), "USR2", 1000));
	await_pid("pid");
	stop(1, 0.3, 0.3);
	stop(1, 1000, 1000);
	ck_assert_str_eq(json_get_string(fixture_rank(fixture_await(&f, 1, "ended"), 0), "signal", ""),
	                 "SIGKILL");
	log = fixture_log(&f, 1, 0);
	ck_assert_ptr_nonnull(strstr(log, "saved\n"));
	ck_assert_ptr_nonnull(strstr(strstr(log, "saved\n"), "term\n"));
	start(with_save(shell_in(2, 1,
	                         "trap 'echo saved' USR2; trap 'echo term; exit 1' TERM; "
	                         "echo $$ > @/pid2; while :; do sleep 0.02; done"),
	                "USR2", 1000));
	await_pid("pid2");
	stop(2, 1000, 1000);
	fixture_await(&f, 2, "stopping");
	stop(2, 0, 1000);
	fixture_await(&f, 2, "ended");
	again = fixture_log(&f, 2, 0);
	ck_assert_ptr_nonnull(strstr(again, "term\n"));
}
END_TEST

/* KILL by another process is distinguished from that of the launcher, also after its TERM. */
START_TEST(a_kill_of_another_is_no_stop)
{
	struct error err = ERROR_INIT;
	const json_t *rank;
	pid_t pid;

	start(shell_in(1, 1, "trap 'touch @/term' TERM; echo $$ > @/pid; while :; do sleep 0.02; done"));
	pid = await_pid("pid");
	ck_ok(node_stop(f.node, 1, 1, 1000, &err), &err);
	fixture_await(&f, 1, "stopping");
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	rank = fixture_rank(fixture_await(&f, 1, "ended"), 0);
	ck_assert_str_eq(json_get_string(rank, "signal", ""), "SIGKILL");
	ck_assert(!json_get_bool(rank, "stopped", true));
}
END_TEST

/* The order of the ends is the order in which the ranks ended, however late the launcher comes to look. */
START_TEST(ends_have_their_order)
{
	const json_t *report;
	pid_t last, launcher;

	start(shell_in(
	    1, 2, "echo $$ > @/pid$RANK; while ! [ -e @/go$RANK ]; do sleep 0.01; done; exit $((RANK + 1))"));
	last = await_pid("pid0");
	await_pid("pid1"); /* else the launcher may be stopped before it has started it */
	launcher = parent_of(last);
	ck_assert_int_eq(kill(launcher, SIGSTOP), 0);
	for (int i = 1; i >= 0; i--) {
		_cleanup_free_ char *name = str_printf("go%d", i), *path = fixture_path(&f, name);
		_cleanup_free_ char *pid = str_printf("pid%d", i);
		struct error err = ERROR_INIT;

		ck_ok(file_write_atomic(path, "", 0, 0644, &err), &err);
		fixture_await_gone(&f, await_pid(pid));
	}
	ck_assert_int_eq(kill(launcher, SIGCONT), 0);
	report = fixture_await(&f, 1, "ended");
	ck_assert_double_lt(json_get_number(fixture_rank(report, 1), "ended", 0),
	                    json_get_number(fixture_rank(report, 0), "ended", 0));
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
	ck_fails(fixture_start(&f, other, &err), &err, "slot 0 is leased to run 1, attempt 1");
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
	/* The end is kept and reported again until the controller has it. */
	fixture_restart(&f, false);
	attempts = fixture_attempts(&f);
	ck_assert_uint_eq(json_array_size(attempts), 1);
	ck_assert_int_eq(node_free_slots(f.node), 2);
	fixture_await(&f, 1, "ended");
	node_forget(f.node, 1, 1);
	none = fixture_attempts(&f);
	ck_assert_uint_eq(json_array_size(none), 0);
	sd_event_run(f.event, 0);
	fixture_restart(&f, false);
	json_decref(none);
	none = fixture_attempts(&f);
	ck_assert_uint_eq(json_array_size(none), 0);
}
END_TEST

static json_t *stamped(json_t *request, const char *cluster, int epoch)
{
	json_object_set_new(request, "cluster", json_string(cluster));
	json_object_set_new(request, "epoch", json_integer(epoch));
	return request;
}

/* runtime_dir is gone after a reboot: what was started by then is reported as lost, until it is forgotten. */
START_TEST(a_start_outlives_the_runtime_directory)
{
	_cleanup_free_ char *attempts = fixture_path(&f, "run/attempts"),
	                    *record = fixture_path(&f, "state/started/1.1.3.a1b2"),
	                    *spare = fixture_path(&f, "state/started/.spare-1");
	_cleanup_json_ json_t *none = NULL;
	struct error err = ERROR_INIT;
	const json_t *report;
	struct stat st;

	start(stamped(shell_in(1, 1, "[ -e @/state/started/1.1.3.a1b2 ] || exit 9"), "a1b2", 3));
	report = fixture_await(&f, 1, "ended");
	ck_assert_int_eq(json_get_int(fixture_rank(report, 0), "exit_status", -1), 0);
	fixture_restart(&f, true);
	ck_ok(file_remove_tree(attempts, &err), &err);
	fixture_restart(&f, false);
	report = fixture_await(&f, 1, "ended");
	ck_assert(json_get_bool(report, "lost", false));
	ck_assert_str_eq(json_get_string(report, "cluster", ""), "a1b2");
	ck_assert_int_eq(json_get_int(report, "epoch", 0), 3);
	/* Its dtrain-launch may still be on its way out, or not: the rest says which. */
	ck_assert(str_starts(json_get_string(report, "reason", ""), "attempt 1 was started and is lost: "));
	ck_assert_int_eq(node_free_slots(f.node), 2);
	ck_assert(file_exists(record));
	node_forget(f.node, 1, 1);
	ck_assert(!file_exists(record));
	/* Its file is kept for the run that comes 64 numbers later, without what was recorded. */
	ck_assert_int_eq(stat(spare, &st), 0);
	ck_assert_int_eq(st.st_size, 0);
	fixture_restart(&f, false);
	none = fixture_attempts(&f);
	ck_assert_uint_eq(json_array_size(none), 0);
	start(stamped(shell_in(2, 1, "[ -s @/state/started/2.1.3.a1b2 ] && [ -e @/state/started/.spare-1 ]"),
	              "a1b2", 3));
	report = fixture_await(&f, 2, "ended");
	ck_assert_int_eq(json_get_int(fixture_rank(report, 0), "exit_status", -1), 0);
	start(stamped(
	    shell_in(65, 1, "[ -s @/state/started/65.1.3.a1b2 ] && [ ! -e @/state/started/.spare-1 ]"),
	    "a1b2", 3));
	report = fixture_await(&f, 65, "ended");
	ck_assert_int_eq(json_get_int(fixture_rank(report, 0), "exit_status", -1), 0);
}
END_TEST

static int stop_as(const char *cluster, int epoch, bool foreign, struct error *err)
{
	const struct stop_request request = {.run = 1,
	                                     .attempt = 1,
	                                     .grace = 5,
	                                     .cluster = (char *)cluster,
	                                     .epoch = epoch,
	                                     .foreign = foreign};

	return node_stop_request(f.node, &request, err);
}

static int learn(const char *cluster, int epoch, int highest, struct error *err)
{
	const struct heartbeat_answer answer = {
	    .cluster = (char *)cluster, .epoch = epoch, .highest_run = highest};

	return node_learn(f.node, &answer, lease_clock(), err);
}

/* Work of another cluster ends by an administrator's word alone; a stale controller is refused, also after a
 * restart of the service. */
START_TEST(a_node_knows_clusters)
{
	_cleanup_json_ json_t *other = stamped(fixture_shell(1, 1, ":"), "b2", 1),
	                      *stale = stamped(fixture_shell(2, 1, ":"), "a1", 2);
	struct known_clusters known;
	struct error err = ERROR_INIT;

	start(stamped(shell_in(1, 1, "exec sleep 1000"), "a1", 3));
	fixture_await(&f, 1, "running");
	ck_fails(stop_as("b2", 9, false, &err), &err, "run 1, attempt 1 on node n1 is of another cluster");
	ck_fails(fixture_start(&f, other, &err), &err, "run 1, attempt 1 of another cluster is kept here");
	ck_fails(stop_as("a1", 2, false, &err), &err, "a stale controller: its store is of epoch 2");
	ck_fails(fixture_start(&f, stale, &err), &err, "and epoch 3 is known here");
	ck_fails(learn("a1", 2, 99, &err), &err, "a stale controller");
	ck_ok(learn("a1", 4, 57, &err), &err);
	ck_ok(learn("a1", 4, 60, &err), &err);
	fixture_restart(&f, false);
	ck_fails(stop_as("a1", 3, false, &err), &err, "a stale controller");
	ck_ok(node_known(f.node, &known, &err), &err);
	ck_assert_int_eq(known.highest_run, 60);
	known_clusters_release(&known);
	ck_ok(stop_as("b2", 9, true, &err), &err);
	fixture_await(&f, 1, "ended");
}
END_TEST

/* As on a machine where no control group can be made. */
static void hide_cgroups(void)
{
	if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0)
		return;
	ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	umount2("/sys/fs/cgroup/unified", MNT_DETACH);
	umount2("/sys/fs/cgroup", MNT_DETACH);
}

enum { KILL_LAUNCHER = 1, KILL_GUARD = 2, AWAY = 4, WITHOUT_CGROUPS = 8 };

/* A rank and its processes: one in a session of its own, and an orphan without its environment. All of them
 * are gone when the end is reported. */
static void kill_launcher(int how)
{
	const json_t *report;
	pid_t rank, daemon, hidden, launcher, guard;

	if (how & WITHOUT_CGROUPS) {
		fixture_restart(&f, true);
		hide_cgroups();
		fixture_restart(&f, false);
	}
	start(shell_in(
	    1, 1,
	    "setsid sh -c 'echo $$ > @/daemon; exec sleep 1000' & "
	    "(setsid env -i /bin/sh -c 'trap \"\" TERM HUP; echo $$ > @/hidden; exec sleep 1000' &) & "
	    "echo $$ > @/rank; while :; do sleep 0.05; done"));
	rank = await_pid("rank");
	daemon = await_pid("daemon");
	hidden = await_pid("hidden");
	fixture_await(&f, 1, "running");
	if (how & AWAY)
		fixture_restart(&f, true);
	launcher = parent_of(rank);
	guard = parent_of(launcher);
	ck_assert_int_ne(guard, getpid());
	if (how & KILL_GUARD)
		ck_assert_int_eq(kill(guard, SIGKILL), 0);
	if (how & KILL_LAUNCHER)
		ck_assert_int_eq(kill(launcher, SIGKILL), 0);
	if (how & AWAY)
		fixture_restart(&f, false);
	report = fixture_await(&f, 1, "ended");
	ck_assert(fixture_gone(rank));
	ck_assert(fixture_gone(daemon));
	ck_assert(fixture_gone(hidden));
	ck_assert_int_eq(node_free_slots(f.node), 2);
	ck_assert(str_starts(json_get_string(report, "reason", ""), "dtrain-launch "));
	ck_assert_str_eq(json_get_string(fixture_rank(report, 0), "signal", ""), "SIGKILL");
}

static const int ways_to_kill[] = {
    KILL_LAUNCHER,
    KILL_GUARD,
    KILL_LAUNCHER | KILL_GUARD,
    KILL_LAUNCHER | AWAY,
    KILL_LAUNCHER | KILL_GUARD | AWAY,
    KILL_LAUNCHER | WITHOUT_CGROUPS,
    KILL_GUARD | WITHOUT_CGROUPS,
    KILL_LAUNCHER | KILL_GUARD | WITHOUT_CGROUPS,
    KILL_LAUNCHER | AWAY | WITHOUT_CGROUPS,
};

START_TEST(a_killed_launcher_leaves_nothing)
{
	kill_launcher(ways_to_kill[_i]);
}
END_TEST

/* Clearing runtime_dir ends no process: the slots are leased until no process of the attempt is left. */
static void clear_runtime_dir(int how)
{
	_cleanup_json_ json_t *other = fixture_request(2, 1, 1, (const char *const[]){"true", NULL});
	_cleanup_free_ char *attempts = fixture_path(&f, "run/attempts");
	struct error err = ERROR_INIT;
	pid_t rank, daemon, hidden, launcher, guard;
	const json_t *report;

	if (how & WITHOUT_CGROUPS) {
		fixture_restart(&f, true);
		hide_cgroups();
		fixture_restart(&f, false);
	}
	start(stamped(shell_in(1, 1,
	                       "setsid sh -c 'trap \"\" TERM; echo $$ > @/daemon; exec sleep 1000' & "
	                       "(setsid env -i /bin/sh -c 'echo $$ > @/hidden; exec sleep 1000' &) & "
	                       "echo $$ > @/rank; while :; do sleep 0.05; done"),
	              "a1", 3));
	rank = await_pid("rank");
	daemon = await_pid("daemon");
	hidden = await_pid("hidden");
	fixture_await(&f, 1, "running");
	fixture_restart(&f, true);
	launcher = parent_of(rank);
	guard = parent_of(launcher);
	if (how & KILL_GUARD)
		ck_assert_int_eq(kill(guard, SIGKILL), 0);
	if (how & KILL_LAUNCHER)
		ck_assert_int_eq(kill(launcher, SIGKILL), 0);
	ck_ok(file_remove_tree(attempts, &err), &err);
	fixture_restart(&f, false);
	ck_assert_int_eq(node_free_slots(f.node), 1);
	ck_fails(fixture_start(&f, other, &err), &err, "slot 0 is leased to run 1, attempt 1");
	report = fixture_await(&f, 1, "ended");
	ck_assert(json_get_bool(report, "lost", false));
	/* Why differs where what was killed is gone before the first look. */
	ck_assert(str_starts(json_get_string(report, "reason", ""), "attempt 1 was started and is lost: "));
	ck_assert(fixture_gone(rank));
	ck_assert(fixture_gone(daemon));
	ck_assert(fixture_gone(hidden));
	fixture_await_gone(&f, launcher);
	fixture_await_gone(&f, guard);
	ck_assert_int_eq(node_free_slots(f.node), 2);
}

static const int ways_to_clear[] = {0, KILL_GUARD, WITHOUT_CGROUPS, WITHOUT_CGROUPS | KILL_GUARD};

START_TEST(a_cleared_runtime_directory_frees_no_slot_in_use)
{
	clear_runtime_dir(ways_to_clear[_i]);
}
END_TEST

static void put(const char *name, const char *text)
{
	_cleanup_free_ char *path = fixture_path(&f, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
}

/* In the group that fd is the list of: a process takes more memory than there is. Returns how often that was
 * counted. */
static int64_t run_out_of_memory(int fd)
{
	enum { BYTES = 512 << 20 };
	_cleanup_free_ char *counter = NULL;
	int64_t before = -1;
	int status = 0;
	pid_t child;

	if (write(fd, "0", 1) == 1) {
		counter = cgroup_oom_file();
		before = cgroup_oom_kills(counter);
	}
	child = fork();
	if (child == 0) {
		void *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p != MAP_FAILED)
			memset(p, 1, BYTES);
		_exit(0);
	}
	waitpid(child, &status, 0);
	return before >= 0 && WIFSIGNALED(status) ? cgroup_oom_kills(counter) - before : -1;
}

/* Where the memory controller is one of version 1, and root may make groups there. */
START_TEST(kills_for_lack_of_memory_are_counted_in_the_own_group)
{
	_cleanup_free_ char *group = str_printf("/sys/fs/cgroup/memory/dtrain-test-%d", (int)getpid());
	_cleanup_free_ char *limit = str_printf("%s/memory.limit_in_bytes", group);
	_cleanup_free_ char *list = str_printf("%s/cgroup.procs", group);
	int64_t machine = processes_oom_kills();
	int status, fd;
	pid_t child;

	if (mkdir(group, 0755) < 0)
		return;
	fd = open(limit, O_WRONLY | O_CLOEXEC);
	ck_assert_int_eq(write(fd, "256M", 4), 4);
	close(fd);
	fd = open(list, O_WRONLY | O_CLOEXEC);
	child = fork();
	if (child == 0)
		_exit((int)run_out_of_memory(fd));
	close(fd);
	waitpid(child, &status, 0);
	ck_assert_int_eq(rmdir(group), 0);
	ck_assert_int_eq(WEXITSTATUS(status), 1);
	/* The count of the machine has it, too. */
	ck_assert_int_gt(processes_oom_kills(), machine);
}
END_TEST

/* The files of a kernel before 5.14, in a directory: a rank of root's has moved into a group below. */
START_TEST(groups_below_are_killed_and_removed_too)
{
	_cleanup_free_ char *group = fixture_path(&f, "base/group"),
	                    *below = fixture_path(&f, "base/group/a/b");
	_cleanup_free_ char *base = fixture_path(&f, "base"), *pid = NULL;
	struct error err = ERROR_INIT;
	pid_t child = fork();
	int status;

	if (child == 0)
		for (;;)
			pause();
	pid = str_printf("%d\n", (int)child);
	ck_ok(file_mkdirs(below, 0755, &err), &err);
	put("base/group/cgroup.events", "populated 1\nfrozen 0\n");
	put("base/group/cgroup.procs", "");
	put("base/group/a/cgroup.procs", "");
	put("base/group/a/b/cgroup.procs", pid);
	ck_assert_int_eq(cgroup_kill(group), 1);
	alarm(30); /* the test does not wait forever for a process that was not killed */
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	alarm(0);
	ck_ok(file_remove_tree(group, &err), &err);
	ck_ok(file_mkdirs(below, 0755, &err), &err);
	cgroup_remove(group);
	ck_assert(!file_exists(group));
	ck_assert(file_exists(base));
	cgroup_remove_parent(group);
	ck_assert(!file_exists(base));
}
END_TEST

/* It is made once, and not for each attempt. */
START_TEST(the_group_of_all_attempts_stays_while_the_service_runs)
{
	_cleanup_free_ char *runtime = fixture_path(&f, "run"), *base = cgroup_find_base(runtime),
	                    *group = base ? str_path_join(base, "1.1") : NULL;

	if (!base)
		return;
	start(shell_in(1, 1, "true"));
	fixture_await(&f, 1, "ended");
	while (file_exists(group))
		fixture_turn(&f);
	ck_assert(file_exists(base));
	fixture_restart(&f, true);
	ck_assert(!file_exists(base));
	fixture_restart(&f, false);
}
END_TEST

/* The guards of other attempts remove the parent whenever it is empty: here one that does nothing else. */
START_TEST(a_group_is_made_while_its_parent_is_removed)
{
	enum { TIMES = 1000 };
	_cleanup_free_ char *base = fixture_path(&f, "base"), *group = fixture_path(&f, "base/1.1");
	pid_t child = fork();
	int failed = 0, status;

	if (child == 0)
		for (;;)
			rmdir(base);
	for (int i = 0; i < TIMES; i++) {
		failed += cgroup_create(group) < 0;
		rmdir(group);
	}
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	ck_assert_int_eq(failed, 0);
}
END_TEST

/* What is killed belongs to the lost attempt alone. */
START_TEST(a_killed_launcher_takes_no_other_attempt_along)
{
	struct error err = ERROR_INIT;
	json_t *other = shell_in(2, 1, "echo $$ > @/other; exec sleep 1000");
	pid_t rank, kept;

	hide_cgroups();
	json_object_set_new(json_array_get(json_object_get(other, "ranks"), 0), "slot", json_integer(1));
	start(shell_in(1, 1, "echo $$ > @/rank; exec sleep 1000"));
	start(other);
	rank = await_pid("rank");
	kept = await_pid("other");
	ck_assert_int_eq(kill(parent_of(parent_of(rank)), SIGKILL), 0);
	fixture_await(&f, 1, "ended");
	ck_assert(fixture_gone(rank));
	ck_assert(!fixture_gone(kept));
	ck_ok(node_stop(f.node, 2, 1, 30, &err), &err);
	ck_assert_str_eq(json_get_string(fixture_rank(fixture_await(&f, 2, "ended"), 0), "signal", ""),
	                 "SIGTERM");
}
END_TEST

/* At a shutdown of the machine TERM comes to all processes while no dtraind is there to acknowledge the
 * end. */
START_TEST(a_launcher_that_gets_term_ends_by_itself)
{
	pid_t rank, launcher, guard;

	start(
	    shell_in(1, 1, "trap 'sleep 0.1; exit 3' TERM; echo $$ > @/rank; while :; do sleep 0.01; done"));
	rank = await_pid("rank");
	launcher = parent_of(rank);
	guard = parent_of(launcher);
	fixture_restart(&f, true);
	ck_assert_int_eq(kill(_i ? guard : launcher, SIGTERM), 0);
	fixture_await_gone(&f, rank);
	fixture_await_gone(&f, launcher);
	fixture_await_gone(&f, guard);
}
END_TEST

static json_t *with_grace(json_t *request, int seconds)
{
	json_object_set_new(json_object_get(json_object_get(request, "config"), "resources"), "grace",
	                    json_integer(seconds));
	return request;
}

/* With the grace of the run or of a shutdown, whichever is shorter, not one of the launcher's own. */
START_TEST(a_launcher_that_gets_term_knows_the_grace)
{
	json_t *request = shell_in(1, 1, "trap '' TERM; echo $$ > @/rank; while :; do sleep 0.01; done");
	double since = clock_monotonic();
	pid_t rank;

	f.config->shutdown_grace = _i ? 1 : 90;
	start(with_grace(request, _i ? 86400 : 1));
	rank = await_pid("rank");
	ck_assert_int_eq(kill(parent_of(rank), SIGTERM), 0);
	ck_assert_str_eq(json_get_string(fixture_rank(fixture_await(&f, 1, "ended"), 0), "signal", ""),
	                 "SIGKILL");
	ck_assert_double_ge(clock_monotonic() - since, 1.0);
	ck_assert(fixture_gone(rank));
}
END_TEST

START_TEST(a_node_that_shuts_down_ends_its_attempts)
{
	_cleanup_json_ json_t *other = fixture_request(2, 1, 1, (const char *const[]){"true", NULL});
	struct error err = ERROR_INIT;
	const json_t *report;

	start(shell_in(1, 1, "trap 'exit 0' TERM; echo $$ > @/rank; while :; do sleep 0.01; done"));
	await_pid("rank");
	ck_assert_double_eq(node_shut_down(f.node), 30.0);
	ck_assert_int_eq(node_running(f.node), 1);
	ck_assert_int_eq(fixture_start(&f, other, &err), -EBUSY);
	ck_assert_str_eq(err.message, "node n1 is shutting down");
	report = fixture_await(&f, 1, "ended");
	ck_assert_str_eq(json_get_string(report, "shutdown", ""), "node n1 was shut down");
	ck_assert_int_eq(node_running(f.node), 0);
}
END_TEST

START_TEST(a_shutdown_asks_to_save_first)
{
	_cleanup_free_ char *log = NULL;
	const json_t *report;

	f.config->shutdown_grace = 300;
	start(with_save(shell_in(1, 1,
	                         "trap 'echo saved; exit 3' HUP; trap 'echo term' TERM; "
	                         "echo $$ > @/rank; while :; do sleep 0.01; done"),
	                "HUP", 1000));
	await_pid("rank");
	ck_assert_double_eq(node_shut_down(f.node), 300.0);
	report = fixture_await(&f, 1, "ended");
	ck_assert_str_eq(json_get_string(report, "shutdown", ""), "node n1 was shut down");
	log = fixture_log(&f, 1, 0);
	ck_assert_str_eq(log, "saved\n");
}
END_TEST

START_TEST(a_shutdown_does_not_wait_for_a_longer_grace)
{
	const json_t *report;

	f.config->shutdown_grace = 1;
	start(with_grace(shell_in(1, 1, "trap '' TERM; echo $$ > @/rank; while :; do sleep 0.01; done"),
	                 86400));
	await_pid("rank");
	/* Nor where its owner has stopped it before. */
	ck_assert_int_eq(node_stop(f.node, 1, 1, 86400, NULL), 0);
	fixture_await(&f, 1, "stopping");
	ck_assert_double_eq(node_shut_down(f.node), 1.0);
	report = fixture_await(&f, 1, "ended");
	ck_assert_str_eq(json_get_string(fixture_rank(report, 0), "signal", ""), "SIGKILL");
}
END_TEST

static void forget_at_once(void *context, const struct report *report)
{
	if (report->state == ATTEMPT_ENDED) {
		node_forget(f.node, report->run, report->attempt);
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
	attempts = fixture_attempts(&f);
	ck_assert_uint_eq(json_array_size(attempts), 0);
}
END_TEST

/* A process by its name, which may contain anything. */
START_TEST(a_process_is_described)
{
	_cleanup_free_ char *own = str_printf("a) (b (pid %d)", (int)getpid()),
	                    *odd = str_printf("?x? (pid %d)", (int)getpid());
	char text[128], none[128];

	prctl(PR_SET_NAME, "a) (b");
	ck_assert_str_eq(processes_describe(getpid(), text, sizeof(text)), own);
	prctl(PR_SET_NAME, "\nx\x7f");
	ck_assert_str_eq(processes_describe(getpid(), text, sizeof(text)), odd);
	/* There is no such process. */
	ck_assert_str_eq(processes_describe(INT32_MAX, none, sizeof(none)), "? (pid 2147483647)");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node");
	TCase *tc = tcase_create("attempts");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, statuses_come_through);
	tcase_add_test(tc, a_start_outlives_the_runtime_directory);
	tcase_add_test(tc, a_node_knows_clusters);
	tcase_add_test(tc, only_the_last_lines_of_a_failure_are_told);
	tcase_add_test(tc, a_failed_exec_is_told);
	tcase_add_test(tc, the_first_failure_is_told_at_once);
	tcase_add_test(tc, what_ranks_leave_behind_is_ended);
	tcase_add_test(tc, who_ignores_term_is_killed_after_the_grace);
	tcase_add_test(tc, a_stop_asks_to_save_first);
	tcase_add_test(tc, saving_has_an_end);
	tcase_add_test(tc, a_kill_of_another_is_no_stop);
	tcase_add_test(tc, ends_have_their_order);
	tcase_add_test(tc, a_stop_gives_time_for_the_last_words);
	tcase_add_test(tc, a_restart_in_the_middle_loses_nothing);
	tcase_add_test(tc, an_end_while_the_service_was_away_is_found);
	tcase_add_loop_test(tc, a_killed_launcher_leaves_nothing, 0, ARRAY_SIZE(ways_to_kill));
	tcase_add_loop_test(tc, a_cleared_runtime_directory_frees_no_slot_in_use, 0,
	                    ARRAY_SIZE(ways_to_clear));
	tcase_add_test(tc, groups_below_are_killed_and_removed_too);
	tcase_add_test(tc, the_group_of_all_attempts_stays_while_the_service_runs);
	tcase_add_test(tc, kills_for_lack_of_memory_are_counted_in_the_own_group);
	tcase_add_test(tc, a_group_is_made_while_its_parent_is_removed);
	tcase_add_test(tc, a_killed_launcher_takes_no_other_attempt_along);
	tcase_add_loop_test(tc, a_launcher_that_gets_term_ends_by_itself, 0, 2);
	tcase_add_loop_test(tc, a_launcher_that_gets_term_knows_the_grace, 0, 2);
	tcase_add_test(tc, a_node_that_shuts_down_ends_its_attempts);
	tcase_add_test(tc, a_shutdown_asks_to_save_first);
	tcase_add_test(tc, a_shutdown_does_not_wait_for_a_longer_grace);
	tcase_add_test(tc, an_end_may_be_forgotten_from_its_own_report);
	tcase_add_test(tc, a_process_is_described);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
