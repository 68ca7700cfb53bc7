/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how a node reads the logs of its ranks. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"
#include "node/log_quota.h"
#include "node/log_reader.h"
#include "node/run_files.h"

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

static int64_t blocks(void)
{
	struct stat st;

	ck_assert_int_eq(stat(path, &st), 0);
	return (int64_t)st.st_blocks * 512;
}

/* Lines of 100 bytes, which begin with their numbers. */
static void append_lines(int from, int to)
{
	_cleanup_strbuf_ struct strbuf text = {0};

	for (int i = from; i < to; i++)
		strbuf_addf(&text, "%-98d.\n", i);
	append(text.data);
}

/* All of the log as a reader has it: the notice, then whole lines to the last one. Returns the first. */
static int read_shortened(int64_t tail, int last)
{
	_cleanup_(log_reader_closep) struct log_reader *reader = NULL;
	_cleanup_strbuf_ struct strbuf text = {0};
	static const char words[] = " bytes before this line were removed: log_quota is 1 MiB]\n";
	struct error err = ERROR_INIT;
	char block[10000], *line;
	int first = -1;
	ssize_t n;

	ck_ok(log_reader_open(NULL, path, tail, false, NULL, NULL, &reader, &err), &err);
	while ((n = log_reader_read(reader, block, sizeof(block))) > 0)
		strbuf_add(&text, block, (size_t)n);
	ck_assert_int_eq(n, 0);
	ck_assert_uint_eq(strlen(text.data), text.len);
	ck_assert_msg(str_starts(text.data, "[dtrain: "), "%.100s", text.data);
	line = strchr(text.data, '\n') + 1;
	ck_assert_msg(line - text.data > (ssize_t)strlen(words) && str_starts(line - strlen(words), words),
	              "%.100s", text.data);
	for (; *line; line += 100) {
		if (first < 0)
			first = atoi(line);
		else
			ck_assert_int_eq(atoi(line), atoi(line - 100) + 1);
	}
	ck_assert_int_eq(atoi(line - 100), last);
	return first;
}

START_TEST(the_oldest_part_of_a_long_log_goes)
{
	_cleanup_(log_reader_closep) struct log_reader *reader = NULL;
	struct error err = ERROR_INIT;
	int64_t removed = 7;
	char block[1000];
	int first;

	append_lines(0, 5000);
	ck_ok(log_quota_apply(path, 1 << 20, &removed, &err), &err);
	ck_assert_int_eq(removed, 0);
	/* One reader is at the beginning meanwhile. */
	ck_ok(log_reader_open(NULL, path, -1, false, NULL, NULL, &reader, &err), &err);
	ck_assert_int_eq(log_reader_read(reader, block, sizeof(block)), sizeof(block));
	append_lines(5000, 30000);
	if (log_quota_apply(path, 1 << 20, &removed, &err) == -EOPNOTSUPP) {
		printf("node_logs: this file system has no holes: log_quota is not tested\n");
		return;
	}
	ck_ok(err.code, &err);
	ck_assert_int_gt(removed, 2000000);
	ck_assert_int_le(blocks(), 1 << 20);
	first = read_shortened(-1, 29999);
	ck_assert_int_eq(first, (int)(removed / 100));
	ck_assert_int_ge(first, 30000 - (1 << 20) / 100);
	ck_assert_int_eq(read_shortened(100000, 29999), first);
	ck_assert_int_gt(log_reader_read(reader, block, sizeof(block)), 0);
	ck_assert(str_starts(block, "[dtrain: "));
	/* Once more, with the first notice in what goes. */
	append_lines(30000, 40000);
	ck_ok(log_quota_apply(path, 1 << 20, &removed, &err), &err);
	ck_assert_int_le(blocks(), 1 << 20);
	ck_assert_int_gt(read_shortened(-1, 39999), first);
	ck_ok(log_quota_apply(path, 1 << 20, &removed, &err), &err);
	ck_assert_int_eq(removed, 0);
}
END_TEST

