/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for a run to change, as a list in the controller. */
#include "controller/waiters.h"

#include <stdlib.h>

#include "base/list.h"
#include "controller/internal.h"

struct waiter {
	struct controller *controller;
	struct waiter *prev, *next;
	int64_t run, version;
	unsigned states;
	waiter_fn ready;
	void *context;
};

void waiter_free(struct waiter *w)
{
	if (!w)
		return;
	list_remove(w->controller->waiters, w);
	free(w);
}

void waiters_free(struct controller *c)
{
	while (c->waiters)
		waiter_free(c->waiters);
}

struct waiter *waiter_create(struct controller *c, int64_t run, unsigned states, int64_t version,
                             waiter_fn ready, void *context)
{
	struct waiter *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	*w = (struct waiter){.controller = c,
	                     .run = run,
	                     .version = version,
	                     .states = states,
	                     .ready = ready,
	                     .context = context};
	list_push(c->waiters, w);
	return w;
}

static bool satisfied(const struct run *r, unsigned states, int64_t version)
{
	return run_state_final(r->state) || states >> r->state & 1 || r->version > version;
}

/* A change that waiters have not been notified of waits for the flush, since it may not be on disk yet. */
bool waiter_is_needless(const struct run *r, unsigned states, int64_t version)
{
	return !r->changed && satisfied(r, states, version);
}

void waiters_notify(struct controller *c, const struct run *r)
{
	struct waiter *next;

	for (struct waiter *w = c->waiters; w; w = next) {
		waiter_fn ready = w->ready;
		void *context = w->context;

		next = w->next;
		if (w->run != r->id || !satisfied(r, w->states, w->version))
			continue;
		waiter_free(w);
		ready(context, r);
	}
}
