/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the controller to the nodes: the parts of an attempt are started. The attempt is on disk by then, and
 * each node answers that it has taken its part, or refuses it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"
#include "wire/start_request.h"

/* A call under way. The run may have gone on, or away, when the answer comes: it is looked up by these. */
struct start_call {
	struct controller *controller;
	int64_t run, attempt;
	double began;                 /* monotonic */
	struct start_request request; /* until it is sent */
	char node[];
};

static void start_call_free(struct start_call *call)
{
	if (!call)
		return;
	start_request_release(&call->request);
	free(call);
}

DEFINE_CLEANUP(struct start_call *, start_call_free)

/* The part that the call was about, if the run still stands where it stood. */
static struct run_part *find_part(const struct start_call *call, struct run **r)
{
	*r = queue_find(&call->controller->queue, call->run);
	if (!*r || (*r)->attempt != call->attempt)
		return NULL;
	return run_part_find(*r, call->node);
}

static void started(const struct start_call *call, const struct peer_result *result)
{
	struct run *r;
	struct run_part *part = find_part(call, &r);

	if (!part || part->ended)
		return;
	part->acknowledged = part->answered = true;
	snprintf(part->instance, sizeof(part->instance), "%s", result->instance ? result->instance : "");
	part->sequence = result->sequence;
	/* The stop may have overtaken the start. */
	if (r->state == RUN_STOPPING)
		stop_part(call->controller, r, part);
}

static void refused(const struct start_call *call, enum run_refusal why, const char *message)
{
	struct controller *c = call->controller;
	struct run *r;
	struct run_part *part = find_part(call, &r);

	if (part && !part->ended)
		apply_flags(c, r, run_refused(r, part, why, message, controller_time(c)));
}

static enum run_refusal refusal_of(int code)
{
	return code == -EBUSY ? REFUSED_BUSY : start_may_succeed_later(code) ? REFUSED_NODE : REFUSED_FINAL;
}

/* Another node may have the file. */
static void refused_for_lack(const struct start_call *call, const char *message)
{
	_cleanup_free_ char *origin = NULL, *text = NULL;
	struct run *r;

	if (find_part(call, &r))
		origin = origin_of_model(call->controller, r, call->node);
	text = origin ? str_printf("%s; %s", message, origin) : NULL;
	refused(call, REFUSED_FINAL, text ? text : message);
}

static void on_started(void *context, const struct peer_result *result)
{
	_cleanup_(start_call_freep) struct start_call *call = context;
	struct controller *c = call->controller;
	bool unreachable = result->code == -EHOSTUNREACH || result->code == -ECONNREFUSED;
	struct run_part *part;
	struct member *m;
	struct run *r;

	if (result->code == -ECANCELED)
		return;
	/* One that refuses the start has been reached. */
	note_reached(c, call->node, call->began, unreachable ? result : &(struct peer_result){.code = 0});
	if (result->code == 0) {
		if ((m = members_find(c->members, call->node)))
			member_set_failing(m, NULL, controller_now(c));
		started(call, result);
		return;
	}
	m = members_find(c->members, call->node);
	if (m && result->code == -ENOTRECOVERABLE) {
		log_warn("run %lld: node %s could not start it, nor any other: %s", (long long)call->run,
		         call->node, result->message);
		member_set_failing(m, result->message, controller_now(c));
		/* Nothing of the run is wrong. */
		refused(call, REFUSED_UNSENT, result->message);
		return;
	}
	if (m && result->backoff > 0)
		m->backoff_until = controller_now(c) + MAX(result->backoff, controller_interval(c));
	if (unreachable)
		log_warn("run %lld: node %s cannot be reached: %s", (long long)call->run, call->node,
		         result->message);
	if (result->code == -ENOENT) {
		refused_for_lack(call, result->message);
		return;
	}
	/* Another node, or this one later, gets the next attempt. */
	part = find_part(call, &r);
	if (result->code == -EHOSTUNREACH && part && !part->ended)
		lost_add(c, r, part, !part->acknowledged);
	refused(call, unreachable ? REFUSED_UNSENT : refusal_of(result->code), result->message);
}

/* The ranks of a node follow each other. *at: where to look for the first one; then behind the last one. */
static int copy_ranks(const struct run *r, const char *node, size_t *at, struct start_request *out)
{
	size_t first = *at, end;

	while (first < r->rank_count && !str_eq_host(r->ranks[first].node, node))
		first++;
	for (end = first; end < r->rank_count && str_eq_host(r->ranks[end].node, node);)
		end++;
	*at = end;
	out->ranks = calloc(end - first + 1, sizeof(*out->ranks));
	if (!out->ranks)
		return -ENOMEM;
	for (size_t i = first; i < end; i++) {
		const struct run_rank *rank = &r->ranks[i];
		struct start_rank *own = &out->ranks[out->rank_count];

		*own = (struct start_rank){
		    .rank = (int64_t)i, .local_rank = (int64_t)out->rank_count++, .slot = rank->slot};
		if (rank->slot_count == 0)
			continue;
		own->slots = calloc(rank->slot_count, sizeof(*own->slots));
		if (!own->slots)
			return -ENOMEM;
		memcpy(own->slots, rank->slots, rank->slot_count * sizeof(*own->slots));
		own->slot_count = rank->slot_count;
	}
	return 0;
}

