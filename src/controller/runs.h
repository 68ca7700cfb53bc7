/* SPDX-License-Identifier: Apache-2.0 */
/* The runs of the cluster: how they are found and listed, and what users and workers do to them. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "cluster/feed.h"
#include "cluster/run.h"

struct controller;

/* The run, from memory or (then the caller's to free, *owned) from the store: it has ended. -ENOENT. */
int controller_find_run(struct controller *c, int64_t id, const struct run **out, struct run **owned,
                        struct error *err);
/* The run that a submission of this user with this key has made, whose submitter was, or could have been,
 * answered. -ENOENT: there is none. */
int controller_find_submitted(struct controller *c, int64_t uid, const char *key, int64_t *id,
                              enum run_state *state, struct error *err);
/* Each as it is now, and borrowed for the call. A negative return of `each` ends the listing and is
 * returned. */
int controller_list_runs(struct controller *c, const struct run_query *query,
                         int (*each)(void *context, const struct run *r, struct error *err), void *context,
                         struct error *err);
int controller_count_runs(struct controller *c, int64_t counts[RUN_STATES], struct error *err);
/* The runs that have not ended, oldest first. */
size_t controller_active_count(const struct controller *c);
const struct run *controller_active_run(const struct controller *c, size_t i);
/* The run_config of a run as JSON text, owned by the caller. */
int controller_run_config(struct controller *c, int64_t id, char **text, struct error *err);

/* These do nothing where there is no such run, or where it has ended. */
void controller_cancel_run(struct controller *c, int64_t id, const char *by); /* a user's name */
/* A worker's progress: the last report (borrowed), and all new ones as lines for those who listen. */
void controller_set_progress(struct controller *c, int64_t id, json_t *last, const char *lines, size_t len);
/* A worker's checkpoint of this step is complete. */
void controller_set_checkpoint(struct controller *c, int64_t id, int64_t step);
void controller_worker_error(struct controller *c, int64_t id, int64_t rank, const char *message,
                             bool lost_peer);
/* Whether any run still waits for parts that were asked to stop. */
bool controller_is_stopping(const struct controller *c);

/* Lines of JSON: changes of states of all runs. */
int controller_listen_events(struct controller *c, feed_fn fn, void *context, struct feed_listener **out,
                             struct error *err);
/* Lines of a run's progress. -ENOENT: the run has ended. */
int controller_listen_metrics(struct controller *c, int64_t run, feed_fn fn, void *context,
                              struct feed_listener **out, struct error *err);
