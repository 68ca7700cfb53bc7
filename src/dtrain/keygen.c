/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `dtrain keygen`: makes the key of a cluster. A program of its own makes it (make_key.c), for it needs
 * gnutls, and to load that takes a third of the time of every other command.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"

int cmd_keygen(struct client *client, int argc, char **argv)
{
	const char *in = getenv("DTRAIN_WORKER_DIR") ?: PKGLIBEXECDIR;
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
	_cleanup_free_ char *program = str_path_join(in, "dtrain-keygen");
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	if (!program)
		return client_fail(EXIT_FAILURE, "out of memory");
	execl(program, program, force ? "replace" : "make", output, NULL);
	return client_fail(EXIT_FAILURE, "cannot execute %s: %s; it is installed with dtrain", program,
	                   strerror(errno));
}
