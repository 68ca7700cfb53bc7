/* SPDX-License-Identifier: Apache-2.0 */
/* The runs of the cluster: those that have not ended are in memory, the others in the store alone. */
#include "controller/runs.h"

#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

#include "controller/internal.h"

int runs_read_config(struct controller *c, int64_t id, struct run_config **out, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_json_ json_t *json = NULL;
	int code = store_config(c->store, id, &text, err);

	if (code == 0)
		code = json_parse(text, strlen(text), "stored configuration", &json, err);
	return code < 0 ? code : run_config_decode(json, "stored configuration", true, out, err);
}

int controller_find_run(struct controller *c, int64_t id, const struct run **out, struct run **owned,
                        struct error *err)
{
	_cleanup_(run_config_freep) struct run_config *config = NULL;
	const struct run *live = queue_find(&c->queue, id);
	struct error unreadable = ERROR_INIT;
	int r;

	*owned = NULL;
	*out = live;
	if (live && controller_is_stored(c, live))
		return 0;
	r = store_get(c->store, id, owned, err);
	/* A configuration that cannot be read is no reason not to show the rest. */
	if (r == 0 && runs_read_config(c, id, &config, &unreadable) == 0)
		run_set_limits(*owned, config);
	*out = *owned;
	return r;
}

int controller_find_submitted(struct controller *c, int64_t uid, const char *key, int64_t *id,
                              enum run_state *state, struct error *err)
{
	_cleanup_(run_freep) struct run *owned = NULL;
	const struct run *r;
	int code = store_find_key(c->store, uid, key, id, err);

	if (code == 0)
		code = controller_find_run(c, *id, &r, &owned, err);
	if (code == 0)
		*state = r->state;
	return code;
}

struct listing {
	struct controller *controller;
	int (*each)(void *context, const struct run *r, struct error *err);
	void *context;
};

static int list_stored(void *context, struct run *r, struct error *err)
{
	_cleanup_(run_freep) struct run *stored = r;
	struct listing *l = context;
	/* What is in memory is newer than what is written down. */
	const struct run *live = queue_find(&l->controller->queue, stored->id);

	return l->each(l->context, live ? live : stored, err);
}

/* The active ones, from memory alone. */
static int list_active(struct listing *l, const struct run_query *query, struct error *err)
{
	const struct queue *q = &l->controller->queue;
	int64_t limit = query->limit;
	int r = 0;

	for (size_t i = q->count; i > 0 && limit > 0 && r == 0; i--) {
		const struct run *run = q->list[i - 1];

		if (!(query->states >> run->state & 1) || (query->before > 0 && run->id >= query->before) ||
		    (query->user && !str_eq(run->user, query->user)) ||
		    !controller_is_stored(l->controller, run))
			continue;
		r = l->each(l->context, run, err);
		limit--;
	}
	return r;
}

int controller_list_runs(struct controller *c, const struct run_query *query,
                         int (*each)(void *context, const struct run *r, struct error *err), void *context,
                         struct error *err)
{
	struct listing l = {c, each, context};

	if ((query->states & ~run_state_set("active")) == 0)
		return list_active(&l, query, err);
	return store_list(c->store, query, list_stored, &l, err);
}

int controller_count_runs(struct controller *c, int64_t counts[RUN_STATES], struct error *err)
{
	return store_counts(c->store, counts, err);
}

size_t controller_active_count(const struct controller *c)
{
	return c->queue.count;
}

const struct run *controller_active_run(const struct controller *c, size_t i)
{
	return c->queue.list[i];
}

int controller_run_config(struct controller *c, int64_t id, char **text, struct error *err)
{
	return store_config(c->store, id, text, err);
}

void controller_cancel_run(struct controller *c, int64_t id, const char *by)
{
	struct run *r = queue_find(&c->queue, id);
	unsigned flags;

	if (!r)
		return;
	flags = run_cancel(r, by, controller_time(c));
	controller_await_commit(c, r);
	apply_flags(c, r, flags);
}

void controller_set_progress(struct controller *c, int64_t id, json_t *last, const char *lines, size_t len)
{
	struct run *r = queue_find(&c->queue, id);
	bool dirty;

	if (!r)
		return;
	json_decref(r->progress);
	r->progress = json_incref(last);
	/* What the store refuses of a run is not tried again for this; it is written with that. */
	dirty = r->dirty || !r->refused;
	run_touch(r);
	r->dirty = dirty;
	feed_write(c->metrics, id, lines, len);
	controller_touch(c);
}

void controller_set_checkpoint(struct controller *c, int64_t id, int64_t step)
{
	struct run *r = queue_find(&c->queue, id);

	if (!r)
		return;
	run_set_checkpoint(r, step);
	controller_touch(c);
}

void controller_worker_error(struct controller *c, int64_t id, int64_t rank, const char *message,
                             bool lost_peer)
{
	struct run *r = queue_find(&c->queue, id);

	if (!r)
		return;
	run_worker_error(r, rank, message, lost_peer);
	controller_touch(c);
}

bool controller_is_stopping(const struct controller *c)
{
	for (size_t i = 0; i < c->queue.count; i++)
		if (c->queue.list[i]->state == RUN_STOPPING && c->queue.list[i]->part_count > 0)
			return true;
	return false;
}

int controller_listen_events(struct controller *c, feed_fn fn, void *context, struct feed_listener **out,
                             struct error *err)
{
	return feed_listen(c->events, FEED_EVENTS, fn, context, out, err);
}

int controller_listen_metrics(struct controller *c, int64_t run, feed_fn fn, void *context,
                              struct feed_listener **out, struct error *err)
{
	if (!queue_find(&c->queue, run))
		return error_set(err, -ENOENT, "run %lld has ended", (long long)run);
	return feed_listen(c->metrics, run, fn, context, out, err);
}
