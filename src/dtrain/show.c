/* SPDX-License-Identifier: Apache-2.0 */
/* `dtrain show`: prints one run in full. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "dtrain/table.h"
#include "wire/run_view.h"

static void print_time(const char *label, double seconds)
{
	time_t t = (time_t)seconds;
	char text[32];
	struct tm tm;

	if (seconds > 0 && localtime_r(&t, &tm) && strftime(text, sizeof text, "%F %T", &tm))
		printf("%-13s%s\n", label, text);
}

static void print_line(const char *label, const char *value)
{
	_cleanup_free_ char *text = value && *value ? strdup(value) : NULL;

	if (text)
		printf("%-13s%s\n", label, str_make_plain(text));
}

/* One, or all that a rank has. */
static void print_slots(struct table *table, const struct run_rank *rank)
{
	_cleanup_strbuf_ struct strbuf text = {0};

	for (size_t i = 0; i < rank->slot_count; i++)
		strbuf_addf(&text, "%s%lld", i ? "," : "", (long long)rank->slots[i]);
	if (text.len)
		table_add_text(table, text.data);
	else
		table_add(table, "%lld", (long long)rank->slot);
}

static void print_ranks(const struct run_view *run)
{
	static const char *const header[] = {"RANK", "NODE", "SLOT", "PID", "STATE", "EXIT"};
	struct table table;

	if (run->rank_count == 0)
		return;
	printf("\n");
	table_begin(&table, ARRAY_SIZE(header), header);
	for (size_t i = 0; i < run->rank_count; i++) {
		const struct run_rank *rank = &run->ranks[i];

		table_add(&table, "%lld", (long long)rank->rank);
		table_add_text(&table, rank->node);
		print_slots(&table, rank);
		if (rank->pid > 0)
			table_add(&table, "%lld", (long long)rank->pid);
		else
			table_add_text(&table, "");
		table_add_text(&table, rank_states[rank->state]);
		if (rank->signal)
			table_add_text(&table, rank->signal);
		else if (rank->exit_status >= 0)
			table_add(&table, "%lld", (long long)rank->exit_status);
		else
			table_add_text(&table, "");
	}
	table_print(&table);
}

static void print_progress(const json_t *report)
{
	char left[32], loss[STR_MEASURE], rate[STR_MEASURE];
	struct progress progress;

	progress_read(report, &progress);
	if (progress.step <= 0)
		return;
	printf("%-13sstep %lld of %lld, loss %s, %s tokens/s", "progress", (long long)progress.step,
	       (long long)progress.steps, str_measure(loss, sizeof loss, progress.loss, 4),
	       str_measure(rate, sizeof rate, progress.tokens_per_second, 0));
	if (progress.eta_seconds > 0)
		printf(", %s left", str_duration(left, sizeof left, progress.eta_seconds));
	printf("\n");
}

/* Results of earlier attempts, where the run may be started again. */
static void print_retries(const struct run_view *run)
{
	char limit[32], used[32];

	if (run->max_restarts > 0)
		printf("%-13s%lld of %lld\n", "restarts", (long long)run->restarts,
		       (long long)run->max_restarts);
	if (run->max_node_failures > 0)
		printf("%-13s%lld of %lld\n", "node faults", (long long)run->node_failures,
		       (long long)run->max_node_failures);
	if (run->time_limit > 0)
		printf("%-13s%s, of which %s in earlier attempts\n", "time limit",
		       str_duration(limit, sizeof(limit), run->time_limit),
		       str_duration(used, sizeof(used), run->time_used));
	print_line("last failure", run->last_failure);
	if (!str_eq(run->last_detail, run->detail)) /* while it waits they are the same */
		print_line("last detail", run->last_detail);
	if (run->checkpoint > 0)
		printf("%-13sstep %lld\n", "checkpoint", (long long)run->checkpoint);
}

static void print_run(const struct run_view *run)
{
	_cleanup_strbuf_ struct strbuf names = {0};

	for (char **node = run->nodes; node && *node; node++)
		strbuf_addf(&names, "%s%s", names.len ? " " : "", *node);
	printf("%-13s%lld\n", "run", (long long)run->id);
	print_line("name", run->name);
	print_line("user", run->user);
	print_line("task", run->task);
	print_line("state", run_states[run->state]);
	print_line("reason", run->reason);
	print_line("detail", run->detail); /* for the owner alone */
	if (run->exit_status >= 0)
		printf("%-13s%lld\n", "exit status", (long long)run->exit_status);
	printf("%-13s%lld\n", "attempt", (long long)run->attempt);
	print_retries(run);
	print_time("submitted", run->submitted);
	print_time("started", run->started);
	print_time("ended", run->ended);
	print_line("nodes", names.data);
	if (run->spares && run->spares[0]) {
		strbuf_reset(&names);
		for (char **node = run->spares; *node; node++)
			strbuf_addf(&names, "%s%s", names.len ? " " : "", *node);
		print_line("spares", names.data);
	}
	print_line("directory", run->directory);
	print_line("output", run->output);
	print_progress(run->progress);
	print_ranks(run);
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
	_cleanup_(run_view_release) struct run_view run = {0};
	_cleanup_json_ json_t *answer = NULL;
	_cleanup_free_ char *target = NULL;
	struct error err = ERROR_INIT;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);
	int64_t id;

	if (status != OPTIONS_DONE)
		return status;
	status = client_run_argument(client, argv[first], &id);
	if (status != 0)
		return status;
	target = str_printf("/v1/runs/%lld", (long long)id);
	status = client_json(client, "GET", target, NULL, &answer);
	if (status != 0)
		return status;
	if (run_view_decode(answer, &run, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	if (config && !run.config)
		return client_fail(EXIT_FAILURE,
		                   "the run file of run %lld is shown to its owner and administrators only",
		                   (long long)id);
	if (config)
		return client_print_json(run.config);
	if (json)
		return client_print_json(answer);
	print_run(&run);
	return 0;
}
