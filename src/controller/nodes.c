/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of the hosts file: which are there, which are down, and what that does to runs. */
#include "controller/nodes.h"

#include <errno.h>

#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"

bool nodes_need(struct controller *c, const char *name)
{
	return queue_next_on(&c->queue, name, 0) != NULL;
}

static bool keep_member(void *context, const char *name)
{
	return nodes_need(context, name);
}

/* A node that is gone takes its parts of the runs with it; the rest of each run comes down. */
static void on_member_down(void *context, struct member *m)
{
	struct controller *c = context;
	struct run *r = NULL;
	char message[400];

	log_warn("node %s is down: %s", m->name, m->error ? m->error : "removed");
	if (m->shutting_down)
		snprintf(message, sizeof(message), "node %s was shut down", m->name);
	else
		snprintf(message, sizeof(message), "node %s is down: %s", m->name,
		         m->error ? m->error : "it was removed");
	while ((r = queue_next_on(&c->queue, m->name, r ? r->id : 0))) {
		struct run_part *part = run_part_find(r, m->name);

		if (!part || part->ended)
			continue;
		if (!r->to_start) /* else no node has heard of it */
			lost_add(c, r, part, !part->acknowledged);
		apply_flags(c, r, run_part_lost(r, part, message, m->last_seen, controller_time(c)));
	}
	c->reschedule = true;
	controller_touch(c);
}

static void lose_removed(struct controller *c)
{
	c->hosts_changed = false;
	for (size_t i = 0; i < members_count(c->members); i++) {
		struct member *m = members_get(c->members, i);

		if (!m->removed)
			continue;
		member_set_down(m, "removed from the hosts file");
		on_member_down(c, m);
	}
}

void nodes_expire(struct controller *c)
{
	double now = controller_now(c);
	double next;

	if (c->hosts_changed)
		lose_removed(c);
	next = members_expire(c->members, c->options.name, now, c->options.node_timeout, on_member_down, c);
	/* Where no node is up, the next heartbeat sets the timer again. */
	controller_set_timer(c, CONTROLLER_EXPIRY, next > 0 ? next + 0.001 : -1);
}

void controller_settle(struct controller *c)
{
	if (c->settled)
		return;
	while (c->not_awaited < members_count(c->members) &&
	       !member_awaited(members_get(c->members, c->not_awaited)))
		c->not_awaited++;
	if (c->not_awaited < members_count(c->members))
		return;
	c->settled = c->reschedule = true;
	controller_touch(c);
	submissions_number(c);
}

static const char *spelling_of(void *context, const char *name)
{
	struct controller *c = context;
	const struct member *m = members_find(c->members, name);

	return m ? m->name : NULL;
}

/* The nodes on which a run has, or may have, something: also those that an earlier controller had in its
 * hosts file, and this one has not. Without them no part there would ever be lost, nor end. */
static int take_up_runs(struct controller *c, int default_port, struct error *err)
{
	int r = 0;

	for (size_t i = 0; i < c->queue.count; i++)
		run_respell(c->queue.list[i], spelling_of, c);
	for (size_t i = 0; i < c->queue.placed_count; i++) {
		const struct run *run = c->queue.placed[i];

		for (size_t k = 0; k < run->part_count && r == 0; k++)
			if (!run->parts[k].ended)
				r = members_add_removed(c->members, run->parts[k].node, default_port, err);
		for (size_t k = 0; k < run->lost_count && r == 0; k++)
			r = members_add_removed(c->members, run->lost[k].record.node, default_port, err);
	}
	return r;
}

