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

static void enqueue(struct bed *b, struct packet packet, double delay)
{
	struct packet *m = malloc(sizeof(*m)), **at = &b->packets;

	*m = packet;
	m->due = b->now + delay;
	m->sent = b->now;
	while (*at && (*at)->due <= m->due)
		at = &(*at)->next;
	m->next = *at;
	*at = m;
}

static double chance(struct chaos *c)
{
	return rand_r(&c->state) / (RAND_MAX + 1.0);
}

/* A call without an answer is given up, whatever happens to it at the other end. */
static void give_up(struct bed *b, struct packet *call)
{
	if (call->done)
		bed_answer_never(b, call);
	call->done = NULL;
}

void bed_send(struct bed *b, struct packet packet, double delay)
{
	struct chaos *c = b->chaos;

	/* The controller's own node is called directly; a preflight, and that a caller gives up, is no
	 * message. */
	if (!c || packet.node == b->nodes || packet.kind == PREFLIGHT ||
	    (packet.kind == ANSWER && packet.result.code == -EHOSTUNREACH)) {
		enqueue(b, packet, delay);
		return;
	}
	if (chance(c) < c->drop) {
		give_up(b, &packet);
		json_decref(packet.body);
		return;
	}
	if (chance(c) < 0.2)
		delay += chance(c) * chance(c) * c->most_delay;
	if (packet.kind != ANSWER && delay > CALL_TIMEOUT)
		give_up(b, &packet);
	/* A start and an answer are sent once, over one connection. */
	if (packet.kind != ANSWER && packet.kind != START && chance(c) < c->repeat) {
		struct packet again = packet;

		again.done = NULL;
		json_incref(again.body);
		enqueue(b, again, delay + chance(c) * c->most_delay);
	}
	enqueue(b, packet, delay);
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
	                    .until = request->until,
	                    .checkpoint = request->checkpoint,
	                    .keeps = !run_config_stops_on_partition(request->config),
	                    .ranks = request->rank_count};
	struct packet packet;
	double delay;

	ck_ok(store_get(b->store, a.run, &stored, &err), &err);
	ck_assert_msg(stored->attempt == a.attempt,
	              "attempt %lld of run %lld is started before it is on disk", (long long)a.attempt,
	              (long long)a.run);
	ck_assert_uint_le(request->rank_count, SLOTS);
	snprintf(a.cluster, sizeof(a.cluster), "%s", request->cluster);
	snprintf(a.checkpoint_node, sizeof(a.checkpoint_node), "%s",
	         request->checkpoint_node ? request->checkpoint_node : "");
	for (size_t i = 0; i < request->rank_count; i++) {
		a.rank[i] = request->ranks[i].rank;
		a.slot[i] = request->ranks[i].slot;
	}
	b->slot_count = request->ranks[0].slot_count;
	for (size_t i = 0; i < b->slot_count; i++)
		b->slots[i] = request->ranks[0].slots[i];
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
	struct packet packet = {.kind = STOP,
	                        .node = node_find_peer(b, peer->name),
	                        .attempt = {.run = request->run, .attempt = request->attempt},
	                        .done = done,
	                        .context = done_context};

	ck_assert_msg(b->controller, "a node is called before the controller is there");
	b->stop = (struct stop_times){request->save, request->grace};
	if (packet.node)
		bed_send(b, packet, LATENCY);
	else
		bed_answer_never(b, &packet);
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
	const struct bed *b = context;

	node_find(b, peer->name);
	return b->port_code < 0 ? error_set(err, b->port_code, "no port is free") : 0;
}

static void deliver_report(struct bed *b, const json_t *body)
{
	_cleanup_(report_release) struct report report = {0};
	struct error err = ERROR_INIT;

	ck_ok(report_decode(body, &report, &err), &err);
	controller_report(b->controller, &report);
}

