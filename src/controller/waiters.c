/* SPDX-License-Identifier: Apache-2.0 */
/* Requests (and code) that wait for a run to change. */
#include "base/json.h"
#include "base/log.h"
#include "controller/internal.h"

struct waiter {
	struct controller *controller;
	struct waiter *prev, *next;
	int64_t run, version;
	unsigned states;
	struct http_request *request;
	void (*ready)(void *context, const struct run *r);
	void *context;
};

void waiter_free(struct waiter *w)
{
	if (!w)
		return;
	if (w->request)
		http_request_on_close(w->request, NULL, NULL);
	if (w->prev)
		w->prev->next = w->next;
	else
		w->controller->waiters = w->next;
	if (w->next)
		w->next->prev = w->prev;
	free(w);
}

static void on_closed(void *context)
{
	struct waiter *w = context;

	w->request = NULL;
	waiter_free(w);
}

struct waiter *controller_wait_call(struct controller *c, int64_t run, unsigned states, int64_t version,
                                    void (*ready)(void *context, const struct run *r), void *context)
{
	struct waiter *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	*w = (struct waiter){.controller = c,
	                     .next = c->waiters,
	                     .run = run,
	                     .version = version,
	                     .states = states,
	                     .ready = ready,
	                     .context = context};
	if (w->next)
		w->next->prev = w;
	c->waiters = w;
	return w;
}

static bool satisfied(const struct run *r, unsigned states, int64_t version)
{
	return run_state_final(r->state) || states >> r->state & 1 || r->version > version;
}

void controller_wait(struct controller *c, struct http_request *request, struct run *r, unsigned states,
                     int64_t version)
{
	struct waiter *w;

	/* What has changed and is not told yet waits for the flush: nobody hears of what is not on disk. */
	if (!r->changed && satisfied(r, states, version)) {
		controller_reply_run(c, request, r);
		return;
	}
	w = controller_wait_call(c, r->id, states, version, NULL, NULL);
	if (!w) {
		http_reply_error(request, 500, "out-of-memory", "out of memory");
		return;
	}
	w->request = request;
	http_request_on_close(request, on_closed, w);
}

void waiters_tell(struct controller *c, const struct run *r)
{
	struct waiter *next;

	for (struct waiter *w = c->waiters; w; w = next) {
		void (*ready)(void *context, const struct run *r) = w->ready;
		struct http_request *request = w->request;
		void *context = w->context;

		next = w->next;
		if (w->run != r->id || !satisfied(r, w->states, w->version))
			continue;
		waiter_free(w);
		if (request)
			controller_reply_run(c, request, r);
		else
			ready(context, r);
	}
}
