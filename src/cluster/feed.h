/* SPDX-License-Identifier: Apache-2.0 */
/* One writer, many listeners: lines go to whoever listens on a topic at that moment. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

struct feed;
struct feed_listener;

/* data NULL: the topic has ended; the listener is still to be removed. */
typedef void (*feed_fn)(void *context, const char *data, size_t len);

int feed_create(struct feed **out, struct error *err);
void feed_destroy(struct feed *f);
DEFINE_CLEANUP(struct feed *, feed_destroy)
/* A listener may remove itself, but no other one, from within its call. */
int feed_listen(struct feed *f, int64_t topic, feed_fn fn, void *context, struct feed_listener **out,
                struct error *err);
void feed_remove(struct feed_listener *l);
void feed_write(struct feed *f, int64_t topic, const char *data, size_t len);
void feed_end(struct feed *f, int64_t topic);
