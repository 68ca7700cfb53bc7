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
#include "wire/node_view.h"
#include "wire/start_request.h"

/* Seconds that the last request of those that wait has for its answer. */
static const double LEAST_ANSWER = 1.0;

static int64_t count_up(const struct node_list *nodes)
{
	int64_t n = 0;

	for (size_t i = 0; i < nodes->count; i++)
		n += nodes->nodes[i].state == NODE_UP;
	return n;
}

/* What is remarkable about a node, separated by semicolons. */
static void add_remarks(struct strbuf *remark, const struct node_view *node)
{
	strbuf_adds(remark, node->error ? node->error : "");
	if (!remark->len && node->controller)
		strbuf_adds(remark, "controller");
	if (node->unreachable)
		strbuf_addf(remark, "%sits reports come, but the controller cannot reach it: %s",
		            remark->len ? "; " : "", node->unreachable);
	if (node->failing)
		strbuf_addf(remark, "%sit could not start its last run: %s", remark->len ? "; " : "",
		            node->failing);
	if (node->hosts_differ)
		strbuf_addf(remark, "%sits hosts file differs from the controller's",
		            remark->len ? "; " : "");
	if (node->reason)
		strbuf_addf(remark, "%sdrained: %s", remark->len ? "; " : "", node->reason);
	for (size_t k = 0; k < node->drained_count; k++)
		strbuf_addf(remark, "%sslot %lld drained: %s", remark->len ? "; " : "",
		            (long long)node->drained[k].index,
		            node->drained[k].reason ? node->drained[k].reason : "");
	for (size_t k = 0; k < node->spare_count; k++)
		strbuf_addf(remark, "%skept for run %lld", remark->len ? "; " : "",
		            (long long)node->spare_of[k]);
	for (size_t k = 0; k < node->foreign_count; k++)
		strbuf_addf(remark, "%sforeign run %lld of %s", remark->len ? "; " : "",
		            (long long)node->foreign[k].run,
		            node->foreign[k].user ? node->foreign[k].user : "?");
}

static void print_nodes(const struct node_list *nodes)
{
	static const char *const header[] = {"NODE",    "STATE",  "SLOTS",  "FREE",  "ADDRESS",
	                                     "VERSION", "LAUNCH", "LABELS", "REMARK"};
	struct table table;

	table_begin(&table, ARRAY_SIZE(header), header);
	for (size_t i = 0; i < nodes->count; i++) {
		const struct node_view *node = &nodes->nodes[i];
		_cleanup_strbuf_ struct strbuf text = {0}, remark = {0};

		for (char **label = node->labels; label && *label; label++)
			strbuf_addf(&text, "%s%s", text.len ? "," : "", *label);
		add_remarks(&remark, node);
		table_add_text(&table, node->name);
		table_add_text(&table, node_states[node->state]);
		table_add(&table, "%lld", (long long)node->slots);
		table_add(&table, "%lld", (long long)node->free);
		table_add(&table, "%s:%lld", node->address ? node->address : "", (long long)node->port);
		table_add_text(&table, node->version ? node->version : "");
		table_add_text(&table, node->launch ? node->launch : "");
		table_add_text(&table, text.data ? text.data : "");
		table_add_text(&table, remark.data ? remark.data : "");
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
		_cleanup_(node_list_release) struct node_list nodes = {0};
		_cleanup_json_ json_t *answer = NULL;
		struct error err = ERROR_INIT;
		double left = MAX(start + timeout - clock_monotonic(), LEAST_ANSWER);
		int r = get_nodes(client, wait > 0 ? left : 0, &status, &answer, &err);
		bool late = clock_monotonic() - start >= timeout;

		if (r == 0)
			r = node_list_decode(answer, &nodes, &err);
		if (r < 0 && (wait == 0 || late))
			return client_fail(status && status != 502 && status != 503 ? EXIT_FAILURE
			                                                            : STATUS_UNREACHABLE,
			                   "%s", err.message);
		if (r == 0 && (count_up(&nodes) >= wait || late)) {
			if (json)
				client_print_json(json_object_get(answer, "nodes"));
			else
				print_nodes(&nodes);
			if (count_up(&nodes) >= wait)
				return 0;
			return client_fail(EXIT_FAILURE, "%lld of %lld nodes are up after %g s",
			                   (long long)count_up(&nodes), (long long)wait, timeout);
		}
		nanosleep(&(struct timespec){0, 100000000}, NULL);
	}
}

