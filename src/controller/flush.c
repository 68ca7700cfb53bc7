/* SPDX-License-Identifier: Apache-2.0 */
/* One turn of the controller: what has changed is scheduled, written down, and then told. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "cluster/scheduler.h"
#include "controller/internal.h"
#include "dtraind/status.h"

struct submission {
	struct controller *controller;
	struct submission *next;
	struct http_request *request; /* NULL: the caller has gone, its run stays */
	int64_t run;
};

static void on_submission_closed(void *context)
{
	((struct submission *)context)->request = NULL;
}

void submissions_free(struct controller *c)
{
	while (c->submissions) {
		struct submission *s = c->submissions;

		c->submissions = s->next;
		if (s->request)
			http_request_on_close(s->request, NULL, NULL);
		free(s);
	}
}

void controller_submit(struct controller *c, struct http_request *request, struct run *r, const char *config)
{
	struct submission *s;
	struct error err = ERROR_INIT;
	int code;

	if (controller_hold(c, request, r, config))
		return;
	s = calloc(1, sizeof(*s));
	r->submitted = clock_realtime();
	r->version = 1;
	r->changed = true;
	code = s ? store_insert(c->store, r, config, &err) : error_oom(&err);
	if (code == 0)
		code = queue_push(&c->queue, r, &err);
	if (code < 0) {
		log_err("cannot take a run: %s", err.message);
		http_reply_error(request, 500, "store", "the run cannot be written down: %s", err.message);
		free(s);
		run_free(r);
		return;
	}
	*s = (struct submission){c, c->submissions, request, r->id};
	c->submissions = s;
	http_request_on_close(request, on_submission_closed, s);
	c->commit = c->reschedule = true;
	controller_touch(c);
}

static void answer_submissions(struct controller *c, int code, const struct error *err)
{
	struct submission *s;

	while ((s = c->submissions)) {
		struct run *r = queue_find(&c->queue, s->run);

		c->submissions = s->next;
		if (s->request) {
			http_request_on_close(s->request, NULL, NULL);
			if (code < 0)
				http_reply_error(s->request, 500, "store",
				                 "the run cannot be written down: %s", err->message);
			else
				http_reply_json(s->request, 201,
				                json_pack("{s:I,s:s}", "id", (json_int_t)s->run, "state",
				                          r ? run_state_name(r->state) : "queued"));
		}
		if (code < 0) /* it is in no store, so it never was */
			run_free(queue_take(&c->queue, s->run));
		free(s);
	}
}

int controller_write(struct controller *c)
{
	struct error err = ERROR_INIT;
	int code = 0;

	for (size_t i = 0; i < c->queue.count && code == 0; i++)
		if (c->queue.list[i]->dirty)
			code = store_update(c->store, c->queue.list[i], &err);
	if (code == 0)
		code = store_commit(c->store, &err);
	else /* nothing of it: submissions in there are about to be refused */
		store_rollback(c->store);
	if (code < 0)
		log_err("the store cannot be written: %s", err.message);
	else {
		c->announced = store_highest(c->store);
		for (size_t i = 0; i < c->queue.count; i++)
			c->queue.list[i]->dirty = false;
	}
	c->commit = code < 0;
	answer_submissions(c, code, &err);
	return code;
}

/* The slots of one rank. */
static void take_slots(struct sched_node *node, const json_t *rank)
{
	const json_t *slots = json_object_get(rank, "slots");

	for (size_t i = 0; i < MAX(json_array_size(slots), (size_t)1); i++) {
		size_t slot = slots ? (size_t)json_integer_value(json_array_get(slots, i))
		                    : (size_t)json_get_int(rank, "slot", 0);

		if (slot < node->slots)
			node->taken[slot] = true;
	}
}

/* The nodes as the scheduler sees them: a slot is taken where its node says so, or where a run of ours has
 * it. */
