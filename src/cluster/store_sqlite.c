/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store in an SQLite file with a write-ahead log. Two connections: the store's thread writes through one,
 * the event loop reads through the other, which sees the last commit and waits for none.
 *
 * Other processes are kept out by a lock on the byte that SQLite calls PENDING_BYTE, without which no
 * connection begins to read; ours have begun before it is taken. It is an open file description lock: unlike
 * SQLite's own locks it is not dropped when this process closes another descriptor of the file.
 */
#include "cluster/store_sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "cluster/store_backend.h"
#include "cluster/store_sqlite_row.h"

enum {
	PENDING_BYTE = 0x40000000, /* of SQLite's file format */
	SLICE_PAGES = 256,         /* of a backup: 1 MiB */
};

#define ALL_OF_A_RUN                                                                                         \
	"runs (" STORE_SQLITE_COLUMNS                                                                        \
	", config, id, key) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,"                     \
	"?16,?17,?18,?19,?20,?21,?22,?23,?24,?25,?26,?27)"

enum write_statement {
	INSERT,
	UPDATE,
	DRAIN,
	RESUME,
	ADD_EPOCH,
	REPLACE_EPOCH,
	LIFT,
	LIFT_FIRST,
	IMPORT,
	IMPORT_EPOCH,
	IMPORT_CLUSTER,
	WRITE_STATEMENTS,
};

enum read_statement {
	GET,
	CONFIG,
	FIND_KEY,
	LIST,
	LIST_ACTIVE,
	LIST_OF_USER,
	COUNTS,
	DRAINED,
	CLUSTER,
	EPOCH,
	HAS_EPOCH,
	HIGHEST,
	READ_STATEMENTS,
};

static const char *const write_text[WRITE_STATEMENTS] = {
    [INSERT] = "INSERT INTO " ALL_OF_A_RUN,
    [UPDATE] = "UPDATE runs SET state=?6, attempt=?7, version=?8, started=?10, ended=?11, reason=?12, "
               "exit_status=?13, cancelled=?14, failed=?15, requeue=?16, per_node=?18, ranks=?21, "
               "progress=?22, detail=?23, under_way=?24 WHERE id=?26",
    [DRAIN] = "INSERT INTO drained VALUES (?1, ?2)",
    [RESUME] = "DELETE FROM drained WHERE node = ?1 COLLATE NOCASE",
    [ADD_EPOCH] = "INSERT INTO epochs VALUES (?1)",
    [REPLACE_EPOCH] = "UPDATE epochs SET epoch = ?1 WHERE epoch = ?2",
    [LIFT] = "UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'runs'",
    [LIFT_FIRST] = "INSERT INTO sqlite_sequence VALUES ('runs', ?1)",
    [IMPORT] = "INSERT OR REPLACE INTO " ALL_OF_A_RUN,
    [IMPORT_EPOCH] = "INSERT OR IGNORE INTO epochs VALUES (?1)",
    [IMPORT_CLUSTER] = "UPDATE cluster SET id = ?1",
};

static const char *const read_text[READ_STATEMENTS] = {
    [GET] = "SELECT id, " STORE_SQLITE_COLUMNS " FROM runs WHERE id = ?1",
    [CONFIG] = "SELECT config FROM runs WHERE id = ?1",
    [FIND_KEY] = "SELECT id FROM runs WHERE uid = ?1 AND key = ?2",
    [LIST] = "SELECT id, " STORE_SQLITE_COLUMNS
             " FROM runs WHERE ?1 >> state & 1 AND id < ?2 ORDER BY id DESC LIMIT ?3",
    [LIST_ACTIVE] =
        "SELECT id, " STORE_SQLITE_COLUMNS " FROM runs WHERE state < 4 AND ?1 >> state & 1 AND id < ?2 "
        "ORDER BY id DESC LIMIT ?3",
    [LIST_OF_USER] = "SELECT id, " STORE_SQLITE_COLUMNS
                     " FROM runs WHERE user = ?4 AND ?1 >> state & 1 AND id < ?2 ORDER BY id DESC LIMIT ?3",
    [COUNTS] = "SELECT state, count(*) FROM runs GROUP BY state",
    [DRAINED] = "SELECT reason FROM drained WHERE node = ?1 COLLATE NOCASE ORDER BY node = ?1 DESC",
    [CLUSTER] = "SELECT id FROM cluster",
    [EPOCH] = "SELECT max(epoch) FROM epochs",
    [HAS_EPOCH] = "SELECT 1 FROM epochs WHERE epoch = ?1",
    [HIGHEST] = "SELECT seq FROM sqlite_sequence WHERE name = 'runs'",
};

