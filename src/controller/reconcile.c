/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes report, compared with what they should have. Reports change runs; an attempt that should not be
 * there is stopped, and one that should be there and is not has lost its part.
 */
#include "controller/reconcile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"

void controller_report(struct controller *c, const struct report *report)
{
	struct run *r = queue_find(&c->queue, report->run);
	unsigned flags;

	if (!r || foreign_is(c, report))
		return;
	lost_report(c, r, report);
	flags = run_report(r, report, controller_time(c));
	/* Heartbeats say the same again and again, and a flush goes through the whole queue. */
	if (flags || r->dirty || r->changed)
		apply_flags(c, r, flags);
}

static void add_forget(struct heartbeat_answer *answer, int64_t run, int64_t attempt)
{
	struct forget *list = reallocarray(answer->forget, answer->forget_count + 1, sizeof(*list));

	if (!list) /* the next answer says it */
		return;
	answer->forget = list;
	list[answer->forget_count++] = (struct forget){run, attempt};
}

/* A node says that it has this attempt. One that is not to be there is stopped. */
static void reconcile(struct controller *c, const char *node, const struct report *report,
                      struct heartbeat_answer *answer)
{
	struct run *r = queue_find(&c->queue, report->run);
	struct run_part *part = r ? run_part_find(r, node) : NULL;

	if (foreign_is(c, report)) {
		foreign_note(c, members_find(c->members, node), report);
		return;
	}
	if (r)
		lost_report(c, r, report);
	if (part && report->attempt == r->attempt && !part->lost) {
		controller_report(c, report);
		r = queue_find(&c->queue, report->run);
		part = r ? run_part_find(r, node) : NULL;
		/* A stop that did not arrive is said again. */
		if (part && !part->ended && r->state == RUN_STOPPING && report->state != ATTEMPT_STOPPING)
			stop_part(c, r, part);
		return;
	}
	if (report->state == ATTEMPT_ENDED) {
		/* Only what is on disk may be forgotten there: while r is in memory, its end may not be, nor
		 * the attempt that followed. */
		if (!r || (report->attempt < r->attempt && controller_is_committed(c, r)))
			add_forget(answer, report->run, report->attempt);
	} else
		stop_stray(c, node, report->run, report->attempt);
}

/* Whether an earlier controller may not have sent the start of this part. Where its run is being stopped,
 * another part has failed or it was cancelled: a process that this one has had is known then. */
static bool may_be_unsent(const struct run *r, const struct run_part *part)
{
	if (part->instance[0])
		return false;
	if (r->state == RUN_STARTING || r->requeue)
		return true;
	for (size_t i = part->first_rank; i < part->end_rank; i++)
		if (r->ranks[i].pid > 0 && str_eq_host(r->ranks[i].node, part->node))
			return false;
	return r->state == RUN_STOPPING;
}

/* Parts that the node should have, and does not: its service or the whole machine began anew. */
static void find_missing(struct controller *c, const struct member *m, const struct heartbeat *heartbeat)
{
	struct run *r = NULL;

	while ((r = queue_next_on(&c->queue, m->name, r ? r->id : 0))) {
		struct run_part *part = run_part_find(r, m->name);
		bool there = false;
		char message[300];

		/* A heartbeat may have overtaken the answer to the start. */
		if (!part || part->ended || !part->answered ||
		    (strcmp(part->instance, m->instance) == 0 && m->sequence <= part->sequence))
			continue;
		for (size_t k = 0; k < heartbeat->attempt_count; k++) {
			const struct report *a = &heartbeat->attempts[k];

			there = there || (a->run == r->id && a->attempt == r->attempt && !foreign_is(c, a));
		}
		if (there)
			continue;
		/* A start that a controller before us wrote down, and may never have sent. It may as well be
		 * under way, or in its preflight: the node is asked to stop it, and the next attempt waits
		 * for that. It costs nothing; nor does it where another node lacks its part for the same
		 * reason. */
		if (!part->instance[0])
			lost_add(c, r, part, true);
		if (may_be_unsent(r, part)) {
			apply_flags(c, r,
			            run_refused(r, part, REFUSED_UNSENT, "not started", controller_time(c)));
			continue;
		}
		snprintf(message, sizeof(message),
		         "node %s has lost attempt %lld: the machine was restarted?", m->name,
		         (long long)r->attempt);
		apply_flags(c, r, run_part_lost(r, part, message, controller_time(c), controller_time(c)));
	}
}

/* NULL: it is not taken. */
static struct member *find_sender(struct controller *c, const char *node, const char *instance,
                                  int64_t sequence, struct error *err)
{
	struct member *m = members_find(c->members, node);

	/* One that was removed still tells what it has, and is asked to stop it. */
	if (!m || (m->removed && !nodes_need(c, m->name))) {
		error_set(err, -ENOENT, "node %s is not in the controller's hosts file", node);
		return NULL;
	}
	if (str_eq(m->instance, instance) && sequence <= m->sequence) {
		error_set(err, -EALREADY,
		          "heartbeat %lld of node %s came after heartbeat %lld, or a second time",
		          (long long)sequence, m->name, (long long)m->sequence);
		return NULL;
	}
	return m;
}

