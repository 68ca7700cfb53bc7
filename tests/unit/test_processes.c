/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of an attempt is found by the directory that it was started with, and what it has started with
 * it. */
#include "unit.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "node/launch/processes.h"

static char *dir;

static void setup(void)
{
	dir = unit_tmpdir();
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

enum { OTHER = 70001 }; /* a user */

/* What this program is when it is executed as `dtrain-launch DIR`: the guard, or the launcher, which has a
 * rank; or one of another user. */
static void __attribute__((noreturn)) act(char **argv, const char *role)
{
	pid_t child;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (str_eq(role, "guard")) {
		setsid();
		setenv("PROCESS_ROLE", "launcher", 1);
	}
	if (str_eq(role, "other") && (setresuid(OTHER, OTHER, OTHER) < 0 || prctl(PR_SET_DUMPABLE, 1) < 0))
		_exit(2);
	child = str_eq(role, "alone") || str_eq(role, "other") ? 1 : fork();
	if (child == 0 && str_eq(role, "guard"))
		execv("/proc/self/exe", argv);
	else if (child == 0)
		execl("/bin/sleep", "sleep", "1000", NULL);
	for (;;)
		pause();
}

/* name, directory, more: the command line. */
static pid_t execute(const char *role, const char *name, const char *directory, const char *more)
{
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid > 0)
		return pid;
	setenv("PROCESS_ROLE", role, 1);
	execl("/proc/self/exe", name, directory, more, NULL);
	_exit(3);
}

/* Of an attempt whose directory was removed. */
START_TEST(a_launcher_is_found_by_its_directory)
{
	_cleanup_free_ char *longer = str_printf("%s0", dir);
	pid_t others[] = {execute("alone", "dtrain-launch", longer, NULL),
	                  execute("alone", "dtrain-launch", dir, "more"),
	                  execute("alone", "dtrain-launc", longer, NULL),
	                  geteuid() == 0 ? execute("other", "dtrain-launch", dir, NULL) : 0},
	      guard = execute("guard", "dtrain-launch", dir, NULL);
	struct stat st;

	if (others[3]) {
		_cleanup_free_ char *path = str_printf("/proc/%d", (int)others[3]);

		do
			ck_assert_int_eq(stat(path, &st), 0);
		while (st.st_uid != OTHER);
	}
	while (processes_signal_launcher(longer, 0) < 1)
		usleep(1000);
	/* Before it executes another program, the launcher's child looks like a third one. */
	while (processes_signal_descendants(guard, 0, NULL) != 2 || processes_signal_launcher(dir, 0) != 2)
		usleep(1000);
	ck_assert_int_eq(processes_signal_launcher(dir, 0), 2);
	ck_assert_int_eq(processes_signal_descendants(guard, 0, NULL), 2);
	/* What it has started first, itself when that is gone, and the guard, which leads the session, never.
	 */
	ck_assert_int_eq(processes_signal_launcher(dir, SIGKILL), 2);
	while (processes_signal_descendants(guard, 0, NULL) > 1)
		usleep(1000);
	ck_assert_int_eq(processes_signal_launcher(dir, 0), 2);
	while (processes_signal_launcher(dir, SIGKILL) > 1)
		usleep(1000);
	ck_assert_int_eq(processes_signal_descendants(guard, 0, NULL), 0);
	ck_assert_int_eq(waitpid(guard, NULL, WNOHANG), 0);
	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		if (!others[i])
			continue;
		ck_assert_int_eq(waitpid(others[i], NULL, WNOHANG), 0);
		kill(others[i], SIGKILL);
	}
	kill(guard, SIGKILL);
	while (waitpid(-1, NULL, 0) > 0)
		;
	ck_assert_int_eq(processes_signal_launcher(dir, 0), 0);
}
END_TEST

int main(int argc, char **argv)
{
	const char *role = getenv("PROCESS_ROLE");
	Suite *suite;
	TCase *tc;

	if (role)
		act(argv, role);
	suite = suite_create("processes");
	tc = tcase_create("processes");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 20);
	tcase_add_test(tc, a_launcher_is_found_by_its_directory);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
