/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the SQLite store where a call to SQLite, or to the system, fails: each in turn, while it is opened,
 * written, read and copied. What fails is reported, leaves nothing half done, and can be done again. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include "base/str.h"
#include "cluster/store.h"
#include "cluster/store_backend.h"
#include "cluster_fixture.h"
#include "failing_memory.h"

/* The call that fails: so many calls from now, 1 the next one; 0: none does. */
static int failing;
static int failing_code = SQLITE_IOERR; /* of SQLite */
static int failed;                      /* so many have */

static bool fails(void)
{
	if (failing == 0 || --failing > 0)
		return false;
	failed++;
	return true;
}

#define DEFINE_CALL(TYPE, NAME, PARAMETERS, ...)                                                             \
	TYPE __real_##NAME PARAMETERS;                                                                       \
	TYPE __wrap_##NAME PARAMETERS;                                                                       \
	TYPE __wrap_##NAME PARAMETERS                                                                        \
	{                                                                                                    \
		return fails() ? (TYPE)failing_code : __real_##NAME(__VA_ARGS__);                            \
	}

typedef int (*row_fn)(void *context, int count, char **values, char **names);

DEFINE_CALL(int, sqlite3_step, (sqlite3_stmt * st), st)
DEFINE_CALL(int, sqlite3_exec, (sqlite3 * db, const char *sql, row_fn fn, void *context, char **message), db,
            sql, fn, context, message)
DEFINE_CALL(int, sqlite3_prepare_v2,
            (sqlite3 * db, const char *sql, int len, sqlite3_stmt **out, const char **tail), db, sql, len,
            out, tail)
DEFINE_CALL(int, sqlite3_prepare_v3,
            (sqlite3 * db, const char *sql, int len, unsigned flags, sqlite3_stmt **out, const char **tail),
            db, sql, len, flags, out, tail)
DEFINE_CALL(int, sqlite3_backup_step, (sqlite3_backup * backup, int pages), backup, pages)

int __real_sqlite3_open_v2(const char *path, sqlite3 **out, int flags, const char *vfs);
int __wrap_sqlite3_open_v2(const char *path, sqlite3 **out, int flags, const char *vfs);
int __wrap_sqlite3_open_v2(const char *path, sqlite3 **out, int flags, const char *vfs)
{
	int code = __real_sqlite3_open_v2(path, out, flags, vfs);

	return fails() ? failing_code : code;
}

/* Of the call that has failed last. */
int __real_sqlite3_errcode(sqlite3 *db);
int __wrap_sqlite3_errcode(sqlite3 *db);
int __wrap_sqlite3_errcode(sqlite3 *db)
{
	return failed ? failing_code : __real_sqlite3_errcode(db);
}

const char *__real_sqlite3_errmsg(sqlite3 *db);
const char *__wrap_sqlite3_errmsg(sqlite3 *db);
const char *__wrap_sqlite3_errmsg(sqlite3 *db)
{
	return failed ? "as the test wants" : __real_sqlite3_errmsg(db);
}

/* Calls to the system: which one fails, and how. */
static enum system_call { NONE, MKNOD, LSTAT, CHMOD, OPEN, LOCK, THREADSAFE, EVENTFD, THREAD } refused;
static int refusal;

static bool refuses(enum system_call call)
{
	if (refused != call)
		return false;
	errno = refusal;
	return true;
}

int __real_mknod(const char *path, mode_t mode, dev_t device);
int __wrap_mknod(const char *path, mode_t mode, dev_t device);
int __wrap_mknod(const char *path, mode_t mode, dev_t device)
{
	return refuses(MKNOD) ? -1 : __real_mknod(path, mode, device);
}

int __real_lstat(const char *path, struct stat *st);
int __wrap_lstat(const char *path, struct stat *st);
int __wrap_lstat(const char *path, struct stat *st)
{
	return refuses(LSTAT) ? -1 : __real_lstat(path, st);
}

