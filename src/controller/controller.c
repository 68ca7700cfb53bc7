/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/controller.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"
#include "dtraind/routes/routes.h"

enum {
	SOFT_USEC = 1000 * 1000, /* what need not be on disk at once is there after so long */
	FLUSH_PRIORITY = 100,    /* after all input of this turn */
	EXPIRY_PRIORITY = 200,   /* after all heartbeats that wait to be read */
};

void controller_touch(struct controller *c)
{
	sd_event_source_set_enabled(c->flush, SD_EVENT_ONESHOT);
}

void controller_after(struct controller *c, struct run *r, unsigned flags)
{
	if (flags & RUN_STOP)
		for (size_t i = 0; i < r->part_count; i++)
			if (!r->parts[i].ended)
				dispatch_stop(c, r, &r->parts[i]);
	if (flags & RUN_ENDED) {
		/* The slots are free before the next heartbeats say so. */
		for (size_t i = 0; i < members_count(c->members); i++)
			member_release(members_get(c->members, i), r->id);
		rendezvous_drop(c->rendezvous, r->id);
		c->commit = c->reschedule = true;
	}
	controller_touch(c);
}

void controller_cancel(struct controller *c, struct run *r)
{
	unsigned flags = run_cancel(r, clock_realtime());

	c->commit = true;
	controller_after(c, r, flags);
}

void controller_set_drained(struct controller *c, struct member *m, bool drained, const char *reason)
{
	struct error err = ERROR_INIT;

	member_set_drained(m, drained, reason);
	if (store_set_drained(c->store, m->name, drained, m->drain_reason, &err) < 0)
		log_err("%s", err.message);
	c->commit = c->reschedule = true;
	controller_touch(c);
}

int controller_find(struct controller *c, int64_t id, struct run **out, struct run **owned, struct error *err)
{
	int r;

	*owned = NULL;
	*out = queue_find(&c->queue, id);
	if (*out)
		return 0;
	r = store_get(c->store, id, owned, err);
	*out = *owned;
	return r;
}

static bool keep_member(void *context, const char *name)
{
	struct controller *c = context;

	for (size_t i = 0; i < c->queue.count; i++)
		if (run_part_find(c->queue.list[i], name))
			return true;
	return false;
}

/* A node that is gone takes its parts of the runs with it; the rest of each run comes down. */
static void on_member_down(void *context, struct member *m)
{
	struct controller *c = context;
	char message[400];

	log_warn("node %s is down: %s", m->name, m->error ? m->error : "removed");
	if (m->shutting_down)
		snprintf(message, sizeof(message), "node %s is shutting down", m->name);
	else
		snprintf(message, sizeof(message), "node %s is down: %s", m->name,
		         m->error ? m->error : "it was removed");
	for (size_t i = 0; i < c->queue.count; i++) {
		struct run *r = c->queue.list[i];
		struct run_part *part = run_part_find(r, m->name);

		if (part && !part->ended)
			controller_after(c, r,
			                 run_part_lost(r, part, message, m->last_seen, clock_realtime()));
	}
	c->reschedule = true;
	controller_touch(c);
}

static int on_expiry(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct controller *c = userdata;
	double now = clock_monotonic(), next;

	next = members_expire(c->members, c->daemon->settings->name, now,
	                      c->daemon->settings->config->node_timeout, on_member_down, c);
	/* With nobody up the next heartbeat arms the timer again. */
	sd_event_source_set_enabled(source, next > 0 ? SD_EVENT_ONESHOT : SD_EVENT_OFF);
	sd_event_source_set_time(source, (uint64_t)(next * 1e6) + 1000);
	controller_settle(c);
	return 0;
}