static int build_nodes(struct controller *c, struct sched_node **out, struct error *err)
{
	size_t n = members_count(c->members);
	struct sched_node *nodes = calloc(n + 1, sizeof(*nodes));
	double now = clock_monotonic();
	json_t *d;
	size_t k;

	*out = nodes;
	if (!nodes)
		return error_oom(err);
	for (size_t i = 0; i < n; i++) {
		struct member *m = members_get(c->members, i);

		nodes[i] = (struct sched_node){
		    .name = m->name,
		    .up = m->up && !m->removed && !m->shutting_down && now >= m->shunned,
		    .drained = m->drained,
		    .slots = m->slots,
		    .taken = calloc(m->slots + 1, sizeof(bool)),
		    .broken = member_drained_slots(m),
		    .links = member_links(m),
		    .kind = member_kind(m),
		    .awaited = member_awaited(m),
		};
		if (!nodes[i].taken)
			return error_oom(err);
		json_array_foreach(m->devices, k, d) nodes[i].taken[k] =
		    strcmp(json_get_string(d, "state", ""), "free") != 0;
	}
	for (size_t q = 0; q < c->queue.count; q++) {
		json_array_foreach(c->queue.list[q]->part_count ? c->queue.list[q]->ranks : NULL, k, d)
		{
			const char *name = json_get_string(d, "node", "");
			size_t i = 0;

			while (i < n && strcmp(nodes[i].name, name) != 0)
				i++;
			if (i < n)
				take_slots(&nodes[i], d);
		}
	}
	return 0;
}

static void free_nodes(struct sched_node *nodes)
{
	for (struct sched_node *n = nodes; n && n->taken; n++) {
		free(n->taken);
		free((void *)n->links);
	}
	free(nodes);
}

DEFINE_CLEANUP(struct sched_node *, free_nodes)

static void take_result(struct controller *c, struct run *r, struct sched_run *s,
                        const struct sched_node *nodes)
{
	struct error err = ERROR_INIT;
	_cleanup_free_ char **names = NULL;

	if (!s->placed) {
		/* Told, but not worth a write: it is worked out anew after a restart. */
		if (!str_eq(r->reason, s->reason)) {
			run_set_reason(r, "%s", s->reason);
			r->version++;
			r->changed = true;
		}
		return;
	}
	r->per_node = s->per_node;
	names = calloc(r->nodes, sizeof(*names));
	for (int64_t i = 0; names && i < r->nodes; i++)
		names[i] = (char *)nodes[s->chosen[i]].name;
	if (!names || run_place(r, names, s->slots, clock_realtime(), &err) < 0)
		log_err("run %lld: %s", (long long)r->id, names ? err.message : "out of memory");
	c->commit = true;
}

static struct sched_run sched_run(const struct run *r)
{
	return (struct sched_run){.id = r->id,
	                          .nodes = r->nodes,
	                          .per_node = r->all_slots ? 0 : r->per_node,
	                          .kind = r->kind,
	                          .hosts = r->hosts};
}

int controller_check(struct controller *c, const struct run *r, struct error *err)
{
	_cleanup_(free_nodesp) struct sched_node *nodes = NULL;
	struct sched_run asked = sched_run(r);
	int code = build_nodes(c, &nodes, err);

	if (code < 0 || schedule_possible(nodes, members_count(c->members), &asked))
		return code;
	return error_set(err, -ENODEV, "the run %s", asked.reason);
}

static void reschedule(struct controller *c)
{
	_cleanup_free_ struct sched_run *queue = calloc(c->queue.count + 1, sizeof(*queue));
	_cleanup_(free_nodesp) struct sched_node *nodes = NULL;
	struct error err = ERROR_INIT;
	size_t n = 0;

	if (!c->settled)
		return;
	c->reschedule = false;
	for (size_t i = 0; queue && i < c->queue.count; i++) {
		const struct run *r = c->queue.list[i];

		if (r->state == RUN_QUEUED)
			queue[n++] = sched_run(r);
	}
	if (n == 0)
		return;
	if (!queue || build_nodes(c, &nodes, &err) < 0 ||
	    schedule(nodes, members_count(c->members), queue, n, &err) < 0)
		log_err("cannot schedule: out of memory");
	for (size_t i = 0; queue && i < n; i++) {
		take_result(c, queue_find(&c->queue, queue[i].id), &queue[i], nodes);
		free(queue[i].chosen);
		free(queue[i].slots);
	}
}

