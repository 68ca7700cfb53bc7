/* SPDX-License-Identifier: Apache-2.0 */
/* Tests base/: strings, numbers, hashes, files and JSON. */
#include "open_fds.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/boot_id.h"
#include "base/hash.h"
#include "base/hub_name.h"
#include "base/json.h"
#include "base/lease_file.h"
#include "base/log.h"
#include "base/random.h"
#include "base/socket.h"
#include "base/str.h"
#include "base/thread.h"

START_TEST(names_of_hubs_are_told_from_paths)
{
	static const char *const no[] = {"",      "model", "/model", "model/", "./a/b", "../model",
	                                 "a/b/c", "~/m",   "/a/b/c", "./m",    "a//b",  "a/config.json"};

	ck_assert(is_hub_name("meta-llama/Llama-3.2-1B"));
	for (size_t i = 0; i < ARRAY_SIZE(no); i++)
		ck_assert_msg(!is_hub_name(no[i]), "%s", no[i]);
}
END_TEST

START_TEST(strbuf_grows_and_formats)
{
	_cleanup_strbuf_ struct strbuf b = {0};

	for (int i = 0; i < 1000; i++)
		strbuf_addf(&b, "%d,", i);
	ck_assert(!b.failed);
	ck_assert_uint_eq(b.len, 10 * 2 + 90 * 3 + 900 * 4);
	ck_assert_uint_eq(strlen(b.data), b.len);
	ck_assert(str_ends(b.data, ",999,"));
}
END_TEST

START_TEST(strings_are_replaced)
{
	char *own = NULL;

	ck_assert_int_eq(str_replace(&own, "one"), 0);
	ck_assert_str_eq(own, "one");
	/* Also by a part of itself. */
	ck_assert_int_eq(str_replace(&own, own + 1), 0);
	ck_assert_str_eq(own, "ne");
	ck_assert_int_eq(str_replace(&own, ""), 0);
	ck_assert_str_eq(own, "");
	ck_assert_int_eq(str_replace(&own, NULL), 0);
	ck_assert_ptr_null(own);
}
END_TEST

START_TEST(names_of_hosts_are_the_same_in_upper_and_lower_case)
{
	ck_assert(str_eq_host("n1.example.org", "N1.Example.ORG"));
	ck_assert(!str_eq_host("n1", "n2"));
	ck_assert(!str_eq_host("n1", "n1.example.org"));
	ck_assert(!str_eq_host("n1", NULL));
	ck_assert(!str_eq_host(NULL, "n1"));
	ck_assert(str_eq_host(NULL, NULL));
}
END_TEST

START_TEST(lists_are_copied)
{
	char *list[] = {(char *)"one", (char *)"", NULL}, **copy = str_list_copy(list),
	     **none = str_list_copy(NULL);

	ck_assert_ptr_ne(copy[0], list[0]);
	ck_assert_str_eq(copy[0], "one");
	ck_assert_str_eq(copy[1], "");
	ck_assert_ptr_null(copy[2]);
	ck_assert_ptr_null(none[0]);
	str_list_free(copy);
	str_list_free(none);
}
END_TEST

START_TEST(bytes_become_utf8)
{
	static const struct {
		const char *from, *to;
	} cases[] = {
	    {"", ""},
	    {"plain", "plain"},
	    {"h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80", "h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80"},
	    {"cut \xe4\xb8", "cut ??"},                         /* in the middle of a character */
	    {"\xff\x80z", "??z"},                               /* no byte of any, one that begins none */
	    {"\xc0\xaf \xe0\x80\xaf", "?? ???"},                /* longer than needed */
	    {"\xed\xa0\x80", "???"},                            /* half a surrogate pair */
	    {"\xf4\x90\x80\x80 \xf8\x88\x80\x80", "???? ????"}, /* above the last code point */
	};
	char plain[32];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *s = strdup(cases[i].from);

		ck_assert_int_eq(str_is_utf8(cases[i].from), str_eq(cases[i].from, cases[i].to));
		ck_assert_str_eq(str_make_utf8(s), cases[i].to);
	}
	strcpy(plain, "\033[2J a\tb\nc\r\177 h\xc3\xa9");
	ck_assert_str_eq(str_make_plain(plain), "?[2J a\tb\nc?? h\xc3\xa9");
	strcpy(plain, "\xc2\x80 \xc2\x9b"
	              "2J \xc2\xa0 \xc3\x9b \xc2"); /* U+009B is ESC [ for terminals */
	ck_assert_str_eq(str_make_plain(plain), "?? ??2J \xc2\xa0 \xc3\x9b \xc2");
}
END_TEST

