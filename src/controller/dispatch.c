/* SPDX-License-Identifier: Apache-2.0 */
/* From the controller to the nodes: start and stop. Our own node is called, the others over HTTP. */
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"
#include "dtraind/heartbeat.h"
#include "wire/start_request.h"

/* A call under way. The run may have gone on, or away, when the answer comes: it is looked up by these. */
struct dispatch {
	struct controller *controller;
	int64_t run, attempt;
	bool start;
	char node[];
};

static struct dispatch *dispatch_new(struct controller *c, int64_t run, int64_t attempt, const char *node)
{
	struct dispatch *d = calloc(1, sizeof(*d) + strlen(node) + 1);

	if (!d)
		return NULL;
	d->controller = c;
	d->run = run;
	d->attempt = attempt;
	strcpy(d->node, node);
	return d;
}

static bool is_local(const struct controller *c, const char *node)
{
	return strcasecmp(node, c->daemon->settings->name) == 0;
}

static int call(struct controller *c, struct dispatch *ctx, const char *target, const json_t *body,
                void (*done)(void *context, const struct http_answer *answer), struct error *err)
{
	struct member *m = members_find(c->members, ctx->node);
	_cleanup_free_ char *text = json_to_string(body);
	struct http_call call = {
	    .method = "POST",
	    .target = target,
	    .body = text,
	    .len = text ? strlen(text) : 0,
	    .headers = (const char *const[]){"Content-Type: application/json", NULL},
	    .timeout = 30,
	    .context = ctx,
	    .on_done = done,
	};

	if (!m || !text)
		return error_set(err, -ENOENT, "node %s is not in the hosts file", ctx->node);
	call.address = m->address;
	call.port = m->port;
	return http_client_call(c->daemon->peer_client, &call, NULL, err);
}

/* The part that the call was about, if the run still stands where it stood. */
static struct run_part *find_part(struct dispatch *d, struct run **r)
{
	*r = queue_find(&d->controller->queue, d->run);
	if (!*r || (*r)->attempt != d->attempt)
		return NULL;
	return run_part_find(*r, d->node);
}

static void started(struct dispatch *d, const struct start_answer *answer)
{
	struct run *r;
	struct run_part *part = find_part(d, &r);

	if (!part || part->ended)
		return;
	part->acknowledged = true;
	snprintf(part->instance, sizeof(part->instance), "%s", answer->instance ? answer->instance : "");
	part->sequence = answer->sequence;
	/* The stop may have overtaken the start. */
	if (r->state == RUN_STOPPING)
		dispatch_stop(d->controller, r, part);
}

static void refused(struct dispatch *d, bool busy, const char *message)
{
	struct run *r;
	struct run_part *part = find_part(d, &r);

	if (part && !part->ended)
		controller_after(d->controller, r, run_refused(r, part, busy, message, clock_realtime()));
}

/* No new runs there for a while. */
static void shun(struct dispatch *d, double seconds)
{
	struct member *m = members_find(d->controller->members, d->node);

	if (m)
		m->shunned = clock_monotonic() + seconds;
}

static void on_started(void *context, const struct http_answer *a)
{
	_cleanup_free_ struct dispatch *d = context;
	_cleanup_json_ json_t *json = a->len ? json_loadb(a->body, a->len, 0, NULL) : NULL;

	if (a->error.code == -ECANCELED)
		return;
	if (a->status == 200) {
		_cleanup_(start_answer_release) struct start_answer answer = {0};
		struct error err = ERROR_INIT;

		if (start_answer_decode(json, &answer, &err) < 0)
			log_warn("run %lld: node %s: %s", (long long)d->run, d->node, err.message);
		started(d, &answer);
		return;
	}
	if (a->status == 0) {
		/* Whether it has the start is unknown: the attempt's number keeps it from harm. Another node,
		 * or this one later, gets the next attempt. */
		shun(d, d->controller->daemon->settings->config->node_timeout);
		log_warn("run %lld: node %s cannot be reached: %s", (long long)d->run, d->node,
		         a->error.message);
		refused(d, true, a->error.message);
		return;
	}
	if (a->status == 409) /* what has its slots, its next heartbeat tells */
		shun(d, d->controller->daemon->settings->config->heartbeat);
	refused(d, a->status == 409,
	        json_get_string(json_object_get(json, "error"), "message", "the node refused the start"));
}

