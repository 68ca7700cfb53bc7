/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how a node reads the logs of its ranks. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"
#include "node/log_reader.h"

static char *dir, *path;
static sd_event *event;
static int wakeups;

static void setup(void)
{
	dir = unit_tmpdir();
	path = str_path_join(dir, "rank-0.log");
	ck_assert_int_ge(sd_event_new(&event), 0);
	wakeups = 0;
}

static void teardown(void)
{
	sd_event_unref(event);
	file_remove_tree(dir, NULL);
	free(path);
	free(dir);
}

static void append(const char *text)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

	ck_assert_int_eq(write(fd, text, strlen(text)), strlen(text));
}

static void on_wakeup(void *context)
{
	wakeups++;
}

/* Everything written so far, and the result of the read after it. */
static ssize_t drain(struct log_reader *reader, char *text, size_t size)
{
	size_t n = 0;
	ssize_t r;

	while ((r = log_reader_read(reader, text + n, MIN(size - 1 - n, (size_t)3))) > 0)
		n += r;
	text[n] = '\0';
	return r;
}

START_TEST(tails_count_lines)
{
	static const struct {
		const char *content;
		int64_t tail;
		const char *want;
	} cases[] = {
	    {"a\nb\nc\n", -1, "a\nb\nc\n"},
	    {"a\nb\nc\n", 2, "b\nc\n"},
	    {"a\nb\nc", 1, "c"},
	    {"a\nb\nc", 2, "b\nc"},
	    {"a\nb\nc\n", 9, "a\nb\nc\n"},
	    {"a\nb\nc\n", 0, ""},
	    {"", 3, ""},
	    {"\n\n\n", 2, "\n\n"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(log_reader_closep) struct log_reader *reader = NULL;
		struct error err = ERROR_INIT;
		char text[64];

		unlink(path);
		append(cases[i].content);
		ck_ok(log_reader_open(NULL, path, cases[i].tail, false, NULL, NULL, &reader, &err), &err);
		ck_assert_int_eq(drain(reader, text, sizeof text), 0);
		ck_assert_str_eq(text, cases[i].want);
	}
}
END_TEST

START_TEST(a_long_tail_crosses_blocks)
{
	_cleanup_(log_reader_closep) struct log_reader *reader = NULL;
	struct error err = ERROR_INIT;
	char line[32], text[65536];

	for (int i = 0; i < 5000; i++) {
		snprintf(line, sizeof line, "line %d\n", i);
		append(line);
	}
	ck_ok(log_reader_open(NULL, path, 3000, false, NULL, NULL, &reader, &err), &err);
	drain(reader, text, sizeof text);
	ck_assert(str_starts(text, "line 2000\n"));
	ck_assert(str_ends(text, "line 4999\n"));
}
END_TEST

START_TEST(a_tail_of_a_hole_is_not_looked_for_long)
{
	_cleanup_(log_reader_closep) struct log_reader *reader = NULL;
	struct error err = ERROR_INIT;
	char block[65536];
	size_t sum = 0;
	ssize_t n;

	append("one\n");
	ck_assert_int_eq(truncate(path, (off_t)1 << 40), 0);
	append("two\n");
	ck_ok(log_reader_open(NULL, path, 2, false, NULL, NULL, &reader, &err), &err);
	while ((n = log_reader_read(reader, block, sizeof block)) > 0)
		sum += n;
	ck_assert_int_eq(n, 0);
	ck_assert_uint_le(sum, 32 << 20);
}
END_TEST

START_TEST(what_is_appended_wakes_and_comes)
{
	_cleanup_(log_reader_closep) struct log_reader *reader = NULL;
	struct error err = ERROR_INIT;
	char text[64];

	append("one\n");
	ck_ok(log_reader_open(event, path, -1, true, on_wakeup, NULL, &reader, &err), &err);
	ck_assert_int_eq(drain(reader, text, sizeof text), -EAGAIN);
	ck_assert_str_eq(text, "one\n");
	append("two\n");
	while (!wakeups)
		ck_assert_int_gt(sd_event_run(event, 10000000), 0);
	ck_assert_int_eq(drain(reader, text, sizeof text), -EAGAIN);
	ck_assert_str_eq(text, "two\n");
	/* A truncated file is read from the start. */
	ck_assert_int_eq(truncate(path, 0), 0);
	append("3\n");
	ck_assert_int_eq(drain(reader, text, sizeof text), -EAGAIN);
	ck_assert_str_eq(text, "3\n");
	wakeups = 0;
	append("last\n");
	log_reader_finish(reader);
	while (!wakeups)
		ck_assert_int_gt(sd_event_run(event, 10000000), 0);
	ck_assert_int_eq(drain(reader, text, sizeof text), 0);
	ck_assert_str_eq(text, "last\n");
}
END_TEST

START_TEST(a_missing_log_is_told)
{
	struct log_reader *reader;
	struct error err = ERROR_INIT;

	ck_fails(log_reader_open(event, path, -1, true, on_wakeup, NULL, &reader, &err), &err,
	         "cannot read log");
	ck_assert_int_eq(err.code, -ENOENT);
}
END_TEST

/* A user who puts a link or a FIFO in the place of a log cannot read another user's file that way, and delays
 * no other request. */
START_TEST(only_a_file_itself_is_read)
{
	_cleanup_free_ char *link_path = str_path_join(dir, "link"), *fifo = str_path_join(dir, "fifo");
	struct log_reader *reader = NULL;
	struct error err = ERROR_INIT;
	char text[16];

	append("secret\n");
	ck_assert_int_eq(symlink(path, link_path), 0);
	ck_assert_int_lt(log_reader_open(event, link_path, -1, false, on_wakeup, NULL, &reader, &err), 0);
	ck_assert_ptr_null(reader);
	ck_assert_int_eq(mkfifo(fifo, 0600), 0);
	if (log_reader_open(event, fifo, -1, false, on_wakeup, NULL, &reader, &err) == 0) {
		ck_assert_int_le(drain(reader, text, sizeof text), 0);
		ck_assert_str_eq(text, "");
		log_reader_close(reader);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_logs");
	TCase *tc = tcase_create("logs");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, only_a_file_itself_is_read);
	tcase_add_test(tc, tails_count_lines);
	tcase_add_test(tc, a_long_tail_crosses_blocks);
	tcase_add_test(tc, a_tail_of_a_hole_is_not_looked_for_long);
	tcase_add_test(tc, what_is_appended_wakes_and_comes);
	tcase_add_test(tc, a_missing_log_is_told);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
