/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has changed is written into the store: nothing is answered, started or told before it is on disk.
 *
 * One commit is in flight at most; the store's thread writes a copy, and the runs go on. Commits are
 * numbered: a change that must be on disk first makes its run await the next one that will begin. A run that
 * is changed while it is being written is dirty again, and is written once more. What a failed commit held is
 * in the next one, except for new runs: their submissions are answered with an error. The same is done with a
 * run whose record is larger than the store accepts, while the others of its commit are on disk; but it is
 * not in each of the next commits. It is tried again after a second, then after twice as long each time, and
 * at once when it changes, or when a caller waits for it.
 */
#include "controller/commit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"

#define LAZY_COMMIT_SECONDS 1.0 /* what need not be on disk at once is there after so long */

/* After so many seconds what the store has refused of a run is tried again; doubled with each refusal in a
 * row, but no more than the latter. */
#define FIRST_WRITE_DELAY   1.0
#define LONGEST_WRITE_DELAY 60.0

struct commit_waiter {
	struct controller *controller;
	struct commit_waiter *next;
	int64_t run;    /* whose change it is; 0: none, or several */
	int64_t commit; /* the number of the one that it waits for */
	committed_fn done;
	void *context;
};

struct commit_waiter *commit_waiter_create(struct controller *c, int64_t run, committed_fn done,
                                           void *context)
{
	struct commit_waiter *w = calloc(1, sizeof(*w)), **end = &c->commit_waiters;

	if (!w)
		return NULL;
	while (*end)
		end = &(*end)->next;
	*w = (struct commit_waiter){c, NULL, run, c->commits + 1, done, context};
	*end = w;
	c->commit = true;
	controller_touch(c);
	return w;
}

void commit_waiter_free(struct commit_waiter *w)
{
	struct commit_waiter **at;

	if (!w)
		return;
	at = &w->controller->commit_waiters;
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	free(w);
}

/* Those of the last commit are the first in the list. */
static void call_waiters(struct controller *c, const struct error *err)
{
	struct commit_waiter *w;

	while ((w = c->commit_waiters) && w->commit <= c->commits) {
		committed_fn done = w->done;
		void *context = w->context;
		const char *refusal = err ? NULL : store_refusal(c->store, w->run);
		struct error own = ERROR_INIT;

		if (refusal)
			error_set(&own, -E2BIG, "%s", refusal);
		commit_waiter_free(w);
		done(context, refusal ? &own : err);
	}
}

static const char cannot_be_written[] = "it cannot be written into the store: ";

static bool says_refused(const struct run *r)
{
	return r->reason && str_starts(r->reason, cannot_be_written);
}

/* It is the reason of a run that has no other one. */
static void set_refused(struct controller *c, struct run *r, const char *why)
{
	if (!r->refused)
		log_err("run %lld: %s%s", (long long)r->id, cannot_be_written, why);
	r->write_delay = r->refused ? MIN(2 * r->write_delay, LONGEST_WRITE_DELAY) : FIRST_WRITE_DELAY;
	r->write_at = controller_now(c) + r->write_delay;
	r->refused = true;
	if (r->reason)
		return;
	run_set_reason(r, "%s%s", cannot_be_written, why);
	r->version++;
	r->changed = true;
}

static void set_accepted(struct run *r)
{
	if (!r->refused)
		return;
	r->refused = false;
	log_info("run %lld: it can be written into the store again", (long long)r->id);
	if (!says_refused(r))
		return;
	free(steal_pointer(r->reason));
	r->version++;
	r->changed = true;
}

/* The newest commit does not have what is to be answered, notified or started of the run. */
static void await_next(const struct controller *c, struct run *r)
{
	if (!controller_is_committed(c, r))
		r->awaits = c->commits + 1;
}

