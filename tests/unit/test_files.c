/* SPDX-License-Identifier: Apache-2.0 */
/* Tests base/file.h, and what else reads or writes files, where calls to the system fail, are interrupted or
 * do less than they were asked for, and where memory runs out. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/boot_id.h"
#include "base/json.h"
#include "base/lease_file.h"
#include "base/random.h"
#include "base/str.h"
#include "failing_memory.h"

enum call {
	GETRANDOM,
	FTRUNCATE,
	FOPEN,
	READ,
	WRITE,
	FSYNC,
	FCHMOD,
	FSTAT,
	RENAME,
	MKDIR,
	MMAP,
	OPENAT,
	RENAMEAT,
	FDOPENDIR,
	CALLS
};

/* What the calls of a kind do: after so many that work, `count` fail with the code. */
static struct {
	int skip, count, code;
} failures[CALLS];
static size_t most;      /* bytes that a write takes; 0: all */
static dev_t other_disk; /* fstat says that directories without a sticky bit lie there; 0: it does not */

static void fail_next(enum call call, int skip, int count, int code)
{
	failures[call].skip = skip;
	failures[call].count = count;
	failures[call].code = code;
}

static bool fails(enum call call)
{
	if (failures[call].count == 0 || failures[call].skip-- > 0)
		return false;
	failures[call].skip = 0;
	failures[call].count--;
	errno = failures[call].code;
	return true;
}

#define DEFINE_CALL(CALL, TYPE, NAME, FAILED, PARAMETERS, ...)                                               \
	TYPE __real_##NAME PARAMETERS;                                                                       \
	TYPE __wrap_##NAME PARAMETERS;                                                                       \
	TYPE __wrap_##NAME PARAMETERS                                                                        \
	{                                                                                                    \
		return fails(CALL) ? FAILED : __real_##NAME(__VA_ARGS__);                                    \
	}

DEFINE_CALL(READ, ssize_t, read, -1, (int fd, void *data, size_t size), fd, data, size)
DEFINE_CALL(WRITE, ssize_t, write, -1, (int fd, const void *data, size_t size), fd, data,
            most > 0 && size > most ? most : size)
DEFINE_CALL(FSYNC, int, fsync, -1, (int fd), fd)
DEFINE_CALL(FCHMOD, int, fchmod, -1, (int fd, mode_t mode), fd, mode)
DEFINE_CALL(RENAME, int, rename, -1, (const char *from, const char *to), from, to)
DEFINE_CALL(MKDIR, int, mkdir, -1, (const char *path, mode_t mode), path, mode)
DEFINE_CALL(MMAP, void *, mmap, MAP_FAILED, (void *p, size_t len, int prot, int flags, int fd, off_t at), p,
            len, prot, flags, fd, at)
DEFINE_CALL(RENAMEAT, int, renameat, -1, (int from, const char *name, int to, const char *target), from, name,
            to, target)
DEFINE_CALL(FDOPENDIR, DIR *, fdopendir, NULL, (int fd), fd)

DEFINE_CALL(GETRANDOM, ssize_t, getrandom, -1, (void *data, size_t size, unsigned flags), data, size, flags)
DEFINE_CALL(FTRUNCATE, int, ftruncate, -1, (int fd, off_t len), fd, len)
DEFINE_CALL(FOPEN, FILE *, fopen, NULL, (const char *name, const char *mode), name, mode)

int __real_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st)
{
	int r = fails(FSTAT) ? -1 : __real_fstat(fd, st);

	if (r == 0 && other_disk && (st->st_mode & S_ISVTX) == 0)
		st->st_dev = other_disk;
	return r;
}

int __real_openat(int at, const char *name, int flags, ...);
int __wrap_openat(int at, const char *name, int flags, ...);
int __wrap_openat(int at, const char *name, int flags, ...)
{
	return fails(OPENAT) ? -1 : __real_openat(at, name, flags);
}

static char *dir, *path;

