/* SPDX-License-Identifier: Apache-2.0 */
/* `dtrain logs`: prints what the ranks of a run wrote. */
#include <stdlib.h>

#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/follow.h"
#include "dtrain/options.h"
#include "dtrain/stream.h"

int cmd_logs(struct client *client, int argc, char **argv)
{
	const char *rank = "0";
	int64_t tail = -1, attempt = 0, number = -1, id;
	bool follow = false;
	const struct option_spec options[] = {
	    {'f', "follow", OPTION_FLAG, &follow, NULL, "go on until the attempt has ended"},
	    {'r', "rank", OPTION_STRING, &rank, "N|all", "whose log; default: 0"},
	    {'n', "tail", OPTION_INT, &tail, "N", "only the last N lines of what is there"},
	    {0, "attempt", OPTION_INT, &attempt, "N", "of that start of the run; default: the newest"},
	};
	const struct usage usage = {
	    "logs",
	    "[RUN]",
	    "Prints what the ranks of a run wrote: of the newest of yours where none is named",
	    NULL,
	    options,
	    ARRAY_SIZE(options),
	    0,
	    1};
	struct stream_request request = {.piece = follow_print};
	struct error err = ERROR_INIT;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	if (!str_eq(rank, "all") && str_to_int64(rank, 0, INT32_MAX, &number) < 0)
		return client_fail(STATUS_USAGE, "--rank: \"%s\" is neither a number nor \"all\"", rank);
	status = client_run_argument(client, argv[first], &id);
	if (status == 0 && !argv[first])
		client_fail(0, "run %lld, the newest of yours", (long long)id);
	if (status == 0 && follow)
		status = client_on_interrupt(client, id, false);
	if (status != 0)
		return status;
	request.run = id;
	request.rank = number;
	request.attempt = attempt;
	request.tail = tail;
	request.follow = follow;
	status = stream_read(client, &request, NULL, &err);
	return status == 0 ? 0 : client_fail(status, "%s", err.message);
}
