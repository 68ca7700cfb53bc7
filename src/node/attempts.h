/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attempts that a node knows, oldest first: those that run, and the last that have ended, until the
 * controller has them forgotten.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "base/error.h"
#include "node/attempt.h"

struct attempts;

struct known_attempt {
	struct known_attempt *next; /* attempts_next() leaves forgotten ones out */
	struct attempt *attempt;
	double started; /* by lease_clock(); 0: an earlier instance of the service has started it */
	bool confirmed; /* a heartbeat of this instance that names it was answered */
	bool forgotten; /* freed once its dtrain-launch is gone and no callback of it can be on the stack */
};

int attempts_create(sd_event *event, struct attempts **out, struct error *err);
void attempts_destroy(struct attempts *a); /* frees the attempts, what runs goes on; takes NULL */

/* Takes the attempt where it succeeds. */
int attempts_add(struct attempts *a, struct attempt *attempt, double started, struct error *err);
/* It is found no more; attempts_sweep() has it freed. */
void attempts_forget(struct attempts *a, struct known_attempt *known);
/* From the event loop, frees those that are forgotten and settled: when one has settled. */
void attempts_sweep(struct attempts *a);

struct known_attempt *attempts_first(const struct attempts *a); /* NULL: none */
struct known_attempt *attempts_next(const struct known_attempt *known);
struct known_attempt *attempts_find(const struct attempts *a, int64_t run, int64_t attempt);
/* The oldest of those that have ended, where they are more than `kept`; otherwise NULL. */
struct known_attempt *attempts_oldest_ended(const struct attempts *a, int kept);
const struct request *attempts_holder(const struct attempts *a, int slot); /* NULL: the slot is free */
int attempts_running(const struct attempts *a);
bool attempt_holds(const struct known_attempt *known); /* its slots: it has not ended */