struct sqlite_store {
	char *path;
	int lock_fd;
	sqlite3 *writer, *reader;
	sqlite3_stmt *write[WRITE_STATEMENTS], *read[READ_STATEMENTS];
};

struct sqlite_backup {
	struct sqlite_store *store;
	sqlite3 *copy;
	sqlite3_backup *backup;
};

static int write_error(const struct sqlite_store *s, struct error *err)
{
	return store_sqlite_error(s->writer, s->path, err);
}

static int read_error(const struct sqlite_store *s, struct error *err)
{
	return store_sqlite_error(s->reader, s->path, err);
}

/* Writing: the store's thread. */

static int step_write(struct sqlite_store *s, enum write_statement which, struct error *err)
{
	sqlite3_stmt *st = s->write[which];
	int r = sqlite3_step(st) == SQLITE_DONE ? 0 : write_error(s, err);

	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return r;
}

static int write_run(struct sqlite_store *s, enum write_statement which, const struct stored_run *stored,
                     struct error *err)
{
	store_sqlite_bind(s->write[which], stored, which != UPDATE);
	return step_write(s, which, err);
}

static int write_drain(struct sqlite_store *s, const struct stored_drain *d, struct error *err)
{
	int r;

	/* Under any spelling, before it is written under this one. */
	store_sqlite_bind_text(s->write[RESUME], 1, d->node);
	r = step_write(s, RESUME, err);
	if (r < 0 || !d->drained)
		return r;
	store_sqlite_bind_text(s->write[DRAIN], 1, d->node);
	store_sqlite_bind_text(s->write[DRAIN], 2, d->reason);
	return step_write(s, DRAIN, err);
}

/* One statement, so that no failure leaves the store without the one epoch and without the other. */
static int write_epoch(struct sqlite_store *s, int64_t epoch, int64_t replaced, struct error *err)
{
	enum write_statement which = replaced > 0 ? REPLACE_EPOCH : ADD_EPOCH;

	sqlite3_bind_int64(s->write[which], 1, epoch);
	if (replaced > 0)
		sqlite3_bind_int64(s->write[which], 2, replaced);
	return step_write(s, which, err);
}

static int write_highest(struct sqlite_store *s, int64_t highest, struct error *err)
{
	int r;

	sqlite3_bind_int64(s->write[LIFT], 1, highest);
	r = step_write(s, LIFT, err);
	if (r < 0 || sqlite3_changes(s->writer) > 0)
		return r;
	sqlite3_bind_int64(s->write[LIFT_FIRST], 1, highest);
	return step_write(s, LIFT_FIRST, err);
}

static int end_transaction(struct sqlite_store *s, int r, struct error *err)
{
	if (r == 0)
		r = store_sqlite_exec(s->writer, s->path, "COMMIT", err);
	if (r < 0 && !sqlite3_get_autocommit(s->writer))
		sqlite3_exec(s->writer, "ROLLBACK", NULL, NULL, NULL);
	return r;
}

static int sqlite_apply(void *self, const struct store_batch *b, struct error *err)
{
	struct sqlite_store *s = self;
	int r = store_sqlite_exec(s->writer, s->path, "BEGIN IMMEDIATE", err);

	for (size_t i = 0; i < b->run_count && r == 0; i++)
		if (!b->runs[i].refused)
			r = write_run(s, b->runs[i].config ? INSERT : UPDATE, &b->runs[i], err);
	for (size_t i = 0; i < b->drain_count && r == 0; i++)
		r = write_drain(s, &b->drains[i], err);
	if (r == 0 && b->epoch > 0)
		r = write_epoch(s, b->epoch, b->replaced, err);
	if (r == 0 && b->highest > 0)
		r = write_highest(s, b->highest, err);
	return end_transaction(s, r, err);
}