START_TEST(numbers_are_whole_strings)
{
	int64_t v = 7;
	double d = 7;

	ck_assert_int_eq(str_to_int64("42", 0, 100, &v), 0);
	ck_assert_int_eq(v, 42);
	ck_assert_int_eq(str_to_int64("4junk", 0, 100, &v), -EINVAL);
	ck_assert_int_eq(str_to_int64("101", 0, 100, &v), -ERANGE);
	ck_assert_int_eq(str_to_int64("99999999999999999999", 0, INT64_MAX, &v), -ERANGE);
	ck_assert_int_eq(str_to_int64("", 0, 100, &v), -EINVAL);
	ck_assert_int_eq(v, 42);
	errno = ERANGE; /* what was wrong before is not wrong with this one */
	ck_assert_int_eq(str_to_int64("43", 0, 100, &v), 0);
	ck_assert_int_eq(v, 43);
	ck_assert_int_eq(str_to_double("1e-4", &d), 0);
	ck_assert_double_eq(d, 1e-4);
	ck_assert_int_eq(str_to_double("nan", &d), -EINVAL);
	ck_assert_int_eq(str_to_double("", &d), -EINVAL);
	ck_assert_int_eq(str_to_double(" 1", &d), -EINVAL);
	ck_assert_int_eq(str_to_double("1x", &d), -EINVAL);
	ck_assert_int_eq(str_to_double("1e999", &d), -EINVAL);
	ck_assert_double_eq(d, 1e-4);
	ck_assert_int_eq(str_to_int64(" 1", 0, 100, &v), -EINVAL);
	ck_assert_int_eq(str_to_int64("-1", 0, 100, &v), -ERANGE);
	ck_assert_int_eq(str_to_int64("0", 0, 100, &v), 0);
	ck_assert_int_eq(v, 0);
	ck_assert_int_eq(str_to_int64("100", 0, 100, &v), 0);
	ck_assert_int_eq(v, 100);
}
END_TEST

START_TEST(words_for_sizes_and_times)
{
	static const struct {
		double seconds;
		const char *words;
	} durations[] = {{-5, "0s"},       {0.4, "0s"},      {59.4, "59s"},   {59.6, "1m00s"},
	                 {60, "1m00s"},    {3599, "59m59s"}, {3600, "1h00m"}, {86399, "23h59m"},
	                 {86400, "1d00h"}, {90000, "1d01h"}};
	char b[32];

	ck_assert_str_eq(str_bytes(b, sizeof(b), 1536), "1.5 KiB");
	ck_assert_str_eq(str_bytes(b, sizeof(b), 312ull << 20), "312 MiB");
	ck_assert_str_eq(str_bytes(b, sizeof(b), 1023), "1023 B");
	ck_assert_str_eq(str_bytes(b, sizeof(b), 1024), "1.0 KiB");
	ck_assert_str_eq(str_bytes(b, sizeof(b), 100ull << 10), "100 KiB");
	ck_assert_str_eq(str_bytes(b, sizeof(b), UINT64_MAX), "16384 PiB");
	ck_assert_str_eq(str_duration(b, sizeof(b), 190), "3m10s");
	ck_assert_str_eq(str_duration(b, sizeof(b), 7500), "2h05m");
	for (size_t i = 0; i < ARRAY_SIZE(durations); i++)
		ck_assert_str_eq(str_duration(b, sizeof(b), durations[i].seconds), durations[i].words);
	ck_assert_str_eq(str_duration(b, sizeof(b), NAN), "0s");
	ck_assert_uint_le(strlen(str_duration(b, sizeof(b), 1e308)), 16);
	ck_assert_str_eq(str_measure(b, sizeof(b), 2.302585, 4), "2.3026");
	ck_assert_str_eq(str_measure(b, sizeof(b), 1e6, 2), "1.000e+06");
	ck_assert_str_eq(str_measure(b, sizeof(b), 999999, 1), "999999.0");
	ck_assert_str_eq(str_measure(b, sizeof(b), INFINITY, 2), "inf");
	ck_assert_str_eq(str_measure(b, sizeof(b), 0.5, 12), "0.50000000");
	ck_assert_str_eq(str_measure(b, sizeof(b), -999999.5, 2), "-999999.50");
	ck_assert_str_eq(str_measure(b, sizeof(b), 1e308, 4), "1.000e+308");
	ck_assert_str_eq(str_measure(b, sizeof(b), -1e308, 4), "-1.000e+308");
	ck_assert_str_eq(str_measure(b, sizeof(b), 123456789, 0), "1.235e+08");
}
END_TEST

