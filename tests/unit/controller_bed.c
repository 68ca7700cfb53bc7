/* SPDX-License-Identifier: Apache-2.0 */
/* Network, clock and event loop as stand-ins around a controller: controller_bed.h. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "cluster/store.h"
#include "config/run.h"
#include "controller/nodes.h"
#include "controller/reconcile.h"
#include "controller/runs.h"
#include "controller/submit.h"
#include "controller_bed_internal.h"
#include "held_store.h"
#include "wire/heartbeat.h"
#include "wire/start_request.h"

/* ---- the network ---- */

void bed_send(struct bed *b, struct packet packet, double delay)
{
	struct packet *m = malloc(sizeof(*m)), **at = &b->packets;

	*m = packet;
	m->due = b->now + delay;
	while (*at && (*at)->due <= m->due)
		at = &(*at)->next;
	m->next = *at;
	*at = m;
}

void bed_answer(struct bed *b, const struct packet *call, struct peer_result result, double delay)
{
	bed_send(b,
	         (struct packet){.kind = ANSWER,
	                         .node = call->node,
	                         .done = call->done,
	                         .context = call->context,
	                         .result = result},
	         delay);
}

void bed_answer_never(struct bed *b, const struct packet *call)
{
	bed_answer(
	    b, call,
	    (struct peer_result){.code = -EHOSTUNREACH, .message = "timed out", .backoff = NODE_TIMEOUT},
	    CALL_TIMEOUT);
}

static void peers_start(void *context, const struct peer *peer, struct start_request *request,
                        peer_done_fn done, void *done_context)
{
	struct bed *b = context;
	_cleanup_(run_freep) struct run *stored = NULL;
	struct error err = ERROR_INIT;
	struct attempt a = {.run = request->run,
	                    .attempt = request->attempt,
	                    .epoch = request->epoch,
	                    .state = RUNNING,
	                    .ranks = request->rank_count};
	struct packet packet;
	double delay;

	ck_ok(store_get(b->store, a.run, &stored, &err), &err);
	ck_assert_msg(stored->attempt == a.attempt,
	              "attempt %lld of run %lld is started before it is on disk", (long long)a.attempt,
	              (long long)a.run);
	ck_assert_uint_le(request->rank_count, SLOTS);
	snprintf(a.cluster, sizeof(a.cluster), "%s", request->cluster);
	for (size_t i = 0; i < request->rank_count; i++) {
		a.rank[i] = request->ranks[i].rank;
		a.slot[i] = request->ranks[i].slot;
	}
	start_request_release(request);
	packet = (struct packet){.kind = START,
	                         .node = node_find(b, peer->name),
	                         .attempt = a,
	                         .done = done,
	                         .context = done_context};
	delay = packet.node->start_delay;
	packet.node->start_delay = 0;
	/* The controller's own node is called directly, and answers before the call returns. */
	if (packet.node == b->nodes && !packet.node->cut_off && delay == 0)
		node_take_start(b, &packet);
	else
		bed_send(b, packet, LATENCY + delay);
}

static void peers_stop(void *context, const struct peer *peer, const struct stop_request *request,
                       peer_done_fn done, void *done_context)
{
	struct bed *b = context;

	bed_send(b,
	         (struct packet){.kind = STOP,
	                         .node = node_find(b, peer->name),
	                         .attempt = {.run = request->run, .attempt = request->attempt},
	                         .done = done,
	                         .context = done_context},
	         LATENCY);
}

static void peers_set_device(void *context, const struct peer *peer, int64_t slot, bool drained,
                             const char *reason, peer_done_fn done, void *done_context)
{
	struct bed *b = context;

	bed_send(b,
	         (struct packet){.kind = SET_DEVICE,
	                         .node = node_find(b, peer->name),
	                         .slot = slot,
	                         .drained = drained,
	                         .done = done,
	                         .context = done_context},
	         LATENCY);
}

static int peers_free_port(void *context, const struct peer *peer, struct error *err)
{
	return 0;
}

static void deliver_report(struct bed *b, const json_t *body)
{
	_cleanup_(report_release) struct report report = {0};
	struct error err = ERROR_INIT;

	ck_ok(report_decode(body, &report, &err), &err);
	controller_report(b->controller, &report);
}

static void deliver_heartbeat(struct bed *b, struct node *n, const json_t *body)
{
	_cleanup_(heartbeat_release) struct heartbeat heartbeat = {0};
	_cleanup_(heartbeat_answer_release) struct heartbeat_answer reply = {0};
	struct error err = ERROR_INIT;

	ck_ok(heartbeat_decode(body, &heartbeat, &err), &err);
	ck_ok(controller_heartbeat(b->controller, &heartbeat, &reply, &err), &err);
	node_take_heartbeat_answer(n, &reply);
}

