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

static void started(struct dispatch *d, const char *instance, int64_t sequence)
{
	struct run *r;
	struct run_part *part = find_part(d, &r);

	if (!part || part->ended)
		return;
	part->acknowledged = true;
	snprintf(part->instance, sizeof(part->instance), "%s", instance);
	part->sequence = sequence;
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
		started(d, json_get_string(json, "instance", ""), json_get_int(json, "sequence", 0));
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
		started(d, d->controller->daemon->instance, link_sequence(d->controller->daemon->link));
	else
		refused(d, code == -EBUSY, message);
}

/* Takes d. */
static void start_local(struct controller *c, struct dispatch *d, const json_t *request)
{
	struct error err = ERROR_INIT;
	int r = node_start(c->daemon->node, request, on_local_started, d, &err);

	if (r < 0)
		on_local_started(d, r, err.message);
	else
		link_refresh_local(c->daemon);
}

/* Who asks: the controller, and the store that it asks for. */
static void add_stamp(struct controller *c, json_t *request)
{
	json_object_set_new(request, "controller", json_string(c->daemon->settings->name));
	json_object_set_new(request, "cluster", json_string(store_cluster(c->store)));
	json_object_set_new(request, "epoch", json_integer(store_epoch(c->store)));
}

/* {"run",…,"ranks":[…]} of one node, as node_start has it. */
static json_t *start_request(struct controller *c, const struct run *r, json_t *config, size_t index,
                             int port)
{
	const char *node = r->parts[index].node;
	struct member *master = members_find(c->members, r->parts[0].node);
	json_t *ranks = json_array(), *rank, *request;
	size_t i;

	json_array_foreach(r->ranks, i, rank)
	{
		json_t *theirs;

		if (strcmp(json_get_string(rank, "node", ""), node) != 0)
			continue;
		theirs = json_pack("{s:i,s:i,s:O}", "rank", (int)i, "local_rank", (int)json_array_size(ranks),
		                   "slot", json_object_get(rank, "slot"));
		if (json_object_get(rank, "slots"))
			json_object_set(theirs, "slots", json_object_get(rank, "slots"));
		json_array_append_new(ranks, theirs);
	}
	request = json_pack("{s:I,s:I,s:s?,s:I,s:I,s:O,s:I,s:I,s:I,s:I,s:s,s:i,s:o}", "run",
	                    (json_int_t)r->id, "attempt", (json_int_t)r->attempt, "user", r->user, "uid",
	                    (json_int_t)r->uid, "gid", (json_int_t)r->gid, "config", config, "world_size",
	                    (json_int_t)run_world_size(r), "nodes", (json_int_t)r->nodes, "node_rank",
	                    (json_int_t)index, "local_world_size", (json_int_t)json_array_size(ranks),
	                    "master_addr", r->nodes == 1 || !master ? "127.0.0.1" : master->address,
	                    "master_port", port, "ranks", ranks);
	add_stamp(c, request);
	return request;
}

/* On the first node, where rank 0 listens. */
static int choose_port(struct controller *c, const struct run *r, struct error *err)
{
	struct member *m = members_find(c->members, r->parts[0].node);

	if (is_local(c, r->parts[0].node))
		return node_free_port(c->daemon->node, err);
	return m ? member_take_port(m, r->id * 31 + r->attempt) : 0;
}

int dispatch_start(struct controller *c, struct run *r, struct error *err)
{
	_cleanup_json_ json_t *config = NULL, *local_request = NULL;
	_cleanup_free_ char *text = NULL;
	_cleanup_free_ struct dispatch *local = NULL;
	int port = choose_port(c, r, err), code = port;

	if (code >= 0)
		code = store_config(c->store, r->id, &text, err);
	if (code == 0)
		code = json_parse(text, strlen(text), "stored configuration", &config, err);
	if (code < 0)
		return code;
	/* The calls go out first; our own node's part runs while they are under way. */
	for (size_t i = 0; i < r->part_count; i++) {
		struct dispatch *d = dispatch_new(c, r->id, r->attempt, r->parts[i].node);
		json_t *request = d ? start_request(c, r, config, i, port) : NULL;
		struct error call_error = ERROR_INIT;

		if (!request) {
			free(d);
			return error_oom(err);
		}
		if (is_local(c, d->node)) {
			local = d;
			local_request = request;
			continue;
		}
		if (call(c, d, "/v1/peer/start", request, on_started, &call_error) < 0) {
			refused(d, false, call_error.message);
			free(d);
		}
		json_decref(request);
	}
	if (local)
		start_local(c, steal_pointer(local), local_request);
	return 0;
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
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *body = NULL;
	struct dispatch *d;

	body = json_pack("{s:I,s:I,s:f,s:b}", "run", (json_int_t)run, "attempt", (json_int_t)attempt, "grace",
	                 grace, "foreign", foreign);
	add_stamp(c, body);
	if (body && is_local(c, node)) {
		if (node_stop_request(c->daemon->node, body, &err) < 0)
			log_warn("run %lld: %s", (long long)run, err.message);
		return;
	}
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
