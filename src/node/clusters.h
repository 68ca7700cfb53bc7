/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this node knows of clusters, on disk: of each cluster whose controller it has heard, the highest epoch
 * (an epoch is one opening of that cluster's store), and the highest run number that it has seen of any. So a
 * controller with an older store is recognized, and one that has lost its store gives no number twice.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "wire/heartbeat.h"
#include "wire/start_request.h"

struct clusters;

/* state_dir/clusters.json and state_dir/highest_run; of what cannot be read there, a warning is logged, and
 * nothing of it is known. log_dir: its directories are named after runs, and count as seen. */
int clusters_open(sd_event *event, const char *state_dir, const char *log_dir, struct clusters **out,
                  struct error *err);
/* What was learned is on disk then. */
void clusters_close(struct clusters *c);
DEFINE_CLEANUP(struct clusters *, clusters_close)

/* -ESTALE: a later epoch of this cluster is known here. "": no cluster is named; services of an older version
 * name none. */
int clusters_check(const struct clusters *c, const char *id, int64_t epoch, struct error *err);
/* The same, and remembers both, and the run's number. A new epoch is written and synced in the background: a
 * node that ends before that has happened learns it again from the next answer of the controller. A number
 * alone is not synced: it grows with every run, and is known to all nodes. */
int clusters_learn(struct clusters *c, const char *id, int64_t epoch, int64_t highest_run, struct error *err);
/* To be released by the caller. */
int clusters_describe(const struct clusters *c, struct known_clusters *out, struct error *err);