static void deliver(struct bed *b, struct packet *m)
{
	_cleanup_json_ json_t *body = m->body;

	if (m->kind == ANSWER) {
		m->done(m->context, &m->result);
	} else if (m->node->cut_off) {
		if (m->done)
			bed_answer_never(b, m);
	} else if (m->kind == START) {
		node_take_start(b, m);
	} else if (m->kind == STOP) {
		node_take_stop(b, m);
	} else if (m->kind == SET_DEVICE) {
		node_set_device(b, m);
	} else if (m->kind == REPORT) {
		deliver_report(b, body);
	} else {
		deliver_heartbeat(b, m->node, body);
	}
}

/* ---- the clock and the event loop ---- */

static double monotonic(void *context)
{
	return ((struct bed *)context)->now;
}

static double realtime(void *context)
{
	return ((struct bed *)context)->now + EPOCH;
}

static void set_timer(void *context, enum controller_timer timer, double at)
{
	((struct bed *)context)->timers[timer] = at;
}

/* Handles one event that is due, in the order of the event loop: input first, then timers by priority. A
 * commit takes no time. */
static bool handle_one(struct bed *b)
{
	struct packet *m = b->packets;

	if (store_is_busy(b->store)) {
		held_store_await_done(b->store);
		controller_dispatch_store(b->controller);
		return true;
	}
	if (m && m->due <= b->now) {
		b->packets = m->next;
		deliver(b, m);
		free(m);
		return true;
	}
	for (size_t i = 0; i < b->node_count; i++) {
		struct node *n = &b->nodes[i];

		if (n->next_heartbeat > b->now)
			continue;
		n->next_heartbeat += HEARTBEAT;
		node_send_heartbeat(b, n);
		return true;
	}
	for (int i = 0; i < CONTROLLER_TIMERS; i++) {
		if (b->timers[i] < 0 || b->timers[i] > b->now)
			continue;
		b->timers[i] = -1;
		controller_run_timer(b->controller, i);
		return true;
	}
	return false;
}

static double next_event(const struct bed *b)
{
	double next = b->packets ? b->packets->due : INFINITY;

	for (size_t i = 0; i < b->node_count; i++)
		next = MIN(next, b->nodes[i].next_heartbeat);
	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		if (b->timers[i] >= 0)
			next = MIN(next, b->timers[i]);
	return next;
}

void bed_pass(struct bed *b, double seconds)
{
	double end = b->now + seconds;

	for (;;) {
		if (handle_one(b))
			continue;
		if (next_event(b) > end)
			break;
		b->now = next_event(b);
	}
	b->now = end;
}

/* ---- stories ---- */

static void on_event(void *context, const char *data, size_t len)
{
	_cleanup_json_ json_t *event = data ? json_loadb(data, len, 0, NULL) : NULL;
	int64_t run = json_get_int(event, "run", 0);
	const char *state = json_get_string(event, "state", "");
	_cleanup_(run_freep) struct run *stored = NULL;
	struct error err = ERROR_INIT;
	struct bed *b = context;

	if (data)
		strbuf_add(&b->events, data, len);
	if (!run || run_state_set(state) & run_state_set("active"))
		return;
	ck_ok(store_get(b->store, run, &stored, &err), &err);
	ck_assert_msg(str_eq(run_state_name(stored->state), state),
	              "run %lld is announced as %s before that is on disk", (long long)run, state);
}

static void start_controller(struct bed *b)
{
	struct controller_options options = {
	    .name = b->nodes[0].name,
	    .state_dir = b->dir,
	    .hosts = b->hosts,
	    .default_port = 29600,
	    .node_timeout = NODE_TIMEOUT,
	    .clock = {b, monotonic, realtime, set_timer},
	    .peers = {b, peers_start, peers_stop, peers_set_device, peers_free_port},
	};
	_cleanup_free_ char *path = str_printf("%s/dtrain.db", b->dir);
	struct error err = ERROR_INIT;

	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		b->timers[i] = -1;
	held_store_open(path, &b->held, &b->store);
	options.store = b->store;
	ck_ok(controller_create(&options, &b->controller, &err), &err);
	ck_ok(controller_listen_events(b->controller, on_event, b, &b->listener, &err), &err);
}

