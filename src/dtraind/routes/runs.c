/* SPDX-License-Identifier: Apache-2.0 */
/* Routes of runs: submission, listing, one run and waiting for it, cancelling, logs. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "config/run.h"
#include "controller/nodes.h"
#include "controller/runs.h"
#include "controller/submit.h"
#include "controller/waiters.h"
#include "dtraind/log_streams.h"
#include "dtraind/proxy.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/committed.h"
#include "dtraind/routes/routes.h"
#include "wire/submission_key.h"

/* The most that one answer lists; for more, the caller asks again with before=. */
enum { LIST_DEFAULT = 100, LIST_MAX = 1000 };

/* May this caller submit here at all? */
static bool check_submitter(const struct daemon_config *config, struct http_request *r)
{
	const struct http_caller *caller = http_request_caller(r);

	if (caller->uid < 0 || !caller->user) {
		http_reply_error(r, 403, "no-such-user",
		                 "the caller has no user name: a run needs a user to run as");
		return false;
	}
	if (caller->uid == 0 && !config->allow_root) {
		http_reply_error(r, 403, "not-allowed",
		                 "runs of root are refused: allow_root of dtraind.conf; submit as a user");
		return false;
	}
	if (geteuid() != 0 && caller->uid != geteuid()) {
		http_reply_error(
		    r, 403, "not-allowed",
		    "dtraind runs as an ordinary user here and can start programs as that user only");
		return false;
	}
	return true;
}

/* The run file in the body, checked again, for a service believes no client; and its normal form for the
 * store. */
static int read_config(const json_t *body, struct run_config **config, json_t **normal, struct error *err)
{
	_cleanup_(submit_request_release) struct submit_request given = {0};
	int r;

	if ((r = submit_request_decode(body, &given, err)) < 0 ||
	    (r = run_config_from_json(given.config, config, err)) < 0)
		return r;
	if (!(*config)->directory || (*config)->directory[0] != '/')
		return error_set(err, -EINVAL,
		                 "directory: the absolute path of the working directory is needed");
	return run_config_to_json(*config, normal, err);
}

/* A caller who waits until its run is on disk. */
struct submit_wait {
	struct http_request *request;
	struct submission *submission;
};

static void on_submit_closed(void *context)
{
	_cleanup_free_ struct submit_wait *w = context;

	submission_abandon(w->submission);
}

static void refuse_submission(struct http_request *r, const struct error *err)
{
	if (err->code == -E2BIG)
		http_reply_error(r, 413, "too-large", "%s", err->message);
	else
		http_reply_error(r, 500, "store", "the run cannot be written down: %s", err->message);
}

static void reply_accepted(struct http_request *r, int64_t id, enum run_state state)
{
	http_reply_json(r, 201, run_accepted_encode(&(struct run_accepted){id, state}));
}

static void on_submitted(void *context, int64_t id, enum run_state state, const struct error *err)
{
	_cleanup_free_ struct submit_wait *w = context;

	http_request_on_close(w->request, NULL, NULL);
	if (!err)
		reply_accepted(w->request, id, state);
	else if (err->code == -EALREADY)
		http_reply_error(w->request, 409, "repeated", "%s", err->message);
	else
		refuse_submission(w->request, err);
}

/* Takes run. */
static void submit(struct daemon *d, struct http_request *r, struct run *run, const char *config)
{
	struct submit_wait *w = calloc(1, sizeof(*w));
	struct error err = ERROR_INIT;
	int code;

	if (!w) {
		run_free(run);
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return;
	}
	w->request = r;
	code = controller_submit(d->controller, run, config, on_submitted, w, &w->submission, &err);
	if (code < 0) {
		free(w);
		if (code == -EDQUOT)
			http_reply_error(r, 429, "too-many-runs", "%s", err.message);
		else
			refuse_submission(r, &err);
		return;
	}
	http_request_on_close(r, on_submit_closed, w);
}

/* False: answered already. A submission that is repeated because its answer was lost gets the run that there
 * is: what was checked then is not checked again. */
