/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's life: it takes up what the store has, and makes a turn whenever something has changed. */
#include "controller/controller.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/commit.h"
#include "controller/internal.h"
#include "controller/nodes.h"

/* What is on disk is started and told. */
static void advance(struct controller *c)
{
	start_placed(c);
	notify_changes(c);
	if (!c->commit)
		commit_lazily(c);
	if (c->options.flushed)
		c->options.flushed(c->options.context);
}

/* What has changed meanwhile is committed next; but what has failed is tried again after a while. */
static void on_committed(struct controller *c)
{
	advance(c);
	if (c->commit && c->committed == c->commits)
		controller_touch(c);
}

static void flush(struct controller *c)
{
	if (c->reschedule && c->settled) {
		schedule_pass(c);
		growth_check(c);
	}
	if (c->commit)
		commit_changes(c, on_committed);
	advance(c);
}

void controller_run_timer(struct controller *c, enum controller_timer timer)
{
	switch (timer) {
	case CONTROLLER_FLUSH:
		flush(c);
		break;
	case CONTROLLER_LAZY_COMMIT:
		c->lazy_commit = 0;
		/* What the store has refused may be there by now, since a caller has waited for it. */
		c->commit = c->commit || commit_is_due(c);
		controller_touch(c);
		break;
	case CONTROLLER_EXPIRY:
		nodes_expire(c);
		controller_settle(c);
		break;
	case CONTROLLER_RETRY:
	case CONTROLLER_GROWTH:
		c->reschedule = true;
		controller_touch(c);
		break;
	case CONTROLLER_LIMIT:
		limits_check(c);
		break;
	case CONTROLLER_TIMERS:
		break;
	}
}

static int load_one(void *context, struct run *r, struct error *err)
{
	struct controller *c = context;
	_cleanup_(run_freep) struct run *run = r;
	_cleanup_(run_config_freep) struct run_config *config = NULL;
	int code = runs_read_config(c, run->id, &config, err);

	if (code == 0)
		code = run_set_request(run, config, err);
	if (code == 0 && run->state != RUN_QUEUED)
		code = run_recover(run, controller_time(c), err);
	if (code == -ENOMEM)
		return code;
	if (code < 0) {
		/* One run that cannot be read is no reason not to serve the others. But without memory it is
		 * this controller that fails, not the run. */
		log_err("run %lld: %s", (long long)run->id, err->message);
		return 0;
	}
	lost_recover(c, run);
	/* How long a run has waited for its next attempt is not on disk: it waits anew. */
	if (run->state == RUN_QUEUED && run->retries.record.delay > 0)
		run->retries.at = controller_now(c) + run->retries.record.delay;
	/* What its nodes have of it, their first heartbeats say. */
	for (size_t i = 0; i < run->part_count; i++)
		run->parts[i].acknowledged = run->parts[i].answered = true;
	if (run->state != RUN_QUEUED)
		attempt_begin(c, run);
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
	const struct run_query active = {.states = run_state_set("active"), .limit = INT32_MAX};
	struct queue newest_first = {0};
	int code = store_list(c->store, &active, load_each, &newest_first, err);

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

/* The directories of runs that an earlier store counted. */
static int lift_above_directories(struct controller *c, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(c->options.state_dir, "runs");
	_cleanup_closedir_ DIR *dir = path ? opendir(path) : NULL;
	int64_t run, highest = 0;
	struct dirent *entry;

	if (!path)
		return error_oom(err);
	if (!dir && errno != ENOENT)
		return error_errno(err, -errno, "cannot read %s", path);
	while (dir && (entry = readdir(dir)))
		if (str_to_int64(entry->d_name, 1, INT64_MAX, &run) == 0)
			highest = MAX(highest, run);
	store_lift(c->store, highest);
	return 0;
}

/* The epoch of this controller: on disk before any node hears of it. */
static int begin_epoch(struct controller *c, bool begun, struct error *err)
{
	int r = lift_above_directories(c, err);

	return r < 0 || begun ? r : store_commit_epoch(c->store, err);
}

int controller_create(const struct controller_options *options, struct controller **out, struct error *err)
{
	_cleanup_(controller_destroyp) struct controller *c = calloc(1, sizeof(*c));
	_cleanup_free_ char *path = str_printf("%s/dtrain.db", options->state_dir);
	int r = 0;

	if (!c || !path) {
		store_close(options->store);
		return error_oom(err);
	}
	c->options = *options;
	c->began = controller_now(c);
	c->options.hosts = NULL;
	c->store = steal_pointer(c->options.store);
	if ((!c->store && (r = store_open(path, &c->store, err)) < 0) ||
	    (r = begin_epoch(c, options->begun, err)) < 0 ||
	    (r = members_create(controller_now(c), &c->members, err)) < 0 ||
	    (r = rendezvous_create(&c->rendezvous, err)) < 0 || (r = feed_create(&c->events, err)) < 0 ||
	    (r = feed_create(&c->metrics, err)) < 0 || (r = load_queue(c, err)) < 0 ||
	    (r = controller_set_hosts(c, options->hosts, options->default_port, options->node_timeout, err)) <
	        0)
		return r;
	/* Runs whose time is over by now are stopped by the timer: the caller cannot reach its nodes yet. */
	controller_set_timer(c, CONTROLLER_LIMIT, 0);
	*out = steal_pointer(c);
	return 0;
}

void controller_get_status(const struct controller *c, struct controller_status *out)
{
	*out = (struct controller_status){.nodes = members_count(c->members)};
	for (size_t i = 0; i < out->nodes; i++)
		out->nodes_up += members_get(c->members, i)->up;
	for (size_t i = 0; i < c->queue.count; i++)
		out->queued += c->queue.list[i]->state == RUN_QUEUED;
	out->under_way = c->queue.count - out->queued;
}

struct rendezvous *controller_rendezvous(struct controller *c)
{
	return c->rendezvous;
}

int controller_backup_begin(struct controller *c, const char *path,
                            void (*done)(void *context, int code, const struct error *err), void *context,
                            struct store_backup **out, struct error *err)
{
	return store_backup_begin(c->store, path, done, context, out, err);
}

int controller_store_fd(const struct controller *c)
{
	return store_fd(c->store);
}

void controller_dispatch_store(struct controller *c)
{
	store_dispatch(c->store);
}

void controller_destroy(struct controller *c)
{
	if (!c)
		return;
	c->ending = true;
	if (c->store) {
		store_wait(c->store);
		commit_changes(c, NULL); /* what was to be committed lazily is on disk before the end */
		store_wait(c->store);
	}
	while (c->commit_waiters)
		commit_waiter_free(c->commit_waiters);
	waiters_free(c);
	submissions_free(c);
	message_free_list(&foreign_attempt_message, c->foreign_before, c->foreign_before_count);
	feed_destroy(c->metrics);
	feed_destroy(c->events);
	rendezvous_destroy(c->rendezvous);
	members_destroy(c->members);
	queue_clear(&c->queue);
	store_close(c->store);
	free(c->store_error);
	free(c);
}
