/* SPDX-License-Identifier: Apache-2.0 */
/* The directory for temporary files of an attempt: an empty one serves the next attempt of the same user. */
#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "base/file.h"
#include "base/str.h"
#include "node/launch/tmp_dir.h"
#include "unit.h"

static char *dir;
static uid_t uid;
static gid_t gid;

static void setup(void)
{
	dir = unit_tmpdir();
	uid = geteuid() == 0 ? 1234 : geteuid();
	gid = geteuid() == 0 ? 4321 : getegid();
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

static char *path_of(const char *name)
{
	return str_path_join(dir, name);
}

static struct stat status_of(const char *path)
{
	struct stat st;

	ck_assert_msg(lstat(path, &st) == 0, "%s", path);
	return st;
}

static void make(const char *path, uid_t user)
{
	struct error err = ERROR_INIT;
	struct stat st;

	ck_ok(tmp_dir_make(path, user, gid, &err), &err);
	st = status_of(path);
	ck_assert(S_ISDIR(st.st_mode));
	ck_assert_int_eq(st.st_mode & 07777, 0700);
	ck_assert_uint_eq(st.st_uid, user);
	if (geteuid() == 0)
		ck_assert_uint_eq(st.st_gid, gid);
}

/* And waits for the process that removes it, where there is one. */
static void take_away(const char *path)
{
	pid_t pid = tmp_dir_remove(path, uid);
	int status;

	if (pid > 0) {
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert_int_eq(status, 0);
	}
	ck_assert(!file_exists(path));
}

START_TEST(an_empty_directory_serves_the_next_attempt)
{
	_cleanup_free_ char *first = path_of("1.1"), *second = path_of("2.1"), *spare = NULL;
	struct stat st, kept;

	spare = str_printf("%s/.spare-%u", dir, (unsigned)uid);
	make(first, uid);
	st = status_of(first);
	/* What the user may have done with it. */
	ck_assert_int_eq(chmod(first, 0777), 0);
	take_away(first);
	kept = status_of(spare);
	ck_assert_uint_eq(kept.st_ino, st.st_ino);
	/* Nothing is put into it meanwhile. */
	ck_assert_uint_eq(kept.st_uid, geteuid());
	ck_assert_int_eq(kept.st_mode & 07777, 0700);
	make(second, uid);
	ck_assert(!file_exists(spare));
	ck_assert_uint_eq(status_of(second).st_ino, st.st_ino);
}
END_TEST

START_TEST(another_user_gets_another_directory)
{
	_cleanup_free_ char *first = path_of("1.1"), *second = path_of("2.1"), *spare = NULL;

	if (geteuid() != 0)
		return; /* directories cannot be given away */
	make(first, uid);
	take_away(first);
	make(second, uid + 1);
	spare = str_printf("%s/.spare-%u", dir, (unsigned)uid);
	ck_assert(file_exists(spare));
}
END_TEST

static void leave_file(const char *path)
{
	_cleanup_free_ char *file = str_path_join(path, "file");
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(file, "x", 1, 0600, &err), &err);
}

/* An access list is one, too, but not every file system has those. This one only root can set. */
static void leave_attribute(const char *path)
{
	if (setxattr(path, "trusted.left", "x", 1, 0) < 0)
		ck_assert(errno == EPERM || errno == ENOTSUP);
}

/* A spare directory from which something was not removed, or that has attributes, is no spare one. */
START_TEST(one_that_was_changed_is_removed)
{
	void (*const leave[])(const char *path) = {leave_file, leave_attribute};
	_cleanup_free_ char *path = path_of("1.1"), *spare = NULL;
	bool attributes;

	spare = str_printf("%s/.spare-%u", dir, (unsigned)uid);
	make(path, uid);
	leave[_i](path);
	attributes = _i == 1 && llistxattr(path, NULL, 0) > 0;
	take_away(path);
	ck_assert(file_exists(spare) == (_i == 1 && !attributes));
}
END_TEST

/* In a directory that others can write to, too: what stands where a spare directory would be is not used, and
 * a link is not followed. */
START_TEST(what_others_have_put_there_is_not_used)
{
	_cleanup_free_ char *path = path_of("1.1"), *victim = path_of("victim"), *spare = NULL;
	struct stat st;

	spare = str_printf("%s/.spare-%u", dir, (unsigned)uid);
	ck_assert_int_eq(mkdir(victim, 0755), 0);
	ck_assert_int_eq(symlink(victim, spare), 0);
	make(path, uid);
	ck_assert_int_eq(lstat(spare, &st), 0);
	ck_assert(S_ISLNK(st.st_mode));
	ck_assert_int_eq(unlink(spare), 0);
	/* With other rights, and as root one of another user. */
	ck_assert_int_eq(mkdir(spare, 0700), 0);
	ck_assert_int_eq(_i               ? chmod(spare, 0750)
	                 : geteuid() == 0 ? chown(spare, uid + 1, gid)
	                                  : chmod(spare, 0770),
	                 0);
	make(path, uid);
	ck_assert(file_exists(spare));
	ck_assert_int_eq(rmdir(spare), 0);
	ck_assert_int_eq(rmdir(path), 0);
	ck_assert_int_eq(symlink(victim, path), 0);
	take_away(path);
	st = status_of(victim);
	ck_assert_int_eq(st.st_mode & 07777, 0755);
	ck_assert_uint_eq(st.st_uid, geteuid());
}
END_TEST

/* What is there already stays, with its owner. */
START_TEST(what_cannot_be_removed_is_an_error)
{
	struct error err = ERROR_INIT;

	ck_assert_int_lt(tmp_dir_make("/proc/self/task", uid, uid, &err), 0);
	ck_assert_str_ne(err.message, "");
	ck_assert_int_lt(tmp_dir_make("/nowhere/7.1", uid, uid, &err), 0);
	ck_assert_ptr_nonnull(strstr(err.message, "cannot make /nowhere/7.1 for temporary files"));
}
END_TEST

START_TEST(what_is_no_directory_is_removed)
{
	_cleanup_free_ char *path = path_of("1.1");
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, "x", 1, 0600, &err), &err);
	take_away(path);
	take_away(path); /* and what is not there */
	ck_ok(file_write_atomic(path, "x", 1, 0600, &err), &err);
	make(path, uid);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tmp_dir");
	TCase *tc = tcase_create("tmp_dir");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, an_empty_directory_serves_the_next_attempt);
	tcase_add_test(tc, another_user_gets_another_directory);
	tcase_add_loop_test(tc, one_that_was_changed_is_removed, 0, 2);
	tcase_add_loop_test(tc, what_others_have_put_there_is_not_used, 0, 2);
	tcase_add_test(tc, what_cannot_be_removed_is_an_error);
	tcase_add_test(tc, what_is_no_directory_is_removed);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
