/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/store.h"

#include <errno.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/str.h"

enum { SCHEMA_VERSION = 5 };

/* The configuration comes last: listings never touch its pages. */
static const char schema[] =
    "CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, user TEXT, uid INTEGER NOT "
    "NULL,"
    " gid INTEGER NOT NULL, task TEXT NOT NULL, state INTEGER NOT NULL, attempt INTEGER NOT NULL,"
    " version INTEGER NOT NULL, submitted REAL NOT NULL, started REAL NOT NULL, ended REAL NOT NULL, reason "
    "TEXT,"
    " exit_status INTEGER NOT NULL, cancelled INTEGER NOT NULL, failed INTEGER NOT NULL, requeue INTEGER NOT "
    "NULL,"
    " nodes INTEGER NOT NULL, per_node INTEGER NOT NULL, directory TEXT, output TEXT, ranks TEXT NOT NULL,"
    " progress TEXT, config TEXT NOT NULL);"
    "CREATE INDEX runs_state ON runs (state, id);"
    "CREATE TABLE drained (node TEXT PRIMARY KEY) WITHOUT ROWID;"
    "PRAGMA user_version = 1;";

/* From each layout to the next. */
static const char *const upgrades[SCHEMA_VERSION] = {
    [1] = "ALTER TABLE drained ADD COLUMN reason TEXT;"
          "PRAGMA user_version = 2;",
    /* Who counts the runs so, and the openings of the store so far. */
    [2] = "CREATE TABLE cluster (id TEXT NOT NULL);"
          "INSERT INTO cluster VALUES (lower(hex(randomblob(16))));"
          "CREATE TABLE epochs (epoch INTEGER PRIMARY KEY);"
          "PRAGMA user_version = 3;",
    /* What was in one field goes on as it was for the owner; of it everybody sees who and where. */
    [3] = "ALTER TABLE runs ADD COLUMN detail TEXT;"
          "UPDATE runs SET detail = reason, reason = substr(reason, 1, instr(reason, ': ')) || ' exit status "
          "' || "
          "exit_status WHERE reason LIKE 'rank % on %: %';"
          "UPDATE runs SET detail = reason, reason = substr(reason, 1, instr(reason, '; rank ') - 1) "
          "WHERE detail IS NULL AND reason LIKE '%; rank % on %: %';"
          "UPDATE runs SET detail = reason, reason = substr(reason, 1, instr(reason, ': ')) || ' the start "
          "has failed' "
          "WHERE detail IS NULL AND reason LIKE 'node %: %' AND reason NOT LIKE 'node % is %' AND state = 5;"
          "PRAGMA user_version = 4;",
    /* What is known of an attempt that has not ended. */
    [4] = "ALTER TABLE runs ADD COLUMN under_way TEXT;"
          "PRAGMA user_version = 5;",
};

#define COLUMNS                                                                                              \
	"name, user, uid, gid, task, state, attempt, version, submitted, started, ended, reason, "           \
	"exit_status, cancelled, failed, requeue, nodes, per_node, directory, output, ranks, progress, "     \
	"detail, under_way"

enum statement {
	INSERT,
	UPDATE,
	GET,
	CONFIG,
	LIST,
	LIST_ACTIVE,
	COUNTS,
	DRAIN,
	RESUME,
	DRAINED,
	CLUSTER,
	EPOCH,
	HAS_EPOCH,
	ADD_EPOCH,
	REPLACE_EPOCH,
	HIGHEST,
	LIFT,
	LIFT_FIRST,
	STATEMENTS,
};

