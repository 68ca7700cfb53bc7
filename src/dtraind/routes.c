/* SPDX-License-Identifier: Apache-2.0 */
/* Every route of man/dtrain-api.7, as data. */
#include "dtraind/routes.h"

#include <errno.h>

#include "base/str.h"

const struct http_route daemon_routes[] = {
    {"GET", "/v1/version", HTTP_ANY, route_version},
    {"GET", "/v1/devices", HTTP_ANY, route_devices},
    {"GET", "/v1/nodes", HTTP_ANY, route_nodes},
    {"POST", "/v1/nodes/{}/drain", HTTP_ANY, route_drain},
    {"POST", "/v1/nodes/{}/resume", HTTP_ANY, route_resume},
    {"POST", "/v1/nodes/{}/devices/{}/drain", HTTP_ANY, route_device_drain},
    {"POST", "/v1/nodes/{}/devices/{}/resume", HTTP_ANY, route_device_resume},
    {"GET", "/v1/events", HTTP_ANY, route_events},
    {"GET", "/metrics", HTTP_ANY, route_prometheus},
    {"POST", "/v1/runs", HTTP_ANY, route_submit},
    {"GET", "/v1/runs", HTTP_ANY, route_runs},
    {"GET", "/v1/runs/{}", HTTP_ANY, route_run},
    {"DELETE", "/v1/runs/{}", HTTP_ANY, route_cancel},
    {"GET", "/v1/runs/{}/logs", HTTP_ANY, route_logs},
    {"GET", "/v1/runs/{}/metrics", HTTP_ANY, route_metrics_get},
    {"POST", "/v1/runs/{}/metrics", HTTP_ANY, route_metrics_post},
    {"POST", "/v1/runs/{}/events", HTTP_ANY, route_worker_event},
    {"PUT", "/v1/runs/{}/rendezvous/{...}", HTTP_ANY, route_rendezvous_put},
    {"GET", "/v1/runs/{}/rendezvous/{...}", HTTP_ANY, route_rendezvous_get},
    {"POST", "/v1/peer/start", HTTP_PEER, route_peer_start},
    {"POST", "/v1/peer/stop", HTTP_PEER, route_peer_stop},
    {"POST", "/v1/peer/reports", HTTP_PEER, route_peer_reports},
    {"POST", "/v1/peer/heartbeat", HTTP_PEER, route_peer_heartbeat},
    {"POST", "/v1/peer/devices/{}/drain", HTTP_PEER, route_peer_drain},
    {"POST", "/v1/peer/devices/{}/resume", HTTP_PEER, route_peer_resume},
    {"GET", "/v1/peer/logs", HTTP_PEER, route_peer_logs},
};

const size_t daemon_route_count = ARRAY_SIZE(daemon_routes);

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
		http_reply_error(r, 403, "not-allowed", "run %s is %s's: only its owner and root may do this",
		                 text, run->user ? run->user : "somebody else");
		run_free(*owned);
		*owned = NULL;
		return NULL;
	}
	return run;
}
