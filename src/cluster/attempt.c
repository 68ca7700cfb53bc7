/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine of an attempt: all its parts start, run and end together; the first cause is kept. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster/run.h"

enum { CAUSE_MAX = 4096 }; /* of what a worker says */

struct run_part *run_part_find(struct run *r, const char *node)
{
	for (size_t i = 0; i < r->part_count; i++)
		if (strcmp(r->parts[i].node, node) == 0)
			return &r->parts[i];
	return NULL;
}

void run_clear_parts(struct run *r)
{
	for (size_t i = 0; i < r->part_count; i++)
		free(r->parts[i].node);
	free(r->parts);
	r->parts = NULL;
	r->part_count = 0;
}

static int parts_add(struct run *r, const char *node, struct error *err)
{
	struct run_part *p = reallocarray(r->parts, r->part_count + 1, sizeof(*p));

	if (!p)
		return error_oom(err);
	r->parts = p;
	p += r->part_count;
	*p = (struct run_part){.node = strdup(node)};
	if (!p->node)
		return error_oom(err);
	r->part_count++;
	return 0;
}

int run_recover(struct run *r, struct error *err)
{
	json_t *rank;
	size_t i;

	json_array_foreach(r->ranks, i, rank)
	{
		const char *node = json_get_string(rank, "node", "");

		if (!run_part_find(r, node) && parts_add(r, node, err) < 0)
			return -ENOMEM;
	}
	if (r->part_count == 0)
		return error_set(err, -EINVAL, "run %lld is %s without a node", (long long)r->id,
		                 run_state_name(r->state));
	return 0;
}

int run_place(struct run *r, char *const *nodes, const int *slots, double now, struct error *err)
{
	json_t *ranks = json_array();

	for (int64_t i = 0; i < r->nodes * r->per_node; i++)
		json_array_append_new(ranks, json_pack("{s:I,s:s,s:i,s:s}", "rank", (json_int_t)i, "node",
		                                       nodes[i / r->per_node], "slot", slots[i], "state",
		                                       "starting"));
	if ((int64_t)json_array_size(ranks) != r->nodes * r->per_node) {
		json_decref(ranks);
		return error_oom(err);
	}
	json_decref(r->ranks);
	r->ranks = ranks;
	run_clear_parts(r);
	if (run_recover(r, err) < 0)
		return -ENOMEM;
	r->state = RUN_STARTING;
	r->attempt++;
	r->started = now;
	r->ended = 0;
	r->failed = r->requeue = false;
	free(steal_pointer(r->reason));
	free(steal_pointer(r->cause));
	free(steal_pointer(r->device_error));
	r->cause_rank = -1;
	r->exit_status = -1;
	r->to_start = true;
	run_touch(r);
	return 0;
}

static int signal_number(const char *name)
{
	if (str_starts(name, "SIG"))
		name += 3;
	for (int i = 1; i < NSIG; i++) {
		const char *s = sigabbrev_np(i);

		if (s && strcmp(s, name) == 0)
			return i;
	}
	return 0;
}

/* The attempt cannot be what it should be any more: all of it comes down. */
static unsigned bring_down(struct run *r)
{
	r->state = RUN_STOPPING;
	run_touch(r);
	return RUN_STOP;
}

/* Of a rank that was never started, or whose node is gone, no exit comes: it is not to look as if it ran. */
static void close_ranks(struct run *r)
{
	json_t *rank;
	size_t i;

	json_array_foreach(r->ranks, i, rank)
	{
		bool begun = json_get_int(rank, "pid", 0) > 0;

		if (strcmp(json_get_string(rank, "state", ""), "exited") != 0)
			json_object_set_new(rank, "state", json_string(begun ? "lost" : "not-started"));
	}
}

static unsigned finish_if_all_ended(struct run *r, double now)
{
	for (size_t i = 0; i < r->part_count; i++)
		if (!r->parts[i].ended)
			return 0;
	r->ended = now;
	if (r->cancelled)
		r->state = RUN_CANCELLED;
	else if (r->failed)
		r->state = RUN_FAILED;
	else if (r->requeue)
		r->state = RUN_QUEUED;
	else {
		r->state = RUN_SUCCEEDED;
		r->exit_status = 0;
	}
	if (r->state == RUN_QUEUED) {
		r->ended = r->started = 0;
		json_array_clear(r->ranks);
	} else
		close_ranks(r);
	run_clear_parts(r);
	run_touch(r);
	return RUN_ENDED;
}

static unsigned after(struct run *r, bool stop, double now)
{
	unsigned flags = stop ? bring_down(r) : 0;

	flags |= finish_if_all_ended(r, now);
	return flags & RUN_ENDED ? RUN_ENDED : flags;
}

/* The first cause, in words: who, where, how, and what it last said. The node's words begin with the how. */
static void set_cause(struct run *r, int64_t rank, const char *node, int64_t status, const char *sig,
                      const char *words)
{
	bool said = r->cause && r->cause_rank == rank;

	if (said && sig)
		run_set_reason(r, "rank %lld on %s: killed by %s: %s", (long long)rank, node, sig, r->cause);
	else if (said)
		run_set_reason(r, "rank %lld on %s: exit status %lld: %s", (long long)rank, node,
		               (long long)status, r->cause);
	else if (words && *words)
		run_set_reason(r, "rank %lld on %s: %s", (long long)rank, node, words);
	else if (sig)
		run_set_reason(r, "rank %lld on %s: killed by %s", (long long)rank, node, sig);
	else
		run_set_reason(r, "rank %lld on %s: exit status %lld", (long long)rank, node,
		               (long long)status);
	r->exit_status = sig ? 128 + signal_number(sig) : (int)status;
	r->failed = true;
}