static void deliver_heartbeat(struct bed *b, struct node *n, const json_t *body, double sent)
{
	_cleanup_(short_heartbeat_release) struct short_heartbeat brief = {0};
	_cleanup_(heartbeat_release) struct heartbeat heartbeat = {0};
	_cleanup_(heartbeat_answer_release) struct heartbeat_answer reply = {0};
	bool is_short = json_object_get(body, "whole");
	struct error err = ERROR_INIT;
	int r;

	if (is_short) {
		ck_ok(short_heartbeat_decode(body, &brief, &err), &err);
		r = controller_short_heartbeat(b->controller, &brief, &reply, &err);
	} else {
		ck_ok(heartbeat_decode(body, &heartbeat, &err), &err);
		r = controller_heartbeat(b->controller, &heartbeat, &reply, &err);
		if (r == 0 && n != b->nodes)
			controller_keep_heartbeat(b->controller, &heartbeat, &reply);
	}
	ck_assert_msg(r == 0 || err.code == -EALREADY || err.code == -ENOENT ||
	                  (is_short && err.code == -ESTALE),
	              "%s", err.message);
	if (b->chaos && n != b->nodes && chance(b->chaos) < b->chaos->drop)
		return;
	if (r < 0) {
		node_take_refusal(b, n, is_short);
		return;
	}
	n->whole += !is_short;
	n->brief += is_short;
	if (n != b->nodes)
		n->interval = reply.interval;
	node_take_heartbeat_answer(n, &reply, sent);
}

static void deliver(struct bed *b, struct packet *m)
{
	_cleanup_json_ json_t *body = m->body;

	b->steps++;
	if (m->kind == ANSWER) {
		if (m->done)
			m->done(m->context, &m->result);
	} else if (m->kind == PREFLIGHT) {
		node_end_preflight(b, m);
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
		deliver_heartbeat(b, m->node, body, m->sent);
	}
}

/* ---- the clock and the event loop ---- */

static double monotonic(void *context)
{
	return ((struct bed *)context)->now;
}

static double realtime(void *context)
{
	const struct bed *b = context;

	return b->now + EPOCH + b->clock_jump;
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

		if (n->lease > 0 && n->lease <= b->now) {
			node_end_lease(b, n);
			return true;
		}
		if (n->next_heartbeat > b->now)
			continue;
		n->next_heartbeat += MAX(HEARTBEAT, n->interval);
		node_send_heartbeat(b, n);
		return true;
	}
	for (int i = 0; i < CONTROLLER_TIMERS; i++) {
		if (b->timers[i] < 0 || b->timers[i] > b->now)
			continue;
		b->timers[i] = -1;
		b->flushes += i == CONTROLLER_FLUSH;
		controller_run_timer(b->controller, i);
		return true;
	}
	return false;
}

static double next_event(const struct bed *b)
{
	double next = b->packets ? b->packets->due : INFINITY;

	for (size_t i = 0; i < b->node_count; i++) {
		next = MIN(next, b->nodes[i].next_heartbeat);
		if (b->nodes[i].lease > 0)
			next = MIN(next, b->nodes[i].lease);
	}
	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		if (b->timers[i] >= 0)
			next = MIN(next, b->timers[i]);
	return next;
}

void bed_pass(struct bed *b, double seconds)
{
	double end = b->now + seconds;

	for (;;) {
		if (handle_one(b)) {
			if (b->watch)
				b->watch(b, b->watch_context);
			continue;
		}
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
	    .lease = b->lease,
	    .most_heartbeats = b->most_heartbeats,
	    .user_limits = b->user_limits,
	    .clock = {b, monotonic, realtime, set_timer},
	    .peers = {b, peers_start, peers_stop, peers_set_device, peers_free_port},
	};
	_cleanup_free_ char *path = str_printf("%s/dtrain.db", b->dir);
	struct error err = ERROR_INIT;

	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		b->timers[i] = -1;
	held_store_open(path, &b->held, &b->store);
	options.store = b->store;
	b->controller = NULL;
	ck_ok(controller_create(&options, &b->controller, &err), &err);
	ck_ok(controller_listen_events(b->controller, on_event, b, &b->listener, &err), &err);
}

