/* SPDX-License-Identifier: Apache-2.0 */
/* The run that a command is about where none is named: the newest of the caller's. */
#include <stdlib.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/client.h"

/* The newest run is mostly on the first page; where it is not, the search goes on in the largest pages. */
enum { FIRST_PAGE = 100, PAGE = 1000 };

bool client_is_generate(const struct run_view *run)
{
	return str_eq(run->task, "generate");
}

static int newest_run(struct client *client, int64_t *id)
{
	int64_t before = 0;
	int asked = FIRST_PAGE;

	for (;; asked = PAGE) {
		_cleanup_free_ char *target =
		    str_printf("/v1/runs?state=all&limit=%d&before=%lld", asked, (long long)before);
		_cleanup_(run_list_release) struct run_list runs = {0};
		_cleanup_json_ json_t *answer = NULL;
		struct error err = ERROR_INIT;
		int status;

		if (!target)
			return client_fail(EXIT_FAILURE, "out of memory");
		status = client_json(client, "GET", target, NULL, &answer);
		if (status != 0)
			return status;
		if (run_list_decode(answer, &runs, &err) < 0)
			return client_fail(EXIT_FAILURE, "%s", err.message);
		for (size_t i = 0; i < runs.count; i++) {
			before = runs.runs[i].id;
			if (runs.runs[i].uid != (int64_t)geteuid() || client_is_generate(&runs.runs[i]))
				continue;
			*id = before;
			return 0;
		}
		if (runs.count < (size_t)asked)
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
