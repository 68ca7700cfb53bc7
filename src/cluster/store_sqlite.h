/* SPDX-License-Identifier: Apache-2.0 */
/* store_migrate.c: what store_sqlite.c is built on. */
#pragma once

#include <sqlite3.h>

#include "base/error.h"

/* -EBUSY: another process has the file. */
int store_sqlite_busy(const char *path, struct error *err);
/* The error of the last call on db, the file at `path`. -EBUSY: another process has it. */
int store_sqlite_error(sqlite3 *db, const char *path, struct error *err);
int store_sqlite_exec(sqlite3 *db, const char *path, const char *sql, struct error *err);

/* Makes the tables, or brings those of an earlier version up to date: all or nothing. A
 * newer layout is -EINVAL. */
int store_migrate(sqlite3 *db, const char *path, struct error *err);
