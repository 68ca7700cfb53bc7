/* SPDX-License-Identifier: Apache-2.0 */
/* One scheduling pass: the queue and the nodes as the scheduler sees them, and what it has decided. */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "cluster/scheduler.h"
#include "controller/internal.h"

/* A pass that places more is divided: the event loop takes what has come before it goes on. */
enum { PLACED_AT_ONCE = 64 };

static void take_result(struct controller *c, struct run *r, struct sched_run *s,
                        const struct sched_node *nodes)
{
	struct error err = ERROR_INIT;
	_cleanup_free_ char **names = NULL;

	if (!s->placed) {
		/* Waiters are notified of it, but it is not worth a write: it is worked out anew after a
		 * restart. */
		if (!str_eq(r->reason, s->reason)) {
			run_set_reason(r, "%s", s->reason);
			r->version++;
			r->changed = true;
		}
		return;
	}
	r->per_node = s->per_node;
	r->nodes = s->placed_nodes;
	run_clear_spares(r);
	spares_yield(c, s, nodes);
	for (int64_t i = s->placed_nodes; i < s->placed_nodes + s->placed_spares; i++)
		if (!run_add_spare(r, nodes[s->chosen[i]].name, s->slots + i * s->per_node))
			log_err("run %lld: out of memory: it has a spare node less", (long long)r->id);
	names = calloc(r->nodes, sizeof(*names));
	for (int64_t i = 0; names && i < r->nodes; i++)
		names[i] = (char *)nodes[s->chosen[i]].name;
	if (!names || run_place(r, names, s->slots, controller_time(c), &err) < 0) {
		log_err("run %lld: out of memory: it is not placed", (long long)r->id);
		return;
	}
	queue_note_placed(&c->queue, r);
	for (size_t i = 0; i < r->part_count; i++) {
		const struct member *m = members_find(c->members, r->parts[i].node);

		r->parts[i].lease = m && m->leases ? c->options.lease : 0;
		r->parts[i].boot = m && m->boot[0] ? strdup(m->boot) : NULL;
	}
	attempt_begin(c, r);
	controller_await_commit(c, r);
}

/* A node that is not in the hosts file takes no new run, however long it still has a part of one. */
static size_t drop_removed(struct controller *c, struct sched_node *nodes)
{
	size_t n = 0;

	for (size_t i = 0; i < members_count(c->members); i++)
		if (!members_get(c->members, i)->removed)
			nodes[n++] = nodes[i];
	return n;
}

int schedule_pass_check(struct controller *c, const struct run *r, struct error *err)
{
	_cleanup_free_ struct sched_node *nodes = sched_nodes_capacity(c);
	struct sched_user user;
	struct sched_run asked = sched_run_of(r, user_limits_alone(c, r, &user) ? &user : NULL);
	int code;

	if (!nodes)
		return error_oom(err);
	code = schedule_possible(nodes, drop_removed(c, nodes), &asked, err);
	return code == -ENODEV ? error_set(err, code, "the run %s", asked.reason) : code;
}

/* A run that waits for a lost part says so, once the time before its next attempt has passed. */
static void set_waiting(struct controller *c, struct run *r)
{
	const struct lost_record *lost = &r->lost[0].record;
	const struct member *m = members_find(c->members, lost->node);
	bool listed = m && !m->removed;
	_cleanup_free_ char *old = NULL;

	if (r->retries.at > controller_now(c))
		return;
	old = r->reason ? strdup(r->reason) : NULL;
	if (m && m->up)
		run_set_reason(r, "waits until node %s has stopped attempt %lld%s%s", lost->node,
		               (long long)lost->attempt,
		               m->unreachable ? "; the node reports, but cannot be reached: " : "",
		               m->unreachable ? m->unreachable : "");
	else
		run_set_reason(r, "waits for the end of attempt %lld on node %s, which %s: %s",
		               (long long)lost->attempt, lost->node,
		               listed ? "cannot be reached" : "is not in the hosts file",
		               lost->lease > 0 ? "its lease has to run out"
		               : listed        ? "it has to come back, or to be fenced (dtrain fence)"
		                               : "an administrator has to fence it (dtrain fence)");
	if (str_eq(old, r->reason))
		return;
	r->version++;
	r->changed = true;
}

/* Runs whose next attempt is to begin later. *next: when the first of them may, monotonic; 0: there is
 * none. */
static bool is_held(struct controller *c, struct run *r, double *next)
{
	double at = r->retries.at;

	if (lost_hold(c, r, next)) {
		set_waiting(c, r);
		if (at > controller_now(c))
			*next = *next > 0 ? MIN(*next, at) : at;
		return true;
	}
	if (at <= controller_now(c))
		return false;
	*next = *next > 0 ? MIN(*next, at) : at;
	return true;
}

void schedule_pass(struct controller *c)
{
	_cleanup_free_ struct sched_run *queue = calloc(c->queue.count + 1, sizeof(*queue));
	_cleanup_free_ struct sched_user *users = user_limits_list(c);
	_cleanup_(sched_nodes_freep) struct sched_node *nodes = NULL;
	struct error err = ERROR_INIT;
	double next = 0;
	bool lacking = spares_check(c);
	size_t n = 0, done = 0;

	c->reschedule = false;
	queue_drop_unplaced(&c->queue);
	for (size_t i = 0; queue && users && i < c->queue.count; i++) {
		struct run *r = c->queue.list[i];

		if (r->state == RUN_QUEUED && !is_held(c, r, &next))
			queue[n++] = sched_run_of(r, user_limits_find(c, users, r));
	}
	controller_set_timer(c, CONTROLLER_RETRY, next > 0 ? next : -1);
	if (n == 0 && !lacking && queue && users)
		return;
	if (!queue || !users || sched_nodes_build(c, &nodes, &err) < 0 ||
	    schedule_some(nodes, members_count(c->members), queue, n, PLACED_AT_ONCE, &done, &err) < 0)
		log_err("cannot schedule: out of memory");
	else if (done < n) {
		c->reschedule = true;
		controller_touch(c);
	}
	for (size_t i = 0; queue && i < done; i++) {
		take_result(c, queue_find(&c->queue, queue[i].id), &queue[i], nodes);
		free(queue[i].chosen);
		free(queue[i].slots);
	}
	if (nodes && users)
		spares_replace(c, nodes, users);
	limits_check(c);
}
