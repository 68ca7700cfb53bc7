/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain runs: a table that fits the terminal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "dtrain/table.h"
#include "dtrain/terminal.h"
#include "http/local.h"

/* The most runs that one request asks for, and the fewest where those of generate are left out of the answer.
 */
static const int64_t PAGE = 1000, PAGE_FILTERED = 100;

/* How long it ran, or has been running. */
static const char *elapsed(const json_t *run, char *buf, size_t size)
{
	double started = json_get_number(run, "started", 0), ended = json_get_number(run, "ended", 0);

	if (started <= 0)
		return "";
	return str_duration(buf, size, MAX((ended > 0 ? ended : clock_realtime()) - started, 0.0));
}

/* The columns, and from which width of the terminal on they are shown. */
enum { ALWAYS = 0, WIDE = 120 };

struct row {
	const json_t *run;
	char text[256];
};

static void cell_id(struct row *r)
{
	snprintf(r->text, sizeof r->text, "%lld", (long long)json_get_int(r->run, "id", 0));
}

/* At most `room` characters. */
static void copy_cut(struct row *r, const char *from, size_t room)
{
	size_t n = 0, bytes = 0, whole = 0;

	for (; from[bytes] && bytes + 4 < sizeof r->text; bytes++) {
		if ((from[bytes] & 0xc0) != 0x80 && ++n > room)
			break;
		if (n < room)
			whole = bytes + 1;
	}
	if (from[bytes])
		snprintf(r->text, sizeof r->text, "%.*s…", (int)whole, from);
	else
		snprintf(r->text, sizeof r->text, "%s", from);
}

static void cell_name(struct row *r)
{
	copy_cut(r, json_get_string(r->run, "name", ""), 18);
}

static void cell_user(struct row *r)
{
	copy_cut(r, json_get_string(r->run, "user", ""), 10);
}

static void cell_task(struct row *r)
{
	snprintf(r->text, sizeof r->text, "%s", json_get_string(r->run, "task", ""));
}

static void cell_state(struct row *r)
{
	snprintf(r->text, sizeof r->text, "%s", json_get_string(r->run, "state", ""));
}

static void cell_size(struct row *r)
{
	snprintf(r->text, sizeof r->text, "%lld", (long long)json_get_int(r->run, "world_size", 1));
}

static void cell_nodes(struct row *r)
{
	const json_t *nodes = json_object_get(r->run, "nodes");
	size_t n = 0;

	for (size_t k = 0; k < json_array_size(nodes) && k < 4 && n < sizeof r->text; k++)
		n += (size_t)snprintf(r->text + n, sizeof r->text - n, "%s%s", k ? "," : "",
		                      k == 3 ? "…" : json_string_value(json_array_get(nodes, k)) ?: "?");
}

static void cell_submitted(struct row *r)
{
	time_t submitted = (time_t)json_get_number(r->run, "submitted", 0);
	struct tm tm;

	if (submitted > 0 && localtime_r(&submitted, &tm))
		strftime(r->text, sizeof r->text, "%F %H:%M", &tm);
}

static void cell_time(struct row *r)
{
	char text[32];

	snprintf(r->text, sizeof r->text, "%s", elapsed(r->run, text, sizeof text));
}

static void cell_progress(struct row *r)
{
	char loss[32];
	const json_t *progress = json_object_get(r->run, "progress");
	const char *reason = json_get_string(r->run, "reason", "");

	if (*reason)
		snprintf(r->text, sizeof r->text, "%.*s", (int)strcspn(reason, "\n"), reason);
	else if (json_get_int(progress, "step", 0) > 0)
		snprintf(r->text, sizeof r->text, "%lld/%lld, loss %s",
		         (long long)json_get_int(progress, "step", 0),
		         (long long)json_get_int(progress, "steps", 0),
		         str_measure(loss, sizeof loss, json_get_number(progress, "loss", 0), 4));
}

