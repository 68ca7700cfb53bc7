/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of the bed: they take starts and stops, and report what they have. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "controller_bed_internal.h"
#include "wire/heartbeat.h"

static const char *const state_words[] = {"", "running", "ended"};

struct node *node_find_peer(const struct bed *b, const char *name)
{
	for (size_t i = 0; i < b->node_count; i++)
		if (str_eq_host(b->nodes[i].name, name))
			return (struct node *)&b->nodes[i];
	return NULL;
}

struct node *node_find(const struct bed *b, const char *name)
{
	struct node *n = node_find_peer(b, name);

	ck_assert_msg(n, "there is no node %s", name);
	return n;
}

struct attempt *node_find_attempt(const struct node *n, int64_t run, int64_t number)
{
	for (size_t i = 0; i < ATTEMPTS; i++)
		if (n->attempts[i].state != NONE && n->attempts[i].run == run &&
		    (number == 0 ? n->attempts[i].state == RUNNING : n->attempts[i].attempt == number))
			return (struct attempt *)&n->attempts[i];
	return NULL;
}

static int64_t run_on_slot(const struct node *n, int64_t slot)
{
	for (size_t i = 0; i < ATTEMPTS; i++)
		for (size_t k = 0; n->attempts[i].state == RUNNING && k < n->attempts[i].ranks; k++)
			if (n->attempts[i].slot[k] == slot)
				return n->attempts[i].run;
	return 0;
}

static json_t *describe_attempt(const struct node *n, const struct attempt *a)
{
	json_t *ranks = json_array();

	for (size_t i = 0; i < a->ranks; i++) {
		json_t *rank = json_pack("{s:I,s:I,s:s,s:i}", "rank", (json_int_t)a->rank[i], "slot",
		                         (json_int_t)a->slot[i], "state",
		                         a->state == ENDED ? "exited" : "running", "pid", 100 + (int)i);

		if (a->state == ENDED) {
			json_object_set_new(rank, "exit_status", json_integer(a->exit_status));
			json_object_set_new(rank, "ended", json_real(a->ended));
			json_object_set_new(rank, "stopped", json_boolean(a->stopped));
		}
		json_array_append_new(ranks, rank);
	}
	return json_pack("{s:I,s:I,s:s,s:s,s:s,s:I,s:o}", "run", (json_int_t)a->run, "attempt",
	                 (json_int_t)a->attempt, "node", n->name, "state", state_words[a->state], "cluster",
	                 a->cluster, "epoch", (json_int_t)a->epoch, "ranks", ranks);
}

static json_t *describe_devices(const struct node *n)
{
	json_t *devices = json_array();

	for (int i = 0; i < n->slots; i++) {
		int64_t run = run_on_slot(n, i);

		json_array_append_new(devices, json_pack("{s:s,s:i,s:s,s:s,s:i,s:i,s:s,s:o}", "node", n->name,
		                                         "index", i, "kind", "cpu", "name", "CPU", "memory",
		                                         0, "threads", 1, "state",
		                                         run             ? "leased"
		                                         : n->drained[i] ? "drained"
		                                                         : "free",
		                                         "run", run ? json_integer(run) : json_null()));
	}
	return devices;
}

static void report(struct bed *b, struct node *n, const struct attempt *a)
{
	bed_send(b, (struct packet){.kind = REPORT, .node = n, .body = describe_attempt(n, a)},
	         LATENCY + n->delay);
}

/* The clock of the node's leases. */
static double lease_clock(const struct bed *b, const struct node *n)
{
	return b->now / n->rate;
}

/* As dtraind/heartbeat.c does, which waits for the answer to each. Takes the whole one. */
static json_t *shorten(const struct bed *b, struct node *n, json_t *whole)
{
	_cleanup_(heartbeat_release) struct heartbeat heartbeat = {0};
	struct short_heartbeat brief;
	struct error err = ERROR_INIT;

	if (n == b->nodes) /* the controller's own */
		return whole;
	if (n->unanswered)
		heartbeat_state_answered(&n->state, NULL);
	n->unanswered = true;
	ck_ok(heartbeat_decode(whole, &heartbeat, &err), &err);
	if (!heartbeat_can_be_short(&n->state, &heartbeat, b->now))
		return whole;
	json_decref(whole);
	brief = heartbeat_shorten(&n->state, &heartbeat);
	return short_heartbeat_encode(&brief);
}