/* Takes over what the node says of its ranks; returns the one that failed first, or NULL. *changed is set
 * where it says anything new: heartbeats say the same again and again. */
static const json_t *merge_ranks(struct run *r, const char *node, const json_t *report, bool *changed)
{
	static const char *const keys[] = {"state", "pid", "exit_status", "signal"};
	const json_t *first = NULL;
	json_t *theirs, *ours;
	size_t i;

	json_array_foreach(json_object_get(report, "ranks"), i, theirs)
	{
		int64_t number = json_get_int(theirs, "rank", -1);

		ours = number < 0 ? NULL : json_array_get(r->ranks, number);
		if (!ours || !str_eq(json_get_string(ours, "node", NULL), node))
			continue;
		for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
			json_t *v = json_object_get(theirs, keys[k]);

			if (!v || json_is_null(v) || json_equal(v, json_object_get(ours, keys[k])))
				continue;
			json_object_set(ours, keys[k], v);
			*changed = true;
		}
		if (strcmp(json_get_string(theirs, "state", ""), "exited") != 0 ||
		    (json_get_int(theirs, "exit_status", 0) == 0 && !json_get_string(theirs, "signal", NULL)))
			continue;
		if (!first || json_get_number(theirs, "ended", 0) < json_get_number(first, "ended", 0))
			first = theirs;
	}
	return first;
}

/* A device that failed is the first cause, whatever was seen of it first. */
static void add_device_error(struct run *r)
{
	_cleanup_free_ char *rest = NULL;

	if (!r->failed || !r->device_error || (r->reason && str_starts(r->reason, r->device_error)))
		return;
	rest = r->reason ? strdup(r->reason) : NULL;
	run_set_reason(r, "%s%s%s", r->device_error, rest ? "; " : "", rest ? rest : "");
}

/* Returns whether it is news. */
static bool take_device_error(struct run *r, const json_t *report)
{
	const char *text = json_string_value(json_array_get(json_object_get(report, "device_errors"), 0));

	if (!text || r->device_error)
		return false;
	r->device_error = strdup(text);
	return true;
}

unsigned run_report(struct run *r, const json_t *report, double now)
{
	const char *node = json_get_string(report, "node", ""), *state = json_get_string(report, "state", "");
	const char *said = json_get_string(report, "reason", NULL);
	struct run_part *part = run_part_find(r, node);
	bool stop = false, all_running = true, changed = false;
	const json_t *failed;

	if (!part || part->ended || json_get_int(report, "attempt", -1) != r->attempt)
		return 0;
	part->acknowledged = true;
	changed = take_device_error(r, report);
	failed = merge_ranks(r, node, report, &changed);
	/* What dies after the stop was asked for, dies of it. */
	if (failed && r->state != RUN_STOPPING) {
		set_cause(r, json_get_int(failed, "rank", 0), node, json_get_int(failed, "exit_status", 0),
		          json_get_string(failed, "signal", NULL), json_get_string(failed, "error", NULL));
		stop = true;
	}
	if (strcmp(state, "running") == 0)
		part->running = true;
	part->ended = strcmp(state, "ended") == 0;
	if (said && part->ended && !r->failed && r->state != RUN_STOPPING) {
		run_set_reason(r, "node %s: %s", node, said);
		r->failed = true;
		stop = true;
	}
	add_device_error(r);
	for (size_t i = 0; i < r->part_count; i++)
		all_running = all_running && r->parts[i].running;
	if (all_running && r->state == RUN_STARTING) {
		r->state = RUN_RUNNING;
		changed = true;
	}
	if (changed)
		run_touch(r);
	return after(r, stop, now);
}

unsigned run_refused(struct run *r, struct run_part *part, bool busy, const char *message, double now)
{
	bool stop = r->state != RUN_STOPPING;

	part->ended = true;
	if (stop) {
		run_set_reason(r, "node %s: %s", part->node, message);
		r->requeue = busy;
		r->failed = !busy;
	}
	return after(r, stop, now);
}

unsigned run_part_lost(struct run *r, struct run_part *part, const char *message, double now)
{
	bool stop = r->state != RUN_STOPPING;

	if (part->ended)
		return 0;
	part->ended = true;
	if (stop) {
		run_set_reason(r, "%s", message);
		r->failed = true;
		add_device_error(r);
	}
	return after(r, stop, now);
}

unsigned run_cancel(struct run *r, double now)
{
	if (run_state_final(r->state) || r->cancelled)
		return 0;
	r->cancelled = true;
	if (r->state == RUN_QUEUED)
		free(steal_pointer(r->reason));
	return after(r, r->state != RUN_QUEUED, now);
}

void run_worker_error(struct run *r, int64_t rank, const char *message)
{
	if (r->cause)
		return;
	r->cause = strndup(message, CAUSE_MAX);
	r->cause_rank = rank;
}