int controller_set_hosts(struct controller *c, const struct hosts *hosts, int default_port,
                         double node_timeout, struct error *err)
{
	int r = members_set_hosts(c->members, hosts, default_port, controller_now(c), keep_member, c, err);

	c->not_awaited = 0;
	if (r == 0)
		r = take_up_runs(c, default_port, err);
	if (r < 0)
		return r;
	c->options.node_timeout = node_timeout;
	for (size_t i = 0; i < members_count(c->members); i++) {
		struct member *m = members_get(c->members, i);
		_cleanup_free_ char *reason = NULL;
		bool drained;

		drained = store_drained(c->store, m->name, &reason);
		/* Of a node that was drained before, the reason is known, and memory for a copy may be
		 * missing. */
		if (reason || drained != m->drained)
			member_set_drained(m, drained, steal_pointer(reason));
	}
	/* What follows for runs calls nodes, which is not possible before controller_create has returned. */
	c->hosts_changed = true;
	c->reschedule = true;
	controller_touch(c);
	controller_set_timer(c, CONTROLLER_EXPIRY, 0);
	return 0;
}

size_t controller_node_count(const struct controller *c)
{
	return members_count(c->members);
}

const struct member *controller_node(const struct controller *c, size_t i)
{
	return members_get(c->members, i);
}

const struct member *controller_find_node(const struct controller *c, const char *name)
{
	return members_find(c->members, name);
}

void controller_set_silent(struct controller *c, const char *name, double since)
{
	struct member *m = members_find(c->members, name);

	if (m)
		member_set_silent(m, since);
	controller_set_timer(c, CONTROLLER_EXPIRY, 0);
}

json_t *controller_nodes_to_json(const struct controller *c)
{
	spares_note(c);
	return members_to_json(c->members, c->options.name);
}

void controller_note_spares(const struct controller *c)
{
	spares_note(c);
}

json_t *controller_devices_to_json(const struct controller *c)
{
	spares_note(c);
	return members_devices(c->members);
}

void controller_reschedule(struct controller *c)
{
	c->reschedule = true;
	controller_touch(c);
}

int controller_set_drained(struct controller *c, const char *name, bool drained, const char *reason)
{
	struct member *m = members_find(c->members, name);
	_cleanup_free_ char *copy = NULL;
	struct error err = ERROR_INIT;
	int r;

	if (!m)
		return -ENOENT;
	r = str_replace(&copy, drained && reason && *reason ? reason : NULL);
	if (r == 0)
		r = store_set_drained(c->store, m->name, drained, copy, &err);
	if (r < 0)
		return r;
	member_set_drained(m, drained, steal_pointer(copy));
	c->commit = true;
	controller_reschedule(c);
	return 0;
}

size_t controller_evict_runs(struct controller *c, const char *name)
{
	const struct member *m = members_find(c->members, name);
	_cleanup_free_ char *why = m ? str_printf("node %s was drained", m->name) : NULL;
	struct run *r = NULL;
	size_t count = 0;

	while (why && (r = queue_next_on(&c->queue, m->name, r ? r->id : 0))) {
		const struct run_part *part = run_part_find(r, m->name);
		unsigned flags;

		/* A run that may be started again after a failure of either kind may so for this. */
		if (!part || part->ended ||
		    (r->retries.max_node_failures == 0 && r->retries.max_restarts == 0))
			continue;
		flags = run_evict(r, why, controller_time(c));
		if (flags == 0)
			continue;
		controller_await_commit(c, r);
		apply_flags(c, r, flags);
		count++;
	}
	return count;
}

int controller_set_device_drained(struct controller *c, const char *name, int64_t slot, bool drained,
                                  const char *reason, peer_done_fn done, void *context)
{
	const struct member *m = members_find(c->members, name);
	struct peer peer;

	if (!m)
		return -ENOENT;
	peer = peer_of(m);
	c->options.peers.set_device(c->options.peers.context, &peer, slot, drained, reason, done, context);
	return 0;
}

void controller_set_devices(struct controller *c, const char *name, struct device_list *devices)
{
	struct member *m = members_find(c->members, name);

	if (m) {
		/* Foreign work frees its slots, too, and no event of a run says so. */
		if (member_slots_differ(m, devices->devices, devices->count))
			controller_reschedule(c);
		member_set_devices(m, devices->devices, devices->count);
		*devices = (struct device_list){0};
	}
	device_list_release(devices);
}
