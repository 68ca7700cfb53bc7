/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/store.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/str.h"

enum { SCHEMA_VERSION = 1 };

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

#define COLUMNS                                                                                              \
	"name, user, uid, gid, task, state, attempt, version, submitted, started, ended, reason, "           \
	"exit_status, cancelled, failed, requeue, nodes, per_node, directory, output, ranks, progress"

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
	STATEMENTS,
};

static const char *const statement_text[STATEMENTS] = {
    [INSERT] = "INSERT INTO runs (" COLUMNS ", config) VALUES "
               "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23)",
    [UPDATE] =
        "UPDATE runs SET state=?6, attempt=?7, version=?8, started=?10, ended=?11, reason=?12, "
        "exit_status=?13, cancelled=?14, failed=?15, requeue=?16, ranks=?21, progress=?22 WHERE id=?24",
    [GET] = "SELECT id, " COLUMNS " FROM runs WHERE id = ?1",
    [CONFIG] = "SELECT config FROM runs WHERE id = ?1",
    [LIST] = "SELECT id, " COLUMNS " FROM runs WHERE ?1 >> state & 1 AND id < ?2 ORDER BY id DESC LIMIT ?3",
    [LIST_ACTIVE] = "SELECT id, " COLUMNS " FROM runs WHERE state < 4 AND ?1 >> state & 1 AND id < ?2 "
                    "ORDER BY id DESC LIMIT ?3",
    [COUNTS] = "SELECT state, count(*) FROM runs GROUP BY state",
    [DRAIN] = "INSERT OR IGNORE INTO drained VALUES (?1)",
    [RESUME] = "DELETE FROM drained WHERE node = ?1",
    [DRAINED] = "SELECT 1 FROM drained WHERE node = ?1",
};

struct store {
	sqlite3 *db;
	char *path;
	sqlite3_stmt *statements[STATEMENTS];
	bool open; /* a transaction is */
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
	if (version == 0) {
		r = db_exec(s, "BEGIN EXCLUSIVE", err);
		if (r == 0)
			r = db_exec(s, schema, err);
		if (r == 0)
			r = db_exec(s, "COMMIT", err);
		if (r < 0)
			return r;
	}
	for (int i = 0; i < STATEMENTS; i++)
		if (sqlite3_prepare_v3(s->db, statement_text[i], -1, SQLITE_PREPARE_PERSISTENT,
		                       &s->statements[i], NULL) != SQLITE_OK)
			return db_error(s, err);
	return 0;
}

int store_open(const char *path, struct store **out, struct error *err)
{
	_cleanup_(store_closep) struct store *s = calloc(1, sizeof(*s));
	_cleanup_close_ int fd = -1;
	int r;

	if (!s)
		return error_oom(err);
	s->path = strdup(path);
	if (!s->path)
		return error_oom(err);
	/* SQLite gives its other files the mode of this one. */
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0 || fchmod(fd, 0600) < 0)
		return error_errno(err, -errno, "cannot open %s", path);
	if (sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
	                    NULL) != SQLITE_OK)
		return db_error(s, err);
	r = prepare(s, err);
	if (r < 0)
		return r;
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
	free(s->path);
	free(s);
}

static int begin(struct store *s, struct error *err)
{
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
	return r;
}

void store_rollback(struct store *s)
{
	if (s->open)
		sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
	s->open = false;
}

static void bind_text(sqlite3_stmt *st, int i, const char *text)
{
	sqlite3_bind_text(st, i, text, -1, SQLITE_STATIC); /* NULL binds NULL */
}

/* Columns in the order of COLUMNS. ranks and progress: their JSON text. */
static void bind_run(sqlite3_stmt *st, const struct run *r, const char *ranks, const char *progress)
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
	struct run *r = calloc(1, sizeof(*r));

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
	r->cause_rank = -1;
	return r;
}

static int write_run(struct store *s, enum statement which, const struct run *r, const char *config,
                     struct error *err)
{
	_cleanup_free_ char *ranks = json_to_string(r->ranks),
	                    *progress = r->progress ? json_to_string(r->progress) : NULL;
	sqlite3_stmt *st = s->statements[which];
	int code;

	code = begin(s, err);
	if (code < 0)
		return code;
	bind_run(st, r, ranks ? ranks : "[]", progress);
	if (which == INSERT)
		bind_text(st, 23, config);
	else
		sqlite3_bind_int64(st, 24, r->id);
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

int store_set_drained(struct store *s, const char *node, bool drained, struct error *err)
{
	sqlite3_stmt *st = s->statements[drained ? DRAIN : RESUME];
	int r = begin(s, err);

	if (r < 0)
		return r;
	bind_text(st, 1, node);
	r = sqlite3_step(st) == SQLITE_DONE ? 0 : db_error(s, err);
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return r;
}

bool store_drained(struct store *s, const char *node)
{
	sqlite3_stmt *st = s->statements[DRAINED];
	bool yes;

	bind_text(st, 1, node);
	yes = sqlite3_step(st) == SQLITE_ROW;
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return yes;
}
