/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain-launch by itself: this test makes its directory and its socket, and speaks with it as dtraind does.
 */
#include "unit.h"

#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/lease_file.h"
#include "base/str.h"
#include "node/launch/launch.h"
#include "wire/launch.h"

static char *dir;
static pid_t child; /* the guard, or the launcher itself where there is none */
static int client;  /* the newest connection */
static struct strbuf in;
static struct launch_report report; /* the newest */

static char *path_of(const char *name)
{
	return str_path_join(dir, name);
}

static void setup(void)
{
	dir = unit_tmpdir();
	child = client = -1;
	in = (struct strbuf){0};
	report = (struct launch_report){0};
}

static void teardown(void)
{
	if (client >= 0)
		close(client);
	strbuf_free(&in);
	launch_report_release(&report);
	file_remove_tree(dir, NULL);
	free(dir);
}

/* A connection with the launcher; the one before it stays open. */
static void reconnect(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/launch.sock", dir);
	ck_assert_int_eq(connect(client, (struct sockaddr *)&address, sizeof(address)), 0);
	in.len = 0;
}

/* Executes it for ranks that are these shell scripts; `more` are further keys of launch.json. */
static void launch(const char *more, bool service, size_t count, const char *const *scripts)
{
	_cleanup_free_ char *file = path_of("launch.json"), *text = NULL;
	_cleanup_json_ json_t *ranks = json_array(), *json = NULL;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < count; i++) {
		_cleanup_free_ char *log = str_printf("%s/log%zu", dir, i),
		                    *script = str_printf("SCRIPT=%s", scripts[i]),
		                    *where = str_printf("D=%s", dir);

		close(open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
		json_array_append_new(ranks, json_pack("{s:i, s:i, s:[s, s, s], s:s, s:s}", "rank",
		                                       (int)i + 4, "slot", (int)i + 1, "environment", script,
		                                       where, "PATH=/usr/bin:/bin", "log", log, "error_file",
		                                       "/nonexistent"));
	}
	text = str_printf("{\"uid\":%d,\"gid\":%d,\"groups\":[],\"argv\":[\"sh\",\"-c\",\"exec 2>/dev/null; "
	                  "eval \\\"$SCRIPT\\\"\"],"
	                  "%s\"ranks\":[]}",
	                  (int)geteuid(), (int)getegid(), more);
	ck_ok(json_parse(text, strlen(text), "launch.json", &json, &err), &err);
	json_object_set(json, "ranks", ranks);
	if (service)
		json_object_set_new(json, "service", json_string("dtrain-1-1.service"));
	ck_ok(json_write_file(file, json, 0, false, &err), &err);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/launch.sock", dir);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	ck_assert_int_eq(listen(fd, 8), 0);
	reconnect();
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		dup2(fd, service ? STDIN_FILENO : LAUNCH_SOCKET_FD);
		execl("./dtrain-launch", "dtrain-launch", dir, NULL);
		_exit(98);
	}
	close(fd);
}

static void launch_one(const char *more, const char *script)
{
	launch(more, false, 1, &script);
}

static void say(const char *line)
{
	ck_assert_int_eq(send(client, line, strlen(line), MSG_NOSIGNAL), (ssize_t)strlen(line));
}

/* The next line becomes the report; false: the connection was closed. */
static bool next(void)
{
	char buf[4096], *newline;
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *json = NULL;

	while (!in.len || !(newline = memchr(in.data, '\n', in.len))) {
		ssize_t n = recv(client, buf, sizeof(buf), 0);

		if (n <= 0)
			return false;
		strbuf_add(&in, buf, (size_t)n);
	}
	launch_report_release(&report);
	report = (struct launch_report){0};
	ck_ok(json_parse(in.data, (size_t)(newline - in.data), "report", &json, &err), &err);
	ck_ok(launch_report_decode(json, &report, &err), &err);
	in.len -= (size_t)(newline + 1 - in.data);
	memmove(in.data, newline + 1, in.len);
	return true;
}

static void await(enum attempt_state state)
{
	do
		ck_assert_msg(next(), "the connection was closed before state %d", (int)state);
	while (report.state != state);
}