static bool check_key(struct controller *c, struct http_request *r, const char *key)
{
	struct error err = ERROR_INIT;
	enum run_state state;
	int64_t id;
	int code;

	if (!key)
		return true;
	if (!submission_key_is_valid(key)) {
		http_reply_error(r, 400, "bad-key",
		                 SUBMISSION_KEY_HEADER ": 1 to %d letters, digits, - and _ are needed",
		                 SUBMISSION_KEY_MAX);
		return false;
	}
	code = controller_find_submitted(c, http_request_caller(r)->uid, key, &id, &state, &err);
	if (code == 0)
		reply_accepted(r, id, state);
	else if (code != -ENOENT)
		http_reply_error(r, 500, "store", "%s", err.message);
	return code == -ENOENT;
}

void route_submit(void *context, struct http_request *r)
{
	struct daemon *d = context;
	const struct http_caller *caller = http_request_caller(r);
	const char *key = http_request_header(r, SUBMISSION_KEY_HEADER);
	_cleanup_(run_config_freep) struct run_config *config = NULL;
	_cleanup_json_ json_t *body = NULL, *normal = NULL;
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	struct run *run = NULL;
	int code;

	if (!check_submitter(d->settings->config, r) || !check_key(d->controller, r, key))
		return;
	body = http_request_json(r);
	if (!body)
		return;
	if (read_config(body, &config, &normal, &err) < 0 || run_new(config, &run, &err) < 0) {
		reply_not_taken(r, "bad-config", &err);
		return;
	}
	run->uid = caller->uid;
	run->gid = caller->gid;
	run->user = strdup(caller->user);
	text = json_to_string(normal);
	if (!run->user || str_replace(&run->key, key) < 0 || !text) {
		run_free(run);
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return;
	}
	code = controller_check(d->controller, run, &err);
	if (code < 0) {
		http_reply_error(r, code == -ENODEV ? 409 : 500,
		                 code == -ENODEV ? "impossible" : "out-of-memory", "%s", err.message);
		run_free(run);
		return;
	}
	submit(d, r, run, text);
}

/* The answer grows as text, a run at a time: as one tree of JSON it would be many times as large. */
static int list_add(void *context, const struct run *r, struct error *err)
{
	struct strbuf *text = context;
	json_t *json = run_to_json(r, false);
	_cleanup_free_ char *one = json ? json_to_string(json) : NULL;

	json_decref(json);
	if (!one)
		return error_oom(err);
	strbuf_adds(text, text->len ? "," : RUN_LIST_BEGIN);
	strbuf_adds(text, one);
	return 0;
}

void route_runs(void *context, struct http_request *r)
{
	struct daemon *d = context;
	const char *word = http_request_query(r, "state");
	struct run_query query = {.states = run_state_set(word ? word : "all"),
	                          .user = http_request_query(r, "user")};
	_cleanup_strbuf_ struct strbuf text = {0};
	struct error err = ERROR_INIT;
	int code;

	if (http_request_query_int(r, "limit", 1, LIST_MAX, LIST_DEFAULT, &query.limit) < 0 ||
	    http_request_query_int(r, "before", 0, INT64_MAX, 0, &query.before) < 0)
		return;
	if (query.states == 0) {
		http_reply_error(r, 400, "bad-query",
		                 "state=%s: active, all, or a state is needed: queued, starting, "
		                 "running, stopping, succeeded, failed, cancelled, timed-out",
		                 word);
		return;
	}
	code = controller_list_runs(d->controller, &query, list_add, &text, &err);
	strbuf_adds(&text, text.len ? RUN_LIST_END : RUN_LIST_BEGIN RUN_LIST_END);
	if (code == 0 && text.failed)
		code = error_oom(&err);
	if (code < 0)
		http_reply_error(r, 500, "store", "%s", err.message);
	else
		http_reply_bytes(r, 200, "application/json", text.data, text.len);
}

