/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that load the other processors while one measures: that they are ready, and that one that fails
 * or ends is noticed. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/load_processes.h"

/* Of both kinds of call, so many succeed, and one fails. */
static int pipes_left = -1, forks_left = -1;

int __real_pipe(int ends[2]);
int __wrap_pipe(int ends[2]);
int __wrap_pipe(int ends[2])
{
	errno = EMFILE;
	return pipes_left >= 0 && pipes_left-- == 0 ? -1 : __real_pipe(ends);
}

pid_t __real_fork(void);
pid_t __wrap_fork(void);
pid_t __wrap_fork(void)
{
	errno = EAGAIN;
	return forks_left >= 0 && forks_left-- == 0 ? -1 : __real_fork();
}

static int lasts(int ready, struct error *err)
{
	load_ready(ready);
	pause(); /* until it is killed */
	return 0;
}

static int fails(int ready, struct error *err)
{
	return error_set(err, -ENODEV, "no such device");
}

static int is_killed(int ready, struct error *err)
{
	raise(SIGKILL);
	return 0;
}

static int ends(int ready, struct error *err)
{
	load_ready(ready);
	return 0;
}

START_TEST(one_that_fails_is_named)
{
	static const struct {
		load_fn *run;
		const char *words;
	} cases[] = {
	    {fails, "a process that loads another processor: no such device"},
	    {is_killed, "was ended by signal 9"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct error err = ERROR_INIT;
		struct load_processes l;

		ck_ok(load_processes_create(&l, 3, cases[i].run, &err), &err);
		ck_fails(load_processes_start(&l, &err), &err, cases[i].words);
		load_processes_end(&l);
		ck_assert_int_eq(waitpid(-1, NULL, 0), -1);
	}
}
END_TEST

START_TEST(one_that_ends_is_noticed)
{
	struct error err = ERROR_INIT;
	struct load_processes l;

	ck_ok(load_processes_create(&l, 2, ends, &err), &err);
	ck_ok(load_processes_start(&l, &err), &err);
	while (load_processes_check(&l, &err) == 0)
		sched_yield();
	ck_fails(err.code, &err, "has ended");
	load_processes_end(&l);
	ck_assert_int_eq(waitpid(-1, NULL, 0), -1);
}
END_TEST

static int open_files(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

START_TEST(nothing_stays_open)
{
	int before = open_files();

	for (int i = 0; i < 2; i++) {
		struct error err = ERROR_INIT;
		struct load_processes l;

		ck_ok(load_processes_create(&l, i ? 3 : 0, lasts, &err), &err);
		ck_ok(load_processes_start(&l, &err), &err);
		load_processes_end(&l);
		ck_assert_int_eq(open_files(), before);
	}
}
END_TEST

START_TEST(they_last_until_they_are_ended)
{
	struct error err = ERROR_INIT;
	struct load_processes l;

	ck_ok(load_processes_create(&l, 3, lasts, &err), &err);
	ck_ok(load_processes_start(&l, &err), &err);
	ck_ok(load_processes_check(&l, &err), &err);
	load_processes_end(&l);
	load_processes_end(&l);
	ck_assert_int_eq(waitpid(-1, NULL, 0), -1);
	ck_ok(load_processes_create(&l, 0, lasts, &err), &err);
	ck_ok(load_processes_start(&l, &err), &err);
	ck_ok(load_processes_check(&l, &err), &err);
	load_processes_end(&l);
}
END_TEST

/* What there is by then is ended. */
START_TEST(where_one_cannot_be_started_there_is_none)
{
	int before = open_files();

	/* The pipe that starts them, and one of each. */
	for (int n = 0; n < 4; n++) {
		struct error err = ERROR_INIT;
		struct load_processes l;

		pipes_left = n;
		ck_assert_int_eq(load_processes_create(&l, 3, lasts, &err), -EMFILE);
		ck_assert_str_eq(err.message, "cannot make a pipe: Too many open files");
		ck_assert_int_eq(l.n, n > 0 ? n - 1 : 0);
		load_processes_end(&l);
		ck_assert_int_eq(open_files(), before);
		ck_assert_int_eq(waitpid(-1, NULL, 0), -1);
	}
	pipes_left = -1;
	for (int n = 0; n < 3; n++) {
		struct error err = ERROR_INIT;
		struct load_processes l;

		forks_left = n;
		ck_assert_int_eq(load_processes_create(&l, 3, lasts, &err), -EAGAIN);
		ck_assert_str_eq(err.message, "cannot fork: Resource temporarily unavailable");
		ck_assert_int_eq(l.n, n);
		load_processes_end(&l);
		ck_assert_int_eq(open_files(), before);
		ck_assert_int_eq(waitpid(-1, NULL, 0), -1);
	}
	forks_left = -1;
}
END_TEST

int main(void)
{
	Suite *s = suite_create("load_processes");
	TCase *tc = tcase_create("load_processes");

	tcase_add_test(tc, one_that_fails_is_named);
	tcase_add_test(tc, one_that_ends_is_noticed);
	tcase_add_test(tc, nothing_stays_open);
	tcase_add_test(tc, they_last_until_they_are_ended);
	tcase_add_test(tc, where_one_cannot_be_started_there_is_none);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