static const char *const statement_text[STATEMENTS] = {
    [INSERT] = "INSERT INTO runs (" COLUMNS ", config) VALUES "
               "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23,?24,?25)",
    [UPDATE] = "UPDATE runs SET state=?6, attempt=?7, version=?8, started=?10, ended=?11, reason=?12, "
               "exit_status=?13, cancelled=?14, failed=?15, requeue=?16, per_node=?18, ranks=?21, "
               "progress=?22, detail=?23, under_way=?24 WHERE id=?26",
    [GET] = "SELECT id, " COLUMNS " FROM runs WHERE id = ?1",
    [CONFIG] = "SELECT config FROM runs WHERE id = ?1",
    [LIST] = "SELECT id, " COLUMNS " FROM runs WHERE ?1 >> state & 1 AND id < ?2 ORDER BY id DESC LIMIT ?3",
    [LIST_ACTIVE] = "SELECT id, " COLUMNS " FROM runs WHERE state < 4 AND ?1 >> state & 1 AND id < ?2 "
                    "ORDER BY id DESC LIMIT ?3",
    [COUNTS] = "SELECT state, count(*) FROM runs GROUP BY state",
    [DRAIN] = "INSERT OR REPLACE INTO drained VALUES (?1, ?2)",
    [RESUME] = "DELETE FROM drained WHERE node = ?1",
    [CLUSTER] = "SELECT id FROM cluster",
    [EPOCH] = "SELECT max(epoch) FROM epochs",
    [HAS_EPOCH] = "SELECT 1 FROM epochs WHERE epoch = ?1",
    [ADD_EPOCH] = "INSERT INTO epochs VALUES (?1)",
    [REPLACE_EPOCH] = "UPDATE epochs SET epoch = ?1 WHERE epoch = ?2",
    [HIGHEST] = "SELECT seq FROM sqlite_sequence WHERE name = 'runs'",
    [LIFT] = "UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'runs'",
    [LIFT_FIRST] = "INSERT INTO sqlite_sequence VALUES ('runs', ?1)",
    [DRAINED] = "SELECT reason FROM drained WHERE node = ?1",
};

struct store {
	sqlite3 *db;
	char *path;
	sqlite3_stmt *statements[STATEMENTS];
	bool open; /* a transaction is */
	char *cluster;
	int64_t epoch, newest_epoch; /* on disk; of the open transaction, else the same */
};

static int db_error(struct store *s, struct error *err)
{
	int code = sqlite3_errcode(s->db);

	if (code == SQLITE_BUSY || code == SQLITE_LOCKED)
		return error_set(err, -EBUSY, "%s is in use: another dtraind runs with this state_dir",
		                 s->path);
	return error_set(err, code == SQLITE_FULL ? -ENOSPC : -EIO, "%s: %s", s->path, sqlite3_errmsg(s->db));
}

static int db_exec(struct store *s, const char *sql, struct error *err)
{
	return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : db_error(s, err);
}

static int64_t user_version(struct store *s)
{
	sqlite3_stmt *st = NULL;
	int64_t v = -1;

	if (sqlite3_prepare_v2(s->db, "PRAGMA user_version", -1, &st, NULL) == SQLITE_OK &&
	    sqlite3_step(st) == SQLITE_ROW)
		v = sqlite3_column_int64(st, 0);
	sqlite3_finalize(st);
	return v;
}

/* All or nothing. */
static int upgrade(struct store *s, int64_t version, struct error *err)
{
	int r = db_exec(s, "BEGIN EXCLUSIVE", err);

	if (r == 0 && version == 0) {
		r = db_exec(s, schema, err);
		version = 1;
	}
	for (; r == 0 && version < SCHEMA_VERSION; version++)
		r = db_exec(s, upgrades[version], err);
	return r < 0 ? r : db_exec(s, "COMMIT", err);
}

