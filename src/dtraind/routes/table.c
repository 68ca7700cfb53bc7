/* SPDX-License-Identifier: Apache-2.0 */
/* Every route of man/dtrain-api.7, as data. */
#include "dtraind/routes/table.h"

#include <strings.h>

#include "base/str.h"
#include "dtraind/leader.h"
#include "dtraind/proxy.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"

/* The controller alone can answer: on any other node the request is sent on to it. */
enum {
	CONTROLLER = HTTP_OWNER,
	/* Only the controller asks for it. Where nodes have certificates of their own, its certificate proves
	   that. */
	BY_CONTROLLER = HTTP_OWNER << 1,
	/* It is done, or shown, for a user. Where hosts are marked "submit", no other one forwards it; */
	FOR_USER = HTTP_OWNER << 2,
	/* but what the ranks of a run ask for, a host forwards that has one of them. */
	FOR_RANK = HTTP_OWNER << 3,
};

/* A run has its command and environment, of which a kernel takes 2 MiB by default; as JSON they are somewhat
 * longer. Services send what a run has, and more beside it. The logs of a node are asked for by the
 * controller, but for users. */
const struct http_route route_table[] = {
    {"GET", "/v1/version", HTTP_ANY, route_version},
    {"GET", "/v1/devices", HTTP_ANY, route_devices},
    {"GET", "/v1/nodes", HTTP_ANY | CONTROLLER, route_nodes},
    {"POST", "/v1/nodes/{}/drain", HTTP_ANY | CONTROLLER | FOR_USER, route_drain},
    {"POST", "/v1/nodes/{}/resume", HTTP_ANY | CONTROLLER | FOR_USER, route_resume},
    {"POST", "/v1/nodes/{}/fence", HTTP_ANY | CONTROLLER | FOR_USER, route_fence},
    {"POST", "/v1/nodes/{}/devices/{}/drain", HTTP_ANY | CONTROLLER | FOR_USER, route_device_drain},
    {"POST", "/v1/nodes/{}/devices/{}/resume", HTTP_ANY | CONTROLLER | FOR_USER, route_device_resume},
    {"GET", "/v1/local/runs", HTTP_LOCAL, route_local_runs},
    {"DELETE", "/v1/local/runs/{}", HTTP_LOCAL, route_local_end},
    {"POST", "/v1/end-runs", HTTP_LOCAL, route_end_runs},
    {"POST", "/v1/prune", HTTP_LOCAL, route_prune},
    {"POST", "/v1/nodes/{}/cancel-foreign", HTTP_ANY | CONTROLLER | FOR_USER, route_cancel_foreign},
    {"GET", "/v1/events", HTTP_ANY | CONTROLLER, route_events},
    {"GET", "/v1/backup", HTTP_ANY | CONTROLLER | FOR_USER, route_backup},
    {"GET", "/metrics", HTTP_ANY | CONTROLLER, route_prometheus},
    {"POST", "/v1/runs", HTTP_ANY | HTTP_BODY_4M | CONTROLLER | FOR_USER, route_submit},
    {"GET", "/v1/runs", HTTP_ANY | CONTROLLER, route_runs},
    {"GET", "/v1/runs/{}", HTTP_ANY | CONTROLLER | FOR_USER, route_run},
    {"DELETE", "/v1/runs/{}", HTTP_ANY | CONTROLLER | FOR_USER, route_cancel},
    {"GET", "/v1/runs/{}/logs", HTTP_ANY | CONTROLLER | FOR_USER, route_logs},
    {"GET", "/v1/runs/{}/metrics", HTTP_ANY | CONTROLLER, route_metrics_get},
    {"POST", "/v1/runs/{}/metrics", HTTP_ANY | HTTP_BODY_1M | CONTROLLER | FOR_RANK, route_metrics_post},
    {"POST", "/v1/runs/{}/events", HTTP_ANY | CONTROLLER | FOR_RANK, route_worker_event},
    {"PUT", "/v1/runs/{}/rendezvous/{...}", HTTP_ANY | HTTP_BODY_1M | CONTROLLER | FOR_RANK,
     route_rendezvous_put},
    {"GET", "/v1/runs/{}/rendezvous/{...}", HTTP_ANY | CONTROLLER | FOR_RANK, route_rendezvous_get},
    {"POST", "/v1/peer/start", HTTP_PEER | BY_CONTROLLER | HTTP_RESERVED | HTTP_BODY_8M, route_peer_start},
    {"POST", "/v1/peer/stop", HTTP_PEER | BY_CONTROLLER | HTTP_RESERVED, route_peer_stop},
    {"POST", "/v1/peer/reports", HTTP_PEER | HTTP_RESERVED | HTTP_BODY_8M | CONTROLLER, route_peer_reports},
    {"POST", "/v1/peer/heartbeat", HTTP_PEER | HTTP_RESERVED | HTTP_BODY_8M | CONTROLLER,
     route_peer_heartbeat},
    {"POST", "/v1/peer/heartbeat/short", HTTP_PEER | HTTP_RESERVED | CONTROLLER, route_peer_short_heartbeat},
    {"GET", "/v1/peer/active-runs", HTTP_PEER | CONTROLLER, route_peer_active_runs},
    {"POST", "/v1/peer/devices/{}/drain", HTTP_PEER | BY_CONTROLLER | HTTP_RESERVED, route_peer_drain},
    {"POST", "/v1/peer/devices/{}/resume", HTTP_PEER | BY_CONTROLLER | HTTP_RESERVED, route_peer_resume},
    {"GET", "/v1/peer/logs", HTTP_PEER | BY_CONTROLLER, route_peer_logs},
};

const size_t route_table_count = ARRAY_SIZE(route_table);

const struct http_route metrics_route_table[] = {
    {"GET", "/metrics", HTTP_PEER | CONTROLLER, route_prometheus}};
const size_t metrics_route_table_count = ARRAY_SIZE(metrics_route_table);

bool route_intercept(void *context, struct http_request *r, unsigned bits)
{
	struct daemon *d = context;
	const struct http_caller *caller = http_request_caller(r);

	if ((bits & BY_CONTROLLER) && caller->node && !leader_is_candidate(d, caller->node)) {
		http_reply_error(
		    r, 403, "not-allowed",
		    "this is for the controller only: the certificate is of %s, and %s takes %s for "
		    "the controller",
		    caller->node, d->settings->name, d->settings->controller);
		return true;
	}
	if ((bits & CONTROLLER) && forward_to_controller(d, r))
		return true;
	return (bits & (FOR_USER | FOR_RANK)) && refuse_forwarded(d, r, bits & FOR_RANK);
}