void node_send_heartbeat(struct bed *b, struct node *n)
{
	json_t *attempts = json_array(), *body;

	for (size_t i = 0; i < ATTEMPTS; i++)
		if (n->attempts[i].state != NONE)
			json_array_append_new(attempts, describe_attempt(n, &n->attempts[i]));
	body = json_pack("{s:s,s:s,s:I,s:s,s:o,s:o,s:[i,i]}", "node", n->name, "instance", n->instance,
	                 "sequence", (json_int_t)++n->sequence, "version", "1", "devices",
	                 describe_devices(n), "attempts", attempts, "ports", 4001, 4002);
	json_object_set_new(body, "boot", json_string(n->instance));
	json_object_set_new(body, "leases", json_boolean(n != b->nodes));
	json_object_set_new(body, "sent", json_real(lease_clock(b, n)));
	if (n->shutting_down)
		json_object_set_new(body, "shutting_down", json_true());
	if (n->cluster[0])
		/* It was of another cluster before. */
		json_object_set_new(body, "known",
		                    json_pack("{s:I,s:[{s:s,s:i},{s:s,s:I}]}", "highest_run",
		                              (json_int_t)n->highest_run, "clusters", "id", "0", "epoch", 99,
		                              "id", n->cluster, "epoch", (json_int_t)n->epoch));
	ck_assert_ptr_nonnull(body);
	bed_send(b, (struct packet){.kind = BEAT, .node = n, .body = shorten(b, n, body)},
	         LATENCY + n->delay);
}

void node_end_attempt(struct bed *b, struct node *n, struct attempt *a, int exit_status, bool stopped)
{
	a->state = ENDED;
	a->exit_status = exit_status;
	a->stopped = stopped;
	a->ended = b->now + EPOCH;
	report(b, n, a);
}

/* No start of it does anything from now on. */
static void remember_stopped(struct node *n, int64_t run, int64_t attempt)
{
	size_t i = n->stopped_next++ % STOPPED;

	n->stopped[i].run = run;
	n->stopped[i].attempt = attempt;
	n->stopped_count = MIN(n->stopped_next, (size_t)STOPPED);
}

static struct peer_result refusal(int code, const char *message)
{
	double backoff = code == -EBUSY ? HEARTBEAT : code == -ECONNREFUSED ? NODE_TIMEOUT : 0;

	return (struct peer_result){.code = code, .message = message, .backoff = backoff};
}

/* Whether the attempt may begin now. */
static struct peer_result check_start(const struct bed *b, const struct node *n, const struct attempt *a)
{
	if (a->until > 0 && lease_clock(b, n) >= a->until)
		return refusal(-EBUSY, "the start comes too late");
	if (a->until > 0 && n->lease == 0)
		return refusal(-EBUSY, "no heartbeat has been answered since its machine was started");
	if (n->lease < 0)
		return refusal(-EBUSY, "its lease has run out");
	for (size_t i = 0; i < n->stopped_count; i++)
		if (n->stopped[i].run == a->run && n->stopped[i].attempt == a->attempt)
			return refusal(-ESTALE, "it was stopped");
	for (size_t i = 0; i < a->ranks; i++)
		if (run_on_slot(n, a->slot[i]))
			return refusal(-EBUSY, "a slot is leased");
	return (struct peer_result){.instance = n->instance, .sequence = n->sequence};
}

static void answer_start(struct bed *b, const struct packet *m, struct peer_result result)
{
	struct node *n = m->node;

	if (m->done && n->lose_answer)
		bed_answer_never(b, m);
	else if (m->done && n == b->nodes)
		m->done(m->context, &result);
	else if (m->done)
		bed_answer(b, m, result, LATENCY);
	n->lose_answer = false;
}