/* What is in the file, once it has so many lines at least. */
static char *await_lines(const char *name, int lines)
{
	_cleanup_free_ char *path = path_of(name);

	for (;;) {
		char *text = NULL;
		int n = 0;

		if (file_read(path, 0, &text, NULL, NULL) == 0)
			for (const char *p = text; *p; p++)
				n += *p == '\n';
		if (text && n >= lines)
			return text;
		free(text);
		usleep(1000);
	}
}

static void check_log(int rank, const char *want)
{
	_cleanup_free_ char *path = str_printf("%s/log%d", dir, rank), *text = NULL;
	struct error err = ERROR_INIT;

	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, want);
}

/* The wait status of the process that was executed. */
static int status_of_child(void)
{
	int status;

	ck_assert_int_eq(waitpid(child, &status, 0), child);
	return status;
}

static void acknowledge(void)
{
	say("{\"acknowledge\":true}\n");
	ck_assert_int_eq(status_of_child(), 0);
}

START_TEST(the_state_is_told_at_each_change)
{
	static const char *const scripts[] = {"exit 3", "until [ -e $D/go ]; do sleep 0.01; done"};
	_cleanup_free_ char *go = path_of("go");
	struct error err = ERROR_INIT;

	launch("", _i, 2, scripts);
	do
		ck_assert(next());
	while (report.rank_count != 2 || report.ranks[0].state != RANK_EXITED ||
	       report.ranks[1].state != RANK_RUNNING);
	ck_assert_int_eq(report.state, ATTEMPT_RUNNING);
	ck_assert_int_eq(report.launcher, child);
	ck_assert(!report.terminated);
	ck_assert(!report.lease_ended);
	ck_assert_ptr_null(report.reason);
	ck_assert_int_eq(report.ranks[0].rank, 4);
	ck_assert_int_eq(report.ranks[0].slot, 1);
	ck_assert_int_eq(report.ranks[0].exit_status, 3);
	ck_assert(!report.ranks[0].stopped);
	ck_assert_double_le(report.ranks[0].ended, clock_realtime() + 1);
	ck_assert_double_ge(report.ranks[0].ended, clock_realtime() - 100);
	ck_assert_int_eq(report.ranks[1].rank, 5);
	ck_assert_int_eq(report.ranks[1].slot, 2);
	ck_assert_int_eq(report.ranks[1].exit_status, -1);
	ck_assert(kill((pid_t)report.ranks[1].pid, 0) == 0);
	/* Before the end there is nothing to acknowledge. */
	say("{\"acknowledge\":true}\n");
	ck_ok(file_write_atomic(go, "", 0, 0644, &err), &err);
	await(ATTEMPT_ENDED);
	ck_assert_int_eq(report.ranks[0].exit_status, 3);
	ck_assert_int_eq(report.ranks[1].exit_status, 0);
	ck_assert_int_eq(waitpid(child, NULL, WNOHANG), 0);
	acknowledge();
}
END_TEST

START_TEST(a_stop_has_its_order)
{
	_cleanup_free_ char *text = NULL;

	launch_one("\"save_signal\":10,",
	           "trap 'echo usr1' USR1; trap 'echo term' TERM; echo ready; while :; do sleep 0.01; done");
	await(ATTEMPT_RUNNING);
	text = await_lines("log0", 1);
	say("{\"stop\":0.2,\"save\":0.2}\n");
	await(ATTEMPT_STOPPING);
	await(ATTEMPT_ENDED);
	check_log(0, "ready\nusr1\nterm\n");
	ck_assert_str_eq(report.ranks[0].signal, "SIGKILL");
	ck_assert_int_eq(report.ranks[0].exit_status, 137);
	ck_assert(report.ranks[0].stopped);
	ck_assert(!report.terminated);
	acknowledge();
}
END_TEST