static int prepare(struct store *s, struct error *err)
{
	int64_t version;
	int r;

	/* Exclusive: the lock file of shared access is not needed, and a second service is noticed at once.
	 */
	r = db_exec(s,
	            "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; "
	            "PRAGMA cache_size = -4096; PRAGMA temp_store = MEMORY;",
	            err);
	if (r < 0)
		return r;
	version = user_version(s);
	if (version < 0)
		return db_error(s, err);
	if (version > SCHEMA_VERSION)
		return error_set(err, -EINVAL,
		                 "%s was written by a newer dtrain (layout %lld, this one knows %d)", s->path,
		                 (long long)version, SCHEMA_VERSION);
	if (version < SCHEMA_VERSION) {
		r = upgrade(s, version, err);
		if (r < 0)
			return r;
	}
	for (int i = 0; i < STATEMENTS; i++)
		if (sqlite3_prepare_v3(s->db, statement_text[i], -1, SQLITE_PREPARE_PERSISTENT,
		                       &s->statements[i], NULL) != SQLITE_OK)
			return db_error(s, err);
	return 0;
}

static char *select_text(struct store *s, enum statement which)
{
	sqlite3_stmt *st = s->statements[which];
	const char *text = sqlite3_step(st) == SQLITE_ROW ? (const char *)sqlite3_column_text(st, 0) : NULL;
	char *copy = text ? strdup(text) : NULL;

	sqlite3_reset(st);
	return copy;
}

/* 0 where there is none. */
static int64_t select_number(struct store *s, enum statement which)
{
	sqlite3_stmt *st = s->statements[which];
	int64_t n = sqlite3_step(st) == SQLITE_ROW ? sqlite3_column_int64(st, 0) : 0;

	sqlite3_reset(st);
	return n;
}

/* The file with the mode that SQLite then gives to those beside it. Without a descriptor: the locks of SQLite
 * are the process's (fcntl), and the kernel drops them all when any descriptor of the file is closed. */
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

int store_open(const char *path, struct store **out, struct error *err)
{
	_cleanup_(store_closep) struct store *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return error_oom(err);
	s->path = strdup(path);
	if (!s->path)
		return error_oom(err);
	r = make_file(path, err);
	if (r < 0)
		return r;
	if (sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
	                    NULL) != SQLITE_OK)
		return db_error(s, err);
	r = prepare(s, err);
	if (r < 0)
		return r;
	s->cluster = select_text(s, CLUSTER);
	s->epoch = s->newest_epoch = select_number(s, EPOCH);
	if (!s->cluster)
		return db_error(s, err);
	*out = steal_pointer(s);
	return 0;
}

void store_close(struct store *s)
{
	if (!s)
		return;
	for (int i = 0; i < STATEMENTS; i++)
		sqlite3_finalize(s->statements[i]);
	sqlite3_close(s->db);
	free(s->cluster);
	free(s->path);
	free(s);
}

static int begin(struct store *s, struct error *err)
{
	/* After some failures SQLite undoes a transaction by itself. What comes after must fail with it. */
	if (s->open && sqlite3_get_autocommit(s->db))
		return error_set(err, -EIO, "%s: the changes before this one have been undone", s->path);
	if (s->open)
		return 0;
	if (db_exec(s, "BEGIN IMMEDIATE", err) < 0)
		return err ? err->code : -EIO;
	s->open = true;
	return 0;
}

int store_commit(struct store *s, struct error *err)
{
	int r;

	if (!s->open)
		return 0;
	r = db_exec(s, "COMMIT", err);
	if (r < 0 && !sqlite3_get_autocommit(s->db))
		sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
	s->open = false;
	if (r < 0)
		s->newest_epoch = s->epoch;
	else
		s->epoch = s->newest_epoch;
	return r;
}

void store_rollback(struct store *s)
{
	if (s->open)
		sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
	s->open = false;
	s->newest_epoch = s->epoch;
}

static void bind_text(sqlite3_stmt *st, int i, const char *text)
{
	sqlite3_bind_text(st, i, text, -1, SQLITE_STATIC); /* NULL binds NULL */
}

