/* SPDX-License-Identifier: Apache-2.0 */
#include "dtrain/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

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
	char letters[2 * OPTIONS_MAX + 3], *l = letters;
	int c, count, after = count_after_dashes(argc, argv);
	const char *value = NULL;

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
	while ((c = getopt_long(argc, argv, letters, table, NULL)) != -1) {
		size_t i = 0;
		int r;

		value = optarg;
		if (c == 'h') {
			print_help(u);
			return EXIT_SUCCESS;
		}
		if (c == VALUE_SOCKET) {
			client->socket = optarg;
			continue;
		}
		while (i < u->count && table[i].val != c)
			i++;
		if (i == u->count)
			return usage_error(u);
		r = take(&u->options[i], optarg);
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
