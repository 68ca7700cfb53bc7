/* SPDX-License-Identifier: Apache-2.0 */
/* Which run goes where: first come, first served, all slots of a run at once or none. */
#include "cluster/scheduler.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cluster/schedule_look.h"
#include "cluster/topology.h"

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

int schedule_possible(const struct sched_node *nodes, size_t count, struct sched_run *r, struct error *err)
{
	_cleanup_(sched_names_clear) struct sched_names names = {.nodes = nodes, .count = count};
	_cleanup_(sched_hosts_clear) struct sched_hosts scratch = {0};
	struct choice choice;
	int code = sched_choose(&names, r, &scratch, &choice, err);
	struct view v;

	if (code < 0)
		return code;
	v = sched_look(&choice, NULL, r);
	r->reason[0] = '\0';
	/* Also where the others are enough: a typo would make the run wait for these alone. */
	if (v.unknown)
		reason_unknown_host(r, v.unknown, nodes, count);
	else if ((int64_t)v.large < r->nodes)
		reason_impossible(r, &v);
	else if (is_above_limit(r, &v))
		reason_above_limit(r, &v);
	else
		return 0;
	return error_set(err, -ENODEV, "%s", r->reason);
}

struct candidate {
	size_t node, free;
	int order; /* that had ranks of the run, that are kept for it, others */
};

/* What is kept for the run, by node; of a node that is there twice the first one counts. Between two attempts
 * that may be thousands. -ENOMEM. */
static int index_held(const struct sched_run *r, struct name_index *held)
{
	size_t first;

	for (size_t i = 0; i < r->held_count; i++)
		if (!name_index_find(held, r->held[i].node, &first) &&
		    name_index_add(held, r->held[i].node, i) < 0)
			return -ENOMEM;
	return 0;
}

