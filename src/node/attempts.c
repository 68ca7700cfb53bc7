/* SPDX-License-Identifier: Apache-2.0 */
/* The list of the attempts that a node knows. */
#include "node/attempts.h"

#include <stdlib.h>

#include "base/cleanup.h"

struct attempts {
	struct known_attempt *oldest;
	sd_event_source *sweep;
};

static void free_known(struct known_attempt *known)
{
	attempt_free(known->attempt);
	free(known);
}

static int on_sweep(sd_event_source *source, void *context)
{
	struct attempts *a = context;

	for (struct known_attempt **at = &a->oldest; *at;) {
		struct known_attempt *known = *at;

		if (!known->forgotten || !attempt_is_settled(known->attempt)) {
			at = &known->next;
			continue;
		}
		*at = known->next;
		free_known(known);
	}
	return 0;
}

int attempts_create(sd_event *event, struct attempts **out, struct error *err)
{
	struct attempts *a = calloc(1, sizeof *a);
	int r;

	if (!a)
		return error_oom(err);
	r = sd_event_add_defer(event, &a->sweep, on_sweep, a);
	if (r < 0) {
		free(a);
		return error_errno(err, r, "event loop");
	}
	sd_event_source_set_enabled(a->sweep, SD_EVENT_OFF);
	*out = a;
	return 0;
}

void attempts_destroy(struct attempts *a)
{
	if (!a)
		return;
	while (a->oldest) {
		struct known_attempt *known = a->oldest;

		a->oldest = known->next;
		free_known(known);
	}
	sd_event_source_disable_unref(a->sweep);
	free(a);
}

int attempts_add(struct attempts *a, struct attempt *attempt, double started, struct error *err)
{
	struct known_attempt *known = calloc(1, sizeof *known), **end = &a->oldest;

	if (!known)
		return error_oom(err);
	known->attempt = attempt;
	known->started = started;
	while (*end)
		end = &(*end)->next;
	*end = known;
	return 0;
}

void attempts_sweep(struct attempts *a)
{
	sd_event_source_set_enabled(a->sweep, SD_EVENT_ONESHOT);
}

void attempts_forget(struct attempts *a, struct known_attempt *known)
{
	known->forgotten = true;
	attempts_sweep(a);
}

static struct known_attempt *not_forgotten(struct known_attempt *known)
{
	while (known && known->forgotten)
		known = known->next;
	return known;
}

struct known_attempt *attempts_first(const struct attempts *a)
{
	return not_forgotten(a->oldest);
}

struct known_attempt *attempts_next(const struct known_attempt *known)
{
	return not_forgotten(known->next);
}

struct known_attempt *attempts_find(const struct attempts *a, int64_t run, int64_t attempt)
{
	for (struct known_attempt *known = attempts_first(a); known; known = attempts_next(known)) {
		const struct request *q = attempt_request(known->attempt);

		if (q->run == run && q->attempt == attempt)
			return known;
	}
	return NULL;
}

struct known_attempt *attempts_oldest_ended(const struct attempts *a, int kept)
{
	struct known_attempt *oldest = NULL;
	int ended = 0;

	for (struct known_attempt *known = attempts_first(a); known; known = attempts_next(known))
		if (attempt_has_ended(known->attempt)) {
			oldest = oldest ?: known;
			ended++;
		}
	return ended > kept ? oldest : NULL;
}

bool attempt_holds(const struct known_attempt *known)
{
	return !attempt_has_ended(known->attempt);
}

const struct request *attempts_holder(const struct attempts *a, int slot)
{
	for (struct known_attempt *known = attempts_first(a); known; known = attempts_next(known))
		if (attempt_holds(known) && request_has_slot(attempt_request(known->attempt), slot))
			return attempt_request(known->attempt);
	return NULL;
}

int attempts_running(const struct attempts *a)
{
	int n = 0;

	for (struct known_attempt *known = attempts_first(a); known; known = attempts_next(known))
		n += attempt_holds(known);
	return n;
}
