/* SPDX-License-Identifier: Apache-2.0 */
/* `dtrain cancel`: ends runs, or foreign work on a node. */
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"

/* POST's target for "NODE" or "NODE:RUN". */
static char *foreign_target(const char *what)
{
	int64_t run;
	_cleanup_free_ char *node = client_node_argument(what, 1, INT64_MAX, &run);

	if (!node)
		return NULL;
	return run < 0 ? str_printf("/v1/nodes/%s/cancel-foreign", node)
	               : str_printf("/v1/nodes/%s/cancel-foreign?run=%lld", node, (long long)run);
}

static int cancel_foreign(struct client *client, char **nodes)
{
	int worst = 0;

	for (; *nodes; nodes++) {
		_cleanup_free_ char *target = foreign_target(*nodes);
		int status = target ? client_json(client, "POST", target, NULL, NULL)
		                    : client_fail(EXIT_FAILURE, "out of memory");

		worst = MAX(worst, status);
	}
	return worst;
}

int cmd_cancel(struct client *client, int argc, char **argv)
{
	bool wait = false, foreign = false;
	const struct option_spec options[] = {
	    {'w', "wait", OPTION_FLAG, &wait, NULL, "return once the runs have ended"},
	    {0, "foreign", OPTION_FLAG, &foreign, NULL,
	     "end what nodes have and the controller's store does not know, of NODE[:RUN]…; for "
	     "administrators"},
	};
	const struct usage usage = {"cancel",
	                            "RUN…",
	                            "Ends runs: TERM to their programs, KILL after the grace of each run",
	                            "With --foreign, NODE or NODE:RUN is expected instead of RUN: see BACKUP "
	                            "AND RESTORE in dtraind(8).",
	                            options,
	                            ARRAY_SIZE(options),
	                            1,
	                            -1};
	int first, worst = 0, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	if (foreign)
		return wait ? client_fail(STATUS_USAGE, "--wait is not possible with --foreign")
		            : cancel_foreign(client, argv + first);
	if (!client_are_run_ids(argv + first))
		return STATUS_USAGE;
	for (int i = first; i < argc; i++) {
		_cleanup_free_ char *target = str_printf("/v1/runs/%s", argv[i]);

		status = client_change(client, "DELETE", target, NULL);
		worst = MAX(worst, status);
	}
	for (int i = first; i < argc && wait && worst == 0; i++) {
		_cleanup_(run_view_release) struct run_view run = {0};

		worst = client_wait_run(client, client_run_id(argv[i]), false, 0, &run, NULL);
	}
	return worst;
}
