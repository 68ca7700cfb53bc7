/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain nodes, devices, drain and resume: what the cluster is made of. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
		const json_t *drained = json_object_get(node, "drained");
		const json_t *foreign = json_object_get(node, "foreign");
		const char *why = json_get_string(node, "reason", NULL);
		_cleanup_strbuf_ struct strbuf text = {0}, remark = {0};

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
		strbuf_adds(&remark, json_get_string(node, "error", ""));
		if (!remark.len && json_get_bool(node, "controller", false))
			strbuf_adds(&remark, "controller");
		if (json_get_bool(node, "hosts_differ", false))
			strbuf_addf(&remark, "%sits hosts file differs from the controller's",
			            remark.len ? "; " : "");
		if (why)
			strbuf_addf(&remark, "%sdrained: %s", remark.len ? "; " : "", why);
		for (size_t k = 0; k < json_array_size(drained); k++) {
			const json_t *d = json_array_get(drained, k);

			strbuf_addf(&remark, "%sslot %lld drained: %s", remark.len ? "; " : "",
			            (long long)json_get_int(d, "index", 0), json_get_string(d, "reason", ""));
		}
		for (size_t k = 0; k < json_array_size(foreign); k++) {
			const json_t *f = json_array_get(foreign, k);

			strbuf_addf(&remark, "%sforeign run %lld of %s", remark.len ? "; " : "",
			            (long long)json_get_int(f, "run", 0), json_get_string(f, "user", "?"));
		}
		table_add(&table, "%s", remark.data ? remark.data : "");
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

/* A cell of the table of devices, empty where there is nothing to say. */
static void number_cell(char *buf, size_t size, const json_t *device, const char *key, const char *unit)
{
	const json_t *v = json_object_get(device, key);

	if (json_is_number(v))
		snprintf(buf, size, "%.0f%s", json_number_value(v), unit);
}

static void cell_node(char *buf, size_t size, const json_t *d)
{
	snprintf(buf, size, "%s", json_get_string(d, "node", ""));
}

static void cell_slot(char *buf, size_t size, const json_t *d)
{
	number_cell(buf, size, d, "index", "");
}

static void cell_kind(char *buf, size_t size, const json_t *d)
{
	snprintf(buf, size, "%s", json_get_string(d, "kind", ""));
}

static void cell_name(char *buf, size_t size, const json_t *d)
{
	snprintf(buf, size, "%s", json_get_string(d, "name", ""));
}

static void cell_memory(char *buf, size_t size, const json_t *d)
{
	str_bytes(buf, size, (uint64_t)json_get_int(d, "memory", 0));
}

static void cell_used(char *buf, size_t size, const json_t *d)
{
	if (json_is_integer(json_object_get(d, "memory_used")))
		str_bytes(buf, size, (uint64_t)json_get_int(d, "memory_used", 0));
}

static void cell_use(char *buf, size_t size, const json_t *d)
{
	number_cell(buf, size, d, "utilization", "%");
}

static void cell_temperature(char *buf, size_t size, const json_t *d)
{
	number_cell(buf, size, d, "temperature", "C");
}

static void cell_power(char *buf, size_t size, const json_t *d)
{
	char limit[16] = "?";

	number_cell(limit, sizeof limit, d, "power_limit", "W");
	if (json_is_number(json_object_get(d, "power")))
		snprintf(buf, size, "%.0f/%s", json_get_number(d, "power", 0), limit);
}

static void cell_ecc(char *buf, size_t size, const json_t *d)
{
	number_cell(buf, size, d, "ecc_errors", "");
}

static void cell_xid(char *buf, size_t size, const json_t *d)
{
	number_cell(buf, size, json_object_get(d, "xid"), "code", "");
}

static void cell_threads(char *buf, size_t size, const json_t *d)
{
	number_cell(buf, size, d, "threads", "");
}

static void cell_state(char *buf, size_t size, const json_t *d)
{
	snprintf(buf, size, "%s", json_get_string(d, "state", ""));
}

static void cell_run(char *buf, size_t size, const json_t *d)
{
	number_cell(buf, size, d, "run", "");
}

static void cell_reason(char *buf, size_t size, const json_t *d)
{
	snprintf(buf, size, "%s", json_get_string(d, "reason", ""));
}

enum { SHOW_ALWAYS, SHOW_GPUS, SHOW_REASONS };

