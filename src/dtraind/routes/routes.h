/* SPDX-License-Identifier: Apache-2.0 */
/* The handlers, by file. Each takes the daemon as its context. */
#pragma once

#include "controller/peers.h"
#include "dtraind/daemon.h"

struct device_wait;
struct drain_request;

/* cluster.c */
void route_version(void *context, struct http_request *r);
void route_devices(void *context, struct http_request *r);
void route_nodes(void *context, struct http_request *r);
void route_drain(void *context, struct http_request *r);
void route_resume(void *context, struct http_request *r);
void route_fence(void *context, struct http_request *r);
void route_device_drain(void *context, struct http_request *r);
void route_device_resume(void *context, struct http_request *r);
void route_cancel_foreign(void *context, struct http_request *r);
void route_events(void *context, struct http_request *r);
/* The body of a drain, which may be missing. Where it is wrong, the request is answered, and negative
 * returned. */
int route_read_drain(struct http_request *r, struct drain_request *request);
/* For a caller who waits until a device is drained or resumed; NULL: out of memory, which is answered. */
struct device_wait *route_wait_for_device(struct http_request *r);
/* Answers it. Takes the wait, the context of a peer_done_fn. */
void route_on_device_set(void *wait, const struct peer_result *result);

/* backup.c */
void backup_remove_leftovers(const char *state_dir); /* copies that an earlier service left half made */
void route_backup(void *context, struct http_request *r);

/* shutdown.c */
void route_local_runs(void *context, struct http_request *r);
void route_local_end(void *context, struct http_request *r);
void route_end_runs(void *context, struct http_request *r);

/* retention.c */
void route_prune(void *context, struct http_request *r);
void route_peer_active_runs(void *context, struct http_request *r);

/* prometheus.c */
void route_prometheus(void *context, struct http_request *r);

/* runs.c */
void route_submit(void *context, struct http_request *r);
void route_runs(void *context, struct http_request *r);
void route_run(void *context, struct http_request *r);
void route_cancel(void *context, struct http_request *r);
void route_logs(void *context, struct http_request *r);

/* worker.c: what workers say and ask */
enum { METRICS_REPORT_MAX = 64 << 10 };            /* bytes of one report */
char *metrics_path(struct daemon *d, int64_t run); /* of a run's reports; owned by the caller */
void route_metrics_post(void *context, struct http_request *r);
void route_rendezvous_put(void *context, struct http_request *r);
void route_rendezvous_get(void *context, struct http_request *r);
void route_worker_event(void *context, struct http_request *r);

/* metrics.c */
void route_metrics_get(void *context, struct http_request *r);

/* peer.c */
void route_peer_start(void *context, struct http_request *r);
void route_peer_stop(void *context, struct http_request *r);
void route_peer_reports(void *context, struct http_request *r);
void route_peer_heartbeat(void *context, struct http_request *r);
void route_peer_short_heartbeat(void *context, struct http_request *r);
void route_peer_drain(void *context, struct http_request *r);
void route_peer_resume(void *context, struct http_request *r);
void route_peer_logs(void *context, struct http_request *r);
