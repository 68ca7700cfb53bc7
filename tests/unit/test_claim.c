/* SPDX-License-Identifier: Apache-2.0 */
/* The mark in an output directory (claim.h): one of the release before, one that changes between taking and
 * marking, and one that cannot be written. */
#include "unit.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/lease_file.h"
#include "base/str.h"
#include "engine/checkpoint/claim.h"

static void write_mark(const char *out, const char *text)
{
	_cleanup_free_ char *path = str_path_join(out, CLAIM_FILE);
	FILE *f = fopen(path, "we");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
}

static void check_marked(const char *out, const char *text)
{
	_cleanup_free_ char *path = str_path_join(out, CLAIM_FILE), *now = NULL;
	struct error err = ERROR_INIT;
	size_t len;

	ck_ok(file_read(path, 0, &now, &len, &err), &err);
	ck_assert_str_eq(now, text);
}

/* Attempt 1 wrote "ATTEMPT RUN" with the release before; attempt 2 knows its cluster. */
START_TEST(a_mark_of_the_release_before_is_the_runs_own)
{
	_cleanup_free_ char *out = unit_tmpdir();
	struct claim again = {out, "17", 2, "a1", 3, NULL}, first = {out, "17", 1, "a1", 3, NULL},
	             other = {out, "7", 2, "a1", 3, NULL};
	struct error err = ERROR_INIT;
	bool ours = false;
	int fd = -1;

	write_mark(out, "1 17\n");
	ck_ok(claim_take(&other, &fd, &ours, &err), &err);
	ck_assert(!ours);
	closep(&fd);
	/* A new run of that number is not of the cluster that wrote there. */
	ck_ok(claim_take(&first, &fd, &ours, &err), &err);
	ck_assert(!ours);
	closep(&fd);
	ck_ok(claim_take(&again, &fd, &ours, &err), &err);
	ck_assert(ours);
	ck_ok(claim_mark(&again, fd, &err), &err);
	ck_ok(claim_check(&again, fd, &err), &err);
	check_marked(out, "2.3 17 a1\n");
	closep(&fd);
	/* Another run has written there since. */
	write_mark(out, "1.3 18 a1\n1 17\n");
	ck_assert_int_eq(claim_take(&again, &fd, &ours, &err), -ESTALE);
	ck_ok(claim_take(&first, &fd, &ours, &err), &err);
	closep(&fd);
	/* With a cluster or an epoch it is another cluster's. */
	write_mark(out, "1.2 17\n1.2 17\n");
	ck_ok(claim_take(&again, &fd, &ours, &err), &err);
	ck_assert(!ours);
	closep(&fd);
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

START_TEST(a_mark_that_came_in_between_stands)
{
	static const char *const marks[] = {"3.3 17 a1\n", "1.4 17 a1\n", "1.3 18 a1\n2.3 17 a1\n"};
	_cleanup_free_ char *out = unit_tmpdir();
	struct claim claim = {out, "17", 2, "a1", 3, NULL};
	struct error err = ERROR_INIT;
	bool ours;
	int fd = -1;

	for (size_t i = 0; i < ARRAY_SIZE(marks); i++) {
		write_mark(out, "1.3 17 a1\n");
		ck_ok(claim_take(&claim, &fd, &ours, &err), &err);
		ck_assert(ours);
		write_mark(out, marks[i]);
		ck_assert_int_eq(claim_mark(&claim, fd, &err), -ESTALE);
		check_marked(out, marks[i]);
		closep(&fd);
	}
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

/* The process of attempt 1 is paused, with the lock, on a machine that is no longer waited for. */
START_TEST(an_earlier_attempt_with_the_lock_is_passed_over)
{
	_cleanup_free_ char *out = unit_tmpdir();
	struct claim first = {out, "17", 1, "a1", 3, NULL}, next = {out, "17", 2, "a1", 3, NULL},
	             of_epoch = {out, "17", 3, "a1", 4, NULL}, other = {out, "18", 2, "a1", 4, NULL};
	struct error err = ERROR_INIT;
	int paused = -1, fd = -1, third = -1, none = -1;
	bool ours = false;

	ck_ok(claim_take(&first, &paused, &ours, &err), &err);
	/* Whose attempt it is is not known before it marks the directory. */
	ck_fails(claim_take(&next, &fd, &ours, &err), &err, "is being written by another run");
	ck_ok(claim_mark(&first, paused, &err), &err);
	ck_fails(claim_take(&first, &fd, &ours, &err), &err, "is being written by run 17");
	ck_ok(claim_take(&next, &fd, &ours, &err), &err);
	ck_assert(ours);
	ck_ok(claim_mark(&next, fd, &err), &err);
	ck_assert_int_eq(claim_check(&first, paused, &err), -ESTALE);
	ck_assert_int_eq(claim_mark(&first, paused, &err), -ESTALE);
	ck_ok(claim_check(&next, fd, &err), &err);
	/* The lock is still a lock. */
	ck_assert_int_eq(claim_take(&other, &none, &ours, &err), -EBUSY);
	/* An attempt of a later epoch passes it over, too. */
	ck_ok(claim_take(&of_epoch, &third, &ours, &err), &err);
	ck_assert(ours);
	closep(&third);
	/* When the first process has ended, the second has the lock from its next check on. */
	closep(&paused);
	ck_ok(claim_check(&next, fd, &err), &err);
	ck_assert_int_eq(claim_take(&other, &none, &ours, &err), -EBUSY);
	closep(&fd);
	ck_ok(claim_take(&other, &none, &ours, &err), &err);
	closep(&none);
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

/* A full disk, as a limit of the file's size has it. */
START_TEST(a_mark_that_cannot_be_written_leaves_the_old_one)
{
	_cleanup_free_ char *out = unit_tmpdir();
	struct claim claim = {out, "17", 2, "a1", 3, NULL};
	struct error err = ERROR_INIT;
	struct rlimit old, none;
	bool ours;
	int fd = -1, r;

	write_mark(out, "1.3 17 a1\n1.2 9 a1\n");
	ck_ok(claim_take(&claim, &fd, &ours, &err), &err);
	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
	signal(SIGXFSZ, SIG_IGN);
	none = (struct rlimit){0, old.rlim_max};
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
	r = claim_mark(&claim, fd, &err);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
	ck_assert_int_eq(r, -EFBIG);
	check_marked(out, "1.3 17 a1\n1.2 9 a1\n");
	/* A text that is shorter than what was there ends where it ends. */
	write_mark(out, "1.3 17 a1\n1.2 9 a1\n\n\nmore");
	ck_ok(claim_mark(&claim, fd, &err), &err);
	check_marked(out, "2.3 17 a1\n1.2 9 a1\n");
	closep(&fd);
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

/* A lease that has run out keeps a save from being published. */
START_TEST(nothing_is_published_after_the_end_of_the_lease)
{
	static const char *const untold[] = {"", "soon\n", "999999999999.0 1.0 another-boot\n"};
	_cleanup_free_ char *out = unit_tmpdir(), *path = str_printf("%s/lease", out);
	struct claim claim = {out, "17", 2, "a1", 3, path};
	struct error err = ERROR_INIT;
	bool ours;
	int fd = -1;

	ck_ok(claim_take(&claim, &fd, &ours, &err), &err);
	ck_ok(claim_mark(&claim, fd, &err), &err);
	ck_ok(claim_check(&claim, fd, &err), &err);
	ck_ok(lease_file_write(path, &(struct lease_end){999999999999.0, 1.0}, &err), &err);
	ck_ok(claim_check(&claim, fd, &err), &err);
	ck_ok(lease_file_write(path, &(struct lease_end){1.0, 0.5}, &err), &err);
	ck_fails(claim_check(&claim, fd, &err), &err, "the lease of this attempt has run out");
	/* Nor where the file does not tell. */
	for (size_t i = 0; i < ARRAY_SIZE(untold); i++) {
		ck_ok(file_write_atomic(path, untold[i], strlen(untold[i]), 0644, &err), &err);
		ck_fails(claim_check(&claim, fd, &err), &err,
		         "it is not known whether the lease of this attempt");
	}
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(mkdir(path, 0777), 0);
	ck_fails(claim_check(&claim, fd, &err), &err, "cannot be read as the end of a lease");
	ck_assert_int_eq(rmdir(path), 0);
	ck_ok(claim_check(&claim, fd, &err), &err);
	closep(&fd);
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("claim");
	TCase *t = tcase_create("claim");

	tcase_add_test(t, nothing_is_published_after_the_end_of_the_lease);
	tcase_add_test(t, a_mark_of_the_release_before_is_the_runs_own);
	tcase_add_test(t, a_mark_that_came_in_between_stands);
	tcase_add_test(t, an_earlier_attempt_with_the_lock_is_passed_over);
	tcase_add_test(t, a_mark_that_cannot_be_written_leaves_the_old_one);
	suite_add_tcase(s, t);
	return unit_run(s);
}
