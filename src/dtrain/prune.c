/* SPDX-License-Identifier: Apache-2.0 */
/* `dtrain prune`: removes the logs and metrics of old runs on this node. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "wire/prune.h"

static void print_answer(const struct prune_answer *answer, bool dry_run)
{
	int64_t bytes = 0;
	char size[16];

	for (size_t i = 0; i < answer->run_count; i++) {
		const struct pruned_run *run = &answer->runs[i];
		time_t changed = (time_t)run->changed;
		char date[32] = "";
		struct tm tm;

		if (localtime_r(&changed, &tm))
			strftime(date, sizeof(date), "%Y-%m-%d", &tm);
		printf("run %lld: %s, last changed %s\n", (long long)run->run,
		       str_bytes(size, sizeof(size), (uint64_t)run->bytes), date);
		bytes += run->bytes;
	}
	printf("%s the files of %zu %s, %s; those of %lld are kept\n", dry_run ? "would remove" : "removed",
	       answer->run_count, answer->run_count == 1 ? "run" : "runs",
	       str_bytes(size, sizeof(size), (uint64_t)bytes), (long long)answer->kept);
}

int cmd_prune(struct client *client, int argc, char **argv)
{
	_cleanup_(prune_answer_release) struct prune_answer answer = {0};
	struct prune_request request = {.days = -1, .runs = -1};
	bool json = false;
	const struct option_spec options[] = {
	    {0, "keep-days", OPTION_NUMBER, &request.days, "N",
	     "remove runs whose files are older than N days; default: keep_days of dtraind.conf"},
	    {0, "keep-runs", OPTION_INT, &request.runs, "N",
	     "remove all but the N newest runs; default: keep_runs of dtraind.conf"},
	    {'n', "dry-run", OPTION_FLAG, &request.dry_run, NULL, "only say what would be removed"},
	    {0, "json", OPTION_FLAG, &json, NULL, "print JSON"},
	};
	const struct usage usage = {
	    "prune",
	    "",
	    "Removes the logs and metrics that this node keeps of old runs",
	    "For administrators. Runs that have not ended are kept, as is what the runs wrote "
	    "themselves, and their place in the list of runs. 0 stands for no limit.",
	    options,
	    ARRAY_SIZE(options),
	    0,
	    0};
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);
	_cleanup_json_ json_t *body = NULL, *reply = NULL;
	struct error err = ERROR_INIT;

	if (status != OPTIONS_DONE)
		return status;
	body = prune_request_encode(&request);
	status = client_json(client, "POST", "/v1/prune", body, &reply);
	if (status != 0)
		return status;
	if (prune_answer_decode(reply, &answer, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	if (json)
		status = client_print_json(reply);
	else
		print_answer(&answer, request.dry_run);
	return answer.error ? client_fail(EXIT_FAILURE, "%s", answer.error) : status;
}