/* Columns in the order of COLUMNS. ranks, progress and under_way: their JSON text. */
static void bind_run(sqlite3_stmt *st, const struct run *r, const char *ranks, const char *progress,
                     const char *under_way)
{
	bind_text(st, 1, r->name);
	bind_text(st, 2, r->user);
	sqlite3_bind_int64(st, 3, r->uid);
	sqlite3_bind_int64(st, 4, r->gid);
	bind_text(st, 5, r->task);
	sqlite3_bind_int64(st, 6, r->state);
	sqlite3_bind_int64(st, 7, r->attempt);
	sqlite3_bind_int64(st, 8, r->version);
	sqlite3_bind_double(st, 9, r->submitted);
	sqlite3_bind_double(st, 10, r->started);
	sqlite3_bind_double(st, 11, r->ended);
	bind_text(st, 12, r->reason);
	sqlite3_bind_int64(st, 13, r->exit_status);
	sqlite3_bind_int64(st, 14, r->cancelled);
	sqlite3_bind_int64(st, 15, r->failed);
	sqlite3_bind_int64(st, 16, r->requeue);
	sqlite3_bind_int64(st, 17, r->nodes);
	sqlite3_bind_int64(st, 18, r->per_node);
	bind_text(st, 19, r->directory);
	bind_text(st, 20, r->output);
	bind_text(st, 21, ranks);
	bind_text(st, 22, progress);
	bind_text(st, 23, r->detail);
	bind_text(st, 24, under_way);
}

static char *column(sqlite3_stmt *st, int i)
{
	const char *s = (const char *)sqlite3_column_text(st, i);

	return s ? strdup(s) : NULL;
}

static json_t *column_json(sqlite3_stmt *st, int i)
{
	const char *s = (const char *)sqlite3_column_text(st, i);

	return s ? json_loads(s, JSON_DECODE_ANY, NULL) : NULL;
}

static struct run *read_run(sqlite3_stmt *st)
{
	_cleanup_(run_freep) struct run *r = calloc(1, sizeof(*r));
	_cleanup_json_ json_t *under_way = column_json(st, 24);

	if (!r)
		return NULL;
	r->id = sqlite3_column_int64(st, 0);
	r->name = column(st, 1);
	r->user = column(st, 2);
	r->uid = sqlite3_column_int64(st, 3);
	r->gid = sqlite3_column_int64(st, 4);
	r->task = column(st, 5);
	r->state = sqlite3_column_int64(st, 6) % RUN_STATES;
	r->attempt = sqlite3_column_int64(st, 7);
	r->version = sqlite3_column_int64(st, 8);
	r->submitted = sqlite3_column_double(st, 9);
	r->started = sqlite3_column_double(st, 10);
	r->ended = sqlite3_column_double(st, 11);
	r->reason = column(st, 12);
	r->exit_status = sqlite3_column_int64(st, 13);
	r->cancelled = sqlite3_column_int64(st, 14);
	r->failed = sqlite3_column_int64(st, 15);
	r->requeue = sqlite3_column_int64(st, 16);
	r->nodes = sqlite3_column_int64(st, 17);
	r->per_node = sqlite3_column_int64(st, 18);
	r->directory = column(st, 19);
	r->output = column(st, 20);
	r->ranks = column_json(st, 21);
	if (!r->ranks)
		r->ranks = json_array();
	r->progress = column_json(st, 22);
	r->detail = column(st, 23);
	return run_set_under_way(r, under_way, NULL) < 0 ? NULL : steal_pointer(r);
}

static int write_run(struct store *s, enum statement which, const struct run *r, const char *config,
                     struct error *err)
{
	_cleanup_json_ json_t *state = run_under_way(r);
	_cleanup_free_ char *ranks = json_to_string(r->ranks),
	                    *progress = r->progress ? json_to_string(r->progress) : NULL,
	                    *under_way = state ? json_to_string(state) : NULL;
	sqlite3_stmt *st = s->statements[which];
	int code;

	code = begin(s, err);
	if (code < 0)
		return code;
	bind_run(st, r, ranks ? ranks : "[]", progress, under_way);
	if (which == INSERT)
		bind_text(st, 25, config);
	else
		sqlite3_bind_int64(st, 26, r->id);
	code = sqlite3_step(st) == SQLITE_DONE ? 0 : db_error(s, err);
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return code;
}

