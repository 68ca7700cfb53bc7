/* SPDX-License-Identifier: Apache-2.0 */
/* Starts whose preflight is under way. */
#include "node/starts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "node/launch/preflight.h"
#include "node/preflight_process.h"

/* A preflight that has not ended then never does; the controller waits for half a minute. */
enum { PREFLIGHT_SECONDS = 20 };

struct waiter {
	struct waiter *next;
	node_started_fn started;
	void *context;
};

struct start {
	struct start *next;
	struct starts *starts;
	struct request *request;
	struct request_place place;
	char *dir, *logs; /* behind place */
	struct preflight_call *preflight;
	struct waiter *waiters;
};

struct starts {
	sd_event *event;
	struct starts_callbacks callbacks;
	struct preflight_spare *spare;
	struct start *list;
};

static char *launcher_path(const struct daemon_config *config)
{
	return str_printf("%s/dtrain-launch", config->worker_dir);
}

static void prepare_spare(struct starts *s, const struct daemon_config *config)
{
	_cleanup_free_ char *launcher = launcher_path(config);

	if (launcher)
		preflight_spare_prepare(s->spare, launcher);
}

int starts_create(sd_event *event, const struct daemon_config *config,
                  const struct starts_callbacks *callbacks, struct starts **out, struct error *err)
{
	struct starts *s = calloc(1, sizeof *s);
	int r;

	if (!s)
		return error_oom(err);
	s->event = event;
	s->callbacks = *callbacks;
	r = preflight_spare_create(event, &s->spare, err);
	if (r < 0) {
		free(s);
		return r;
	}
	prepare_spare(s, config);
	*out = s;
	return 0;
}

static struct start *find(const struct starts *s, int64_t run, int64_t attempt)
{
	struct start *x = s->list;

	while (x && (x->request->run != run || x->request->attempt != attempt))
		x = x->next;
	return x;
}

static void unlink_start(struct start *x)
{
	struct start **at = &x->starts->list;

	while (*at && *at != x)
		at = &(*at)->next;
	if (*at)
		*at = x->next;
}

/* Releases the slots, or hands them to the attempt, before any caller is answered. */
static void end(struct start *x, int code, const char *message)
{
	unlink_start(x);
	preflight_cancel(x->preflight);
	while (x->waiters) {
		struct waiter *w = x->waiters;

		x->waiters = w->next;
		w->started(w->context, code, message);
		free(w);
	}
	if (x->request)
		request_free(x->request);
	free(x->dir);
	free(x->logs);
	free(x);
}

void starts_destroy(struct starts *s)
{
	if (!s)
		return;
	while (s->list)
		end(s->list, -ESHUTDOWN, "the service is being stopped");
	preflight_spare_destroy(s->spare);
	free(s);
}

static int add_waiter(struct start *x, node_started_fn started, void *context)
{
	struct waiter *w = calloc(1, sizeof *w);

	if (!w)
		return -ENOMEM;
	*w = (struct waiter){x->waiters, started, context};
	x->waiters = w;
	return 0;
}

static void on_preflight(void *context, const struct run_user *user, const struct error *failure)
{
	struct start *x = context;
	struct starts *s = x->starts;
	struct error err = ERROR_INIT;
	int r;

	x->preflight = NULL;
	prepare_spare(s, x->place.config);
	unlink_start(x); /* its slots are not in its own way */
	if (failure)
		r = error_set(&err, failure->code, "%s", failure->message);
	else
		r = s->callbacks.begin(s->callbacks.context, &x->request, &x->place, user, &err);
	end(x, r, err.message);
	if (r < 0)
		s->callbacks.freed(s->callbacks.context);
}

static int start_preflight(struct start *x, struct error *err)
{
	const struct request *q = x->request;
	const struct daemon_config *config = x->place.config;
	_cleanup_free_ char *program = NULL, *launcher = launcher_path(config);
	struct preflight_request what = {
	    .user = (char *)q->user,
	    .uid = q->uid,
	    .directory = q->config->directory,
	    .engine = (char *)request_engine(q, &x->place),
	    .log_dir = config->log_dir,
	    .own_mounts = x->place.own_mounts,
	};
	const char *path = NULL;
	int r = launcher ? request_program(q, &x->place, &program, &path, err) : error_oom(err);

	if (r < 0)
		return r;
	what.program = program;
	what.path = (char *)path;
	if (q->native) {
		what.model = q->config->model.path ? q->config->model.path : q->config->model.init;
		what.teacher = q->config->distillation.teacher;
		what.reward_model = run_config_policy(q->config)->reward_model;
		what.reference = run_config_policy(q->config)->reference;
		if (!what.reference)
			what.reference = q->config->preference.reference;
		what.offload_dir = q->config->parallel.offload_dir;
		what.socket = config->socket;
		if (q->node_rank == 0) /* rank 0 writes */
			what.output_dir = q->config->output.dir;
	}
	return preflight_start(x->starts->event, x->starts->spare, launcher, &what, PREFLIGHT_SECONDS,
	                       on_preflight, x, &x->preflight, err);
}

int starts_add(struct starts *s, struct request **request, const struct request_place *place,
               node_started_fn started, void *context, struct error *err)
{
	struct start *x = calloc(1, sizeof *x);
	int r;

	if (!x)
		return error_oom(err);
	*x = (struct start){.next = s->list, .starts = s, .request = *request, .place = *place};
	s->list = x;
	*request = NULL;
	x->place.dir = x->dir = strdup(place->dir);
	x->place.logs = x->logs = strdup(place->logs);
	r = x->dir && x->logs ? start_preflight(x, err) : error_oom(err);
	if (r == 0 && add_waiter(x, started, context) < 0)
		r = error_oom(err);
	if (r < 0)
		end(x, r, "");
	return r;
}

bool starts_wait(struct starts *s, int64_t run, int64_t attempt, node_started_fn started, void *context)
{
	struct start *x = find(s, run, attempt);

	return x && add_waiter(x, started, context) == 0;
}

void starts_stop(struct starts *s, int64_t run, int64_t attempt)
{
	struct start *x = find(s, run, attempt);

	if (!x)
		return;
	end(x, -ECANCELED, "stopped before it had begun");
	s->callbacks.freed(s->callbacks.context);
}

const struct request *starts_holder(const struct starts *s, int slot)
{
	for (const struct start *x = s->list; x; x = x->next)
		if (request_has_slot(x->request, slot))
			return x->request;
	return NULL;
}

int64_t starts_newest(const struct starts *s, int64_t run)
{
	int64_t newest = 0;

	for (const struct start *x = s->list; x; x = x->next)
		if (x->request->run == run)
			newest = MAX(newest, x->request->attempt);
	return newest;
}
