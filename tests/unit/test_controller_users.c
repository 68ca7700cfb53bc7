/* SPDX-License-Identifier: Apache-2.0 */
/* Stories of users who may have so many runs and slots, and no more (controller_bed.h). */
#include <errno.h>

#include "controller/controller.h"
#include "controller_bed.h"

START_TEST(a_user_may_have_so_many_runs)
{
	struct bed *b = bed_create("n1 slots=2\n");
	int64_t first, second;

	bed_set_user_limits(b, 2, 0);
	first = bed_submit(b, 1, 2);
	second = bed_submit(b, 1, 2);
	bed_await(b, first, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, second)->state, RUN_QUEUED);
	ck_assert_int_eq(bed_submit_failing(b), -EDQUOT);
	/* Nobody else has less for that, and root has no limit. */
	bed_set_user(b, "bob", 1001);
	bed_submit(b, 1, 1);
	bed_submit(b, 1, 1);
	ck_assert_int_eq(bed_submit_failing(b), -EDQUOT);
	bed_set_user(b, "root", 0);
	for (int i = 0; i < 4; i++)
		bed_submit(b, 1, 1);
	bed_set_user(b, "alice", 1000);
	ck_assert_int_eq(bed_submit_failing(b), -EDQUOT);
	/* What has ended does not count. */
	bed_cancel(b, second);
	bed_await(b, second, RUN_CANCELLED);
	bed_submit(b, 1, 1);
	ck_assert_int_eq(bed_submit_failing(b), -EDQUOT);
	/* The runs of the store do. */
	bed_restart_controller(b);
	ck_assert_int_eq(bed_submit_failing(b), -EDQUOT);
	bed_set_user_limits(b, 0, 0);
	bed_submit(b, 1, 1);
	bed_free(b);
}
END_TEST

/* Submissions that wait for their numbers count, too. */
START_TEST(a_user_may_have_so_many_submissions)
{
	struct bed *b = bed_create("n1 slots=1\nn2 slots=1\n");

	bed_cut_off(b, "n2", true);
	bed_set_user_limits(b, 1, 0);
	bed_restart_controller(b); /* which does not know yet what n2 has */
	ck_assert_ptr_nonnull(bed_begin_submission(b, 1, 1));
	bed_pass(b, 0.1);
	ck_assert_int_eq(bed_submitted(b), -1);
	ck_assert_ptr_null(bed_begin_submission(b, 1, 1));
	bed_free(b);
}
END_TEST

START_TEST(a_user_may_have_so_many_slots)
{
	struct bed *b = bed_create("n1 slots=4\nn2 slots=4\n");
	int64_t first, second, third, other;

	bed_set_user_limits(b, 0, 4);
	first = bed_submit(b, 1, 3);
	second = bed_submit(b, 2, 1);
	third = bed_submit(b, 1, 1);
	bed_await(b, first, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, second)->state, RUN_QUEUED);
	ck_assert_str_eq(bed_run(b, second)->reason,
	                 "waits for other runs of user alice to end: they have 3 of 4 slots (user_slots of "
	                 "dtraind.conf)");
	/* A small one does not overtake it. */
	ck_assert_int_eq(bed_run(b, third)->state, RUN_QUEUED);
	ck_assert_str_eq(bed_run(b, third)->reason,
	                 "waits behind run 2 of the same user, whose runs have 3 of 4 slots (user_slots of "
	                 "dtraind.conf)");
	bed_set_user(b, "bob", 1001);
	other = bed_submit(b, 1, 4);
	bed_await(b, other, RUN_RUNNING);
	/* After a restart the slots are known from the store. */
	bed_restart_controller(b);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, first)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, second)->state, RUN_QUEUED);
	bed_end_ranks(b, bed_attempt_on(b, "n1", other) ? "n1" : "n2", other, 0);
	bed_await(b, other, RUN_SUCCEEDED);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, second)->state, RUN_QUEUED);
	bed_end_ranks(b, bed_attempt_on(b, "n1", first) ? "n1" : "n2", first, 0);
	bed_await(b, second, RUN_RUNNING);
	bed_await(b, third, RUN_RUNNING);
	bed_free(b);
}
END_TEST

/* A reload changes the limits of runs that wait, and of no others. */
START_TEST(limits_of_users_change)
{
	struct bed *b = bed_create("n1 slots=4\n");
	int64_t first, second;

	bed_set_user_limits(b, 0, 2);
	first = bed_submit(b, 1, 2);
	second = bed_submit(b, 1, 2);
	bed_pass(b, 2);
	ck_assert_int_eq(bed_run(b, second)->state, RUN_QUEUED);
	bed_set_user_limits(b, 0, 4);
	bed_await(b, second, RUN_RUNNING);
	bed_set_user_limits(b, 1, 1);
	bed_pass(b, 5);
	ck_assert_int_eq(bed_run(b, first)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_run(b, second)->state, RUN_RUNNING);
	ck_assert_int_eq(bed_submit_failing(b), -EDQUOT);
	bed_free(b);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("controller_users");
	TCase *tc = tcase_create("stories");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, a_user_may_have_so_many_runs);
	tcase_add_test(tc, a_user_may_have_so_many_submissions);
	tcase_add_test(tc, a_user_may_have_so_many_slots);
	tcase_add_test(tc, limits_of_users_change);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
