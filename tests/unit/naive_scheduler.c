/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler without what makes it fast: each run looks at all nodes by itself, and compares all of their
 * names with those that it names or avoids. What it decides, the scheduler has to decide, too.
 */
#include "naive_scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "cluster/schedule_reason.h"
#include "cluster/topology.h"

enum { SLOTS_MAX = 1024 }; /* of a node, where equal ones are looked for */

static bool host_allowed(const struct sched_run *r, const char *name)
{
	if (!r->hosts)
		return true;
	for (char *const *h = r->hosts; *h; h++)
		if (strcasecmp(*h, name) == 0)
			return true;
	return false;
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

static size_t free_slots(const struct sched_node *n)
{
	size_t k = 0;

	for (size_t i = 0; i < n->slots; i++)
		k += !n->taken[i];
	return k;
}

/* Has it enough slots when empty? */
static bool large(const struct sched_node *n, const struct need *need)
{
	if (n->kind != need->kind || need->per_node == 0)
		return false;
	return need->exact ? (int64_t)n->slots == need->per_node : (int64_t)n->slots >= need->per_node;
}

static bool usable(const struct sched_node *n, const struct sched_run *r, const struct need *need)
{
	return n->up && !n->drained && large(n, need) && (int64_t)(n->slots - n->broken) >= need->per_node &&
	       host_allowed(r, n->name);
}

/* The most slots of a kind that so many nodes have in common, if the unknown ones have it too. */
static int64_t common_slots(const struct sched_node *nodes, size_t count, const struct sched_run *r,
                            enum slot_kind kind, size_t unknown)
{
	size_t with[SLOTS_MAX + 1] = {0};

	for (size_t i = 0; i < count; i++)
		if (nodes[i].kind == kind && nodes[i].slots <= SLOTS_MAX && host_allowed(r, nodes[i].name))
			with[nodes[i].slots]++;
	for (int64_t n = SLOTS_MAX; n > 0; n--)
		if (with[n] > 0 && (int64_t)(with[n] + unknown) >= r->nodes)
			return n;
	return 0;
}

/* How many nodes of the kind have enough slots, and what that comes to for each. */
static size_t holders(const struct sched_node *nodes, size_t count, const struct sched_run *r,
                      enum slot_kind kind, size_t unknown, struct need *need)
{
	size_t n = 0;

	*need = (struct need){.kind = kind, .per_node = r->per_node, .exact = r->per_node == 0};
	if (need->exact)
		need->per_node = common_slots(nodes, count, r, kind, unknown);
	for (size_t i = 0; i < count; i++)
		n += large(&nodes[i], need) && host_allowed(r, nodes[i].name);
	return n;
}

/* Which kind, and how many a node. What is known decides; nodes that were never heard of do so only while
 * they are awaited, or where the run cannot do without them. */
static struct need settle(const struct sched_node *nodes, size_t count, const struct sched_run *r)
{
	size_t unknown, awaited = 0, of_kind[] = {[SLOT_ANY] = 0, [SLOT_CPU] = 0, [SLOT_GPU] = 0}, gpus, cpus;
	struct need gpu, cpu;
	bool more_gpus;

	for (size_t i = 0; i < count; i++) {
		if (!host_allowed(r, nodes[i].name))
			continue;
		of_kind[nodes[i].kind]++;
		awaited += nodes[i].kind == SLOT_ANY && nodes[i].awaited;
	}
	unknown = of_kind[SLOT_ANY];
	gpus = holders(nodes, count, r, SLOT_GPU, 0, &gpu);
	cpus = holders(nodes, count, r, SLOT_CPU, 0, &cpu);
	if (r->kind != SLOT_CPU && (int64_t)gpus >= r->nodes)
		return gpu;
	if (r->kind == SLOT_ANY && awaited > 0) {
		size_t more = holders(nodes, count, r, SLOT_GPU, awaited, &gpu) + awaited;

		gpu.unsettled = (int64_t)more >= r->nodes;
		if (gpu.unsettled)
			return gpu;
	}
	if (r->kind != SLOT_GPU && (int64_t)cpus >= r->nodes)
		return cpu;
	gpus = holders(nodes, count, r, SLOT_GPU, unknown, &gpu);
	cpus = holders(nodes, count, r, SLOT_CPU, unknown, &cpu);
	/* Where it is too large for all nodes, it is so for those that there are. */
	more_gpus = gpus != cpus ? gpus > cpus : of_kind[SLOT_GPU] > 0 && of_kind[SLOT_CPU] == 0;
	return r->kind == SLOT_GPU || (r->kind == SLOT_ANY && more_gpus) ? gpu : cpu;
}

/* kept: nodes that a run before this one waits for; NULL: none. */
static struct view look(const struct sched_node *nodes, size_t count, const bool *kept,
                        const struct sched_run *r)
{
	struct view v = {.need = settle(nodes, count, r), .unknown = unknown_host(nodes, count, r)};
	bool gpus = false, cpus = false;

	for (size_t i = 0; i < count; i++) {
		const struct sched_node *n = &nodes[i];

		if (!host_allowed(r, n->name))
			continue;
		v.allowed++;
		gpus = gpus || n->kind == SLOT_GPU;
		cpus = cpus || n->kind == SLOT_CPU;
		if (n->kind == v.need.kind || r->kind == SLOT_ANY)
			v.most = MAX(v.most, n->slots);
		v.of_kind += n->kind == v.need.kind || n->kind == SLOT_ANY;
		if (n->kind != SLOT_ANY && !large(n, &v.need))
			continue;
		v.large++;
		if (n->kind == SLOT_ANY && n->awaited)
			v.awaited = n;
		if (!usable(n, r, &v.need)) {
			v.out = n;
			continue;
		}
		v.usable++;
		if (kept && kept[i])
			v.kept = true;
		else if ((int64_t)free_slots(n) >= v.need.per_node)
			v.fitting++;
	}
	v.mixed = r->kind == SLOT_ANY && gpus && cpus;
	return v;
}

/* The slots that are kept for it. */
static int64_t held_slots(const struct sched_run *r)
{
	int64_t n = 0;

	for (size_t i = 0; i < r->held_count; i++)
		n += (int64_t)r->held[i].slot_count;
	return n;
}

/* It could not run even if no other run of its user did. */
static bool is_above_limit(const struct sched_run *r, const struct view *v)
{
	return r->user && r->nodes * v->need.per_node > r->user->limit;
}

/* Does it wait for other runs of its user? Then its reason says so. What is kept for it does not count: where
 * that is enough, it goes on. */
static bool waits_for_user(struct sched_run *r, const struct view *v)
{
	struct sched_user *u = r->user;

	if (!u || r->nodes * v->need.per_node <= held_slots(r))
		return false;
	if (u->waiting) {
		snprintf(r->reason, sizeof(r->reason),
		         "waits behind run %lld of the same user, whose runs have %lld of %lld slots "
		         "(user_slots of dtraind.conf)",
		         (long long)u->waiting, (long long)u->held, (long long)u->limit);
		return true;
	}
	if (r->nodes * v->need.per_node <= u->limit - u->held + held_slots(r))
		return false;
	if (is_above_limit(r, v)) {
		reason_above_limit(r, v);
		return true;
	}
	u->waiting = r->id;
	snprintf(r->reason, sizeof(r->reason),
	         "waits for other runs of user %.60s to end: they have %lld of %lld slots (user_slots of "
	         "dtraind.conf)",
	         u->name, (long long)u->held, (long long)u->limit);
	return true;
}

struct candidate {
	size_t node, free;
	int order; /* that had ranks of the run, that are kept for it, others */
};

static int order_of(const struct sched_run *r, const char *node)
{
	for (size_t i = 0; i < r->held_count; i++)
		if (strcasecmp(r->held[i].node, node) == 0)
			return r->held[i].worked ? 0 : 1;
	return 2;
}

static int by_fit(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->order != y->order)
		return x->order - y->order;
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
	for (int64_t i = 0; i < count; i++) {
		node->taken[out[i]] = true;
		if (node->kept_for)
			node->kept_for[out[i]] = 0;
	}
}