static const struct run_column {
	const char *title;
	int width;
	void (*cell)(struct row *row); /* text is "" */
} run_columns[] = {
    {"RUN", ALWAYS, cell_id},      {"NAME", ALWAYS, cell_name},
    {"USER", ALWAYS, cell_user},   {"TASK", WIDE, cell_task},
    {"STATE", ALWAYS, cell_state}, {"SIZE", ALWAYS, cell_size},
    {"NODES", WIDE, cell_nodes},   {"SUBMITTED", WIDE, cell_submitted},
    {"TIME", ALWAYS, cell_time},   {"PROGRESS", ALWAYS, cell_progress},
};

/* Green: it runs; yellow: on the way; red: failed; grey: over. */
static const char *state_color(const char *state)
{
	static const struct {
		const char *state, *color;
	} colors[] = {
	    {"running", "32"},   {"starting", "33"}, {"stopping", "33"},  {"queued", "36"},
	    {"succeeded", "34"}, {"failed", "31"},   {"cancelled", "90"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(colors); i++)
		if (str_eq(colors[i].state, state))
			return colors[i].color;
	return NULL;
}

static void print_table(const json_t *runs)
{
	const struct run_column *columns[ARRAY_SIZE(run_columns)];
	const char *header[ARRAY_SIZE(run_columns)];
	bool colors = terminal_colors();
	int width = terminal_width();
	struct table table;
	size_t n = 0, i;
	json_t *run;

	for (i = 0; i < ARRAY_SIZE(run_columns); i++)
		if (width >= run_columns[i].width) {
			header[n] = run_columns[i].title;
			columns[n++] = &run_columns[i];
		}
	table_begin(&table, n, header);
	table.width = width;
	json_array_foreach(runs, i, run)
	{
		for (size_t k = 0; k < n; k++) {
			struct row row = {run, ""};

			columns[k]->cell(&row);
			table_add(&table, "%s", row.text);
			if (colors && columns[k]->cell == cell_state)
				table_color(&table, state_color(row.text));
		}
	}
	table_print(&table);
}

int cmd_runs(struct client *client, int argc, char **argv)
{
	bool all = false, active = false, json = false;
	const char *state = NULL;
	int64_t limit = 50, before = 0;
	const struct option_spec options[] = {
	    {'a', "all", OPTION_FLAG, &all, NULL, "all runs, not only the newest; those of generate, too"},
	    {0, "active", OPTION_FLAG, &active, NULL, "only runs that have not ended"},
	    {0, "state", OPTION_STRING, &state, "STATE", "only runs in that state"},
	    {'n', "limit", OPTION_INT, &limit, "N", "the newest N; default: 50"},
	    {0, "json", OPTION_FLAG, &json, NULL, "print JSON"},
	};
	const struct usage usage = {
	    "runs", "", "Lists runs, the newest first", NULL, options, ARRAY_SIZE(options), 0, 0};
	_cleanup_json_ json_t *runs = json_array();
	_cleanup_free_ char *wanted = NULL;
	int64_t asked = 0;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);
	bool more = true;

	if (status != OPTIONS_DONE)
		return status;
	wanted = http_escape(state ? state : active ? "active" : "all");
	while (more) {
		_cleanup_strbuf_ struct strbuf target = {0};
		_cleanup_json_ json_t *answer = NULL;
		int64_t left = all ? PAGE : limit - (int64_t)json_array_size(runs);
		const json_t *page;

		if (left <= 0)
			break;
		/* A first page without enough of them: runs of generate are many, and so is what is asked for
		 * next. */
		asked = all || before > 0 ? PAGE : MIN(MAX(left, PAGE_FILTERED), PAGE);
		strbuf_addf(&target, "/v1/runs?state=%s&limit=%lld", wanted, (long long)asked);
		if (before > 0)
			strbuf_addf(&target, "&before=%lld", (long long)before);
		status = client_json(client, "GET", target.data, NULL, &answer);
		if (status != 0)
			return status;
		page = json_object_get(answer, "runs");
		for (size_t i = 0; i < json_array_size(page) && left > 0; i++) {
			json_t *run = json_array_get(page, i);

			before = json_get_int(run, "id", 0);
			if (!all && client_is_generate(run))
				continue;
			json_array_append(runs, run);
			left -= !all;
		}
		more = (int64_t)json_array_size(page) >= asked;
	}
	if (json)
		return client_print_json(runs);
	print_table(runs);
	return 0;
}
