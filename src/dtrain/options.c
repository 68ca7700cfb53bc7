/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a subcommand by its table: parsing, and the text of --help. */
#include "dtrain/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "dtrain/complete.h"

enum { OPTIONS_MAX = 32, FIRST_VALUE = 256, VALUE_HELP, VALUE_SOCKET };

int option_list_add(struct option_list *list, const char *item)
{
	const char **items = realloc(list->items, (list->count + 2) * sizeof *items);

	if (!items)
		return -ENOMEM;
	list->items = items;
	items[list->count++] = item;
	items[list->count] = NULL;
	return 0;
}

void option_list_release(struct option_list *list)
{
	free(list->items);
}

static void print_option(char letter, const char *name, const char *value, const char *help)
{
	char text[64];
	int n = letter ? snprintf(text, sizeof text, "  -%c, --%s", letter, name)
	               : snprintf(text, sizeof text, "      --%s", name);

	if (value && n > 0)
		snprintf(text + n, sizeof text - n, " %s", value);
	printf("%-30s  %s\n", text, help);
}

static void print_help(const struct usage *u)
{
	printf("Usage: dtrain %s [OPTION…]%s%s\n%s.\n", u->command, *u->arguments ? " " : "", u->arguments,
	       u->summary);
	if (u->details)
		printf("\n%s\n", u->details);
	printf("\nOptions:\n");
	for (size_t i = 0; i < u->count; i++)
		print_option(u->options[i].letter, u->options[i].name, u->options[i].value,
		             u->options[i].help);
	print_option(0, "socket", "PATH",
	             "the service's socket; default: $DTRAIN_SOCKET, else " RUNSTATEDIR
	             "/dtrain/dtraind.sock");
	print_option('h', "help", NULL, "show this help");
}

static int usage_error(const struct usage *u)
{
	fprintf(stderr, "Usage: dtrain %s [OPTION…]%s%s; \"dtrain %s --help\" says more\n", u->command,
	        *u->arguments ? " " : "", u->arguments, u->command);
	return STATUS_USAGE;
}

/* The option that getopt's `value` stands for: its letter, or what make_table gave it. */
static const struct option_spec *find_spec(const struct usage *u, const struct option *table, int value)
{
	for (size_t i = 0; i < u->count; i++)
		if (table[i].val == value)
			return &u->options[i];
	return NULL;
}

/* What getopt did not know: an option, or its value is missing. */
static int refuse(const struct usage *u, const struct option *table, int c, const char *word)
{
	const struct option_spec *spec = find_spec(u, table, optopt);
	size_t n = strcspn(word, "="), best = n / 3 + 2, starts = 0;
	_cleanup_free_ char *name = strndup(word, n);
	const char *near = NULL;

	if (c == ':' && optopt == VALUE_SOCKET)
		client_fail(0, "%s: --socket needs a value: PATH", u->command);
	else if (c == ':' && spec)
		client_fail(0, "%s: --%s needs a value: %s", u->command, spec->name, spec->value);
	else if (optopt == 'h' && str_starts(word, "--help="))
		client_fail(0, "%s: --help takes no value", u->command);
	else if (optopt && spec)
		client_fail(0, "%s: --%s takes no value", u->command, spec->name);
	else if (optopt && optopt < FIRST_VALUE && !str_starts(word, "--"))
		client_fail(0, "%s: unknown option -%c", u->command, optopt);
	else {
		for (size_t i = 0; name && table[i].name; i++) {
			size_t d = str_distance(table[i].name, name + MIN(n, 2u));

			starts += str_starts(table[i].name, name + MIN(n, 2u));
			if (d < best) {
				best = d;
				near = table[i].name;
			}
		}
		if (starts > 1)
			client_fail(0, "%s: %s is the begin of several options", u->command,
			            name ? name : word);
		else if (near)
			client_fail(0, "%s: unknown option %s; did you mean --%s?", u->command, name, near);
		else
			client_fail(0, "%s: unknown option %s", u->command, name ? name : word);
	}
	return usage_error(u);
}

static int take(const struct option_spec *spec, const char *value)
{
	switch (spec->type) {
	case OPTION_FLAG:
		*(bool *)spec->to = true;
		return 0;
	case OPTION_STRING:
		*(const char **)spec->to = value;
		return 0;
	case OPTION_LIST:
		return option_list_add(spec->to, value);
	case OPTION_INT:
		if (str_to_int64(value, 0, INT64_MAX, spec->to) == 0)
			return 0;
		return client_fail(STATUS_USAGE, "--%s: \"%s\" is not a whole number from 0", spec->name,
		                   value);
	case OPTION_NUMBER:
		if (str_to_double(value, spec->to) == 0 && *(double *)spec->to >= 0)
			return 0;
		return client_fail(STATUS_USAGE, "--%s: \"%s\" is not a number from 0", spec->name, value);
	}
	return 0;
}

/* How many arguments follow the first "--". getopt moves what stood before it behind it. */
static int count_after_dashes(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (str_eq(argv[i], "--"))
			return argc - i - 1;
	return -1;
}

int options_parse(struct client *client, const struct usage *u, int argc, char **argv, int *first,
                  bool *dashes)
{
	struct option table[OPTIONS_MAX + 3] = {{0}};
	char letters[2 * OPTIONS_MAX + 4], *l = letters;
	int c, count, after = count_after_dashes(argc, argv);
	const char *value = NULL;

	if (client->completing)
		return complete_options(client, u, argc, argv);
	*l++ = ':'; /* makes getopt_long distinguish a missing value from an unknown option */
	*l++ = 'h';
	for (size_t i = 0; i < u->count && i < OPTIONS_MAX; i++) {
		int has = u->options[i].type == OPTION_FLAG ? no_argument : required_argument;

		table[i] = (struct option){u->options[i].name, has, NULL,
		                           u->options[i].letter ?: VALUE_SOCKET + 1 + (int)i};
		if (u->options[i].letter) {
			*l++ = u->options[i].letter;
			if (has == required_argument)
				*l++ = ':';
		}
	}
	*l = '\0';
	table[u->count] = (struct option){"socket", required_argument, NULL, VALUE_SOCKET};
	table[u->count + 1] = (struct option){"help", no_argument, NULL, 'h'};
	optind = 0; /* GNU: start afresh */
	opterr = 0; /* refuse() says it */
	while ((c = getopt_long(argc, argv, letters, table, NULL)) != -1) {
		const struct option_spec *spec;
		int r;

		value = optarg;
		if (c == '?' || c == ':')
			return refuse(u, table, c, argv[optind - 1]);
		if (c == 'h') {
			print_help(u);
			return EXIT_SUCCESS;
		}
		if (c == VALUE_SOCKET) {
			client->socket = optarg;
			continue;
		}
		spec = find_spec(u, table, c);
		if (!spec)
			return usage_error(u);
		r = take(spec, optarg);
		if (r < 0)
			return client_fail(EXIT_FAILURE, "out of memory");
		if (r > 0)
			return r;
	}
	*first = optind;
	if (dashes)
		*dashes =
		    argv[optind - 1] != value && str_eq(argv[optind - 1], "--") && argc - optind == after;
	count = argc - optind;
	if (count >= u->min_arguments && (u->max_arguments < 0 || count <= u->max_arguments))
		return OPTIONS_DONE;
	if (count < u->min_arguments)
		client_fail(0, "%s: %s is missing", u->command, u->arguments);
	else
		client_fail(0, "%s: \"%s\" is too much", u->command, argv[optind + u->max_arguments]);
	return usage_error(u);
}