/* Those that are kept for it, then the fullest nodes that still fit, so that large ones stay whole for large
 * runs; ranks in file order. */
static int place(struct sched_node *nodes, size_t count, const bool *kept, struct sched_run *r,
                 const struct need *need, int64_t wanted, struct error *err)
{
	_cleanup_free_ struct candidate *c = calloc(count, sizeof(*c));
	size_t n = 0;

	r->per_node = need->per_node;
	r->placed_nodes = MIN(MAX(wanted - r->spares, r->working), wanted);
	r->placed_spares = wanted - r->placed_nodes;
	r->chosen = calloc(wanted, sizeof(*r->chosen));
	r->slots = calloc(wanted * r->per_node, sizeof(*r->slots));
	if (!c || !r->chosen || !r->slots) {
		free(steal_pointer(r->chosen));
		free(steal_pointer(r->slots));
		return error_oom(err);
	}
	for (size_t i = 0; i < count; i++) {
		size_t k = usable(&nodes[i], r, need) && !kept[i] ? free_slots(&nodes[i]) : 0;

		if (k > 0 && (int64_t)k >= r->per_node)
			c[n++] = (struct candidate){i, k, order_of(r, nodes[i].name)};
	}
	qsort(c, n, sizeof(*c), by_fit);
	qsort(c, r->placed_nodes, sizeof(*c), by_node);
	for (int64_t i = 0; i < wanted; i++) {
		r->chosen[i] = c[i].node;
		take_slots(&nodes[c[i].node], r->per_node, &r->slots[i * r->per_node]);
	}
	if (r->user)
		r->user->held += wanted * r->per_node - held_slots(r);
	r->placed = true;
	return 0;
}

