/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "cluster/topology.h"

/* What the nodes are to one run. */
struct view {
	size_t allowed; /* in the cluster, as far as the run restricts hosts */
	size_t large;   /* of these, with enough slots when empty */
	size_t usable;  /* of these, up and not drained */
	size_t fitting; /* of these, with enough free slots now and not kept for a run before */
	size_t most;    /* slots of the largest allowed node */
	bool kept;      /* a run before this one keeps a node that it needs */
	/* A large node that is down or drained, as a whole or too many of its slots. */
	const struct sched_node *out;
};

static bool host_allowed(const struct sched_run *r, const char *name)
{
	if (!r->hosts)
		return true;
	for (char *const *h = r->hosts; *h; h++)
		if (strcasecmp(*h, name) == 0)
			return true;
	return false;
}

static size_t free_slots(const struct sched_node *n)
{
	size_t k = 0;

	for (size_t i = 0; i < n->slots; i++)
		k += !n->taken[i];
	return k;
}

static bool usable(const struct sched_node *n, const struct sched_run *r)
{
	return n->up && !n->drained && (int64_t)(n->slots - n->broken) >= r->per_node &&
	       host_allowed(r, n->name);
}

/* kept: nodes that a run before this one waits for; NULL: none. */
static struct view look(const struct sched_node *nodes, size_t count, const bool *kept,
                        const struct sched_run *r)
{
	struct view v = {0};

	for (size_t i = 0; i < count; i++) {
		const struct sched_node *n = &nodes[i];

		if (!host_allowed(r, n->name))
			continue;
		v.allowed++;
		v.most = n->slots > v.most ? n->slots : v.most;
		if (n->slots > 0 && (int64_t)n->slots < r->per_node)
			continue;
		v.large++;
		if (!usable(n, r)) {
			v.out = n;
			continue;
		}
		v.usable++;
		if (kept && kept[i])
			v.kept = true;
		else if ((int64_t)free_slots(n) >= r->per_node)
			v.fitting++;
	}
	return v;
}

static const char *plural(int64_t n, const char *one, const char *many)
{
	return n == 1 ? one : many;
}

static const char *unknown_host(const struct sched_node *nodes, size_t count, const struct sched_run *r)
{
	for (char *const *h = r->hosts; h && *h; h++) {
		size_t i = 0;

		while (i < count && strcasecmp(nodes[i].name, *h) != 0)
			i++;
		if (i == count)
			return *h;
	}
	return NULL;
}

/* Why a run waits that could not run even on empty nodes. */
static void say_impossible(struct sched_run *r, const struct view *v, const struct sched_node *nodes,
                           size_t count)
{
	const char *strange = unknown_host(nodes, count, r);

	if ((int64_t)v->allowed < r->nodes && strange)
		snprintf(r->reason, sizeof(r->reason), "asks for host %s, which is not in the cluster",
		         strange);
	else if ((int64_t)v->allowed < r->nodes && r->hosts)
		snprintf(r->reason, sizeof(r->reason), "asks for %lld nodes, but names %zu %s",
		         (long long)r->nodes, v->allowed, plural(v->allowed, "host", "hosts"));
	else if ((int64_t)v->allowed < r->nodes)
		snprintf(r->reason, sizeof(r->reason), "asks for %lld nodes, the cluster has %zu",
		         (long long)r->nodes, v->allowed);
	else if ((int64_t)v->large < r->nodes && r->nodes == 1)
		snprintf(r->reason, sizeof(r->reason), "asks for %lld %s on a node, the largest has %zu",
		         (long long)r->per_node, plural(r->per_node, "slot", "slots"), v->most);
	else if ((int64_t)v->large < r->nodes)
		snprintf(r->reason, sizeof(r->reason),
		         "asks for %lld nodes with %lld %s each, the cluster has %zu", (long long)r->nodes,
		         (long long)r->per_node, plural(r->per_node, "slot", "slots"), v->large);
	else if (v->out && v->out->up && !v->out->drained)
		snprintf(r->reason, sizeof(r->reason), "waits for node %s, of whose %zu slots %zu %s drained",
		         v->out->name, v->out->slots, v->out->broken,
		         plural((int64_t)v->out->broken, "is", "are"));
	else
		snprintf(r->reason, sizeof(r->reason), "waits for node %s, which is %s",
		         v->out ? v->out->name : "?", v->out && v->out->up ? "drained" : "down");
}

