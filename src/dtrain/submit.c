/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain submit: a run file, or a command. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/str.h"
#include "config/run.h"
#include "dtrain/commands.h"
#include "dtrain/estimate.h"
#include "dtrain/follow.h"
#include "dtrain/options.h"
#include "dtrain/output_dir.h"
#include "dtrain/run_request.h"

struct submit {
	struct option_list set;
	struct environment_options environment;
	const char *name, *nodes, *per_node, *kind;
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
	_cleanup_free_ char *kind = s->kind ? str_printf("resources.kind=%s", s->kind) : NULL;
	const char *const given[] = {name, nodes, per_node, kind};

	for (size_t i = 0; i < ARRAY_SIZE(given); i++)
		if (given[i])
			option_list_add(&overrides, given[i]);
	if (is_command)
		r = run_request_command(arguments, overrides.items, &s->environment, out, &err);
	else
		r = run_request_file(arguments[0], overrides.items, &s->environment, out, &err);
	option_list_release(&overrides);
	return r < 0 ? client_fail(STATUS_USAGE, "%s", err.message) : 0;
}

/* An output directory that the worker would refuse as it is here and now. The nodes may have another one of
 * that name, and a run that is under way may save a checkpoint there before this one begins. */
static void warn_of_output(const json_t *config)
{
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	_cleanup_free_ char *checkpoint = NULL;
	struct error err = ERROR_INIT;

	if (run_config_from_json(config, &c, &err) < 0 || !run_task_trains(c->task))
		return;
	if (output_dir_check(c, &checkpoint, &err) == -ENOTEMPTY)
		client_fail(0,
		            "warning: output.dir %s is not empty on this machine, and has no checkpoint that "
		            "the run would resume from; a node that has these files when the run begins "
		            "refuses it",
		            c->output.dir);
}

static int finish(struct client *client, int64_t id, const struct submit *s)
{
	_cleanup_(run_view_release) struct run_view run = {0};
	_cleanup_json_ json_t *raw = NULL;
	int status;

	if (s->follow)
		status = follow_run(client, id, 0, &run, &raw);
	else
		status = client_wait_run(client, id, false, 0, &run, &raw);
	if (status == 0 && s->json)
		client_print_json(raw);
	return status ?: client_run_status(&run, s->follow ? 0 : -1);
}

int cmd_submit(struct client *client, int argc, char **argv)
{
	struct submit s = {0};
	const struct option_spec options[] = {
	    {'N', "nodes", OPTION_STRING, &s.nodes, "N",
	     "machines to run on, such as 2, or 2..4 for as many as are free (resources.nodes)"},
	    {'n', "per-node", OPTION_STRING, &s.per_node, "N",
	     "devices on each, or \"all\" (resources.devices_per_node)"},
	    {0, "kind", OPTION_STRING, &s.kind, "gpu|cpu",
	     "kind of the devices; default: gpu where the cluster has them (resources.kind)"},
	    {0, "name", OPTION_STRING, &s.name, "NAME", "name shown in listings"},
	    {'s', "set", OPTION_LIST, &s.set, "KEY=VALUE", "override a key of the run file; again for more"},
	    {0, "env", OPTION_LIST, &s.environment.variables, "NAME[=VALUE]",
	     "a variable of the ranks' environment, as given or as it is here; again for more"},
	    {0, "env-file", OPTION_LIST, &s.environment.files, "FILE", "the same from lines NAME=VALUE"},
	    {0, "no-env", OPTION_FLAG, &s.environment.none, NULL,
	     "a command takes nothing else of the environment along"},
	    {'w', "wait", OPTION_FLAG, &s.wait, NULL, "wait for the end, and end as the run ended"},
	    {'f', "follow", OPTION_FLAG, &s.follow, NULL, "print the log of rank 0 as it comes, and wait"},
	    {'q', "quiet", OPTION_FLAG, &s.quiet, NULL, "print the number of the run only"},
	    {0, "json", OPTION_FLAG, &s.json, NULL, "print the answer as JSON; with --wait the ended run"},
	};
	const struct usage usage = {
	    "submit",
	    "RUN_FILE | -- COMMAND [ARGUMENT…]",
	    "Submits a run, and prints its number",
	    "A command is run once per device, with torchrun's environment (RANK, WORLD_SIZE, …). It takes\n"
	    "along PATH, VIRTUAL_ENV, CONDA_PREFIX, CONDA_DEFAULT_ENV, PYTHONPATH, LD_LIBRARY_PATH,\n"
	    "OMP_NUM_THREADS, HF_*, NCCL_* and the umask from here.",
	    options,
	    ARRAY_SIZE(options),
	    1,
	    -1,
	};
	_cleanup_json_ json_t *config = NULL, *answer = NULL;
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
	status = dashes ? 0 : estimate_refuse(client, config);
	if (status != 0)
		goto out;
	if (!dashes)
		warn_of_output(config);
	status = client_submit(client, config, &id, &answer);
	if (status != 0)
		goto out;
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
	option_list_release(&s.environment.variables);
	option_list_release(&s.environment.files);
	return status;
}
