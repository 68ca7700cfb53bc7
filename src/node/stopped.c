/* SPDX-License-Identifier: Apache-2.0 */
/* The attempts that must not be started here any more, by age. */
#include "node/stopped.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "node/clusters.h"
#include "node/lease.h"

/* A controller waits for the answer to a start for half a minute. */
static const double KEPT_SECONDS = 900.0;

struct stopped_attempt {
	char cluster[CLUSTER_ID_MAX + 1];
	int64_t epoch, run, attempt;
	double at; /* by lease_clock() */
};

bool stopped_has(const struct stopped *s, const char *cluster, int64_t epoch, int64_t run, int64_t attempt)
{
	for (size_t i = 0; i < s->count; i++)
		if (s->list[i].run == run && s->list[i].attempt == attempt && s->list[i].epoch >= epoch &&
		    str_eq(s->list[i].cluster, cluster))
			return true;
	return false;
}

static void remove_old(struct stopped *s, double now)
{
	size_t old = 0;

	while (old < s->count && s->list[old].at < now - KEPT_SECONDS)
		old++;
	if (old == 0)
		return;
	s->count -= old;
	memmove(s->list, s->list + old, s->count * sizeof(*s->list));
}

int stopped_add(struct stopped *s, const char *cluster, int64_t epoch, int64_t run, int64_t attempt,
                struct error *err)
{
	const double now = lease_clock();
	struct stopped_attempt *grown;

	remove_old(s, now);
	if (stopped_has(s, cluster, epoch, run, attempt))
		return 0;
	grown = reallocarray(s->list, s->count + 1, sizeof(*grown));
	if (!grown)
		return error_oom(err);
	s->list = grown;
	grown[s->count] = (struct stopped_attempt){.epoch = epoch, .run = run, .attempt = attempt, .at = now};
	snprintf(grown[s->count].cluster, sizeof(grown->cluster), "%s", cluster);
	s->count++;
	return 0;
}

void stopped_release(struct stopped *s)
{
	free(s->list);
	*s = (struct stopped){0};
}