/* The run as it is now, "config" included as far as the caller may see it. */
static void reply_run(struct controller *c, struct http_request *request, const struct run *r)
{
	_cleanup_free_ char *text = NULL;
	bool own = caller_may_run(http_request_caller(request), r);
	_cleanup_json_ json_t *config = NULL;
	struct error err = ERROR_INIT;

	/* The command line, the variables and the paths are shown to the owner only. */
	if (own && controller_run_config(c, r->id, &text, &err) == 0)
		config = json_loads(text, 0, NULL);
	if (err.code == -ENOMEM) {
		http_reply_error(request, 500, "out-of-memory", "%s", err.message);
		return;
	}
	http_reply_json(request, 200, run_to_json_with(r, own, config));
}

/* A caller who waits for a run to change. */
struct run_wait {
	struct controller *controller;
	struct http_request *request;
	struct waiter *waiter;
};

static void on_run_closed(void *context)
{
	_cleanup_free_ struct run_wait *w = context;

	waiter_free(w->waiter);
}

static void on_run_changed(void *context, const struct run *run)
{
	_cleanup_free_ struct run_wait *w = context;

	http_request_on_close(w->request, NULL, NULL);
	reply_run(w->controller, w->request, run);
}

static void wait_for_run(struct controller *c, struct http_request *r, const struct run *run, unsigned states,
                         int64_t version)
{
	struct run_wait *w;

	if (waiter_is_needless(run, states, version)) {
		reply_run(c, r, run);
		return;
	}
	w = calloc(1, sizeof(*w));
	if (w) {
		*w = (struct run_wait){c, r, NULL};
		w->waiter = waiter_create(c, run->id, states, version, on_run_changed, w);
	}
	if (!w || !w->waiter) {
		free(w);
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return;
	}
	http_request_on_close(r, on_run_closed, w);
}

void route_run(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_(run_freep) struct run *owned = NULL;
	const char *wait = http_request_query(r, "wait"), *state = http_request_query(r, "state");
	unsigned states = state ? run_state_set(state) : 0;
	const struct run *run;
	int64_t version;

	if (http_request_query_int(r, "version", 0, INT64_MAX, 0, &version) < 0)
		return;
	run = route_find_run(d->controller, r, false, &owned);
	if (!run)
		return;
	if (state && states == 0)
		http_reply_error(r, 400, "bad-query", "state=%s: there is no such state", state);
	else if (!wait || owned)
		reply_run(d->controller, r, run);
	else if (strcmp(wait, "change") == 0)
		wait_for_run(d->controller, r, run, states, version);
	else if (strcmp(wait, "1") == 0)
		wait_for_run(d->controller, r, run, states, INT64_MAX);
	else
		http_reply_error(r, 400, "bad-query", "wait=%s: 1 or change is needed", wait);
}

void route_cancel(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_(run_freep) struct run *owned = NULL;
	const char *by = http_request_caller(r)->user;
	const struct run *run;
	json_t *accepted;
	char uid[32];
	int64_t id;

	run = route_find_run(d->controller, r, true, &owned);
	if (!run)
		return;
	if (owned || run_state_final(run->state)) {
		http_reply_error(r, 409, "ended", "run %lld has ended already: %s", (long long)run->id,
		                 run_state_name(run->state));
		return;
	}
	id = run->id;
	accepted = run_accepted_encode(&(struct run_accepted){id, RUN_STOPPING});
	if (!by)
		snprintf(uid, sizeof(uid), "uid %lld", (long long)http_request_caller(r)->uid);
	controller_cancel_run(d->controller, id, by ? by : uid);
	reply_when_committed(d->controller, r, id, 202, accepted);
}

/* A request for logs of a run that has no rank yet: it waits for the start. */
struct logs_wait {
	struct daemon *daemon;
	struct http_request *request;
	struct waiter *waiter;
	struct log_query query;
};

static void serve_logs(struct daemon *d, struct http_request *r, const struct run *run, struct log_query q);

static void on_logs_closed(void *context)
{
	struct logs_wait *w = context;

	waiter_free(w->waiter);
	free(w);
}