static void on_local_started(void *context, int code, const char *message)
{
	_cleanup_free_ struct dispatch *d = context;

	if (code == -ESHUTDOWN) /* the controller is gone already */
		return;
	link_refresh_local(d->controller->daemon);
	if (code == 0)
		started(d, &(struct start_answer){d->controller->daemon->instance,
		                                  link_sequence(d->controller->daemon->link)});
	else
		refused(d, code == -EBUSY, message);
}

/* Takes d, and what the request owns. */
static void start_local(struct controller *c, struct dispatch *d, struct start_request *request)
{
	struct error err = ERROR_INIT;
	int r = node_start(c->daemon->node, request, on_local_started, d, &err);

	if (r < 0)
		on_local_started(d, r, err.message);
	else
		link_refresh_local(c->daemon);
}

static int copy_string(const char *from, char **to)
{
	*to = from ? strdup(from) : NULL;
	return from && !*to ? -ENOMEM : 0;
}

static int copy_ranks(const struct run *r, const char *node, struct start_request *out)
{
	json_t *rank;
	size_t i;

	out->ranks = calloc(json_array_size(r->ranks) + 1, sizeof(*out->ranks));
	if (!out->ranks)
		return -ENOMEM;
	json_array_foreach(r->ranks, i, rank)
	{
		const json_t *slots = json_object_get(rank, "slots");
		struct start_rank *own = &out->ranks[out->rank_count];

		if (strcmp(json_get_string(rank, "node", ""), node) != 0)
			continue;
		*own = (struct start_rank){.rank = (int64_t)i,
		                           .local_rank = (int64_t)out->rank_count++,
		                           .slot = json_get_int(rank, "slot", 0)};
		if (!slots)
			continue;
		own->slots = calloc(json_array_size(slots) + 1, sizeof(*own->slots));
		if (!own->slots)
			return -ENOMEM;
		for (; own->slot_count < json_array_size(slots); own->slot_count++)
			own->slots[own->slot_count] =
			    json_integer_value(json_array_get(slots, own->slot_count));
	}
	return 0;
}

/* Of one node; config is the run's as the store has it. To be released in any case. */
static int make_start(struct controller *c, const struct run *r, const json_t *config, size_t index, int port,
                      struct start_request *out, struct error *err)
{
	struct member *master = members_find(c->members, r->parts[0].node);

	*out = (struct start_request){.epoch = store_epoch(c->store),
	                              .run = r->id,
	                              .attempt = r->attempt,
	                              .uid = r->uid,
	                              .gid = r->gid,
	                              .world_size = run_world_size(r),
	                              .nodes = r->nodes,
	                              .node_rank = (int64_t)index,
	                              .master_port = port};
	if (copy_string(c->daemon->settings->name, &out->controller) < 0 ||
	    copy_string(store_cluster(c->store), &out->cluster) < 0 ||
	    copy_string(r->user ? r->user : "", &out->user) < 0 ||
	    copy_string(r->nodes == 1 || !master ? "127.0.0.1" : master->address, &out->master_addr) < 0 ||
	    copy_ranks(r, r->parts[index].node, out) < 0)
		return error_oom(err);
	out->local_world_size = (int64_t)out->rank_count;
	return run_config_decode(config, "stored configuration", false, &out->config, err);
}

/* On the first node, where rank 0 listens. */
static int choose_port(struct controller *c, const struct run *r, struct error *err)
{
	struct member *m = members_find(c->members, r->parts[0].node);

	if (is_local(c, r->parts[0].node))
		return node_free_port(c->daemon->node, err);
	return m ? member_take_port(m, r->id * 31 + r->attempt) : 0;
}