int store_insert(struct store *s, struct run *r, const char *config, struct error *err)
{
	int code = write_run(s, INSERT, r, config, err);

	if (code == 0)
		r->id = sqlite3_last_insert_rowid(s->db);
	return code;
}

int store_update(struct store *s, const struct run *r, struct error *err)
{
	return write_run(s, UPDATE, r, NULL, err);
}

int store_get(struct store *s, int64_t id, struct run **out, struct error *err)
{
	sqlite3_stmt *st = s->statements[GET];
	int code, r = 0;

	sqlite3_bind_int64(st, 1, id);
	code = sqlite3_step(st);
	if (code == SQLITE_ROW) {
		*out = read_run(st);
		if (!*out)
			r = error_oom(err);
	} else if (code == SQLITE_DONE)
		r = error_set(err, -ENOENT, "there is no run %lld", (long long)id);
	else
		r = db_error(s, err);
	sqlite3_reset(st);
	return r;
}

int store_config(struct store *s, int64_t id, char **text, struct error *err)
{
	sqlite3_stmt *st = s->statements[CONFIG];
	int code, r = 0;

	sqlite3_bind_int64(st, 1, id);
	code = sqlite3_step(st);
	if (code == SQLITE_ROW) {
		*text = column(st, 0);
		if (!*text)
			r = error_oom(err);
	} else if (code == SQLITE_DONE)
		r = error_set(err, -ENOENT, "there is no run %lld", (long long)id);
	else
		r = db_error(s, err);
	sqlite3_reset(st);
	return r;
}

int store_list(struct store *s, unsigned states, int64_t before, int64_t limit,
               int (*each)(void *context, struct run *r, struct error *err), void *context, struct error *err)
{
	/* The few active ones are found through the index, however many have finished. */
	sqlite3_stmt *st = s->statements[states >> RUN_SUCCEEDED ? LIST : LIST_ACTIVE];
	int code, r = 0;

	sqlite3_bind_int64(st, 1, states);
	sqlite3_bind_int64(st, 2, before > 0 ? before : INT64_MAX);
	sqlite3_bind_int64(st, 3, limit);
	while (r >= 0 && (code = sqlite3_step(st)) == SQLITE_ROW) {
		struct run *run = read_run(st);

		r = run ? each(context, run, err) : error_oom(err);
	}
	if (r >= 0 && code != SQLITE_DONE)
		r = db_error(s, err);
	sqlite3_reset(st);
	return r;
}

int store_counts(struct store *s, int64_t counts[RUN_STATES], struct error *err)
{
	sqlite3_stmt *st = s->statements[COUNTS];
	int code;

	memset(counts, 0, RUN_STATES * sizeof(*counts));
	while ((code = sqlite3_step(st)) == SQLITE_ROW)
		counts[sqlite3_column_int64(st, 0) % RUN_STATES] = sqlite3_column_int64(st, 1);
	sqlite3_reset(st);
	return code == SQLITE_DONE ? 0 : db_error(s, err);
}

int store_set_drained(struct store *s, const char *node, bool drained, const char *reason, struct error *err)
{
	sqlite3_stmt *st = s->statements[drained ? DRAIN : RESUME];
	int r = begin(s, err);

	if (r < 0)
		return r;
	bind_text(st, 1, node);
	if (drained)
		bind_text(st, 2, reason);
	r = sqlite3_step(st) == SQLITE_DONE ? 0 : db_error(s, err);
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return r;
}

bool store_drained(struct store *s, const char *node, char **reason)
{
	sqlite3_stmt *st = s->statements[DRAINED];
	bool yes;

	bind_text(st, 1, node);
	yes = sqlite3_step(st) == SQLITE_ROW;
	*reason = yes ? column(st, 0) : NULL;
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return yes;
}