/* The part that goes ends with a line, however long that is up to 64 KiB; a longer one is cut. */
START_TEST(a_long_line_goes_as_a_whole)
{
	static const struct {
		int length;
		bool whole;
	} cases[] = {{4095, true}, {4096, true}, {10000, true}, {65000, true}, {500000, false}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *line = calloc(1, (size_t)cases[i].length + 1), *text = NULL;
		struct error err = ERROR_INIT;
		int64_t removed, first;
		struct stat st;

		unlink(path);
		memset(line, 'x', (size_t)cases[i].length);
		line[cases[i].length - 1] = '\n';
		for (int size = 0; size < 3000000; size += cases[i].length)
			append(line);
		ck_assert_int_eq(stat(path, &st), 0);
		if (log_quota_apply(path, 1 << 20, &removed, &err) == -EOPNOTSUPP)
			return;
		ck_ok(err.code, &err);
		/* Three quarters of the quota are to stay. */
		first = st.st_size - (3 << 18);
		ck_assert_int_ge(removed, first);
		if (cases[i].whole) {
			ck_assert_int_eq(removed % cases[i].length, 0);
			ck_assert_int_lt(removed, first + cases[i].length);
		} else {
			ck_assert_int_eq(removed, first);
		}
		ck_ok(file_read(path, 0, &text, NULL, &err), &err);
		ck_assert_int_eq(memcmp(text + removed - 2, "]\n", 2), 0);
	}
}
END_TEST

/* Zeros that a program has written are a part of its log. */
START_TEST(zeros_are_read)
{
	_cleanup_(log_reader_closep) struct log_reader *reader = NULL;
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	struct error err = ERROR_INIT;
	char block[16];

	ck_assert_int_eq(write(fd, "\0\0a\0", 4), 4);
	ck_ok(log_reader_open(NULL, path, -1, false, NULL, NULL, &reader, &err), &err);
	ck_assert_int_eq(log_reader_read(reader, block, sizeof(block)), 4);
	ck_assert_int_eq(memcmp(block, "\0\0a\0", 4), 0);
}
END_TEST

/* Behind a hole of the log, the zeros up to its end belong to it, however they are read; those that follow a
 * text do not, and no more than a block of a file system does. */
START_TEST(zeros_behind_a_hole_are_a_part_of_it)
{
	static const struct {
		size_t zeros, kept;
	} cases[] = {{0, 0}, {2, 0}, {5, 0}, {65535, 0}, {65536, 0}, {65537, 1}, {70000, 4464}};
	static char data[70100], text[70100];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		for (size_t size = 3; size <= 4096; size = size == 3 ? 1000 : 4 * size) {
			_cleanup_(log_reader_closep) struct log_reader *reader = NULL;
			_cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
			struct error err = ERROR_INIT;
			size_t n = 0;
			ssize_t r;

			memset(data, 0, cases[i].zeros);
			memcpy(data + cases[i].zeros, "x\0\0\0y\n", 6);
			ck_assert_int_eq(pwrite(fd, data, cases[i].zeros + 6, 1 << 20), cases[i].zeros + 6);
			if (lseek(fd, 0, SEEK_DATA) != 1 << 20) {
				printf("node_logs: this file system has no holes: they are not tested\n");
				return;
			}
			ck_ok(log_reader_open(NULL, path, -1, false, NULL, NULL, &reader, &err), &err);
			while ((r = log_reader_read(reader, text + n, size)) > 0)
				n += (size_t)r;
			ck_assert_int_eq(r, 0);
			ck_assert_uint_eq(n, cases[i].kept + 6);
			ck_assert_int_eq(memcmp(text, data + cases[i].zeros - cases[i].kept, n), 0);
		}
}
END_TEST

/* The directory of a log is not its user's; but what is no log, or has another name, too, is left alone. */
START_TEST(only_a_log_itself_is_shortened)
{
	_cleanup_free_ char *other = str_path_join(dir, "other"), *link_path = str_path_join(dir, "link");
	struct error err = ERROR_INIT;
	int64_t removed;

	append_lines(0, 20000);
	ck_assert_int_eq(symlink(path, link_path), 0);
	ck_assert_int_eq(log_quota_apply(link_path, 1 << 20, &removed, &err), -ELOOP);
	ck_assert_int_eq(link(path, other), 0);
	ck_ok(log_quota_apply(path, 1 << 20, &removed, &err), &err);
	ck_assert_int_eq(removed, 0);
	ck_assert_int_eq(log_quota_apply("/nowhere/rank-0.log", 1 << 20, &removed, &err), -ENOENT);
}
END_TEST