int __real_chmod(const char *path, mode_t mode);
int __wrap_chmod(const char *path, mode_t mode);
int __wrap_chmod(const char *path, mode_t mode)
{
	return refuses(CHMOD) ? -1 : __real_chmod(path, mode);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
	return refuses(OPEN) ? -1 : __real_open(path, flags, 0600);
}

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
	void *argument;
	va_list ap;

	va_start(ap, command);
	argument = va_arg(ap, void *);
	va_end(ap);
	return command == F_OFD_SETLK && refuses(LOCK) ? -1 : __real_fcntl(fd, command, argument);
}

int __real_sqlite3_threadsafe(void);
int __wrap_sqlite3_threadsafe(void);
int __wrap_sqlite3_threadsafe(void)
{
	return refused == THREADSAFE ? 0 : __real_sqlite3_threadsafe();
}

int __real_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags)
{
	return refuses(EVENTFD) ? -1 : __real_eventfd(value, flags);
}

typedef void *(*thread_fn)(void *context);

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, thread_fn fn, void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, thread_fn fn, void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, thread_fn fn, void *context)
{
	return refuses(THREAD) ? refusal : __real_pthread_create(thread, attributes, fn, context);
}

static char *dir, *path;

static void setup(void)
{
	dir = unit_tmpdir();
	path = str_path_join(dir, "dtrain.db");
}

static void teardown(void)
{
	failing = failed = 0;
	refused = NONE;
	file_remove_tree(dir, NULL);
	free(dir);
	free(path);
}

/* Call n from now fails. */
static void fail_at(int n)
{
	failing = n;
	failed = 0;
}

/* Was there such a call? None fails any more. */
static bool has_failed(void)
{
	bool yes = failed > 0;

	failing = failed = 0;
	return yes;
}

static void ck_error(const struct error *err, int code, const char *words)
{
	_cleanup_free_ char *want = str_printf(words, path);

	ck_assert_int_eq(err->code, code);
	ck_assert_str_eq(err->message, want);
}

static struct store *open_store(void)
{
	struct error err = ERROR_INIT;
	struct store *s;

	ck_ok(store_open(path, &s, &err), &err);
	return s;
}

static void keep_error(void *context, int code, const struct error *err)
{
	*(struct error *)context = *err;
	((struct error *)context)->code = code;
}

static struct error commit(struct store *s)
{
	struct error result = {.code = 1};

	store_commit(s, keep_error, &result);
	store_wait(s);
	ck_assert_int_le(result.code, 0);
	return result;
}

static struct run *insert(struct store *s, const char *config)
{
	struct run *r = fixture_run(1, 1);
	struct error err = ERROR_INIT;

	ck_ok(store_insert(s, r, config, &err), &err);
	return r;
}

/* ---- opening ---- */

static const struct {
	int code, error;
	const char *words; /* %s: the path */
} codes[] = {
    {SQLITE_IOERR, -EIO, "%s: as the test wants"},
    {SQLITE_FULL, -ENOSPC, "%s: as the test wants"},
    {SQLITE_BUSY, -EBUSY, "%s is in use: another dtraind runs with this state_dir"},
    {SQLITE_LOCKED, -EBUSY, "%s is in use: another dtraind runs with this state_dir"},
};

/* Opens the store with one failure after the other; of further codes the first calls will do. remade: each
 * time a new one. */
static int open_with_failures(bool remade, int i)
{
	int n = 0;
	bool more = true;

	failing_code = codes[i].code;
	while (more && (i == 0 || n < 3)) {
		struct error err = ERROR_INIT;
		struct store *s = NULL;
		int r;

		if (remade)
			ck_ok(file_remove_tree(dir, &err) < 0 ? -1 : file_mkdirs(dir, 0700, &err), &err);
		fail_at(++n);
		r = store_open(path, &s, &err);
		more = has_failed();
		ck_assert_int_eq(s != NULL, r == 0);
		if (more) {
			ck_assert_msg(r < 0, "call %d of SQLite failed, and nothing was reported", n);
			ck_error(&err, codes[i].error, codes[i].words);
		} else
			ck_ok(r, &err);
		store_close(s);
	}
	return n;
}