/* Without a signal that asks to save, or without time to save, TERM is the first one. */
START_TEST(a_stop_without_a_save_signal_terminates_at_once)
{
	_cleanup_free_ char *text = NULL;

	launch_one(
	    _i ? "\"save_signal\":10," : "",
	    "trap 'echo usr1' USR1; trap 'echo term; exit 5' TERM; echo ready; while :; do sleep 0.01; done");
	text = await_lines("log0", 1);
	say(_i ? "{\"stop\":1000}\n" : "{\"stop\":1000,\"save\":1000}\n");
	await(ATTEMPT_ENDED);
	check_log(0, "ready\nterm\n");
	ck_assert_int_eq(report.ranks[0].exit_status, 5);
	ck_assert(report.ranks[0].stopped);
	ck_assert_ptr_null(report.ranks[0].error);
	acknowledge();
}
END_TEST

/* A later one neither gives more time than an earlier one nor asks to save again. */
START_TEST(a_second_stop_can_only_bring_the_end_forward)
{
	static const char *const stops[][2] = {
	    {"{\"stop\":1000,\"save\":1000}\n", "{\"stop\":0}\n"},
	    {"{\"stop\":0.1,\"save\":0.1}\n", "{\"stop\":1000,\"save\":1000}\n"},
	    {"{\"stop\":1000}\n", "{\"stop\":0}\n"},
	    {"{\"stop\":0.1}\n", "{\"stop\":1000}\n"},
	    {"{\"stop\":0.1,\"save\":0.1}\n", "{\"stop\":0.1,\"save\":1000}\n"},
	};
	_cleanup_free_ char *text = NULL, *log = NULL;

	launch_one("\"save_signal\":10,",
	           "trap 'echo usr1' USR1; trap '' TERM; echo ready; while :; do sleep 0.01; done");
	text = await_lines("log0", 1);
	say(stops[_i][0]);
	await(ATTEMPT_STOPPING);
	say(stops[_i][1]);
	await(ATTEMPT_ENDED);
	ck_assert_str_eq(report.ranks[0].signal, "SIGKILL");
	ck_assert(report.ranks[0].stopped);
	log = await_lines("log0", 1);
	ck_assert_msg(str_eq(log, "ready\n") || str_eq(log, "ready\nusr1\n"), "%s", log);
	acknowledge();
}
END_TEST

/* To save is asked of the rank alone. TERM is for its whole session, also for what is stopped. */
START_TEST(signals_have_their_range)
{
	_cleanup_free_ char *text = NULL;

	launch_one("\"save_signal\":10,",
	           "sh -c 'trap \"echo below: usr1\" USR1; trap \"echo below: term; exit\" TERM; echo one;"
	           "       while :; do sleep 0.01; done' & "
	           "trap 'echo rank: usr1; echo x >$D/saved; kill -STOP $$' USR1; trap '' TERM; echo two; "
	           "wait; wait; "
	           "echo over");
	text = await_lines("log0", 2);
	say("{\"stop\":1000,\"save\":1000}\n");
	free(text);
	text = await_lines("saved", 1);
	say("{\"stop\":1000}\n");
	await(ATTEMPT_ENDED);
	free(text);
	text = await_lines("log0", 4);
	ck_assert_ptr_nonnull(strstr(text, "rank: usr1\n"));
	ck_assert_ptr_nonnull(strstr(text, "below: term\n"));
	ck_assert_ptr_null(strstr(text, "below: usr1\n"));
	ck_assert_ptr_nonnull(strstr(text, "over\n"));
	acknowledge();
}
END_TEST

/* As "systemctl restart" of its unit would have it. */
START_TEST(an_attempt_begins_once)
{
	_cleanup_free_ char *text = NULL;
	int status;

	launch_one("", "echo begun");
	await(ATTEMPT_ENDED);
	acknowledge();
	ck_assert_int_ge(child = fork(), 0);
	if (child == 0) {
		dup2(open("/dev/null", O_RDWR), LAUNCH_SOCKET_FD);
		dup2(LAUNCH_SOCKET_FD, STDERR_FILENO);
		execl("./dtrain-launch", "dtrain-launch", dir, NULL);
		_exit(98);
	}
	status = status_of_child();
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%d", status);
	text = await_lines("log0", 1);
	ck_assert_str_eq(text, "begun\n");
}
END_TEST

/* A shell that ends by the signal does not take the time from the program that it has started, in whatever
 * process group that is, and the program gets TERM once. */