/* A reader goes on where another one was. */
START_TEST(a_position_can_be_gone_on_from)
{
	static const struct {
		int64_t offset, tail, begin;
		const char *want;
	} cases[] = {{0, -1, 0, "one\ntwo\n"}, {4, -1, 4, "two\n"}, {6, 1, 6, "o\n"},
	             {2, 0, 2, "e\ntwo\n"},    {8, -1, 8, ""},      {9, -1, 0, "one\ntwo\n"}};

	append("one\ntwo\n");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(log_reader_closep) struct log_reader *reader = NULL;
		struct error err = ERROR_INIT;
		char text[64];

		ck_ok(log_reader_open(NULL, path, cases[i].tail, false, NULL, NULL, &reader, &err), &err);
		log_reader_seek(reader, cases[i].offset);
		ck_assert_int_eq(log_reader_position(reader), cases[i].begin);
		ck_assert_int_eq(drain(reader, text, sizeof text), 0);
		ck_assert_str_eq(text, cases[i].want);
		ck_assert_int_eq(log_reader_position(reader), 8);
	}
}
END_TEST

/* It is that of the file, with what log_quota has removed. */
START_TEST(a_position_counts_what_was_removed)
{
	_cleanup_(log_reader_closep) struct log_reader *reader = NULL;
	struct error err = ERROR_INIT;
	_cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	char text[64], same[64];
	int64_t removed;
	ssize_t n;

	append_lines(0, 20000);
	ck_ok(log_quota_apply(path, 1 << 20, &removed, &err), &err);
	ck_assert_int_gt(removed, 0);
	ck_ok(log_reader_open(NULL, path, -1, false, NULL, NULL, &reader, &err), &err);
	log_reader_seek(reader, 100);
	n = log_reader_read(reader, text, sizeof text);
	ck_assert_int_gt(n, 0);
	ck_assert_int_gt(log_reader_position(reader), 1000000);
	ck_assert_int_eq(pread(fd, same, (size_t)n, log_reader_position(reader) - n), n);
	ck_assert_int_eq(memcmp(text, same, (size_t)n), 0);
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

/* Who has not been told that there is nothing to read is not woken, and no waiter is woken twice. */
START_TEST(only_a_reader_that_waits_is_woken)
{
	_cleanup_(log_reader_closep) struct log_reader *reader = NULL;
	struct error err = ERROR_INIT;
	char text[64];

	append("one\n");
	ck_ok(log_reader_open(event, path, -1, true, on_wakeup, NULL, &reader, &err), &err);
	append("two\n");
	while (sd_event_run(event, 0) > 0)
		;
	ck_assert_int_eq(wakeups, 0);
	ck_assert_int_eq(drain(reader, text, sizeof text), -EAGAIN);
	ck_assert_str_eq(text, "one\ntwo\n");
	append("three\n");
	while (!wakeups)
		ck_assert_int_gt(sd_event_run(event, UINT64_MAX), 0);
	append("four\n");
	while (sd_event_run(event, 0) > 0)
		;
	ck_assert_int_eq(wakeups, 1);
	log_reader_finish(reader);
	while (sd_event_run(event, 0) > 0)
		;
	ck_assert_int_eq(wakeups, 1);
	ck_assert_int_eq(drain(reader, text, sizeof text), 0);
	ck_assert_str_eq(text, "three\nfour\n");
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
	ck_ok(log_reader_open(event, dir, -1, false, on_wakeup, NULL, &reader, &err), &err);
	ck_assert_int_eq(log_reader_read(reader, text, sizeof text), -EISDIR);
	log_reader_close(reader);
}
END_TEST

static char *file_of(const char *directory, int run, const char *name)
{
	return str_printf("%s/%s/%d/%s", dir, directory, run, name);
}

/* A file whose last change was so many days ago, as that of its directories; day 1000 is today. */
static void make_file(const char *directory, int run, const char *name, int days)
{
	_cleanup_free_ char *file = file_of(directory, run, name), *parent = strdup(file),
	                    *top = str_printf("%s/%s/%d", dir, directory, run);
	const struct timespec times[2] = {{(1000 - days) * 86400L, 0}, {(1000 - days) * 86400L, 0}};
	struct error err = ERROR_INIT;

	*strrchr(parent, '/') = '\0';
	ck_ok(file_mkdirs(parent, 0755, &err), &err);
	ck_ok(file_write_atomic(file, "some text", 9, 0644, &err), &err);
	ck_assert_int_eq(utimensat(AT_FDCWD, file, times, 0), 0);
	ck_assert_int_eq(utimensat(AT_FDCWD, parent, times, 0), 0);
	ck_assert_int_eq(utimensat(AT_FDCWD, top, times, 0), 0);
}

/* Runs 1 to 6, and a directory that is not of a run. Run 2 has metrics that changed later, run 3 has not
 * ended. */
START_TEST(old_files_are_removed)
{
	static const struct {
		double days;
		int64_t runs;
		const char *removed;
	} cases[] = {
	    {0, 0, ""},    {15, 0, "1,4,"},        {0, 2, "1,2,4,"},
	    {35, 5, "1,"}, {0.5, 100, "1,2,4,5,"}, {15, 1, "1,2,4,5,"},
	};
	_cleanup_free_ char *logs = str_path_join(dir, "logs"), *metrics = str_path_join(dir, "metrics"),
	                    *other = str_path_join(dir, "logs/keep/x");
	const int64_t in_use[] = {3, 99};
	struct run_files_plan plan = {
	    .directories = {logs, metrics}, .in_use = in_use, .in_use_count = 2, .now = 1000 * 86400.0};
	static const int ages[] = {60, 50, 40, 20, 10, 0};
	_cleanup_strbuf_ struct strbuf removed = {0};
	struct prune_answer answer;
	struct error err = ERROR_INIT;

	for (int run = 1; run <= 6; run++)
		make_file("logs", run, "1/rank-0.log", ages[run - 1]);
	make_file("metrics", 2, "metrics.jsonl", 1);
	ck_ok(file_mkdirs(other, 0755, &err), &err);
	plan.days = cases[_i].days;
	plan.runs = cases[_i].runs;
	for (int real = 0; real < 2; real++) {
		plan.dry_run = !real;
		strbuf_reset(&removed);
		ck_ok(run_files_prune(&plan, &answer, &err), &err);
		for (size_t i = 0; i < answer.run_count; i++) {
			strbuf_addf(&removed, "%lld,", (long long)answer.runs[i].run);
			ck_assert_int_gt(answer.runs[i].bytes, 0);
		}
		ck_assert_str_eq(removed.data ? removed.data : "", cases[_i].removed);
		ck_assert_int_eq(answer.kept + (int64_t)answer.run_count, 6);
		ck_assert_ptr_null(answer.error);
		for (int run = 1; run <= 6; run++) {
			_cleanup_free_ char *log = file_of("logs", run, "1/rank-0.log"),
			                    *name = str_printf("%d,", run);

			ck_assert_int_eq(file_exists(log), !real || !strstr(cases[_i].removed, name));
		}
		prune_answer_release(&answer);
	}
	ck_assert(file_exists(other));
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
	tcase_add_test(tc, the_oldest_part_of_a_long_log_goes);
	tcase_add_test(tc, a_long_line_goes_as_a_whole);
	tcase_add_test(tc, zeros_are_read);
	tcase_add_test(tc, zeros_behind_a_hole_are_a_part_of_it);
	tcase_add_test(tc, only_a_reader_that_waits_is_woken);
	tcase_add_test(tc, only_a_log_itself_is_shortened);
	tcase_add_test(tc, a_position_can_be_gone_on_from);
	tcase_add_test(tc, a_position_counts_what_was_removed);
	tcase_add_test(tc, what_is_appended_wakes_and_comes);
	tcase_add_test(tc, a_missing_log_is_told);
	tcase_add_loop_test(tc, old_files_are_removed, 0, 6);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
