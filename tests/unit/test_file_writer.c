/* SPDX-License-Identifier: Apache-2.0 */
/* A file is written behind the event loop: the newest contents, and a slow disk delays only who waits. */
#include "base/file_writer.h"
#include "unit.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/str.h"
#include "failing_memory.h"

/* The disk: how many syncs may go on; the others wait. fsync, which reads it, has no argument for it. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int allowed, waiting;
} disk = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};

/* Takes the place of libc's in this program. */
int fsync(int fd)
{
	pthread_mutex_lock(&disk.lock);
	disk.waiting++;
	pthread_cond_broadcast(&disk.changed);
	while (disk.allowed == 0)
		pthread_cond_wait(&disk.changed, &disk.lock);
	disk.allowed--;
	disk.waiting--;
	pthread_mutex_unlock(&disk.lock);
	return (int)syscall(SYS_fsync, fd);
}

static void allow(int syncs)
{
	pthread_mutex_lock(&disk.lock);
	disk.allowed = syncs;
	pthread_cond_broadcast(&disk.changed);
	pthread_mutex_unlock(&disk.lock);
}

/* Until the thread waits for the disk. */
static void await_sync(void)
{
	pthread_mutex_lock(&disk.lock);
	while (disk.waiting == 0)
		pthread_cond_wait(&disk.changed, &disk.lock);
	pthread_mutex_unlock(&disk.lock);
}

enum { MANY = 1000 }; /* more syncs than a test makes */

struct place {
	char *dir, *path;
	sd_event *event;
	struct file_writer *writer;
};

static struct place place; /* Check's fixtures have no other place */

static void setup(void)
{
	struct error err = ERROR_INIT;

	allow(0);
	place.dir = unit_tmpdir();
	place.path = str_path_join(place.dir, "state/file");
	ck_assert_int_ge(sd_event_new(&place.event), 0);
	ck_ok(file_writer_create(place.event, place.path, "the file is not on disk", &place.writer, &err),
	      &err);
}

static void teardown(void)
{
	file_writer_destroy(place.writer);
	sd_event_unref(place.event);
	file_remove_tree(place.dir, NULL);
	free(place.dir);
	free(place.path);
}

static void put(const char *text)
{
	struct error err = ERROR_INIT;

	ck_ok(file_writer_put(place.writer, strdup(text), &err), &err);
}

/* The calls of a waiter. */
struct told {
	int times, code;
	char message[256];
};

static void on_written(void *context, int code, const char *message)
{
	struct told *told = context;

	told->times++;
	told->code = code;
	snprintf(told->message, sizeof(told->message), "%s", message ? message : "");
}

static void wait_for(struct told *told)
{
	struct error err = ERROR_INIT;

	*told = (struct told){0};
	ck_ok(file_writer_wait(place.writer, on_written, told, &err), &err);
}

static void run_until(const struct told *told)
{
	while (told->times == 0)
		ck_assert_int_ge(sd_event_run(place.event, UINT64_MAX), 0);
}

static void check_file(const char *expected)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	ck_ok(file_read(place.path, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, expected);
}

START_TEST(a_slow_disk_delays_the_waiter_alone)
{
	struct told told;

	put("a");
	wait_for(&told);
	await_sync();
	/* The thread is within its sync; the event loop has nothing to do. */
	ck_assert_int_eq(sd_event_run(place.event, 0), 0);
	ck_assert_int_eq(told.times, 0);
	ck_assert(!file_exists(place.path));
	allow(MANY);
	run_until(&told);
	ck_assert_int_eq(told.code, 0);
	check_file("a");
	wait_for(&told); /* nothing is left to write */
	ck_assert_int_eq(told.times, 1);
}
END_TEST

START_TEST(the_newest_contents_are_written)
{
	struct told first, second, third;

	put("a");
	wait_for(&first);
	await_sync();
	put("b");
	wait_for(&second);
	put("c");
	wait_for(&third);
	allow(2); /* the file's and its directory's: "a" alone */
	run_until(&first);
	ck_assert_int_eq(second.times + third.times, 0);
	check_file("a");
	allow(MANY);
	run_until(&third);
	ck_assert_int_eq(second.times, 1);
	check_file("c");
	put("d");
	wait_for(&first);
	run_until(&first);
	check_file("d");
}
END_TEST

START_TEST(after_a_failure_the_next_contents_are_tried)
{
	_cleanup_free_ char *directory = str_path_join(place.dir, "state");
	struct error err = ERROR_INIT;
	struct told told;

	allow(MANY);
	ck_ok(file_write_atomic(directory, "x", 1, 0644, &err), &err);
	put("a");
	wait_for(&told);
	run_until(&told);
	ck_assert_int_lt(told.code, 0);
	ck_assert_ptr_nonnull(strstr(told.message, directory));
	ck_assert(file_writer_failed(place.writer));
	ck_assert_int_eq(unlink(directory), 0);
	put("b");
	wait_for(&told);
	run_until(&told);
	ck_assert_int_eq(told.code, 0);
	ck_assert(!file_writer_failed(place.writer));
	check_file("b");
}
END_TEST

START_TEST(the_end_waits_for_the_disk)
{
	struct told told;

	put("a");
	await_sync();
	put("b");
	wait_for(&told);
	allow(MANY);
	file_writer_destroy(steal_pointer(place.writer));
	ck_assert_int_eq(told.times, 1);
	ck_assert_int_eq(told.code, 0);
	check_file("b");
}
END_TEST

static int create(void *context, struct error *err)
{
	struct file_writer *w = NULL;
	int r = file_writer_create(place.event, place.path, "nothing", &w, err);

	ck_assert_int_eq(w != NULL, r == 0);
	file_writer_destroy(w);
	return r;
}

/* A waiter that cannot be added is not called; what cannot be written later is not put. */
START_TEST(without_memory_nothing_is_promised)
{
	struct told told = {0};
	struct error err = ERROR_INIT;

	memory_runs_out(create, NULL);
	ck_assert_int_eq(file_writer_put(place.writer, NULL, &err), -ENOMEM);
	put("one");
	memory_left = 1;
	ck_assert_int_eq(file_writer_wait(place.writer, on_written, &told, &err), -ENOMEM);
	memory_left = 0;
	ck_assert_str_eq(err.message, "out of memory");
	allow(MANY);
	wait_for(&told);
	run_until(&told);
	ck_assert_int_eq(told.times, 1);
	ck_assert_int_eq(told.code, 0);
	check_file("one");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("file_writer");
	TCase *tc = tcase_create("file_writer");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, a_slow_disk_delays_the_waiter_alone);
	tcase_add_test(tc, the_newest_contents_are_written);
	tcase_add_test(tc, after_a_failure_the_next_contents_are_tried);
	tcase_add_test(tc, the_end_waits_for_the_disk);
	tcase_add_test(tc, without_memory_nothing_is_promised);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