START_TEST(a_store_is_opened_whole_or_not)
{
	int fresh = open_with_failures(true, _i), again = open_with_failures(false, _i);

	ck_assert_int_gt(fresh, _i == 0 ? 20 : 2);
	ck_assert(_i > 0 || again < fresh); /* it is not made once more */
}
END_TEST

static const struct {
	enum system_call call;
	int refusal, code;
	const char *words;
} refusals[] = {
    {MKNOD, EACCES, -EACCES, "cannot make %s: Permission denied"},
    {LSTAT, EIO, -EIO, "cannot open %s: Input/output error"},
    {OPEN, EMFILE, -EMFILE, "cannot open %s: Too many open files"},
    {LOCK, EAGAIN, -EBUSY, "%s is in use: another dtraind runs with this state_dir"},
    {LOCK, EACCES, -EBUSY, "%s is in use: another dtraind runs with this state_dir"},
    {LOCK, ENOLCK, -ENOLCK, "cannot lock %s: No locks available"},
    {THREADSAFE, 0, -ENOTSUP, "this SQLite is built without threads, which the store needs"},
    {EVENTFD, EMFILE, -EMFILE, "cannot set up the store: Too many open files"},
    {THREAD, EAGAIN, -EAGAIN, "cannot start the store's thread: Resource temporarily unavailable"},
    {CHMOD, EPERM, -EPERM, "cannot make %s its owner's alone: Operation not permitted"},
};

START_TEST(a_store_that_the_system_refuses_is_not_opened)
{
	struct error err = ERROR_INIT;
	struct store *s = NULL;
	struct stat st;

	store_close(open_store());
	ck_assert_int_eq(chmod(path, 0640), 0);
	refused = refusals[_i].call;
	refusal = refusals[_i].refusal;
	ck_assert_int_lt(store_open(path, &s, &err), 0);
	ck_error(&err, refusals[_i].code, refusals[_i].words);
	ck_assert_ptr_null(s);
	refused = NONE;
	store_close(open_store());
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
}
END_TEST

START_TEST(what_is_no_file_is_no_store)
{
	_cleanup_free_ char *other = str_path_join(dir, "other.db");
	struct error err = ERROR_INIT;
	struct store *s = NULL;

	ck_assert_int_eq(mkdir(path, 0700), 0);
	ck_assert_int_lt(store_open(path, &s, &err), 0);
	ck_error(&err, -EINVAL, "cannot open %s: not a regular file");
	ck_assert_int_eq(rmdir(path), 0);
	ck_ok(file_write_atomic(other, "", 0, 0600, &err), &err);
	ck_assert_int_eq(symlink(other, path), 0);
	ck_assert_int_lt(store_open(path, &s, &err), 0);
	ck_error(&err, -EINVAL, "cannot open %s: not a regular file");
	ck_assert_ptr_null(s);
}
END_TEST

static int open_and_close(void *context, struct error *err)
{
	struct store *s = NULL;
	int r = store_open(path, &s, err);

	ck_assert_int_eq(s != NULL, r == 0);
	store_close(s);
	return r;
}

START_TEST(a_store_needs_memory)
{
	store_close(open_store());
	memory_runs_out(open_and_close, NULL);
}
END_TEST

/* ---- writing ---- */

static void fill_batch(struct store *s, struct run *known, int64_t *fresh)
{
	_cleanup_(run_freep) struct run *r = insert(s, "{}");
	struct error err = ERROR_INIT;

	*fresh = r->id;
	store_update(s, known);
	ck_ok(store_set_drained(s, "n1", true, "a fan", &err), &err);
	ck_ok(store_set_drained(s, "n2", false, NULL, &err), &err);
	store_begin_epoch(s, 0, true);
	store_lift(s, 1000);
}

