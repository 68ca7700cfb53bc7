/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all Check programs: the runner, and a temporary directory. */
#pragma once

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

/* Check's own macro also writes a record to a file for each assertion that holds; with millions of them, a
 * number each, that took most of a test's time. Of a test that crashes or hangs Check therefore names only
 * where it begins, unless it calls mark_point(). All other assertions of Check are made of this one. */
#undef ck_assert_msg
#define ck_assert_msg(expr, ...)                                                                             \
	((expr) ? (void)0                                                                                    \
	        : _ck_assert_failed(__FILE__, __LINE__, "Assertion '" #expr "' failed", ##__VA_ARGS__))

/* Fails the test with the message of the error. */
#define ck_ok(expr, err)                                                                                     \
	do {                                                                                                 \
		int ck_r_ = (expr);                                                                          \
		ck_assert_msg(ck_r_ >= 0, "%s: %s", #expr, (err)->message);                                  \
	} while (0)

/* The call has to fail with a message that contains `words`. */
#define ck_fails(expr, err, words)                                                                           \
	do {                                                                                                 \
		int ck_r_ = (expr);                                                                          \
		ck_assert_msg(ck_r_ < 0, "%s: should have failed", #expr);                                   \
		ck_assert_msg(strstr((err)->message, (words)), "%s: \"%s\" lacks \"%s\"", #expr,             \
		              (err)->message, (words));                                                      \
	} while (0)

/* Check's limits are there to end a test that hangs. On a machine that has more to do than its processors can
 * a test takes several times as long as by itself, and is no worse for it: all limits are five times what the
 * tests set. Check reads this when a test case is made. */
__attribute__((constructor)) static void unit_extend_limits(void)
{
	setenv("CK_TIMEOUT_MULTIPLIER", "5", 0);
}

static inline int unit_run_here(Suite *suite)
{
	SRunner *runner = srunner_create(suite);
	int failed;

	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Sends SIGKILL to all children of this process. */
static inline void unit_kill_children(void)
{
	FILE *children = fopen("/proc/thread-self/children", "re");
	int pid;

	while (children && fscanf(children, "%d", &pid) == 1)
		kill(pid, SIGKILL);
	if (children)
		fclose(children);
}

/* Runs the suite, in a process of its own whose parent takes over what its tests leave running. A test that
 * fails does not come to its teardown, and what has a session of its own would outlive it, and hold the
 * output of the test open: the parent ends it. CK_FORK=no, for a debugger, runs all in this process. The exit
 * status of main(). */
static inline int unit_run(Suite *suite)
{
	const char *mode = getenv("CK_FORK");
	bool running = true;
	pid_t runner, ended;
	int status = -1, one;

	if (mode && !strcmp(mode, "no"))
		return unit_run_here(suite);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	fflush(NULL);
	runner = fork();
	if (runner < 0)
		abort();
	if (runner == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* The rest of main() is the parent's: it may run other suites. */
		exit(unit_run_here(suite));
	}
	/* What is killed may leave children of its own, which then are children of this process. */
	while ((ended = wait(&one)) > 0 || errno == EINTR) {
		if (ended == runner) {
			running = false;
			status = one;
		}
		if (!running)
			unit_kill_children();
	}
	srunner_free(srunner_create(suite)); /* frees the suite */
	return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

/* A fresh directory under TMPDIR; owned by the caller, who removes it with file_remove_tree. */
static inline char *unit_tmpdir(void)
{
	const char *base = getenv("TMPDIR");
	char *path = NULL;

	if (asprintf(&path, "%s/dtrain-unit-XXXXXX", base ? base : "/tmp") < 0 || !mkdtemp(path))
		abort();
	return path;
}
