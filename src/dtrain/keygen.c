/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `dtrain keygen`: makes the key of a cluster. A program of its own makes it (make_key.c), for it needs
 * gnutls, and to load that takes a third of the time of every other command.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"

enum { DAYS_MAX = 36500 };

int cmd_keygen(struct client *client, int argc, char **argv)
{
	const char *in = getenv("DTRAIN_WORKER_DIR") ?: PKGLIBEXECDIR;
	static const char usual[] = SYSCONFDIR "/dtrain/cluster.pem";
	const char *output = usual;
	char valid[32];
	const char *ca = NULL, *node = NULL;
	int64_t days = 0;
	bool force = false;
	const struct option_spec options[] = {
	    {'o', "output", OPTION_STRING, &output, "PATH",
	     "where; default: " SYSCONFDIR "/dtrain/cluster.pem"},
	    {0, "ca", OPTION_STRING, &ca, "DIRECTORY",
	     "makes an authority there, which signs the certificates of nodes"},
	    {0, "node", OPTION_STRING, &node, "NAME",
	     "makes the certificate of a node, signed by the authority in the directory"},
	    {0, "days", OPTION_INT, &days, "N",
	     "how long it is valid; default: 7300 of an authority, 825 of a node"},
	    {0, "force", OPTION_FLAG, &force, NULL, "take the place of a key that is there"},
	};
	const struct usage usage = {
	    "keygen",
	    "",
	    "Makes the key of a cluster",
	    "The same file goes onto every node, readable by root only: whoever holds it is "
	    "one of them. With --ca, each node gets a certificate of its own in place of it.",
	    options,
	    ARRAY_SIZE(options),
	    0,
	    0};
	_cleanup_free_ char *program = str_path_join(in, "dtrain-keygen");
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	if (!ca && (node || days))
		return client_fail(STATUS_USAGE, "--node and --days need --ca DIRECTORY");
	if (ca && output != usual)
		return client_fail(STATUS_USAGE,
		                   "--output is not possible with --ca, which names the directory");
	if (days > DAYS_MAX)
		return client_fail(STATUS_USAGE, "--days: at most %d are possible", DAYS_MAX);
	snprintf(valid, sizeof(valid), "%lld", (long long)days);
	if (!program)
		return client_fail(EXIT_FAILURE, "out of memory");
	execl(program, program, force ? "replace" : "make", ca ? ca : output, ca ? valid : NULL, node, NULL);
	return client_fail(EXIT_FAILURE, "cannot execute %s: %s; it is installed with dtrain", program,
	                   strerror(errno));
}