/* Takes what the request owns. */
static void start_remote(struct controller *c, struct dispatch *d, struct start_request *request)
{
	_cleanup_json_ json_t *body = start_request_encode(request);
	struct error err = ERROR_INIT;

	start_request_release(request);
	if (call(c, d, "/v1/peer/start", body, on_started, &err) < 0) {
		refused(d, false, err.message);
		free(d);
	}
}

int dispatch_start(struct controller *c, struct run *r, struct error *err)
{
	_cleanup_(start_request_release) struct start_request local_request = {0};
	_cleanup_json_ json_t *config = NULL;
	_cleanup_free_ char *text = NULL;
	_cleanup_free_ struct dispatch *local = NULL;
	int port = choose_port(c, r, err), code = port;

	if (code >= 0)
		code = store_config(c->store, r->id, &text, err);
	if (code == 0)
		code = json_parse(text, strlen(text), "stored configuration", &config, err);
	/* The calls go out first; our own node's part runs while they are under way. */
	for (size_t i = 0; code == 0 && i < r->part_count; i++) {
		struct start_request request = {0};
		struct dispatch *d = dispatch_new(c, r->id, r->attempt, r->parts[i].node);

		code = d ? make_start(c, r, config, i, port, &request, err) : error_oom(err);
		if (code < 0) {
			start_request_release(&request);
			free(d);
		} else if (is_local(c, d->node)) {
			local = d;
			local_request = request;
		} else {
			start_remote(c, d, &request);
		}
	}
	if (code == 0 && local)
		start_local(c, steal_pointer(local), &local_request);
	return code;
}

static void on_stopped(void *context, const struct http_answer *a)
{
	_cleanup_free_ struct dispatch *d = context;

	if (a->status != 200 && a->error.code != -ECANCELED)
		log_warn("run %lld: node %s could not be told to stop it (%s); its next heartbeat brings it "
		         "up again",
		         (long long)d->run, d->node,
		         a->status ? "it answered with an error" : a->error.message);
}

static void stop_at(struct controller *c, const char *node, int64_t run, int64_t attempt, double grace,
                    bool foreign)
{
	const struct stop_request request = {.controller = c->daemon->settings->name,
	                                     .cluster = (char *)store_cluster(c->store),
	                                     .epoch = store_epoch(c->store),
	                                     .run = run,
	                                     .attempt = attempt,
	                                     .grace = grace,
	                                     .foreign = foreign};
	_cleanup_json_ json_t *body = NULL;
	struct error err = ERROR_INIT;
	struct dispatch *d;

	if (is_local(c, node)) {
		if (node_stop_request(c->daemon->node, &request, &err) < 0)
			log_warn("run %lld: %s", (long long)run, err.message);
		return;
	}
	body = stop_request_encode(&request);
	d = dispatch_new(c, run, attempt, node);
	if (!d || !body || call(c, d, "/v1/peer/stop", body, on_stopped, &err) < 0) {
		free(d);
		log_warn("run %lld: node %s could not be told to stop it: %s", (long long)run, node,
		         err.message);
	}
}

void dispatch_stop(struct controller *c, struct run *r, struct run_part *part)
{
	_cleanup_free_ char *node = strdup(part->node);

	/* By copy: our own node may report, and the part be gone, before this returns. */
	if (node)
		stop_at(c, node, r->id, r->attempt, r->grace, false);
}

void dispatch_stop_stray(struct controller *c, const char *node, int64_t run, int64_t attempt)
{
	log_info("node %s still has attempt %lld of run %lld: told to stop it", node, (long long)attempt,
	         (long long)run);
	stop_at(c, node, run, attempt, 5, false);
}

void dispatch_stop_foreign(struct controller *c, const char *node, int64_t run, int64_t attempt)
{
	log_warn("node %s is told to stop attempt %lld of run %lld, foreign work, as an administrator asks",
	         node, (long long)attempt, (long long)run);
	stop_at(c, node, run, attempt, 30, true);
}