/* How many of the nodes with room it takes. */
static int64_t size_of(const struct sched_run *r, const struct view *v)
{
	int64_t most = MAX(r->most, r->nodes);

	if (r->user)
		most = MIN(most, (r->user->limit - r->user->held + held_slots(r)) / v->need.per_node);
	return MAX(MIN((int64_t)v->fitting, most), r->nodes);
}

/* Places it on nodes that it does not avoid, where enough of them are free. */
static int place_elsewhere(struct sched_node *nodes, size_t count, const bool *kept, struct sched_run *r,
                           struct error *err)
{
	_cleanup_free_ bool *left_out = NULL;
	struct view v, all;

	if (!r->avoid || !r->avoid[0])
		return 0;
	left_out = calloc(count + 1, sizeof(*left_out));
	if (!left_out)
		return error_oom(err);
	for (size_t i = 0; i < count; i++) {
		left_out[i] = kept[i];
		for (char *const *name = r->avoid; *name; name++)
			left_out[i] = left_out[i] || strcasecmp(nodes[i].name, *name) == 0;
	}
	v = look(nodes, count, left_out, r);
	if (v.need.unsettled || (int64_t)v.fitting < r->nodes)
		return 0;
	/* It does not get smaller for that. */
	all = look(nodes, count, kept, r);
	if (size_of(r, &v) < size_of(r, &all))
		return 0;
	return place(nodes, count, left_out, r, &v.need, size_of(r, &v), err);
}

/* What is kept for the run is free to it while it is placed. */
static void offer_held(struct sched_node *nodes, size_t count, const struct sched_run *r, bool offered)
{
	for (size_t i = 0; r->held_count > 0 && i < count; i++)
		for (size_t k = 0; nodes[i].kept_for && k < nodes[i].slots; k++)
			if (nodes[i].kept_for[k] == r->id)
				nodes[i].taken[k] = !offered;
}

/* Another run that waits may have kept its nodes. */
static void unkeep_held(const struct sched_node *nodes, size_t count, const struct sched_run *r, bool *kept)
{
	for (size_t i = 0; r->held_count > 0 && i < count; i++)
		if (order_of(r, nodes[i].name) < 2)
			kept[i] = false;
}

/* It waits, and no run behind it gets a node that it may use. */
static void keep(const struct sched_node *nodes, size_t count, bool *kept, const struct sched_run *r,
                 const struct view *v)
{
	for (size_t i = 0; i < count; i++)
		kept[i] = kept[i] || usable(&nodes[i], r, &v->need);
}

