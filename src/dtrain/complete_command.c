/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommand `complete`: which subcommand is meant, and its own completion. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/complete.h"

int cmd_complete(struct client *client, int argc, char **argv)
{
	const struct command *command;
	int at = 1;

	/* --socket PATH may stand before the subcommand. */
	for (; at < argc - 1 && argv[at][0] == '-'; at++)
		if (str_starts(argv[at], "--socket="))
			client->socket = argv[at] + strlen("--socket=");
		else if (str_eq(argv[at], "--socket"))
			client->socket = argv[++at];
	if (at >= argc) {
		if (argc > 2)
			puts(":files"); /* of --socket itself */
		return EXIT_SUCCESS;
	}
	if (at < argc - 1 && str_eq(argv[at], "help"))
		at++;
	if (at == argc - 1) {
		for (size_t i = 0; i < command_count; i++)
			complete_offer(argv[at], commands[i].name, commands[i].summary);
		complete_offer(argv[at], "help", "tell how a command is called");
		if (argv[at][0] == '-')
			for (size_t i = 0; i < 3; i++)
				complete_offer(argv[at],
				               (const char *const[]){"--socket", "--help", "--version"}[i],
				               NULL);
		return EXIT_SUCCESS;
	}
	command = command_find(argv[at]);
	if (!command)
		return EXIT_SUCCESS;
	client->completing = true;
	return command->run(client, argc - at, argv + at);
}
