/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's timers on an event loop. The controller and the election are stand-ins. */
#include <string.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "controller/controller.h"
#include "dtraind/leader.h"
#include "dtraind/timers.h"
#include "unit.h"

static char ran[64]; /* the timers that the controller was told of: F L E R M G */
static int dispatched, store_fd;
static bool lost, unsure;
static struct controller_clock clock_;
static double again; /* what a timer that runs is set to: it is to run once more; -1: not */

void controller_run_timer(struct controller *c, enum controller_timer timer)
{
	static const char letters[CONTROLLER_TIMERS] = {
	    [CONTROLLER_FLUSH] = 'F', [CONTROLLER_LAZY_COMMIT] = 'L', [CONTROLLER_EXPIRY] = 'E',
	    [CONTROLLER_RETRY] = 'R', [CONTROLLER_LIMIT] = 'M',       [CONTROLLER_GROWTH] = 'G'};

	ck_assert_uint_lt(strlen(ran), sizeof(ran) - 1);
	ran[strlen(ran)] = letters[timer];
	if (again >= 0) {
		double at = again;

		again = -1;
		clock_.set_timer(clock_.context, timer, at);
	}
}

int controller_store_fd(const struct controller *c)
{
	return store_fd;
}

void controller_dispatch_store(struct controller *c)
{
	eventfd_t value;

	ck_assert_int_eq(eventfd_read(store_fd, &value), 0);
	dispatched++;
}

bool leader_is_lost(const struct daemon *d)
{
	return lost;
}

static int asked; /* whether it is sure */

bool leader_is_sure(const struct daemon *d)
{
	asked++;
	return !unsure;
}

static struct daemon service;
static struct timers *timers;

static void setup(void)
{
	struct error err = ERROR_INIT;

	again = -1;
	ck_assert_int_ge(sd_event_new(&service.event), 0);
	store_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ck_ok(timers_create(&service, &timers, &err), &err);
	ck_ok(timers_watch_store(timers, &err), &err);
	clock_ = timers_clock(timers);
}

static void teardown(void)
{
	timers_destroy(timers);
	close(store_fd);
	sd_event_unref(service.event);
}

static void set(enum controller_timer timer, double at)
{
	clock_.set_timer(clock_.context, timer, at);
}

/* Runs all that is due. */
static void run_due(void)
{
	int r;

	while ((r = sd_event_run(service.event, 10000)) > 0)
		;
	ck_assert_int_eq(r, 0);
}

START_TEST(no_timer_is_set_at_first)
{
	run_due();
	ck_assert_str_eq(ran, "");
	ck_assert_int_eq(dispatched, 0);
}
END_TEST

/* Requests come before the commit of what they have changed, and the expiry of nodes comes after the
 * heartbeats that have arrived meanwhile. */
START_TEST(timers_that_are_due_run_once_in_their_order)
{
	set(CONTROLLER_EXPIRY, 0);
	set(CONTROLLER_FLUSH, 0);
	set(CONTROLLER_GROWTH, 0);
	run_due();
	ck_assert_str_eq(ran, "GFE");
	memset(ran, 0, sizeof(ran));
	for (int i = CONTROLLER_TIMERS - 1; i >= 0; i--)
		set((enum controller_timer)i, 1e-6);
	run_due();
	ck_assert_uint_eq(strlen(ran), CONTROLLER_TIMERS);
	ck_assert_str_eq(ran + CONTROLLER_TIMERS - 2, "FE");
}
END_TEST

START_TEST(a_timer_waits_for_its_time)
{
	double at = clock_monotonic() + 3600;

	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		set((enum controller_timer)i, at);
	run_due();
	ck_assert_str_eq(ran, "");
	/* An earlier time takes the place of the one before. */
	at = clock_monotonic() + 0.05;
	set(CONTROLLER_FLUSH, at);
	while (!*ran)
		ck_assert_int_ge(sd_event_run(service.event, UINT64_MAX), 0);
	ck_assert_str_eq(ran, "F");
	ck_assert(clock_monotonic() >= at);
}
END_TEST