/* The results of libxxhash 0.8.1 for the same bytes. */
START_TEST(hashes_are_those_of_xxhash)
{
	static const struct {
		size_t len;
		uint64_t seed, hash;
	} cases[] = {
	    {0, 0, 0xef46db3751d8e999u},
	    {1, 0, 0xe934a84adb052768u},
	    {3, 1, 0xe28289efff1ffcf1u},
	    {7, 0, 0x988bac4681d0b05cu},
	    {8, 2, 0x9bd97d972366f605u},
	    {12, 0, 0xc82567b97b6d3c30u},
	    {31, 0, 0xf3276aa3eed4830bu},
	    {32, 0, 0x4e9e0d46d4c19d60u},
	    {33, 5, 0xa7cbf936954be110u},
	    {63, 0, 0xb0ea0ba30a543d2bu},
	    {100, 9223372036854775809u, 0xc2cda6eae01b819bu},
	    {200, 0, 0xe6332600dd09ddf6u},
	};
	unsigned char text[200], odd[201];

	for (int i = 0; i < 200; i++)
		text[i] = (unsigned char)(i * i * 7 + i * 3);
	memcpy(odd + 1, text, sizeof(text));
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		ck_assert_uint_eq(hash_bytes(text, cases[i].len, cases[i].seed), cases[i].hash);
		ck_assert_uint_eq(hash_bytes(odd + 1, cases[i].len, cases[i].seed), cases[i].hash);
	}
}
END_TEST

START_TEST(atomic_write_replaces_whole_files)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "a/b/file"), *text = NULL;
	_cleanup_free_ char *sub = str_path_join(dir, "a/b");
	struct error err = ERROR_INIT;
	size_t len;

	ck_ok(file_mkdirs(sub, 0755, &err), &err);
	ck_ok(file_write_atomic(path, "one", 3, 0644, &err), &err);
	ck_ok(file_write_atomic(path, "second", 6, 0644, &err), &err);
	ck_ok(file_read(path, 0, &text, &len, &err), &err);
	ck_assert_str_eq(text, "second");
	ck_fails(file_read(path, 3, &text, &len, &err), &err, "larger than 3 bytes");
	ck_fails(file_write_atomic("/nonexistent/x", "a", 1, 0644, &err), &err, "/nonexistent/x");
	ck_ok(file_remove_tree(dir, &err), &err);
	ck_assert(!file_exists(dir));
}
END_TEST

/* Another user may own the directory and the file that is written first, and hold it open. */
START_TEST(atomic_write_takes_no_file_that_is_there)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "key");
	_cleanup_free_ char *theirs = str_printf("%s.tmp.%ld", path, (long)getpid());
	_cleanup_close_ int fd = open(theirs, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	struct error err = ERROR_INIT;
	char seen[8];

	ck_assert_int_ge(fd, 0);
	ck_ok(file_write_atomic(path, "secret", 6, 0600, &err), &err);
	ck_assert_int_eq(pread(fd, seen, sizeof(seen), 0), 0);
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

/* Deeper than directories are open at once, and than a path may be long; a link out of it, and one in its
 * place. */
START_TEST(a_tree_is_removed_and_nothing_else)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *tree = str_path_join(dir, "tree"),
	                    *link = str_path_join(dir, "tree/link"), *kept = str_path_join(dir, "kept"),
	                    *file = str_path_join(dir, "kept/file"),
	                    *taken = str_path_join(dir, "tree/.removed-0/x");
	static const char name[] = "a-directory-with-a-long-name";
	struct error err = ERROR_INIT;
	int at;

	ck_ok(file_mkdirs(kept, 0755, &err), &err);
	ck_ok(file_write_atomic(file, "x", 1, 0644, &err), &err);
	ck_ok(file_mkdirs(taken, 0755, &err), &err);
	ck_assert_int_eq(symlink(kept, link), 0);
	at = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < 500; i++) {
		int below;

		ck_assert_int_eq(mkdirat(at, name, 0700), 0);
		below = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		ck_assert_int_ge(below, 0);
		if (i % 100 == 0)
			ck_assert_int_eq(fchmod(below, 0300), 0);
		close(at);
		at = below;
	}
	close(at);
	ck_ok(file_remove_tree(tree, &err), &err);
	ck_assert(!file_exists(tree));
	ck_assert(file_exists(file));
	ck_assert_int_eq(symlink(kept, tree), 0);
	ck_ok(file_remove_tree(tree, &err), &err);
	ck_assert(file_exists(file));
	ck_ok(file_remove_tree(tree, &err), &err); /* a missing one */
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

/* What is too deep is moved up to a name that is free: these are taken, by a file and by a directory. */
START_TEST(a_deep_tree_finds_free_names)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *file = str_path_join(dir, ".removed-0"),
	                    *full = str_path_join(dir, ".removed-1/x"), *deep = strdup(dir);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(file, "x", 1, 0644, &err), &err);
	ck_ok(file_mkdirs(full, 0755, &err), &err);
	for (int i = 0; i < 70; i++) {
		char *longer = str_path_join(deep, "d");

		free(deep);
		deep = longer;
	}
	ck_ok(file_mkdirs(deep, 0755, &err), &err);
	ck_ok(file_remove_tree(dir, &err), &err);
	ck_assert(!file_exists(dir));
}
END_TEST