/* Of one node; config is the run's as the store has it, at as in copy_ranks. To be released in any case. */
static int make_start(struct controller *c, const struct run *r, const json_t *config, size_t index, int port,
                      size_t *at, struct start_request *out, struct error *err)
{
	const struct member *master = members_find(c->members, r->parts[0].node);
	const struct member *m = members_find(c->members, r->parts[index].node);

	*out = (struct start_request){.epoch = store_epoch(c->store),
	                              .run = r->id,
	                              .attempt = r->attempt,
	                              .uid = r->uid,
	                              .gid = r->gid,
	                              .world_size = run_world_size(r),
	                              .nodes = r->nodes,
	                              .node_rank = (int64_t)index,
	                              .master_port = port,
	                              .checkpoint = r->retries.record.checkpoint,
	                              .until = m && m->sent > 0 ? m->sent + c->options.lease : 0};
	if (str_replace(&out->controller, c->options.name) < 0 ||
	    str_replace(&out->cluster, store_cluster(c->store)) < 0 ||
	    str_replace(&out->user, r->user ? r->user : "") < 0 ||
	    str_replace(&out->master_addr, r->nodes == 1 || !master ? "127.0.0.1" : master->address) < 0 ||
	    (r->retries.record.checkpoint_node &&
	     str_replace(&out->checkpoint_node, r->retries.record.checkpoint_node) < 0) ||
	    copy_ranks(r, r->parts[index].node, at, out) < 0)
		return error_oom(err);
	out->local_world_size = (int64_t)out->rank_count;
	return run_config_decode(config, "stored configuration", false, &out->config, err);
}

/* On the first node, where rank 0 listens. */
static int choose_port(struct controller *c, const struct run *r, struct error *err)
{
	struct member *m = members_find(c->members, r->parts[0].node);
	struct peer peer;
	int port;

	if (!m)
		return 0;
	peer = peer_of(m);
	port = c->options.peers.free_port(c->options.peers.context, &peer, err);
	return port ? port : member_take_port(m, r->id * 31 + r->attempt);
}

static int prepare_calls(struct controller *c, const struct run *r, struct start_call **calls,
                         struct error *err)
{
	_cleanup_json_ json_t *config = NULL;
	_cleanup_free_ char *text = NULL;
	int port = choose_port(c, r, err), code = port;
	size_t at = 0;

	if (code >= 0)
		code = store_config(c->store, r->id, &text, err);
	if (code == 0)
		code = json_parse(text, strlen(text), "stored configuration", &config, err);
	for (size_t i = 0; code == 0 && i < r->part_count; i++) {
		const char *node = r->parts[i].node;
		struct start_call *call = calls[i] = calloc(1, sizeof(*call) + strlen(node) + 1);

		if (!call)
			return error_oom(err);
		call->controller = c;
		call->run = r->id;
		call->attempt = r->attempt;
		strcpy(call->node, node);
		code = make_start(c, r, config, i, port, &at, &call->request, err);
	}
	return code;
}

static void send_call(struct controller *c, struct start_call *call)
{
	const struct member *m = members_find(c->members, call->node);
	struct peer peer;

	if (!m) {
		_cleanup_free_ char *message = str_printf("node %s is not in the hosts file", call->node);

		refused(call, REFUSED_NODE, message ? message : "");
		start_call_free(call);
		return;
	}
	call->began = controller_now(c);
	peer = peer_of(m);
	c->options.peers.start(c->options.peers.context, &peer, &call->request, on_started, call);
}

/* All calls are made before the first is sent, for an answer may change the run, or take its parts away. The
 * node of rank 0, which often is the controller's own, comes last: it starts its part while the calls to the
 * others are under way. */
static int start_attempt(struct controller *c, struct run *r, struct error *err)
{
	size_t count = r->part_count;
	_cleanup_free_ struct start_call **calls = calloc(count + 1, sizeof(struct start_call *));
	int code = calls ? prepare_calls(c, r, calls, err) : error_oom(err);

	for (size_t i = count; i-- > 0;) {
		if (code == 0)
			send_call(c, calls[i]);
		else if (calls)
			start_call_free(calls[i]);
	}
	return code;
}

/* The last of its parts to end takes them all away. */
static void end_unstarted(struct controller *c, struct run *r)
{
	size_t i = 0;

	while (i + 1 < r->part_count && r->parts[i].ended)
		i++;
	apply_flags(c, r, run_refused(r, &r->parts[i], REFUSED_UNSENT, "not started", controller_time(c)));
}

/* An attempt is on disk before any node hears of it: its number is a fence. */
void start_placed(struct controller *c)
{
	for (size_t i = 0; i < c->queue.placed_count; i++) {
		struct run *r = c->queue.placed[i];
		struct error err = ERROR_INIT;
		int code;

		if (!r->to_start || !controller_is_committed(c, r))
			continue;
		r->to_start = false;
		if (r->state !=
		    RUN_STARTING) { /* cancelled before it could be written down: no node has it */
			while (r->part_count > 0)
				end_unstarted(c, r);
			continue;
		}
		code = start_attempt(c, r, &err);
		if (code < 0) {
			for (size_t k = 0; k < r->part_count; k++)
				r->parts[k].ended = true;
			apply_flags(
			    c, r,
			    run_refused(r, &r->parts[0], refusal_of(code), err.message, controller_time(c)));
		}
	}
}
