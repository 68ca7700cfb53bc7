/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's link to its local service: where the ranks of an attempt meet, where rank 0 reports progress,
 * and where a rank says what it died of. Without a service everything but the meeting does nothing.
 */
#pragma once

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/comm/comm.h"
#include "worker/environment.h"

struct link;

int link_create(const struct environment *env, struct link **out, struct error *err);
/* Gives reports that are still queued 2 seconds to go out. */
void link_destroy(struct link *link);
DEFINE_CLEANUP(struct link *, link_destroy)

/* NULL where world_size is 1 and there is nobody to meet. */
const struct rendezvous *link_rendezvous(const struct link *link);

/* Queues a line of JSON for /metrics. Never blocks and never fails: a service that does not answer, or is
 * being upgraded, costs the oldest of the queued lines, not the training. */
void link_report(struct link *link, const char *line);

/* Tells the service: kind "ready", "error" (the first cause) or "peer-lost" (an
 * error that another rank's end has caused). Waits 2 seconds at most; best effort. */
void link_event(struct link *link, const char *kind, const char *message);