/* What cannot be removed is an error, and the reason of the first counts. */
START_TEST(what_cannot_be_removed_is_an_error)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *file = str_path_join(dir, "file"),
	                    *below = str_path_join(dir, "file/below"), *loop = str_path_join(dir, "loop");
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(file, "x", 1, 0644, &err), &err);
	ck_assert_int_eq(file_remove_tree(below, &err), -ENOTDIR);
	ck_assert_ptr_nonnull(strstr(err.message, "cannot remove "));
	ck_assert_ptr_nonnull(strstr(err.message, "/file/below: Not a directory"));
	ck_assert(file_exists(file));
	ck_ok(file_remove_tree(file, &err), &err); /* a file is a small tree */
	ck_assert(!file_exists(file));
	ck_assert_int_eq(symlink("loop", loop), 0);
	ck_ok(file_remove_tree(loop, &err), &err);
	/* Nobody can remove these. */
	ck_assert_int_lt(file_remove_tree("/proc/self/ns", &err), 0);
	ck_assert_ptr_nonnull(strstr(err.message, "cannot remove /proc/self/ns: "));
	ck_ok(file_remove_tree(dir, NULL), &err);
}
END_TEST

/* Pages of this process that lie in files. */
static long file_pages(void)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	long all, resident, shared;

	ck_ok(file_read("/proc/self/statm", 0, &text, NULL, &err), &err);
	ck_assert_int_eq(sscanf(text, "%ld %ld %ld", &all, &resident, &shared), 3);
	return shared;
}

