/* SPDX-License-Identifier: Apache-2.0 */
/* A directory has one service, whatever other users do with the lock file. */
#include "dtraind/lock.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/str.h"

static bool without_modes; /* a file system on which all may open all files */

int __real_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st)
{
	int r = __real_fstat(fd, st);

	if (without_modes)
		st->st_mode |= 0777;
	return r;
}

struct place {
	char *dir, *path;
};

static struct place place; /* Check's fixtures have no other place */

static void setup(void)
{
	place.dir = unit_tmpdir();
	place.path = str_path_join(place.dir, "dtraind.lock");
}

static void teardown(void)
{
	file_remove_tree(place.dir, NULL);
	free(place.dir);
	free(place.path);
}

/* The file of an earlier version, and a descriptor that any user could have opened. */
static int open_file_of_all(const char *content)
{
	int fd = open(place.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fchmod(fd, 0644), 0);
	ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
	close(fd);
	fd = open(place.path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	return fd;
}

/* A process of this user with another name: its number as the content of a lock file. It ends with the
 * test. */
static char *start_other_program(void)
{
	int pipes[2];
	pid_t pid;
	char c;

	ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_NAME, "other");
		close(pipes[0]);
		close(pipes[1]);
		for (;;)
			pause();
	}
	close(pipes[1]);
	ck_assert_int_eq(read(pipes[0], &c, 1), 0); /* it has its name */
	close(pipes[0]);
	return str_printf("%ld\n", (long)pid);
}

static void check_private(void)
{
	struct stat st;

	ck_assert_int_eq(stat(place.path, &st), 0);
	ck_assert_int_eq(st.st_mode & 07777, 0600);
	ck_assert_int_eq(st.st_uid, geteuid());
}

START_TEST(the_second_is_refused)
{
	struct error err = ERROR_INIT;
	int fd, other;

	ck_ok(lock_take("state_dir", place.dir, &fd, &err), &err);
	check_private();
	ck_assert_int_eq(lock_take("state_dir", place.dir, &other, &err), -EBUSY);
	ck_assert_ptr_nonnull(strstr(err.message, "another dtraind, process "));
	close(fd);
	ck_ok(lock_take("state_dir", place.dir, &fd, &err), &err);
	close(fd);
}
END_TEST

START_TEST(another_user_keeps_nobody_from_starting)
{
	_cleanup_free_ char *program = start_other_program();
	int stranger = open_file_of_all(program), fd, other;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(flock(stranger, LOCK_EX | LOCK_NB), 0);
	ck_ok(lock_take("state_dir", place.dir, &fd, &err), &err);
	check_private();
	ck_assert_int_eq(lock_take("state_dir", place.dir, &other, &err), -EBUSY);
	close(fd);
	/* Nor a user who opened it before and locks it later. */
	close(stranger);
	unlink(place.path);
	stranger = open_file_of_all("");
	ck_ok(lock_take("state_dir", place.dir, &fd, &err), &err);
	close(fd);
	ck_assert_int_eq(flock(stranger, LOCK_EX | LOCK_NB), 0);
	ck_ok(lock_take("state_dir", place.dir, &fd, &err), &err);
	check_private();
	close(fd);
	close(stranger);
}
END_TEST

START_TEST(an_earlier_version_keeps_its_lock)
{
	_cleanup_free_ char *pid = str_printf("%ld\n", (long)getpid());
	int service = open_file_of_all(pid), fd;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(flock(service, LOCK_EX | LOCK_NB), 0);
	ck_assert_int_eq(lock_take("state_dir", place.dir, &fd, &err), -EBUSY);
	ck_assert_ptr_nonnull(strstr(err.message, str_strip(pid)));
	close(service);
	ck_ok(lock_take("state_dir", place.dir, &fd, &err), &err);
	check_private();
	close(fd);
}
END_TEST

/* What others may lock there cannot be helped: two services still exclude each other. */
START_TEST(a_file_system_may_have_no_modes)
{
	struct error err = ERROR_INIT;
	int fd, other;

	without_modes = true;
	ck_ok(lock_take("state_dir", place.dir, &fd, &err), &err);
	ck_assert_int_eq(lock_take("state_dir", place.dir, &other, &err), -EBUSY);
	close(fd);
	ck_ok(lock_take("state_dir", place.dir, &fd, &err), &err);
	close(fd);
}
END_TEST

/* Takes the lock once all have started, and reports the result; holds it until all have reported. */
static void starter(int begin, int results, int end)
{
	struct error err = ERROR_INIT;
	char c;
	int fd;

	if (read(begin, &c, 1) != 0)
		_exit(1);
	c = lock_take("state_dir", place.dir, &fd, &err) == 0 ? 'y' : err.code == -EBUSY ? 'n' : '?';
	if (write(results, &c, 1) != 1)
		_exit(1);
	_exit(read(end, &c, 1) == 0 ? 0 : 1);
}

START_TEST(of_many_at_once_one_gets_it)
{
	enum { ROUNDS = 50, STARTERS = 8 };
	_cleanup_free_ char *program = start_other_program();

	for (int round = 0; round < ROUNDS; round++) {
		int stranger = open_file_of_all(program), begin[2], results[2], end[2], got = 0;
		char c;

		ck_assert_int_eq(flock(stranger, LOCK_EX | LOCK_NB), 0);
		ck_assert(pipe2(begin, O_CLOEXEC) == 0 && pipe2(results, O_CLOEXEC) == 0 &&
		          pipe2(end, O_CLOEXEC) == 0);
		for (int i = 0; i < STARTERS; i++) {
			pid_t pid = fork();

			ck_assert_int_ge(pid, 0);
			if (pid == 0) {
				close(begin[1]);
				close(end[1]);
				starter(begin[0], results[1], end[0]);
			}
		}
		close(begin[1]);
		for (int i = 0; i < STARTERS; i++) {
			ck_assert_int_eq(read(results[0], &c, 1), 1);
			ck_assert_int_ne(c, '?');
			got += c == 'y';
		}
		ck_assert_int_eq(got, 1);
		close(end[1]);
		for (int i = 0, status; i < STARTERS; i++)
			ck_assert(wait(&status) > 0 && status == 0);
		check_private();
		close(stranger);
		unlink(place.path);
		close(begin[0]);
		close(end[0]);
		close(results[0]);
		close(results[1]);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("lock");
	TCase *tc = tcase_create("lock");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, the_second_is_refused);
	tcase_add_test(tc, another_user_keeps_nobody_from_starting);
	tcase_add_test(tc, an_earlier_version_keeps_its_lock);
	tcase_add_test(tc, a_file_system_may_have_no_modes);
	tcase_add_test(tc, of_many_at_once_one_gets_it);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
