/* SPDX-License-Identifier: Apache-2.0 */
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
#include "http/local.h"

static const int64_t PAGE = 1000;

/* How long it ran, or has been running. */
static const char *elapsed(const json_t *run, char *buf, size_t size)
{
	double started = json_get_number(run, "started", 0), ended = json_get_number(run, "ended", 0);

	if (started <= 0)
		return "";
	return str_duration(buf, size, MAX((ended > 0 ? ended : clock_realtime()) - started, 0.0));
}

static void print_table(const json_t *runs)
{
	static const char *const header[] = {"RUN",  "NAME",  "USER",      "TASK", "STATE",
	                                     "SIZE", "NODES", "SUBMITTED", "TIME", "PROGRESS"};
	struct table table;

	table_begin(&table, ARRAY_SIZE(header), header);
	for (size_t i = 0; i < json_array_size(runs); i++) {
		const json_t *run = json_array_get(runs, i), *nodes = json_object_get(run, "nodes");
		const json_t *progress = json_object_get(run, "progress");
		const char *reason = json_get_string(run, "reason", "");
		time_t submitted = (time_t)json_get_number(run, "submitted", 0);
		_cleanup_strbuf_ struct strbuf names = {0};
		char when[32] = "", time_text[32];
		struct tm tm;

		for (size_t k = 0; k < json_array_size(nodes) && k < 4; k++)
			strbuf_addf(&names, "%s%s", k ? "," : "",
			            k == 3 ? "…" : json_string_value(json_array_get(nodes, k)) ?: "?");
		if (submitted > 0 && localtime_r(&submitted, &tm))
			strftime(when, sizeof when, "%F %H:%M", &tm);
		table_add(&table, "%lld", (long long)json_get_int(run, "id", 0));
		table_add(&table, "%s", json_get_string(run, "name", ""));
		table_add(&table, "%s", json_get_string(run, "user", ""));
		table_add(&table, "%s", json_get_string(run, "task", ""));
		table_add(&table, "%s", json_get_string(run, "state", ""));
		table_add(&table, "%lld", (long long)json_get_int(run, "world_size", 1));
		table_add(&table, "%s", names.data ? names.data : "");
		table_add(&table, "%s", when);
		table_add(&table, "%s", elapsed(run, time_text, sizeof time_text));
		if (*reason)
			table_add(&table, "%.*s", (int)strcspn(reason, "\n"), reason);
		else if (json_get_int(progress, "step", 0) > 0)
			table_add(&table, "step %lld/%lld, loss %.4f",
			          (long long)json_get_int(progress, "step", 0),
			          (long long)json_get_int(progress, "steps", 0),
			          json_get_number(progress, "loss", 0));
		else
			table_add(&table, "%s", "");
	}
	table_print(&table);
}

int cmd_runs(struct client *client, int argc, char **argv)
{
	bool all = false, active = false, json = false;
	const char *state = NULL;
	int64_t limit = 50, before = 0;
	const struct option_spec options[] = {
	    {'a', "all", OPTION_FLAG, &all, NULL, "all runs, not only the newest"},
	    {0, "active", OPTION_FLAG, &active, NULL, "only runs that have not ended"},
	    {0, "state", OPTION_STRING, &state, "STATE", "only runs in that state"},
	    {'n', "limit", OPTION_INT, &limit, "N", "the newest N; default: 50"},
	    {0, "json", OPTION_FLAG, &json, NULL, "print JSON"},
	};
	const struct usage usage = {
	    "runs", "", "Lists runs, the newest first", NULL, options, ARRAY_SIZE(options), 0, 0};
	_cleanup_json_ json_t *runs = json_array();
	_cleanup_free_ char *wanted = NULL;
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
		strbuf_addf(&target, "/v1/runs?state=%s&limit=%lld", wanted, (long long)MIN(left, PAGE));
		if (before > 0)
			strbuf_addf(&target, "&before=%lld", (long long)before);
		status = client_json(client, "GET", target.data, NULL, &answer);
		if (status != 0)
			return status;
		page = json_object_get(answer, "runs");
		for (size_t i = 0; i < json_array_size(page); i++)
			json_array_append(runs, json_array_get(page, i));
		more = (int64_t)json_array_size(page) >= MIN(left, PAGE);
		before = json_get_int(json_array_get(runs, json_array_size(runs) - 1), "id", 0);
	}
	if (json)
		return client_print_json(runs);
	print_table(runs);
	return 0;
}
