/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for a run to change. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cluster/run.h"

struct controller;
struct waiter;

typedef void (*waiter_fn)(void *context, const struct run *r);

/* Is there nothing to wait for: does the run's version exceed `version`, is it in one of `states`, or has it
 * ended, and is this on disk? */
bool waiter_is_needless(const struct run *r, unsigned states, int64_t version);
/* Calls `ready` once when that is so, never from within; the waiter is gone then. NULL: out of memory. */
struct waiter *waiter_create(struct controller *c, int64_t run, unsigned states, int64_t version,
                             waiter_fn ready, void *context);
void waiter_free(struct waiter *w); /* ends the waiting without a call */
