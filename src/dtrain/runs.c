/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain runs: a table that fits the terminal. */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/local.h"
#include "dtrain/options.h"
#include "dtrain/table.h"
#include "dtrain/terminal.h"
#include "http/local.h"
#include "wire/run_view.h"

/* The most runs that one request asks for, and how many the second request asks for. */
static const int64_t PAGE = 1000, PAGE_SECOND = 100;

/* How long it ran, or has been running. */
static const char *elapsed(const struct run_view *run, char *buf, size_t size)
{
	double end = run->ended > 0 ? run->ended : clock_realtime();

	return run->started > 0 ? str_duration(buf, size, MAX(end - run->started, 0.0)) : "";
}

/* The columns, and from which width of the terminal on they are shown. */
enum { ALWAYS = 0, WIDE = 120 };

struct row {
	const struct run_view *run;
	char text[256];
};

static void cell_id(struct row *r)
{
	snprintf(r->text, sizeof r->text, "%lld", (long long)r->run->id);
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
	copy_cut(r, r->run->name ? r->run->name : "", 18);
}

static void cell_user(struct row *r)
{
	copy_cut(r, r->run->user ? r->run->user : "", 10);
}

static void cell_task(struct row *r)
{
	snprintf(r->text, sizeof r->text, "%s", r->run->task ? r->run->task : "");
}

static void cell_state(struct row *r)
{
	snprintf(r->text, sizeof r->text, "%s", run_states[r->run->state]);
}

static void cell_size(struct row *r)
{
	snprintf(r->text, sizeof r->text, "%lld",
	         (long long)(r->run->world_size > 0 ? r->run->world_size : 1));
}

static void cell_nodes(struct row *r)
{
	char **nodes = r->run->nodes;
	size_t n = 0;

	for (size_t k = 0; nodes && nodes[k] && k < 4 && n < sizeof r->text; k++)
		n += (size_t)snprintf(r->text + n, sizeof r->text - n, "%s%s", k ? "," : "",
		                      k == 3 ? "…" : nodes[k]);
}

static void cell_submitted(struct row *r)
{
	time_t submitted = (time_t)r->run->submitted;
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
	const char *reason = r->run->reason;
	struct progress progress;

	progress_read(r->run->progress, &progress);
	if (reason && *reason)
		snprintf(r->text, sizeof r->text, "%.*s", (int)strcspn(reason, "\n"), reason);
	else if (progress.step > 0)
		snprintf(r->text, sizeof r->text, "%lld/%lld, loss %s", (long long)progress.step,
		         (long long)progress.steps, str_measure(loss, sizeof loss, progress.loss, 4));
	else if (r->run->last_failure)
		snprintf(r->text, sizeof r->text, "attempt %lld", (long long)r->run->attempt);
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
static const char *const state_colors[RUN_OTHER + 1] = {
    [RUN_RUNNING] = "32",   [RUN_STARTING] = "33", [RUN_STOPPING] = "33",  [RUN_QUEUED] = "36",
    [RUN_SUCCEEDED] = "34", [RUN_FAILED] = "31",   [RUN_CANCELLED] = "90", [RUN_TIMED_OUT] = "31",
};

static void print_table(const struct run_list *runs)
{
	const struct run_column *columns[ARRAY_SIZE(run_columns)];
	const char *header[ARRAY_SIZE(run_columns)];
	bool colors = terminal_colors();
	int width = terminal_width();
	struct table table;
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(run_columns); i++)
		if (width >= run_columns[i].width) {
			header[n] = run_columns[i].title;
			columns[n++] = &run_columns[i];
		}
	table_begin(&table, n, header);
	table.width = width;
	for (size_t i = 0; i < runs->count; i++)
		for (size_t k = 0; k < n; k++) {
			struct row row = {&runs->runs[i], ""};

			columns[k]->cell(&row);
			table_add_text(&table, row.text);
			if (colors && columns[k]->cell == cell_state)
				table_color(&table, state_colors[runs->runs[i].state]);
		}
	table_print(&table);
}

/* A run out of a page goes into the list. */
static int keep_run(struct run_list *runs, struct run_view *run)
{
	struct run_view *list = reallocarray(runs->runs, runs->count + 1, sizeof(*list));

	if (!list)
		return client_fail(EXIT_FAILURE, "out of memory");
	runs->runs = list;
	list[runs->count++] = *run;
	*run = (struct run_view){0};
	return 0;
}

static bool is_state(const char *word)
{
	bool known = str_eq(word, "active") || str_eq(word, "all");

	for (int i = 0; run_states[i]; i++)
		known = known || str_eq(word, run_states[i]);
	return known;
}