/* A file that was read through a mapping takes no memory of the process any more, and can be read again. */
START_TEST(a_map_is_released)
{
	char dir[] = "/tmp/dtrain-base-XXXXXX";
	size_t len = (size_t)8 << 20, page = (size_t)sysconf(_SC_PAGESIZE);
	_cleanup_free_ char *path = NULL, *data = malloc(len);
	struct error err = ERROR_INIT;
	struct file_map map;
	long before, read = 0;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	path = str_path_join(dir, "data");
	memset(data, 7, len);
	ck_ok(file_write_atomic(path, data, len, 0600, &err), &err);
	ck_ok(file_map_open(path, &map, &err), &err);
	for (size_t at = 0; at < len; at += page)
		read += ((const char *)map.data)[at];
	ck_assert_int_eq(read, 7 * (long)(len / page));
	before = file_pages();
	file_map_release(&map);
	ck_assert_int_lt(file_pages(), before - (long)(len / page) / 2);
	ck_assert_int_eq(memcmp(map.data, data, len), 0);
	file_map_close(&map);
	file_map_release(&map); /* of an empty file */
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

/* Reading a pipe without a writer does not wait; a pipe with a writer is read to its end. */
START_TEST(only_regular_files_are_read)
{
	char dir[] = "/tmp/dtrain-base-XXXXXX";
	_cleanup_free_ char *pipe_path = NULL, *other = NULL, *text = NULL;
	struct error err = ERROR_INIT;
	struct pollfd first = {.events = POLLIN};
	struct file_map map;
	size_t len;
	pid_t child;
	int status;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	pipe_path = str_path_join(dir, "pipe");
	other = str_path_join(dir, "copy");
	ck_assert_int_eq(mkfifo(pipe_path, 0600), 0);
	alarm(20);
	ck_fails(file_read(pipe_path, 0, &text, &len, &err), &err, "/pipe: it is a pipe; a regular file");
	ck_fails(file_map_open(pipe_path, &map, &err), &err, "/pipe: it is a pipe; a regular file");
	ck_fails(file_copy(pipe_path, other, &err), &err, "/pipe: it is a pipe; a regular file");
	ck_fails(file_read("/dev/zero", 0, &text, &len, &err), &err, "/dev/zero: it is a device; a regular");
	ck_fails(file_read(dir, 0, &text, &len, &err), &err, "Is a directory");
	ck_fails(file_map_open(dir, &map, &err), &err, "Is a directory");
	ck_fails(file_read_stream(pipe_path, 0, &text, &len, &err), &err, "nothing writes to this pipe");
	first.fd = open(pipe_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	child = fork();
	if (child == 0) {
		int out = open(pipe_path, O_WRONLY);

		for (int i = 0; i < 50; i++) {
			if (write(out, "0123456789", 10) != 10)
				_exit(1);
			usleep(1000);
		}
		_exit(0);
	}
	ck_assert_int_eq(poll(&first, 1, -1), 1); /* the writer is there */
	ck_ok(file_read_stream(pipe_path, 0, &text, &len, &err), &err);
	close(first.fd);
	ck_assert_uint_eq(len, 500);
	ck_assert_uint_eq(strlen(text), 500);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

START_TEST(json_errors_name_the_line)
{
	struct error err = ERROR_INIT;
	json_t *j = NULL;

	ck_fails(json_parse("{\n\"a\": }", 8, "x.json", &j, &err), &err, "x.json:2: not valid JSON");
	ck_ok(json_parse("{\"a\":1}", 7, "x.json", &j, &err), &err);
	ck_assert_double_eq(json_get_number(j, "a", 0), 1);
	ck_assert_str_eq(json_get_string(j, "a", "none"), "none");
	json_decref(j);
}
END_TEST

/* What Python's json module writes where JSON has no number. */
START_TEST(json_of_python_may_have_other_numbers)
{
	static const struct {
		const char *text, *want;
	} cases[] = {
	    {"{\"a\":NaN,\"b\":[Infinity, -Infinity,1]}",
	     "{\"a\":{\"__float__\":\"NaN\"},\"b\":[{\"__float__\":\"Infinity\"},{\"__float__\":\"-"
	     "Infinity\"},1]}"},
	    {"{\"NaN\":\"Infinity \\\" NaN\",\"c\":NaN}",
	     "{\"NaN\":\"Infinity \\\" NaN\",\"c\":{\"__float__\":\"NaN\"}}"},
	    {"{\"a\":1}", "{\"a\":1}"},
	};
	static const char *const wrong[] = {"{\"a\":\n NaNa}", "{\"a\":\n -NaN}", "{\"a\":\nInfinit}",
	                                    "{\"a\":\nNaN", "{\"a\":\n\"NaN"};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_json_ json_t *j = NULL;
		_cleanup_free_ char *got = NULL;
		struct error err = ERROR_INIT;

		ck_ok(json_parse_python(cases[i].text, strlen(cases[i].text), "x", &j, &err), &err);
		ck_assert_int_eq(err.code, 0);
		got = json_to_string(j);
		ck_assert_str_eq(got, cases[i].want);
	}
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		json_t *j = NULL;
		struct error err = ERROR_INIT;

		ck_fails(json_parse_python(wrong[i], strlen(wrong[i]), "x", &j, &err), &err,
		         "x:2: not valid JSON");
	}
}
END_TEST

START_TEST(json_reals_have_the_fewest_digits)
{
	static const struct {
		double v;
		const char *text;
	} cases[] = {
	    {0.1, "0.1"},
	    {1e-5, "1e-05"},
	    {10000, "10000.0"},
	    {-0.25, "-0.25"},
	    {1e16, "1e+16"},
	    {1e-4, "0.0001"},
	    {123456.789, "123456.789"},
	    {0, "0.0"},
	    {1.0 / 3, "0.3333333333333333"},
	    {NAN, "null"},
	    {1e15, "1000000000000000.0"},
	    {2e-5, "2e-05"},
	    {5e-324, "5e-324"},
	    {2.2250738585072014e-308, "2.2250738585072014e-308"},
	    {1.7976931348623157e308, "1.7976931348623157e+308"},
	    {0.30000000000000004, "0.30000000000000004"},
	    {-100, "-100.0"},
	};
	char buf[40];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		ck_assert_str_eq(json_real_text(buf, sizeof(buf), cases[i].v), cases[i].text);
}
END_TEST

/* The JSON text of the services and the client: like that of jansson, except for reals. */
START_TEST(json_text)
{
	static const char text[] =
	    "{\"b\":[1,-9223372036854775808,true,false,null,[],{}],\"a\":\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001"
	    "\\u001f\\u0000\x7f\xc3\xa9\",\"\xc3\xbc\\n\":\"\"}";
	_cleanup_json_ json_t *j = NULL, *real = json_pack("{s:f}", "rate", 2e-5);
	_cleanup_free_ char *got = NULL, *indented = NULL, *want = NULL, *rate = json_to_string(real);
	struct error err = ERROR_INIT;

	ck_ok(json_parse(text, strlen(text), "x", &j, &err), &err);
	got = json_to_string(j);
	ck_assert_str_eq(got, text);
	indented = json_to_text(j, 2);
	want = json_dumps(j, JSON_INDENT(2));
	for (char *p = want; (p = strstr(p, "\\u001F")); p++)
		memcpy(p, "\\u001f", 6);
	ck_assert_str_eq(indented, want);
	ck_assert_str_eq(rate, "{\"rate\":2e-05}");
	ck_assert_ptr_null(json_to_string(NULL));
}
END_TEST

START_TEST(paths_are_joined)
{
	static const char *const cases[][3] = {{"/a", "b", "/a/b"}, {"/a/", "b", "/a/b"}, {"/a", "/b", "/b"},
	                                       {"", "b", "b"},      {NULL, "b", "b"},     {"/", "b", "/b"}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *got = str_path_join(cases[i][0], cases[i][1]);

		ck_assert_str_eq(got, cases[i][2]);
	}
}
END_TEST

/* Of words that are longer than any name no distance is computed. */
START_TEST(words_have_a_distance)
{
	char longest[200], longer[200];

	memset(longest, 'a', sizeof(longest));
	memset(longer, 'a', sizeof(longer));
	longest[128] = '\0';
	longer[129] = '\0';
	ck_assert_uint_eq(str_distance("", ""), 0);
	ck_assert_uint_eq(str_distance("kitten", "sitting"), 3);
	ck_assert_uint_eq(str_distance("abc", ""), 3);
	ck_assert_uint_eq(str_distance("", "abc"), 3);
	ck_assert_uint_eq(str_distance("b", "aaab"), 3);
	ck_assert_uint_eq(str_distance("b", "baaa"), 3);
	ck_assert_uint_eq(str_distance("ab", "ba"), 1);
	ck_assert_uint_eq(str_distance("xab", "xba"), 1);
	ck_assert_uint_eq(str_distance("abcd", "badc"), 2);
	ck_assert_uint_eq(str_distance(longest, longest), 0);
	ck_assert_uint_eq(str_distance(longest, "a"), 127);
	ck_assert_uint_eq(str_distance(longer, longest), 129);
	ck_assert_uint_eq(str_distance("a", longer), 129);
}
END_TEST

START_TEST(counts_have_their_plural)
{
	char buf[48];

	ck_assert_str_eq(str_millions(buf, sizeof(buf), 0), "0");
	ck_assert_str_eq(str_millions(buf, sizeof(buf), 999999), "999999");
	ck_assert_str_eq(str_millions(buf, sizeof(buf), 1000000), "1.0 M");
	ck_assert_str_eq(str_millions(buf, sizeof(buf), INT64_MAX), "9223372036854.8 M");
	ck_assert_str_eq(str_count(buf, sizeof(buf), 1, "step"), "1 step");
	ck_assert_str_eq(str_count(buf, sizeof(buf), 0, "step"), "0 steps");
	ck_assert_str_eq(str_count(buf, sizeof(buf), 1207, "token"), "1207 tokens");
}
END_TEST

START_TEST(json_files_look_as_python_writes_them)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "x.json"), *text = NULL;
	_cleanup_json_ json_t *j = NULL;
	struct error err = ERROR_INIT;

	ck_ok(json_parse("{\"b\":[1,2.5],\"a\":{},\"c\":null,\"d\":\"x\\ny\"}", 40, "x", &j, &err), &err);
	ck_ok(json_write_file(path, j, 2, true, &err), &err);
	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, "{\n  \"a\": {},\n  \"b\": [\n    1,\n    2.5\n  ],\n  \"c\": null,\n  \"d\": "
	                       "\"x\\ny\"\n}\n");
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