START_TEST(what_a_stopped_rank_leaves_has_the_grace)
{
	static const char *const starts[] = {"sh -c", "setsid sh -c", "sh -c"};
	_cleanup_free_ char *
	    go = path_of("go"),
	   *text = NULL,
	   *script =
	       str_printf("%s 'trap \"echo term; echo x >>$D/term\" TERM; echo ready;"
	                  "    until [ -e $D/go ] && [ -e $D/term ]; do sleep 0.01; done; echo saved' & wait",
	                  starts[_i]);
	struct error err = ERROR_INIT;

	launch_one(_i == 2 ? "\"save_signal\":10," : "", script);
	text = await_lines("log0", 1);
	say("{\"stop\":1000,\"save\":1000}\n");
	while (report.rank_count != 1 || report.ranks[0].state != RANK_EXITED)
		ck_assert(next());
	ck_assert_int_eq(report.state, ATTEMPT_STOPPING);
	ck_assert(report.ranks[0].stopped);
	ck_ok(file_write_atomic(go, "", 0, 0644, &err), &err);
	await(ATTEMPT_ENDED);
	check_log(0, "ready\nterm\nsaved\n");
	acknowledge();
}
END_TEST

/* At the end of the grace it is killed. */
START_TEST(what_a_stopped_rank_leaves_has_no_more_than_the_grace)
{
	_cleanup_free_ char *text = NULL;
	pid_t left;

	launch_one("", "setsid sh -c 'trap \"\" TERM; echo $$ >$D/left; sleep 1000; sleep 1000' & wait");
	text = await_lines("left", 1);
	left = atoi(text);
	ck_assert_int_gt(left, 1);
	say("{\"stop\":0.2}\n");
	await(ATTEMPT_ENDED);
	ck_assert(kill(left, 0) < 0);
	acknowledge();
}
END_TEST

START_TEST(what_the_ranks_leave_is_killed_before_the_end)
{
	_cleanup_free_ char *text = NULL;
	pid_t left;

	launch_one("", "setsid sh -c 'trap \"\" TERM; echo $$ >$D/left; sleep 1000; sleep 1000' & "
	               "until [ -s $D/left ]; do sleep 0.01; done; exit 0");
	await(ATTEMPT_ENDED);
	text = await_lines("left", 1);
	left = atoi(text);
	ck_assert_int_gt(left, 1);
	ck_assert(kill(left, 0) < 0);
	ck_assert_int_eq(report.ranks[0].exit_status, 0);
	ck_assert(!report.ranks[0].stopped);
	acknowledge();
}
END_TEST

/* As a shutdown of the machine sends it: the launcher has the times of its description, and needs no service
 * to go. */
START_TEST(a_launcher_that_is_told_to_end_does_so_alone)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
	static const char *const script = "trap 'echo usr1' USR1; trap 'echo term; exit 6' TERM; echo ready; "
	                                  "while :; do sleep 0.01; done";
	_cleanup_free_ char *text = NULL;

	launch("\"save_signal\":10,\"save\":0.1,\"grace\":1000,", _i % 2, 1, &script);
	text = await_lines("log0", 1);
	await(ATTEMPT_RUNNING);
	ck_assert_int_eq(kill(child, signals[_i % 3]), 0);
	await(ATTEMPT_STOPPING);
	ck_assert(report.terminated);
	await(ATTEMPT_ENDED);
	ck_assert(report.terminated);
	ck_assert(report.ranks[0].stopped);
	check_log(0, "ready\nusr1\nterm\n");
	ck_assert(!next());
	ck_assert_int_eq(status_of_child(), 0);
}
END_TEST

START_TEST(a_launcher_without_a_client_ends_after_term)
{
	_cleanup_free_ char *text = NULL;

	launch_one("\"grace\":0.1,", "trap '' TERM; echo ready; while :; do sleep 0.01; done");
	text = await_lines("log0", 1);
	await(ATTEMPT_RUNNING);
	close(client);
	client = -1;
	ck_assert_int_eq(kill(child, SIGTERM), 0);
	ck_assert_int_eq(status_of_child(), 0);
}
END_TEST

