/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain nodes, devices, drain and resume: what the cluster is made of. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "dtrain/table.h"
#include "http/local.h"

static int64_t count_up(const json_t *nodes)
{
	int64_t n = 0;

	for (size_t i = 0; i < json_array_size(nodes); i++)
		n += str_eq(json_get_string(json_array_get(nodes, i), "state", ""), "up");
	return n;
}

static void print_nodes(const json_t *nodes)
{
	static const char *const header[] = {"NODE",    "STATE",   "SLOTS",  "FREE",
	                                     "ADDRESS", "VERSION", "LABELS", "REMARK"};
	struct table table;

	table_begin(&table, ARRAY_SIZE(header), header);
	for (size_t i = 0; i < json_array_size(nodes); i++) {
		const json_t *node = json_array_get(nodes, i), *labels = json_object_get(node, "labels");
		const char *error = json_get_string(node, "error", "");
		_cleanup_strbuf_ struct strbuf text = {0};

		for (size_t k = 0; k < json_array_size(labels); k++)
			strbuf_addf(&text, "%s%s", k ? "," : "",
			            json_string_value(json_array_get(labels, k)) ?: "");
		table_add(&table, "%s", json_get_string(node, "name", ""));
		table_add(&table, "%s", json_get_string(node, "state", ""));
		table_add(&table, "%lld", (long long)json_get_int(node, "slots", 0));
		table_add(&table, "%lld", (long long)json_get_int(node, "free", 0));
		table_add(&table, "%s:%lld", json_get_string(node, "address", ""),
		          (long long)json_get_int(node, "port", 0));
		table_add(&table, "%s", json_get_string(node, "version", ""));
		table_add(&table, "%s", text.data ? text.data : "");
		table_add(&table, "%s",
		          *error                                     ? error
		          : json_get_bool(node, "controller", false) ? "controller"
		                                                     : "");
	}
	table_print(&table);
}

/* GET /v1/nodes within so many seconds, 0: however long it takes. As client_try. */
static int get_nodes(struct client *client, double seconds, int *status, json_t **answer, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r = 0;

	if (seconds <= 0)
		return client_try(client, "GET", "/v1/nodes", NULL, status, answer, err);
	*status = 0;
	if (!client->http)
		r = http_local_open(client->socket, &client->http, err);
	if (r == 0)
		r = http_local_bytes(client->http, "GET", "/v1/nodes", NULL, NULL, 0, seconds, status, &text,
		                     &len, err);
	if (r < 0) {
		*status = 0;
		client_release(client);
		return r;
	}
	if (*status != 200)
		return error_set(err, -EREMOTEIO, "dtraind answers with status %d", *status);
	return json_parse(text, len, "dtraind", answer, err);
}

int cmd_nodes(struct client *client, int argc, char **argv)
{
	bool json = false;
	int64_t wait = 0;
	double timeout = 60, start = clock_monotonic();
	const struct option_spec options[] = {
	    {'w', "wait", OPTION_INT, &wait, "N", "wait until N nodes are up"},
	    {0, "timeout", OPTION_NUMBER, &timeout, "SECONDS", "for so long at most; default: 60"},
	    {0, "json", OPTION_FLAG, &json, NULL, "print JSON"},
	};
	const struct usage usage = {
	    "nodes", "", "Lists the nodes of the cluster", NULL, options, ARRAY_SIZE(options), 0, 0};
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	for (;;) {
		_cleanup_json_ json_t *answer = NULL;
		struct error err = ERROR_INIT;
		const json_t *nodes;
		double left = MAX(start + timeout - clock_monotonic(), 0.01);
		int r = get_nodes(client, wait > 0 ? left : 0, &status, &answer, &err);
		bool late = clock_monotonic() - start >= timeout;

		nodes = json_object_get(answer, "nodes");
		if (r < 0 && (wait == 0 || late))
			return client_fail(status && status != 502 && status != 503 ? EXIT_FAILURE
			                                                            : STATUS_UNREACHABLE,
			                   "%s", err.message);
		if (r == 0 && (count_up(nodes) >= wait || late)) {
			if (json)
				client_print_json(nodes);
			else
				print_nodes(nodes);
			if (count_up(nodes) >= wait)
				return 0;
			return client_fail(EXIT_FAILURE, "%lld of %lld nodes are up after %g s",
			                   (long long)count_up(nodes), (long long)wait, timeout);
		}
		nanosleep(&(struct timespec){0, 100000000}, NULL);
	}
}

static void print_devices(const json_t *devices)
{
	static const char *const header[] = {"NODE",   "SLOT",    "KIND",  "NAME",
	                                     "MEMORY", "THREADS", "STATE", "RUN"};
	struct table table;

	table_begin(&table, ARRAY_SIZE(header), header);
	for (size_t i = 0; i < json_array_size(devices); i++) {
		const json_t *d = json_array_get(devices, i);
		char memory[32];

		table_add(&table, "%s", json_get_string(d, "node", ""));
		table_add(&table, "%lld", (long long)json_get_int(d, "index", 0));
		table_add(&table, "%s", json_get_string(d, "kind", ""));
		table_add(&table, "%s", json_get_string(d, "name", ""));
		table_add(&table, "%s",
		          str_bytes(memory, sizeof memory, (uint64_t)json_get_int(d, "memory", 0)));
		table_add(&table, "%lld", (long long)json_get_int(d, "threads", 0));
		table_add(&table, "%s", json_get_string(d, "state", ""));
		if (json_get_int(d, "run", 0) > 0)
			table_add(&table, "%lld", (long long)json_get_int(d, "run", 0));
		else
			table_add(&table, "%s", "");
	}
	table_print(&table);
}

int cmd_devices(struct client *client, int argc, char **argv)
{
	bool json = false, local = false;
	const struct option_spec options[] = {
	    {0, "local", OPTION_FLAG, &local, NULL, "only those of this machine"},
	    {0, "json", OPTION_FLAG, &json, NULL, "print JSON"},
	};
	const struct usage usage = {"devices", "",      "Lists the devices of the cluster, a slot each",
	                            NULL,      options, ARRAY_SIZE(options),
	                            0,         0};
	_cleanup_json_ json_t *answer = NULL;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	status = client_json(client, "GET", local ? "/v1/devices?local=1" : "/v1/devices", NULL, &answer);
	if (status != 0)
		return status;
	if (json)
		return client_print_json(json_object_get(answer, "devices"));
	print_devices(json_object_get(answer, "devices"));
	return 0;
}

static int change_nodes(struct client *client, const struct usage *usage, int argc, char **argv)
{
	int first, worst = 0, status = options_parse(client, usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	for (int i = first; i < argc; i++) {
		_cleanup_free_ char *name = http_escape(argv[i]);
		_cleanup_free_ char *target =
		    name ? str_printf("/v1/nodes/%s/%s", name, usage->command) : NULL;

		status = target ? client_json(client, "POST", target, NULL, NULL) : EXIT_FAILURE;
		worst = MAX(worst, status);
	}
	return worst;
}

int cmd_drain(struct client *client, int argc, char **argv)
{
	const struct usage usage = {
	    "drain", "NODE…", "Lets no new runs onto nodes; those that run there go on", NULL, NULL, 0,
	    1,       -1};

	return change_nodes(client, &usage, argc, argv);
}

int cmd_resume(struct client *client, int argc, char **argv)
{
	const struct usage usage = {"resume", "NODE…", "Lets runs onto drained nodes again", NULL, NULL, 0,
	                            1,        -1};

	return change_nodes(client, &usage, argc, argv);
}