START_TEST(random_names_differ)
{
	char a[33], b[33];

	ck_assert_int_eq(random_hex(a, sizeof(a)), 0);
	ck_assert_int_eq(random_hex(b, sizeof(b)), 0);
	ck_assert_uint_eq(strlen(a), 32);
	ck_assert_uint_eq(strspn(a, "0123456789abcdef"), 32);
	ck_assert_str_ne(a, b);
}
END_TEST

START_TEST(pauses_grow_and_differ)
{
	static const double longest[] = {0.2, 0.4, 0.8, 1.0, 1.0, 1.0};
	bool differ = false;

	for (int node = 0; node < 100; node++) {
		struct backoff one = {0}, other = {0};

		for (size_t i = 0; i < ARRAY_SIZE(longest); i++) {
			double a = backoff_next(&one, 0.2, 1.0), b = backoff_next(&other, 0.2, 1.0);

			ck_assert_double_ge(a, longest[i] / 2);
			ck_assert_double_le(a, longest[i]);
			differ = differ || a != b;
		}
	}
	ck_assert(differ);
}
END_TEST

START_TEST(errors_are_one_line)
{
	struct error err = ERROR_INIT;

	ck_assert_int_eq(error_set(&err, -EINVAL, "a\n%s\x7f", "b\x1f"), -EINVAL);
	ck_assert_str_eq(err.message, "a?b??");
	ck_assert_int_eq(error_prefix(&err, "x\n%d", 7), -EINVAL);
	ck_assert_str_eq(err.message, "x?7: a?b??");
	ck_assert_int_eq(error_errno(&err, -ENOENT, "cannot read\t%s", "y"), -ENOENT);
	ck_assert_str_eq(err.message, "cannot read?y: No such file or directory");
	ck_assert_int_eq(err.code, -ENOENT);
	ck_assert_int_eq(error_set(NULL, -EINVAL, "a"), -EINVAL);
	ck_assert_int_eq(error_errno(NULL, -EINVAL, "a"), -EINVAL);
	ck_assert_int_eq(error_oom(&err), -ENOMEM);
	ck_assert_int_eq(error_prefix(NULL, "a"), -EIO);
}
END_TEST

