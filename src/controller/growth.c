/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs with a range of nodes (resources.nodes = "2..4") that have fewer than the most. Such a run is asked to
 * save, stops and goes on with more nodes when, for resources.grow_after without interruption,
 *
 *     its attempt has lasted: this is the least time between two changes of its size
 *     nodes for more have been free, beside those that waiting runs would take
 *
 * One run at a time: what the next one finds free is seen when that one has been placed.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"

static bool may_grow(const struct run *r)
{
	return (r->state == RUN_STARTING || r->state == RUN_RUNNING) && r->grow_after > 0 &&
	       r->nodes < r->nodes_asked.high;
}

/* Is there a free slot on a node that it does not have? */
static bool is_room_elsewhere(struct run *r, const struct sched_node *nodes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const struct sched_node *n = &nodes[i];

		for (size_t k = 0; n->up && !n->drained && k < n->slots; k++)
			if (!n->taken[k] && !run_part_find(r, n->name))
				return true;
	}
	return false;
}

/* As if it had stopped. */
static void give_back_slots(struct controller *c, const struct run *r, struct sched_node *nodes)
{
	for (size_t k = 0; k < r->rank_count; k++) {
		const struct run_rank *rank = &r->ranks[k];
		const struct member *m;
		size_t i;

		if (!members_position(c->members, rank->node, &i))
			continue;
		m = members_get(c->members, i);
		for (size_t s = 0; s < MAX(rank->slot_count, (size_t)1); s++) {
			size_t slot = (size_t)(rank->slot_count ? rank->slots[s] : rank->slot);

			if (slot < m->slots)
				nodes[i].taken[slot] = m->devices[slot].state >= SLOT_DRAINING;
		}
	}
}

/* How many nodes it would be placed on if it stopped now, after all runs that wait; 0: none. */
static int64_t size_after_stop(struct controller *c, const struct run *r, struct error *err)
{
	_cleanup_free_ struct sched_run *queue = calloc(c->queue.count + 1, sizeof(*queue));
	_cleanup_(sched_nodes_freep) struct sched_node *nodes = NULL;
	_cleanup_free_ struct sched_user *users = user_limits_list(c);
	int code = sched_nodes_build(c, &nodes, err);
	struct sched_user *own;
	int64_t size = 0;
	size_t n = 0;

	if (!queue || !users)
		return error_oom(err);
	if (code < 0)
		return code;
	give_back_slots(c, r, nodes);
	own = user_limits_find(c, users, r);
	if (own)
		own->held -= user_limits_slots(r) - run_spare_slots(r); /* schedule() gives back these */
	/* Also those that wait for the time of their next attempt. */
	for (size_t i = 0; i < c->queue.count; i++)
		if (c->queue.list[i]->state == RUN_QUEUED)
			queue[n++] =
			    sched_run_of(c->queue.list[i], user_limits_find(c, users, c->queue.list[i]));
	queue[n++] = sched_run_of(r, own);
	code = schedule(nodes, members_count(c->members), queue, n, err);
	if (code == 0 && queue[n - 1].placed && queue[n - 1].per_node >= r->per_node)
		size = queue[n - 1].placed_nodes;
	for (size_t i = 0; i < n; i++) {
		free(queue[i].chosen);
		free(queue[i].slots);
	}
	return code < 0 ? code : size;
}

/* It saves, stops and is queued again, which is no failure. */
static void grow(struct controller *c, struct run *r, int64_t size)
{
	_cleanup_free_ char *why =
	    str_printf("it can have %lld nodes instead of %lld", (long long)size, (long long)r->nodes);
	unsigned flags = why ? run_evict(r, why, controller_time(c)) : 0;

	if (flags == 0)
		return;
	log_info("run %lld: %s", (long long)r->id, why);
	controller_await_commit(c, r);
	apply_flags(c, r, flags);
}

static bool is_any_evicted(const struct controller *c)
{
	for (size_t i = 0; i < c->queue.count; i++)
		if (c->queue.list[i]->evicted)
			return true;
	return false;
}

void growth_check(struct controller *c)
{
	_cleanup_(sched_nodes_freep) struct sched_node *nodes = NULL;
	double now = controller_now(c), next = 0;
	struct error err = ERROR_INIT;
	int64_t size = 0;

	for (size_t i = 0; i < c->queue.count && size >= 0; i++) {
		struct run *r = c->queue.list[i];
		double due;

		if (!may_grow(r))
			continue;
		size = nodes ? 0 : sched_nodes_build(c, &nodes, &err);
		if (size == 0 && is_room_elsewhere(r, nodes, members_count(c->members)))
			size = size_after_stop(c, r, &err);
		if (size <= r->nodes) {
			r->room_since = 0;
			continue;
		}
		if (r->room_since <= 0)
			r->room_since = now;
		due = MAX(r->attempt_began, r->room_since) + r->grow_after;
		if (due > now)
			next = next > 0 ? MIN(next, due) : due;
		else if (!is_any_evicted(c))
			grow(c, r, size);
	}
	if (size < 0)
		log_err("cannot check the sizes of runs: %s", err.message);
	controller_set_timer(c, CONTROLLER_GROWTH, next > 0 ? next : -1);
}
