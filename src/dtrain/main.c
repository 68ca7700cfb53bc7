/* SPDX-License-Identifier: Apache-2.0 */
/* The client: finds the subcommand in the table of commands, and calls it. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/complete.h"

static void print_help(FILE *to)
{
	fputs(
	    "Usage: dtrain COMMAND [OPTION…] [ARGUMENT…]\nTrains language models on the machines of a dtrain "
	    "cluster.\n\nCommands:\n",
	    to);
	for (size_t i = 0; i < command_count; i++)
		fprintf(to, "  %-10s  %s\n", commands[i].name, commands[i].summary);
	fputs("\n\"dtrain COMMAND --help\" tells more about each. dtrain(1) is the manual.\n", to);
}

static int unknown_command(const char *name)
{
	const char *near = command_nearest(name);

	if (near)
		return client_fail(STATUS_USAGE, "no command \"%s\"; did you mean %s?", name, near);
	return client_fail(STATUS_USAGE, "no command \"%s\"; \"dtrain --help\" lists them", name);
}

static int unknown_option(const char *word)
{
	static const char *const known[] = {"--socket", "--help", "--version"};

	if (str_eq(word, "--socket"))
		return client_fail(STATUS_USAGE, "--socket: the path of the socket is missing");
	for (size_t i = 0; i < ARRAY_SIZE(known); i++)
		if (str_distance(known[i], word) <= strlen(known[i]) / 3)
			return client_fail(STATUS_USAGE, "unknown option %s; did you mean %s?", word,
			                   known[i]);
	return client_fail(STATUS_USAGE, "unknown option %s; \"dtrain --help\" tells how it is called", word);
}

int main(int argc, char **argv)
{
	struct client client = {.socket = getenv("DTRAIN_SOCKET")};
	const struct command *command;
	int at = 1, status;

	setlocale(LC_CTYPE, "");
	if (!client.socket || !*client.socket)
		client.socket = RUNSTATEDIR "/dtrain/dtraind.sock";
	for (; at < argc && argv[at][0] == '-'; at++) {
		if (str_eq(argv[at], "--socket") && at + 1 < argc)
			client.socket = argv[++at];
		else if (str_starts(argv[at], "--socket="))
			client.socket = argv[at] + strlen("--socket=");
		else if (str_eq(argv[at], "--version")) {
			puts("dtrain " DTRAIN_VERSION);
			return EXIT_SUCCESS;
		} else if (str_eq(argv[at], "--help") || str_eq(argv[at], "-h")) {
			print_help(stdout);
			return EXIT_SUCCESS;
		} else {
			return unknown_option(argv[at]);
		}
	}
	if (at == argc) {
		print_help(stderr);
		return STATUS_USAGE;
	}
	if (str_eq(argv[at], "help")) {
		if (at + 1 == argc) {
			print_help(stdout);
			return EXIT_SUCCESS;
		}
		argv[at] = argv[at + 1];
		argv[at + 1] = (char *)"--help";
	}
	if (str_eq(argv[at], "complete")) { /* for shells: not listed */
		status = cmd_complete(&client, argc - at, argv + at);
		client_release(&client);
		return status;
	}
	command = command_find(argv[at]);
	if (!command)
		return unknown_command(argv[at]);
	status = command->run(&client, argc - at, argv + at);
	client_release(&client);
	if (fflush(stdout) != 0 || ferror(stdout))
		return client_fail(EXIT_FAILURE, "cannot write the output");
	return status;
}