/* A cell of the table of devices, empty where there is nothing to say: `value` is below 0. */
static void number_cell(char *buf, size_t size, double value, const char *unit)
{
	if (value >= 0)
		snprintf(buf, size, "%.0f%s", value, unit);
}

static void cell_node(char *buf, size_t size, const struct device_info *d)
{
	snprintf(buf, size, "%s", d->node);
}

static void cell_slot(char *buf, size_t size, const struct device_info *d)
{
	number_cell(buf, size, (double)d->index, "");
}

static void cell_kind(char *buf, size_t size, const struct device_info *d)
{
	snprintf(buf, size, "%s", device_kinds[d->kind]);
}

static void cell_name(char *buf, size_t size, const struct device_info *d)
{
	snprintf(buf, size, "%s", d->name);
}

static void cell_memory(char *buf, size_t size, const struct device_info *d)
{
	str_bytes(buf, size, (uint64_t)d->memory);
}

static void cell_used(char *buf, size_t size, const struct device_info *d)
{
	if (d->gpu_info && d->gpu_info->memory_used >= 0)
		str_bytes(buf, size, (uint64_t)d->gpu_info->memory_used);
}

static void cell_use(char *buf, size_t size, const struct device_info *d)
{
	if (d->gpu_info)
		number_cell(buf, size, (double)d->gpu_info->utilization, "%");
}

static void cell_temperature(char *buf, size_t size, const struct device_info *d)
{
	if (d->gpu_info)
		number_cell(buf, size, (double)d->gpu_info->temperature, "C");
}

static void cell_power(char *buf, size_t size, const struct device_info *d)
{
	char limit[16] = "?";

	if (!d->gpu_info || d->gpu_info->power < 0)
		return;
	number_cell(limit, sizeof limit, d->gpu_info->power_limit, "W");
	snprintf(buf, size, "%.0f/%s", d->gpu_info->power, limit);
}

static void cell_ecc(char *buf, size_t size, const struct device_info *d)
{
	if (d->gpu_info)
		number_cell(buf, size, (double)d->gpu_info->ecc_errors, "");
}

static void cell_xid(char *buf, size_t size, const struct device_info *d)
{
	if (d->gpu_info && d->gpu_info->xid)
		number_cell(buf, size, (double)d->gpu_info->xid->code, "");
}

static void cell_threads(char *buf, size_t size, const struct device_info *d)
{
	number_cell(buf, size, (double)d->threads, "");
}

static void cell_state(char *buf, size_t size, const struct device_info *d)
{
	if (d->state == SLOT_FREE && d->reserved_for > 0)
		snprintf(buf, size, "reserved for %lld", (long long)d->reserved_for);
	else
		snprintf(buf, size, "%s", slot_states[d->state]);
}

static void cell_run(char *buf, size_t size, const struct device_info *d)
{
	if (d->run > 0)
		number_cell(buf, size, (double)d->run, "");
}

static void cell_reason(char *buf, size_t size, const struct device_info *d)
{
	snprintf(buf, size, "%s", d->reason ? d->reason : "");
}

enum { SHOW_ALWAYS, SHOW_GPUS, SHOW_REASONS };