/* Of a commit that fails at any place nothing is there, and the next one makes up for it. */
START_TEST(a_commit_is_written_whole_or_not)
{
	struct store *s = open_store();
	struct error err = ERROR_INIT;
	struct run *known;
	bool more = true;

	ck_ok(store_set_drained(s, "n2", true, "a disk", &err), &err);
	known = insert(s, "{}");
	ck_ok(store_commit_epoch(s, &err), &err);
	for (int n = 1; more; n++) {
		int64_t epoch = store_epoch(s), fresh;
		_cleanup_free_ char *first = NULL, *second = NULL;
		_cleanup_(run_freep) struct run *back = NULL, *old = NULL;

		known->attempt = n;
		fill_batch(s, known, &fresh);
		fail_at(n);
		err = commit(s);
		more = has_failed();
		store_close(s);
		s = open_store(); /* it has what is on disk */
		ck_ok(store_get(s, known->id, &old, &err), &err);
		ck_assert_int_eq(store_drained(s, "n1", &first), !more);
		ck_assert_int_eq(store_drained(s, "n2", &second), more);
		ck_assert_int_eq(store_get(s, fresh, &back, NULL), more ? -ENOENT : 0);
		ck_assert_int_eq(store_epoch(s), more ? epoch : epoch + 1);
		ck_assert_int_eq(store_has_epoch(s, epoch), more);
		ck_assert_int_eq(old->attempt, more ? 0 : n);
		ck_assert_int_eq(store_highest(s), more ? known->id : 1000);
		ck_assert_int_gt(n, more ? 0 : 8);
	}
	run_free(known);
	store_close(s);
}
END_TEST

START_TEST(a_failed_commit_says_why)
{
	struct store *s = open_store();
	struct error err;

	failing_code = codes[_i].code;
	run_free(insert(s, "{}"));
	fail_at(2);
	err = commit(s);
	ck_assert(has_failed());
	ck_error(&err, codes[_i].error, codes[_i].words);
	run_free(insert(s, "{}"));
	err = commit(s);
	ck_ok(err.code, &err);
	ck_assert_int_eq(store_highest(s), 2);
	store_close(s);
}
END_TEST

/* What another store has replaces drains and runs that have not ended, or nothing of it does. */
START_TEST(an_import_is_written_whole_or_not)
{
	static const int64_t epochs[] = {7, 9};
	_cleanup_(run_freep) struct run *active = fixture_run(1, 1), *ended = fixture_run(1, 1);
	struct store_batch batch = {.highest = 50};
	const struct store_import import = {"00ff", &batch, epochs, ARRAY_SIZE(epochs)};
	struct store *s = open_store();
	struct error err = ERROR_INIT;
	bool more = true;

	run_free(insert(s, "{\"a\":1}"));
	ck_ok(store_set_drained(s, "n1", true, NULL, &err), &err);
	err = commit(s);
	ck_ok(err.code, &err);
	store_close(s);
	active->id = 20;
	ended->id = 21;
	ended->state = RUN_FAILED;
	ck_assert_int_eq(store_batch_add_run(&batch, active, "{}"), 0);
	ck_assert_int_eq(store_batch_add_run(&batch, ended, "{}"), 0);
	ck_assert_int_eq(store_batch_set_drained(&batch, "n5", true, "a fan"), 0);
	for (int n = 1; more; n++) {
		const struct store_backend *backend;
		_cleanup_free_ char *reason = NULL, *none = NULL;
		struct store_start start = {0};
		struct run *r = NULL;
		void *self;
		int code;

		ck_ok(store_sqlite_open(path, &backend, &self, &start, &err), &err);
		free(steal_pointer(start.cluster));
		fail_at(n);
		code = store_sqlite_import(self, &import, &err);
		more = has_failed();
		ck_assert_int_eq(code, more ? -EIO : 0);
		backend->close(self);
		ck_ok(store_sqlite_open(path, &backend, &self, &start, &err), &err);
		ck_assert_int_eq(str_eq(start.cluster, "00ff"), !more);
		ck_assert_int_eq(start.highest, more ? 1 : 50);
		ck_assert_int_eq(start.epoch, more ? 0 : 9);
		ck_assert_int_eq(backend->get(self, 1, &r, &err), more ? 0 : -ENOENT);
		run_free(steal_pointer(r));
		ck_assert_int_eq(backend->get(self, 20, &r, &err), more ? -ENOENT : 0);
		run_free(steal_pointer(r));
		ck_assert_int_eq(backend->get(self, 21, &r, &err), more ? -ENOENT : 0);
		run_free(steal_pointer(r));
		ck_assert_int_eq(backend->drained(self, "n1", &none), more);
		ck_assert_int_eq(backend->drained(self, "n5", &reason), !more);
		ck_assert_int_eq(backend->has_epoch(self, 7), !more);
		backend->close(self);
		free(start.cluster);
		ck_assert_int_gt(n, more ? 0 : 8);
	}
	store_batch_clear(&batch);
}
END_TEST

