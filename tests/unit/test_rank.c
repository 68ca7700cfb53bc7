/* SPDX-License-Identifier: Apache-2.0 */
/* A rank as dtrain-launch sees it: what its end means, and what is reported of it. */
#include "unit.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "node/launch/launch.h"

static char *dir, *log_path;
static struct launch_rank rank;
static struct launch_user user;
static char *environment[] = {(char *)"PATH=/usr/bin:/bin", NULL};

static void setup(void)
{
	dir = unit_tmpdir();
	log_path = str_path_join(dir, "log");
	rank = (struct launch_rank){.rank = 4, .slot = 2, .exec_fd = -1, .pidfd = -1, .numa = -1};
	rank.log_fd = open(log_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	rank.environment = environment;
	user = (struct launch_user){.uid = geteuid(), .gid = getegid(), .umask = 022, .directory = dir};
}

static void teardown(void)
{
	launch_rank_release(&rank);
	file_remove_tree(dir, NULL);
	free(dir);
	free(log_path);
}

static void put(const char *text, size_t length)
{
	ck_assert_int_eq(write(rank.log_fd, text, length), (ssize_t)length);
}

/* A wait status. */
static int exited(int status)
{
	return status << 8;
}

static void forget(void)
{
	free(rank.error);
	rank.error = NULL;
	rank.lost_peer = false;
}

START_TEST(an_end_says_how)
{
	static const struct {
		int status, sent;
		bool oom;
		int exit_status, signal;
		bool stopped, was_oom, core;
	} cases[] = {
	    {0, 0, false, 0, 0, false, false, false},
	    {3 << 8, 0, false, 3, 0, false, false, false},
	    {SIGSEGV | 0x80, 0, false, 139, SIGSEGV, false, false, true},
	    {SIGTERM, 0, false, 143, SIGTERM, false, false, false},
	    {SIGTERM, SIGTERM, false, 143, SIGTERM, true, false, false},
	    {0, SIGTERM, false, 0, 0, true, false, false},
	    {3 << 8, SIGUSR1, false, 3, 0, true, false, false},
	    /* another's KILL is no stop of ours, */
	    {SIGKILL, SIGTERM, false, 137, SIGKILL, false, false, false},
	    {SIGKILL, SIGKILL, false, 137, SIGKILL, true, false, false},
	    /* and may be that of the kernel */
	    {SIGKILL, 0, true, 137, SIGKILL, false, true, false},
	    {1 << 8, 0, true, 1, 0, false, true, false},
	    {0, 0, true, 0, 0, false, false, false},
	    {SIGKILL, SIGKILL, true, 137, SIGKILL, true, false, false},
	    {SIGKILL, SIGTERM, true, 137, SIGKILL, false, true, false},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		rank.state = RANK_RUNNING;
		launch_rank_exited(&rank, &user, cases[i].status, cases[i].sent, cases[i].oom);
		ck_assert_int_eq(rank.state, RANK_EXITED);
		ck_assert_int_eq(rank.exit_status, cases[i].exit_status);
		ck_assert_int_eq(rank.signal, cases[i].signal);
		ck_assert_msg(rank.stopped == cases[i].stopped, "case %zu", i);
		ck_assert_msg(rank.oom == cases[i].was_oom, "case %zu", i);
		ck_assert_int_eq(rank.core_dumped, cases[i].core);
		ck_assert_double_le(rank.ended, clock_realtime() + 0.01);
		ck_assert_double_ge(rank.ended, clock_realtime() - 100);
		ck_assert_ptr_null(rank.error); /* the log is empty */
	}
}
END_TEST

static void check_tail(const char *text, const char *want)
{
	ck_assert_int_eq(ftruncate(rank.log_fd, 0), 0);
	put(text, strlen(text));
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	if (want) {
		_cleanup_free_ char *all = str_printf("last lines of the log:\n%s", want);

		ck_assert_str_eq(rank.error, all);
	} else {
		ck_assert_ptr_null(rank.error);
	}
	forget();
}

START_TEST(a_failure_has_the_last_lines)
{
	_cleanup_free_ char *text = NULL, *line = NULL;
	struct strbuf b = {0};

	check_tail("", NULL);
	check_tail(" \n\n ", NULL);
	check_tail("one", "one");
	check_tail("one\ntwo\n\n", "one\ntwo");
	check_tail("1\n2\n3\n4\n5", "1\n2\n3\n4\n5");
	check_tail("1\n2\n3\n4\n5\n6\n", "2\n3\n4\n5\n6");
	check_tail("a\xff z", "a? z");
	/* A line that is cut is left out, unless it is the only one. */
	for (int i = 0; i < 300; i++)
		strbuf_addf(&b, "%d%s", i % 10, i == 0 ? "" : "xxx\n");
	text = strbuf_steal(&b);
	check_tail(text, "5xxx\n6xxx\n7xxx\n8xxx\n9xxx");
	free(text);
	text = malloc(1200);
	memset(text, 'y', 1199);
	text[1199] = '\0';
	check_tail(text, text + 1199 - LAUNCH_ERROR_BYTES);
	text[1199 - 1] = '\n';
	text[1199 - 5] = '\n';
	check_tail(text, "yyy");
	/* The newline at its end does not make it two. */
	text[1199 - 5] = 'y';
	text[1199 - 1] = '\0';
	line = str_printf("%s\n", text);
	check_tail(line, text + 1199 - LAUNCH_ERROR_BYTES);
	/* Progress that is written over itself. */
	check_tail("0%\r50%\r100%\r\nboom\r\n", "0%\n50%\n100%\r\nboom");
	/* A zero within is a blank. */
	ck_assert_int_eq(ftruncate(rank.log_fd, 0), 0);
	put("a\0b", 3);
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	ck_assert_str_eq(rank.error, "last lines of the log:\na b");
	forget();
	/* None of one that ended well, or was stopped. */
	launch_rank_exited(&rank, &user, 0, 0, false);
	ck_assert_ptr_null(rank.error);
	launch_rank_exited(&rank, &user, exited(1), SIGTERM, false);
	ck_assert_ptr_null(rank.error);
}
END_TEST

static void put_file(const char *name, const char *text)
{
	_cleanup_free_ char *path = str_path_join(dir, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
}

/* The file that torchrun's way has for the error itself, if it is one of the user's. */
START_TEST(a_failure_may_have_an_error_file)
{
	_cleanup_free_ char *path = str_path_join(dir, "error.json"), *link = str_path_join(dir, "link.json"),
	                    *text = NULL;
	static const char error[] = "{\"message\":{\"message\":\"RuntimeError: boom\"}}";

	rank.error_file = path;
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	ck_assert_ptr_null(rank.error);
	put_file("error.json", error);
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	ck_assert_str_eq(rank.error, "RuntimeError: boom");
	forget();
	put("line\n", 5);
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	ck_assert_str_eq(rank.error, "RuntimeError: boom\nlast lines of the log:\nline");
	forget();
	ck_assert_int_eq(ftruncate(rank.log_fd, 0), 0);
	/* Not through a link, not of another user, and nothing but a file. */
	ck_assert_int_eq(symlink(path, link), 0);
	rank.error_file = link;
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	ck_assert_ptr_null(rank.error);
	rank.error_file = dir;
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	ck_assert_ptr_null(rank.error);
	rank.error_file = path;
	user.uid++;
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	ck_assert_ptr_null(rank.error);
	user.uid--;
	/* What is no such file, or says nothing. */
	put_file("error.json", "{");
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	ck_assert_ptr_null(rank.error);
	put_file("error.json", "{}");
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	ck_assert_ptr_null(rank.error);
	put_file("error.json", "");
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	ck_assert_ptr_null(rank.error);
	/* Not more of it than of the log. */
	text = malloc(2000);
	memset(text, 'e', 1999);
	text[1999] = '\0';
	{
		_cleanup_free_ char *json = str_printf("{\"message\":\"%s\"}", text);

		put_file("error.json", json);
	}
	launch_rank_exited(&rank, &user, exited(1), 0, false);
	ck_assert_uint_eq(strlen(rank.error), LAUNCH_ERROR_BYTES);
	forget();
}
END_TEST

START_TEST(a_rank_is_reported)
{
	struct rank_report out;

	rank.state = RANK_STARTING;
	rank.pid = 77;
	rank.stopped = rank.oom = rank.core_dumped = rank.lost_peer = true;
	rank.ended = 5;
	rank.exit_status = 9;
	launch_rank_describe(&rank, &out);
	ck_assert_int_eq(out.rank, 4);
	ck_assert_int_eq(out.slot, 2);
	ck_assert_int_eq(out.state, RANK_STARTING);
	ck_assert_int_eq(out.pid, 77);
	ck_assert_int_eq(out.exit_status, -1);
	ck_assert_double_eq(out.ended, 0);
	ck_assert(!out.stopped && !out.oom && !out.core_dumped && !out.lost_peer);
	ck_assert_ptr_null(out.signal);
	ck_assert_ptr_null(out.error);
	rank.state = RANK_EXITED;
	rank.signal = SIGRTMIN + 3;
	rank.error = strdup("a\xff");
	launch_rank_describe(&rank, &out);
	ck_assert_int_eq(out.exit_status, 9);
	ck_assert_double_eq(out.ended, 5);
	ck_assert(out.stopped);
	ck_assert(out.oom);
	ck_assert(out.core_dumped);
	ck_assert(out.lost_peer);
	ck_assert_str_eq(out.signal, "SIGRTMIN+3");
	ck_assert_str_eq(out.error, "a?");
	rank_report_release(&out);
	rank.signal = SIGKILL;
	launch_rank_describe(&rank, &out);
	ck_assert_str_eq(out.signal, "SIGKILL");
	rank_report_release(&out);
}
END_TEST

/* Starts a program and waits for its end. */
static void run(char *const *argv)
{
	struct error err = ERROR_INIT;
	siginfo_t info;
	int status;

	user.argv = (char **)argv;
	ck_assert_int_eq(ftruncate(rank.log_fd, 0), 0);
	rank.state = RANK_STARTING;
	ck_ok(launch_rank_start(&rank, &user, &err), &err);
	ck_assert_int_gt(rank.pid, 0);
	ck_assert_int_ge(rank.pidfd, 0);
	ck_assert_int_ge(rank.exec_fd, 0);
	ck_assert_int_eq(waitid(P_PIDFD, (id_t)rank.pidfd, &info, WEXITED | WNOWAIT), 0);
	launch_rank_executed(&rank, &user);
	ck_assert_int_eq(waitpid(rank.pid, &status, 0), rank.pid);
	launch_rank_exited(&rank, &user, status, 0, false);
	ck_assert_int_eq(rank.exec_fd, -1);
	ck_assert_int_eq(rank.pidfd, -1);
}

static void check_log(const char *want)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	ck_ok(file_read(log_path, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, want);
}

static void run_script(const char *script)
{
	run((char *[]){(char *)"sh", (char *)"-c", (char *)script, NULL});
}

START_TEST(a_program_is_executed)
{
	_cleanup_free_ char *want = str_printf("%s\n0022\nPATH=/usr/bin:/bin\n", dir);

	run_script("echo $(readlink /proc/self/cwd); umask; env | grep PATH");
	ck_assert_int_eq(rank.exit_status, 0);
	check_log(want);
	/* Both outputs are the log, the input is empty. */
	run_script("echo one; echo two >&2; cat; exit 5");
	ck_assert_int_eq(rank.exit_status, 5);
	check_log("one\ntwo\n");
	forget();
	/* Signals that this process ignores or blocks are as they are for any program. */
	signal(SIGUSR1, SIG_IGN);
	run_script("kill -USR1 $$; echo survived");
	ck_assert_int_eq(rank.signal, SIGUSR1);
	check_log("");
}
END_TEST

START_TEST(what_cannot_be_executed_says_why)
{
	_cleanup_free_ char *plain = str_path_join(dir, "plain");

	run((char *[]){(char *)"no-such-program", NULL});
	ck_assert_int_eq(rank.exit_status, 127);
	ck_assert_str_eq(rank.error, "cannot execute no-such-program: No such file or directory");
	forget();
	put_file("plain", "");
	run((char *[]){plain, NULL});
	ck_assert_int_eq(rank.exit_status, 126);
	ck_assert_ptr_nonnull(strstr(rank.error, "/plain: Permission denied"));
	forget();
	user.directory = "/nonexistent";
	run((char *[]){(char *)"true", NULL});
	ck_assert_int_eq(rank.exit_status, 126);
	ck_assert_str_eq(rank.error, "cannot enter directory /nonexistent: No such file or directory");
	forget();
	user.directory = dir;
	user.change = true;
	user.uid = 0;
	user.groups = calloc(1 << 20, sizeof(*user.groups));
	user.group_count = 1 << 20; /* more than anybody may have, root included */
	run((char *[]){(char *)"true", NULL});
	ck_assert_int_eq(rank.exit_status, 126);
	ck_assert_ptr_nonnull(strstr(rank.error, "cannot become uid 0: "));
	free(user.groups);
}
END_TEST

/* As root alone: the ids and groups of the user, and no others. */
START_TEST(a_rank_becomes_its_user)
{
	gid_t groups[] = {4321, 4322};

	if (geteuid() != 0)
		return;
	ck_assert_int_eq(chmod(dir, 0755), 0);
	user.change = true;
	user.uid = 1234;
	user.gid = 4321;
	user.groups = groups;
	user.group_count = 2;
	run_script("id -u; id -ru; id -g; id -rg; id -G");
	check_log("1234\n1234\n4321\n4321\n4321 4322\n");
}
END_TEST

START_TEST(core_files_are_as_the_run_asks)
{
	struct rlimit limit = {0, 1 << 20};

	ck_assert_int_eq(setrlimit(RLIMIT_CORE, &limit), 0);
	run_script("ulimit -c; ulimit -Hc");
	check_log("0\n0\n");
	user.core_files = true;
	run_script("ulimit -c; ulimit -Hc");
	check_log("2048\n2048\n");
}
END_TEST

START_TEST(cpus_and_memory_are_bound)
{
	cpu_set_t allowed;
	_cleanup_free_ char *want = NULL, *text = NULL;
	char one[16];
	int first = 0;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
	while (!CPU_ISSET(first, &allowed))
		first++;
	snprintf(one, sizeof(one), "%d", first);
	rank.cpus = one;
	want = str_printf("Cpus_allowed_list:\t%d\n", first);
	run_script("grep Cpus_allowed_list /proc/self/status");
	check_log(want);
	/* What cannot be bound runs all the same. */
	rank.cpus = "1-";
	rank.numa = 5000;
	run_script("echo ran");
	check_log("ran\n");
	rank.cpus = NULL;
	rank.numa = 0;
	run_script("grep -c prefer:0 /proc/self/numa_maps || :");
	ck_ok(file_read(log_path, 0, &text, NULL, &err), &err);
	if (access("/proc/self/numa_maps", F_OK) == 0)
		ck_assert_int_gt(atoi(text), 0);
}
END_TEST

START_TEST(limits_are_raised)
{
	struct rlimit limit, before;
	bool unlimited;

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	limit.rlim_cur = 64;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &before), 0);
	limit.rlim_cur = limit.rlim_max = RLIM_INFINITY;
	unlimited = setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
	if (unlimited)
		before.rlim_max = 1 << 20;
	before.rlim_cur = 0;
	ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &before), 0);
	launch_raise_limits();
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_uint_eq(limit.rlim_cur, limit.rlim_max);
	ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	ck_assert_uint_eq(limit.rlim_cur, limit.rlim_max);
	ck_assert_uint_eq(limit.rlim_max, unlimited ? RLIM_INFINITY : before.rlim_max);
}
END_TEST