static int refuse_state(const char *word)
{
	_cleanup_strbuf_ struct strbuf known = {0};

	for (int i = 0; run_states[i]; i++)
		strbuf_addf(&known, "%s, ", run_states[i]);
	return client_fail(STATUS_USAGE, "--state: \"%s\" is no state of a run; expected one of %sactive",
	                   word, known.data ? known.data : "");
}

/* The name that the service has for whoever calls. */
static int own_name(const char **name)
{
	const struct passwd *user = getpwuid(geteuid());

	if (!user)
		return client_fail(EXIT_FAILURE, "--me: there is no user with uid %lld on this machine",
		                   (long long)geteuid());
	*name = user->pw_name;
	return 0;
}

int cmd_runs(struct client *client, int argc, char **argv)
{
	bool all = false, active = false, json = false, local = false, me = false;
	const char *state = NULL, *user = NULL;
	int64_t limit = 50, before = 0;
	const struct option_spec options[] = {
	    {'a', "all", OPTION_FLAG, &all, NULL, "all runs, not only the newest; those of generate, too"},
	    {0, "active", OPTION_FLAG, &active, NULL, "only runs that have not ended"},
	    {0, "state", OPTION_STRING, &state, "STATE", "only runs in that state"},
	    {'u', "user", OPTION_STRING, &user, "USER", "only runs of that user"},
	    {0, "me", OPTION_FLAG, &me, NULL, "only runs of your own"},
	    {'n', "limit", OPTION_INT, &limit, "N", "the newest N; default: 50"},
	    {0, "local", OPTION_FLAG, &local, NULL,
	     "what runs on this node, also while there is no controller"},
	    {0, "json", OPTION_FLAG, &json, NULL, "print JSON"},
	};
	const struct usage usage = {
	    "runs", "", "Lists runs, the newest first", NULL, options, ARRAY_SIZE(options), 0, 0};
	_cleanup_(run_list_release) struct run_list runs = {0};
	_cleanup_json_ json_t *raw = json_array();
	_cleanup_free_ char *wanted = NULL, *whose = NULL;
	int64_t asked = 0;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);
	bool more = true;

	if (status != OPTIONS_DONE)
		return status;
	if (local)
		return all || active || state || user || me
		           ? client_fail(STATUS_USAGE,
		                         "--local goes with --json alone: what has ended is not listed")
		           : local_list_runs(client, json);
	if (state && !is_state(state))
		return refuse_state(state);
	if (me && user)
		return client_fail(STATUS_USAGE, "--me and --user exclude each other");
	if (me && (status = own_name(&user)) != 0)
		return status;
	if (user && !(whose = http_escape(user)))
		return client_fail(EXIT_FAILURE, "out of memory");
	wanted = http_escape(state ? state : active ? "active" : "all");
	while (more) {
		_cleanup_strbuf_ struct strbuf target = {0};
		_cleanup_(run_list_release) struct run_list page = {0};
		_cleanup_json_ json_t *answer = NULL;
		int64_t left = all ? PAGE : limit - (int64_t)runs.count;
		struct error err = ERROR_INIT;

		if (left <= 0)
			break;
		/* What is asked for first is mostly enough, since runs of generate are rare. Each page that
		 * is not enough makes the next larger. */
		if (all || asked >= PAGE_SECOND)
			asked = PAGE;
		else
			asked = MIN(asked > 0 ? MAX(left, PAGE_SECOND) : left, PAGE);
		strbuf_addf(&target, "/v1/runs?state=%s&limit=%lld", wanted, (long long)asked);
		if (before > 0)
			strbuf_addf(&target, "&before=%lld", (long long)before);
		if (whose)
			strbuf_addf(&target, "&user=%s", whose);
		status = client_json(client, "GET", target.data, NULL, &answer);
		if (status != 0)
			return status;
		if (run_list_decode(answer, &page, &err) < 0)
			return client_fail(EXIT_FAILURE, "%s", err.message);
		for (size_t i = 0; i < page.count && left > 0; i++) {
			before = page.runs[i].id;
			if (!all && client_is_generate(&page.runs[i]))
				continue;
			/* An older service lists the runs of all users. */
			if (user && !str_eq(page.runs[i].user, user))
				continue;
			if (json)
				json_array_append(raw, json_array_get(json_object_get(answer, "runs"), i));
			status = keep_run(&runs, &page.runs[i]);
			if (status != 0)
				return status;
			left -= !all;
		}
		more = (int64_t)page.count >= asked;
	}
	if (json)
		return client_print_json(raw);
	print_table(&runs);
	return 0;
}