/* ---- reading ---- */

static int count_runs(void *context, struct run *r, struct error *err)
{
	run_free(r);
	++*(int *)context;
	return 0;
}

/* A row of a list that cannot be read ends it; the calls after that read all again. */
START_TEST(what_cannot_be_read_is_an_error)
{
	struct store *s = open_store();
	struct error err = ERROR_INIT;
	int64_t id, counts[RUN_STATES];
	struct run *r = NULL;
	char *text = NULL;
	int n = 0;

	failing_code = SQLITE_IOERR;
	for (int i = 0; i < 3; i++)
		run_free(insert(s, "{\"a\":1}"));
	err = commit(s);
	ck_ok(err.code, &err);
	fail_at(1);
	ck_assert_int_eq(store_get(s, 1, &r, &err), -EIO);
	ck_error(&err, -EIO, "%s: as the test wants");
	fail_at(1);
	ck_assert_int_eq(store_config(s, 1, &text, &err), -EIO);
	fail_at(1);
	ck_assert_int_eq(store_find_key(s, 1000, "k", &id, &err), -EIO);
	fail_at(1);
	ck_assert_int_eq(store_counts(s, counts, &err), -EIO);
	fail_at(2);
	ck_assert_int_eq(store_list(s, &(struct run_query){.states = ~0u, .limit = 10}, count_runs, &n, &err),
	                 -EIO);
	ck_assert_int_eq(n, 1);
	ck_assert_ptr_null(r);
	ck_assert_ptr_null(text);
	has_failed();
	ck_assert_int_eq(store_find_key(s, 1000, "k", &id, &err), -ENOENT);
	ck_assert_str_eq(err.message, "there is no run with the key k");
	n = 0;
	ck_ok(store_list(s, &(struct run_query){.states = ~0u, .limit = 10}, count_runs, &n, &err), &err);
	ck_assert_int_eq(n, 3);
	store_close(s);
}
END_TEST

static int read_all(void *context, struct error *err)
{
	struct store *s = context;
	_cleanup_(run_freep) struct run *r = NULL;
	_cleanup_free_ char *text = NULL;
	int n = 0, code = store_get(s, 1, &r, err);

	if (code == 0)
		code = store_config(s, 1, &text, err);
	if (code == 0)
		code = store_list(s, &(struct run_query){.states = ~0u, .limit = 10}, count_runs, &n, err);
	if (code == 0) {
		ck_assert_str_eq(r->reason, "waits");
		ck_assert_str_eq(r->ranks[1].node, "n2");
		ck_assert_str_eq(text, "{}");
		ck_assert_int_eq(n, 1);
	}
	return code;
}

START_TEST(reading_needs_memory)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);
	struct store *s = open_store();
	struct error err = ERROR_INIT;

	fixture_place(r);
	ck_assert_int_eq(str_replace(&r->reason, "waits"), 0);
	ck_assert_int_eq(str_replace(&r->detail, "last line"), 0);
	ck_assert_int_eq(str_replace(&r->output, "/out"), 0);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	err = commit(s);
	ck_ok(err.code, &err);
	memory_runs_out(read_all, s);
	store_close(s);
}
END_TEST

