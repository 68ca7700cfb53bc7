/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's client of its local service: the key-value store of an attempt's ranks, the progress that rank
 * 0 reports, and the error that a rank ends with. Without a service only the store works, over files.
 */
#pragma once

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/comm/comm.h"
#include "worker/environment.h"

struct service_client;

int service_client_create(const struct environment *env, struct service_client **out, struct error *err);
/* Gives reports that are still queued 2 seconds to go out, and 15 where the service answers that there is no
 * controller, or does not answer. */
void service_client_destroy(struct service_client *service);
DEFINE_CLEANUP(struct service_client *, service_client_destroy)

/* NULL without a service and without a directory of files; a single rank needs none. */
const struct kv_store *service_client_store(const struct service_client *service);

/* Queues a line of JSON for /metrics. Never blocks and never fails: a service that does not answer, or is
 * being upgraded, costs the oldest of the queued lines, not the training. */
void service_client_report(struct service_client *service, const char *line);

/* Reports an event to the service, such as "ready". Waits 2 seconds at most; best effort. */
void service_client_event(struct service_client *service, const char *kind, const char *message);

/* Reports the error that this rank ends with, or that it has lost a peer: as an event, which is the sooner
 * one, and in its error file, which the launcher reads, and which reaches the controller also where there is
 * none now. The first call counts. */
void service_client_error(struct service_client *service, const struct error *err);
