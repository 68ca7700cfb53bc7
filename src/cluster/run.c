/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/run.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

enum { NAME_MAX_BYTES = 255 };

static const char *const state_names[RUN_STATES] = {
    [RUN_QUEUED] = "queued",       [RUN_STARTING] = "starting",   [RUN_RUNNING] = "running",
    [RUN_STOPPING] = "stopping",   [RUN_SUCCEEDED] = "succeeded", [RUN_FAILED] = "failed",
    [RUN_CANCELLED] = "cancelled",
};

const char *run_state_name(enum run_state state)
{
	return state_names[state];
}

unsigned run_state_set(const char *word)
{
	if (strcmp(word, "all") == 0)
		return (1u << RUN_STATES) - 1;
	if (strcmp(word, "active") == 0)
		return 1u << RUN_QUEUED | 1u << RUN_STARTING | 1u << RUN_RUNNING | 1u << RUN_STOPPING;
	for (unsigned i = 0; i < RUN_STATES; i++)
		if (strcmp(word, state_names[i]) == 0)
			return 1u << i;
	return 0;
}

static char *copy(const char *s)
{
	return s ? strdup(s) : NULL;
}

int run_set_request(struct run *r, const json_t *config, struct error *err)
{
	const json_t *res = json_object_get(config, "resources"), *hosts = json_object_get(res, "hosts"), *h;
	const char *kind = json_get_string(res, "kind", "auto");
	size_t i, n = json_array_size(hosts);

	r->nodes = json_get_int(res, "nodes", 1);
	r->all_slots = str_eq(json_get_string(res, "devices_per_node", NULL), "all");
	if (!r->all_slots)
		r->per_node = json_get_int(res, "devices_per_node", 1);
	r->one_per_node = json_get_bool(res, "one_per_node", false);
	r->kind = str_eq(kind, "gpu") ? SLOT_GPU : str_eq(kind, "cpu") ? SLOT_CPU : SLOT_ANY;
	r->grace = json_get_int(res, "grace", 30);
	if (r->nodes < 1 || r->nodes > 100000 || (r->per_node < 1 && !r->all_slots) || r->per_node > 1024)
		return error_set(err, -EINVAL,
		                 "resources: nodes and devices_per_node: at least 1 of each is needed");
	if (n == 0)
		return 0;
	r->hosts = calloc(n + 1, sizeof(*r->hosts));
	if (!r->hosts)
		return error_oom(err);
	json_array_foreach(hosts, i, h)
	{
		r->hosts[i] = copy(json_string_value(h));
		if (!r->hosts[i])
			return error_set(err, -EINVAL, "resources.hosts: names of hosts are needed");
	}
	return 0;
}

int run_new(const json_t *config, struct run **out, struct error *err)
{
	_cleanup_(run_freep) struct run *r = calloc(1, sizeof(*r));
	const char *dir = json_get_string(json_object_get(config, "output"), "dir", NULL);
	int code;

	if (!r)
		return error_oom(err);
	r->exit_status = -1;
	r->task = copy(json_get_string(config, "task", "command"));
	r->name = copy(json_get_string(config, "name", r->task));
	r->directory = copy(json_get_string(config, "directory", NULL));
	r->output = dir ? str_path_join(r->directory, dir) : NULL;
	r->ranks = json_array();
	if (!r->task || !r->name || !r->ranks)
		return error_oom(err);
	for (const char *p = r->name; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f || p - r->name >= NAME_MAX_BYTES)
			return error_set(err, -EINVAL,
			                 "name: at most %d bytes and no control characters are possible",
			                 NAME_MAX_BYTES);
	code = run_set_request(r, config, err);
	if (code < 0)
		return code;
	*out = steal_pointer(r);
	return 0;
}

struct run_part *run_part_find(struct run *r, const char *node)
{
	for (size_t i = 0; i < r->part_count; i++)
		if (strcmp(r->parts[i].node, node) == 0)
			return &r->parts[i];
	return NULL;
}

void run_clear_parts(struct run *r)
{
	for (size_t i = 0; i < r->part_count; i++) {
		free(r->parts[i].node);
		free(r->parts[i].trouble);
	}
	free(r->parts);
	r->parts = NULL;
	r->part_count = 0;
}

void run_free(struct run *r)
{
	if (!r)
		return;
	run_clear_parts(r);
	str_list_free(r->hosts);
	json_decref(r->ranks);
	json_decref(r->progress);
	free(r->name);
	free(r->user);
	free(r->task);
	free(r->directory);
	free(r->output);
	free(r->reason);
	free(r->detail);
	json_decref(r->words);
	free(r->device_error);
	free(r);
}

void run_touch(struct run *r)
{
	r->version++;
	r->dirty = r->changed = true;
}

int run_set_reason(struct run *r, const char *fmt, ...)
{
	char text[1024], *s;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	s = strdup(str_make_utf8(text)); /* the cut may be within a character */
	if (!s)
		return -ENOMEM;
	free(r->reason);
	r->reason = s;
	return 0;
}

static void set_string(json_t *o, const char *key, const char *value)
{
	json_object_set_new(o, key, value ? json_string(value) : json_null());
}

static void set_time(json_t *o, const char *key, double t)
{
	json_object_set_new(o, key, t > 0 ? json_real(t) : json_null());
}

int64_t run_world_size(const struct run *r)
{
	/* One that comes out of the store without what it asks for has its ranks, if it was ever placed. */
	if (json_array_size(r->ranks) > 0)
		return json_array_size(r->ranks);
	return r->one_per_node ? r->nodes : r->nodes * r->per_node;
}

json_t *run_to_json(const struct run *r, bool own)
{
	json_t *o = json_object(), *nodes = json_array(), *rank;
	const char *last = "";
	size_t i;

	json_object_set_new(o, "id", json_integer(r->id));
	set_string(o, "name", r->name);
	set_string(o, "user", r->user);
	json_object_set_new(o, "uid", json_integer(r->uid));
	json_object_set_new(o, "gid", json_integer(r->gid));
	set_string(o, "task", r->task);
	set_string(o, "state", run_state_name(r->state));
	json_object_set_new(o, "attempt", json_integer(r->attempt));
	json_object_set_new(o, "version", json_integer(r->version));
	set_time(o, "submitted", r->submitted);
	set_time(o, "started", r->started);
	set_time(o, "ended", r->ended);
	json_array_foreach(r->ranks, i, rank)
	{
		const char *node = json_get_string(rank, "node", "");

		if (strcmp(node, last) != 0)
			json_array_append(nodes, json_object_get(rank, "node"));
		last = node;
	}
	json_object_set_new(o, "nodes", nodes);
	json_object_set_new(o, "world_size",
	                    run_world_size(r) > 0 ? json_integer(run_world_size(r)) : json_null());
	json_object_set(o, "ranks", r->ranks);
	set_string(o, "reason", r->reason);
	if (own)
		set_string(o, "detail", r->detail);
	json_object_set_new(o, "exit_status",
	                    r->exit_status >= 0 ? json_integer(r->exit_status) : json_null());
	if (r->progress)
		json_object_set(o, "progress", r->progress);
	else
		json_object_set_new(o, "progress", json_null());
	set_string(o, "directory", r->directory);
	set_string(o, "output", r->output);
	return o;
}
