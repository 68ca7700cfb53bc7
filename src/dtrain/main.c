/* SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "dtrain/commands.h"

struct command {
	const char *name, *summary;
	int (*run)(struct client *client, int argc, char **argv);
};

static const struct command commands[] = {
    {"submit", "submit a run: a run file, or a command", cmd_submit},
    {"runs", "list runs", cmd_runs},
    {"show", "show one run in full", cmd_show},
    {"logs", "print what the ranks of a run wrote", cmd_logs},
    {"watch", "follow the progress of a run", cmd_watch},
    {"cancel", "end runs", cmd_cancel},
    {"nodes", "list the nodes of the cluster", cmd_nodes},
    {"devices", "list the devices of the cluster", cmd_devices},
    {"drain", "let no new runs onto a node", cmd_drain},
    {"resume", "let runs onto a drained node again", cmd_resume},
    {"generate", "generate text with a model", cmd_generate},
    {"tokenizer", "train or try a tokenizer", cmd_tokenizer},
    {"check", "check a run file without submitting it", cmd_check},
    {"keygen", "make the key of a cluster", cmd_keygen},
};

static void print_help(FILE *to)
{
	fputs(
	    "Usage: dtrain COMMAND [OPTION…] [ARGUMENT…]\nTrains language models on the machines of a dtrain "
	    "cluster.\n\nCommands:\n",
	    to);
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
		fprintf(to, "  %-10s  %s\n", commands[i].name, commands[i].summary);
	fputs("\n\"dtrain COMMAND --help\" tells more about each. dtrain(1) is the manual.\n", to);
}

int main(int argc, char **argv)
{
	struct client client = {.socket = getenv("DTRAIN_SOCKET")};
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
			client_fail(0, "unknown option %s", argv[at]);
			print_help(stderr);
			return STATUS_USAGE;
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
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
		if (str_eq(argv[at], commands[i].name)) {
			status = commands[i].run(&client, argc - at, argv + at);
			client_release(&client);
			if (fflush(stdout) != 0 || ferror(stdout))
				return client_fail(EXIT_FAILURE, "cannot write the output");
			return status;
		}
	return client_fail(STATUS_USAGE, "no command \"%s\"; \"dtrain --help\" lists them", argv[at]);
}
