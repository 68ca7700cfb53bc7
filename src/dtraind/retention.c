/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes the files of old runs in the background: one removal at a time. A run that has not ended keeps its
 * files on all nodes, also where no attempt of it is under way: the controller is asked first which these
 * runs are, and where it does not answer, nothing is removed.
 */
#include "dtraind/retention.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/background.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/runs.h"
#include "dtraind/leader.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "node/run_files.h"
#include "wire/error_answer.h"

/* Seconds: between two removals; the first, and the next one after the controller has not answered; until a
 * removal is no longer waited for; and the controller. */
static const double EACH = 3600, FIRST = 60, LONGEST = 600, ANSWER = 30;

struct retention {
	struct daemon *daemon;
	sd_event_source *timer;
	struct http_transfer *question; /* to the controller; NULL: none is under way */
	struct prune_request asked;     /* what is removed when it has answered */
	struct background *work;        /* NULL: none is under way */
	struct http_request *request;   /* that waits for it; NULL: none */
	bool unanswered;                /* the last question was, and this was logged */
};

/* What the thread has: copies. */
struct job {
	struct run_files_plan plan;
	char *logs, *metrics;
	int64_t *in_use;
	struct prune_answer answer;
	struct error error;
};

static void work(void *data)
{
	struct job *job = data;

	run_files_prune(&job->plan, &job->answer, &job->error);
}

static void release(void *data)
{
	struct job *job = data;

	prune_answer_release(&job->answer);
	free(job->logs);
	free(job->metrics);
	free(job->in_use);
	free(job);
}

static void answer_request(struct retention *t, const struct job *job)
{
	struct http_request *r = t->request;

	t->request = NULL;
	http_request_on_close(r, NULL, NULL);
	if (!job)
		http_reply_error(r, 504, "timeout", "the removal takes more than %g s; it goes on", LONGEST);
	else if (job->error.code < 0)
		http_reply_error(r, 500, "prune", "%s", job->error.message);
	else
		http_reply_json(r, 200, prune_answer_encode(&job->answer));
}

static void on_done(void *context, void *data)
{
	struct retention *t = context;
	const struct job *job = data;

	if (t->request)
		answer_request(t, job);
	if (!job)
		return; /* it goes on */
	t->work = NULL;
	if (job->error.code < 0 || job->answer.error)
		log_warn("files of old runs are left: %s",
		         job->error.code < 0 ? job->error.message : job->answer.error);
	if (job->answer.run_count > 0 && !job->plan.dry_run)
		log_info("removed the files of %zu old runs", job->answer.run_count);
}

/* Those that the controller has not ended, and those of which this node has an attempt that has not. */
static int list_in_use(const struct daemon *d, const struct active_runs *active, struct job *job)
{
	size_t here = 0, n = active->count;
	const struct report *report;

	while (node_attempt(d->node, here))
		here++;
	job->in_use = calloc(active->count + here + 1, sizeof(*job->in_use));
	if (!job->in_use)
		return -ENOMEM;
	if (n > 0)
		memcpy(job->in_use, active->runs, n * sizeof(*job->in_use));
	for (size_t i = 0; i < here && (report = node_attempt(d->node, i)); i++)
		if (report->state != ATTEMPT_ENDED)
			job->in_use[n++] = report->run;
	job->plan.in_use = job->in_use;
	job->plan.in_use_count = n;
	return 0;
}

static int remove_others(struct retention *t, const struct prune_request *request,
                         const struct active_runs *active, struct error *err)
{
	const struct daemon_config *config = t->daemon->settings->config;
	struct job *job = calloc(1, sizeof(*job));
	const struct background_task task = {.deadline = LONGEST,
	                                     .work = work,
	                                     .done = on_done,
	                                     .context = t,
	                                     .release = release,
	                                     .data = job};

	if (!job)
		return error_oom(err);
	job->logs = strdup(config->log_dir);
	job->metrics = str_path_join(config->state_dir, "runs");
	if (!job->logs || !job->metrics || list_in_use(t->daemon, active, job) < 0) {
		release(job);
		return error_oom(err);
	}
	job->plan.directories[0] = job->logs;
	job->plan.directories[1] = job->metrics;
	job->plan.days = request->days >= 0 ? request->days : config->keep_days;
	job->plan.runs = request->runs >= 0 ? request->runs : config->keep_runs;
	job->plan.dry_run = request->dry_run;
	job->plan.now = clock_realtime();
	return background_start(t->daemon->event, &task, &t->work, err);
}

static int read_answer(const struct http_answer *a, struct active_runs *active, struct error *err)
{
	_cleanup_json_ json_t *json = a->len ? json_loadb(a->body, a->len, 0, NULL) : NULL;
	struct error_answer refusal;

	if (a->status == 0)
		return error_set(err, a->error.code < 0 ? a->error.code : -EIO, "%s", a->error.message);
	if (a->status == 200)
		return active_runs_decode(json, active, err);
	error_answer_read(json, &refusal);
	return error_set(err, -EREMOTEIO, "%s",
	                 refusal.message ? refusal.message : "it answers with an error");
}

