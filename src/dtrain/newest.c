/* SPDX-License-Identifier: Apache-2.0 */
/* The run that a command is about where none is named: the newest of the caller's. */
#include <stdlib.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/client.h"

/* The newest run is mostly on the first page; where it is not, the search goes on in the largest pages. */
enum { FIRST_PAGE = 100, PAGE = 1000 };

bool client_is_generate(const json_t *run)
{
	return str_eq(json_get_string(run, "task", ""), "generate");
}

static int newest_run(struct client *client, int64_t *id)
{
	int64_t before = 0;
	int asked = FIRST_PAGE;

	for (;; asked = PAGE) {
		_cleanup_free_ char *target =
		    str_printf("/v1/runs?state=all&limit=%d&before=%lld", asked, (long long)before);
		_cleanup_json_ json_t *answer = NULL;
		const json_t *runs, *run;
		int status;
		size_t i;

		if (!target)
			return client_fail(EXIT_FAILURE, "out of memory");
		status = client_json(client, "GET", target, NULL, &answer);
		if (status != 0)
			return status;
		runs = json_object_get(answer, "runs");
		json_array_foreach(runs, i, run)
		{
			before = json_get_int(run, "id", 0);
			if (json_get_int(run, "uid", -1) != (int64_t)geteuid() || client_is_generate(run))
				continue;
			*id = before;
			return 0;
		}
		if (json_array_size(runs) < (size_t)asked)
			return client_fail(STATUS_USAGE,
			                   "no run of yours: name one by its number; \"dtrain runs\" lists "
			                   "them");
	}
}

int client_run_argument(struct client *client, const char *text, int64_t *id)
{
	if (!text)
		return newest_run(client, id);
	*id = client_run_id(text);
	return *id < 0 ? STATUS_USAGE : 0;
}