/* An epoch that is not on disk is none. */
START_TEST(an_epoch_is_begun_or_not)
{
	struct store *s = open_store();
	struct error err = ERROR_INIT;

	failing_code = SQLITE_FULL;
	fail_at(2);
	ck_assert_int_eq(store_commit_epoch(s, &err), -ENOSPC);
	ck_assert(has_failed());
	ck_error(&err, -ENOSPC, "%s: as the test wants");
	ck_assert_int_eq(store_epoch(s), 0);
	ck_ok(store_commit_epoch(s, &err), &err);
	ck_assert_int_eq(store_epoch(s), store_newest_epoch(s));
	ck_assert_int_gt(store_epoch(s), 0);
	store_close(s);
}
END_TEST

/* ---- copies ---- */

static void count_call(void *context, int code, const struct error *err)
{
	++*(int *)context;
}

static int begin_copy(void *context, struct error *err)
{
	struct store_backup *b = NULL;
	int called = 0, r = store_backup_begin(context, "/nonexistent/copy", count_call, &called, &b, err);

	ck_assert_int_eq(b != NULL, r == 0);
	while (r == 0 && !called) {
		ck_assert_int_eq(poll(&(struct pollfd){.fd = store_fd(context), .events = POLLIN}, 1, -1), 1);
		store_dispatch(context);
	}
	ck_assert_int_eq(called, r == 0);
	store_backup_free(b);
	return r;
}

START_TEST(a_copy_needs_memory)
{
	struct store *s = open_store();

	memory_runs_out(begin_copy, s);
	store_backup_free(NULL);
	store_close(s);
}
END_TEST

START_TEST(a_copy_that_fails_says_why)
{
	_cleanup_free_ char *to = str_path_join(dir, "copy");
	struct store *s = open_store();
	struct error err = ERROR_INIT, result;
	struct store_backup *b;
	bool more = true;

	failing_code = codes[_i].code;
	for (int n = 1; more; n++) {
		ck_ok(file_write_atomic(to, "", 0, 0600, &err), &err);
		result.code = 1;
		fail_at(n);
		ck_ok(store_backup_begin(s, to, keep_error, &result, &b, &err), &err);
		while (result.code > 0) {
			ck_assert_int_eq(poll(&(struct pollfd){.fd = store_fd(s), .events = POLLIN}, 1, -1),
			                 1);
			store_dispatch(s);
		}
		more = has_failed();
		ck_assert_int_eq(result.code, !more ? 0 : codes[_i].code == SQLITE_FULL ? -ENOSPC : -EIO);
		if (more)
			ck_assert_msg(str_starts(result.message, "cannot copy "), "%s", result.message);
		store_backup_free(b);
		ck_assert_int_gt(n, more ? 0 : 3);
	}
	store_close(s);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("store errors");
	TCase *tc = tcase_create("errors");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 20);
	tcase_add_loop_test(tc, a_store_is_opened_whole_or_not, 0, ARRAY_SIZE(codes));
	tcase_add_loop_test(tc, a_store_that_the_system_refuses_is_not_opened, 0, ARRAY_SIZE(refusals));
	tcase_add_test(tc, what_is_no_file_is_no_store);
	tcase_add_test(tc, a_store_needs_memory);
	tcase_add_test(tc, a_commit_is_written_whole_or_not);
	tcase_add_loop_test(tc, a_failed_commit_says_why, 0, ARRAY_SIZE(codes));
	tcase_add_test(tc, an_import_is_written_whole_or_not);
	tcase_add_test(tc, what_cannot_be_read_is_an_error);
	tcase_add_test(tc, reading_needs_memory);
	tcase_add_test(tc, an_epoch_is_begun_or_not);
	tcase_add_test(tc, a_copy_needs_memory);
	tcase_add_loop_test(tc, a_copy_that_fails_says_why, 0, ARRAY_SIZE(codes));
	suite_add_tcase(s, tc);
	return unit_run(s);
}
