/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"

int cmd_cancel(struct client *client, int argc, char **argv)
{
	bool wait = false;
	const struct option_spec options[] = {
	    {'w', "wait", OPTION_FLAG, &wait, NULL, "return once the runs have ended"},
	};
	const struct usage usage = {
	    "cancel", "RUN…",  "Ends runs: TERM to their programs, KILL after the grace of each run",
	    NULL,     options, ARRAY_SIZE(options),
	    1,        -1};
	int first, worst = 0, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	for (int i = first; i < argc; i++)
		if (client_run_id(argv[i]) < 0)
			return STATUS_USAGE;
	for (int i = first; i < argc; i++) {
		_cleanup_free_ char *target = str_printf("/v1/runs/%s", argv[i]);

		status = client_json(client, "DELETE", target, NULL, NULL);
		worst = MAX(worst, status);
	}
	for (int i = first; i < argc && wait && worst == 0; i++) {
		_cleanup_json_ json_t *run = NULL;

		worst = client_wait_run(client, client_run_id(argv[i]), false, 0, &run);
	}
	return worst;
}