static void setup(void)
{
	dir = unit_tmpdir();
	path = str_path_join(dir, "file");
	umask(022);
}

static void teardown(void)
{
	memset(failures, 0, sizeof(failures));
	most = 0;
	other_disk = 0;
	file_remove_tree(dir, NULL);
	free(dir);
	free(path);
}

static void put(const char *name, const char *text)
{
	_cleanup_free_ char *to = str_path_join(dir, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(to, text, strlen(text), 0644, &err), &err);
}

static void ck_content(const char *name, const char *text)
{
	_cleanup_free_ char *from = str_path_join(dir, name), *got = NULL;
	struct error err = ERROR_INIT;
	size_t len;

	ck_ok(file_read(from, 0, &got, &len, &err), &err);
	ck_assert_uint_eq(len, strlen(text));
	ck_assert_str_eq(got, text);
}

static int count_entries(const char *directory)
{
	DIR *d = opendir(directory);
	int n = -2; /* "." and ".." */

	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* The whole message, after "WHAT DIR" and before the reason of the system. */
static void ck_error(const struct error *err, int code, const char *what, const char *name)
{
	_cleanup_free_ char *want =
	    str_printf("%s %s%s%s: %s", what, dir, *name ? "/" : "", name, strerror(-code));

	ck_assert_int_eq(err->code, code);
	ck_assert_str_eq(err->message, want);
}

/* ---- writing ---- */

START_TEST(a_write_goes_on_until_all_is_written)
{
	struct error err = ERROR_INIT;

	fail_next(WRITE, 2, 1, EINTR);
	most = 3;
	put("file", "ten bytes.");
	ck_content("file", "ten bytes.");
	ck_assert_int_eq(failures[WRITE].count, 0);
	fail_next(WRITE, 0, 1, EIO);
	ck_assert_int_eq(file_write_all(STDOUT_FILENO, "x", 1, &err), -EIO);
	ck_assert_str_eq(err.message, "write failed: Input/output error");
	ck_ok(file_write_all(-1, "", 0, &err), &err); /* nothing is no call */
}
END_TEST

static const struct {
	enum call call;
	int skip, code;
	const char *what;
} refusals[] = {
    {FCHMOD, 0, EPERM, "cannot write"},
    {FSYNC, 0, EIO, "cannot write"},
    {RENAME, 0, EACCES, "cannot write"},
};

/* What was there stays, and nothing else is left. */
START_TEST(a_file_that_cannot_be_replaced_stays)
{
	struct error err = ERROR_INIT;

	put("file", "old");
	fail_next(refusals[_i].call, refusals[_i].skip, 1, refusals[_i].code);
	ck_assert_int_eq(file_write_atomic(path, "new", 3, 0644, &err), -refusals[_i].code);
	ck_error(&err, -refusals[_i].code, refusals[_i].what, "file");
	ck_content("file", "old");
	ck_assert_int_eq(count_entries(dir), 1);
}
END_TEST

START_TEST(a_full_disk_leaves_the_old_file)
{
	_cleanup_free_ char *want = str_printf("%s: write failed: No space left on device", path);
	struct error err = ERROR_INIT;

	put("file", "old");
	fail_next(WRITE, 1, 1, ENOSPC);
	most = 1;
	ck_assert_int_eq(file_write_atomic(path, "new", 3, 0644, &err), -ENOSPC);
	ck_assert_str_eq(err.message, want);
	ck_content("file", "old");
	ck_assert_int_eq(count_entries(dir), 1);
}
END_TEST

/* The mode is as it was asked for, whatever the umask, and whatever an earlier process has left. */
START_TEST(a_written_file_has_its_mode)
{
	_cleanup_free_ char *left = str_printf("%s.tmp.%ld", path, (long)getpid());
	struct error err = ERROR_INIT;
	struct stat st;
	int fd = open(left, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	ck_assert_int_eq(write(fd, "much longer", 11), 11);
	close(fd);
	umask(077);
	ck_ok(file_write_atomic(path, "new", 3, 0646, &err), &err);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0646);
	ck_content("file", "new");
	ck_assert_int_eq(count_entries(dir), 1);
}
END_TEST

/* It is replaced, and may be lost with the power. */
START_TEST(a_directory_that_cannot_be_synced_is_an_error)
{
	struct error err = ERROR_INIT;

	fail_next(FSYNC, 1, 1, EIO);
	ck_assert_int_eq(file_write_atomic(path, "new", 3, 0644, &err), -EIO);
	ck_error(&err, -EIO, "cannot sync directory", "");
	ck_content("file", "new");
	ck_assert_int_eq(file_sync_directory(path, &err), -ENOTDIR);
	ck_error(&err, -ENOTDIR, "cannot sync directory", "file");
}
END_TEST

START_TEST(directories_are_made_or_named)
{
	_cleanup_free_ char *deep = str_path_join(dir, "a/b/c"), *below = str_path_join(dir, "file/x"),
	                    *link = str_path_join(dir, "link");
	struct error err = ERROR_INIT;
	struct stat st;

	ck_ok(file_mkdirs(deep, 0750, &err), &err);
	ck_ok(file_mkdirs(deep, 0700, &err), &err); /* they are there */
	ck_assert_int_eq(stat(deep, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0750);
	put("file", "x");
	ck_assert_int_eq(file_mkdirs(below, 0755, &err), -ENOTDIR);
	ck_error(&err, -ENOTDIR, "cannot make directory", "file/x");
	ck_assert_int_eq(file_mkdirs(path, 0755, &err), -ENOTDIR);
	ck_error(&err, -ENOTDIR, "cannot make directory", "file");
	ck_assert_int_eq(symlink("nowhere", link), 0);
	ck_assert_int_eq(file_mkdirs(link, 0755, &err), -ENOENT);
	ck_error(&err, -ENOENT, "cannot make directory", "link");
	/* Where nothing can be made, what is there is enough. */
	fail_next(MKDIR, 0, 99, EROFS);
	ck_ok(file_mkdirs(deep, 0755, &err), &err);
	free(steal_pointer(deep));
	deep = str_path_join(dir, "a/other/c");
	ck_assert_int_eq(file_mkdirs(deep, 0755, &err), -EROFS);
	ck_error(&err, -EROFS, "cannot make directory", "a/other");
	/* The first that cannot be made is named, and none below it is tried. */
	fail_next(MKDIR, 0, 99, EACCES);
	ck_assert_int_eq(file_mkdirs(dir, 0755, &err), -EACCES);
	ck_assert_int_eq(failures[MKDIR].count, 98);
}
END_TEST

/* ---- reading ---- */

static void write_pipe(int fds[2], size_t len, char *name, size_t size)
{
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	for (size_t i = 0; i < len; i++) {
		char c = (char)('a' + i % 26);

		ck_assert_int_eq(write(fds[1], &c, 1), 1);
	}
	close(fds[1]);
	snprintf(name, size, "/proc/self/fd/%d", fds[0]);
}

/* Around the sizes at which the buffer grows. */
static const size_t sizes[] = {1, 4095, 4096, 4097, 4098, 8193, 8194, 8195, 8196, 50000};

START_TEST(a_stream_is_read_to_its_end)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	size_t len = 0;
	char name[64];
	int fds[2];

	write_pipe(fds, sizes[_i], name, sizeof(name));
	fail_next(READ, 0, 1, EINTR);
	ck_ok(file_read_stream(name, sizes[_i], &text, &len, &err), &err);
	ck_assert_uint_eq(len, sizes[_i]);
	ck_assert_uint_eq(strlen(text), len);
	for (size_t i = 0; i < len; i++)
		ck_assert_int_eq(text[i], 'a' + (int)(i % 26));
	close(fds[0]);
}
END_TEST

START_TEST(a_stream_may_be_too_long_or_broken)
{
	char *text = NULL;
	struct error err = ERROR_INIT;
	char name[64], want[128];
	size_t len = 7;
	int fds[2];

	write_pipe(fds, 101, name, sizeof(name));
	ck_assert_int_eq(file_read_stream(name, 100, &text, &len, &err), -EFBIG);
	snprintf(want, sizeof(want), "%s: larger than 100 bytes", name);
	ck_assert_str_eq(err.message, want);
	close(fds[0]);
	write_pipe(fds, 10, name, sizeof(name));
	fail_next(READ, 1, 1, EIO);
	ck_assert_int_eq(file_read_stream(name, 0, &text, &len, &err), -EIO);
	snprintf(want, sizeof(want), "cannot read %s: Input/output error", name);
	ck_assert_str_eq(err.message, want);
	close(fds[0]);
	ck_assert_int_eq(file_read_stream(dir, 0, &text, &len, &err), -EISDIR);
	ck_error(&err, -EISDIR, "cannot read", "");
	ck_assert_int_eq(file_read_stream(path, 0, &text, &len, &err), -ENOENT);
	ck_error(&err, -ENOENT, "cannot read", "file");
	put("file", "x");
	fail_next(FSTAT, 0, 1, EIO);
	ck_assert_int_eq(file_read_stream(path, 0, &text, &len, &err), -EIO);
	fail_next(FSTAT, 0, 1, EIO);
	ck_assert_int_eq(file_read(path, 0, &text, &len, &err), -EIO);
	ck_error(&err, -EIO, "cannot read", "file");
	ck_assert_ptr_null(text);
	ck_assert_uint_eq(len, 7);
	/* An empty file is no empty pipe. */
	put("file", "");
	ck_ok(file_read_stream(path, 0, &text, &len, &err), &err);
	ck_assert_uint_eq(len, 0);
	ck_assert_str_eq(text, "");
	free(text);
	ck_ok(file_read_stream(path, 0, &text, NULL, &err), &err);
	free(text);
}
END_TEST

/* The limit is the last size that is taken. */
START_TEST(a_file_may_be_as_long_as_its_limit)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	size_t len;

	put("file", "12345");
	ck_ok(file_read(path, 5, &text, &len, &err), &err);
	ck_assert_str_eq(text, "12345");
	free(steal_pointer(text));
	ck_assert_int_eq(file_read(path, 4, &text, &len, &err), -EFBIG);
	ck_assert_ptr_null(text);
}
END_TEST

