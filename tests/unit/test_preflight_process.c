/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of preflights, and the spare one. This program is also what they execute: `test --preflight`
 * does what PREFLIGHT_ACT says. */
#include "unit.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/socket.h"
#include "base/str.h"
#include "node/launch/preflight.h"
#include "node/preflight_process.h"
#include "open_fds.h"

/* ---- the process that is started ---- */

static void put(int fd, const char *text)
{
	if (write(fd, text, strlen(text)) < 0)
		_exit(2);
}

static const char *yes(bool that)
{
	return that ? "yes" : "no";
}

/* "FILE, own session: no, own group: yes, open: 3, SIGPIPE ignored: no, SIGUSR1 blocked: no" */
static void describe(int request, int answer)
{
	struct sigaction pipe_action;
	char text[250];
	ssize_t n = pread(request, text, 100, 0);
	sigset_t blocked;

	n = MAX(n, 0);
	sigaction(SIGPIPE, NULL, &pipe_action);
	sigprocmask(SIG_SETMASK, NULL, &blocked);
	snprintf(text + n, sizeof(text) - (size_t)n,
	         ", own session: %s, own group: %s, open: %zu, SIGPIPE ignored: %s, SIGUSR1 blocked: %s",
	         yes(getsid(0) == getpid()), yes(getpgid(0) == getpid()), open_fds_count(),
	         yes(pipe_action.sa_handler == SIG_IGN), yes(sigismember(&blocked, SIGUSR1)));
	put(answer, text);
}

/* As dtrain-launch, but for the fork. */
static void wait_for_requests(void)
{
	char byte;
	int fds[2];
	size_t count = 2;

	put(STDOUT_FILENO, PREFLIGHT_READY);
	while (socket_receive(STDIN_FILENO, &byte, 1, fds, &count) > 0 && count == 2) {
		int self = pidfd_open(getpid(), 0);

		socket_send_fds(fds[1], '\n', &self, 1);
		describe(fds[0], fds[1]);
		close(self);
		close(fds[0]);
		close(fds[1]);
	}
}

static int act(const char *how)
{
	const char *starts = getenv("PREFLIGHT_STARTS");
	int fd = open(starts, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	char byte;

	dprintf(fd, "%d\n", (int)getpid());
	close(fd);
	if (str_eq(how, "single"))
		describe(STDIN_FILENO, STDOUT_FILENO);
	else if (str_eq(how, "ready"))
		wait_for_requests();
	else if (str_eq(how, "junk"))
		put(STDOUT_FILENO, "{\"ready\":1234}\n");
	if (str_eq(how, "junk") || str_eq(how, "silent"))
		while (read(STDIN_FILENO, &byte, 1) > 0)
			;
	return 0;
}

/* ---- the service ---- */

static char *dir, *launcher, *other, *starts;
static sd_event *event;
static struct preflight_spare *spare;

static void setup(void)
{
	static char text[8 << 20];
	struct error err = ERROR_INIT;
	_cleanup_close_ int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, text, sizeof(text));

	ck_assert_int_gt(n, 0);
	ck_assert_int_lt(n, sizeof(text));
	dir = unit_tmpdir();
	launcher = str_path_join(dir, "dtrain-launch");
	other = str_path_join(dir, "other");
	starts = str_path_join(dir, "starts");
	ck_ok(file_write_atomic(launcher, text, (size_t)n, 0755, &err), &err);
	ck_assert_int_eq(link(launcher, other), 0);
	setenv("PREFLIGHT_STARTS", starts, 1);
	setenv("PREFLIGHT_ACT", "ready", 1);
	ck_assert_int_ge(sd_event_new(&event), 0);
	ck_ok(preflight_spare_create(event, &spare, &err), &err);
	ck_assert(!preflight_spare_is_ready(spare));
}

static void turn(void)
{
	ck_assert_int_ge(sd_event_run(event, 50000), 0);
}

/* The loop has reaped all of them. */
static void await_no_children(void)
{
	siginfo_t info;

	while (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT | WNOHANG) == 0)
		turn();
	ck_assert_int_eq(errno, ECHILD);
}

static void teardown(void)
{
	preflight_spare_destroy(spare);
	await_no_children();
	sd_event_unref(event);
	file_remove_tree(dir, NULL);
	free(dir);
	free(launcher);
	free(other);
	free(starts);
}

