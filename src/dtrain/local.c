/* SPDX-License-Identifier: Apache-2.0 */
/* `dtrain runs --local` and `dtrain kill --local`: this node alone, also while there is no controller. */
#include "dtrain/local.h"

#include <stdlib.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "dtrain/table.h"
#include "wire/node_view.h"

static void add_row(struct table *table, const struct foreign_attempt *run)
{
	_cleanup_strbuf_ struct strbuf slots = {0};

	for (size_t i = 0; i < run->slot_count; i++)
		strbuf_addf(&slots, "%s%lld", i ? "," : "", (long long)run->slots[i]);
	table_add(table, "%lld", (long long)run->run);
	table_add(table, "%lld", (long long)run->attempt);
	table_add_text(table, run->name);
	table_add_text(table, run->user);
	table_add_text(table, attempt_states[run->state]);
	table_add_text(table, slots.data);
}

int local_list_runs(struct client *client, bool json)
{
	static const char *const header[] = {"RUN", "ATTEMPT", "NAME", "USER", "STATE", "SLOTS"};
	_cleanup_(local_runs_release) struct local_runs runs = {0};
	_cleanup_json_ json_t *answer = NULL;
	struct error err = ERROR_INIT;
	struct table table;
	int status = client_json(client, "GET", "/v1/local/runs", NULL, &answer);

	if (status != 0)
		return status;
	if (local_runs_decode(answer, &runs, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	if (json)
		return client_print_json(json_object_get(answer, "runs"));
	table_begin(&table, ARRAY_SIZE(header), header);
	for (size_t i = 0; i < runs.count; i++)
		add_row(&table, &runs.runs[i]);
	table_print(&table);
	return 0;
}

int cmd_kill(struct client *client, int argc, char **argv)
{
	bool local = false;
	const struct option_spec options[] = {
	    {0, "local", OPTION_FLAG, &local, NULL, "what of the runs is on this node; has to be given"},
	};
	const struct usage usage = {
	    "kill",
	    "--local RUN…",
	    "Ends what of runs is on this node, also while there is no controller",
	    "TERM to their programs, KILL after the grace of each run. For the user "
	    "of each run, and administrators. The controller may start a run again, as the run "
	    "has it: dtrain cancel ends it everywhere, and for good.",
	    options,
	    ARRAY_SIZE(options),
	    1,
	    -1};
	int first, worst = 0, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	if (!local)
		return client_fail(STATUS_USAGE, "--local is needed: dtrain kill ends what runs on this node "
		                                 "alone; dtrain cancel ends a run on all nodes");
	if (!client_are_run_ids(argv + first))
		return STATUS_USAGE;
	for (int i = first; i < argc; i++) {
		_cleanup_free_ char *target = str_printf("/v1/local/runs/%s", argv[i]);

		status = target ? client_json(client, "DELETE", target, NULL, NULL)
		                : client_fail(EXIT_FAILURE, "out of memory");
		worst = MAX(worst, status);
	}
	return worst;
}
