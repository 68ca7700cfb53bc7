/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of dtraind: it serves, checks the configuration, or ends all runs of this node. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "dtraind/daemon.h"
#include "dtraind/shutdown.h"

static void usage(FILE *f)
{
	fputs("Usage: dtraind [OPTION]…\n"
	      "The service of dtrain: exposes this machine's devices, joins its peers, executes runs.\n\n"
	      "  -c, --config FILE  read FILE instead of " SYSCONFDIR "/dtrain/dtraind.conf\n"
	      "      --check        check the configuration and the hosts file, then exit\n"
	      "      --end-runs     end all runs on this node, each with its grace, then exit\n"
	      "      --version      print the version and exit\n"
	      "      --help         print this and exit\n",
	      f);
}

static int check(const char *config)
{
	_cleanup_(settings_freep) struct settings *s = NULL;
	_cleanup_(identity_freep) struct identity *identity = NULL;
	struct error err = ERROR_INIT;

	if (settings_read(config, &s, &err) < 0 ||
	    (s->cluster && !s->identity && identity_load(s->config->cluster_key, &identity, &err) < 0)) {
		fprintf(stderr, "dtraind: %s\n", err.message);
		return 1;
	}
	printf("node %s of %zu, controller %s\n", s->name, s->hosts->count,
	       s->config->etcd_urls ? "elected" : s->controller);
	return 0;
}

static int end_runs(const char *config)
{
	struct error err = ERROR_INIT;

	if (shutdown_end_runs(config, &err) == 0)
		return 0;
	fprintf(stderr, "dtraind: %s\n", err.message);
	return 1;
}

static int serve(const char *config)
{
	_cleanup_(daemon_destroyp) struct daemon *d = NULL;
	struct error err = ERROR_INIT;

	if (daemon_create(config, &d, &err) < 0 || daemon_run(d, &err) < 0) {
		/* Through stderr, which the journal knows to be the unit's. Of what a process sends to the
		 * journal by itself, it cannot find the unit once the process has ended. */
		fprintf(stderr, "dtraind: %s\n", err.message);
		return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	enum { CHECK = 256, END_RUNS, VERSION, HELP };
	static const struct option options[] = {
	    {"config", required_argument, NULL, 'c'},  {"check", no_argument, NULL, CHECK},
	    {"end-runs", no_argument, NULL, END_RUNS}, {"version", no_argument, NULL, VERSION},
	    {"help", no_argument, NULL, HELP},         {NULL, 0, NULL, 0},
	};
	const char *config = NULL;
	bool only_check = false, only_end = false;
	int option;

	log_init("dtraind", LOG_INFO);
	while ((option = getopt_long(argc, argv, "c:", options, NULL)) >= 0)
		switch (option) {
		case 'c':
			config = optarg;
			break;
		case CHECK:
			only_check = true;
			break;
		case END_RUNS:
			only_end = true;
			break;
		case VERSION:
			puts("dtraind " DTRAIN_VERSION);
			return 0;
		case HELP:
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	if (optind < argc) {
		fprintf(stderr, "dtraind: %s: no argument is expected\n", argv[optind]);
		return 2;
	}
	return only_check ? check(config) : only_end ? end_runs(config) : serve(config);
}