START_TEST(the_newest_connection_counts)
{
	int old;

	launch_one("", "trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
	await(ATTEMPT_RUNNING);
	free(await_lines("log0", 1));
	old = client;
	reconnect();
	await(ATTEMPT_RUNNING); /* the whole state without a change */
	ck_assert_uint_eq(report.rank_count, 1);
	for (char buf[4096]; recv(old, buf, sizeof(buf), 0) > 0;)
		;
	close(old);
	/* What was said last counts even where the connection is closed at once. */
	say("{\"stop\":1000}\n");
	close(client);
	free(await_lines("log0", 2));
	reconnect();
	await(ATTEMPT_ENDED);
	ck_assert(report.ranks[0].stopped);
	acknowledge();
}
END_TEST

/* The launcher is stopped, and then finds both at once, the new connection first. */
START_TEST(the_last_words_of_a_connection_count_where_another_follows)
{
	static const char *const script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";
	int old, status;

	launch("", true, 1, &script);
	await(ATTEMPT_RUNNING);
	free(await_lines("log0", 1));
	ck_assert_int_eq(kill(child, SIGSTOP), 0);
	ck_assert_int_eq(waitpid(child, &status, WUNTRACED), child);
	old = client;
	reconnect();
	ck_assert_int_gt(send(old, "{\"stop\":1000}\n", 14, MSG_NOSIGNAL), 0);
	close(old);
	ck_assert_int_eq(kill(child, SIGCONT), 0);
	await(ATTEMPT_ENDED);
	ck_assert(report.ranks[0].stopped);
	acknowledge();
}
END_TEST

/* What is no command is passed over. One may come in parts, or several at once. */
START_TEST(commands_are_lines)
{
	launch_one("\"save_signal\":10,", "trap 'echo usr1' USR1; echo ready; while :; do sleep 0.01; done");
	await(ATTEMPT_RUNNING);
	free(await_lines("log0", 1));
	say("no JSON\n{\"stop\":\"x\"}\n{\"confirmed\":true}\n{\"sto");
	say("p\":1000,\"save\":1000}\n{\"st");
	await(ATTEMPT_STOPPING);
	free(await_lines("log0", 2));
	say("op\":1000}\n");
	await(ATTEMPT_ENDED);
	ck_assert_str_eq(report.ranks[0].signal, "SIGTERM");
	acknowledge();
}
END_TEST

/* More lines than the socket holds: who reads late gets whole lines, the last with the newest state. */
START_TEST(a_client_may_be_slow)
{
	enum { RANKS = 64 };
	const char *scripts[RANKS];
	struct error err = ERROR_INIT;
	_cleanup_free_ char *go = path_of("go"), *text = NULL;

	for (size_t i = 0; i < RANKS; i++)
		scripts[i] =
		    i ? "until [ -e $D/go ]; do sleep 0.02; done; head -c 1000 /dev/zero | tr '\\0' x; exit 9"
		      : "until [ -e $D/go ]; do sleep 0.02; done; exit 0";
	launch("", false, RANKS, scripts);
	await(ATTEMPT_RUNNING);
	ck_ok(file_write_atomic(go, "", 0, 0644, &err), &err);
	for (char link[64] = "x"; *link;) { /* until the last of its ranks is gone */
		snprintf(link, sizeof(link), "/proc/%d", (int)report.ranks[RANKS - 1].pid);
		if (access(link, F_OK) < 0)
			*link = '\0';
		usleep(1000);
	}
	await(ATTEMPT_ENDED);
	for (size_t i = 1; i < RANKS; i++) {
		ck_assert_int_eq(report.ranks[i].exit_status, 9);
		ck_assert_ptr_nonnull(report.ranks[i].error);
		ck_assert_uint_ge(strlen(report.ranks[i].error), 900);
	}
	acknowledge();
}
END_TEST

static void grant(double seconds)
{
	_cleanup_free_ char *path = path_of("lease");
	double now = clock_seconds(CLOCK_BOOTTIME);
	struct error err = ERROR_INIT;

	ck_ok(lease_file_write(path, &(struct lease_end){now + seconds, seconds / 2}, &err), &err);
}

/* The ranks end before the lease does, unless they may outlive it and the controller knows the attempt. */
START_TEST(ranks_end_with_the_lease)
{
	_cleanup_free_ char *more = str_printf("\"lease\":\"%s/lease\",\"grace\":1000,\"outlives_lease\":%s,",
	                                       dir, _i == 2 ? "true" : "false");

	grant(_i == 2 ? 1000 : 0.5);
	launch_one(more, "trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
	if (_i == 2) {
		await(ATTEMPT_RUNNING);
		free(await_lines("log0", 1));
		say("{\"confirmed\":true}\n");
		grant(0.01);
		say("{\"stop\":1000}\n");
	} else if (_i == 1) {
		say("{\"confirmed\":true}\n");
	}
	await(ATTEMPT_ENDED);
	ck_assert_int_eq(report.lease_ended, _i != 2);
	ck_assert(!report.terminated);
	ck_assert(report.ranks[0].stopped);
	acknowledge();
}
END_TEST

START_TEST(temporary_files_are_there_while_the_ranks_are)
{
	_cleanup_free_ char *path = path_of("tmp"),
	                    *more = str_printf("\"tmp_dir\":\"%s\",\"umask\":63,", path);
	struct stat st;

	launch_one(more, "mkdir -p $D/tmp/a/b; touch $D/tmp/a/b/c; umask; stat -c %a $D/tmp");
	await(ATTEMPT_ENDED);
	check_log(0, "0077\n700\n");
	ck_assert_int_eq(stat(path, &st), -1);
	acknowledge();
	ck_assert_int_eq(stat(path, &st), -1);
}
END_TEST

START_TEST(a_start_is_recorded_before_the_first_rank)
{
	_cleanup_free_ char *record = path_of("7.1.0.c"),
	                    *more = str_printf("\"record\":\"%s\",\"started\":{\"uid\":5,\"slots\":[3]},",
	                                       record);

	launch_one(more, "cat $D/7.1.0.c; :");
	await(ATTEMPT_ENDED);
	free(await_lines("log0", 0));
	{
		_cleanup_free_ char *path = path_of("log0"), *text = NULL;
		struct error err = ERROR_INIT;

		ck_ok(file_read(path, 0, &text, NULL, &err), &err);
		ck_assert_ptr_nonnull(strstr(text, "\"slots\":[3]"));
	}
	acknowledge();
}
END_TEST

/* No rank is executed then, and each says why. */
START_TEST(a_start_that_cannot_be_prepared_executes_no_rank)
{
	static const char *const scripts[] = {"echo executed", "echo executed"};
	static const char *const more[] = {
	    "\"record\":\"/nonexistent/1.1.0.\",\"started\":{\"uid\":0,\"slots\":[]},",
	    "\"tmp_dir\":\"/nonexistent/tmp\",",
	    "\"directory\":\"/nonexistent\",",
	};
	static const char *const words[] = {"cannot record the start", "/nonexistent/tmp",
	                                    "cannot enter directory /nonexistent"};

	launch(more[_i], false, 2, scripts);
	await(ATTEMPT_ENDED);
	for (size_t i = 0; i < 2; i++) {
		ck_assert_int_eq(report.ranks[i].state, RANK_EXITED);
		ck_assert_int_eq(report.ranks[i].exit_status, 126);
		ck_assert_msg(strstr(report.ranks[i].error, words[_i]), "%s", report.ranks[i].error);
		ck_assert_double_ge(report.ranks[i].ended, clock_realtime() - 100);
		check_log((int)i, "");
	}
	acknowledge();
}
END_TEST

/* A failure while the count goes up is one for lack of memory. */
START_TEST(kills_for_lack_of_memory_are_seen)
{
	static const char *const scripts[] = {
	    "until [ -e $D/three ]; do sleep 0.01; done; echo 'oom_kill 3' >$D/events; exit 1",
	    "until grep -q 3 $D/events; do sleep 0.01; done; exit 0",
	    "exit 1",
	};
	_cleanup_free_ char *file = path_of("events"), *three = path_of("three"),
	                    *more = str_printf("\"oom_file\":\"%s\",", file);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(file, "oom_kill 2\n", 11, 0644, &err), &err);
	launch(more, false, 3, scripts);
	do
		ck_assert(next());
	while (report.rank_count != 3 || report.ranks[2].state != RANK_EXITED);
	ck_ok(file_write_atomic(three, "", 0, 0644, &err), &err);
	await(ATTEMPT_ENDED);
	ck_assert(report.ranks[0].oom);
	ck_assert(!report.ranks[1].oom);
	ck_assert(!report.ranks[2].oom);
	acknowledge();
}
END_TEST

/* The ranks' own processes, their session, their input, and nothing of the launcher's but the log. The shell
 * blocks signals while it waits for a process, which does not inherit that. */
START_TEST(a_rank_has_nothing_of_the_launcher)
{
	static const char start[] = "/dev/null\n0\nleader\nSigBlk:\t0000000000000000\nSigIgn:\t";
	_cleanup_free_ char *want = NULL;

	launch_one("",
	           "for i in 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$i ] && echo $i; done; readlink "
	           "/proc/$$/fd/0; ulimit -c; "
	           "set -- $(cat /proc/$$/stat); [ $6 = $$ ] && echo leader; grep SigBlk /proc/self/status; "
	           "grep SigIgn /proc/self/status; env | grep -c .; cat /proc/$$/oom_score_adj");
	await(ATTEMPT_ENDED);
	want = await_lines("log0", 7);
	ck_assert_msg(str_starts(want, start), "%s", want);
	/* The two that the C library has for itself stay as this test has got them. */
	ck_assert_msg((strtoull(want + strlen(start), NULL, 16) & ~(3ULL << 31)) == 0, "%s", want);
	ck_assert_ptr_nonnull(strstr(want, "\n0\n"));
	acknowledge();
}
END_TEST

/* The guard ends what a killed launcher has left, and then as the launcher did. */
START_TEST(a_guard_ends_as_its_launcher_does)
{
	_cleanup_free_ char *children = NULL, *text = NULL, *ranks = NULL;
	struct error err = ERROR_INIT;
	pid_t launcher, rank;
	int status;

	launch_one(
	    "",
	    "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ >$D/left; sleep 1000; :' & sleep 1000; :");
	await(ATTEMPT_RUNNING);
	rank = (pid_t)report.ranks[0].pid;
	text = await_lines("left", 1);
	children = str_printf("/proc/%d/task/%d/children", (int)child, (int)child);
	ck_ok(file_read(children, 0, &ranks, NULL, &err), &err);
	launcher = atoi(ranks);
	ck_assert_int_eq(kill(launcher, SIGKILL), 0);
	status = status_of_child();
	ck_assert(WIFSIGNALED(status));
	ck_assert_int_eq(WTERMSIG(status), SIGKILL);
	ck_assert(kill(rank, 0) < 0);
	ck_assert(kill(atoi(text), 0) < 0);
}
END_TEST

static int run_with(const char *argument, const char *more, char **said)
{
	_cleanup_free_ char *file = path_of("said");
	struct error err = ERROR_INIT;
	int status;

	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

		dup2(fd, STDOUT_FILENO);
		dup2(fd, STDERR_FILENO);
		execl("./dtrain-launch", "dtrain-launch", argument, more, NULL);
		_exit(98);
	}
	status = status_of_child();
	ck_ok(file_read(file, 0, said, NULL, &err), &err);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

START_TEST(arguments_are_checked)
{
	static const struct {
		const char *argument, *more, *words;
		int status;
	} cases[] = {
	    {"--version", NULL, "dtrain-launch " DTRAIN_VERSION "\n", 0},
	    {"--version", "x", "dtrain-launch is started by dtraind: dtrain-launch DIRECTORY\n", 2},
	    {"--help", NULL, "dtrain-launch is started by dtraind: dtrain-launch DIRECTORY\n", 2},
	    {NULL, NULL, "dtrain-launch is started by dtraind: dtrain-launch DIRECTORY\n", 2},
	    {"/nonexistent", NULL,
	     "dtrain-launch: cannot read /nonexistent/launch.json: No such file or directory\n", 1},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *said = NULL;

		ck_assert_int_eq(run_with(cases[i].argument, cases[i].more, &said), cases[i].status);
		ck_assert_str_eq(said, cases[i].words);
	}
}
END_TEST

/* Each place is named before it is looked at: where it hangs, the report names that place. */
START_TEST(a_preflight_says_what_it_looks_at)
{
	_cleanup_free_ char *request = path_of("request"), *said = NULL, *text = NULL, *want = NULL;
	struct passwd *own = getpwuid(geteuid());
	struct strbuf steps = {0};
	struct error err = ERROR_INIT;
	char *rest;
	const char *line;

	text = str_printf(
	    "{\"user\":\"%s\",\"uid\":%d,\"directory\":\"%s\",\"program\":\"true\",\"path\":\"/bin\","
	    "\"model\":\".\",\"output_dir\":\"out\",\"offload_dir\":\".\",\"log_dir\":\"/\","
	    "\"own_mounts\":false}",
	    own->pw_name, (int)geteuid(), dir);
	ck_ok(file_write_atomic(request, text, strlen(text), 0600, &err), &err);
	ck_assert_ptr_nonnull(freopen(request, "r", stdin));
	ck_assert_int_eq(run_with("--preflight", NULL, &said), 0);
	for (rest = said; (line = strsep(&rest, "\n")) && *line;) {
		_cleanup_json_ json_t *json = NULL;

		ck_ok(json_parse(line, strlen(line), "preflight", &json, &err), &err);
		if (json_object_get(json, "step"))
			strbuf_addf(&steps, "%s\n", json_get_string(json, "step", ""));
		else if (!json_object_get(json, "user"))
			strbuf_addf(&steps, "end %d\n", (int)json_get_int(json, "error", -1));
	}
	want = str_printf("user %s\nlog_dir /\ndirectory %s\nprogram true\nmodel %s/.\noutput.dir %s/out\n"
	                  "parallel.offload_dir %s/.\nend 0\n",
	                  own->pw_name, dir, dir, dir, dir);
	ck_assert_str_eq(steps.data, want);
	strbuf_free(&steps);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("launch");
	TCase *tc = tcase_create("launch");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 20);
	tcase_add_loop_test(tc, the_state_is_told_at_each_change, 0, 2);
	tcase_add_test(tc, a_stop_has_its_order);
	tcase_add_loop_test(tc, a_stop_without_a_save_signal_terminates_at_once, 0, 2);
	tcase_add_loop_test(tc, a_second_stop_can_only_bring_the_end_forward, 0, 5);
	tcase_add_test(tc, signals_have_their_range);
	tcase_add_test(tc, an_attempt_begins_once);
	tcase_add_loop_test(tc, what_a_stopped_rank_leaves_has_the_grace, 0, 3);
	tcase_add_test(tc, what_a_stopped_rank_leaves_has_no_more_than_the_grace);
	tcase_add_test(tc, what_the_ranks_leave_is_killed_before_the_end);
	tcase_add_loop_test(tc, a_launcher_that_is_told_to_end_does_so_alone, 0, 6);
	tcase_add_test(tc, a_launcher_without_a_client_ends_after_term);
	tcase_add_test(tc, the_newest_connection_counts);
	tcase_add_test(tc, the_last_words_of_a_connection_count_where_another_follows);
	tcase_add_test(tc, commands_are_lines);
	tcase_add_test(tc, a_client_may_be_slow);
	tcase_add_loop_test(tc, ranks_end_with_the_lease, 0, 3);
	tcase_add_test(tc, temporary_files_are_there_while_the_ranks_are);
	tcase_add_test(tc, a_start_is_recorded_before_the_first_rank);
	tcase_add_loop_test(tc, a_start_that_cannot_be_prepared_executes_no_rank, 0, 3);
	tcase_add_test(tc, kills_for_lack_of_memory_are_seen);
	tcase_add_test(tc, a_rank_has_nothing_of_the_launcher);
	tcase_add_test(tc, a_guard_ends_as_its_launcher_does);
	tcase_add_test(tc, arguments_are_checked);
	tcase_add_test(tc, a_preflight_says_what_it_looks_at);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