START_TEST(a_copy_is_whole_or_an_error)
{
	_cleanup_free_ char *to = str_path_join(dir, "to"), *long_name = calloc(1, 5001);
	struct error err = ERROR_INIT;

	put("file", "0123456789");
	fail_next(READ, 0, 1, EINTR);
	fail_next(WRITE, 0, 1, EINTR);
	most = 4;
	ck_ok(file_copy(path, to, &err), &err);
	ck_content("to", "0123456789");
	fail_next(READ, 0, 1, EIO);
	ck_assert_int_eq(file_copy(path, to, &err), -EIO);
	ck_error(&err, -EIO, "cannot read", "file");
	ck_assert_int_eq(file_copy(path, "/dev/full", &err), -ENOSPC);
	ck_assert_str_eq(err.message, "/dev/full: write failed: No space left on device");
	ck_ok(file_copy(path, "/dev/null", &err), &err);
	/* A path that is too long for any file. */
	memset(long_name, 'x', 5000);
	ck_assert(!file_exists_in(dir, long_name));
	ck_assert(file_exists_in(dir, "file"));
}
END_TEST

START_TEST(an_empty_file_maps_as_nothing)
{
	struct error err = ERROR_INIT;
	struct file_map map;

	put("file", "");
	fail_next(MMAP, 0, 1, ENODEV);
	ck_ok(file_map_open(path, &map, &err), &err);
	ck_assert_uint_eq(map.len, 0);
	ck_assert_str_eq(map.data, "");
	file_map_close(&map);
	put("file", "four");
	ck_assert_int_eq(file_map_open(path, &map, &err), -ENODEV);
	ck_error(&err, -ENODEV, "cannot map", "file");
	ck_assert_uint_eq(map.len, 0);
	ck_ok(file_map_open(path, &map, &err), &err);
	ck_assert_uint_eq(map.len, 4);
	ck_assert_mem_eq(map.data, "four", 4);
	file_map_close(&map);
	ck_assert_uint_eq(map.len, 0);
	ck_assert_str_eq(map.data, "");
}
END_TEST

