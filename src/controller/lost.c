/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of attempts that are lost: their node cannot be reached, and whether they have ended is not known.
 * The next attempt of the run begins only when that is known of each of them:
 *
 *     the node reports its end, or a heartbeat that is newer than the start does not have it, as after a
 *     restart of its machine
 *     its lease has run out: the node has ended it by itself (wire/heartbeat.h)
 *     an administrator declares it: `dtrain fence`
 *
 * Of a start without an answer it is not even known whether it will still arrive. Such a part is asked to
 * stop first: a node that has answered that starts the attempt never again. Without that answer the lease is
 * what ends the wait: no node takes a start that is older than the lease with which it was sent
 * (start_request.until).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"
#include "controller/nodes.h"
#include "wire/start_request.h"

#define CLOCK_SLACK 1.0 /* seconds by which the clock of a node may be slower than ours within a lease */

struct ask_call {
	struct controller *controller;
	int64_t run, attempt;
	double began; /* monotonic */
	char node[];
};

static void settle(struct controller *c, struct run *r, struct run_lost *lost, const char *why)
{
	log_info("run %lld: attempt %lld on node %s has ended: %s", (long long)r->id,
	         (long long)lost->record.attempt, lost->record.node, why);
	run_remove_lost(r, lost);
	c->reschedule = true; /* it begins, or its reason names the part that it still waits for */
	controller_touch(c);
}

static void on_asked(void *context, const struct peer_result *result)
{
	_cleanup_free_ struct ask_call *call = context;
	struct run_lost *lost;
	struct run *r;

	if (result->code == -ECANCELED)
		return;
	note_reached(call->controller, call->node, call->began, result);
	r = queue_find(&call->controller->queue, call->run);
	lost = r ? run_find_lost(r, call->node, call->attempt) : NULL;
	if (!lost)
		return;
	lost->asked = false;
	if (result->code < 0)
		return;
	lost->confirmed = true;
	snprintf(lost->instance, sizeof(lost->instance), "%s", result->instance ? result->instance : "");
	lost->sequence = result->sequence;
}

static void ask(struct controller *c, const struct run *r, struct run_lost *lost)
{
	const struct member *m = members_find(c->members, lost->record.node);
	struct ask_call *call = m ? calloc(1, sizeof(*call) + strlen(m->name) + 1) : NULL;
	const struct stop_request request = {.controller = (char *)c->options.name,
	                                     .cluster = (char *)store_cluster(c->store),
	                                     .epoch = store_epoch(c->store),
	                                     .run = r->id,
	                                     .attempt = lost->record.attempt,
	                                     .grace = r->stop[RUN_STOP_NOW].grace};
	struct peer peer;

	if (!call)
		return;
	call->controller = c;
	call->run = r->id;
	call->attempt = lost->record.attempt;
	call->began = controller_now(c);
	strcpy(call->node, m->name);
	lost->asked = true;
	peer = peer_of(m);
	c->options.peers.stop(c->options.peers.context, &peer, &request, on_asked, call);
}

/* When the lease of the node ends at the latest. longest: seconds, of those that an earlier controller has
 * granted; a shorter one that is granted later does not take its place. */
static double lease_end(const struct controller *c, const struct member *m, double longest)
{
	double granted = m && m->heard > 0 ? m->heard : c->began;

	return granted + MAX(longest, c->options.lease) + CLOCK_SLACK;
}

void lost_add(struct controller *c, struct run *r, struct run_part *part, bool unanswered)
{
	const struct member *m = members_find(c->members, part->node);
	struct run_lost *lost;

	if (part->lost)
		return;
	lost = run_add_lost(r, part);
	if (!lost) {
		log_err("run %lld: out of memory", (long long)r->id);
		return;
	}
	queue_note_placed_on(&c->queue, r, part->node);
	/* A node ends a part that no answer to a heartbeat has confirmed, whatever the run says of
	 * partitions. */
	lost->record.lease = unanswered || r->stops_on_partition ? part->lease : 0;
	/* An earlier controller may have sent a start that is under way still. */
	lost->confirmed = part->answered && part->instance[0];
	if (lost->record.lease > 0)
		lost->until = lease_end(c, m, lost->record.lease);
	if (!lost->confirmed)
		ask(c, r, lost);
}