/* What is written to stderr; in_journal: stderr is said to be the journal's. */
static char *logged(const char *path, bool in_journal)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), saved = dup(STDERR_FILENO);
	_cleanup_free_ char *stream = NULL;
	struct error err = ERROR_INIT;
	char *text = NULL;
	struct stat st;

	ck_assert_int_eq(fstat(fd, &st), 0);
	stream = str_printf("%llu:%llu", (unsigned long long)st.st_dev,
	                    (unsigned long long)st.st_ino + !in_journal);
	ck_assert_int_eq(setenv("JOURNAL_STREAM", stream, 1), 0);
	fflush(stderr);
	ck_assert_int_ge(dup2(fd, STDERR_FILENO), 0);
	log_init("me", LOG_WARNING);
	log_err("an error of %d\nlines\x7f\xc2\x9b", 2);
	log_warn("a warning");
	log_info("not shown");
	log_set_level(LOG_INFO);
	log_write(LOG_INFO, "RUN_ID=17\nRANK=0", "shown");
	log_debug("not shown");
	fflush(stderr);
	ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
	close(saved);
	close(fd);
	log_init("dtrain", LOG_INFO);
	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	return text;
}

START_TEST(the_log_has_a_line_for_each_message)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "log"), *plain = NULL,
	                    *journal = NULL;

	plain = logged(path, false);
	ck_assert_str_eq(plain, "me: an error of 2 lines   \nme: a warning\nme: shown\n");
	journal = logged(path, true);
	ck_assert_str_eq(journal, "");
	file_remove_tree(dir, NULL);
}
END_TEST

START_TEST(a_lease_is_of_one_boot)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "lease"), *text = NULL;
	const struct lease_end end = {1234567.25, 20.5}, later = {99999999999.5, 0};
	static const char *const wrong[] = {"",         "1 2 3 4",  "1",        "x 1 boot",
	                                    "1 y boot", "0 1 boot", "1 -1 boot"};
	struct lease_end got = {0};
	struct error err = ERROR_INIT;
	char boot[BOOT_ID_SIZE];
	struct stat first, second;

	boot_id_read(boot);
	ck_assert_uint_eq(strlen(boot), 36);
	ck_assert_int_eq(lease_file_read(path, &got), -ENOENT);
	ck_ok(lease_file_write(path, &end, &err), &err);
	ck_assert_int_eq(stat(path, &first), 0);
	ck_assert_int_eq(lease_file_read(path, &got), 0);
	ck_assert_double_eq(got.until, end.until);
	ck_assert_double_eq(got.ending, end.ending);
	/* In place, and of the same length. */
	ck_ok(lease_file_write(path, &later, &err), &err);
	ck_assert_int_eq(stat(path, &second), 0);
	ck_assert_int_eq(first.st_size, second.st_size);
	ck_assert_uint_eq(first.st_ino, second.st_ino);
	ck_assert_int_eq(lease_file_read(path, &got), 0);
	ck_assert_double_eq(got.until, later.until);
	ck_assert_double_eq(got.ending, 0);
	ck_ok(file_write_atomic(path, "7 1 another", 11, 0600, &err), &err);
	ck_assert_int_eq(lease_file_read(path, &got), -ESTALE);
	ck_ok(file_write_atomic(path, "7 1", 3, 0600, &err), &err);
	ck_assert_int_eq(lease_file_read(path, &got), -ESTALE);
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		ck_ok(file_write_atomic(path, wrong[i], strlen(wrong[i]), 0600, &err), &err);
		ck_assert_msg(lease_file_read(path, &got) == -EINVAL, "\"%s\"", wrong[i]);
	}
	ck_fails(lease_file_write(dir, &end, &err), &err, "cannot write ");
	file_remove_tree(dir, NULL);
}
END_TEST

START_TEST(a_copy_has_content_and_mode)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *from = str_path_join(dir, "from"),
	                    *to = str_path_join(dir, "to"), *text = NULL, *large = calloc(1, 200001);
	struct error err = ERROR_INIT;
	struct stat st;
	size_t len;

	memset(large, 'x', 200000);
	ck_ok(file_write_atomic(from, large, 200000, 0640, &err), &err);
	ck_assert(!file_exists_in(dir, "to"));
	ck_assert(file_exists_in(dir, "from"));
	umask(0);
	ck_ok(file_copy(from, to, &err), &err);
	ck_ok(file_read(to, 0, &text, &len, &err), &err);
	ck_assert_uint_eq(len, 200000);
	ck_assert_str_eq(text, large);
	ck_assert_int_eq(stat(to, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0640);
	ck_fails(file_copy(from, dir, &err), &err, "cannot write ");
	ck_fails(file_copy(dir, to, &err), &err, "cannot read ");
	ck_assert_int_eq(chdir(dir), 0);
	ck_assert(file_exists_in("", "from"));
	ck_assert_int_eq(chdir("/"), 0);
	file_remove_tree(dir, NULL);
}
END_TEST