static void on_logs_ready(void *context, const struct run *run)
{
	_cleanup_free_ struct logs_wait *w = context;

	http_request_on_close(w->request, NULL, NULL);
	serve_logs(w->daemon, w->request, run, w->query);
}

static void wait_for_logs(struct daemon *d, struct http_request *r, const struct run *run,
                          const struct log_query *q)
{
	unsigned started = run_state_set("running") | run_state_set("stopping");
	struct logs_wait *w = calloc(1, sizeof(*w));

	if (w) {
		*w = (struct logs_wait){d, r, NULL, *q};
		w->waiter = waiter_create(d->controller, run->id, started, INT64_MAX, on_logs_ready, w);
	}
	if (!w || !w->waiter) {
		free(w);
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return;
	}
	http_request_on_close(r, on_logs_closed, w);
}

static struct log_place find_place(struct daemon *d, const struct run_rank *rank)
{
	const char *node = rank->node;
	const struct member *m = controller_find_node(d->controller, node);
	struct log_place place = {.rank = rank->rank, .node = node};

	if (!str_eq_host(node, d->settings->name)) {
		place.address = m ? m->address : node;
		place.port = m ? m->port : d->settings->config->port;
	}
	return place;
}

static void serve_logs(struct daemon *d, struct http_request *r, const struct run *run, struct log_query q)
{
	size_t n = run->rank_count;
	_cleanup_free_ struct log_place *places = calloc(n + 1, sizeof(*places));
	_cleanup_free_ char *target = NULL;
	struct log_place one;

	if (!places) {
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return;
	}
	q.attempt = q.attempt ? q.attempt : run->attempt;
	if (n == 0 || q.rank >= (int64_t)n) {
		if (n == 0)
			http_reply_error(r, 404, "no-such-log",
			                 "run %lld has not started on any node: there is no log",
			                 (long long)run->id);
		else
			http_reply_error(r, 404, "no-such-rank", "run %lld has the ranks 0 to %zu",
			                 (long long)run->id, n - 1);
		return;
	}
	if (q.attempt > run->attempt) {
		http_reply_error(r, 404, "no-such-log", "run %lld has no attempt %lld: the newest is %lld",
		                 (long long)run->id, (long long)q.attempt, (long long)run->attempt);
		return;
	}
	if (q.rank < 0) {
		for (size_t i = 0; i < n; i++)
			places[i] = find_place(d, &run->ranks[i]);
		logs_serve_merged(d, r, &q, places, n);
		return;
	}
	one = find_place(d, &run->ranks[q.rank]);
	if (!one.address) {
		logs_serve_local(d, r, &q);
		return;
	}
	target = logs_target(&q, q.rank);
	pipe_call(d, r, &(struct peer){one.node, one.address, one.port}, target ? target : "/", NULL);
}

void route_logs(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_(run_freep) struct run *owned = NULL;
	const char *rank = http_request_query(r, "rank");
	struct log_query q = {0};
	const struct run *run;
	int64_t follow, positions;

	run = route_find_run(d->controller, r, true, &owned);
	if (!run || http_request_query_int(r, "attempt", 1, INT64_MAX, 0, &q.attempt) < 0 ||
	    http_request_query_int(r, "tail", 0, INT64_MAX, -1, &q.tail) < 0 ||
	    http_request_query_int(r, "follow", 0, 1, 0, &follow) < 0 ||
	    http_request_query_int(r, "positions", 0, 1, 0, &positions) < 0 ||
	    http_request_query_int(r, "offset", 0, INT64_MAX, -1, &q.offset) < 0)
		return;
	if (rank && strcmp(rank, "all") == 0)
		q.rank = -1;
	else if (http_request_query_int(r, "rank", 0, INT32_MAX, 0, &q.rank) < 0)
		return;
	q.run = run->id;
	q.follow = follow;
	q.positions = positions;
	if (q.follow && (run->state == RUN_QUEUED || run->state == RUN_STARTING))
		wait_for_logs(d, r, run, &q);
	else
		serve_logs(d, r, run, q);
}
