/* SPDX-License-Identifier: Apache-2.0 */
/* A run as data: made from its configuration, and described as JSON. Its state machine is in run_state.c. */
#include "cluster/run.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

enum { NAME_MAX_BYTES = 255 };

const char *run_state_name(enum run_state state)
{
	return run_states[state];
}

unsigned run_state_set(const char *word)
{
	if (strcmp(word, "all") == 0)
		return (1u << RUN_STATES) - 1;
	if (strcmp(word, "active") == 0)
		return 1u << RUN_QUEUED | 1u << RUN_STARTING | 1u << RUN_RUNNING | 1u << RUN_STOPPING;
	for (unsigned i = 0; i < RUN_STATES; i++)
		if (strcmp(word, run_states[i]) == 0)
			return 1u << i;
	return 0;
}

static char *copy(const char *s)
{
	return s ? strdup(s) : NULL;
}

static enum slot_kind kind_of(const char *word)
{
	return str_eq(word, "gpu") ? SLOT_GPU : str_eq(word, "cpu") ? SLOT_CPU : SLOT_ANY;
}

void run_set_limits(struct run *r, const struct run_config *config)
{
	r->time_limit = (double)config->resources.time_limit;
	r->retries.max_restarts = config->resources.max_restarts;
	r->retries.max_node_failures = config->resources.max_node_failures;
	r->retries.max_busy_starts = config->resources.max_busy_starts;
}

int run_set_request(struct run *r, const struct run_config *config, struct error *err)
{
	char *const *hosts = config->resources.hosts;

	r->nodes_asked = config->resources.nodes;
	r->nodes = r->nodes_asked.high;
	r->spares_asked = config->resources.spares;
	r->all_slots = config->resources.devices_per_node == 0;
	if (!r->all_slots)
		r->per_node = config->resources.devices_per_node;
	r->one_per_node = config->resources.one_per_node;
	r->kind = kind_of(config->resources.kind);
	for (size_t i = 0; i < ARRAY_SIZE(r->stop); i++)
		r->stop[i] = run_config_stop_times(config, i);
	run_set_limits(r, config);
	/* What cannot save would begin anew. */
	if (run_task_trains(config->task) || run_config_save_signal(config) != 0)
		r->grow_after = (double)config->resources.grow_after;
	r->stops_on_partition = run_config_stops_on_partition(config);
	r->retries.saves = run_task_trains(config->task);
	if (!hosts || !hosts[0])
		return 0;
	r->hosts = str_list_copy(hosts);
	r->found = calloc(1, sizeof(*r->found));
	return r->hosts && r->found ? 0 : error_oom(err);
}

int run_new(const struct run_config *config, struct run **out, struct error *err)
{
	_cleanup_(run_freep) struct run *r = calloc(1, sizeof(*r));
	const char *dir = config->output.dir;
	int code;

	if (!r)
		return error_oom(err);
	r->exit_status = -1;
	r->task = strdup(run_task_name(config->task));
	r->name = copy(config->name ? config->name : r->task);
	r->directory = copy(config->directory);
	r->output = dir ? str_path_join(r->directory, dir) : NULL;
	if (!r->task || !r->name || (config->directory && !r->directory) || (dir && !r->output))
		return error_oom(err);
	for (const char *p = r->name; *p; p++)
		if (str_control_length(p) || p - r->name >= NAME_MAX_BYTES)
			return error_set(err, -EINVAL,
			                 "name: at most %d bytes and no control characters are possible",
			                 NAME_MAX_BYTES);
	code = run_set_request(r, config, err);
	if (code < 0)
		return code;
	*out = steal_pointer(r);
	return 0;
}

void run_clear_rank_errors(struct run *r)
{
	message_free_list(&rank_error_message, steal_pointer(r->rank_errors), r->rank_error_count);
	r->rank_error_count = r->rank_error_bytes = 0;
	free(steal_pointer(r->rank_error_places));
	rank_texts_clear(&r->rank_texts);
}

struct run_part *run_part_find(struct run *r, const char *node)
{
	size_t i;

	return name_index_find(&r->part_index, node, &i) ? &r->parts[i] : NULL;
}

typedef const char *(*spelling_fn)(void *context, const char *node);

/* Returns whether it has changed. NULL stays. */
static bool respell(char *node, spelling_fn spelling, void *context)
{
	const char *as = node ? spelling(context, node) : NULL;

	if (!as || strcmp(node, as) == 0)
		return false;
	memcpy(node, as, strlen(node));
	return true;
}

void run_respell(struct run *r, spelling_fn spelling, void *context)
{
	struct retry_record *x = &r->retries.record;
	bool changed = respell(r->device_node, spelling, context);

	changed = respell(x->checkpoint_node, spelling, context) || changed;
	for (char **node = x->avoid; node && *node; node++)
		changed = respell(*node, spelling, context) || changed;
	for (size_t i = 0; i < r->rank_count; i++)
		changed = respell(r->ranks[i].node, spelling, context) || changed;
	for (size_t i = 0; i < r->part_count; i++)
		changed = respell(r->parts[i].node, spelling, context) || changed;
	for (size_t i = 0; i < r->lost_count; i++)
		changed = respell(r->lost[i].record.node, spelling, context) || changed;
	for (size_t i = 0; i < r->spare_count; i++)
		changed = respell(r->spares[i].node, spelling, context) || changed;
	if (changed)
		run_touch(r);
}

void run_clear_parts(struct run *r)
{
	for (size_t i = 0; i < r->part_count; i++) {
		free(r->parts[i].node);
		free(r->parts[i].trouble);
		free(r->parts[i].boot);
	}
	name_index_free(&r->part_index);
	free(r->parts);
	r->parts = NULL;
	r->part_count = r->running_parts = r->ended_parts = 0;
}

