/* SPDX-License-Identifier: Apache-2.0 */
/* The user of a run, as this machine knows them. The directory of users is a stand-in. */
#include "unit.h"

#include <grp.h>
#include <pwd.h>
#include <string.h>

#include "base/str.h"
#include "node/launch/run_user.h"

static struct passwd entry;
static int code;         /* of getpwnam_r */
static bool there;       /* the user */
static uid_t self;       /* of the service */
static int group_count;  /* of the user */
static int groups_asked; /* calls of getgrouplist */
static bool keeps_count; /* it does not say how many there are */

uid_t __wrap_geteuid(void);
uid_t __wrap_geteuid(void)
{
	return self;
}

int __wrap_getpwnam_r(const char *name, struct passwd *out, char *buf, size_t size, struct passwd **found);
int __wrap_getpwnam_r(const char *name, struct passwd *out, char *buf, size_t size, struct passwd **found)
{
	ck_assert_str_eq(name, "ann");
	ck_assert_uint_ge(size, 16384);
	*out = entry;
	*found = there ? out : NULL;
	return code;
}

int __wrap_getgrouplist(const char *name, gid_t group, gid_t *groups, int *count);
int __wrap_getgrouplist(const char *name, gid_t group, gid_t *groups, int *count)
{
	int room = *count;

	ck_assert_str_eq(name, "ann");
	ck_assert_uint_eq(group, 700);
	ck_assert_int_lt(groups_asked++, 20);
	for (int i = 0; i < room && i < group_count; i++)
		groups[i] = (gid_t)(700 + i);
	if (room >= group_count || !keeps_count)
		*count = group_count;
	return room < group_count ? -1 : group_count;
}

static void setup(void)
{
	entry = (struct passwd){.pw_name = (char *)"ann",
	                        .pw_uid = 1000,
	                        .pw_gid = 700,
	                        .pw_dir = (char *)"/home/ann",
	                        .pw_shell = (char *)"/bin/zsh"};
	there = true;
	code = 0;
	self = 0;
	group_count = 3;
	groups_asked = 0;
	keeps_count = false;
}

static struct run_user *find(void)
{
	struct run_user *user = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_user_find("ann", 1000, &user, &err), &err);
	return user;
}

START_TEST(a_user_is_as_the_directory_has_them)
{
	_cleanup_(run_user_freep) struct run_user *user = NULL;

	/* Only root becomes another user. */
	for (int i = 0; i < 2; i++) {
		run_user_free(user);
		self = i ? 1000 : 0;
		user = find();
		ck_assert_str_eq(user->name, "ann");
		ck_assert_str_eq(user->home, "/home/ann");
		ck_assert_str_eq(user->shell, "/bin/zsh");
		ck_assert_int_eq(user->uid, 1000);
		ck_assert_int_eq(user->gid, 700);
		ck_assert_uint_eq(user->group_count, 3);
		for (int k = 0; k < 3; k++)
			ck_assert_int_eq(user->groups[k], 700 + k);
		ck_assert_int_eq(user->change, i == 0);
	}
	run_user_free(NULL);
}
END_TEST

START_TEST(what_the_directory_leaves_open_has_a_default)
{
	for (int i = 0; i < 2; i++) {
		_cleanup_(run_user_freep) struct run_user *user = NULL;

		entry.pw_dir = entry.pw_shell = (char *)(i ? "" : NULL);
		user = find();
		ck_assert_str_eq(user->home, "/");
		ck_assert_str_eq(user->shell, "/bin/sh");
	}
}
END_TEST

START_TEST(a_user_may_have_many_groups)
{
	static const int counts[] = {0, 1, 64, 65, 1000};

	for (size_t i = 0; i < ARRAY_SIZE(counts); i++)
		for (int k = 0; k < 2; k++) {
			_cleanup_(run_user_freep) struct run_user *user = NULL;

			group_count = counts[i];
			groups_asked = 0;
			keeps_count = k;
			user = find();
			ck_assert_uint_eq(user->group_count, (size_t)counts[i]);
			for (int n = 0; n < counts[i]; n++)
				ck_assert_int_eq(user->groups[n], 700 + n);
		}
}
END_TEST

static void check_refused(uid_t uid, int want, const char *words)
{
	struct run_user *user = NULL;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(run_user_find("ann", uid, &user, &err), want);
	ck_assert_msg(str_starts(err.message, words), "%s", err.message);
	ck_assert_ptr_null(user);
	ck_assert_int_eq(groups_asked, 0);
}

START_TEST(who_cannot_be_taken_is_refused)
{
	check_refused(1001, -EPERM, "user 'ann' has uid 1000 here, but 1001 where the run was submitted");
	self = 1001;
	check_refused(1000, -EPERM, "dtraind does not run as root here and cannot start programs as 'ann'");
	there = false;
	check_refused(1000, -EPERM, "no user 'ann' (uid 1000)");
	code = ENOENT;
	check_refused(1000, -EPERM, "no user 'ann' (uid 1000)");
	/* The directory does not answer. */
	code = EIO;
	check_refused(1000, -EIO, "cannot look up user 'ann'");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("run_user");
	TCase *tc = tcase_create("run_user");

	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, a_user_is_as_the_directory_has_them);
	tcase_add_test(tc, what_the_directory_leaves_open_has_a_default);
	tcase_add_test(tc, a_user_may_have_many_groups);
	tcase_add_test(tc, who_cannot_be_taken_is_refused);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