/* Before the commit counts as one that is on disk: what it has refused of runs is not. */
static void keep_refused(struct controller *c)
{
	for (size_t i = 0; i < c->queue.count; i++) {
		struct run *r = c->queue.list[i];
		const char *why;

		if (r->written_by != c->commits || r->inserted_by == c->commits)
			continue;
		why = store_refusal(c->store, r->id);
		if (!why) {
			set_accepted(r);
			continue;
		}
		set_refused(c, r, why);
		await_next(c, r);
	}
}

/* Unless an earlier commit is due. */
static void commit_at(struct controller *c, double at)
{
	if (c->lazy_commit > 0 && c->lazy_commit <= at)
		return;
	c->lazy_commit = at;
	controller_set_timer(c, CONTROLLER_LAZY_COMMIT, at);
}

/* Keeps what a failed commit had for the next one. Until that is on disk, nothing of it starts or is
 * answered. */
static void keep_changes(struct controller *c)
{
	for (size_t i = 0; i < c->queue.count; i++) {
		struct run *r = c->queue.list[i];

		if (r->written_by == c->commits)
			r->dirty = true;
	}
	c->commit = true;
	commit_at(c, controller_now(c) + LAZY_COMMIT_SECONDS);
}

/* A commit that has failed is tried again each second: of a disk that is full for hours, the log says so
 * once. */
static void log_failure(struct controller *c, const struct error *err)
{
	if (str_eq(c->store_error, err->message))
		return;
	log_err("the store cannot be written: %s", err->message);
	str_replace(&c->store_error, err->message); /* without memory for it, it is logged again */
}

static void log_success(struct controller *c)
{
	if (c->store_error)
		log_info("the store can be written again");
	free(steal_pointer(c->store_error));
}

static void on_committed(void *context, int code, const struct error *err)
{
	struct controller *c = context;

	if (code < 0) {
		log_failure(c, err);
		submissions_answer(c, err);
		call_waiters(c, err);
		keep_changes(c);
	} else {
		log_success(c);
		keep_refused(c);
		c->committed = c->commits;
		submissions_answer(c, NULL);
		call_waiters(c, NULL);
	}
	if (!c->ending)
		c->on_committed(c);
}

/* That it cannot be written is not written. */
static void update(struct controller *c, struct run *r)
{
	char *reason = says_refused(r) ? steal_pointer(r->reason) : NULL;

	store_update(c->store, r);
	if (reason)
		r->reason = reason;
}

static bool is_awaited(const struct controller *c, const struct run *r)
{
	for (const struct commit_waiter *w = c->commit_waiters; w; w = w->next)
		if (w->run == r->id)
			return true;
	return false;
}

/* Is it to be in a commit that begins now? The end of the controller is the last chance. */
static bool is_due(const struct controller *c, const struct run *r)
{
	return r->dirty ||
	       (r->refused && (r->write_at <= controller_now(c) || c->ending || is_awaited(c, r)));
}

void commit_changes(struct controller *c, void (*done)(struct controller *c))
{
	if (store_is_busy(c->store))
		return;
	c->commit = false;
	c->commits++;
	c->on_committed = done;
	for (size_t i = 0; i < c->queue.count; i++) {
		struct run *r = c->queue.list[i];

		if (is_due(c, r)) {
			update(c, r);
			r->dirty = false;
			r->write_at = HUGE_VAL; /* until the store has refused it again */
			r->written_by = c->commits;
		} else if (r->refused)
			await_next(c, r);
	}
	store_commit(c->store, on_committed, c);
}

void commit_lazily(struct controller *c)
{
	double at = HUGE_VAL;

	for (size_t i = 0; i < c->queue.count; i++) {
		const struct run *r = c->queue.list[i];

		if (r->dirty)
			at = MIN(at, controller_now(c) + LAZY_COMMIT_SECONDS);
		else if (r->refused)
			at = MIN(at, r->write_at);
	}
	if (at < HUGE_VAL)
		commit_at(c, at);
}

bool commit_is_due(const struct controller *c)
{
	for (size_t i = 0; i < c->queue.count; i++)
		if (is_due(c, c->queue.list[i]))
			return true;
	return false;
}
