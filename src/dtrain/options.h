/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a subcommand as a table, from which getopt_long's and the --help text are made. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "dtrain/client.h"

enum option_type {
	OPTION_FLAG,   /* bool * */
	OPTION_STRING, /* const char ** */
	OPTION_LIST,   /* struct option_list *: may be given again and again */
	OPTION_INT,    /* int64_t *, not negative */
	OPTION_NUMBER, /* double *, not negative */
};

struct option_list {
	const char **items; /* NULL-terminated once there is one; owned by the caller */
	size_t count;
};

struct option_spec {
	char letter; /* 0: none */
	const char *name;
	enum option_type type;
	void *to;
	const char *value; /* its name in the help */
	const char *help;
};

struct usage {
	const char *command, *arguments, *summary;
	const char *details; /* further lines of the help, or NULL */
	const struct option_spec *options;
	size_t count;
	int min_arguments, max_arguments; /* max -1: any number */
};

enum { OPTIONS_DONE = -1 };

/* OPTIONS_DONE: go on; argv[*first] is the first argument that is no option, *dashes (may be NULL) whether
 * "--" stood before all of them. Otherwise the exit status: 0 after --help, STATUS_USAGE. --help and --socket
 * are there for every subcommand. */
int options_parse(struct client *client, const struct usage *usage, int argc, char **argv, int *first,
                  bool *dashes);
int option_list_add(struct option_list *list, const char *item); /* borrowed; -ENOMEM */
void option_list_release(struct option_list *list);