/* pam_limits sets what it is not configured for to the limits of process 1, and soft limits of open files to
 * 1024. */
START_TEST(limits_that_are_not_configured_are_kept)
{
	_cleanup_free_ char *path = str_path_join(dir, "limits"), *text = NULL;
	struct launch_limits before, now;
	struct rlimit *files = &before.list[1], limit;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_uint_gt(limit.rlim_max, 2000);
	ck_assert_int_eq(setrlimit(RLIMIT_CORE, &(struct rlimit){0, 4000}), 0);
	text = str_printf("Limit                     Soft Limit           Hard Limit           Units     \n"
	                  "Max core file size        0                    4000                 bytes     \n"
	                  "Max open files            %llu                 %llu                 files     \n"
	                  "Max locked memory         unlimited            unlimited            bytes     \n",
	                  (unsigned long long)limit.rlim_max, (unsigned long long)limit.rlim_max);
	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
	limit.rlim_cur = limit.rlim_max;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	launch_read_limits(&before);
	before.list[2] = (struct rlimit){3000, 3000};
	/* limits.conf sets none of these. */
	limit.rlim_cur = 1024;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	launch_keep_limits(&before, path);
	launch_read_limits(&now);
	ck_assert_uint_eq(now.list[1].rlim_cur, files->rlim_cur);
	ck_assert_uint_eq(now.list[1].rlim_max, files->rlim_max);
	ck_assert_uint_eq(now.list[2].rlim_cur, 3000);
	ck_assert_uint_eq(now.list[2].rlim_max, 3000);
	ck_assert_mem_eq(&now.list[0], &before.list[0], sizeof(now.list[0]));
	/* Process 1 has more. */
	limit.rlim_cur = limit.rlim_max;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	*files = (struct rlimit){1500, 1500};
	launch_keep_limits(&before, path);
	launch_read_limits(&now);
	ck_assert_uint_eq(now.list[1].rlim_cur, limit.rlim_max);
	ck_assert_uint_eq(now.list[1].rlim_max, limit.rlim_max);
	*files = limit;
	/* limits.conf sets the soft limit; then the hard one alone, to which PAM's own soft limit is raised.
	 */
	limit.rlim_cur = 100;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	launch_keep_limits(&before, path);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_uint_eq(limit.rlim_cur, 100);
	ck_assert_uint_eq(limit.rlim_max, files->rlim_max);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1024, 1999}), 0);
	launch_keep_limits(&before, path);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_uint_eq(limit.rlim_cur, 1999);
	ck_assert_uint_eq(limit.rlim_max, 1999);
	/* Without the file everything stays. */
	limit.rlim_cur = 1024;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	launch_keep_limits(&before, "/nonexistent");
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_uint_eq(limit.rlim_cur, 1024);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rank");
	TCase *tc = tcase_create("rank");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 20);
	tcase_add_test(tc, an_end_says_how);
	tcase_add_test(tc, a_failure_has_the_last_lines);
	tcase_add_test(tc, a_failure_may_have_an_error_file);
	tcase_add_test(tc, a_rank_is_reported);
	tcase_add_test(tc, a_program_is_executed);
	tcase_add_test(tc, what_cannot_be_executed_says_why);
	tcase_add_test(tc, a_rank_becomes_its_user);
	tcase_add_test(tc, core_files_are_as_the_run_asks);
	tcase_add_test(tc, cpus_and_memory_are_bound);
	tcase_add_test(tc, limits_are_raised);
	tcase_add_test(tc, limits_that_are_not_configured_are_kept);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
