/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes report, compared with what they should have. Reports change runs; an attempt that should not be
 * there is stopped, and one that should be there and is not has lost its part.
 */
#include "controller/reconcile.h"

#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"

void controller_report(struct controller *c, const json_t *report)
{
	struct run *r = queue_find(&c->queue, json_get_int(report, "run", -1));

	if (r && !foreign_is(c, report))
		apply_flags(c, r, run_report(r, report, controller_time(c)));
}

/* A node says that it has this attempt. One that is not to be there is stopped. */
static void reconcile(struct controller *c, const char *node, const json_t *report, json_t *forget)
{
	int64_t id = json_get_int(report, "run", -1), attempt = json_get_int(report, "attempt", -1);
	bool ended = strcmp(json_get_string(report, "state", ""), "ended") == 0;
	struct run *r = queue_find(&c->queue, id);
	struct run_part *part = r ? run_part_find(r, node) : NULL;

	if (foreign_is(c, report)) {
		foreign_note(c, members_find(c->members, node), report);
		return;
	}
	if (part && attempt == r->attempt) {
		controller_report(c, report);
		r = queue_find(&c->queue, id);
		part = r ? run_part_find(r, node) : NULL;
		/* A stop that did not arrive is said again. */
		if (part && !part->ended && r->state == RUN_STOPPING &&
		    strcmp(json_get_string(report, "state", ""), "stopping") != 0)
			stop_part(c, r, part);
		return;
	}
	if (ended) {
		/* Only what is on disk may be forgotten there: while r is in memory, its end may not be. */
		if (!r || attempt < r->attempt)
			json_array_append_new(forget, json_pack("{s:I,s:I}", "run", (json_int_t)id, "attempt",
			                                        (json_int_t)attempt));
	} else
		stop_stray(c, node, id, attempt);
}

/* Parts that the node should have, and does not: its service or the whole machine began anew. */
static void find_missing(struct controller *c, const struct member *m, const json_t *attempts)
{
	for (size_t i = 0; i < c->queue.count; i++) {
		struct run *r = c->queue.list[i];
		struct run_part *part = run_part_find(r, m->name);
		bool there = false;
		char message[300];
		json_t *a;
		size_t k;

		if (!part || part->ended || !part->acknowledged ||
		    (strcmp(part->instance, m->instance) == 0 && m->sequence <= part->sequence))
			continue;
		json_array_foreach(attempts, k, a) there =
		    there || (json_get_int(a, "run", -1) == r->id &&
		              json_get_int(a, "attempt", -1) == r->attempt && !foreign_is(c, a));
		if (there)
			continue;
		/* A start that a controller before us wrote down, but may never have sent, costs nothing. */
		if (r->state == RUN_STARTING && !part->instance[0]) {
			apply_flags(c, r, run_refused(r, part, true, "not started", controller_time(c)));
			continue;
		}
		snprintf(message, sizeof(message),
		         "node %s has lost attempt %lld: the machine was restarted?", m->name,
		         (long long)r->attempt);
		apply_flags(c, r, run_part_lost(r, part, message, controller_time(c), controller_time(c)));
	}
}

int controller_heartbeat(struct controller *c, const json_t *heartbeat, json_t **answer, struct error *err)
{
	json_t *attempts = json_object_get(heartbeat, "attempts"), *forget = json_array(), *report;
	const char *name = json_get_string(heartbeat, "node", "");
	struct member *m = members_find(c->members, name);
	bool news, epoch_on_disk;
	size_t i;

	if (!m || m->removed) {
		json_decref(forget);
		return error_set(err, -ENOENT, "node %s is not in the controller's hosts file", name);
	}
	/* Most have nothing new to say, and there are many: the queue is not gone through for those. */
	news = member_slots_differ(m, json_object_get(heartbeat, "devices"));
	if (m->backoff_until > 0 && controller_now(c) >= m->backoff_until) {
		m->backoff_until = 0;
		news = true;
	}
	if (member_heartbeat(m, heartbeat, controller_now(c), controller_time(c))) {
		news = true;
		log_info("node %s is up", m->name);
		controller_set_timer(c, CONTROLLER_EXPIRY, 0);
	}
	if (m->hosts_told != member_hosts_differ(c->members, m)) {
		m->hosts_told = !m->hosts_told;
		if (m->hosts_told)
			log_warn("node %s has another hosts file than the controller", m->name);
	}
	foreign_learn(c, m, heartbeat);
	json_array_foreach(attempts, i, report) reconcile(c, m->name, report, forget);
	find_missing(c, m, attempts);
	if (news) {
		c->reschedule = true;
		controller_touch(c);
	}
	controller_settle(c);
	/* An epoch that begins with this heartbeat is not on disk yet, and the one before it would make us a
	 * stale controller: the next answer names the cluster again. */
	epoch_on_disk = store_epoch(c->store) == store_newest_epoch(c->store);
	*answer = json_pack("{s:o,s:f,s:s?,s:I,s:I}", "forget", forget, "time", controller_time(c), "cluster",
	                    epoch_on_disk ? store_cluster(c->store) : NULL, "epoch",
	                    (json_int_t)store_epoch(c->store), "highest_run", (json_int_t)c->announced);
	if (epoch_on_disk)
		m->epoch = store_epoch(c->store);
	return 0;
}