/* kept: nodes that runs before this one wait for; others: those of them on which nothing is kept for it.
 * *ahead: the first of these runs. */
static int schedule_one(struct sched_node *nodes, size_t count, bool *kept, const bool *others,
                        struct sched_run *r, int64_t *ahead, struct error *err)
{
	struct view v = look(nodes, count, others, r);
	int code;

	if (v.need.unsettled || (int64_t)v.usable < r->nodes) {
		reason_impossible(r, &v);
		return 0;
	}
	if (waits_for_user(r, &v))
		return 0;
	code = place_elsewhere(nodes, count, others, r, err);
	if (code < 0 || r->placed)
		return code;
	if ((int64_t)v.fitting >= r->nodes)
		return place(nodes, count, others, r, &v.need, size_of(r, &v), err);
	if (v.kept)
		snprintf(r->reason, sizeof(r->reason), "waits behind run %lld", (long long)*ahead);
	else
		reason_busy(r, &v);
	keep(nodes, count, kept, r, &v);
	if (!v.kept)
		*ahead = r->id;
	return 0;
}

/* What a pass over the queue works with. */
struct pass {
	struct sched_node *nodes;
	size_t count;
	bool *kept, *others;
	int64_t ahead;
};

static int try_one(struct pass *p, struct sched_run *r, struct error *err)
{
	bool held = r->held_count > 0;
	int code;

	if (held) {
		memcpy(p->others, p->kept, p->count * sizeof(*p->kept));
		unkeep_held(p->nodes, p->count, r, p->others);
		offer_held(p->nodes, p->count, r, true);
	}
	code = schedule_one(p->nodes, p->count, p->kept, held ? p->others : p->kept, r, &p->ahead, err);
	if (code < 0)
		return code;
	if (!r->placed)
		offer_held(p->nodes, p->count, r, false);
	return 0;
}

static void begin_pass(struct pass *p)
{
	memset(p->kept, 0, p->count * sizeof(*p->kept));
	p->ahead = 0;
}

/* What is kept for runs that cannot begin is offered to the runs before them. Otherwise two runs could wait
 * for each other: the first one for a node that is kept for the second, the second one for another node,
 * which the first one, being first, keeps from it. */
static int schedule_before(struct pass *p, struct sched_run *queue, size_t count, struct error *err)
{
	char reason[sizeof(queue->reason)];
	size_t end = 0;

	for (size_t q = 0; q < count; q++) {
		if (queue[q].user)
			queue[q].user->waiting = 0;
		if (queue[q].placed || queue[q].held_count == 0)
			continue;
		offer_held(p->nodes, p->count, &queue[q], true);
		end = q + 1;
	}
	begin_pass(p);
	for (size_t q = 0; q < end; q++) {
		int code;

		if (queue[q].placed)
			continue;
		/* Its numbers would be those with what is kept. */
		memcpy(reason, queue[q].reason, sizeof(reason));
		code = try_one(p, &queue[q], err);
		if (code < 0)
			return code;
		if (!queue[q].placed)
			memcpy(queue[q].reason, reason, sizeof(reason));
	}
	return 0;
}

int naive_schedule_some(struct sched_node *nodes, size_t node_count, struct sched_run *queue, size_t count,
                        size_t most, size_t *done, struct error *err)
{
	_cleanup_free_ bool *kept = calloc(node_count + 1, sizeof(*kept)),
	                    *others = calloc(node_count + 1, sizeof(*others));
	struct pass pass = {nodes, node_count, kept, others, 0};
	size_t placed = 0;

	*done = 0;
	if (!kept || !others)
		return error_oom(err);
	for (size_t q = 0; q < count && placed < most; q++) {
		struct sched_run *r = &queue[q];
		int code;

		r->placed = false;
		r->reason[0] = '\0';
		code = try_one(&pass, r, err);
		if (code < 0)
			return code;
		placed += r->placed;
		*done = q + 1;
	}
	return *done == count ? schedule_before(&pass, queue, count, err) : 0;
}
