/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that no process of a test that fails, crashes or hangs outlives the test program (unit_run). */
#include "unit.h"

#include "base/str.h"

static char *dir;

/* Starts a process in a session of its own, as a launcher is, whose parent ends; *dir/pid has its number. */
static void leave_process(void)
{
	_cleanup_free_ char *path = str_path_join(getenv("LEFTOVERS"), "pid"), *text = NULL;
	_cleanup_free_ char *command = str_printf("setsid sh -c 'echo $$ > %s.new && mv %s.new %s; "
	                                          "trap \"\" TERM; sleep 1000 & wait' </dev/null &",
	                                          path, path, path);

	ck_assert_int_eq(system(command), 0);
	while (file_read(path, 0, &text, NULL, NULL) < 0)
		usleep(1000);
}

START_TEST(fails)
{
	leave_process();
	ck_abort_msg("fails by intent");
}
END_TEST

START_TEST(crashes)
{
	leave_process();
	abort();
}
END_TEST

START_TEST(hangs)
{
	leave_process();
	pause();
}
END_TEST

START_TEST(counts)
{
	_cleanup_free_ char *path = str_path_join(getenv("LEFTOVERS"), "count");
	FILE *f = fopen(path, "ae");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fprintf(f, "x"), 1);
	ck_assert_int_eq(fclose(f), 0);
}
END_TEST

static int run_inner(const char *name)
{
	static const struct {
		const char *name;
		const TTest *const *test;
		double timeout;
		int suites;
	} kinds[] = {{"fails", &fails, 60, 1},
	             {"crashes", &crashes, 60, 1},
	             {"hangs", &hangs, 4, 1},
	             {"counts", &counts, 60, 3}};
	int status = EXIT_FAILURE;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (!str_eq(name, kinds[i].name))
			continue;
		for (int n = 0; n < kinds[i].suites; n++) {
			Suite *s = suite_create("inner");
			TCase *tc = tcase_create("inner");

			tcase_add_test(tc, *kinds[i].test);
			tcase_set_timeout(tc, kinds[i].timeout);
			suite_add_tcase(s, tc);
			status = unit_run(s);
		}
	}
	return status;
}

static const char *const inner[] = {"fails", "crashes", "hangs"};

START_TEST(nothing_outlives_the_program)
{
	_cleanup_free_ char *path = NULL, *text = NULL;
	/* The output goes through a pipe: what holds it open would hold up who reads it. */
	_cleanup_free_ char *command = str_printf("CK_FORK=yes LEFTOVERS=%s /proc/%d/exe %s | cat >/dev/null",
	                                          dir, (int)getpid(), inner[_i]);
	struct error err = ERROR_INIT;

	ck_assert_int_eq(system(command), 0);
	path = str_path_join(dir, "pid");
	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	ck_assert_msg(kill(atoi(text), 0) < 0 && errno == ESRCH, "process %s is still there", text);
}
END_TEST

START_TEST(a_failure_is_the_exit_status)
{
	_cleanup_free_ char *command =
	    str_printf("CK_FORK=yes LEFTOVERS=%s /proc/%d/exe fails >/dev/null", dir, (int)getpid());
	int status = system(command);

	ck_assert_int_eq(WEXITSTATUS(status), EXIT_FAILURE);
}
END_TEST

/* The process of a suite does not go on with the rest of main(). */
START_TEST(each_suite_is_run_once)
{
	_cleanup_free_ char *path = str_path_join(dir, "count"), *text = NULL;
	_cleanup_free_ char *command =
	    str_printf("CK_FORK=yes LEFTOVERS=%s /proc/%d/exe counts >/dev/null", dir, (int)getpid());
	struct error err = ERROR_INIT;

	ck_assert_int_eq(system(command), 0);
	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, "xxx");
}
END_TEST

static void setup(void)
{
	dir = unit_tmpdir();
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

int main(int argc, char **argv)
{
	Suite *s;
	TCase *tc;

	if (argc > 1)
		return run_inner(argv[1]);
	s = suite_create("leftovers");
	tc = tcase_create("leftovers");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, nothing_outlives_the_program, 0, 3);
	tcase_add_test(tc, a_failure_is_the_exit_status);
	tcase_add_test(tc, each_suite_is_run_once);
	tcase_set_timeout(tc, 120);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
