/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the ranks of an attempt meet: a small key-value store with gets that wait for the key. Lives in
 * memory, as long as the attempt does.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

enum { RENDEZVOUS_KEY_MAX = 200, RENDEZVOUS_VALUE_MAX = 1 << 20 };

struct rendezvous;
struct rendezvous_waiter;

int rendezvous_create(struct rendezvous **out, struct error *err);
void rendezvous_destroy(struct rendezvous *r); /* waiters are told: gone */
DEFINE_CLEANUP(struct rendezvous *, rendezvous_destroy)

/* Sets a key, and tells those who wait for it. The first put of a newer attempt makes the older one's keys
 * vanish. max_bytes: of all values and keys of the attempt together, with what is needed to keep them.
 * -ESTALE: the attempt is older than one seen; -ENOSPC, -EINVAL: too much, a bad key. */
int rendezvous_put(struct rendezvous *r, int64_t run, int64_t attempt, size_t max_bytes, const char *key,
                   const void *value, size_t len, struct error *err);
/* The value, valid until the next call. -ENOENT. */
int rendezvous_get(struct rendezvous *r, int64_t run, int64_t attempt, const char *key, const void **value,
                   size_t *len, struct error *err);
/* Calls `done` once when the key comes, with its value; or with NULL when the attempt ends. Then the waiter
 * is gone; before that, rendezvous_unwait ends it without a call. */
int rendezvous_wait(struct rendezvous *r, int64_t run, int64_t attempt, const char *key,
                    void (*done)(void *context, const void *value, size_t len), void *context,
                    struct rendezvous_waiter **out, struct error *err);
void rendezvous_unwait(struct rendezvous_waiter *w);
void rendezvous_drop(struct rendezvous *r, int64_t run); /* the attempt has ended */