static const struct device_column {
	const char *title;
	int show; /* always; where there is a GPU; where some device is drained */
	void (*cell)(char *buf, size_t size, const struct device_info *device);
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

static void print_devices(const struct device_list *devices)
{
	const struct device_column *columns[ARRAY_SIZE(device_columns)];
	const char *header[ARRAY_SIZE(device_columns)];
	bool show[] = {[SHOW_ALWAYS] = true, [SHOW_GPUS] = false, [SHOW_REASONS] = false};
	struct table table;
	size_t n = 0;

	for (size_t i = 0; i < devices->count; i++) {
		show[SHOW_GPUS] = show[SHOW_GPUS] || devices->devices[i].kind == DEVICE_KIND_GPU;
		show[SHOW_REASONS] = show[SHOW_REASONS] || devices->devices[i].reason;
	}
	for (size_t i = 0; i < ARRAY_SIZE(device_columns); i++)
		if (show[device_columns[i].show]) {
			header[n] = device_columns[i].title;
			columns[n++] = &device_columns[i];
		}
	table_begin(&table, n, header);
	for (size_t i = 0; i < devices->count; i++)
		for (size_t k = 0; k < n; k++) {
			char text[300] = "";

			columns[k]->cell(text, sizeof text, &devices->devices[i]);
			table_add_text(&table, text);
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
	_cleanup_(device_list_release) struct device_list devices = {0};
	_cleanup_json_ json_t *answer = NULL;
	struct error err = ERROR_INIT;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	status = client_json(client, "GET", local ? "/v1/devices?local=1" : "/v1/devices", NULL, &answer);
	if (status != 0)
		return status;
	if (json)
		return client_print_json(json_object_get(answer, "devices"));
	if (device_list_decode(answer, &devices, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	print_devices(&devices);
	return 0;
}

/* POST's target for "NODE" or "NODE:SLOT". */
static char *change_target(const char *what, const char *command)
{
	int64_t slot;
	_cleanup_free_ char *node = client_node_argument(what, 0, INT32_MAX, &slot);

	if (!node)
		return NULL;
	return slot < 0 ? str_printf("/v1/nodes/%s/%s", node, command)
	                : str_printf("/v1/nodes/%s/devices/%lld/%s", node, (long long)slot, command);
}

static int change_nodes(struct client *client, const struct usage *usage, int argc, char **argv,
                        struct drain_request *request)
{
	_cleanup_json_ json_t *body = NULL;
	int first, worst = 0, status = options_parse(client, usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	if (request && (request->reason || request->keep_runs))
		body = drain_request_encode(request);
	for (int i = first; i < argc; i++) {
		_cleanup_free_ char *target = change_target(argv[i], usage->command);

		status = target ? client_change(client, "POST", target, body) : EXIT_FAILURE;
		worst = MAX(worst, status);
	}
	return worst;
}

int cmd_drain(struct client *client, int argc, char **argv)
{
	struct drain_request request = {0};
	const struct option_spec options[] = {
	    {'r', "reason", OPTION_STRING, &request.reason, "TEXT", "why, as nodes and devices show it"},
	    {0, "keep-runs", OPTION_FLAG, &request.keep_runs, NULL, "all that runs there goes on to its end"},
	};
	const struct usage usage = {"drain",
	                            "NODE[:SLOT]…",
	                            "Lets no new runs onto nodes or devices",
	                            "Runs on a node that may be started again after a failure "
	                            "(resources.max_node_failures, resources.max_restarts) save, stop there "
	                            "and are queued again; others go "
	                            "on to their end. Runs on a device go on.",
	                            options,
	                            ARRAY_SIZE(options),
	                            1,
	                            -1};

	return change_nodes(client, &usage, argc, argv, &request);
}

int cmd_resume(struct client *client, int argc, char **argv)
{
	const struct usage usage = {
	    "resume", "NODE[:SLOT]…", "Lets runs onto drained nodes or devices again", NULL, NULL, 0, 1, -1};

	return change_nodes(client, &usage, argc, argv, NULL);
}
