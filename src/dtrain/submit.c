/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain submit, and dtrain check, which reads a run file in the same way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/str.h"
#include "config/run.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "dtrain/run_request.h"

struct submit {
	struct option_list set;
	const char *name, *nodes, *per_node;
	bool wait, follow, json, quiet;
};

static int read_config(const struct submit *s, char **arguments, bool is_command, json_t **out)
{
	struct option_list overrides = {0};
	struct error err = ERROR_INIT;
	int r;

	for (size_t i = 0; i < s->set.count; i++)
		option_list_add(&overrides, s->set.items[i]);
	_cleanup_free_ char *name = s->name ? str_printf("name=%s", s->name) : NULL;
	_cleanup_free_ char *nodes = s->nodes ? str_printf("resources.nodes=%s", s->nodes) : NULL;
	_cleanup_free_ char *per_node =
	    s->per_node ? str_printf("resources.devices_per_node=%s", s->per_node) : NULL;

	for (size_t i = 0; i < 3; i++) {
		const char *override = i == 0 ? name : i == 1 ? nodes : per_node;

		if (override)
			option_list_add(&overrides, override);
	}
	if (is_command)
		r = run_request_command(arguments, overrides.items, out, &err);
	else
		r = run_request_file(arguments[0], overrides.items, out, &err);
	option_list_release(&overrides);
	return r < 0 ? client_fail(STATUS_USAGE, "%s", err.message) : 0;
}

static int finish(struct client *client, int64_t id, const struct submit *s)
{
	_cleanup_json_ json_t *run = NULL;
	int status;

	if (s->follow) {
		status = run_request_follow(client, id, "0");
		if (status != 0)
			return status;
	}
	status = client_wait_run(client, id, false, 0, &run);
	if (status == 0 && s->json)
		client_print_json(run);
	return status ?: client_run_status(run);
}

int cmd_submit(struct client *client, int argc, char **argv)
{
	struct submit s = {0};
	const struct option_spec options[] = {
	    {'N', "nodes", OPTION_STRING, &s.nodes, "N", "machines to run on (resources.nodes)"},
	    {'n', "per-node", OPTION_STRING, &s.per_node, "N",
	     "devices on each (resources.devices_per_node)"},
	    {0, "name", OPTION_STRING, &s.name, "NAME", "name shown in listings"},
	    {'s', "set", OPTION_LIST, &s.set, "KEY=VALUE", "override a key of the run file; again for more"},
	    {'w', "wait", OPTION_FLAG, &s.wait, NULL, "wait for the end, and end as the run ended"},
	    {'f', "follow", OPTION_FLAG, &s.follow, NULL, "print the log of rank 0 as it comes, and wait"},
	    {'q', "quiet", OPTION_FLAG, &s.quiet, NULL, "print the number of the run only"},
	    {0, "json", OPTION_FLAG, &s.json, NULL, "print the answer as JSON; with --wait the ended run"},
	};
	const struct usage usage = {
	    "submit",
	    "RUN_FILE | -- COMMAND [ARGUMENT…]",
	    "Submits a run, and prints its number",
	    "A command is run once per device, with torchrun's environment (RANK, WORLD_SIZE, …).",
	    options,
	    ARRAY_SIZE(options),
	    1,
	    -1,
	};
	_cleanup_json_ json_t *config = NULL, *body = NULL, *answer = NULL;
	bool dashes;
	int64_t id;
	int first, status = options_parse(client, &usage, argc, argv, &first, &dashes);

	if (status != OPTIONS_DONE)
		goto out;
	if (!dashes && argc - first > 1) {
		status =
		    client_fail(STATUS_USAGE, "\"%s\" is too much after a run file; a command goes after --",
		                argv[first + 1]);
		goto out;
	}
	status = read_config(&s, argv + first, dashes, &config);
	if (status != 0)
		goto out;
	body = json_pack("{s:O}", "config", config);
	status = client_json(client, "POST", "/v1/runs", body, &answer);
	if (status != 0)
		goto out;
	id = json_get_int(answer, "id", 0);
	if (s.json && !s.wait && !s.follow)
		client_print_json(answer);
	else if (s.quiet)
		printf("%lld\n", (long long)id);
	else if (!s.json)
		fprintf(s.wait || s.follow ? stderr : stdout, "run %lld is submitted\n", (long long)id);
	fflush(stdout);
	if (s.wait || s.follow) {
		status = client_on_interrupt(client, id, false);
		if (status == 0)
			status = finish(client, id, &s);
	}
out:
	option_list_release(&s.set);
	return status;
}

int cmd_check(struct client *client, int argc, char **argv)
{
	struct submit s = {0};
	const struct option_spec options[] = {
	    {'s', "set", OPTION_LIST, &s.set, "KEY=VALUE", "override a key of the run file; again for more"},
	    {0, "json", OPTION_FLAG, &s.json, NULL, "print the run as it would be submitted"},
	};
	const struct usage usage = {"check", "RUN_FILE", "Reads a run file and says what is wrong with it",
	                            NULL,    options,    ARRAY_SIZE(options),
	                            1,       1};
	_cleanup_json_ json_t *config = NULL;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status == OPTIONS_DONE) {
		status = read_config(&s, argv + first, false, &config);
		if (status == 0 && s.json)
			client_print_json(config);
		else if (status == 0)
			printf("%s: fine\n", argv[first]);
	}
	option_list_release(&s.set);
	return status;
}