/* ---- removing ---- */

static char *make_tree(void)
{
	_cleanup_free_ char *inner = str_path_join(dir, "tree/inner");
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(inner, 0755, &err), &err);
	put("tree/one", "x");
	put("tree/inner/two", "x");
	return str_path_join(dir, "tree");
}

/* The content of a directory on another disk is no part of the tree. */
START_TEST(what_is_mounted_stays)
{
	_cleanup_free_ char *tree = make_tree();
	struct error err = ERROR_INIT;

	ck_assert_int_eq(chmod(tree, 01700), 0);
	other_disk = 1;
	ck_assert_int_eq(file_remove_tree(tree, &err), -ENOTEMPTY);
	ck_error(&err, -ENOTEMPTY, "cannot remove", "tree");
	ck_content("tree/inner/two", "x");
	ck_assert_int_eq(count_entries(tree), 1);
}
END_TEST

static const struct {
	enum call call;
	int skip, code;
	int left; /* in the tree */
} stops[] = {
    {OPENAT, 0, EIO, 2},                        /* the tree */
    {OPENAT, 1, EIO, 2},                        /* for its names */
    {OPENAT, 2, EIO, 1},                        /* "inner" */
    {OPENAT, 2, ENOENT, 1},                     /* another process has removed it */
    {FSTAT, 0, EIO, 2},     {FSTAT, 1, EIO, 1}, /* the same */
    {FDOPENDIR, 0, EIO, 2}, {FDOPENDIR, 1, EIO, 1},
};