/* This controller may grant a longer lease than those before it, and one after it a shorter one. */
static void raise_lease(struct controller *c, struct run *r, double *lease)
{
	if (*lease <= 0 || *lease >= c->options.lease)
		return;
	*lease = c->options.lease;
	r->dirty = c->commit = true;
}

void lost_recover(struct controller *c, struct run *r)
{
	for (size_t i = 0; i < r->part_count; i++)
		raise_lease(c, r, &r->parts[i].lease);
	for (size_t i = 0; i < r->lost_count; i++) {
		struct run_lost *lost = &r->lost[i];

		raise_lease(c, r, &lost->record.lease);
		/* Whether the node has confirmed a stop is not on disk: it is asked once more. */
		if (lost->record.lease > 0)
			lost->until = lease_end(c, NULL, lost->record.lease);
	}
}

bool lost_hold(struct controller *c, struct run *r, double *next)
{
	double now = controller_now(c);

	for (size_t i = r->lost_count; i-- > 0;) {
		struct run_lost *lost = &r->lost[i];

		if (lost->until > 0 && lost->until <= now)
			settle(c, r, lost, "its lease has run out");
		else if (lost->until > 0)
			*next = *next > 0 ? MIN(*next, lost->until) : lost->until;
	}
	return r->lost_count > 0;
}

/* Has the node told us something newer than the start? */
static bool is_newer(const struct run_lost *lost, const struct member *m)
{
	return !str_eq(lost->instance, m->instance) || m->sequence > lost->sequence;
}

static void check(struct controller *c, struct run *r, struct run_lost *lost, const struct member *m,
                  const struct heartbeat *heartbeat)
{
	/* By itself this proves nothing: the machine may have been restarted before the start reached it, and
	 * the controller have learnt of that later. */
	bool restarted = lost->record.boot && heartbeat->boot && !str_eq(lost->record.boot, heartbeat->boot);
	bool there = false;

	for (size_t i = 0; i < heartbeat->attempt_count; i++) {
		const struct report *a = &heartbeat->attempts[i];

		there = there || (a->run == r->id && a->attempt == lost->record.attempt &&
		                  a->state != ATTEMPT_ENDED && !foreign_is(c, a));
	}
	/* The answer to this heartbeat renews the lease. */
	if (lost->until > 0)
		lost->until = lease_end(c, m, lost->record.lease);
	if (!lost->confirmed && !lost->asked)
		ask(c, r, lost);
	else if (!there && lost->confirmed && is_newer(lost, m))
		settle(c, r, lost,
		       restarted ? "the machine was restarted" : "the node does not have it any more");
}

void lost_check(struct controller *c, const struct member *m, const struct heartbeat *heartbeat)
{
	struct run *r = NULL;

	while ((r = queue_next_on(&c->queue, m->name, r ? r->id : 0)))
		for (size_t k = r->lost_count; k-- > 0;)
			if (str_eq_host(r->lost[k].record.node, m->name))
				check(c, r, &r->lost[k], m, heartbeat);
}

void lost_report(struct controller *c, struct run *r, const struct report *report)
{
	struct run_lost *lost =
	    report->state == ATTEMPT_ENDED ? run_find_lost(r, report->node, report->attempt) : NULL;

	if (lost)
		settle(c, r, lost, "the node reports its end");
}

int controller_fence(struct controller *c, const char *name, int64_t *count)
{
	const struct member *m = members_find(c->members, name);
	bool known = m != NULL;

	*count = 0;
	if (m && m->up)
		return -EBUSY;
	for (size_t i = 0; i < c->queue.placed_count; i++) {
		struct run *r = c->queue.placed[i];

		for (size_t k = r->lost_count; k-- > 0;) {
			if (!str_eq_host(r->lost[k].record.node, name))
				continue;
			known = true;
			settle(c, r, &r->lost[k], "an administrator has fenced the node");
			(*count)++;
		}
	}
	c->commit = true;
	controller_touch(c);
	return known ? 0 : -ENOENT;
}
