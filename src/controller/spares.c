/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that are kept for runs (resources.spares). They are chosen with the nodes of an attempt, in the same
 * pass. One that cannot be used any more is given back, and replaced when a node is free that no run waits
 * for.
 */
#include <stdlib.h>

#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"

static bool is_usable(const struct controller *c, const struct spare_record *s)
{
	const struct member *m = members_find(c->members, s->node);

	if (!m || !m->up || m->removed || m->drained || m->shutting_down)
		return false;
	for (size_t i = 0; i < s->slot_count; i++)
		if (s->slots[i] >= (int64_t)m->slots || m->devices[s->slots[i]].state >= SLOT_DRAINING)
			return false;
	return true;
}

bool spares_check(struct controller *c)
{
	bool lacking = false;

	for (size_t i = 0; i < c->queue.count; i++) {
		struct run *r = c->queue.list[i];

		for (size_t k = r->spare_count; k-- > 0;) {
			if (is_usable(c, &r->spares[k]))
				continue;
			log_info("run %lld: node %s is not kept for it any more", (long long)r->id,
			         r->spares[k].node);
			run_drop_spare(r, k);
			run_touch(r);
		}
		lacking = lacking || run_lacks_spares(r);
	}
	return lacking;
}

/* Has the run, which was placed, got a slot of these? */
static bool has_got(const struct sched_run *placed, const struct sched_node *nodes,
                    const struct spare_record *kept)
{
	int64_t n = placed->placed_nodes + placed->placed_spares;

	for (int64_t i = 0; i < n; i++)
		for (int64_t k = 0;
		     str_eq_host(nodes[placed->chosen[i]].name, kept->node) && k < placed->per_node; k++)
			for (size_t l = 0; l < kept->slot_count; l++)
				if (kept->slots[l] == placed->slots[i * placed->per_node + k])
					return true;
	return false;
}

void spares_yield(struct controller *c, const struct sched_run *placed, const struct sched_node *nodes)
{
	for (size_t i = 0; i < c->queue.count; i++) {
		struct run *r = c->queue.list[i];

		for (size_t k = r->spare_count; r->id != placed->id && k-- > 0;) {
			if (!has_got(placed, nodes, &r->spares[k]))
				continue;
			log_info(
			    "run %lld: node %s is not kept for it any more: run %lld, which is before it in "
			    "the queue, begins there",
			    (long long)r->id, r->spares[k].node, (long long)placed->id);
			run_drop_spare(r, k);
			run_touch(r);
			/* Others may have waited behind the run that begins. */
			c->reschedule = true;
			controller_touch(c);
		}
	}
}

static void add_one(struct controller *c, struct run *r, struct sched_node *nodes, struct sched_user *user)
{
	size_t count = members_count(c->members);
	_cleanup_free_ bool *has = calloc(count + 1, sizeof(*has));
	struct sched_run s = sched_run_of(r, user);
	struct error err = ERROR_INIT;

	s.nodes = s.most = 1;
	s.spares = s.working = 0;
	s.per_node = r->per_node;
	s.held_count = 0;
	for (size_t i = 0; has && i < count; i++) {
		has[i] = run_part_find(r, nodes[i].name);
		for (size_t k = 0; k < r->spare_count; k++)
			has[i] = has[i] || str_eq_host(r->spares[k].node, nodes[i].name);
	}
	if (!has || schedule_spare(nodes, count, has, &s, &err) < 0)
		log_err("cannot look for spare nodes: out of memory");
	if (s.placed && run_add_spare(r, nodes[s.chosen[0]].name, s.slots)) {
		log_info("run %lld: node %s is kept for it", (long long)r->id, nodes[s.chosen[0]].name);
		run_touch(r);
	}
	free(s.chosen);
	free(s.slots);
}

void spares_replace(struct controller *c, struct sched_node *nodes, struct sched_user *users)
{
	for (size_t i = 0; i < c->queue.count; i++)
		if (c->queue.list[i]->state == RUN_QUEUED)
			return;
	for (size_t i = 0; i < c->queue.count; i++) {
		struct run *r = c->queue.list[i];
		size_t before = r->spare_count + 1;

		while (run_lacks_spares(r) && r->spare_count != before) {
			before = r->spare_count;
			add_one(c, r, nodes, user_limits_find(c, users, r));
		}
	}
}

static void note(struct member *m, int64_t run, const struct spare_record *s)
{
	int64_t *list = reallocarray(m->kept_runs, m->kept_run_count + 1, sizeof(*list));

	for (size_t i = 0; i < s->slot_count; i++)
		if (s->slots[i] < (int64_t)m->slots && m->devices[s->slots[i]].state == SLOT_FREE)
			m->devices[s->slots[i]].reserved_for = run;
	if (!list) /* then it is not shown */
		return;
	m->kept_runs = list;
	list[m->kept_run_count++] = run;
}

void spares_note(const struct controller *c)
{
	for (size_t i = 0; i < members_count(c->members); i++) {
		struct member *m = members_get(c->members, i);

		m->kept_run_count = 0;
		for (size_t k = 0; k < m->slots; k++)
			m->devices[k].reserved_for = 0;
	}
	for (size_t i = 0; i < c->queue.count; i++) {
		const struct run *r = c->queue.list[i];

		for (size_t k = 0; k < r->spare_count; k++) {
			struct member *m = members_find(c->members, r->spares[k].node);

			if (m)
				note(m, r->id, &r->spares[k]);
		}
	}
}