/* How many processes were started, and the newest of them. */
static int count_starts(pid_t *newest)
{
	_cleanup_free_ char *text = NULL;
	int n = 0;

	if (file_read(starts, 0, &text, NULL, NULL) < 0)
		return 0;
	for (const char *p = text; *p; p = strchr(p, '\n') + 1, n++)
		if (newest)
			*newest = (pid_t)atoi(p);
	return n;
}

static pid_t await_ready(int count)
{
	pid_t pid = 0;

	while (!preflight_spare_is_ready(spare))
		turn();
	ck_assert_int_eq(count_starts(&pid), count);
	return pid;
}

/* Turns the loop until nothing happens any more; what follows after a pause comes within that. */
static void settle(void)
{
	int r;

	while ((r = sd_event_run(event, 50000)) > 0)
		;
	ck_assert_int_eq(r, 0);
}

static int make_request(const char *text)
{
	int fd = memfd_create("request", MFD_CLOEXEC);

	ck_assert_int_eq(pwrite(fd, text, strlen(text), 0), strlen(text));
	return fd;
}

/* Reads until the text has come, or the end; the caller frees it. */
static char *read_answer(struct preflight_process *process, size_t most)
{
	char *text = calloc(1, most + 1);
	struct pollfd p = {.fd = process->answer_fd, .events = POLLIN};
	size_t len = 0;
	ssize_t n;

	do {
		n = preflight_process_read(process, text + len, most - len);
		if (n == -EAGAIN)
			ck_assert_int_eq(poll(&p, 1, -1), 1);
		else
			len += (size_t)MAX(n, 0);
	} while (len < most && (n > 0 || n == -EAGAIN));
	return text;
}

START_TEST(a_process_is_started_for_a_request)
{
	static const char want[] = "hello, own session: no, own group: yes, open: 3, SIGPIPE ignored: no, "
	                           "SIGUSR1 blocked: no";
	_cleanup_close_ int fd = make_request("hello"), open_there = dup(fd);
	_cleanup_free_ char *text = NULL;
	struct preflight_process process;
	struct error err = ERROR_INIT;

	sigset_t set;

	/* As in a service: nothing of that is for programs of others. */
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	setenv("PREFLIGHT_ACT", "single", 1);
	ck_ok(preflight_process_start(event, launcher, fd, &process, &err), &err);
	ck_assert_int_ge(process.pidfd, 0);
	text = read_answer(&process, 200);
	ck_assert_str_eq(text, want);
	await_no_children();
	ck_assert_int_ge(open_there, 0);
	ck_assert_int_ge(fcntl(fd, F_GETFD), 0);
	preflight_process_kill(&process);
	ck_assert(process.answer_fd == -1 && process.pidfd == -1);
	preflight_process_kill(&process);
	ck_assert_int_eq(preflight_process_start(event, "/nonexistent", fd, &process, &err), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err.message, "cannot start /nonexistent"));
}
END_TEST

START_TEST(a_process_is_killed)
{
	struct preflight_process process;
	struct error err = ERROR_INIT;
	size_t before = 0;
	int pipes[2];

	/* It would read from its standard input for ever. */
	ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
	setenv("PREFLIGHT_ACT", "silent", 1);
	for (int i = 1; i <= 4; i++) {
		ck_ok(preflight_process_start(event, launcher, pipes[0], &process, &err), &err);
		while (count_starts(NULL) < i)
			turn();
		preflight_process_kill(&process);
		await_no_children();
		/* Nothing stays open; the event loop has its own after the first. */
		if (i == 1)
			before = open_fds_count();
		ck_assert_uint_eq(open_fds_count(), before);
	}
	close(pipes[0]);
	close(pipes[1]);
}
END_TEST

/* ---- the spare ---- */

/* The answer of a process that was taken. */
static void check_taken(const char *program, const char *request)
{
	_cleanup_close_ int fd = make_request(request);
	_cleanup_free_ char *first = NULL, *text = NULL;
	struct preflight_process process;

	ck_assert(preflight_spare_take(spare, program, fd, &process));
	ck_assert_int_eq(process.pidfd, -1);
	first = read_answer(&process, 1);
	ck_assert_str_eq(first, "\n");
	ck_assert_int_ge(process.pidfd, 0);
	text = read_answer(&process, 200);
	ck_assert_msg(str_starts(text, request) && text[strlen(request)] == ',', "%s", text);
	close(process.pidfd);
	process.pidfd = -1; /* it is that of the spare here, which has not forked */
	preflight_process_kill(&process);
}

static void check_not_taken(const char *program)
{
	_cleanup_close_ int fd = make_request("hello");
	struct preflight_process process;

	ck_assert(!preflight_spare_take(spare, program, fd, &process));
	ck_assert(!preflight_spare_is_ready(spare));
}

