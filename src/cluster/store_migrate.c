/* SPDX-License-Identifier: Apache-2.0 */
/* The layouts of the SQLite store: the first one, and the step from each to the next; and the words for what
 * SQLite says. */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "cluster/store_sqlite.h"

enum { SCHEMA_VERSION = 6 };

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
    /* The text that was in one field stays as it was for the owner; other users see only rank and
     * node of it. */
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
    /* A submission that is repeated is the same run. */
    [5] = "ALTER TABLE runs ADD COLUMN key TEXT;"
          "CREATE UNIQUE INDEX runs_key ON runs (uid, key) WHERE key IS NOT NULL;"
          "PRAGMA user_version = 6;",
};

/* An index is no layout of its own: older programs use a file that has it as before. */
static const char indexes[] = "CREATE INDEX IF NOT EXISTS runs_user ON runs (user);";

int store_sqlite_busy(const char *path, struct error *err)
{
	return error_set(err, -EBUSY, "%s is in use: another dtraind runs with this state_dir", path);
}

int store_sqlite_error(sqlite3 *db, const char *path, struct error *err)
{
	int code = sqlite3_errcode(db), cause = code == SQLITE_IOERR ? sqlite3_system_errno(db) : 0;

	if (code == SQLITE_BUSY || code == SQLITE_LOCKED)
		return store_sqlite_busy(path, err);
	/* SQLite has one message for the failures of most system calls, whatever their error is. */
	return error_set(err, code == SQLITE_FULL || cause == ENOSPC ? -ENOSPC : -EIO, "%s: %s%s%s", path,
	                 sqlite3_errmsg(db), cause > 0 ? ": " : "", cause > 0 ? strerror(cause) : "");
}

int store_sqlite_exec(sqlite3 *db, const char *path, const char *sql, struct error *err)
{
	return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : store_sqlite_error(db, path, err);
}

static int64_t user_version(sqlite3 *db)
{
	sqlite3_stmt *st = NULL;
	int64_t v = -1;

	if (sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &st, NULL) == SQLITE_OK &&
	    sqlite3_step(st) == SQLITE_ROW)
		v = sqlite3_column_int64(st, 0);
	sqlite3_finalize(st);
	return v;
}

static int upgrade(sqlite3 *db, const char *path, int64_t version, struct error *err)
{
	int r = store_sqlite_exec(db, path, "BEGIN EXCLUSIVE", err);

	if (r == 0 && version == 0) {
		r = store_sqlite_exec(db, path, schema, err);
		version = 1;
	}
	for (; r == 0 && version < SCHEMA_VERSION; version++)
		r = store_sqlite_exec(db, path, upgrades[version], err);
	/* The new number goes into the file itself, where the package reads it before a downgrade. */
	if (r == 0 && (r = store_sqlite_exec(db, path, "COMMIT", err)) == 0)
		r = store_sqlite_exec(db, path, "PRAGMA wal_checkpoint(TRUNCATE)", err);
	return r;
}

int store_migrate(sqlite3 *db, const char *path, struct error *err)
{
	int64_t version = user_version(db);
	int r = 0;

	if (version < 0)
		return store_sqlite_error(db, path, err);
	if (version > SCHEMA_VERSION)
		return error_set(err, -EINVAL,
		                 "%s was written by a newer dtrain (layout %lld, this one knows %d)", path,
		                 (long long)version, SCHEMA_VERSION);
	if (version < SCHEMA_VERSION)
		r = upgrade(db, path, version, err);
	return r < 0 ? r : store_sqlite_exec(db, path, indexes, err);
}
