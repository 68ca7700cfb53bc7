/* SPDX-License-Identifier: Apache-2.0 */
/* `dtrain keygen`: makes the key of a cluster. */
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "http/identity.h"

int cmd_keygen(struct client *client, int argc, char **argv)
{
	const char *output = SYSCONFDIR "/dtrain/cluster.pem";
	bool force = false;
	const struct option_spec options[] = {
	    {'o', "output", OPTION_STRING, &output, "PATH",
	     "where; default: " SYSCONFDIR "/dtrain/cluster.pem"},
	    {0, "force", OPTION_FLAG, &force, NULL, "take the place of a key that is there"},
	};
	const struct usage usage = {
	    "keygen",
	    "",
	    "Makes the key of a cluster",
	    "The same file goes onto every node, readable by root only: whoever holds it is "
	    "one of them.",
	    options,
	    ARRAY_SIZE(options),
	    0,
	    0};
	struct error err = ERROR_INIT;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	if (identity_make(output, force, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	printf("%s: made; copy it to every node of the cluster\n", output);
	return 0;
}
