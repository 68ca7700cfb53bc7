/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A controller of two nodes with one slot each, for tests of the order in which it acts: the test controls
 * the time, the nodes and the speed of the store. controller_bed.h is for stories that need none of this.
 */
#pragma once

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster/store.h"
#include "config/run.h"
#include "controller/commit.h"
#include "controller/controller.h"
#include "controller/nodes.h"
#include "controller/reconcile.h"
#include "controller/runs.h"
#include "controller/submit.h"
#include "controller/waiters.h"
#include "held_store.h"
#include "unit.h"
#include "wire/heartbeat.h"
#include "wire/start_request.h"

struct bed {
	char *dir;
	struct controller *controller;
	struct held_store *held;
	struct store *store;
	double now, due[CONTROLLER_TIMERS]; /* due < 0: not set */
	int sequence;
	int refusal;       /* n2's answer to starts; 0: it takes them */
	bool keeps_answer; /* n2 answers the next start later: with answer_late */
	peer_done_fn late;
	void *late_context;
	struct peer_result stopped;   /* what nodes answer when they are to stop something */
	void (*others)(bool begin);   /* called where what the nodes do begins, and ends; NULL: not needed */
	char starts[256], stops[256]; /* "n1:RUN.ATTEMPT " each */
};

static inline double now(void *context)
{
	return ((struct bed *)context)->now;
}

static inline void set_timer(void *context, enum controller_timer timer, double at)
{
	((struct bed *)context)->due[timer] = at;
}

/* A node's start, which checks that the attempt is on disk. */
static inline void start(void *context, const struct peer *peer, struct start_request *request,
                         peer_done_fn done, void *done_context)
{
	struct peer_result result = {.instance = "x"};
	_cleanup_(run_freep) struct run *r = NULL;
	struct bed *b = context;
	struct error err = ERROR_INIT;

	if (b->others)
		b->others(true);
	ck_ok(store_get(b->store, request->run, &r, &err), &err);
	ck_assert_int_eq(r->attempt, request->attempt);
	ck_assert_int_eq(r->state, RUN_STARTING);
	sprintf(b->starts + strlen(b->starts), "%s:%d.%d ", peer->name, (int)request->run,
	        (int)request->attempt);
	start_request_release(request);
	if (str_eq(peer->name, "n2") && b->refusal)
		result = (struct peer_result){.code = b->refusal, .message = "slot 0 is leased"};
	run_free(steal_pointer(r));
	if (b->others)
		b->others(false);
	if (str_eq(peer->name, "n2") && b->keeps_answer) {
		b->keeps_answer = false;
		b->late = done;
		b->late_context = done_context;
		return;
	}
	done(done_context, &result);
}

static inline void stop(void *context, const struct peer *peer, const struct stop_request *request,
                        peer_done_fn done, void *done_context)
{
	struct bed *b = context;

	sprintf(b->stops + strlen(b->stops), "%s:%d.%d ", peer->name, (int)request->run,
	        (int)request->attempt);
	done(done_context, &b->stopped);
}

static inline int free_port(void *context, const struct peer *peer, struct error *err)
{
	return 4000;
}

/* What the service does after it has read all input: it takes the store's results, then runs the timers that
 * are due. */
static inline void turn(struct bed *b)
{
	bool more = true;

	if (poll(&(struct pollfd){.fd = controller_store_fd(b->controller), .events = POLLIN}, 1, 0) == 1)
		controller_dispatch_store(b->controller);
	while (more) {
		more = false;
		for (int i = 0; i < CONTROLLER_TIMERS; i++) {
			if (b->due[i] < 0 || b->due[i] > b->now)
				continue;
			b->due[i] = -1;
			controller_run_timer(b->controller, i);
			more = true;
		}
	}
}

/* Waits for the end of the commit that is in progress and no longer held. */
static inline void commit_ends(struct bed *b)
{
	held_store_release(b->held);
	held_store_await_done(b->store);
	turn(b);
}

/* Waits until nothing is left to be committed. */
static inline void commits_end(struct bed *b)
{
	held_store_release(b->held);
	while (store_is_busy(b->store)) {
		held_store_await_done(b->store);
		turn(b);
	}
}

/* From now on commits are held; the controller begins one, if one is due. */
static inline void turn_held(struct bed *b)
{
	held_store_hold(b->held);
	turn(b);
	if (store_is_busy(b->store))
		held_store_await_held(b->held);
}

/* Sends a heartbeat; attempts: its reports, as JSON. Returns the ended attempts that the answer allows the
 * node to remove, "RUN.ATTEMPT " each; the caller frees it. */
static inline char *heartbeat(struct bed *b, const char *node, const char *attempts)
{
	_cleanup_free_ char *text =
	    str_printf("{\"node\":\"%s\",\"instance\":\"x\",\"sequence\":%d,\"version\":\"1\",\"devices\":["
	               "{\"node\":\"%s\",\"index\":0,\"kind\":\"cpu\",\"name\":\"x\",\"memory\":1,"
	               "\"threads\":1,\"state\":\"free\",\"run\":null}],"
	               "\"ports\":[4001],\"attempts\":[%s]}",
	               node, ++b->sequence, node, attempts);
	_cleanup_json_ json_t *json = json_loads(text, 0, NULL);
	_cleanup_(heartbeat_release) struct heartbeat beat = {0};
	_cleanup_(heartbeat_answer_release) struct heartbeat_answer answer = {0};
	_cleanup_strbuf_ struct strbuf forget = {0};
	struct error err = ERROR_INIT;

	ck_assert_ptr_nonnull(json);
	ck_ok(heartbeat_decode(json, &beat, &err), &err);
	ck_ok(controller_heartbeat(b->controller, &beat, &answer, &err), &err);
	strbuf_adds(&forget, "");
	for (size_t i = 0; i < answer.forget_count; i++)
		strbuf_addf(&forget, "%d.%d ", (int)answer.forget[i].run, (int)answer.forget[i].attempt);
	return strdup(forget.data ? forget.data : "");
}

