/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "dtrain/table.h"

static void print_time(const char *label, double seconds)
{
	time_t t = (time_t)seconds;
	char text[32];
	struct tm tm;

	if (seconds > 0 && localtime_r(&t, &tm) && strftime(text, sizeof text, "%F %T", &tm))
		printf("%-12s%s\n", label, text);
}

static void print_line(const char *label, const char *value)
{
	_cleanup_free_ char *text = value && *value ? strdup(value) : NULL;

	if (text)
		printf("%-12s%s\n", label, str_make_plain(text));
}

/* One, or all that a rank has. */
static void print_slots(struct table *table, const json_t *rank)
{
	const json_t *slots = json_object_get(rank, "slots");
	_cleanup_strbuf_ struct strbuf text = {0};

	for (size_t i = 0; i < json_array_size(slots); i++)
		strbuf_addf(&text, "%s%lld", i ? "," : "",
		            (long long)json_integer_value(json_array_get(slots, i)));
	if (text.len)
		table_add(table, "%s", text.data);
	else
		table_add(table, "%lld", (long long)json_get_int(rank, "slot", 0));
}

static void print_ranks(const json_t *ranks)
{
	static const char *const header[] = {"RANK", "NODE", "SLOT", "PID", "STATE", "EXIT"};
	struct table table;

	if (json_array_size(ranks) == 0)
		return;
	printf("\n");
	table_begin(&table, ARRAY_SIZE(header), header);
	for (size_t i = 0; i < json_array_size(ranks); i++) {
		const json_t *rank = json_array_get(ranks, i);
		const char *signal = json_get_string(rank, "signal", NULL);

		table_add(&table, "%lld", (long long)json_get_int(rank, "rank", 0));
		table_add(&table, "%s", json_get_string(rank, "node", ""));
		print_slots(&table, rank);
		if (json_get_int(rank, "pid", 0) > 0)
			table_add(&table, "%lld", (long long)json_get_int(rank, "pid", 0));
		else
			table_add(&table, "%s", "");
		table_add(&table, "%s", json_get_string(rank, "state", ""));
		if (signal)
			table_add(&table, "%s", signal);
		else if (json_is_integer(json_object_get(rank, "exit_status")))
			table_add(&table, "%lld", (long long)json_get_int(rank, "exit_status", 0));
		else
			table_add(&table, "%s", "");
	}
	table_print(&table);
}

static void print_progress(const json_t *progress)
{
	char left[32], loss[STR_MEASURE], rate[STR_MEASURE];

	if (json_get_int(progress, "step", 0) <= 0)
		return;
	printf("%-12sstep %lld of %lld, loss %s, %s tokens/s", "progress",
	       (long long)json_get_int(progress, "step", 0), (long long)json_get_int(progress, "steps", 0),
	       str_measure(loss, sizeof loss, json_get_number(progress, "loss", 0), 4),
	       str_measure(rate, sizeof rate, json_get_number(progress, "tokens_per_second", 0), 0));
	if (json_get_number(progress, "eta_seconds", 0) > 0)
		printf(", %s left",
		       str_duration(left, sizeof left, json_get_number(progress, "eta_seconds", 0)));
	printf("\n");
}

static void print_run(const json_t *run)
{
	const json_t *nodes = json_object_get(run, "nodes");
	_cleanup_strbuf_ struct strbuf names = {0};

	for (size_t i = 0; i < json_array_size(nodes); i++)
		strbuf_addf(&names, "%s%s", i ? " " : "", json_string_value(json_array_get(nodes, i)) ?: "?");
	printf("%-12s%lld\n", "run", (long long)json_get_int(run, "id", 0));
	print_line("name", json_get_string(run, "name", NULL));
	print_line("user", json_get_string(run, "user", NULL));
	print_line("task", json_get_string(run, "task", NULL));
	print_line("state", json_get_string(run, "state", NULL));
	print_line("reason", json_get_string(run, "reason", NULL));
	print_line("detail", json_get_string(run, "detail", NULL)); /* for the owner alone */
	if (json_is_integer(json_object_get(run, "exit_status")))
		printf("%-12s%lld\n", "exit status", (long long)json_get_int(run, "exit_status", 0));
	printf("%-12s%lld\n", "attempt", (long long)json_get_int(run, "attempt", 0));
	print_time("submitted", json_get_number(run, "submitted", 0));
	print_time("started", json_get_number(run, "started", 0));
	print_time("ended", json_get_number(run, "ended", 0));
	print_line("nodes", names.data);
	print_line("directory", json_get_string(run, "directory", NULL));
	print_line("output", json_get_string(run, "output", NULL));
	print_progress(json_object_get(run, "progress"));
	print_ranks(json_object_get(run, "ranks"));
}

int cmd_show(struct client *client, int argc, char **argv)
{
	bool json = false, config = false;
	const struct option_spec options[] = {
	    {0, "config", OPTION_FLAG, &config, NULL, "its run file with all defaults, as JSON"},
	    {0, "json", OPTION_FLAG, &json, NULL, "print JSON"},
	};
	const struct usage usage = {
	    "show", "[RUN]", "Shows one run in full: the newest of yours where none is named",
	    NULL,   options, ARRAY_SIZE(options),
	    0,      1};
	_cleanup_json_ json_t *run = NULL;
	_cleanup_free_ char *target = NULL;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);
	int64_t id;

	if (status != OPTIONS_DONE)
		return status;
	status = client_run_argument(client, argv[first], &id);
	if (status != 0)
		return status;
	target = str_printf("/v1/runs/%lld", (long long)id);
	status = client_json(client, "GET", target, NULL, &run);
	if (status != 0)
		return status;
	if (config && !json_object_get(run, "config"))
		return client_fail(EXIT_FAILURE,
		                   "the run file of run %lld is shown to its owner and root only",
		                   (long long)id);
	if (config)
		return client_print_json(json_object_get(run, "config"));
	if (json)
		return client_print_json(run);
	print_run(run);
	return 0;
}
