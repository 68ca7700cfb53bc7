/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a GPU that a run has left in use: when that is told, and when it is not. */
#include "unit.h"

#include <string.h>

#include "node/gpu/idle.h"

static const int64_t MIB = 1 << 20, GIB = 1 << 30;

static struct gpu_idle idle;
static char reason[200];

static void setup(void)
{
	idle = (struct gpu_idle){.before = -1};
	reason[0] = '\0';
}

/* At that time, for a timeout of 30 s. */
static bool is_told(int64_t used, double now)
{
	return gpu_idle_read(&idle, used, now, 30, reason, sizeof(reason));
}

/* Run 7 has had the GPU until time 100; so much was in use before. */
static void run(int64_t before)
{
	gpu_idle_leased(&idle, before);
	gpu_idle_released(&idle, 7, 100, 30);
}

START_TEST(what_stays_in_use_is_told_once)
{
	ck_assert(!is_told(8 * GIB, 200)); /* no run has been there */
	run(GIB);
	ck_assert(!is_told(3 * GIB, 100));
	ck_assert(!is_told(3 * GIB, 129.9));
	ck_assert_str_eq(reason, "");
	ck_assert(is_told(3 * GIB, 130));
	ck_assert_str_eq(reason,
	                 "2.0 GiB more of its memory are in use than before run 7, which ended 30 s ago");
	ck_assert(!is_told(3 * GIB, 131));
}
END_TEST

/* The driver may take 256 MiB more. What is free once is another's later. */
START_TEST(what_is_given_back_is_not_told)
{
	static const struct {
		int64_t before, used;
		bool told;
	} cases[] = {{GIB, GIB, false}, {GIB, GIB + 256 * MIB, false}, {GIB, GIB + 256 * MIB + 1, true},
	             {0, 0, false},     {0, 256 * MIB, false},         {0, 257 * MIB, true}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		setup();
		run(cases[i].before);
		ck_assert_int_eq(is_told(cases[i].used, 110), 0);
		ck_assert_int_eq(is_told(8 * GIB, 200), cases[i].told);
	}
}
END_TEST

START_TEST(what_is_not_known_says_nothing)
{
	run(GIB);
	ck_assert(!is_told(-1, 200));
	ck_assert(is_told(3 * GIB, 200)); /* as soon as it is known */
	setup();
	run(-1);
	ck_assert(!is_told(3 * GIB, 200));
	setup();
	gpu_idle_leased(&idle, GIB);
	gpu_idle_released(&idle, 7, 100, 0); /* it is switched off */
	ck_assert(!is_told(3 * GIB, 200));
}
END_TEST

/* What was in use before the first of them counts: the second one is not blamed for what the first has left,
 * and does not hide it. */
START_TEST(the_next_run_may_come_before_all_is_free)
{
	run(GIB);
	gpu_idle_leased(&idle, 3 * GIB);
	ck_assert(!is_told(3 * GIB, 200)); /* it is in use */
	gpu_idle_released(&idle, 8, 300, 30);
	ck_assert(!is_told(3 * GIB, 329));
	ck_assert(is_told(3 * GIB, 330));
	ck_assert_ptr_nonnull(strstr(reason, "2.0 GiB more"));
	ck_assert_ptr_nonnull(strstr(reason, "before run 8"));
	/* After that it is what there is. */
	gpu_idle_leased(&idle, 3 * GIB);
	gpu_idle_released(&idle, 9, 400, 30);
	ck_assert(!is_told(3 * GIB, 500));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("gpu_idle");
	TCase *tc = tcase_create("idle");

	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, what_stays_in_use_is_told_once);
	tcase_add_test(tc, what_is_given_back_is_not_told);
	tcase_add_test(tc, what_is_not_known_says_nothing);
	tcase_add_test(tc, the_next_run_may_come_before_all_is_free);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
