/* SPDX-License-Identifier: Apache-2.0 */
/* One piece of work at a time on a thread of its own. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"

struct background {
	pthread_t thread;
	bool running;     /* started, and not joined */
	atomic_bool done; /* the work has ended: background_join does not wait */
	int (*run)(void *context, struct error *err);
	void *context;
	int result;
	struct error err;
};

/* {0} before the first start. */
int background_start(struct background *b, int (*run)(void *context, struct error *err), void *context,
                     struct error *err);
/* Waits for the end; what run returned, and its error. */
int background_join(struct background *b, struct error *err);