/* Stops the controller as if its process ended: messages to and from it that have not arrived are lost. */
static void stop_controller(struct bed *b)
{
	while (b->packets) {
		struct packet *m = b->packets;
		struct peer_result result = {.code = -ECANCELED, .message = "the service stops"};

		b->packets = m->next;
		if (m->done)
			m->done(m->context, &result);
		json_decref(m->body);
		free(m);
	}
	run_free(steal_pointer(b->owned));
	feed_remove(b->listener);
	controller_destroy(b->controller);
	held_store_free(b->held);
}

struct bed *bed_create(const char *hosts)
{
	struct bed *b = calloc(1, sizeof(*b));
	struct error err = ERROR_INIT;

	ck_assert_ptr_nonnull(b);
	b->dir = unit_tmpdir();
	b->now = 1000;
	ck_ok(hosts_parse(hosts, strlen(hosts), "hosts", &b->hosts, &err), &err);
	ck_assert_uint_le(b->hosts->count, NODES);
	for (; b->node_count < b->hosts->count; b->node_count++) {
		const struct host *h = &b->hosts->list[b->node_count];
		struct node *n = &b->nodes[b->node_count];

		ck_assert_int_le(h->slots, SLOTS);
		snprintf(n->name, sizeof(n->name), "%s", h->name);
		snprintf(n->instance, sizeof(n->instance), "boot-0");
		n->slots = h->slots;
		n->next_heartbeat = b->now;
	}
	start_controller(b);
	bed_pass(b, HEARTBEAT / 2);
	return b;
}

void bed_free(struct bed *b)
{
	stop_controller(b);
	strbuf_free(&b->events);
	hosts_free(b->hosts);
	file_remove_tree(b->dir, NULL);
	free(b->dir);
	free(b);
}

struct controller *bed_controller(struct bed *b)
{
	return b->controller;
}

static void on_submitted(void *context, int64_t id, enum run_state state, const struct error *err)
{
	struct bed *b = context;

	b->submitted = id;
	b->refused = err ? err->code : 0;
}

static struct submission *begin_submission(struct bed *b, const json_t *given)
{
	_cleanup_json_ json_t *checked = NULL;
	_cleanup_(run_config_freep) struct run_config *config = NULL;
	_cleanup_free_ char *text = NULL;
	struct submission *submission;
	struct error err = ERROR_INIT;
	struct run *r = NULL;

	ck_ok(run_config_from_json(given, &config, &err), &err);
	ck_ok(run_config_to_json(config, &checked, &err), &err);
	ck_ok(run_new(config, &r, &err), &err);
	r->uid = r->gid = 1000;
	r->user = strdup("alice");
	text = json_to_string(checked);
	b->submitted = -1;
	ck_ok(controller_submit(b->controller, r, text, on_submitted, b, &submission, &err), &err);
	return submission;
}

struct submission *bed_begin_submission(struct bed *b, int nodes, int per_node)
{
	_cleanup_json_ json_t *given = json_pack(
	    "{s:s,s:s,s:[s],s:s,s:{s:i,s:i,s:s}}", "task", "command", "name", "story", "command", "true",
	    "directory", "/tmp", "resources", "nodes", nodes, "devices_per_node", per_node, "kind", "cpu");

	return begin_submission(b, given);
}

int64_t bed_submitted(const struct bed *b)
{
	return b->submitted;
}

static void await_submission(struct bed *b)
{
	for (double end = b->now + LONGEST_WAIT; b->submitted < 0 && b->now < end;)
		bed_pass(b, LATENCY / 10);
	ck_assert_msg(b->submitted >= 0, "a submission is not answered");
}

static void submit(struct bed *b, int nodes, int per_node)
{
	bed_begin_submission(b, nodes, per_node);
	await_submission(b);
}

int64_t bed_submit_config(struct bed *b, const char *text)
{
	_cleanup_json_ json_t *given = json_loads(text, 0, NULL);

	begin_submission(b, given);
	await_submission(b);
	ck_assert_int_eq(b->refused, 0);
	return b->submitted;
}

int64_t bed_submit(struct bed *b, int nodes, int per_node)
{
	submit(b, nodes, per_node);
	ck_assert_int_eq(b->refused, 0);
	return b->submitted;
}

int bed_submit_failing(struct bed *b)
{
	submit(b, 1, 1);
	ck_assert_int_lt(b->refused, 0);
	return b->refused;
}

void bed_cancel(struct bed *b, int64_t run)
{
	controller_cancel_run(b->controller, run);
}

const struct run *bed_run(struct bed *b, int64_t run)
{
	struct error err = ERROR_INIT;
	const struct run *r;

	run_free(steal_pointer(b->owned));
	ck_ok(controller_find_run(b->controller, run, &r, &b->owned, &err), &err);
	return r;
}

