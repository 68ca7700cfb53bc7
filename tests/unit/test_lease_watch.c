/* SPDX-License-Identifier: Apache-2.0 */
/* The lease as dtrain-launch watches it: when it ends the ranks itself. */
#include <poll.h>
#include <sys/timerfd.h>

#include "base/clock.h"
#include "base/lease_file.h"
#include "base/str.h"
#include "node/launch/lease_watch.h"
#include "unit.h"

static char *dir, *path;

static void setup(void)
{
	dir = unit_tmpdir();
	path = str_path_join(dir, "lease");
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(path);
	free(dir);
}

/* The service begins to end the ranks in the last part of the lease, and has a tenth of that part to do so
 * before dtrain-launch does it. The times are such that a slow machine changes nothing. */
START_TEST(the_service_is_given_time)
{
	static const struct {
		double left, ending; /* of the lease, in seconds, and its last part */
		bool ends;
	} cases[] = {
	    {2e6, 1e6, false},    /* the last part has not begun */
	    {0.95e6, 1e6, false}, /* the service has begun just now */
	    {0.85e6, 1e6, true},  /* it would have by now */
	    {-10, 1e6, true},
	};
	struct lease_watch watch;
	struct error err = ERROR_INIT;
	double seconds = -1;

	ck_ok(lease_watch_open(&watch, path, &err), &err);
	ck_assert(!lease_watch_check(&watch, &seconds)); /* there is no lease */
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const double until = clock_seconds(CLOCK_BOOTTIME) + cases[i].left;
		const struct lease_end end = {MAX(until, 1e-3), cases[i].ending};

		ck_ok(lease_file_write(path, &end, &err), &err);
		ck_assert_msg(lease_watch_check(&watch, &seconds) == cases[i].ends, "case %d", (int)i);
		if (cases[i].ends) {
			ck_assert_double_ge(seconds, 0);
			ck_assert_double_le(seconds, MAX(cases[i].left, 0) + 1e-3);
		}
	}
	lease_watch_close(&watch);
	ck_assert_int_eq(watch.timer_fd, -1); /* the number may be another file's from now on */
	lease_watch_close(&watch);
}
END_TEST

/* Seconds until the timer fires; 0: it has. */
static double time_left(const struct lease_watch *watch)
{
	struct pollfd p = {.fd = watch->timer_fd, .events = POLLIN};
	struct itimerspec spec;

	if (poll(&p, 1, 0) == 1)
		return 0;
	ck_assert_int_eq(timerfd_gettime(watch->timer_fd, &spec), 0);
	ck_assert_msg(spec.it_value.tv_sec > 0 || spec.it_value.tv_nsec > 0, "it is not set");
	return (double)spec.it_value.tv_sec + (double)spec.it_value.tv_nsec / 1e9;
}

/* At once, every five seconds, and when the service has had its time. */
START_TEST(the_file_is_looked_at_again)
{
	struct lease_watch watch;
	struct error err = ERROR_INIT;
	double seconds, left;

	ck_ok(lease_watch_open(&watch, path, &err), &err);
	while (time_left(&watch) > 0)
		;
	ck_assert(!lease_watch_check(&watch, &seconds));
	ck_assert_double_le(time_left(&watch), 5);
	for (int i = 0; i < 2; i++) {
		const struct lease_end end = {clock_seconds(CLOCK_BOOTTIME) + 1000, i ? 1000 : 1108};

		ck_ok(lease_file_write(path, &end, &err), &err);
		ck_assert(!lease_watch_check(&watch, &seconds));
		left = time_left(&watch);
		ck_assert_msg(left <= (i ? 5 : 2.8), "%g", left);
	}
	lease_watch_close(&watch);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("lease_watch");
	TCase *tc = tcase_create("lease_watch");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, the_service_is_given_time);
	tcase_add_test(tc, the_file_is_looked_at_again);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
