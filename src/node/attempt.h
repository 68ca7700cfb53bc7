/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attempt of a run on this node, from its start by dtrain-launch to its end; also one that an earlier
 * dtraind started. DIR = runtime_dir/attempts/RUN.ATTEMPT holds request.json (what was asked), launch.json,
 * config.json, launch.sock, begun (dtrain-launch has started), and from the end on ended.json (the last
 * report).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "base/error.h"
#include "node/launch/unit.h"
#include "node/request.h"
#include "wire/report.h"

struct attempt;

struct attempt_owner {
	sd_event *event;
	const char *node;
	struct units *units;
	void *context;
	/* The report changed: attempt_report() has it. */
	void (*changed)(void *context, struct attempt *attempt);
	/* Its dtrain-launch is gone after the end: attempt_is_settled(). */
	void (*settled)(void *context, struct attempt *attempt);
};

/* Makes DIR and the logs, starts dtrain-launch. Takes the request over where it succeeds. */
int attempt_start(const struct attempt_owner *owner, struct request *request,
                  const struct request_place *place, const struct run_user *user, struct attempt **out,
                  struct error *err);
/* Finds again what DIR says. The first report comes from the event loop. -ECANCELED: nothing of it has run.
 */
int attempt_adopt(const struct attempt_owner *owner, const char *dir, struct attempt **out,
                  struct error *err);
/* One of which no file is left but the record of its start (started.h). What runs of it is killed, and only
 * when nothing is left has it ended, as "lost"; until then it has its slots. Takes the request over where it
 * succeeds. */
int attempt_lost(const struct attempt_owner *owner, const char *dir, struct request *request,
                 struct attempt **out, struct error *err);
/* A device that it has reports an error: goes into its reports, "device_errors", from now on. */
void attempt_add_error(struct attempt *attempt, const char *text);
void attempt_stop(struct attempt *attempt, struct stop_times times);
/* Stops it because the node shuts down: its reports say so, "shutdown". */
void attempt_shut_down(struct attempt *attempt, struct stop_times times, const char *reason);
/* The lease of the node runs out in so many seconds: stops it in time, and its reports say so, "shutdown". */
void attempt_end_lease(struct attempt *attempt, double seconds);
/* The controller knows it: for dtrain-launch, which also watches the lease. */
void attempt_confirm(struct attempt *attempt);
void attempt_free(struct attempt *attempt); /* what runs goes on */

const struct request *attempt_request(const struct attempt *attempt);
const struct report *attempt_report(const struct attempt *attempt);
bool attempt_has_ended(const struct attempt *attempt);
/* It has ended, and no process of it or of dtrain-launch is left. */
bool attempt_is_settled(const struct attempt *attempt);
struct stop_times attempt_stop_times(const struct attempt *attempt, enum run_stop how); /* as the run asks */
const char *attempt_dir(const struct attempt *attempt);