static const struct device_column {
	const char *title;
	int show; /* always; where there is a GPU; where some device is drained */
	void (*cell)(char *buf, size_t size, const json_t *device);
} device_columns[] = {
    {"NODE", SHOW_ALWAYS, cell_node},      {"SLOT", SHOW_ALWAYS, cell_slot},
    {"KIND", SHOW_ALWAYS, cell_kind},      {"NAME", SHOW_ALWAYS, cell_name},
    {"MEMORY", SHOW_ALWAYS, cell_memory},  {"USED", SHOW_GPUS, cell_used},
    {"BUSY", SHOW_GPUS, cell_use},         {"TEMP", SHOW_GPUS, cell_temperature},
    {"POWER", SHOW_GPUS, cell_power},      {"ECC", SHOW_GPUS, cell_ecc},
    {"XID", SHOW_GPUS, cell_xid},          {"THREADS", SHOW_ALWAYS, cell_threads},
    {"STATE", SHOW_ALWAYS, cell_state},    {"RUN", SHOW_ALWAYS, cell_run},
    {"REASON", SHOW_REASONS, cell_reason},
};

static void print_devices(const json_t *devices)
{
	const struct device_column *columns[ARRAY_SIZE(device_columns)];
	const char *header[ARRAY_SIZE(device_columns)];
	bool show[] = {[SHOW_ALWAYS] = true, [SHOW_GPUS] = false, [SHOW_REASONS] = false};
	struct table table;
	size_t n = 0, i;
	json_t *d;

	json_array_foreach(devices, i, d)
	{
		show[SHOW_GPUS] = show[SHOW_GPUS] || str_eq(json_get_string(d, "kind", ""), "gpu");
		show[SHOW_REASONS] = show[SHOW_REASONS] || json_get_string(d, "reason", NULL);
	}
	for (i = 0; i < ARRAY_SIZE(device_columns); i++)
		if (show[device_columns[i].show]) {
			header[n] = device_columns[i].title;
			columns[n++] = &device_columns[i];
		}
	table_begin(&table, n, header);
	json_array_foreach(devices, i, d)
	{
		for (size_t k = 0; k < n; k++) {
			char text[300] = "";

			columns[k]->cell(text, sizeof text, d);
			table_add(&table, "%s", text);
		}
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

/* POST's target for "NODE" or "NODE:SLOT". */
static char *change_target(const char *what, const char *command)
{
	const char *colon = strrchr(what, ':');
	_cleanup_free_ char *node = NULL, *name = NULL;
	int64_t slot;

	/* An IPv6 address as a name has more than one. */
	if (colon && strchr(what, ':') == colon && str_to_int64(colon + 1, 0, INT32_MAX, &slot) == 0) {
		node = strndup(what, (size_t)(colon - what));
		name = node ? http_escape(node) : NULL;
		return name ? str_printf("/v1/nodes/%s/devices/%lld/%s", name, (long long)slot, command)
		            : NULL;
	}
	name = http_escape(what);
	return name ? str_printf("/v1/nodes/%s/%s", name, command) : NULL;
}

static int change_nodes(struct client *client, const struct usage *usage, int argc, char **argv,
                        const char *const *reason)
{
	_cleanup_json_ json_t *body = NULL;
	int first, worst = 0, status = options_parse(client, usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	if (reason && *reason)
		body = json_pack("{s:s}", "reason", *reason);
	for (int i = first; i < argc; i++) {
		_cleanup_free_ char *target = change_target(argv[i], usage->command);

		status = target ? client_json(client, "POST", target, body, NULL) : EXIT_FAILURE;
		worst = MAX(worst, status);
	}
	return worst;
}

int cmd_drain(struct client *client, int argc, char **argv)
{
	const char *reason = NULL;
	const struct option_spec options[] = {
	    {'r', "reason", OPTION_STRING, &reason, "TEXT", "why, as nodes and devices show it"},
	};
	const struct usage usage = {"drain",
	                            "NODE[:SLOT]…",
	                            "Lets no new runs onto nodes or devices; those that run there go on",
	                            NULL,
	                            options,
	                            ARRAY_SIZE(options),
	                            1,
	                            -1};

	return change_nodes(client, &usage, argc, argv, &reason);
}

int cmd_resume(struct client *client, int argc, char **argv)
{
	const struct usage usage = {
	    "resume", "NODE[:SLOT]…", "Lets runs onto drained nodes or devices again", NULL, NULL, 0, 1, -1};

	return change_nodes(client, &usage, argc, argv, NULL);
}
