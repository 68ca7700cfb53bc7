/* SPDX-License-Identifier: Apache-2.0 */
/* `dtrain fence`: says that nothing of dtrain runs on a node any more. */
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "http/local.h"
#include "wire/node_view.h"

static int fence(struct client *client, const char *node, json_t *list)
{
	_cleanup_(node_fenced_release) struct node_fenced fenced = {0};
	_cleanup_free_ char *name = http_escape(node), *target = NULL;
	_cleanup_json_ json_t *answer = NULL;
	struct error err = ERROR_INIT;
	int status;

	target = name ? str_printf("/v1/nodes/%s/fence", name) : NULL;
	if (!target)
		return client_fail(EXIT_FAILURE, "out of memory");
	status = client_json(client, "POST", target, NULL, &answer);
	if (status != 0)
		return status;
	if (node_fenced_decode(answer, &fenced, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	if (list)
		json_array_append(list, answer);
	else
		printf("%s: %lld lost %s of runs %s as ended\n", fenced.name, (long long)fenced.parts,
		       fenced.parts == 1 ? "part" : "parts", fenced.parts == 1 ? "counts" : "count");
	return 0;
}

int cmd_fence(struct client *client, int argc, char **argv)
{
	bool json = false;
	const struct option_spec options[] = {
	    {0, "json", OPTION_FLAG, &json, NULL, "print JSON"},
	};
	const struct usage usage = {
	    "fence",
	    "NODE…",
	    "Says that nothing of dtrain runs any more on nodes that cannot be reached",
	    "Switch the machine off, or make sure otherwise that nothing of dtrain runs "
	    "there: runs that wait for it are started again.",
	    options,
	    ARRAY_SIZE(options),
	    1,
	    -1};
	int first, worst = 0, status = options_parse(client, &usage, argc, argv, &first, NULL);
	_cleanup_json_ json_t *list = NULL;

	if (status != OPTIONS_DONE)
		return status;
	list = json ? json_array() : NULL;
	for (int i = first; i < argc; i++) {
		status = fence(client, argv[i], list);
		worst = MAX(worst, status);
	}
	/* Those that were fenced, also where another one was not. */
	if (list && (worst == 0 || json_array_size(list) > 0)) {
		status = client_print_json(list);
		worst = MAX(worst, status);
	}
	return worst;
}
