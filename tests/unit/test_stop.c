/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that ask a worker to stop: at once before the first step, and between two steps afterwards. */
#include "worker/stop.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "unit.h"

/* The exit status of a child that does this, and what it writes to stdout. */
static int status_of(void (*body)(void), char text[64])
{
	int ends[2], status;
	ssize_t n;
	pid_t pid;

	ck_assert_int_eq(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDOUT_FILENO);
		stop_init();
		body();
		_exit(0);
	}
	close(ends[1]);
	n = read(ends[0], text, 63);
	text[n > 0 ? n : 0] = '\0';
	close(ends[0]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void interrupt(void)
{
	raise(SIGINT);
}

static void terminate(void)
{
	raise(SIGTERM);
}

static void terminate_later(void)
{
	if (stop_requested(NULL) || stop_signal() != 0 || stop_exit_status() != 128 + SIGTERM)
		_exit(1);
	stop_defer(true);
	raise(SIGINT);
	if (!stop_requested(NULL) || stop_signal() != SIGINT || stop_exit_status() != 128 + SIGINT)
		_exit(2);
	stop_defer(true);
	stop_defer(false);
	_exit(3);
}

/* One that comes just before it is to end the process at once. */
static void was_deferred(void)
{
	stop_defer(true);
	raise(SIGTERM);
	stop_defer(false);
	_exit(3);
}

/* The log is full: the exit status alone says it. */
static void terminate_without_output(void)
{
	int full = open("/dev/full", O_WRONLY | O_CLOEXEC);

	if (full < 0 || dup2(full, STDOUT_FILENO) < 0)
		_exit(1);
	raise(SIGTERM);
	_exit(3);
}

static void defer_no_more(void)
{
	stop_defer(true);
	stop_defer(false); /* no signal has come */
	raise(SIGTERM);
	_exit(3);
}

/* Whoever reads the output is gone; a file may not grow. */
static void write_on(void)
{
	struct rlimit none = {0, 0};
	int ends[2], file = open(".", O_TMPFILE | O_RDWR, 0600);

	if (pipe(ends) < 0 || close(ends[0]) < 0 || write(ends[1], "", 1) != -1 || errno != EPIPE)
		_exit(1);
	if (file < 0 || setrlimit(RLIMIT_FSIZE, &none) < 0 || write(file, "", 1) != -1 || errno != EFBIG)
		_exit(2);
}

START_TEST(a_signal_ends_or_waits)
{
	char text[64];

	ck_assert_int_eq(status_of(interrupt, text), 128 + SIGINT);
	ck_assert_str_eq(text, "stopped before the first step\n");
	ck_assert_int_eq(status_of(terminate, text), 128 + SIGTERM);
	ck_assert_str_eq(text, "stopped before the first step\n");
	ck_assert_int_eq(status_of(terminate_later, text), 128 + SIGINT);
	ck_assert_str_eq(text, "");
	ck_assert_int_eq(status_of(was_deferred, text), 128 + SIGTERM);
	ck_assert_str_eq(text, "");
	ck_assert_int_eq(status_of(terminate_without_output, text), 128 + SIGTERM);
	ck_assert_str_eq(text, "");
	ck_assert_int_eq(status_of(defer_no_more, text), 128 + SIGTERM);
	ck_assert_str_eq(text, "stopped before the first step\n");
}
END_TEST

START_TEST(what_cannot_be_written_is_an_error)
{
	char text[64];
	char *dir = unit_tmpdir();

	ck_assert_int_eq(chdir(dir), 0);
	ck_assert_int_eq(status_of(write_on, text), 0);
	ck_assert_int_eq(chdir("/"), 0);
	ck_assert_int_eq(rmdir(dir), 0);
	free(dir);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("stop");
	TCase *t = tcase_create("stop");

	tcase_add_test(t, a_signal_ends_or_waits);
	tcase_add_test(t, what_cannot_be_written_is_an_error);
	suite_add_tcase(suite, t);
	return unit_run(suite);
}