void bed_await(struct bed *b, int64_t run, enum run_state state)
{
	for (double end = b->now + LONGEST_WAIT; bed_run(b, run)->state != state && b->now < end;)
		bed_pass(b, LATENCY);
	ck_assert_msg(bed_run(b, run)->state == state, "run %lld is %s (%s), and not %s", (long long)run,
	              run_state_name(bed_run(b, run)->state),
	              bed_run(b, run)->reason ? bed_run(b, run)->reason : "", run_state_name(state));
}

int bed_count_events(const struct bed *b, const char *words)
{
	int count = 0;

	for (const char *p = b->events.data; p && (p = strstr(p, words)); p++)
		count++;
	return count;
}

void bed_end_ranks(struct bed *b, const char *node, int64_t run, int exit_status)
{
	struct node *n = node_find(b, node);
	struct attempt *a = node_find_attempt(n, run, 0);

	ck_assert_msg(a, "run %lld does not run on %s", (long long)run, node);
	node_end_attempt(b, n, a, exit_status, false);
}

void bed_refuse_next(struct bed *b, const char *node, int code, const char *message)
{
	node_find(b, node)->refuse_code = code;
	node_find(b, node)->refuse_message = message;
}

void bed_lose_answer(struct bed *b, const char *node)
{
	node_find(b, node)->lose_answer = true;
}

void bed_cut_off(struct bed *b, const char *node, bool cut_off)
{
	node_find(b, node)->cut_off = cut_off;
}

void bed_reboot(struct bed *b, const char *node)
{
	struct node *n = node_find(b, node);

	memset(n->attempts, 0, sizeof(n->attempts));
	snprintf(n->instance, sizeof(n->instance), "boot-%d", ++n->boots);
	n->sequence = 0;
}

void bed_set_delay(struct bed *b, const char *node, double seconds)
{
	node_find(b, node)->delay = seconds;
}

void bed_send_heartbeat(struct bed *b, const char *node)
{
	node_send_heartbeat(b, node_find(b, node));
}

int bed_starts(const struct bed *b, const char *node)
{
	return node_find(b, node)->starts;
}

int64_t bed_attempt_on(const struct bed *b, const char *node, int64_t run)
{
	const struct attempt *a = node_find_attempt(node_find(b, node), run, 0);

	return a ? a->attempt : 0;
}

void bed_break_store(struct bed *b, bool broken)
{
	held_store_fail(b->held, broken ? INT_MAX : 0);
}

void bed_set_hosts(struct bed *b, const char *hosts)
{
	struct error err = ERROR_INIT;

	hosts_free(steal_pointer(b->hosts));
	ck_ok(hosts_parse(hosts, strlen(hosts), "hosts", &b->hosts, &err), &err);
	ck_ok(controller_set_hosts(b->controller, b->hosts, 29600, NODE_TIMEOUT, &err), &err);
}

void bed_plant(struct bed *b, const char *node, const char *cluster, int64_t run)
{
	struct node *n = node_find(b, node);

	for (size_t i = 0; i < ATTEMPTS; i++) {
		struct attempt *a = &n->attempts[i];

		if (a->state != NONE)
			continue;
		*a = (struct attempt){
		    .run = run, .attempt = 1, .epoch = 1, .state = RUNNING, .ranks = 1, .slot = {0}};
		snprintf(a->cluster, sizeof(a->cluster), "%s", cluster);
		return;
	}
	ck_abort_msg("node %s is full", node);
}

void bed_copy_store(struct bed *b, bool back)
{
	_cleanup_free_ char *live = str_printf("%s/dtrain.db", b->dir),
	                    *copy = str_printf("%s/copy.db", b->dir), *data = NULL;
	struct error err = ERROR_INIT;
	size_t len;

	stop_controller(b);
	ck_ok(file_read(back ? copy : live, 0, &data, &len, &err), &err);
	ck_ok(file_write_atomic(back ? live : copy, data, len, 0600, &err), &err);
	start_controller(b);
}

void bed_shut_down(struct bed *b, const char *node)
{
	node_find(b, node)->shutting_down = true;
}

void bed_delay_start(struct bed *b, const char *node, double seconds)
{
	node_find(b, node)->start_delay = seconds;
}

void bed_crash_controller(struct bed *b)
{
	bed_break_store(b, true);
	stop_controller(b);
	start_controller(b);
}

void bed_restart_controller(struct bed *b)
{
	stop_controller(b);
	start_controller(b);
}