const char *store_cluster(const struct store *s)
{
	return s->cluster;
}

int64_t store_epoch(const struct store *s)
{
	return s->epoch;
}

int64_t store_newest_epoch(const struct store *s)
{
	return s->newest_epoch;
}

static int change_number(struct store *s, enum statement which, int64_t n, struct error *err)
{
	sqlite3_stmt *st = s->statements[which];
	int r = begin(s, err);

	if (r < 0)
		return r;
	sqlite3_bind_int64(st, 1, n);
	if (which == REPLACE_EPOCH)
		sqlite3_bind_int64(st, 2, s->newest_epoch);
	r = sqlite3_step(st) == SQLITE_DONE ? 0 : db_error(s, err);
	sqlite3_reset(st);
	return r;
}

int store_begin_epoch(struct store *s, int64_t above, bool replace, struct error *err)
{
	int64_t epoch = MAX(s->newest_epoch, above) + 1;
	/* One statement: no failure leaves the store without the one and without the other. */
	int r = change_number(s, replace && s->newest_epoch > 0 ? REPLACE_EPOCH : ADD_EPOCH, epoch, err);

	if (r == 0)
		s->newest_epoch = epoch;
	return r;
}

bool store_has_epoch(struct store *s, int64_t epoch)
{
	sqlite3_stmt *st = s->statements[HAS_EPOCH];
	bool yes;

	sqlite3_bind_int64(st, 1, epoch);
	yes = sqlite3_step(st) == SQLITE_ROW;
	sqlite3_reset(st);
	return yes;
}

int64_t store_highest(struct store *s)
{
	return select_number(s, HIGHEST);
}

int store_lift(struct store *s, int64_t highest, struct error *err)
{
	int r;

	if (highest <= store_highest(s))
		return 0;
	r = change_number(s, LIFT, highest, err);
	return r == 0 && sqlite3_changes(s->db) == 0 ? change_number(s, LIFT_FIRST, highest, err) : r;
}

struct store_backup {
	struct store *store;
	sqlite3 *copy;
	sqlite3_backup *backup;
};

static int backup_error(struct store_backup *b, struct error *err)
{
	int code = sqlite3_errcode(b->copy);

	return error_set(err, code == SQLITE_FULL ? -ENOSPC : -EIO, "cannot copy %s: %s", b->store->path,
	                 sqlite3_errmsg(b->copy));
}

int store_backup_begin(struct store *s, const char *path, struct store_backup **out, struct error *err)
{
	_cleanup_(store_backup_freep) struct store_backup *b = calloc(1, sizeof(*b));

	if (!b)
		return error_oom(err);
	b->store = s;
	/* The copy is of use only once it is complete: it needs no journal, and no sync on the way. */
	if (sqlite3_open_v2(path, &b->copy, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK ||
	    sqlite3_exec(b->copy, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;", NULL, NULL, NULL) !=
	        SQLITE_OK)
		return backup_error(b, err);
	b->backup = sqlite3_backup_init(b->copy, "main", s->db, "main");
	if (!b->backup)
		return backup_error(b, err);
	*out = steal_pointer(b);
	return 0;
}

int store_backup_step(struct store_backup *b, int pages, bool *done, struct error *err)
{
	int code = sqlite3_backup_step(b->backup, pages);

	*done = code == SQLITE_DONE;
	/* Busy: a transaction is open. It is committed at the end of the turn. */
	if (code == SQLITE_OK || code == SQLITE_DONE || code == SQLITE_BUSY || code == SQLITE_LOCKED)
		return 0;
	return error_set(err, code == SQLITE_FULL ? -ENOSPC : -EIO, "cannot copy %s: %s", b->store->path,
	                 sqlite3_errstr(code));
}

void store_backup_free(struct store_backup *b)
{
	if (!b)
		return;
	if (b->backup)
		sqlite3_backup_finish(b->backup);
	sqlite3_close(b->copy);
	free(b);
}