/* It may be cut off, and not the nodes. */
START_TEST(who_is_silent_is_left_open_until_the_controller_is_sure)
{
	unsure = true;
	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		set((enum controller_timer)i, 1e-6);
	while (asked < 3)
		ck_assert_int_ge(sd_event_run(service.event, UINT64_MAX), 0);
	ck_assert_ptr_null(strchr(ran, 'E'));
	ck_assert_uint_eq(strlen(ran), CONTROLLER_TIMERS - 1);
	unsure = false;
	while (!strchr(ran, 'E'))
		ck_assert_int_ge(sd_event_run(service.event, UINT64_MAX), 0);
	run_due();
	ck_assert_uint_eq(strlen(ran), CONTROLLER_TIMERS);
}
END_TEST

START_TEST(a_timer_can_be_switched_off)
{
	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		set((enum controller_timer)i, 1e-6);
	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		set((enum controller_timer)i, -1);
	run_due();
	ck_assert_str_eq(ran, "");
	set(CONTROLLER_RETRY, 0);
	run_due();
	ck_assert_str_eq(ran, "R");
}
END_TEST

/* A commit that was to follow at once may be put off, and the other way round. */
START_TEST(the_last_time_that_was_set_counts)
{
	double later = clock_monotonic() + 3600;

	set(CONTROLLER_FLUSH, 0);
	set(CONTROLLER_FLUSH, later);
	run_due();
	ck_assert_str_eq(ran, "");
	set(CONTROLLER_FLUSH, 0);
	set(CONTROLLER_FLUSH, -1);
	run_due();
	ck_assert_str_eq(ran, "");
	set(CONTROLLER_FLUSH, 1e-6);
	set(CONTROLLER_FLUSH, 0);
	run_due();
	ck_assert_str_eq(ran, "F");
}
END_TEST

/* Requests that come while a commit begins are committed with the next one. */
START_TEST(a_timer_may_be_set_while_it_runs)
{
	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		for (int deferred = 0; deferred <= (i == CONTROLLER_FLUSH); deferred++) {
			memset(ran, 0, sizeof(ran));
			again = deferred ? 0 : 1e-6;
			set((enum controller_timer)i, again);
			run_due();
			ck_assert_msg(strlen(ran) == 2 && ran[0] == ran[1], "timer %d: %s", i, ran);
		}
}
END_TEST

START_TEST(the_clocks_are_those_of_the_machine)
{
	double monotonic = clock_monotonic(), realtime = clock_realtime();

	monotonic -= clock_.monotonic(clock_.context);
	ck_assert(monotonic <= 0 && monotonic > -1000);
	realtime -= clock_.realtime(clock_.context);
	ck_assert(realtime <= 1000 && realtime > -1000);
}
END_TEST

/* The store may close its descriptor: the service watches one of its own. */
START_TEST(the_store_is_dispatched_when_it_has_committed)
{
	ck_assert_int_eq(eventfd_write(store_fd, 1), 0);
	run_due();
	ck_assert_int_eq(dispatched, 1);
	run_due();
	ck_assert_int_eq(dispatched, 1);
	/* A service that is the controller no longer reports nothing of its commits. */
	lost = true;
	ck_assert_int_eq(eventfd_write(store_fd, 1), 0);
	ck_assert_int_ge(sd_event_run(service.event, 0), 0);
	ck_assert_int_eq(dispatched, 1);
}
END_TEST

START_TEST(nothing_runs_after_the_end)
{
	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		set((enum controller_timer)i, 1e-6);
	set(CONTROLLER_FLUSH, 0);
	ck_assert_int_eq(eventfd_write(store_fd, 1), 0);
	timers_destroy(timers);
	timers = NULL;
	run_due();
	ck_assert_str_eq(ran, "");
	ck_assert_int_eq(dispatched, 0);
	timers_destroy(NULL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("timers");
	TCase *c = tcase_create("timers");

	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, no_timer_is_set_at_first);
	tcase_add_test(c, timers_that_are_due_run_once_in_their_order);
	tcase_add_test(c, a_timer_waits_for_its_time);
	tcase_add_test(c, who_is_silent_is_left_open_until_the_controller_is_sure);
	tcase_add_test(c, a_timer_can_be_switched_off);
	tcase_add_test(c, the_last_time_that_was_set_counts);
	tcase_add_test(c, a_timer_may_be_set_while_it_runs);
	tcase_add_test(c, the_clocks_are_those_of_the_machine);
	tcase_add_test(c, the_store_is_dispatched_when_it_has_committed);
	tcase_add_test(c, nothing_runs_after_the_end);
	return unit_run(s);
}