static void free_lost(struct run_lost *lost)
{
	free(lost->record.node);
	free(lost->record.boot);
}

struct run_lost *run_add_lost(struct run *r, struct run_part *part)
{
	struct run_lost *list = reallocarray(r->lost, r->lost_count + 1, sizeof(*list)), *lost;

	if (!list)
		return NULL;
	r->lost = list;
	lost = &list[r->lost_count];
	*lost = (struct run_lost){.record = {.node = strdup(part->node), .attempt = r->attempt},
	                          .sequence = part->sequence};
	snprintf(lost->instance, sizeof(lost->instance), "%s", part->instance);
	if (!lost->record.node || str_replace(&lost->record.boot, part->boot) < 0) {
		free_lost(lost);
		return NULL;
	}
	r->lost_count++;
	part->lost = true;
	r->dirty = true;
	return lost;
}

struct run_lost *run_find_lost(const struct run *r, const char *node, int64_t attempt)
{
	for (size_t i = 0; i < r->lost_count; i++)
		if (r->lost[i].record.attempt == attempt && str_eq_host(r->lost[i].record.node, node))
			return &r->lost[i];
	return NULL;
}

void run_remove_lost(struct run *r, struct run_lost *lost)
{
	struct run_part *part =
	    lost->record.attempt == r->attempt ? run_part_find(r, lost->record.node) : NULL;

	if (part)
		part->lost = false;
	free_lost(lost);
	*lost = r->lost[--r->lost_count];
	r->dirty = true;
}

void run_clear_lost(struct run *r)
{
	while (r->lost_count > 0)
		free_lost(&r->lost[--r->lost_count]);
	free(steal_pointer(r->lost));
}

void run_clear_spares(struct run *r)
{
	message_free_list(&spare_record_message, steal_pointer(r->spares), r->spare_count);
	r->spare_count = 0;
}

void run_free(struct run *r)
{
	if (!r)
		return;
	run_clear_parts(r);
	run_clear_lost(r);
	run_clear_spares(r);
	str_list_free(r->hosts);
	if (r->found)
		sched_hosts_clear(r->found);
	free(r->found);
	message_free_list(&run_rank_message, r->ranks, r->rank_count);
	json_decref(r->progress);
	free(r->name);
	free(r->user);
	free(r->task);
	free(r->directory);
	free(r->output);
	free(r->key);
	free(r->reason);
	free(r->detail);
	run_clear_rank_errors(r);
	free(r->device_error);
	free(r->device_node);
	free(r->evicted);
	message_release(&retry_record_message, &r->retries.record);
	free(r);
}

void run_touch(struct run *r)
{
	r->version++;
	r->dirty = r->changed = true;
}

void run_set_reason(struct run *r, const char *fmt, ...)
{
	char text[1024], *s;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	/* The cut may be within a character. Without memory the reason before stays. */
	s = strdup(str_make_utf8(text));
	if (!s)
		return;
	free(r->reason);
	r->reason = s;
}

int64_t run_world_size(const struct run *r)
{
	/* One that comes out of the store without what it asks for has its ranks, if it was ever placed. */
	if (r->rank_count > 0)
		return (int64_t)r->rank_count;
	return r->one_per_node ? r->nodes : r->nodes * r->per_node;
}

json_t *run_to_json_with(const struct run *r, bool own, json_t *config)
{
	char **nodes = calloc(r->rank_count + 1, sizeof(*nodes)),
	     **spares = calloc(r->spare_count + 1, sizeof(*spares));
	struct run_view view = {
	    .id = r->id,
	    .name = r->name,
	    .user = r->user,
	    .uid = r->uid,
	    .gid = r->gid,
	    .task = r->task,
	    .state = r->state,
	    .attempt = r->attempt,
	    .version = r->version,
	    .submitted = r->submitted,
	    .started = r->started,
	    .ended = r->ended,
	    .nodes = nodes,
	    .spares = r->spare_count > 0 ? spares : NULL,
	    .world_size = MAX(run_world_size(r), 0),
	    .ranks = r->ranks,
	    .rank_count = r->rank_count,
	    .reason = r->reason,
	    .detail = own ? r->detail : NULL,
	    .exit_status = r->exit_status,
	    .progress = r->progress,
	    .directory = r->directory,
	    .output = r->output,
	    .max_restarts = r->retries.max_restarts,
	    .max_node_failures = r->retries.max_node_failures,
	    .restarts = r->retries.record.restarts,
	    .node_failures = r->retries.record.node_failures,
	    .checkpoint = r->retries.record.checkpoint,
	    .last_failure = r->retries.record.last_failure,
	    .last_detail = own ? r->retries.record.last_detail : NULL,
	    .time_limit = r->time_limit,
	    .time_used = r->retries.record.used,
	    .config = own ? config : NULL,
	};
	json_t *json;
	size_t n = 0;

	if (!nodes || !spares) {
		free(nodes);
		free(spares);
		return NULL;
	}
	for (size_t i = 0; i < r->spare_count; i++)
		spares[i] = r->spares[i].node;
	for (size_t i = 0; i < r->rank_count; i++)
		if (i == 0 || !str_eq_host(r->ranks[i].node, r->ranks[i - 1].node))
			nodes[n++] = r->ranks[i].node;
	json = run_view_encode(&view);
	free(nodes); /* the names are the ranks', */
	free(spares);
	return json;
}

json_t *run_to_json(const struct run *r, bool own)
{
	return run_to_json_with(r, own, NULL);
}