START_TEST(a_spare_is_started_once)
{
	check_not_taken(launcher); /* there is none yet */
	for (int i = 0; i < 2; i++)
		preflight_spare_prepare(spare, launcher);
	await_ready(1);
	preflight_spare_prepare(spare, launcher);
	settle();
	await_ready(1);
	check_taken(launcher, "hello");
	check_taken(launcher, "again");
	await_ready(1);
}
END_TEST

START_TEST(a_spare_that_ends_is_replaced)
{
	pid_t pid;

	preflight_spare_prepare(spare, launcher);
	pid = await_ready(1);
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	while (preflight_spare_is_ready(spare))
		turn();
	await_ready(2);
	check_taken(launcher, "hello");
	/* What was asked for is dropped where it does not answer. */
	preflight_spare_drop(spare);
	ck_assert(!preflight_spare_is_ready(spare));
	settle();
	ck_assert_int_eq(count_starts(NULL), 2);
	preflight_spare_prepare(spare, launcher);
	await_ready(3);
	check_taken(launcher, "hello");
}
END_TEST

/* It would be no better the next time; with the next start it is tried again. */
START_TEST(a_spare_that_never_was_ready_is_not_replaced)
{
	static const char *const acts[] = {"end", "junk"};

	setenv("PREFLIGHT_ACT", acts[_i], 1);
	preflight_spare_prepare(spare, launcher);
	while (count_starts(NULL) < 1)
		turn();
	await_no_children();
	settle();
	ck_assert_int_eq(count_starts(NULL), 1);
	check_not_taken(launcher);
	setenv("PREFLIGHT_ACT", "ready", 1);
	preflight_spare_prepare(spare, launcher);
	await_ready(2);
}
END_TEST

START_TEST(a_spare_is_of_its_program)
{
	const struct timespec times[2] = {{1000, 0}, {1000, 0}}, later[2] = {{1000, 0}, {1000, 7}};

	ck_assert_int_eq(utimensat(AT_FDCWD, launcher, times, 0), 0);
	preflight_spare_prepare(spare, launcher);
	await_ready(1);
	check_taken(launcher, "hello");
	check_not_taken(other);
	preflight_spare_prepare(spare, other);
	await_ready(2);
	check_taken(other, "hello");
	/* One of another program is ended by the preparation of this one. */
	preflight_spare_prepare(spare, launcher);
	await_ready(3);
	/* An upgrade: another file of this name, or the same one with other content. */
	ck_assert_int_eq(utimensat(AT_FDCWD, launcher, later, 0), 0);
	check_not_taken(launcher);
	preflight_spare_prepare(spare, launcher);
	await_ready(4);
	ck_assert_int_eq(unlink(launcher), 0);
	check_not_taken(launcher);
	ck_assert_int_eq(symlink("/bin/true", launcher), 0);
	check_not_taken(launcher);
}
END_TEST

/* Its end may not have been noticed yet. */
START_TEST(a_spare_that_is_dead_is_not_taken)
{
	siginfo_t info;
	pid_t pid;

	preflight_spare_prepare(spare, launcher);
	pid = await_ready(1);
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	check_not_taken(launcher);
	preflight_spare_prepare(spare, launcher);
	await_ready(2);
}
END_TEST

START_TEST(a_program_that_is_not_there_is_not_started)
{
	preflight_spare_prepare(spare, "/nonexistent");
	settle();
	check_not_taken("/nonexistent");
	preflight_spare_prepare(spare, launcher);
	await_ready(1);
	check_taken(launcher, "hello");
	preflight_spare_destroy(NULL);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *suite;
	TCase *tc;

	if (argc == 2 && str_eq(argv[1], "--preflight"))
		return act(getenv("PREFLIGHT_ACT"));
	suite = suite_create("preflight_process");
	tc = tcase_create("preflight_process");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, a_process_is_started_for_a_request);
	tcase_add_test(tc, a_process_is_killed);
	tcase_add_test(tc, a_spare_is_started_once);
	tcase_add_test(tc, a_spare_that_ends_is_replaced);
	tcase_add_loop_test(tc, a_spare_that_never_was_ready_is_not_replaced, 0, 2);
	tcase_add_test(tc, a_spare_is_of_its_program);
	tcase_add_test(tc, a_spare_that_is_dead_is_not_taken);
	tcase_add_test(tc, a_program_that_is_not_there_is_not_started);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