static void on_answer(void *context, const struct http_answer *a)
{
	struct retention *t = context;
	_cleanup_(active_runs_release) struct active_runs active = {0};
	struct http_request *request = t->request;
	struct error why = ERROR_INIT, err = ERROR_INIT;
	int r = read_answer(a, &active, &why);
	bool unanswered = r < 0;

	t->question = NULL;
	if (r == 0)
		r = remove_others(t, &t->asked, &active, &err);
	else
		error_set(&err, r, "the controller %s does not say which runs have not ended: %s",
		          leader_peer(t->daemon).name, why.message);
	if (r < 0 && request) {
		t->request = NULL;
		http_request_on_close(request, NULL, NULL);
		http_reply_error(request, unanswered ? 502 : 500, unanswered ? "unreachable" : "prune", "%s",
		                 err.message);
	} else if (r < 0 && !(unanswered && t->unanswered))
		log_warn("files of old runs are left: %s", err.message);
	t->unanswered = unanswered && (t->unanswered || !request);
	if (unanswered && !request)
		sd_event_source_set_time_relative(t->timer, (uint64_t)(FIRST * 1e6));
}

static int ask_controller(struct retention *t, const struct prune_request *request, struct error *err)
{
	const struct peer to = leader_peer(t->daemon);
	const struct http_call call = {.method = "GET",
	                               .address = to.address,
	                               .port = to.port,
	                               .node = to.name,
	                               .target = "/v1/peer/active-runs",
	                               .timeout = ANSWER,
	                               .context = t,
	                               .on_done = on_answer};

	t->asked = *request;
	return http_client_call(t->daemon->client, &call, &t->question, err);
}

/* Of this node's controller. */
static int list_active(const struct controller *c, struct active_runs *out, struct error *err)
{
	size_t n = controller_active_count(c);

	out->runs = calloc(n + 1, sizeof(*out->runs));
	if (!out->runs)
		return error_oom(err);
	for (; out->count < n; out->count++)
		out->runs[out->count] = controller_active_run(c, out->count)->id;
	return 0;
}

static int start(struct retention *t, const struct prune_request *request, struct error *err)
{
	const struct controller *c = t->daemon->controller;
	_cleanup_(active_runs_release) struct active_runs active = {0};

	if (!c)
		return ask_controller(t, request, err);
	return list_active(c, &active, err) < 0 ? err->code : remove_others(t, request, &active, err);
}

static bool is_under_way(const struct retention *t)
{
	return t->work || t->question;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *context)
{
	const struct prune_request configured = {.days = -1, .runs = -1};
	struct retention *t = context;
	const struct daemon_config *config = t->daemon->settings->config;
	struct error err = ERROR_INIT;

	if (!is_under_way(t) && (config->keep_days > 0 || config->keep_runs > 0) &&
	    start(t, &configured, &err) < 0)
		log_warn("files of old runs are left: %s", err.message);
	sd_event_source_set_time_relative(source, (uint64_t)(EACH * 1e6));
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

int retention_create(struct daemon *d, struct retention **out, struct error *err)
{
	struct retention *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return error_oom(err);
	t->daemon = d;
	r = sd_event_add_time_relative(d->event, &t->timer, CLOCK_BOOTTIME, (uint64_t)(FIRST * 1e6), 1000000,
	                               on_timer, t);
	if (r < 0) {
		free(t);
		return error_errno(err, r, "cannot set up the removal of old runs");
	}
	*out = t;
	return 0;
}

void retention_destroy(struct retention *t)
{
	if (!t)
		return;
	http_transfer_cancel(t->question);
	background_cancel(t->work);
	if (t->request)
		http_request_on_close(t->request, NULL, NULL);
	sd_event_source_disable_unref(t->timer);
	free(t);
}

static void on_closed(void *context)
{
	((struct retention *)context)->request = NULL;
}

void route_prune(void *context, struct http_request *r)
{
	struct daemon *d = context;
	struct retention *t = d->retention;
	struct prune_request request;
	struct error err = ERROR_INIT;
	json_t *body;
	int code;

	if (!caller_may(http_request_caller(r), 0)) {
		http_reply_error(r, 403, "not-allowed", "only administrators may remove the files of runs");
		return;
	}
	if (is_under_way(t)) {
		http_reply_error(r, 409, "under-way", "files of old runs are being removed already");
		return;
	}
	body = http_request_json(r);
	if (!body)
		return;
	code = prune_request_decode(body, &request, &err);
	json_decref(body);
	if (code < 0) {
		http_reply_error(r, 400, "bad-json", "%s", err.message);
		return;
	}
	if (start(t, &request, &err) < 0) {
		http_reply_error(r, 500, "prune", "%s", err.message);
		return;
	}
	t->request = r;
	http_request_on_close(r, on_closed, t);
}

void route_peer_active_runs(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_(active_runs_release) struct active_runs active = {0};
	struct error err = ERROR_INIT;

	if (list_active(d->controller, &active, &err) < 0)
		http_reply_error(r, 500, "out-of-memory", "%s", err.message);
	else
		http_reply_json(r, 200, active_runs_encode(&active));
}