/* Stops the controller as if its process ended: messages to and from it that have not arrived are lost, but
 * for starts (keep_starts), which the nodes may have received and not yet begun. */
static void stop_controller(struct bed *b, bool keep_starts)
{
	for (struct packet **at = &b->packets; *at;) {
		struct packet *m = *at;
		struct peer_result result = {.code = -ECANCELED, .message = "the service stops"};

		if (m->done)
			m->done(m->context, &result);
		m->done = NULL;
		if (keep_starts && (m->kind == START || m->kind == PREFLIGHT)) {
			at = &m->next;
			continue;
		}
		*at = m->next;
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
	b->lease = LEASE;
	bed_set_user(b, "alice", 1000);
	ck_ok(hosts_parse(hosts, strlen(hosts), "hosts", &b->hosts, &err), &err);
	ck_assert_uint_le(b->hosts->count, NODES);
	for (; b->node_count < b->hosts->count; b->node_count++) {
		const struct host *h = &b->hosts->list[b->node_count];
		struct node *n = &b->nodes[b->node_count];

		ck_assert_int_le(h->slots, SLOTS);
		snprintf(n->name, sizeof(n->name), "%s", h->name);
		snprintf(n->instance, sizeof(n->instance), "boot-0");
		n->slots = h->slots;
		n->rate = 1;
		n->next_heartbeat = b->now;
	}
	start_controller(b);
	bed_pass(b, HEARTBEAT / 2);
	return b;
}

void bed_free(struct bed *b)
{
	stop_controller(b, false);
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
	int code;

	ck_ok(run_config_from_json(given, &config, &err), &err);
	ck_ok(run_config_to_json(config, &checked, &err), &err);
	ck_ok(run_new(config, &r, &err), &err);
	r->uid = r->gid = b->uid;
	r->user = strdup(b->user);
	text = json_to_string(checked);
	b->submitted = -1;
	code = controller_submit(b->controller, r, text, on_submitted, b, &submission, &err);
	if (code < 0) {
		on_submitted(b, 0, RUN_QUEUED, &err);
		return NULL;
	}
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

int64_t bed_submit_resources(struct bed *b, const char *resources)
{
	_cleanup_free_ char *text = str_printf(
	    "{\"task\":\"command\",\"name\":\"story\",\"command\":[\"true\"],\"directory\":\"/tmp\","
	    "\"resources\":{\"kind\":\"cpu\",%s}}",
	    resources);

	return bed_submit_config(b, text);
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

void bed_set_user(struct bed *b, const char *name, int64_t uid)
{
	snprintf(b->user, sizeof(b->user), "%s", name);
	b->uid = uid;
}

void bed_set_user_limits(struct bed *b, int64_t runs, int64_t slots)
{
	b->user_limits = (struct user_limits){runs, slots};
	controller_set_user_limits(b->controller, b->user_limits);
}

void bed_cancel(struct bed *b, int64_t run)
{
	controller_cancel_run(b->controller, run, "alice");
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

char *bed_node_text(struct bed *b, size_t index, const char *key)
{
	_cleanup_json_ json_t *nodes = controller_nodes_to_json(bed_controller(b));
	const char *text = json_get_string(json_array_get(json_object_get(nodes, "nodes"), index), key, NULL);

	return text ? strdup(text) : NULL;
}

void bed_lose_answer(struct bed *b, const char *node)
{
	node_find(b, node)->lose_answer = true;
}

void bed_lose_stops(struct bed *b, const char *node, bool lose)
{
	node_find(b, node)->lose_stops = lose;
}

struct heartbeat_counts bed_heartbeats(struct bed *b, const char *node)
{
	struct node *n = node_find(b, node);
	const struct heartbeat_counts counts = {n->whole, n->brief, n->refused};

	n->whole = n->brief = n->refused = 0;
	return counts;
}

void bed_cut_off(struct bed *b, const char *node, bool cut_off)
{
	node_find(b, node)->cut_off = cut_off;
}

/* A service that begins anew, on a machine that goes on. */
static void restart_service(struct bed *b, struct node *n)
{
	snprintf(n->instance, sizeof(n->instance), "boot-%d", ++n->boots);
	/* The connections are gone, and what was under way on them. */
	for (struct packet **at = &b->packets; *at;) {
		struct packet *m = *at;

		if (m->node != n || m->kind == ANSWER) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		if (m->done)
			bed_answer_never(b, m);
		json_decref(m->body);
		free(m);
		at = &b->packets;
	}
	n->sequence = 0;
	n->state = (struct heartbeat_state){0};
}

void bed_reboot(struct bed *b, const char *node)
{
	struct node *n = node_find(b, node);

	memset(n->attempts, 0, sizeof(n->attempts));
	restart_service(b, n);
	n->lease = 0;
	n->stopped_count = 0;
}

void bed_rename(struct bed *b, const char *node, const char *name)
{
	struct node *n = node_find(b, node);

	restart_service(b, n);
	snprintf(n->name, sizeof(n->name), "%s", name);
}

void bed_give_up_calls(struct bed *b)
{
	for (struct packet *m = b->packets; m; m = m->next)
		if (m->kind == START && m->done) {
			m->done(m->context, &(struct peer_result){.code = -EHOSTUNREACH,
			                                          .message = "timed out",
			                                          .backoff = NODE_TIMEOUT});
			m->done = NULL;
		}
}

void bed_set_delay(struct bed *b, const char *node, double seconds)
{
	node_find(b, node)->delay = seconds;
}

void bed_send_heartbeat(struct bed *b, const char *node)
{
	node_send_heartbeat(b, node_find(b, node));
}

void bed_set_lease(struct bed *b, double seconds)
{
	b->lease = seconds;
}

void bed_set_most_heartbeats(struct bed *b, int a_second)
{
	b->most_heartbeats = a_second;
}

void bed_repeat_heartbeat(struct bed *b, const char *node)
{
	node_find(b, node)->sequence--;
	bed_send_heartbeat(b, node);
}

struct stop_times bed_last_stop(const struct bed *b)
{
	return b->stop;
}

const int64_t *bed_last_slots(const struct bed *b, size_t *count)
{
	*count = b->slot_count;
	return b->slots;
}

void bed_break_ports(struct bed *b, int code)
{
	b->port_code = code;
}

const char *bed_state_dir(const struct bed *b)
{
	return b->dir;
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

int64_t bed_checkpoint_of(const struct bed *b, const char *node, int64_t run, const char **saved_on)
{
	const struct attempt *a = node_find_attempt(node_find(b, node), run, 0);

	ck_assert_ptr_nonnull(a);
	*saved_on = a->checkpoint_node;
	return a->checkpoint;
}

void bed_break_store(struct bed *b, bool broken)
{
	held_store_fail(b->held, broken ? INT_MAX : 0);
}

static void parse_hosts(struct bed *b, const char *hosts)
{
	struct error err = ERROR_INIT;

	hosts_free(steal_pointer(b->hosts));
	ck_ok(hosts_parse(hosts, strlen(hosts), "hosts", &b->hosts, &err), &err);
}

void bed_set_hosts(struct bed *b, const char *hosts)
{
	struct error err = ERROR_INIT;

	parse_hosts(b, hosts);
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

	stop_controller(b, false);
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

void bed_set_preflight(struct bed *b, const char *node, double seconds)
{
	node_find(b, node)->preflight = seconds;
}

void bed_crash_controller(struct bed *b)
{
	bed_break_store(b, true);
	stop_controller(b, true);
	start_controller(b);
}

void bed_restart_controller(struct bed *b)
{
	stop_controller(b, true);
	start_controller(b);
}

void bed_set_clock_ahead(struct bed *b, double seconds)
{
	b->clock_jump = seconds;
}

void bed_restart_later(struct bed *b, double seconds)
{
	stop_controller(b, true);
	b->now += seconds;
	start_controller(b);
}

void bed_restart_with_hosts(struct bed *b, const char *hosts)
{
	stop_controller(b, true);
	parse_hosts(b, hosts);
	start_controller(b);
}
