/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes have and know that the controller's store does not: the store is a new one, or was restored from
 * an older copy. Foreign work, attempts that no controller with this store has started, is shown and left
 * alone; an administrator's command alone ends it. The epoch and the numbers of runs are lifted above what
 * any node knows. Until all nodes have reported once, or are down, no run gets a number and none is placed.
 */
#include "controller/foreign.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"
#include "controller/runs.h"

/* Numbers that were given after the last heartbeat of any node: left out where numbers are lifted. */
enum { NUMBERS_MARGIN = 100 };

/* No node has seen that many epochs or runs. Learned of one that says so, it would leave no number above it.
 */
static const int64_t INCREDIBLE = INT64_MAX / 2;

bool foreign_is(struct controller *c, const struct report *report)
{
	_cleanup_(run_freep) struct run *owned = NULL;
	const struct run *r;

	/* What a service of an older version has started names no cluster. */
	if (report->cluster &&
	    (!str_eq(report->cluster, store_cluster(c->store)) || !store_has_epoch(c->store, report->epoch)))
		return true;
	return controller_find_run(c, report->run, &r, &owned, NULL) == -ENOENT ||
	       (r && report->attempt > r->attempt);
}

static bool contains(const struct foreign_attempt *list, size_t count, int64_t run, int64_t attempt)
{
	for (size_t i = 0; i < count; i++)
		if (list[i].run == run && list[i].attempt == attempt)
			return true;
	return false;
}

static char *copy(const char *text)
{
	return strdup(text ? text : "");
}

/* False: out of memory; then the next heartbeat has it again. */
static bool add_foreign(struct member *m, const struct report *report)
{
	struct foreign_attempt *list = reallocarray(m->foreign, m->foreign_count + 1, sizeof(*list)), *own;

	if (!list)
		return false;
	m->foreign = list;
	own = &list[m->foreign_count];
	*own = (struct foreign_attempt){.run = report->run,
	                                .attempt = report->attempt,
	                                .cluster = copy(report->cluster),
	                                .epoch = report->epoch,
	                                .user = copy(report->user),
	                                .name = copy(report->name),
	                                .state = report->state,
	                                .slots = calloc(report->rank_count + 1, sizeof(*own->slots))};
	if (!own->cluster || !own->user || !own->name || !own->slots) {
		foreign_attempt_release(own);
		return false;
	}
	for (size_t i = 0; i < report->rank_count; i++)
		if (report->ranks[i].slot >= 0)
			own->slots[own->slot_count++] = report->ranks[i].slot;
	m->foreign_count++;
	return true;
}

void foreign_note(struct controller *c, struct member *m, const struct report *report)
{
	struct run *r = queue_find(&c->queue, report->run);
	bool ours = str_eq(report->cluster, store_cluster(c->store));

	if (r && ours)
		apply_flags(c, r, run_superseded(r, m->name, report->attempt, controller_time(c)));
	if (report->state == ATTEMPT_ENDED)
		return;
	if (!contains(c->foreign_before, c->foreign_before_count, report->run, report->attempt))
		log_warn(
		    "node %s has run %lld, attempt %lld, of %s, which this store does not know: it is left "
		    "alone",
		    m->name, (long long)report->run, (long long)report->attempt,
		    ours ? "this cluster" : "another cluster");
	if (!add_foreign(m, report))
		log_err("out of memory");
}

static void learn_epoch(struct controller *c, const struct member *m, int64_t known)
{
	int64_t own = store_newest_epoch(c->store);

	/* Our own epoch, where the node has it from us, is no news. */
	if (known < own || known >= INCREDIBLE || (known == own && m->epoch == own))
		return;
	log_warn(
	    "node %s knows epoch %lld of this cluster, the store is of epoch %lld: it is an older copy, and "
	    "takes the next epoch",
	    m->name, (long long)known, (long long)own);
	store_begin_epoch(c->store, known, !c->settled);
	c->commit = true;
}

void foreign_learn(struct controller *c, struct member *m, const struct known_clusters *known)
{
	int64_t highest = known ? known->highest_run : 0, own = store_newest_highest(c->store);

	message_free_list(&foreign_attempt_message, c->foreign_before, c->foreign_before_count);
	c->foreign_before = steal_pointer(m->foreign);
	c->foreign_before_count = m->foreign_count;
	m->foreign_count = 0;
	for (size_t i = 0; known && i < known->cluster_count; i++)
		if (str_eq(known->clusters[i].id, store_cluster(c->store)))
			learn_epoch(c, m, known->clusters[i].epoch);
	if (highest > own && highest < INCREDIBLE) {
		log_warn("node %s knows run %lld, the store knows %lld: the next number is %lld", m->name,
		         (long long)highest, (long long)own, (long long)highest + NUMBERS_MARGIN + 1);
		store_lift(c->store, highest + NUMBERS_MARGIN);
		c->commit = true;
	}
	if (c->commit)
		controller_touch(c);
}

size_t controller_cancel_foreign(struct controller *c, const char *node, int64_t run)
{
	const struct member *m = members_find(c->members, node);
	size_t n = 0;

	for (size_t i = 0; m && i < m->foreign_count; i++) {
		if (run && m->foreign[i].run != run)
			continue;
		stop_foreign(c, m->name, m->foreign[i].run, m->foreign[i].attempt);
		n++;
	}
	return n;
}