int store_sqlite_import(void *self, const struct store_import *import, struct error *err)
{
	struct sqlite_store *s = self;
	const struct store_batch *b = import->batch;
	int r =
	    store_sqlite_exec(s->writer, s->path,
	                      "BEGIN IMMEDIATE; DELETE FROM runs WHERE state < 4; DELETE FROM drained", err);

	if (r == 0) {
		store_sqlite_bind_text(s->write[IMPORT_CLUSTER], 1, import->cluster);
		r = step_write(s, IMPORT_CLUSTER, err);
	}
	for (size_t i = 0; i < b->run_count && r == 0; i++)
		r = write_run(s, IMPORT, &b->runs[i], err);
	for (size_t i = 0; i < b->drain_count && r == 0; i++)
		r = write_drain(s, &b->drains[i], err);
	for (size_t i = 0; i < import->epoch_count && r == 0; i++) {
		sqlite3_bind_int64(s->write[IMPORT_EPOCH], 1, import->epochs[i]);
		r = step_write(s, IMPORT_EPOCH, err);
	}
	if (r == 0 && b->highest > 0)
		r = write_highest(s, b->highest, err);
	return end_transaction(s, r, err);
}

static int backup_error(struct sqlite_backup *b, int code, const char *message, struct error *err)
{
	return error_set(err, code == SQLITE_FULL ? -ENOSPC : -EIO, "cannot copy %s: %s", b->store->path,
	                 message);
}

static void sqlite_backup_free(void *backup)
{
	struct sqlite_backup *b = backup;

	if (b->backup)
		sqlite3_backup_finish(b->backup);
	sqlite3_close(b->copy);
	free(b);
}