static bool end_backoff(struct controller *c, struct member *m)
{
	if (m->backoff_until <= 0 || controller_now(c) < m->backoff_until)
		return false;
	m->backoff_until = 0;
	return true;
}

static int make_answer(struct controller *c, struct member *m, struct heartbeat_answer *answer,
                       struct error *err)
{
	answer->time = controller_time(c);
	answer->epoch = store_epoch(c->store);
	answer->highest_run = store_highest(c->store);
	answer->lease = c->options.lease;
	answer->interval = controller_interval(c);
	/* An epoch that begins with this heartbeat is not on disk yet, and the one before it would make us a
	 * stale controller: the next answer names the cluster again. */
	if (store_epoch(c->store) != store_newest_epoch(c->store))
		return 0;
	answer->cluster = strdup(store_cluster(c->store));
	if (!answer->cluster) {
		heartbeat_answer_release(answer);
		return error_oom(err);
	}
	m->epoch = store_epoch(c->store);
	return 0;
}

/* What follows from what the node has now. news: the scheduler has to look at it. */
static int compare(struct controller *c, struct member *m, const struct heartbeat *heartbeat, bool news,
                   struct heartbeat_answer *answer, struct error *err)
{
	if (m->hosts_told != member_hosts_differ(c->members, m)) {
		m->hosts_told = !m->hosts_told;
		if (m->hosts_told)
			log_warn("node %s has another hosts file than the controller", m->name);
	}
	foreign_learn(c, m, heartbeat->known);
	for (size_t i = 0; i < heartbeat->attempt_count; i++)
		reconcile(c, m->name, &heartbeat->attempts[i], answer);
	lost_check(c, m, heartbeat);
	find_missing(c, m, heartbeat);
	if (news) {
		c->reschedule = true;
		controller_touch(c);
	}
	controller_settle(c);
	return make_answer(c, m, answer, err);
}

int controller_heartbeat(struct controller *c, struct heartbeat *heartbeat, struct heartbeat_answer *answer,
                         struct error *err)
{
	struct member *m = find_sender(c, heartbeat->node, heartbeat->instance, heartbeat->sequence, err);
	bool news;

	*answer = (struct heartbeat_answer){0};
	if (!m)
		return err->code;
	/* Most have nothing new to say, and there are many: the queue is not gone through for those. */
	news = member_slots_differ(m, heartbeat->devices, heartbeat->device_count);
	news = end_backoff(c, m) || news;
	if (member_heartbeat(m, heartbeat, controller_now(c), controller_time(c))) {
		news = true;
		log_info("node %s is up", m->name);
		controller_set_timer(c, CONTROLLER_EXPIRY, 0);
	}
	return compare(c, m, heartbeat, news, answer, err);
}

static bool is_last(const struct member *m, const char *instance, int64_t sequence)
{
	return m->sequence == sequence && str_eq(m->instance, instance);
}

void controller_keep_heartbeat(struct controller *c, struct heartbeat *heartbeat,
                               struct heartbeat_answer *answer)
{
	struct member *m = members_find(c->members, heartbeat->node);

	if (!m || !is_last(m, heartbeat->instance, heartbeat->sequence))
		return;
	member_keep(m, heartbeat);
	answer->whole = member_kept(m);
}

int controller_short_heartbeat(struct controller *c, const struct short_heartbeat *heartbeat,
                               struct heartbeat_answer *answer, struct error *err)
{
	struct member *m = find_sender(c, heartbeat->node, heartbeat->instance, heartbeat->sequence, err);
	struct heartbeat whole;
	int r;

	*answer = (struct heartbeat_answer){0};
	if (!m)
		return err->code;
	if (!str_eq(m->instance, heartbeat->instance) || heartbeat->whole <= 0 ||
	    heartbeat->whole != member_kept(m))
		return error_set(err, -ESTALE,
		                 "heartbeat %lld of node %s is not kept here: a whole one is needed",
		                 (long long)heartbeat->whole, m->name);
	member_short_heartbeat(m, heartbeat, controller_now(c), controller_time(c));
	/* What follows may call the node, and take another heartbeat of it. */
	whole = m->whole;
	m->whole = (struct heartbeat){0};
	r = compare(c, m, &whole, end_backoff(c, m), answer, err);
	if (is_last(m, heartbeat->instance, heartbeat->sequence))
		member_keep(m, &whole);
	else
		heartbeat_release(&whole);
	answer->whole = r < 0 ? 0 : member_kept(m);
	return r;
}
