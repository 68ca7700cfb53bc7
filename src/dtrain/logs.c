/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "dtrain/run_request.h"

int cmd_logs(struct client *client, int argc, char **argv)
{
	const char *rank = "0";
	int64_t tail = -1, attempt = 0, number, id;
	bool follow = false;
	const struct option_spec options[] = {
	    {'f', "follow", OPTION_FLAG, &follow, NULL, "go on until the run has ended"},
	    {'r', "rank", OPTION_STRING, &rank, "N|all", "whose log; default: 0"},
	    {'n', "tail", OPTION_INT, &tail, "N", "only the last N lines of what is there"},
	    {0, "attempt", OPTION_INT, &attempt, "N", "of that start of the run; default: the newest"},
	};
	const struct usage usage = {
	    "logs", "RUN", "Prints what the ranks of a run wrote", NULL, options, ARRAY_SIZE(options), 1, 1};
	_cleanup_strbuf_ struct strbuf target = {0};
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	if (!str_eq(rank, "all") && str_to_int64(rank, 0, INT32_MAX, &number) < 0)
		return client_fail(STATUS_USAGE, "--rank: \"%s\" is neither a number nor \"all\"", rank);
	id = client_run_id(argv[first]);
	if (id < 0)
		return STATUS_USAGE;
	strbuf_addf(&target, "/v1/runs/%lld/logs?rank=%s", (long long)id, rank);
	if (follow)
		strbuf_adds(&target, "&follow=1");
	if (tail >= 0)
		strbuf_addf(&target, "&tail=%lld", (long long)tail);
	if (attempt > 0)
		strbuf_addf(&target, "&attempt=%lld", (long long)attempt);
	return client_stream(client, target.data, run_request_print, NULL);
}