static int order_of(const struct sched_run *r, const struct name_index *held, const char *node)
{
	size_t i;

	return !name_index_find(held, node, &i) ? 2 : r->held[i].worked ? 0 : 1;
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
static int place(struct sched_node *nodes, const struct choice *choice, const bool *kept, struct sched_run *r,
                 const struct need *need, int64_t wanted, struct error *err)
{
	_cleanup_free_ struct candidate *c = calloc(choice->count, sizeof(*c));
	_cleanup_(name_index_free) struct name_index held = {0};
	size_t n = 0;

	r->per_node = need->per_node;
	r->placed_nodes = MIN(MAX(wanted - r->spares, r->working), wanted);
	r->placed_spares = wanted - r->placed_nodes;
	r->chosen = calloc(wanted, sizeof(*r->chosen));
	r->slots = calloc(wanted * r->per_node, sizeof(*r->slots));
	if (!c || !r->chosen || !r->slots || index_held(r, &held) < 0) {
		free(steal_pointer(r->chosen));
		free(steal_pointer(r->slots));
		return error_oom(err);
	}
	for (size_t i = 0; i < choice->count; i++) {
		const struct sched_node *node = choice_node(choice, i);

		if (sched_fits(choice, i, kept, need))
			c[n++] = (struct candidate){choice_place(choice, i), sched_free_slots(node),
			                            order_of(r, &held, node->name)};
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

/* What the nodes are to runs that ask for the same: most of a long queue does. Valid until a run is placed,
 * or keeps nodes that none before it has kept. */
struct sight {
	enum slot_kind kind;
	int64_t per_node, nodes;
	uint64_t digest; /* of the nodes that they name, */
	size_t count;    /* and how many these are */
	bool seen;       /* the view is there */
	struct view view;
	bool keeps; /* every node that such a run may use is kept */
};

struct sights {
	struct sight list[64]; /* those beyond are looked up each time */
	size_t count;
};

/* What a pass over the queue works with. */
struct pass {
	struct sched_node *nodes;
	struct sched_names names;
	bool *kept;   /* nodes that runs before wait for */
	bool *others; /* of a run for which some nodes are kept: those of them on which nothing is kept for it
	               */
	int64_t ahead;              /* the first run that waits for nodes that are kept */
	struct sights *any, *named; /* of runs that may use any node, and of those that name many */
	struct sched_hosts scratch, avoided;
};

static void forget_sights(struct pass *p)
{
	p->any->count = p->named->count = 0;
}

/* A run that names fewer nodes looks at these alone, which takes no longer than to find what others saw. */
enum { FEW_NODES = 32 };

/* NULL: some nodes are kept for it, or it names few, or there is no room. */
static struct sight *find_sight(struct pass *p, const struct choice *c, const struct sched_run *r)
{
	struct sights *s = c->places ? p->named : p->any;
	struct sight *x = s->list;

	if ((c->places && c->count < FEW_NODES) || r->held_count > 0)
		return NULL;
	while (x < s->list + s->count &&
	       (x->kind != r->kind || x->per_node != r->per_node || x->nodes != r->nodes ||
	        x->digest != c->digest || x->count != c->count))
		x++;
	if (x == s->list + ARRAY_SIZE(s->list))
		return NULL;
	if (x == s->list + s->count) {
		*x = (struct sight){.kind = r->kind,
		                    .per_node = r->per_node,
		                    .nodes = r->nodes,
		                    .digest = c->digest,
		                    .count = c->count};
		s->count++;
	}
	return x;
}

static struct view look_once(struct sight *x, const struct choice *c, const bool *others,
                             const struct sched_run *r)
{
	if (!x)
		return sched_look(c, others, r);
	if (!x->seen)
		x->view = sched_look(c, others, r);
	x->seen = true;
	/* Those that name the same nodes may name different ones that are not there. */
	x->view.unknown = c->unknown;
	return x->view;
}

static bool is_choice(const struct choice *c, size_t place)
{
	return !c->places || sched_places_have(c->places, c->count, place);
}

/* Places it on nodes that it does not avoid, where enough of them are free. v: what the nodes are to it. */
static int place_elsewhere(struct pass *p, const struct choice *choice, const bool *kept, struct sched_run *r,
                           const struct view *v, struct error *err)
{
	struct view elsewhere = *v;
	_cleanup_free_ bool *left_out = NULL;

	if (!r->avoid || !r->avoid[0] || (int64_t)v->fitting < r->nodes)
		return 0;
	if (sched_hosts_find(&p->names, r->avoid, &p->avoided) < 0)
		return error_oom(err);
	for (size_t i = 0; i < p->avoided.count; i++)
		elsewhere.fitting -=
		    is_choice(choice, p->avoided.places[i]) &&
		    sched_fits(&(struct choice){.nodes = p->nodes}, p->avoided.places[i], kept, &v->need);
	/* It does not get smaller for that. */
	if ((int64_t)elsewhere.fitting < r->nodes || size_of(r, &elsewhere) < size_of(r, v))
		return 0;
	left_out = calloc(p->names.count + 1, sizeof(*left_out));
	if (!left_out)
		return error_oom(err);
	memcpy(left_out, kept, p->names.count * sizeof(*kept));
	for (size_t i = 0; i < p->avoided.count; i++)
		left_out[p->avoided.places[i]] = true;
	return place(p->nodes, choice, left_out, r, &v->need, size_of(r, &elsewhere), err);
}

int schedule_spare(struct sched_node *nodes, size_t node_count, const bool *has, struct sched_run *r,
                   struct error *err)
{
	_cleanup_(sched_names_clear) struct sched_names names = {.nodes = nodes, .count = node_count};
	_cleanup_(sched_hosts_clear) struct sched_hosts scratch = {0};
	struct choice choice;
	int code = sched_choose(&names, r, &scratch, &choice, err);
	struct view v;

	r->placed = false;
	if (code < 0)
		return code;
	v = sched_look(&choice, has, r);
	if (v.need.unsettled || v.fitting < 1 ||
	    (r->user && v.need.per_node > r->user->limit - r->user->held))
		return 0;
	return place(nodes, &choice, has, r, &v.need, 1, err);
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
static int unkeep_held(const struct sched_node *nodes, size_t count, const struct sched_run *r, bool *kept)
{
	_cleanup_(name_index_free) struct name_index held = {0};

	if (index_held(r, &held) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		if (order_of(r, &held, nodes[i].name) < 2)
			kept[i] = false;
	return 0;
}

/* It waits, and no run behind it gets a node that it may use. */
static void keep(struct pass *p, const struct choice *choice, const struct view *v, struct sight *x)
{
	bool more = false;

	if (x && x->keeps)
		return;
	for (size_t i = 0; i < choice->count; i++)
		if (!p->kept[choice_place(choice, i)] && sched_usable(choice_node(choice, i), &v->need))
			more = p->kept[choice_place(choice, i)] = true;
	if (more)
		forget_sights(p);
	else if (x)
		x->keeps = true;
}

/* others: of the nodes that are kept those on which nothing is kept for it. */
static int schedule_one(struct pass *p, const bool *others, struct sched_run *r, struct error *err)
{
	struct choice choice;
	struct sight *sight;
	struct view v;
	int code = sched_choose(&p->names, r, &p->scratch, &choice, err);

	if (code < 0)
		return code;
	sight = find_sight(p, &choice, r);
	v = look_once(sight, &choice, others, r);
	if (v.need.unsettled || (int64_t)v.usable < r->nodes) {
		reason_impossible(r, &v);
		return 0;
	}
	if (waits_for_user(r, &v))
		return 0;
	code = place_elsewhere(p, &choice, others, r, &v, err);
	if (code < 0 || r->placed)
		return code;
	if ((int64_t)v.fitting >= r->nodes)
		return place(p->nodes, &choice, others, r, &v.need, size_of(r, &v), err);
	if (v.kept)
		snprintf(r->reason, sizeof(r->reason), "waits behind run %lld", (long long)p->ahead);
	else
		reason_busy(r, &v);
	keep(p, &choice, &v, sight);
	if (!v.kept)
		p->ahead = r->id;
	return 0;
}

static int try_one(struct pass *p, struct sched_run *r, struct error *err)
{
	bool held = r->held_count > 0;
	size_t count = p->names.count;
	int code;

	if (held) {
		memcpy(p->others, p->kept, count * sizeof(*p->kept));
		if (unkeep_held(p->nodes, count, r, p->others) < 0)
			return error_oom(err);
		offer_held(p->nodes, count, r, true);
		forget_sights(p);
	}
	code = schedule_one(p, held ? p->others : p->kept, r, err);
	if (code < 0)
		return code;
	if (r->placed)
		forget_sights(p);
	else
		offer_held(p->nodes, count, r, false);
	return 0;
}

static void begin_pass(struct pass *p)
{
	memset(p->kept, 0, p->names.count * sizeof(*p->kept));
	forget_sights(p);
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
		offer_held(p->nodes, p->names.count, &queue[q], true);
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

static int run_pass(struct pass *p, struct sched_run *queue, size_t count, size_t most, size_t *done,
                    struct error *err)
{
	size_t placed = 0;

	for (size_t q = 0; q < count && placed < most; q++) {
		struct sched_run *r = &queue[q];
		int code;

		r->placed = false;
		r->reason[0] = '\0';
		code = try_one(p, r, err);
		if (code < 0)
			return code;
		placed += r->placed;
		*done = q + 1;
	}
	return *done == count ? schedule_before(p, queue, count, err) : 0;
}

int schedule_some(struct sched_node *nodes, size_t node_count, struct sched_run *queue, size_t count,
                  size_t most, size_t *done, struct error *err)
{
	_cleanup_free_ bool *kept = calloc(node_count + 1, sizeof(*kept)),
	                    *others = calloc(node_count + 1, sizeof(*others));
	_cleanup_free_ struct sights *sights = calloc(2, sizeof(*sights));
	struct pass pass = {.nodes = nodes,
	                    .names = {.nodes = nodes, .count = node_count},
	                    .kept = kept,
	                    .others = others,
	                    .any = sights,
	                    .named = sights + 1};
	int code;

	*done = 0;
	if (!kept || !others || !sights)
		return error_oom(err);
	code = run_pass(&pass, queue, count, most, done, err);
	sched_names_clear(&pass.names);
	sched_hosts_clear(&pass.scratch);
	sched_hosts_clear(&pass.avoided);
	return code;
}

int schedule(struct sched_node *nodes, size_t node_count, struct sched_run *queue, size_t count,
             struct error *err)
{
	size_t done;

	return schedule_some(nodes, node_count, queue, count, SIZE_MAX, &done, err);
}