bool schedule_possible(const struct sched_node *nodes, size_t count, struct sched_run *r)
{
	struct view v = look(nodes, count, NULL, r);

	r->reason[0] = '\0';
	if ((int64_t)v.allowed >= r->nodes && (int64_t)v.large >= r->nodes)
		return true;
	say_impossible(r, &v, nodes, count);
	return false;
}

struct candidate {
	size_t node, free;
};

static int by_fit(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->free != y->free)
		return x->free < y->free ? -1 : 1;
	return x->node < y->node ? -1 : 1;
}

static int by_node(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	return x->node < y->node ? -1 : x->node > y->node;
}

/* So many free slots of the node, in the order of local ranks. */
static void take_slots(struct sched_node *node, int64_t count, int *out)
{
	int64_t got = 0;

	if (node->links)
		topology_choose(node->links, node->slots, node->taken, (size_t)count, out);
	else
		for (size_t s = 0; got < count; s++)
			if (!node->taken[s])
				out[got++] = (int)s;
	for (int64_t i = 0; i < count; i++)
		node->taken[out[i]] = true;
}

/* The fullest nodes that still fit, so that large ones stay whole for large runs; ranks in file order. */
static int place(struct sched_node *nodes, size_t count, const bool *kept, struct sched_run *r,
                 struct error *err)
{
	_cleanup_free_ struct candidate *c = calloc(count, sizeof(*c));
	size_t n = 0;

	r->chosen = calloc(r->nodes, sizeof(*r->chosen));
	r->slots = calloc(r->nodes * r->per_node, sizeof(*r->slots));
	if (!c || !r->chosen || !r->slots) {
		free(steal_pointer(r->chosen));
		free(steal_pointer(r->slots));
		return error_oom(err);
	}
	for (size_t i = 0; i < count; i++) {
		size_t k = usable(&nodes[i], r) && !kept[i] ? free_slots(&nodes[i]) : 0;

		if (k > 0 && (int64_t)k >= r->per_node)
			c[n++] = (struct candidate){i, k};
	}
	qsort(c, n, sizeof(*c), by_fit);
	qsort(c, r->nodes, sizeof(*c), by_node);
	for (int64_t i = 0; i < r->nodes; i++) {
		r->chosen[i] = c[i].node;
		take_slots(&nodes[c[i].node], r->per_node, &r->slots[i * r->per_node]);
	}
	r->placed = true;
	return 0;
}

int schedule(struct sched_node *nodes, size_t node_count, struct sched_run *queue, size_t count,
             struct error *err)
{
	_cleanup_free_ bool *kept = calloc(node_count ? node_count : 1, sizeof(*kept));
	int64_t ahead = 0;

	if (!kept)
		return error_oom(err);
	for (size_t q = 0; q < count; q++) {
		struct sched_run *r = &queue[q];
		struct view v = look(nodes, node_count, kept, r);

		r->placed = false;
		r->reason[0] = '\0';
		if ((int64_t)v.usable < r->nodes) {
			say_impossible(r, &v, nodes, node_count);
			continue;
		}
		if ((int64_t)v.fitting >= r->nodes) {
			int code = place(nodes, node_count, kept, r, err);

			if (code < 0)
				return code;
			continue;
		}
		if (v.kept)
			snprintf(r->reason, sizeof(r->reason), "waits behind run %lld", (long long)ahead);
		else
			snprintf(r->reason, sizeof(r->reason), "waits for %lld %s with %lld free %s: %zu now",
			         (long long)r->nodes, plural(r->nodes, "node", "nodes"),
			         (long long)r->per_node, plural(r->per_node, "slot", "slots"), v.fitting);
		for (size_t i = 0; i < node_count; i++)
			kept[i] = kept[i] || usable(&nodes[i], r);
		if (!v.kept || ahead == 0)
			ahead = r->id;
	}
	return 0;
}
