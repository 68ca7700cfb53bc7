/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes and runs as the scheduler sees them. */
#include <stdlib.h>

#include "base/str.h"
#include "cluster/scheduler.h"
#include "controller/internal.h"

/* The slots of one rank. */
static void take_slots(struct sched_node *node, const struct run_rank *rank)
{
	for (size_t i = 0; i < MAX(rank->slot_count, (size_t)1); i++) {
		size_t slot = (size_t)(rank->slot_count ? rank->slots[i] : rank->slot);

		if (slot < node->slots)
			node->taken[slot] = true;
	}
}

/* Those that are free. */
static void keep_slots(struct sched_node *node, int64_t run, const struct spare_record *spare)
{
	for (size_t k = 0; k < spare->slot_count; k++) {
		size_t slot = (size_t)spare->slots[k];

		if (slot >= node->slots || node->taken[slot])
			continue;
		node->taken[slot] = true;
		node->kept_for[slot] = run;
	}
}

static void keep_spares(struct controller *c, struct sched_node *nodes, const struct run *r)
{
	size_t i;

	for (size_t k = 0; k < r->spare_count; k++)
		if (members_position(c->members, r->spares[k].node, &i))
			keep_slots(&nodes[i], r->id, &r->spares[k]);
}

struct sched_node *sched_nodes_capacity(struct controller *c)
{
	size_t n = members_count(c->members);
	struct sched_node *nodes = calloc(n + 1, sizeof(*nodes));

	for (size_t i = 0; nodes && i < n; i++) {
		const struct member *m = members_get(c->members, i);

		nodes[i] = (struct sched_node){
		    .name = m->name, .slots = m->slots, .kind = member_kind(m), .awaited = member_awaited(m)};
	}
	return nodes;
}

int sched_nodes_build(struct controller *c, struct sched_node **out, struct error *err)
{
	size_t n = members_count(c->members);
	struct sched_node *nodes = sched_nodes_capacity(c);
	double now = controller_now(c);

	*out = nodes;
	if (!nodes)
		return error_oom(err);
	for (size_t i = 0; i < n; i++) {
		struct member *m = members_get(c->members, i);

		nodes[i].up = m->up && !m->removed && !m->shutting_down && now >= m->backoff_until;
		nodes[i].unreachable = m->up && now < m->backoff_until ? m->unreachable : NULL;
		nodes[i].failing = m->up && now < m->backoff_until ? m->failing : NULL;
		nodes[i].drained = m->drained;
		nodes[i].taken = calloc(m->slots + 1, sizeof(bool));
		nodes[i].kept_for = calloc(m->slots + 1, sizeof(*nodes[i].kept_for));
		nodes[i].broken = member_drained_slots(m);
		nodes[i].links = member_links(m);
		if (!nodes[i].taken || !nodes[i].kept_for)
			return error_oom(err);
		for (size_t k = 0; k < m->slots; k++)
			nodes[i].taken[k] = m->devices[k].state != SLOT_FREE;
	}
	for (size_t q = 0; q < c->queue.placed_count; q++) {
		const struct run *r = c->queue.placed[q];

		for (size_t k = 0, i = n; r->part_count && k < r->rank_count; k++) {
			/* The ranks of a node follow each other. */
			if (i < n && str_eq_host(nodes[i].name, r->ranks[k].node))
				take_slots(&nodes[i], &r->ranks[k]);
			else if (members_position(c->members, r->ranks[k].node, &i))
				take_slots(&nodes[i], &r->ranks[k]);
			else
				i = n;
		}
	}
	for (size_t q = 0; q < c->queue.count; q++)
		keep_spares(c, nodes, c->queue.list[q]);
	return 0;
}

void sched_nodes_free(struct sched_node *nodes)
{
	for (struct sched_node *n = nodes; n && n->name; n++) {
		free(n->taken);
		free(n->kept_for);
	}
	free(nodes);
}

struct sched_run sched_run_of(const struct run *r, struct sched_user *user)
{
	/* It does not begin without its spares, but may go on without them. */
	int64_t first = r->attempt == 0 ? r->spares_asked : 0;

	return (struct sched_run){.id = r->id,
	                          .user = user,
	                          .nodes = r->nodes_asked.low + first,
	                          .most = r->nodes_asked.high + r->spares_asked,
	                          .spares = r->spares_asked,
	                          .working = r->nodes_asked.low,
	                          .held = r->spares,
	                          .held_count = r->spare_count,
	                          .per_node = r->all_slots ? 0 : r->per_node,
	                          .kind = r->kind,
	                          .hosts = r->hosts,
	                          .found = r->found,
	                          .avoid = r->retries.record.avoid};
}