int controller_set_hosts(struct controller *c, struct error *err)
{
	const struct settings *s = c->daemon->settings;
	int r =
	    members_set_hosts(c->members, s->hosts, s->config->port, clock_monotonic(), keep_member, c, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < members_count(c->members); i++) {
		struct member *m = members_get(c->members, i);
		_cleanup_free_ char *reason = NULL;
		bool drained;

		drained = store_drained(c->store, m->name, &reason);
		member_set_drained(m, drained, reason);
		if (m->removed) {
			member_set_down(m, "removed from the hosts file");
			on_member_down(c, m);
		}
	}
	c->reschedule = true;
	controller_touch(c);
	sd_event_source_set_enabled(c->expiry, SD_EVENT_ONESHOT);
	return sd_event_source_set_time(c->expiry, 0);
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
			dispatch_stop(c, r, part);
		return;
	}
	if (ended) {
		/* Only what is on disk may be forgotten there: while r is in memory, its end may not be. */
		if (!r || attempt < r->attempt)
			json_array_append_new(forget, json_pack("{s:I,s:I}", "run", (json_int_t)id, "attempt",
			                                        (json_int_t)attempt));
	} else
		dispatch_stop_stray(c, node, id, attempt);
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
			controller_after(c, r, run_refused(r, part, true, "not started", clock_realtime()));
			continue;
		}
		snprintf(message, sizeof(message),
		         "node %s has lost attempt %lld: the machine was restarted?", m->name,
		         (long long)r->attempt);
		controller_after(c, r, run_part_lost(r, part, message, clock_realtime(), clock_realtime()));
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
	if (m->shunned > 0 && clock_monotonic() >= m->shunned) {
		m->shunned = 0;
		news = true;
	}
	if (member_heartbeat(m, heartbeat, clock_monotonic(), clock_realtime())) {
		news = true;
		log_info("node %s is up", m->name);
		sd_event_source_set_enabled(c->expiry, SD_EVENT_ONESHOT);
		sd_event_source_set_time(c->expiry, 0);
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
	*answer = json_pack("{s:o,s:f,s:s?,s:I,s:I}", "forget", forget, "time", clock_realtime(), "cluster",
	                    epoch_on_disk ? store_cluster(c->store) : NULL, "epoch",
	                    (json_int_t)store_epoch(c->store), "highest_run", (json_int_t)c->announced);
	if (epoch_on_disk)
		m->epoch = store_epoch(c->store);
	return 0;
}

void controller_report(struct controller *c, const json_t *report)
{
	struct run *r = queue_find(&c->queue, json_get_int(report, "run", -1));

	if (r && !foreign_is(c, report))
		controller_after(c, r, run_report(r, report, clock_realtime()));
}

static int on_flush(sd_event_source *source, void *userdata)
{
	controller_flush(userdata);
	return 0;
}

static int on_soft(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct controller *c = userdata;

	c->commit = true;
	controller_touch(c);
	return 0;
}

static int load_one(void *context, struct run *r, struct error *err)
{
	struct controller *c = context;
	_cleanup_(run_freep) struct run *run = r;
	_cleanup_free_ char *text = NULL;
	_cleanup_json_ json_t *config = NULL;
	int code;

	code = store_config(c->store, run->id, &text, err);
	if (code == 0)
		code = json_parse(text, strlen(text), "stored configuration", &config, err);
	if (code == 0)
		code = run_set_request(run, config, err);
	if (code == 0 && run->state != RUN_QUEUED)
		code = run_recover(run, clock_realtime(), err);
	if (code < 0) {
		/* One run that cannot be read is no reason not to serve the others. */
		log_err("run %lld: %s", (long long)run->id, err->message);
		return 0;
	}
	/* What its nodes have of it, their first heartbeats say. */
	for (size_t i = 0; i < run->part_count; i++)
		run->parts[i].acknowledged = true;
	code = queue_push(&c->queue, run, err);
	if (code == 0)
		run = NULL;
	return code;
}

static int load_each(void *context, struct run *r, struct error *err)
{
	struct queue *q = context;
	struct run **list = reallocarray(q->list, q->count + 1, sizeof(*list));

	if (!list) {
		run_free(r);
		return error_oom(err);
	}
	q->list = list;
	q->list[q->count++] = r;
	return 0;
}

/* The runs that have not ended, oldest first (the store lists the newest first). */
static int load_queue(struct controller *c, struct error *err)
{
	struct queue newest_first = {0};
	int code = store_list(c->store, run_state_set("active"), 0, INT32_MAX, load_each, &newest_first, err);

	while (newest_first.count > 0) {
		struct run *r = newest_first.list[--newest_first.count];

		if (code == 0)
			code = load_one(c, r, err);
		else
			run_free(r);
	}
	free(newest_first.list);
	return code;
}