static inline void heartbeats(struct bed *b)
{
	free(heartbeat(b, "n1", ""));
	free(heartbeat(b, "n2", ""));
}

static inline char *report(int run, int attempt, const char *node, int rank, const char *state)
{
	return str_printf(
	    "{\"run\":%d,\"attempt\":%d,\"node\":\"%s\",\"state\":\"%s\",\"ranks\":[{\"rank\":%d,"
	    "\"state\":\"%s\"%s}]}",
	    run, attempt, node, state, rank, str_eq(state, "ended") ? "exited" : state,
	    str_eq(state, "ended") ? ",\"exit_status\":0" : "");
}

/* Both nodes of an attempt report the state of their part. */
static inline void both_report(struct bed *b, int run, int attempt, const char *state)
{
	static const char *const nodes[] = {"n1", "n2"};

	for (int i = 0; i < 2; i++) {
		_cleanup_free_ char *text = report(run, attempt, nodes[i], i, state);
		_cleanup_json_ json_t *json = json_loads(text, 0, NULL);
		_cleanup_(report_release) struct report decoded = {0};
		struct error err = ERROR_INIT;

		ck_ok(report_decode(json, &decoded, &err), &err);
		controller_report(b->controller, &decoded);
	}
}

static inline struct hosts *make_hosts(void)
{
	static const char text[] = "n1 slots=1\nn2 slots=1\n";
	struct error err = ERROR_INIT;
	struct hosts *hosts;

	ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
	return hosts;
}

static inline struct controller_options bed_options(struct bed *b, const struct hosts *hosts)
{
	return (struct controller_options){
	    .name = "n1",
	    .state_dir = b->dir,
	    .default_port = 1,
	    .node_timeout = 1e6,
	    .clock = {b, now, now, set_timer},
	    .peers = {.context = b, .start = start, .stop = stop, .free_port = free_port},
	    .hosts = hosts,
	};
}

static inline void bed_open(struct bed *b)
{
	_cleanup_(hosts_freep) struct hosts *hosts = make_hosts();
	_cleanup_free_ char *path = str_printf("%s/dtrain.db", b->dir);
	struct controller_options options = bed_options(b, hosts);
	struct error err = ERROR_INIT;

	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		b->due[i] = -1;
	held_store_open(path, &b->held, &b->store);
	options.store = b->store;
	ck_ok(controller_create(&options, &b->controller, &err), &err);
	heartbeats(b);
	turn(b);
	commits_end(b);
}

static inline void bed_close(struct bed *b)
{
	controller_destroy(b->controller);
	held_store_free(b->held);
}

static inline void bed_start(struct bed *b)
{
	*b = (struct bed){.dir = unit_tmpdir(), .now = 1000};
	bed_open(b);
}

static inline void bed_end(struct bed *b)
{
	bed_close(b);
	file_remove_tree(b->dir, NULL);
	free(b->dir);
}

/* The answer to a submission. */
struct answer {
	int count;
	int64_t id;
	enum run_state state;
	char error[256];
};

static inline void on_submitted(void *context, int64_t id, enum run_state state, const struct error *err)
{
	struct answer *a = context;

	a->count++;
	a->id = id;
	a->state = state;
	if (err)
		strcpy(a->error, err->message);
}

static const char run_on_both[] =
    "{\"task\":\"command\",\"name\":\"test\",\"directory\":\"/tmp\","
    "\"resources\":{\"nodes\":2,\"devices_per_node\":1,\"max_node_failures\":1}}";

/* A run on both nodes, which is the caller's. */
static inline struct run *make_run(const char *key)
{
	_cleanup_json_ json_t *json = json_loads(run_on_both, 0, NULL);
	_cleanup_(run_config_freep) struct run_config *config = NULL;
	struct error err = ERROR_INIT;
	struct run *r = NULL;

	ck_ok(run_config_decode(json, "test", false, &config, &err), &err);
	ck_ok(run_new(config, &r, &err), &err);
	r->user = strdup("alice");
	ck_assert_int_eq(str_replace(&r->key, key), 0);
	return r;
}

static inline void submit_with(struct bed *b, struct answer *a, const char *key)
{
	struct error err = ERROR_INIT;
	struct submission *s;

	*a = (struct answer){0};
	ck_ok(controller_submit(b->controller, make_run(key), run_on_both, on_submitted, a, &s, &err), &err);
}

static inline void submit(struct bed *b, struct answer *a)
{
	submit_with(b, a, NULL);
}

/* The same; it is on disk, and started if it can be, when this returns. */
static inline void submit_and_commit(struct bed *b, struct answer *a)
{
	submit(b, a);
	turn(b);
	commits_end(b);
}

static inline int count(void *context, const struct run *r, struct error *err)
{
	++*(int *)context;
	return 0;
}

static inline int listed(struct bed *b, const char *states)
{
	struct error err = ERROR_INIT;
	int n = 0;

	ck_ok(controller_list_runs(b->controller,
	                           &(struct run_query){.states = run_state_set(states), .limit = 100}, count,
	                           &n, &err),
	      &err);
	return n;
}

/* The state of a run; -1: there is no such run. */
static inline int state_of(struct bed *b, int64_t id)
{
	_cleanup_(run_freep) struct run *owned = NULL;
	const struct run *r;

	return controller_find_run(b->controller, id, &r, &owned, NULL) < 0 ? -1 : (int)r->state;
}

static inline void note_state(void *context, const struct run *r)
{
	*(int *)context = r->state;
}