/* More than there is room for is closed, and refused. */
START_TEST(descriptors_are_received_or_closed)
{
	int pair[2], pipes[2], got[SOCKET_FDS_MAX];
	size_t count = 2, before;
	char byte = 0;

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	ck_assert_int_eq(pipe(pipes), 0);
	before = open_fds_count();
	ck_assert_int_eq(socket_send_fds(pair[0], 'a', pipes, 2), 0);
	ck_assert_int_eq(socket_receive(pair[1], &byte, 1, got, &count), 1);
	ck_assert_int_eq(byte, 'a');
	ck_assert_uint_eq(count, 2);
	ck_assert_uint_eq(open_fds_count(), before + 2);
	ck_assert_int_eq(write(got[1], "x", 1), 1);
	ck_assert_int_eq(read(pipes[0], &byte, 1), 1);
	ck_assert_int_eq(byte, 'x');
	ck_assert_int_eq(fcntl(got[0], F_GETFD), FD_CLOEXEC);
	close(got[0]);
	close(got[1]);
	ck_assert_int_eq(socket_send_fds(pair[0], 'b', pipes, 2), 0);
	count = 1;
	ck_assert_int_eq(socket_receive(pair[1], &byte, 1, got, &count), -EPROTO);
	ck_assert_uint_eq(count, 0);
	ck_assert_uint_eq(open_fds_count(), before);
	ck_assert_int_eq(write(pair[0], "c", 1), 1);
	count = 2;
	ck_assert_int_eq(socket_receive(pair[1], &byte, 1, got, &count), 1);
	ck_assert_uint_eq(count, 0);
	close(pair[0]);
	count = 2;
	ck_assert_int_eq(socket_receive(pair[1], &byte, 1, got, &count), 0);
	ck_assert_int_eq(socket_send_fds(pair[1], 'd', pipes, 1), -EPIPE);
	close(pair[1]);
	count = 2;
	ck_assert_int_eq(socket_receive(pair[1], &byte, 1, got, &count), -EBADF);
	close(pipes[0]);
	close(pipes[1]);
}
END_TEST

static void *note_mask(void *context)
{
	pthread_sigmask(SIG_SETMASK, NULL, context);
	return context;
}

START_TEST(a_thread_blocks_signals_and_its_creator_does_not)
{
	sigset_t seen, own;
	pthread_t thread;

	sigemptyset(&seen);
	ck_assert_int_eq(thread_start(&thread, note_mask, &seen), 0);
	pthread_join(thread, NULL);
	ck_assert(sigismember(&seen, SIGTERM) == 1 && sigismember(&seen, SIGCHLD) == 1);
	pthread_sigmask(SIG_SETMASK, NULL, &own);
	ck_assert_int_eq(sigismember(&own, SIGTERM), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("base");
	TCase *t = tcase_create("base");

	tcase_add_test(t, names_of_hubs_are_told_from_paths);
	tcase_add_test(t, strbuf_grows_and_formats);
	tcase_add_test(t, strings_are_replaced);
	tcase_add_test(t, names_of_hosts_are_the_same_in_upper_and_lower_case);
	tcase_add_test(t, lists_are_copied);
	tcase_add_test(t, bytes_become_utf8);
	tcase_add_test(t, numbers_are_whole_strings);
	tcase_add_test(t, words_for_sizes_and_times);
	tcase_add_test(t, hashes_are_those_of_xxhash);
	tcase_add_test(t, atomic_write_replaces_whole_files);
	tcase_add_test(t, atomic_write_takes_no_file_that_is_there);
	tcase_add_test(t, a_tree_is_removed_and_nothing_else);
	tcase_add_test(t, a_deep_tree_finds_free_names);
	tcase_add_test(t, what_cannot_be_removed_is_an_error);
	tcase_add_test(t, a_map_is_released);
	tcase_add_test(t, only_regular_files_are_read);
	tcase_add_test(t, json_errors_name_the_line);
	tcase_add_test(t, json_of_python_may_have_other_numbers);
	tcase_add_test(t, json_reals_have_the_fewest_digits);
	tcase_add_test(t, json_text);
	tcase_add_test(t, paths_are_joined);
	tcase_add_test(t, words_have_a_distance);
	tcase_add_test(t, counts_have_their_plural);
	tcase_add_test(t, json_files_look_as_python_writes_them);
	tcase_add_test(t, random_names_differ);
	tcase_add_test(t, pauses_grow_and_differ);
	tcase_add_test(t, a_thread_blocks_signals_and_its_creator_does_not);
	tcase_add_test(t, errors_are_one_line);
	tcase_add_test(t, the_log_has_a_line_for_each_message);
	tcase_add_test(t, a_lease_is_of_one_boot);
	tcase_add_test(t, a_copy_has_content_and_mode);
	tcase_add_test(t, descriptors_are_received_or_closed);
	suite_add_tcase(s, t);
	return unit_run(s);
}