static int add_sources(struct controller *c, struct error *err)
{
	sd_event *e = c->daemon->event;
	int r;

	r = sd_event_add_defer(e, &c->flush, on_flush, c);
	if (r >= 0)
		r = sd_event_source_set_priority(c->flush, FLUSH_PRIORITY);
	if (r >= 0)
		r = sd_event_add_time(e, &c->soft, CLOCK_MONOTONIC, 0, 100000, on_soft, c);
	if (r >= 0)
		r = sd_event_source_set_enabled(c->soft, SD_EVENT_OFF);
	if (r >= 0)
		r = sd_event_add_time(e, &c->expiry, CLOCK_MONOTONIC, 0, 10000, on_expiry, c);
	if (r >= 0)
		r = sd_event_source_set_priority(c->expiry, EXPIRY_PRIORITY);
	return r < 0 ? error_errno(err, r, "cannot set up the controller") : 0;
}

/* The directories of runs that an earlier store counted. */
static int lift_above_directories(struct controller *c, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(c->daemon->settings->config->state_dir, "runs");
	_cleanup_closedir_ DIR *dir = path ? opendir(path) : NULL;
	int64_t run, highest = 0;
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (str_to_int64(entry->d_name, 1, INT64_MAX, &run) == 0)
			highest = MAX(highest, run);
	return store_lift(c->store, highest, err);
}

DEFINE_CLEANUP(struct controller *, controller_destroy)

int controller_create(struct daemon *d, struct controller **out, struct error *err)
{
	_cleanup_(controller_destroyp) struct controller *c = calloc(1, sizeof(*c));
	_cleanup_free_ char *path = str_printf("%s/dtrain.db", d->settings->config->state_dir);
	int r;

	if (!c || !path)
		return error_oom(err);
	c->daemon = d;
	r = store_open(path, &c->store, err);
	if (r == 0)
		backup_remove_leftovers(d->settings->config->state_dir);
	/* On disk before any node hears of it. */
	if (r == 0)
		r = store_begin_epoch(c->store, 0, false, err);
	if (r == 0)
		r = lift_above_directories(c, err);
	if (r == 0)
		r = store_commit(c->store, err);
	if (r == 0)
		c->announced = store_highest(c->store);
	if (r == 0)
		r = members_create(clock_monotonic(), &c->members, err);
	if (r == 0)
		r = rendezvous_create(&c->rendezvous, err);
	if (r == 0)
		r = feed_create(&c->events, err);
	if (r == 0)
		r = feed_create(&c->metrics, err);
	if (r == 0)
		r = add_sources(c, err);
	if (r == 0)
		r = load_queue(c, err);
	if (r == 0)
		r = controller_set_hosts(c, err);
	if (r < 0)
		return r;
	*out = steal_pointer(c);
	return 0;
}

void controller_arm_soft(struct controller *c)
{
	uint64_t now;
	int on = SD_EVENT_OFF;

	if (sd_event_source_get_enabled(c->soft, &on) >= 0 && on != SD_EVENT_OFF)
		return;
	sd_event_now(c->daemon->event, CLOCK_MONOTONIC, &now);
	sd_event_source_set_time(c->soft, now + SOFT_USEC);
	sd_event_source_set_enabled(c->soft, SD_EVENT_ONESHOT);
}

void controller_destroy(struct controller *c)
{
	if (!c)
		return;
	if (c->store) {
		c->commit = true; /* what was soft is written down before the end */
		controller_write(c);
	}
	while (c->waiters)
		waiter_free(c->waiters);
	submissions_free(c);
	held_free(c);
	json_decref(c->foreign_before);
	sd_event_source_disable_unref(c->flush);
	sd_event_source_disable_unref(c->soft);
	sd_event_source_disable_unref(c->expiry);
	feed_destroy(c->metrics);
	feed_destroy(c->events);
	rendezvous_destroy(c->rendezvous);
	members_destroy(c->members);
	queue_clear(&c->queue);
	store_close(c->store);
	free(c);
}
