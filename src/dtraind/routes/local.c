/* SPDX-License-Identifier: Apache-2.0 */
/* What runs on this node, and its end, without the controller: it may be away. */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "dtraind/daemon.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "wire/node_view.h"
#include "wire/run_view.h"

/* Borrows the strings of the report. */
static bool describe(const struct daemon *d, size_t i, const struct report *report,
                     struct foreign_attempt *out)
{
	const int *slots;
	size_t count;

	node_attempt_owner(d->node, i, &slots, &count);
	*out = (struct foreign_attempt){.run = report->run,
	                                .attempt = report->attempt,
	                                .cluster = report->cluster,
	                                .epoch = report->epoch,
	                                .user = report->user,
	                                .name = report->name,
	                                .state = report->state,
	                                .slots = calloc(count + 1, sizeof(*out->slots))};
	for (; out->slots && out->slot_count < count; out->slot_count++)
		out->slots[out->slot_count] = slots[out->slot_count];
	return out->slots;
}

void route_local_runs(void *context, struct http_request *r)
{
	struct daemon *d = context;
	struct local_runs answer = {0};
	const struct report *report;
	size_t count = 0;
	bool complete;

	while (node_attempt(d->node, count))
		count++;
	answer.runs = calloc(count + 1, sizeof(*answer.runs));
	complete = answer.runs;
	for (size_t i = 0; complete && (report = node_attempt(d->node, i)); i++)
		if (report->state != ATTEMPT_ENDED)
			complete = describe(d, i, report, &answer.runs[answer.count++]);
	if (complete)
		http_reply_json(r, 200, local_runs_encode(&answer));
	else
		http_reply_error(r, 500, "out-of-memory", "out of memory");
	for (size_t i = 0; i < answer.count; i++)
		free(answer.runs[i].slots);
	free(answer.runs);
}

/* Runs of two clusters may have one number: all of them have to be the caller's. */
void route_local_end(void *context, struct http_request *r)
{
	const struct http_caller *caller = http_request_caller(r);
	const char *text = http_request_capture(r, 0);
	struct daemon *d = context;
	const struct report *report;
	char reason[200];
	int64_t run;
	int found = 0;

	if (str_to_int64(text, 1, INT64_MAX, &run) < 0)
		run = 0;
	for (size_t i = 0; (report = node_attempt(d->node, i)); i++) {
		const int *slots;
		size_t count;

		if (report->run != run || report->state == ATTEMPT_ENDED)
			continue;
		found++;
		if (!caller_may(caller, node_attempt_owner(d->node, i, &slots, &count))) {
			http_reply_error(r, 403, "not-allowed",
			                 "run %lld is of %s: only its user and administrators may end it",
			                 (long long)run, report->user ? report->user : "another user");
			return;
		}
	}
	if (!found) {
		http_reply_error(r, 404, "no-such-run", "nothing of run %.40s runs on node %s", text,
		                 d->settings->name);
		return;
	}
	snprintf(reason, sizeof(reason), "it was ended on node %s by \"dtrain kill --local\"",
	         d->settings->name);
	node_end_run(d->node, run, reason);
	http_reply_json(r, 202, run_accepted_encode(&(struct run_accepted){run, RUN_STOPPING}));
}
