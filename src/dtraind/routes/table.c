/* SPDX-License-Identifier: Apache-2.0 */
/* Every route of man/dtrain-api.7, as data. */
#include "dtraind/routes/routes.h"

#include <errno.h>

#include "base/str.h"

/* A run has its command and environment, of which a kernel takes 2 MiB by default; as JSON they are somewhat
 * longer. Services send what a run has, and more beside it. The logs of a node are asked for by the
 * controller, but for users. */
const struct http_route daemon_routes[] = {
    {"GET", "/v1/version", HTTP_ANY, route_version},
    {"GET", "/v1/devices", HTTP_ANY, route_devices},
    {"GET", "/v1/nodes", HTTP_ANY, route_nodes},
    {"POST", "/v1/nodes/{}/drain", HTTP_ANY, route_drain},
    {"POST", "/v1/nodes/{}/resume", HTTP_ANY, route_resume},
    {"POST", "/v1/nodes/{}/devices/{}/drain", HTTP_ANY, route_device_drain},
    {"POST", "/v1/nodes/{}/devices/{}/resume", HTTP_ANY, route_device_resume},
    {"POST", "/v1/end-runs", HTTP_LOCAL, route_end_runs},
    {"POST", "/v1/nodes/{}/cancel-foreign", HTTP_ANY, route_cancel_foreign},
    {"GET", "/v1/events", HTTP_ANY, route_events},
    {"GET", "/v1/backup", HTTP_ANY, route_backup},
    {"GET", "/metrics", HTTP_ANY, route_prometheus},
    {"POST", "/v1/runs", HTTP_ANY | HTTP_BODY_4M, route_submit},
    {"GET", "/v1/runs", HTTP_ANY, route_runs},
    {"GET", "/v1/runs/{}", HTTP_ANY, route_run},
    {"DELETE", "/v1/runs/{}", HTTP_ANY, route_cancel},
    {"GET", "/v1/runs/{}/logs", HTTP_ANY, route_logs},
    {"GET", "/v1/runs/{}/metrics", HTTP_ANY, route_metrics_get},
    {"POST", "/v1/runs/{}/metrics", HTTP_ANY | HTTP_BODY_1M, route_metrics_post},
    {"POST", "/v1/runs/{}/events", HTTP_ANY, route_worker_event},
    {"PUT", "/v1/runs/{}/rendezvous/{...}", HTTP_ANY | HTTP_BODY_1M, route_rendezvous_put},
    {"GET", "/v1/runs/{}/rendezvous/{...}", HTTP_ANY, route_rendezvous_get},
    {"POST", "/v1/peer/start", HTTP_PEER | HTTP_RESERVED | HTTP_BODY_8M, route_peer_start},
    {"POST", "/v1/peer/stop", HTTP_PEER | HTTP_RESERVED, route_peer_stop},
    {"POST", "/v1/peer/reports", HTTP_PEER | HTTP_RESERVED | HTTP_BODY_8M, route_peer_reports},
    {"POST", "/v1/peer/heartbeat", HTTP_PEER | HTTP_RESERVED | HTTP_BODY_8M, route_peer_heartbeat},
    {"POST", "/v1/peer/devices/{}/drain", HTTP_PEER | HTTP_RESERVED, route_peer_drain},
    {"POST", "/v1/peer/devices/{}/resume", HTTP_PEER | HTTP_RESERVED, route_peer_resume},
    {"GET", "/v1/peer/logs", HTTP_PEER, route_peer_logs},
};

const size_t daemon_route_count = ARRAY_SIZE(daemon_routes);

/* Both sides with their uids: the same user may have another one on the node that the call comes from. */
static void refuse(struct http_request *r, const struct run *run)
{
	const struct http_caller *caller = http_request_caller(r);
	const char *owner = run->user ? run->user : "?", *user = caller->user ? caller->user : "?";

	http_reply_error(
	    r, 403, "not-allowed",
	    "run %lld is of %s (uid %lld): only its owner and root may do this, and the caller is %s "
	    "(uid %lld)%s",
	    (long long)run->id, owner, (long long)run->uid, user, (long long)caller->uid,
	    str_eq(run->user, caller->user) ? "; a user needs the same uid on all nodes" : "");
}

struct run *route_find_run(struct controller *c, struct http_request *r, bool own, struct run **owned)
{
	const char *text = http_request_capture(r, 0);
	struct error err = ERROR_INIT;
	struct run *run = NULL;
	int64_t id;

	*owned = NULL;
	if (str_to_int64(text, 1, INT64_MAX, &id) < 0) {
		http_reply_error(r, 404, "no-such-run", "there is no run %s: runs have numbers", text);
		return NULL;
	}
	if (controller_find(c, id, &run, owned, &err) < 0) {
		if (err.code == -ENOENT)
			http_reply_error(r, 404, "no-such-run", "%s", err.message);
		else
			http_reply_error(r, 500, "store", "%s", err.message);
		return NULL;
	}
	if (own && !caller_may(http_request_caller(r), run->uid)) {
		refuse(r, run);
		run_free(*owned);
		*owned = NULL;
		return NULL;
	}
	return run;
}