/* It goes on after an error, and the first one is what is reported. */
START_TEST(a_removal_goes_on_after_an_error)
{
	_cleanup_free_ char *tree = make_tree();
	int code = stops[_i].code == ENOENT ? -ENOTEMPTY : -stops[_i].code;
	struct error err = ERROR_INIT;

	fail_next(stops[_i].call, stops[_i].skip, 1, stops[_i].code);
	ck_assert_int_eq(file_remove_tree(tree, &err), code);
	ck_error(&err, code, "cannot remove", "tree");
	ck_assert_int_eq(count_entries(tree), stops[_i].left);
	ck_ok(file_remove_tree(tree, &err), &err);
	ck_assert(!file_exists(tree));
}
END_TEST

/* What is too deep is moved up: to the next name where one is taken, and not at all after another error. */
START_TEST(what_is_too_deep_and_cannot_be_moved_stays)
{
	static const int codes[] = {ENOTEMPTY, EEXIST, ENOTDIR, EACCES};
	_cleanup_free_ char *deep = strdup("tree"), *tree = str_path_join(dir, "tree"), *whole = NULL;
	struct error err = ERROR_INIT;

	for (int i = 0; i < 66; i++) {
		char *longer = str_path_join(deep, "d");

		free(deep);
		deep = longer;
	}
	whole = str_path_join(dir, deep);
	ck_ok(file_mkdirs(whole, 0755, &err), &err);
	fail_next(RENAMEAT, 0, 1, codes[_i]);
	if (codes[_i] != EACCES) {
		ck_ok(file_remove_tree(tree, &err), &err);
		ck_assert(!file_exists(tree));
		return;
	}
	ck_assert_int_eq(file_remove_tree(tree, &err), -EACCES);
	ck_error(&err, -EACCES, "cannot remove", "tree");
	ck_assert(file_exists(whole));
	/* Nor where no name is free. */
	fail_next(RENAMEAT, 0, 1000, EEXIST);
	ck_assert_int_eq(file_remove_tree(tree, &err), -EEXIST);
	ck_assert_int_eq(failures[RENAMEAT].count, 0);
	ck_ok(file_remove_tree(tree, &err), &err);
}
END_TEST

