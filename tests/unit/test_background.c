/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that work which cannot be handed to a thread is given back: nothing of it is called, its data is
 * released, and what failed is said. tests/unit/test_users.c has work that is done. */
#include <pthread.h>
#include <sys/eventfd.h>

#include "base/background.h"
#include "base/str.h"
#include "failing_memory.h"
#include "open_fds.h"

static bool no_descriptor, no_thread;
static int released;

int __real_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags)
{
	errno = EMFILE;
	return no_descriptor ? -1 : __real_eventfd(value, flags);
}

typedef void *(*thread_fn)(void *context);

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, thread_fn fn, void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, thread_fn fn, void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, thread_fn fn, void *context)
{
	return no_thread ? EAGAIN : __real_pthread_create(thread, attributes, fn, context);
}

static void do_work(void *data)
{
	*(int *)data += 1;
}

static void note_done(void *context, void *data)
{
	*(int *)context += *(int *)data;
}

static void release(void *data)
{
	released++;
}

/* Starts work; where that succeeds, its result is taken. */
static int start(void *context, struct error *err)
{
	int done = 0, data = 0, r;
	const struct background_task task = {60, do_work, note_done, &done, release, &data};
	struct background *b = NULL;

	released = 0;
	r = background_start(context, &task, &b, err);
	memory_left = 0;
	while (r == 0 && !released)
		ck_assert_int_ge(sd_event_run(context, UINT64_MAX), 0);
	ck_assert_int_eq(released, 1);
	ck_assert_int_eq(done, r == 0);
	ck_assert_int_eq(b != NULL, r == 0);
	return r;
}

START_TEST(work_that_cannot_begin_is_given_back)
{
	struct error err = ERROR_INIT;
	sd_event *event;
	size_t before;

	ck_assert_int_ge(sd_event_new(&event), 0);
	ck_ok(start(event, &err), &err); /* the event loop opens what it needs */
	before = open_fds_count();
	memory_runs_out(start, event);
	no_descriptor = true;
	ck_assert_int_eq(start(event, &err), -EMFILE);
	ck_assert_str_eq(err.message, "cannot start a thread: Too many open files");
	no_descriptor = false;
	no_thread = true;
	ck_assert_int_eq(start(event, &err), -EAGAIN);
	ck_assert_str_eq(err.message, "cannot start a thread: Resource temporarily unavailable");
	no_thread = false;
	ck_ok(start(event, &err), &err);
	ck_assert_uint_eq(open_fds_count(), before);
	background_cancel(NULL);
	sd_event_unref(event);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("background");
	TCase *tc = tcase_create("background");

	tcase_add_test(tc, work_that_cannot_begin_is_given_back);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