void node_end_preflight(struct bed *b, struct packet *m)
{
	struct node *n = m->node;
	struct peer_result result = check_start(b, n, &m->attempt);
	struct attempt *free_one = NULL;

	for (size_t i = 0; result.code == 0 && i < ATTEMPTS && !free_one; i++)
		if (n->attempts[i].state == NONE)
			free_one = &n->attempts[i];
	if (result.code == 0) {
		ck_assert_ptr_nonnull(free_one);
		*free_one = m->attempt;
		free_one->unconfirmed = true;
		free_one->started = b->now;
	}
	answer_start(b, m, result);
	if (free_one)
		report(b, n, free_one);
}

void node_take_start(struct bed *b, struct packet *m)
{
	struct node *n = m->node;
	struct peer_result result = refusal(n->refuse_code, n->refuse_message);

	n->starts++;
	n->refuse_code = 0;
	/* The same start a second time. */
	if (node_find_attempt(n, m->attempt.run, m->attempt.attempt)) {
		result = (struct peer_result){.instance = n->instance, .sequence = n->sequence};
		if (m->done)
			bed_answer(b, m, result, LATENCY);
		return;
	}
	if (result.code == 0 && m->attempt.epoch < n->epoch && str_eq(m->attempt.cluster, n->cluster))
		result = refusal(-ESTALE, "a stale controller");
	if (result.code == 0)
		result = check_start(b, n, &m->attempt);
	if (result.code < 0)
		answer_start(b, m, result);
	else if (n->preflight > 0) {
		struct packet start = *m;

		start.kind = PREFLIGHT;
		bed_send(b, start, n->preflight);
	} else
		node_end_preflight(b, m);
	n->preflight = 0;
}

/* A preflight that is under way finds at its end that the attempt was stopped. */
void node_take_stop(struct bed *b, struct packet *m)
{
	struct attempt *a = node_find_attempt(m->node, m->attempt.run, m->attempt.attempt);

	if (m->node->lose_stops) {
		if (m->done)
			bed_answer_never(b, m);
		return;
	}
	if (a && a->state == RUNNING)
		node_end_attempt(b, m->node, a, 143, true);
	else if (!a)
		remember_stopped(m->node, m->attempt.run, m->attempt.attempt);
	if (!m->done)
		return;
	bed_answer(b, m, (struct peer_result){.instance = m->node->instance, .sequence = m->node->sequence},
	           LATENCY);
}

void node_end_lease(struct bed *b, struct node *n)
{
	n->lease = -1;
	for (size_t i = 0; i < ATTEMPTS; i++) {
		struct attempt *a = &n->attempts[i];

		if (a->state == RUNNING && (!a->keeps || a->unconfirmed))
			node_end_attempt(b, n, a, 143, true);
	}
}

void node_set_device(struct bed *b, struct packet *m)
{
	if (m->slot >= m->node->slots) {
		bed_answer(b, m, (struct peer_result){.code = -ENOENT, .message = "there is no such slot"},
		           LATENCY);
		return;
	}
	m->node->drained[m->slot] = m->drained;
	bed_answer(b, m, (struct peer_result){0}, LATENCY);
}

void node_take_refusal(struct bed *b, struct node *n, bool is_short)
{
	n->unanswered = false;
	heartbeat_state_answered(&n->state, NULL);
	n->refused += is_short;
	if (is_short)
		node_send_heartbeat(b, n);
}

void node_take_heartbeat_answer(struct node *n, const struct heartbeat_answer *reply, double sent)
{
	n->unanswered = false;
	heartbeat_state_answered(&n->state, reply);
	if (reply->cluster && reply->epoch < n->epoch) /* of an older controller */
		return;
	if (reply->cluster) { /* else its epoch is not on disk yet */
		snprintf(n->cluster, sizeof(n->cluster), "%s", reply->cluster);
		n->epoch = reply->epoch;
	}
	n->lease = reply->lease > 0 ? MAX(n->lease, sent + reply->lease * n->rate) : INFINITY;
	for (size_t i = 0; i < ATTEMPTS; i++)
		if (n->attempts[i].started < sent)
			n->attempts[i].unconfirmed = false;
	n->highest_run = MAX(n->highest_run, reply->highest_run);
	for (size_t i = 0; i < reply->forget_count; i++) {
		struct attempt *a = node_find_attempt(n, reply->forget[i].run, reply->forget[i].attempt);

		if (!a)
			continue;
		a->state = NONE;
		remember_stopped(n, a->run, a->attempt);
	}
}