/* Its owner removes what he has closed to himself, too. */
START_TEST(an_owner_removes_closed_directories)
{
	_cleanup_free_ char *tree = make_tree(), *inner = str_path_join(tree, "inner");
	struct error err = ERROR_INIT;
	int status;
	pid_t child;

	if (geteuid() == 0)
		ck_assert(chown(dir, 1, 1) == 0 && chown(tree, 1, 1) == 0 && chown(inner, 1, 1) == 0);
	ck_assert_int_eq(chmod(inner, _i == 0 ? 0000 : 0500), 0);
	ck_assert_int_eq(chmod(tree, _i == 0 ? 0500 : 0600), 0);
	child = fork();
	if (child == 0) {
		if (geteuid() == 0 && setuid(1) != 0)
			_exit(1);
		_exit(file_remove_tree(tree, &err) == 0 && !file_exists(tree) ? 0 : 2);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
}
END_TEST

/* A link is removed, and what it names, which its owner has closed to himself, stays as it is. */
START_TEST(what_a_link_names_is_not_touched)
{
	_cleanup_free_ char *tree = make_tree(), *inner = str_path_join(tree, "inner"),
	                    *link = str_path_join(dir, "link");
	struct error err = ERROR_INIT;
	struct stat st;
	int status;
	pid_t child;

	if (geteuid() == 0)
		ck_assert(chown(dir, 1, 1) == 0 && chown(tree, 1, 1) == 0 && chown(inner, 1, 1) == 0);
	ck_assert_int_eq(symlink("tree/inner", link), 0);
	ck_assert_int_eq(chmod(inner, 0500), 0);
	child = fork();
	if (child == 0) {
		if (geteuid() == 0 && setuid(1) != 0)
			_exit(1);
		_exit(file_remove_tree(link, &err) == 0 ? 0 : 2);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	ck_assert(lstat(link, &st) < 0 && errno == ENOENT);
	ck_assert_int_eq(stat(inner, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0500);
	ck_assert_int_eq(chmod(inner, 0700), 0);
}
END_TEST

/* ---- what the kernel tells ---- */

START_TEST(without_random_bytes_there_is_no_name)
{
	char text[9] = "";

	fail_next(GETRANDOM, 0, 2, ENOSYS);
	ck_assert_int_eq(random_hex(text, sizeof(text)), -ENOSYS);
	ck_assert_double_eq(random_fraction(), 0.5);
	ck_assert_int_eq(random_hex(text, sizeof(text)), 0);
	ck_assert_uint_eq(strspn(text, "0123456789abcdef"), 8);
	ck_assert_uint_eq(strlen(text), 8);
	for (int i = 0; i < 100; i++)
		ck_assert(random_fraction() >= 0 && random_fraction() < 1);
}
END_TEST

/* A lease of which the boot is not known is of none. */
START_TEST(a_lease_without_a_boot_is_of_another)
{
	const struct lease_end end = {.until = 5, .ending = 1};
	_cleanup_free_ char *want = str_printf("%s: write failed: No space left on device", path);
	struct lease_end got;
	struct error err = ERROR_INIT;
	char boot[BOOT_ID_SIZE];

	fail_next(FOPEN, 0, 1, ENOENT);
	boot_id_read(boot);
	ck_assert_str_eq(boot, "");
	ck_ok(lease_file_write(path, &end, &err), &err);
	fail_next(FOPEN, 0, 1, ENOENT);
	ck_assert_int_eq(lease_file_read(path, &got), -ESTALE);
	ck_assert_int_eq(lease_file_read(path, &got), 0);
	fail_next(WRITE, 0, 1, ENOSPC);
	ck_assert_int_eq(lease_file_write(path, &end, &err), -ENOSPC);
	ck_assert_str_eq(err.message, want);
	fail_next(FTRUNCATE, 0, 1, EIO);
	ck_assert_int_eq(lease_file_write(path, &end, &err), -EIO);
	ck_error(&err, -EIO, "cannot write", "file");
	/* What was longer is cut. */
	put("file",
	    "a line that is a good deal longer than any that is written here, with nothing in it at all "
	    "to read");
	ck_ok(lease_file_write(path, &end, &err), &err);
	ck_assert_int_eq(lease_file_read(path, &got), 0);
	ck_assert_double_eq(got.until, 5);
	ck_assert_double_eq(got.ending, 1);
	fail_next(READ, 0, 1, EIO);
	ck_assert_int_eq(lease_file_read(path, &got), -EINVAL);
}
END_TEST

/* What is added after a failure is not added, and there is no text. */
START_TEST(a_text_without_memory_is_none)
{
	struct strbuf b = {0}, f = {0};

	strbuf_adds(&b, "begin");
	memory_left = 1;
	for (int i = 0; i < 100; i++)
		strbuf_addc(&b, 'x');
	ck_assert_int_eq(memory_left, 0);
	ck_assert(b.failed);
	ck_assert_uint_lt(b.len, 100);
	strbuf_addf(&b, "%d", 1);
	ck_assert_ptr_null(strbuf_steal(&b));
	memory_left = 1;
	strbuf_addf(&f, "%d", 1);
	memory_left = 0;
	ck_assert(f.failed);
	ck_assert_ptr_null(f.data);
	strbuf_free(&f);
}
END_TEST

/* ---- JSON ---- */

START_TEST(a_json_file_is_read_or_named)
{
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;
	json_t *none = NULL;

	ck_assert_int_eq(json_read_file(path, &none, &err), -ENOENT);
	ck_error(&err, -ENOENT, "cannot read", "file");
	put("file", "{\n\"a\": }");
	ck_assert_int_eq(json_read_file(path, &none, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.message, "/file:2: not valid JSON"));
	ck_assert_ptr_null(none);
	put("file", "{\"a\": 3}");
	ck_ok(json_read_file(path, &json, &err), &err);
	ck_assert_int_eq(json_get_int(json, "a", 0), 3);
}
END_TEST

START_TEST(a_member_is_there_with_its_type)
{
	_cleanup_json_ json_t *j = json_loads("{\"s\":\"x\",\"n\":5,\"r\":5.5,\"z\":null}", 0, NULL);
	struct error err = ERROR_INIT;
	const char *text = NULL;
	int64_t n = 0;

	ck_ok(json_need_string(j, "s", "f", &text, &err), &err);
	ck_assert_str_eq(text, "x");
	ck_assert_int_eq(json_need_string(j, "n", "f", &text, &err), -EINVAL);
	ck_assert_str_eq(err.message, "f: n: not a string; a string is needed");
	ck_assert_int_eq(json_need_string(j, "m", "f", &text, &err), -EINVAL);
	ck_assert_str_eq(err.message, "f: m: missing; a string is needed");
	ck_assert_str_eq(text, "x");
	ck_ok(json_need_int(j, "n", "f", 5, 5, &n, &err), &err);
	ck_assert_int_eq(n, 5);
	ck_assert_int_eq(json_need_int(j, "n", "f", 6, 9, &n, &err), -EINVAL);
	ck_assert_str_eq(err.message,
	                 "f: n: out of range or not an integer; an integer from 6 to 9 is needed");
	ck_assert_int_eq(json_need_int(j, "n", "f", 1, 4, &n, &err), -EINVAL);
	ck_assert_int_eq(json_need_int(j, "r", "f", 1, 9, &n, &err), -EINVAL);
	ck_assert_int_eq(json_need_int(j, "m", "f", 1, 9, &n, &err), -EINVAL);
	ck_assert_str_eq(err.message, "f: m: missing; an integer from 1 to 9 is needed");
	ck_assert_int_eq(n, 5);
	ck_assert_int_eq(json_get_int(j, "r", 7), 7);
	ck_assert_int_eq(json_get_int(j, "z", 7), 7);
	ck_assert(json_get_bool(j, "n", true) && !json_get_bool(j, "z", false));
}
END_TEST

/* ---- memory ---- */

static int use_files(void *context, struct error *err)
{
	_cleanup_free_ char *deep = NULL, *text = NULL;
	_cleanup_json_ json_t *json = NULL;
	size_t len;
	int r = file_write_atomic(path, "{\"a\":1}", 7, 0644, err);

	if (r == 0)
		r = file_read(path, 0, &text, &len, err);
	if (r == 0)
		r = file_mkdirs(dir, 0755, err);
	if (r == 0)
		r = json_read_file(path, &json, err);
	if (r == 0)
		r = json_write_file(path, json, 2, true, err);
	return r;
}

START_TEST(files_are_used_without_memory)
{
	memory_runs_out(use_files, NULL);
	ck_content("file", "{\n  \"a\": 1\n}\n");
	ck_assert_int_eq(count_entries(dir), 1);
}
END_TEST

static int fill(void *context, struct error *err)
{
	_cleanup_strbuf_ struct strbuf b = {0};

	for (int i = 0; i < 300; i++)
		strbuf_addf(&b, "%d,", i);
	/* What has failed stays so, until it begins anew. */
	if (!b.failed) {
		ck_assert_uint_eq(b.len, 10 * 2 + 90 * 3 + 200 * 4);
		return 0;
	}
	memory_left = 0;
	strbuf_adds(&b, "x");
	ck_assert(b.failed);
	ck_assert_ptr_null(strbuf_steal(&b));
	strbuf_reset(&b);
	ck_assert(!b.failed);
	ck_assert_uint_eq(b.len, 0);
	strbuf_adds(&b, "again");
	ck_assert_str_eq(b.data, "again");
	strbuf_reset(&b);
	ck_assert_str_eq(b.data, "");
	strbuf_addc(&b, 'x');
	ck_assert_str_eq(b.data, "x");
	return -ENOMEM;
}

START_TEST(a_buffer_without_memory_says_so)
{
	memory_runs_out(fill, NULL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("files");
	TCase *t = tcase_create("files");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_write_goes_on_until_all_is_written);
	tcase_add_loop_test(t, a_file_that_cannot_be_replaced_stays, 0, ARRAY_SIZE(refusals));
	tcase_add_test(t, a_full_disk_leaves_the_old_file);
	tcase_add_test(t, a_written_file_has_its_mode);
	tcase_add_test(t, a_directory_that_cannot_be_synced_is_an_error);
	tcase_add_test(t, directories_are_made_or_named);
	tcase_add_loop_test(t, a_stream_is_read_to_its_end, 0, ARRAY_SIZE(sizes));
	tcase_add_test(t, a_stream_may_be_too_long_or_broken);
	tcase_add_test(t, a_file_may_be_as_long_as_its_limit);
	tcase_add_test(t, a_copy_is_whole_or_an_error);
	tcase_add_test(t, an_empty_file_maps_as_nothing);
	tcase_add_test(t, what_is_mounted_stays);
	tcase_add_loop_test(t, a_removal_goes_on_after_an_error, 0, ARRAY_SIZE(stops));
	tcase_add_loop_test(t, what_is_too_deep_and_cannot_be_moved_stays, 0, 4);
	tcase_add_loop_test(t, an_owner_removes_closed_directories, 0, 2);
	tcase_add_test(t, what_a_link_names_is_not_touched);
	tcase_add_test(t, a_text_without_memory_is_none);
	tcase_add_test(t, without_random_bytes_there_is_no_name);
	tcase_add_test(t, a_lease_without_a_boot_is_of_another);
	tcase_add_test(t, a_json_file_is_read_or_named);
	tcase_add_test(t, a_member_is_there_with_its_type);
	tcase_add_test(t, files_are_used_without_memory);
	tcase_add_test(t, a_buffer_without_memory_says_so);
	suite_add_tcase(s, t);
	return unit_run(s);
}
