/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of the bed: they take starts and stops, and report what they have. */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "controller_bed_internal.h"
#include "wire/heartbeat.h"

static const char *const state_words[] = {"", "running", "ended"};

struct node *node_find(const struct bed *b, const char *name)
{
	for (size_t i = 0; i < b->node_count; i++)
		if (str_eq(b->nodes[i].name, name))
			return (struct node *)&b->nodes[i];
	ck_abort_msg("there is no node %s", name);
	return NULL;
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

void node_send_heartbeat(struct bed *b, struct node *n)
{
	json_t *attempts = json_array(), *body;

	for (size_t i = 0; i < ATTEMPTS; i++)
		if (n->attempts[i].state != NONE)
			json_array_append_new(attempts, describe_attempt(n, &n->attempts[i]));
	body = json_pack("{s:s,s:s,s:I,s:s,s:o,s:o,s:[i,i]}", "node", n->name, "instance", n->instance,
	                 "sequence", (json_int_t)++n->sequence, "version", "1", "devices",
	                 describe_devices(n), "attempts", attempts, "ports", 4001, 4002);
	if (n->shutting_down)
		json_object_set_new(body, "shutting_down", json_true());
	if (n->cluster[0])
		json_object_set_new(body, "known",
		                    json_pack("{s:I,s:[{s:s,s:I}]}", "highest_run",
		                              (json_int_t)n->highest_run, "clusters", "id", n->cluster,
		                              "epoch", (json_int_t)n->epoch));
	ck_assert_ptr_nonnull(body);
	bed_send(b, (struct packet){.kind = BEAT, .node = n, .body = body}, LATENCY + n->delay);
}

void node_end_attempt(struct bed *b, struct node *n, struct attempt *a, int exit_status, bool stopped)
{
	a->state = ENDED;
	a->exit_status = exit_status;
	a->stopped = stopped;
	a->ended = b->now + EPOCH;
	report(b, n, a);
}

void node_take_start(struct bed *b, struct packet *m)
{
	struct node *n = m->node;
	struct peer_result result = {.code = n->refuse_code, .message = n->refuse_message};
	struct attempt *free_one = NULL;

	n->starts++;
	n->refuse_code = 0;
	for (size_t i = 0; result.code == 0 && i < m->attempt.ranks; i++)
		if (run_on_slot(n, m->attempt.slot[i]))
			result = (struct peer_result){.code = -EBUSY, .message = "a slot is leased"};
	if (result.code == -EBUSY)
		result.backoff = HEARTBEAT;
	for (size_t i = 0; result.code == 0 && i < ATTEMPTS && !free_one; i++)
		if (n->attempts[i].state == NONE)
			free_one = &n->attempts[i];
	if (result.code == 0) {
		ck_assert_ptr_nonnull(free_one);
		*free_one = m->attempt;
		result.instance = n->instance;
		result.sequence = n->sequence;
	}
	if (n->lose_answer)
		bed_answer_never(b, m);
	else if (n == b->nodes)
		m->done(m->context, &result);
	else
		bed_answer(b, m, result, LATENCY);
	n->lose_answer = false;
	if (free_one)
		report(b, n, free_one);
}

void node_take_stop(struct bed *b, struct packet *m)
{
	struct attempt *a = node_find_attempt(m->node, m->attempt.run, m->attempt.attempt);

	if (a && a->state == RUNNING)
		node_end_attempt(b, m->node, a, 143, true);
	bed_answer(b, m, (struct peer_result){0}, LATENCY);
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

void node_take_heartbeat_answer(struct node *n, const struct heartbeat_answer *reply)
{
	/* The epoch is not on disk yet, or the answer is of an older controller. */
	if (!reply->cluster || reply->epoch < n->epoch)
		return;
	snprintf(n->cluster, sizeof(n->cluster), "%s", reply->cluster);
	n->epoch = reply->epoch;
	n->highest_run = MAX(n->highest_run, reply->highest_run);
	for (size_t i = 0; i < reply->forget_count; i++) {
		struct attempt *a = node_find_attempt(n, reply->forget[i].run, reply->forget[i].attempt);

		if (a)
			a->state = NONE;
	}
}