/* Of the connection that writes: what it commits between two slices goes into the copy, too. */
static int sqlite_backup_begin(void *self, const char *path, void **backup, struct error *err)
{
	struct sqlite_store *s = self;
	struct sqlite_backup *b = calloc(1, sizeof(*b));
	int r = 0;

	if (!b)
		return error_oom(err);
	b->store = s;
	/* The copy is of use only once it is complete: it needs no journal, and no sync on the way. */
	if (sqlite3_open_v2(path, &b->copy, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) == SQLITE_OK &&
	    sqlite3_exec(b->copy, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;", NULL, NULL, NULL) ==
	        SQLITE_OK)
		b->backup = sqlite3_backup_init(b->copy, "main", s->writer, "main");
	if (!b->backup) {
		r = backup_error(b, sqlite3_errcode(b->copy), sqlite3_errmsg(b->copy), err);
		sqlite_backup_free(b);
		return r;
	}
	*backup = b;
	return 0;
}

static int sqlite_backup_step(void *backup, bool *done, struct error *err)
{
	struct sqlite_backup *b = backup;
	int code = sqlite3_backup_step(b->backup, SLICE_PAGES);

	*done = code == SQLITE_DONE;
	return code == SQLITE_OK || code == SQLITE_DONE ? 0
	                                                : backup_error(b, code, sqlite3_errstr(code), err);
}

/* Reading: the event loop. */

/* *out is what `read` makes of the row of the run; its NULL means that there is no memory. */
static int read_one(struct sqlite_store *s, int statement, int64_t id, void *(*read)(sqlite3_stmt *st),
                    void **out, struct error *err)
{
	sqlite3_stmt *st = s->read[statement];
	int code, r = 0;

	sqlite3_bind_int64(st, 1, id);
	code = sqlite3_step(st);
	if (code == SQLITE_ROW) {
		*out = read(st);
		if (!*out)
			r = error_oom(err);
	} else if (code == SQLITE_DONE)
		r = error_set(err, -ENOENT, "there is no run %lld", (long long)id);
	else
		r = read_error(s, err);
	sqlite3_reset(st);
	return r;
}

static void *run_of_row(sqlite3_stmt *st)
{
	return store_sqlite_read(st);
}

static int sqlite_get(void *self, int64_t id, struct run **out, struct error *err)
{
	void *run = NULL;
	int r = read_one(self, GET, id, run_of_row, &run, err);

	if (r < 0)
		return r;
	*out = run;
	return 0;
}

static void *text_of_row(sqlite3_stmt *st)
{
	return store_sqlite_text(st, 0);
}

static int sqlite_config(void *self, int64_t id, char **text, struct error *err)
{
	void *own = NULL;
	int r = read_one(self, CONFIG, id, text_of_row, &own, err);

	if (r < 0)
		return r;
	*text = own;
	return 0;
}

static int sqlite_find_key(void *self, int64_t uid, const char *key, int64_t *id, struct error *err)
{
	struct sqlite_store *s = self;
	sqlite3_stmt *st = s->read[FIND_KEY];
	int code, r = 0;

	sqlite3_bind_int64(st, 1, uid);
	store_sqlite_bind_text(st, 2, key);
	code = sqlite3_step(st);
	if (code == SQLITE_ROW)
		*id = sqlite3_column_int64(st, 0);
	else if (code == SQLITE_DONE)
		r = error_set(err, -ENOENT, "there is no run with the key %s", key);
	else
		r = read_error(s, err);
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return r;
}

static int sqlite_list(void *self, const struct run_query *q,
                       int (*each)(void *context, struct run *r, struct error *err), void *context,
                       struct error *err)
{
	struct sqlite_store *s = self;
	/* The few active ones, and those of a user, are found through indexes, however many have finished. */
	sqlite3_stmt *st = s->read[q->user ? LIST_OF_USER : q->states >> RUN_SUCCEEDED ? LIST : LIST_ACTIVE];
	int code, r = 0;

	sqlite3_bind_int64(st, 1, q->states);
	sqlite3_bind_int64(st, 2, q->before > 0 ? q->before : INT64_MAX);
	sqlite3_bind_int64(st, 3, q->limit);
	if (q->user)
		store_sqlite_bind_text(st, 4, q->user);
	while (r >= 0 && (code = sqlite3_step(st)) == SQLITE_ROW) {
		struct run *run = store_sqlite_read(st);

		r = run ? each(context, run, err) : error_oom(err);
	}
	if (r >= 0 && code != SQLITE_DONE)
		r = read_error(s, err);
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return r;
}

static int sqlite_counts(void *self, int64_t counts[RUN_STATES], struct error *err)
{
	struct sqlite_store *s = self;
	sqlite3_stmt *st = s->read[COUNTS];
	int code;

	memset(counts, 0, RUN_STATES * sizeof(*counts));
	while ((code = sqlite3_step(st)) == SQLITE_ROW)
		counts[sqlite3_column_int64(st, 0) % RUN_STATES] = sqlite3_column_int64(st, 1);
	sqlite3_reset(st);
	return code == SQLITE_DONE ? 0 : read_error(s, err);
}

static bool sqlite_drained(void *self, const char *node, char **reason)
{
	struct sqlite_store *s = self;
	sqlite3_stmt *st = s->read[DRAINED];
	bool yes;

	store_sqlite_bind_text(st, 1, node);
	yes = sqlite3_step(st) == SQLITE_ROW;
	*reason = yes ? store_sqlite_text(st, 0) : NULL;
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return yes;
}

static bool sqlite_has_epoch(void *self, int64_t epoch)
{
	struct sqlite_store *s = self;
	sqlite3_stmt *st = s->read[HAS_EPOCH];
	bool yes;

	sqlite3_bind_int64(st, 1, epoch);
	yes = sqlite3_step(st) == SQLITE_ROW;
	sqlite3_reset(st);
	return yes;
}

/* *out: 0 where there is none. */
static int read_number(struct sqlite_store *s, enum read_statement which, int64_t *out, struct error *err)
{
	sqlite3_stmt *st = s->read[which];
	int code = sqlite3_step(st), r = code == SQLITE_ROW || code == SQLITE_DONE ? 0 : read_error(s, err);

	*out = code == SQLITE_ROW ? sqlite3_column_int64(st, 0) : 0;
	sqlite3_reset(st);
	return r;
}

static int read_start(struct sqlite_store *s, struct store_start *start, struct error *err)
{
	sqlite3_stmt *st = s->read[CLUSTER];
	bool found = sqlite3_step(st) == SQLITE_ROW;
	int r = found ? 0 : read_error(s, err);

	if (r == 0)
		r = read_number(s, EPOCH, &start->epoch, err);
	if (r == 0)
		r = read_number(s, HIGHEST, &start->highest, err);
	if (r == 0 && !(start->cluster = store_sqlite_text(st, 0)))
		r = error_oom(err);
	sqlite3_reset(st);
	return r;
}

static void sqlite_close(void *self)
{
	struct sqlite_store *s = self;

	for (int i = 0; i < READ_STATEMENTS; i++)
		sqlite3_finalize(s->read[i]);
	sqlite3_close(s->reader);
	for (int i = 0; i < WRITE_STATEMENTS; i++)
		sqlite3_finalize(s->write[i]);
	/* The last connection moves the log into the file and removes it, for which it takes all locks. */
	if (s->lock_fd >= 0)
		fcntl(s->lock_fd, F_OFD_SETLK,
		      &(struct flock){.l_type = F_UNLCK, .l_start = PENDING_BYTE, .l_len = 1});
	sqlite3_close(s->writer);
	closep(&s->lock_fd); /* drops the locks of all connections of this process to the file */
	free(s->path);
	free(s);
}

static const struct store_backend sqlite_backend = {
    .apply = sqlite_apply,
    .backup_begin = sqlite_backup_begin,
    .backup_step = sqlite_backup_step,
    .backup_free = sqlite_backup_free,
    .get = sqlite_get,
    .config = sqlite_config,
    .find_key = sqlite_find_key,
    .list = sqlite_list,
    .counts = sqlite_counts,
    .drained = sqlite_drained,
    .has_epoch = sqlite_has_epoch,
    .close = sqlite_close,
};

/* The file with the mode that SQLite then gives to those beside it. */
static int make_file(const char *path, struct error *err)
{
	struct stat st;

	if (mknod(path, S_IFREG | 0600, 0) < 0 && errno != EEXIST)
		return error_errno(err, -errno, "cannot make %s", path);
	if (lstat(path, &st) < 0)
		return error_errno(err, -errno, "cannot open %s", path);
	if (!S_ISREG(st.st_mode))
		return error_set(err, -EINVAL, "cannot open %s: not a regular file", path);
	if ((st.st_mode & 07777) != 0600 && chmod(path, 0600) < 0)
		return error_errno(err, -errno, "cannot make %s its owner's alone", path);
	return 0;
}

static int prepare(sqlite3 *db, const struct sqlite_store *s, const char *const *text, sqlite3_stmt **out,
                   int count, struct error *err)
{
	for (int i = 0; i < count; i++)
		if (sqlite3_prepare_v3(db, text[i], -1, SQLITE_PREPARE_PERSISTENT, &out[i], NULL) !=
		    SQLITE_OK)
			return store_sqlite_error(db, s->path, err);
	return 0;
}

static int connect_db(const struct sqlite_store *s, const char *pragmas, sqlite3 **out, struct error *err)
{
	if (sqlite3_open_v2(s->path, out, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
		return store_sqlite_error(*out, s->path, err);
	return store_sqlite_exec(*out, s->path, pragmas, err);
}

/* The first read takes the lock that a connection keeps as long as it is open; after it, ours. */
static int keep_others_out(struct sqlite_store *s, struct error *err)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = PENDING_BYTE, .l_len = 1};
	int r = store_sqlite_exec(s->writer, s->path, "SELECT count(*) FROM sqlite_master", err);

	if (r < 0 || fcntl(s->lock_fd, F_OFD_SETLK, &lock) == 0)
		return r;
	return errno == EAGAIN || errno == EACCES ? store_sqlite_busy(s->path, err)
	                                          : error_errno(err, -errno, "cannot lock %s", s->path);
}

static int open_all(struct sqlite_store *s, struct error *err)
{
	int r;

	if (!sqlite3_threadsafe())
		return error_set(err, -ENOTSUP,
		                 "this SQLite is built without threads, which the store needs");
	r = make_file(s->path, err);
	if (r < 0)
		return r;
	s->lock_fd = open(s->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (s->lock_fd < 0)
		return error_errno(err, -errno, "cannot open %s", s->path);
	/* A cache of 1 MiB for each connection: what does not fit is in the kernel's cache of the file. */
	if ((r = connect_db(
	         s,
	         "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -1024; "
	         "PRAGMA temp_store = MEMORY;",
	         &s->writer, err)) < 0 ||
	    (r = keep_others_out(s, err)) < 0 || (r = store_migrate(s->writer, s->path, err)) < 0 ||
	    (r = prepare(s->writer, s, write_text, s->write, WRITE_STATEMENTS, err)) < 0 ||
	    (r = connect_db(s, "PRAGMA query_only = 1; PRAGMA cache_size = -1024;", &s->reader, err)) < 0)
		return r;
	return prepare(s->reader, s, read_text, s->read, READ_STATEMENTS, err);
}

int store_sqlite_open(const char *path, const struct store_backend **backend, void **self,
                      struct store_start *start, struct error *err)
{
	struct sqlite_store *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return error_oom(err);
	s->lock_fd = -1;
	s->path = strdup(path);
	r = s->path ? open_all(s, err) : error_oom(err);
	if (r == 0)
		r = read_start(s, start, err);
	if (r < 0) {
		sqlite_close(s);
		return r;
	}
	*backend = &sqlite_backend;
	*self = s;
	return 0;
}
