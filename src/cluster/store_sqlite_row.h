/* SPDX-License-Identifier: Apache-2.0 */
/* A run as a row of the table runs: its columns, how they are written, and how they are read. */
#pragma once

#include <sqlite3.h>
#include <stdbool.h>

#include "cluster/store_backend.h"

/* Columns 1 to 24. Behind them are 25 the configuration, 26 the id, 27 the key. */
#define STORE_SQLITE_COLUMNS                                                                                 \
	"name, user, uid, gid, task, state, attempt, version, submitted, started, ended, reason, "           \
	"exit_status, cancelled, failed, requeue, nodes, per_node, directory, output, ranks, progress, "     \
	"detail, under_way"

/* NULL binds NULL. The text is not copied: it has to outlive the step. */
void store_sqlite_bind_text(sqlite3_stmt *st, int i, const char *text);
/* A copy of column i, counted from 0; NULL where it is NULL or there is no memory. */
char *store_sqlite_text(sqlite3_stmt *st, int i);

/* Binds parameters 1 to 24 and the id, 26; whole: the configuration and the key, too. Texts are not copied:
 * they have to outlive the step. */
void store_sqlite_bind(sqlite3_stmt *st, const struct stored_run *run, bool whole);
/* The run in a row of "id, STORE_SQLITE_COLUMNS". NULL without memory. */
struct run *store_sqlite_read(sqlite3_stmt *st);