/* The last of its parts to end takes them all away. */
static void end_unstarted(struct controller *c, struct run *r)
{
	size_t i = 0;

	while (i + 1 < r->part_count && r->parts[i].ended)
		i++;
	controller_after(c, r, run_refused(r, &r->parts[i], true, "not started", clock_realtime()));
}

/* An attempt is on disk before any node hears of it: its number is a fence. */
static void start_placed(struct controller *c)
{
	for (size_t i = 0; i < c->queue.count; i++) {
		struct run *r = c->queue.list[i];
		struct error err = ERROR_INIT;

		if (!r->to_start)
			continue;
		r->to_start = false;
		if (r->state !=
		    RUN_STARTING) { /* cancelled before it could be written down: no node has it */
			while (r->part_count > 0)
				end_unstarted(c, r);
			continue;
		}
		if (dispatch_start(c, r, &err) < 0) {
			for (size_t k = 0; k < r->part_count; k++)
				r->parts[k].ended = true;
			controller_after(c, r,
			                 run_refused(r, &r->parts[0], false, err.message, clock_realtime()));
		}
	}
}

static void log_change(const struct run *r)
{
	_cleanup_free_ char *reason = strdup(r->reason ? r->reason : "");
	char fields[64];

	/* One line: the last lines of a log follow each other. */
	for (char *p = reason; p && (p = strchr(p, '\n'));)
		*p = '|';
	snprintf(fields, sizeof(fields), "RUN_ID=%lld\nATTEMPT=%lld", (long long)r->id,
	         (long long)r->attempt);
	log_write(r->state == RUN_FAILED ? LOG_WARNING : LOG_INFO, fields, "run %lld (%s): %s%s%s",
	          (long long)r->id, r->name, run_state_name(r->state), reason && *reason ? ": " : "",
	          reason ? reason : "");
}

static void tell_event(struct controller *c, struct run *r)
{
	_cleanup_json_ json_t *nodes = json_array();
	_cleanup_free_ char *line = NULL;
	json_t *event;

	if (r->told == (int)r->state + 1)
		return;
	r->told = (int)r->state + 1;
	log_change(r);
	for (size_t i = 0; i < r->part_count; i++)
		json_array_append_new(nodes, json_string(r->parts[i].node));
	event = json_pack("{s:f,s:I,s:s,s:s,s:I,s:s?,s:O}", "time", clock_realtime(), "run",
	                  (json_int_t)r->id, "name", r->name, "state", run_state_name(r->state), "attempt",
	                  (json_int_t)r->attempt, "reason", r->reason, "nodes", nodes);
	line = event ? json_to_string(event) : NULL;
	json_decref(event);
	if (!line)
		return;
	feed_write(c->events, FEED_EVENTS, line, strlen(line));
	feed_write(c->events, FEED_EVENTS, "\n", 1);
}

/* Who waits hears of it; what has ended leaves the memory. */
static void tell_changes(struct controller *c)
{
	for (size_t i = 0; i < c->queue.count;) {
		struct run *r = c->queue.list[i];

		if (r->changed) {
			r->changed = false;
			tell_event(c, r);
			waiters_tell(c, r);
		}
		if (!run_state_final(r->state) || r->dirty) {
			i++;
			continue;
		}
		feed_end(c->metrics, r->id);
		run_free(queue_take(&c->queue, r->id));
	}
}

void controller_flush(struct controller *c)
{
	bool dirty = false;

	if (c->reschedule)
		reschedule(c);
	if (c->commit && controller_write(c) < 0) {
		controller_arm_soft(c); /* tried again: nothing starts, nothing is told before */
		return;
	}
	for (size_t i = 0; i < c->queue.count; i++)
		dirty = dirty || c->queue.list[i]->dirty;
	if (dirty)
		controller_arm_soft(c);
	start_placed(c);
	if (c->commit) /* a start failed at once: that is written down, in the next turn, before it is told */
		return;
	tell_changes(c);
	status_notify(c->daemon);
}
