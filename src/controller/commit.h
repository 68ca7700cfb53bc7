/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for what has been changed to be on disk: whoever commands is answered then. */
#pragma once

#include <stdint.h>

#include "base/error.h"

struct controller;
struct commit_waiter;

/* err NULL: all that had been changed of the run, or of anything other than runs, when the waiter was made is
 * on disk. Otherwise it is not yet; it is in effect, and is committed as soon as the store can be written
 * again. */
typedef void (*committed_fn)(void *context, const struct error *err);

/* run: 0: none, or several. Calls `done` once, never from within; the waiter is gone then. NULL: out of
 * memory. */
struct commit_waiter *commit_waiter_create(struct controller *c, int64_t run, committed_fn done,
                                           void *context);
void commit_waiter_free(struct commit_waiter *w); /* ends the waiting without a call; NULL: nothing */
