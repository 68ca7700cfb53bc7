/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of the store as an answer, no faster than its caller reads. Server and controller are stand-ins. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cluster/store.h"
#include "controller/controller.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "fake_request.h"

enum { MIB = 1 << 20 };

/* ---- what backup.c calls ---- */

static bool may;

bool caller_may(const struct http_caller *caller, int64_t uid)
{
	ck_assert_int_eq(uid, 0);
	return may;
}

static struct {
	void (*done)(void *context, int code, const struct error *err);
	void *context;
	char *path;
	int code, freed;
} copy;

int controller_backup_begin(struct controller *c, const char *path,
                            void (*done)(void *context, int code, const struct error *err), void *context,
                            struct store_backup **out, struct error *err)
{
	if (copy.code < 0)
		return error_set(err, copy.code, "no copy");
	copy.done = done;
	copy.context = context;
	copy.path = strdup(path);
	*out = (struct store_backup *)&copy;
	return 0;
}

void store_backup_free(struct store_backup *b)
{
	copy.freed += b != NULL;
}

/* ---- the service ---- */

static char *dir;
static struct daemon d;
static struct daemon_config config;
static struct settings settings = {.config = &config};
static struct http_request request;

static void setup(void)
{
	dir = unit_tmpdir();
	config.state_dir = dir;
	d.settings = &settings;
	may = true;
}

static void teardown(void)
{
	fake_request_close(&request);
	ck_assert(!d.backup);
	free(copy.path);
	file_remove_tree(dir, NULL);
	free(dir);
}

static void ask(void)
{
	route_backup(&d, &request);
}

/* The store's thread has written so many bytes. */
static void copied(size_t size)
{
	_cleanup_free_ char *data = calloc(1, size + 1);
	_cleanup_close_ int fd = open(copy.path, O_WRONLY | O_CLOEXEC);
	struct error err = ERROR_INIT;

	memset(data, 'x', size);
	if (size)
		data[size - 1] = 'z';
	ck_ok(file_write_all(fd, data, size, &err), &err);
	copy.done(copy.context, 0, NULL);
}

/* ---- tests ---- */

START_TEST(a_copy_is_streamed_as_its_caller_reads)
{
	const struct http_stream *s = &request.stream;
	size_t sent = 0;

	ask();
	ck_assert(d.backup);
	ck_assert_ptr_null(s->head);
	copied(3 * MIB + 5);
	ck_assert(!file_exists(copy.path));
	ck_assert_int_eq(copy.freed, 1);
	ck_assert_str_eq(s->head, "200 application/vnd.sqlite3");
	for (int i = 1; i <= 3; i++) {
		ck_assert_uint_eq(s->text.len - sent, MIB);
		sent = s->text.len;
		ck_assert(!s->ended);
		fake_stream_drain(&request.stream);
	}
	ck_assert_uint_eq(s->text.len, 3 * MIB + 5);
	ck_assert_int_eq(s->text.data[3 * MIB + 4], 'z');
	ck_assert_int_eq(s->text.data[0], 'x');
	ck_assert(s->ended);
	ck_assert(d.backup); /* until the end has been sent */
}
END_TEST

START_TEST(one_copy_is_made_at_a_time)
{
	struct http_request second = {0};

	ask();
	route_backup(&d, &second);
	ck_assert_str_eq(second.answer, "409 busy: the store is being copied already");
	fake_request_close(&second);
	ck_assert(d.backup);
	copied(0);
	ck_assert(request.stream.ended);
	fake_request_close(&request);
	ck_assert(!d.backup);
	free(steal_pointer(copy.path));
	ask();
	ck_assert(d.backup);
}
END_TEST

START_TEST(a_caller_that_goes_leaves_no_copy)
{
	ask();
	ck_assert(file_exists(copy.path));
	fake_request_close(&request);
	ck_assert_int_eq(copy.freed, 1);
	ck_assert(!file_exists(copy.path));
	ck_assert(!d.backup);
}
END_TEST

START_TEST(a_copy_that_fails_is_an_error)
{
	struct error err = ERROR_INIT;

	error_set(&err, -ENOSPC, "the disk is full");
	ask();
	copy.done(copy.context, -ENOSPC, &err);
	ck_assert_str_eq(request.answer, "500 store: the disk is full");
	ck_assert_int_eq(copy.freed, 1);
	ck_assert(!file_exists(copy.path));
	ck_assert(!d.backup);
}
END_TEST

START_TEST(a_copy_that_does_not_begin_is_an_error)
{
	copy.code = -ENOMEM;
	ask();
	ck_assert_str_eq(request.answer, "500 store: no copy");
	fake_request_close(&request);
	copy.code = 0;
	config.state_dir = (char *)"/nonexistent";
	ask();
	ck_assert_str_eq(request.answer,
	                 "500 store: cannot make a file in /nonexistent: No such file or directory");
	ck_assert_int_eq(copy.freed, 0);
}
END_TEST

START_TEST(a_copy_is_for_administrators)
{
	may = false;
	ask();
	ck_assert_str_eq(request.answer,
	                 "403 not-allowed: only administrators may copy the store: it holds the "
	                 "variables of all users");
}
END_TEST

START_TEST(what_was_left_is_removed)
{
	_cleanup_free_ char *left = str_path_join(dir, "backup.abc"), *other = str_path_join(dir, "backups");
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(left, "", 0, 0600, &err), &err);
	ck_ok(file_write_atomic(other, "", 0, 0600, &err), &err);
	backup_remove_leftovers(dir);
	ck_assert(!file_exists(left));
	ck_assert(file_exists(other));
	backup_remove_leftovers("/nonexistent");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("backup route");
	TCase *tc = tcase_create("backup route");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_copy_is_streamed_as_its_caller_reads);
	tcase_add_test(tc, one_copy_is_made_at_a_time);
	tcase_add_test(tc, a_caller_that_goes_leaves_no_copy);
	tcase_add_test(tc, a_copy_that_fails_is_an_error);
	tcase_add_test(tc, a_copy_that_does_not_begin_is_an_error);
	tcase_add_test(tc, a_copy_is_for_administrators);
	tcase_add_test(tc, what_was_left_is_removed);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
