/* SPDX-License-Identifier: Apache-2.0 */
/* What follows a failed attempt of a run: whether there is another one, when, and which nodes it avoids. */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "cluster/run.h"

#define FIRST_DELAY   1.0   /* seconds before the next attempt; doubled with each failure in a row, */
#define LONGEST_DELAY 300.0 /* but no more than this */
#define LONG_ATTEMPT  600.0 /* after an attempt of so many seconds the delay begins anew */

enum { STALLED_MAX = 3 }; /* attempts in a row without a newer checkpoint, after which the run is given up */

bool run_has_retries(const struct run *r)
{
	const struct retry_record *x = &r->retries.record;

	return x->busy_starts > 0 || x->restarts > 0 || x->node_failures > 0 || x->stalled > 0 ||
	       x->checkpoint > 0 || x->last_failure || x->used > 0;
}

void run_begin_attempt(struct run *r)
{
	r->retries.at = 0;
	r->retries.record.delay = 0;
	r->retries.record.checkpoint_before = r->retries.record.checkpoint;
}

void run_set_last_failure(struct run *r, const char *cause, const char *detail)
{
	struct retry_record *x = &r->retries.record;

	free(x->last_failure);
	x->last_failure = str_printf("attempt %lld: %s", (long long)r->attempt, cause);
	free(x->last_detail);
	x->last_detail = detail ? strdup(detail) : NULL;
}

void run_set_checkpoint(struct run *r, int64_t step)
{
	struct retry_record *x = &r->retries.record;

	if (step <= x->checkpoint)
		return;
	x->checkpoint = step;
	free(x->checkpoint_node); /* out of memory: it is not known, and not named */
	x->checkpoint_node = r->rank_count > 0 && r->ranks[0].node ? strdup(r->ranks[0].node) : NULL;
	run_touch(r);
}

/* Without memory for it, the next attempt may take the node again. */
static void add_avoided(struct run *r, size_t *count, const char *node)
{
	struct retry_record *x = &r->retries.record;
	char **list = reallocarray(x->avoid, *count + 2, sizeof(*list));

	if (!list)
		return;
	x->avoid = list;
	list[*count] = strdup(node);
	if (list[*count])
		(*count)++;
	list[*count] = NULL;
}

/* The nodes that have failed in this attempt, in the place of those of the one before. */
static void set_avoided(struct run *r)
{
	const struct run_part *part = r->device_node ? run_part_find(r, r->device_node) : NULL;
	size_t count = 0;

	str_list_free(steal_pointer(r->retries.record.avoid));
	for (size_t i = 0; i < r->part_count; i++)
		if (r->parts[i].trouble)
			add_avoided(r, &count, r->parts[i].node);
	if (r->device_node && !(part && part->trouble))
		add_avoided(r, &count, r->device_node);
}

static void count_stalled(struct run *r)
{
	struct retry_record *x = &r->retries.record;

	if (!r->retries.saves && x->checkpoint == 0) /* of other programs it is not known what they save */
		return;
	x->stalled = x->checkpoint > x->checkpoint_before ? 0 : x->stalled + 1;
}

static void set_delay(struct run *r, double now)
{
	struct retry_record *x = &r->retries.record;

	if (now - r->started >= LONG_ATTEMPT)
		x->delays = 0;
	x->delay = FIRST_DELAY;
	for (int64_t i = 0; i < x->delays && x->delay < LONGEST_DELAY; i++)
		x->delay *= 2;
	x->delay = MIN(x->delay, LONGEST_DELAY);
	x->delays++;
}

void run_count_busy(struct run *r, const char *node)
{
	size_t count = 0;

	r->busy = true;
	r->retries.record.busy_starts++;
	str_list_free(steal_pointer(r->retries.record.avoid));
	add_avoided(r, &count, node);
}

bool run_retry_unstarted(struct run *r, double now)
{
	_cleanup_free_ char *cause = strdup(r->reason ? r->reason : "");
	int64_t most = r->retries.max_busy_starts;

	if (!r->busy)
		return true;
	set_delay(r, now);
	if (r->retries.record.busy_starts <= most)
		return true;
	run_set_reason(r, "%s; attempt %lld was the last one: resources.max_busy_starts is %lld",
	               cause ? cause : "a slot was taken", (long long)r->attempt, (long long)most);
	return false;
}

/* Why there is no other attempt, where the run asks for some. */
static void set_final_reason(struct run *r, const char *cause, enum run_failure failure)
{
	const struct run_retries *t = &r->retries;
	bool node = failure == FAILURE_NODE;
	int64_t most = node ? t->max_node_failures : t->max_restarts;

	if (failure == FAILURE_FINAL || most == 0)
		return;
	if (t->record.stalled >= STALLED_MAX)
		run_set_reason(r, "%s; given up after %d attempts in a row without a newer checkpoint", cause,
		               STALLED_MAX);
	else
		run_set_reason(r, "%s; attempt %lld was the last one: resources.%s is %lld", cause,
		               (long long)r->attempt, node ? "max_node_failures" : "max_restarts",
		               (long long)most);
}

bool run_retry(struct run *r, enum run_failure failure, double now)
{
	struct retry_record *x = &r->retries.record;
	_cleanup_free_ char *cause = strdup(r->reason ? r->reason : "");
	int64_t *count = failure == FAILURE_NODE ? &x->node_failures : &x->restarts;
	int64_t most = failure == FAILURE_NODE ? r->retries.max_node_failures : r->retries.max_restarts;

	if (!cause || r->cancelled)
		return false;
	count_stalled(r);
	if (failure == FAILURE_FINAL || *count >= most || x->stalled >= STALLED_MAX) {
		set_final_reason(r, cause, failure);
		return false;
	}
	(*count)++;
	set_delay(r, now);
	if (failure == FAILURE_NODE && run_has_replacements(r))
		x->delay = 0;
	set_avoided(r);
	run_set_last_failure(r, cause, r->detail);
	if (x->delay > 0)
		run_set_reason(r, "attempt %lld has failed: %s; the next one begins in %.0f s",
		               (long long)r->attempt, cause, x->delay);
	else
		run_set_reason(r, "attempt %lld has failed: %s; the next one begins on spare nodes",
		               (long long)r->attempt, cause);
	return true;
}
