/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes have and know that the controller's store does not: the store is a new one, or was restored from
 * an older copy. Foreign work, attempts that no controller with this store has started, is shown and left
 * alone; an administrator's command alone ends it. The epoch and the numbers of runs are lifted above what
 * any node knows. Until all nodes have reported once, or are down, no run gets a number and none is placed.
 */
#include "controller/foreign.h"

#include <errno.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"
#include "controller/runs.h"

/* Numbers that were given after the last heartbeat of any node: left out where numbers are lifted. */
enum { NUMBERS_MARGIN = 100 };

bool foreign_is(struct controller *c, const json_t *report)
{
	const char *cluster = json_get_string(report, "cluster", "");
	int64_t id = json_get_int(report, "run", -1), epoch = json_get_int(report, "epoch", 0);
	_cleanup_(run_freep) struct run *owned = NULL;
	const struct run *r;

	/* What a service of an older version has started names no cluster. */
	if (*cluster && (!str_eq(cluster, store_cluster(c->store)) || !store_has_epoch(c->store, epoch)))
		return true;
	return controller_find_run(c, id, &r, &owned, NULL) == -ENOENT ||
	       (r && json_get_int(report, "attempt", 0) > r->attempt);
}

static bool contains(const json_t *list, int64_t run, int64_t attempt)
{
	json_t *entry;
	size_t i;

	json_array_foreach(list, i, entry)
	{
		if (json_get_int(entry, "run", -1) == run && json_get_int(entry, "attempt", -1) == attempt)
			return true;
	}
	return false;
}

static json_t *describe(const json_t *report)
{
	json_t *slots = json_array(), *rank;
	size_t i;

	json_array_foreach(json_object_get(report, "ranks"), i, rank)
	    json_array_append(slots, json_object_get(rank, "slot"));
	return json_pack(
	    "{s:I,s:I,s:s,s:I,s:s,s:s,s:s,s:o}", "run", (json_int_t)json_get_int(report, "run", 0), "attempt",
	    (json_int_t)json_get_int(report, "attempt", 0), "cluster", json_get_string(report, "cluster", ""),
	    "epoch", (json_int_t)json_get_int(report, "epoch", 0), "user",
	    json_get_string(report, "user", ""), "name", json_get_string(report, "name", ""), "state",
	    json_get_string(report, "state", ""), "slots", slots);
}

void foreign_note(struct controller *c, struct member *m, const json_t *report)
{
	const char *cluster = json_get_string(report, "cluster", "");
	int64_t run = json_get_int(report, "run", 0), attempt = json_get_int(report, "attempt", 0);
	struct run *r = queue_find(&c->queue, run);

	if (r && str_eq(cluster, store_cluster(c->store)))
		apply_flags(c, r, run_superseded(r, m->name, attempt, controller_time(c)));
	if (str_eq(json_get_string(report, "state", ""), "ended"))
		return;
	if (!contains(c->foreign_before, run, attempt))
		log_warn(
		    "node %s has run %lld, attempt %lld, of %s, which this store does not know: it is left "
		    "alone",
		    m->name, (long long)run, (long long)attempt,
		    str_eq(cluster, store_cluster(c->store)) ? "this cluster" : "another cluster");
	if (!m->foreign)
		m->foreign = json_array();
	json_array_append_new(m->foreign, describe(report));
}

static void learn_epoch(struct controller *c, const struct member *m, int64_t known)
{
	int64_t own = store_newest_epoch(c->store);
	struct error err = ERROR_INIT;

	/* Our own epoch, where the node has it from us, is no news. */
	if (known < own || (known == own && m->epoch == own))
		return;
	log_warn(
	    "node %s knows epoch %lld of this cluster, the store is of epoch %lld: it is an older copy, and "
	    "takes the next epoch",
	    m->name, (long long)known, (long long)own);
	if (store_begin_epoch(c->store, known, !c->settled, &err) < 0)
		log_err("%s", err.message);
	c->commit = true;
}

void foreign_learn(struct controller *c, struct member *m, const json_t *heartbeat)
{
	const json_t *known = json_object_get(heartbeat, "known");
	int64_t highest = json_get_int(known, "highest_run", 0);
	struct error err = ERROR_INIT;
	json_t *cluster;
	size_t i;

	json_decref(c->foreign_before);
	c->foreign_before = steal_pointer(m->foreign);
	json_array_foreach(json_object_get(known, "clusters"), i, cluster)
	{
		if (str_eq(json_get_string(cluster, "id", ""), store_cluster(c->store)))
			learn_epoch(c, m, json_get_int(cluster, "epoch", 0));
	}
	if (highest > store_highest(c->store) && highest < INT64_MAX / 2) {
		log_warn("node %s knows run %lld, the store knows %lld: the next number is %lld", m->name,
		         (long long)highest, (long long)store_highest(c->store),
		         (long long)highest + NUMBERS_MARGIN + 1);
		if (store_lift(c->store, highest + NUMBERS_MARGIN, &err) < 0)
			log_err("%s", err.message);
		c->commit = true;
	}
	if (c->commit)
		controller_touch(c);
}

void controller_settle(struct controller *c)
{
	if (c->settled)
		return;
	for (size_t i = 0; i < members_count(c->members); i++) {
		const struct member *m = members_get(c->members, i);

		if (!m->removed && m->heard == 0 && !m->error)
			return;
	}
	c->settled = c->reschedule = true;
	controller_touch(c);
	submissions_release(c);
}

size_t controller_cancel_foreign(struct controller *c, const char *node, int64_t run)
{
	const struct member *m = members_find(c->members, node);
	json_t *entry;
	size_t i, n = 0;

	json_array_foreach(m ? m->foreign : NULL, i, entry)
	{
		if (run && json_get_int(entry, "run", 0) != run)
			continue;
		stop_foreign(c, m->name, json_get_int(entry, "run", 0), json_get_int(entry, "attempt", 0));
		n++;
	}
	return n;
}
