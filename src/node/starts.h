/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts that are being looked into: each has its slots and waits for its preflight, then it becomes an
 * attempt or is refused, and the callers that asked for it are answered.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "base/error.h"
#include "node/node.h"
#include "node/request.h"

struct starts;

struct starts_callbacks {
	void *context;
	/* Nothing is wrong: makes it an attempt. Takes the request where it succeeds (*request NULL then). */
	int (*begin)(void *context, struct request **request, const struct request_place *place,
	             const struct run_user *user, struct error *err);
	void (*freed)(void *context); /* one was refused: its slots are free again */
};

/* The preflight of the first start is prepared with the launcher of config. */
int starts_create(sd_event *event, const struct daemon_config *config,
                  const struct starts_callbacks *callbacks, struct starts **out, struct error *err);
void starts_destroy(struct starts *s); /* calls those that wait with -ESHUTDOWN; takes NULL */

/* Takes the request (*request NULL then) where it succeeds; copies dir and logs of the place, borrows the
 * rest. */
int starts_add(struct starts *s, struct request **request, const struct request_place *place,
               node_started_fn started, void *context, struct error *err);
/* Adds a caller that is answered when that start has succeeded or failed. False: there is no such start. */
bool starts_wait(struct starts *s, int64_t run, int64_t attempt, node_started_fn started, void *context);
void starts_stop(struct starts *s, int64_t run, int64_t attempt);
const struct request *starts_holder(const struct starts *s, int slot); /* NULL: none */
int64_t starts_newest(const struct starts *s, int64_t run);            /* attempt; 0: none */
