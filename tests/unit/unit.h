/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all Check programs: the runner, and a temporary directory. */
#pragma once

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Runs the suites without forking under a sanitizer or debugger (CK_FORK=no), prints Check's closing line. */
static inline int unit_run(Suite *suite)
{
	SRunner *runner = srunner_create(suite);
	int failed;

	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
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
