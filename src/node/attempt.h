/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attempt of a run on this node, from its start by dtrain-launch to its end; also one that an earlier
 * dtraind started. DIR = runtime_dir/attempts/RUN.ATTEMPT holds request.json (what was asked), launch.json,
 * config.json, launch.sock, and from the end on ended.json (the last report).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "base/error.h"
#include "node/request.h"

struct attempt;

/* The report changed: attempt_report() has it. */
typedef void (*attempt_changed_fn)(void *context, struct attempt *attempt);

struct attempt_owner {
	sd_event *event;
	const char *node;
	const char *socket; /* DTRAIN_SOCKET of our ranks */
	attempt_changed_fn changed;
	void *context;
};

/* Makes DIR and the logs, starts dtrain-launch. Takes the request over where it succeeds. */
int attempt_start(const struct attempt_owner *owner, struct request *request,
                  const struct request_place *place, const struct run_user *user, struct attempt **out,
                  struct error *err);
/* Finds again what DIR says. The first report comes from the event loop. */
int attempt_adopt(const struct attempt_owner *owner, const char *dir, struct attempt **out,
                  struct error *err);
/* A device that it has reports an error: goes into its reports, "device_errors", from now on. */
void attempt_add_error(struct attempt *attempt, const char *text);
void attempt_stop(struct attempt *attempt, double grace);
void attempt_free(struct attempt *attempt); /* what runs goes on */

const struct request *attempt_request(const struct attempt *attempt);
const json_t *attempt_report(const struct attempt *attempt);
bool attempt_has_ended(const struct attempt *attempt);
const char *attempt_dir(const struct attempt *attempt);
