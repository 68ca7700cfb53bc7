/* SPDX-License-Identifier: Apache-2.0 */
/* A run as a row of the table runs. */
#include "cluster/store_sqlite_row.h"

#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"

void store_sqlite_bind_text(sqlite3_stmt *st, int i, const char *text)
{
	sqlite3_bind_text(st, i, text, -1, SQLITE_STATIC); /* NULL binds NULL */
}

void store_sqlite_bind(sqlite3_stmt *st, const struct stored_run *stored, bool whole)
{
	const struct run *r = &stored->run;

	store_sqlite_bind_text(st, 1, r->name);
	store_sqlite_bind_text(st, 2, r->user);
	sqlite3_bind_int64(st, 3, r->uid);
	sqlite3_bind_int64(st, 4, r->gid);
	store_sqlite_bind_text(st, 5, r->task);
	sqlite3_bind_int64(st, 6, r->state);
	sqlite3_bind_int64(st, 7, r->attempt);
	sqlite3_bind_int64(st, 8, r->version);
	sqlite3_bind_double(st, 9, r->submitted);
	sqlite3_bind_double(st, 10, r->started);
	sqlite3_bind_double(st, 11, r->ended);
	store_sqlite_bind_text(st, 12, r->reason);
	sqlite3_bind_int64(st, 13, r->exit_status);
	sqlite3_bind_int64(st, 14, r->cancelled);
	sqlite3_bind_int64(st, 15, r->failed);
	sqlite3_bind_int64(st, 16, r->requeue);
	sqlite3_bind_int64(st, 17, r->nodes);
	sqlite3_bind_int64(st, 18, r->per_node);
	store_sqlite_bind_text(st, 19, r->directory);
	store_sqlite_bind_text(st, 20, r->output);
	store_sqlite_bind_text(st, 21, stored->ranks ? stored->ranks : "[]");
	store_sqlite_bind_text(st, 22, stored->progress);
	store_sqlite_bind_text(st, 23, r->detail);
	store_sqlite_bind_text(st, 24, stored->under_way);
	if (whole) {
		store_sqlite_bind_text(st, 25, stored->config);
		store_sqlite_bind_text(st, 27, r->key);
	}
	sqlite3_bind_int64(st, 26, r->id);
}

char *store_sqlite_text(sqlite3_stmt *st, int i)
{
	const char *s = (const char *)sqlite3_column_text(st, i);

	return s ? strdup(s) : NULL;
}

static json_t *column_json(sqlite3_stmt *st, int i)
{
	const char *s = (const char *)sqlite3_column_text(st, i);

	return s ? json_loads(s, JSON_DECODE_ANY, NULL) : NULL;
}

/* Where they cannot be read, the rest of the run is shown; but not where there is no memory: -ENOMEM. */
static int read_ranks(struct run *r, sqlite3_stmt *st)
{
	_cleanup_json_ json_t *json = column_json(st, 21);
	struct error err = ERROR_INIT;
	void *ranks;
	int code = message_decode_list(&run_rank_message, json, &ranks, &r->rank_count, &err);

	r->ranks = ranks;
	if (code == -ENOMEM)
		return code;
	if (code < 0)
		log_err("run %lld in the store: %s", (long long)r->id, err.message);
	return 0;
}

static int read_texts(struct run *r, sqlite3_stmt *st)
{
	const struct {
		char **text;
		int column;
	} texts[] = {{&r->name, 1},       {&r->user, 2},    {&r->task, 5},   {&r->reason, 12},
	             {&r->directory, 19}, {&r->output, 20}, {&r->detail, 23}};

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		*texts[i].text = store_sqlite_text(st, texts[i].column);
		if (!*texts[i].text && sqlite3_column_type(st, texts[i].column) != SQLITE_NULL)
			return -ENOMEM;
	}
	return 0;
}

struct run *store_sqlite_read(sqlite3_stmt *st)
{
	_cleanup_(run_freep) struct run *r = calloc(1, sizeof(*r));
	_cleanup_json_ json_t *under_way = column_json(st, 24);
	struct error err = ERROR_INIT;
	int code;

	if (!r || read_texts(r, st) < 0)
		return NULL;
	r->id = sqlite3_column_int64(st, 0);
	r->uid = sqlite3_column_int64(st, 3);
	r->gid = sqlite3_column_int64(st, 4);
	r->state = sqlite3_column_int64(st, 6) % RUN_STATES;
	r->attempt = sqlite3_column_int64(st, 7);
	r->version = sqlite3_column_int64(st, 8);
	r->submitted = sqlite3_column_double(st, 9);
	r->started = sqlite3_column_double(st, 10);
	r->ended = sqlite3_column_double(st, 11);
	r->exit_status = sqlite3_column_int64(st, 13);
	r->cancelled = sqlite3_column_int64(st, 14);
	r->failed = sqlite3_column_int64(st, 15);
	r->requeue = sqlite3_column_int64(st, 16);
	r->nodes = sqlite3_column_int64(st, 17);
	r->per_node = sqlite3_column_int64(st, 18);
	if (read_ranks(r, st) < 0)
		return NULL;
	r->progress = column_json(st, 22);
	/* Without it the cause of a failure may be less exact, but the run is loaded nevertheless. */
	code = run_set_under_way(r, under_way, &err);
	if (code == -ENOMEM)
		return NULL;
	if (code < 0)
		log_err("run %lld in the store: %s", (long long)r->id, err.message);
	return steal_pointer(r);
}
