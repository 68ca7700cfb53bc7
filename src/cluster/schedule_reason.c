/* SPDX-License-Identifier: Apache-2.0 */
/* Why a run waits, in words. */
#include "cluster/schedule_reason.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"

static const char *plural(int64_t n, const char *one, const char *many)
{
	return n == 1 ? one : many;
}

void reason_unknown_host(struct sched_run *r, const char *unknown, const struct sched_node *nodes,
                         size_t count)
{
	size_t n;

	n = (size_t)snprintf(r->reason, sizeof(r->reason),
	                     "asks for host %.60s, which is not in the cluster; its nodes are", unknown);
	for (size_t i = 0; i < count; i++) {
		/* With room for what says that there are more. */
		if (n + strlen(nodes[i].name) + sizeof(" , …") > sizeof(r->reason)) {
			snprintf(r->reason + n, sizeof(r->reason) - n, " …");
			break;
		}
		n += (size_t)snprintf(r->reason + n, sizeof(r->reason) - n, " %s%s", nodes[i].name,
		                      i + 1 < count ? "," : "");
	}
}

static const char *kind_word(enum slot_kind kind)
{
	return kind == SLOT_GPU ? "GPU" : "CPU";
}

static const char *spares_word(const struct sched_run *r)
{
	return r->spares > 0 && r->nodes > r->working ? " (spares included)" : "";
}

/* "8 GPU slots": as many as it asks for on each node. */
static const char *slots_asked(const struct sched_run *r, const struct view *v, char *buf, size_t size)
{
	const char *noun = plural(v->need.per_node, "slot", "slots");

	if (v->mixed && (int64_t)v->large < r->nodes)
		snprintf(buf, size, "%lld %s of one kind", (long long)v->need.per_node, noun);
	else
		snprintf(buf, size, "%lld %s %s", (long long)v->need.per_node, kind_word(v->need.kind), noun);
	return buf;
}

/* More than the cluster has, whatever happens. */
static void say_too_much(struct sched_run *r, const struct view *v)
{
	char slots[64];

	if ((int64_t)v->allowed < r->nodes && v->unknown)
		snprintf(r->reason, sizeof(r->reason), "asks for host %s, which is not in the cluster",
		         v->unknown);
	else if ((int64_t)v->allowed < r->nodes && r->hosts)
		snprintf(r->reason, sizeof(r->reason), "asks for %lld nodes, but names %zu %s",
		         (long long)r->nodes, v->allowed, plural(v->allowed, "host", "hosts"));
	else if ((int64_t)v->allowed < r->nodes)
		snprintf(r->reason, sizeof(r->reason), "asks for %lld %s%s; the cluster has %zu %s",
		         (long long)r->nodes, plural(r->nodes, "node", "nodes"), spares_word(r), v->allowed,
		         plural((int64_t)v->allowed, "node", "nodes"));
	else if (v->of_kind == 0)
		snprintf(r->reason, sizeof(r->reason), "asks for %s slots; %s", kind_word(v->need.kind),
		         r->hosts ? "none of the hosts that it names has any" : "the cluster has none");
	else if (r->per_node == 0)
		snprintf(
		    r->reason, sizeof(r->reason),
		    "asks for all %s of %lld nodes; the cluster has no %lld nodes with equally many; give a "
		    "number for each, or name hosts",
		    v->mixed                   ? "slots of one kind"
		    : v->need.kind == SLOT_GPU ? "GPU slots"
		                               : "CPU slots",
		    (long long)r->nodes, (long long)r->nodes);
	else if (r->nodes == 1)
		snprintf(r->reason, sizeof(r->reason), "asks for %s on a node; the largest has %zu %s",
		         slots_asked(r, v, slots, sizeof(slots)), v->most,
		         plural((int64_t)v->most, "slot", "slots"));
	else
		snprintf(r->reason, sizeof(r->reason),
		         "asks for %lld nodes with %s each; the cluster has %zu %s with so many",
		         (long long)r->nodes, slots_asked(r, v, slots, sizeof(slots)), v->large,
		         plural((int64_t)v->large, "node", "nodes"));
}

/* The rest of a long one is in the list of nodes. */
static void say_unreachable(struct sched_run *r, const struct sched_node *node)
{
	snprintf(r->reason, sizeof(r->reason), "waits for node %.60s, which cannot be reached: %.90s",
	         node->name, node->unreachable);
	str_make_utf8(r->reason);
}

static void say_failing(struct sched_run *r, const struct sched_node *node)
{
	snprintf(r->reason, sizeof(r->reason), "waits for node %.60s, which could not start a run: %.90s",
	         node->name, node->failing);
	str_make_utf8(r->reason);
}

/* Why a run waits that could not run now even on empty nodes. */
void reason_impossible(struct sched_run *r, const struct view *v)
{
	if ((int64_t)v->allowed < r->nodes || (int64_t)v->large < r->nodes)
		say_too_much(r, v);
	else if (v->need.unsettled && v->awaited)
		snprintf(r->reason, sizeof(r->reason), "waits to hear from node %s, which may have GPUs",
		         v->awaited->name);
	else if (v->out && v->out->up && !v->out->drained)
		snprintf(r->reason, sizeof(r->reason), "waits for node %s, of whose %zu slots %zu %s drained",
		         v->out->name, v->out->slots, v->out->broken,
		         plural((int64_t)v->out->broken, "is", "are"));
	else if (v->out && v->out->awaited)
		snprintf(r->reason, sizeof(r->reason), "waits to hear from node %s", v->out->name);
	else if (v->out && !v->out->up && v->out->unreachable)
		say_unreachable(r, v->out);
	else if (v->out && !v->out->up && v->out->failing)
		say_failing(r, v->out);
	else
		snprintf(r->reason, sizeof(r->reason), "waits for node %s, which is %s",
		         v->out ? v->out->name : "?", v->out && v->out->up ? "drained" : "down");
}

void reason_busy(struct sched_run *r, const struct view *v)
{
	char slots[64];

	slots_asked(r, v, slots, sizeof(slots));
	if (v->need.exact)
		snprintf(r->reason, sizeof(r->reason), "waits for %lld %s%s with all %s free: %zu now",
		         (long long)r->nodes, plural(r->nodes, "node", "nodes"), spares_word(r), slots,
		         v->fitting);
	else
		snprintf(r->reason, sizeof(r->reason), "waits for %lld %s%s with %lld free %s %s: %zu now",
		         (long long)r->nodes, plural(r->nodes, "node", "nodes"), spares_word(r),
		         (long long)v->need.per_node, kind_word(v->need.kind),
		         plural(v->need.per_node, "slot", "slots"), v->fitting);
}

void reason_above_limit(struct sched_run *r, const struct view *v)
{
	snprintf(r->reason, sizeof(r->reason),
	         "asks for %lld slots; the runs of a user may have %lld at once (user_slots of dtraind.conf)",
	         (long long)(r->nodes * v->need.per_node), (long long)r->user->limit);
}
