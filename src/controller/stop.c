/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the nodes to stop their parts of attempts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/internal.h"
#include "wire/start_request.h"

struct stop_call {
	struct controller *controller;
	int64_t run;
	double began; /* monotonic */
	char node[];
};

struct peer peer_of(const struct member *m)
{
	return (struct peer){.name = m->name, .address = m->address, .port = m->port};
}

void note_reached(struct controller *c, const char *node, double began, const struct peer_result *result)
{
	struct member *m = members_find(c->members, node);
	bool unreachable = result->code == -EHOSTUNREACH || result->code == -ECONNREFUSED;

	/* A call that is given up may have begun before one that has reached the node. */
	if (!m || began < m->reached || (result->code < 0 && !unreachable))
		return;
	if (!unreachable)
		m->reached = began;
	member_set_unreachable(m, unreachable ? result->message : NULL);
}

static void on_stopped(void *context, const struct peer_result *result)
{
	_cleanup_free_ struct stop_call *call = context;

	if (result->code == -ECANCELED)
		return;
	note_reached(call->controller, call->node, call->began, result);
	if (result->code < 0)
		log_warn("run %lld: node %s could not be told to stop it (%s); its next heartbeat brings it "
		         "up again",
		         (long long)call->run, call->node, result->message);
}

/* node by copy: our own node may report, and the part be gone, before the call returns. */
static void stop_at(struct controller *c, const char *node, int64_t run, int64_t attempt,
                    struct stop_times times, bool foreign)
{
	struct member *m = members_find(c->members, node);
	struct stop_call *call = calloc(1, sizeof(*call) + strlen(node) + 1);
	const struct stop_request request = {.controller = (char *)c->options.name,
	                                     .cluster = (char *)store_cluster(c->store),
	                                     .epoch = store_epoch(c->store),
	                                     .run = run,
	                                     .attempt = attempt,
	                                     .save = times.save,
	                                     .grace = times.grace,
	                                     .foreign = foreign};
	struct peer peer;

	if (!m || !call) {
		log_warn("run %lld: node %s could not be told to stop it: %s", (long long)run, node,
		         m ? "out of memory" : "it is not in the hosts file");
		free(call);
		return;
	}
	call->controller = c;
	call->run = run;
	call->began = controller_now(c);
	strcpy(call->node, node);
	peer = peer_of(m);
	c->options.peers.stop(c->options.peers.context, &peer, &request, on_stopped, call);
}

void stop_part(struct controller *c, const struct run *r, const struct run_part *part)
{
	stop_at(c, part->node, r->id, r->attempt, r->stop[run_stop_kind(r)], false);
}

void stop_stray(struct controller *c, const char *node, int64_t run, int64_t attempt)
{
	log_info("node %s still has attempt %lld of run %lld: told to stop it", node, (long long)attempt,
	         (long long)run);
	stop_at(c, node, run, attempt, (struct stop_times){0, 5}, false);
}

void stop_foreign(struct controller *c, const char *node, int64_t run, int64_t attempt)
{
	log_warn("node %s is told to stop attempt %lld of run %lld, foreign work, as an administrator asks",
	         node, (long long)attempt, (long long)run);
	stop_at(c, node, run, attempt, (struct stop_times){0, 30}, true);
}
