/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submissions. One gets its number once the controller knows which numbers are free (foreign.c says when),
 * and is answered once its run is on disk.
 */
#include "controller/submit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"

struct submission {
	struct controller *controller;
	struct submission *next;
	struct run *run; /* while it waits for its number; then NULL */
	char *config;    /* as long */
	int64_t id;
	int64_t commit;    /* the number of the one that makes its run known to the store */
	submitted_fn done; /* NULL: the submitter has gone, its run stays */
	void *context;
};

static void submission_free(struct submission *s)
{
	run_free(s->run);
	free(s->config);
	free(s);
}

static void unlink_submission(struct submission *s)
{
	struct submission **at = &s->controller->submissions;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
}

static void append(struct submission *s)
{
	struct submission **end = &s->controller->submissions;

	while (*end)
		end = &(*end)->next;
	*end = s;
}

int controller_check(struct controller *c, const struct run *r, struct error *err)
{
	return schedule_pass_check(c, r, err);
}

/* The run gets its number and goes into the store and the queue. On failure it stays with the submission. */
static int take_number(struct submission *s, struct error *err)
{
	struct controller *c = s->controller;
	struct run *r = s->run;
	int code;

	r->submitted = controller_time(c);
	r->version = 1;
	r->changed = true;
	code = store_insert(c->store, r, s->config, err);
	if (code == 0)
		code = queue_push(&c->queue, r, err);
	if (code < 0) {
		log_err("cannot take a run: %s", err->message);
		return code;
	}
	controller_await_commit(c, r);
	r->inserted_by = r->written_by = s->commit = r->awaits;
	s->id = r->id;
	s->run = NULL;
	free(steal_pointer(s->config));
	c->reschedule = true;
	controller_touch(c);
	return 0;
}

static int check_limit(const struct controller *c, const struct run *r, struct error *err)
{
	size_t waiting = 0;

	for (const struct submission *s = c->submissions; s; s = s->next)
		waiting += s->run && s->run->uid == r->uid;
	return user_limits_check_runs(c, r, waiting, err);
}

static const struct run *run_of(const struct submission *s)
{
	return s->run ? s->run : queue_find(&s->controller->queue, s->id);
}

/* One that waits for its answer, with the same key. */
static struct submission *find_same(const struct controller *c, const struct run *r)
{
	for (struct submission *s = c->submissions; s && r->key; s = s->next) {
		const struct run *other = run_of(s);

		if (other && other->uid == r->uid && str_eq(other->key, r->key))
			return s;
	}
	return NULL;
}

static void take_place(struct submission *s, submitted_fn done, void *context)
{
	struct error err = ERROR_INIT;

	error_set(&err, -EALREADY, "the same submission came again, and is answered there");
	if (s->done)
		s->done(s->context, s->id, RUN_QUEUED, &err);
	s->done = done;
	s->context = context;
}

int controller_submit(struct controller *c, struct run *r, const char *config, submitted_fn done,
                      void *context, struct submission **out, struct error *err)
{
	struct submission *s = find_same(c, r);
	int code;

	if (s) {
		run_free(r);
		take_place(s, done, context);
		*out = s;
		return 0;
	}
	code = check_limit(c, r, err);
	if (code == 0)
		code = store_check(c->store, r, config, err);
	s = code == 0 ? calloc(1, sizeof(*s)) : NULL;
	if (!s) {
		run_free(r);
		return code < 0 ? code : error_oom(err);
	}
	*s = (struct submission){
	    .controller = c, .run = r, .config = strdup(config), .done = done, .context = context};
	code = s->config ? 0 : error_oom(err);
	if (code == 0 && c->settled)
		code = take_number(s, err);
	if (code < 0) {
		submission_free(s);
		return code;
	}
	append(s);
	*out = s;
	return 0;
}

void submission_abandon(struct submission *s)
{
	s->done = NULL;
	if (!s->run)
		return;
	unlink_submission(s);
	submission_free(s);
}

static void finish(struct submission *s, enum run_state state, const struct error *err)
{
	unlink_submission(s);
	if (s->done)
		s->done(s->context, s->id, state, err);
	submission_free(s);
}

void submissions_number(struct controller *c)
{
	struct submission *next;

	for (struct submission *s = c->submissions; s; s = next) {
		struct error err = ERROR_INIT;

		next = s->next;
		if (s->run && take_number(s, &err) < 0)
			finish(s, RUN_QUEUED, &err);
	}
}

void submissions_answer(struct controller *c, const struct error *err)
{
	struct submission *next;

	for (struct submission *s = c->submissions; s; s = next) {
		int64_t id = s->id;
		const struct run *r = queue_find(&c->queue, id);
		const char *refusal;
		struct error own = ERROR_INIT;

		next = s->next;
		if (s->run || s->commit > c->commits)
			continue;
		refusal = err ? NULL : store_refusal(c->store, id);
		if (refusal)
			error_set(&own, -E2BIG, "%s", refusal);
		finish(s, r && controller_is_committed(c, r) ? r->state : RUN_QUEUED, refusal ? &own : err);
		if (!err && !refusal)
			continue;
		/* It is in no store, so it never was, and no slot is its own. */
		run_free(queue_take(&c->queue, id));
		c->reschedule = true;
		/* What has failed as a whole is tried again later. */
		if (refusal)
			controller_touch(c);
	}
}

void submissions_free(struct controller *c)
{
	while (c->submissions) {
		struct submission *s = c->submissions;

		c->submissions = s->next;
		submission_free(s);
	}
}
