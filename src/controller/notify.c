/* SPDX-License-Identifier: Apache-2.0 */
/* After the commit: the journal, the feed of events and who waits for a run are told of its changes. */
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "controller/internal.h"

static void log_change(const struct run *r)
{
	_cleanup_free_ char *reason = strdup(r->reason ? r->reason : "");
	char fields[64];

	/* One line: the last lines of a log follow each other. */
	for (char *p = reason; p && (p = strchr(p, '\n'));)
		*p = '|';
	snprintf(fields, sizeof(fields), "RUN_ID=%lld\nATTEMPT=%lld", (long long)r->id,
	         (long long)r->attempt);
	log_write(r->state == RUN_FAILED ? LOG_WARNING : LOG_INFO, fields, "run %lld (%s): %s%s%s",
	          (long long)r->id, r->name, run_state_name(r->state), reason && *reason ? ": " : "",
	          reason ? reason : "");
}

static void notify_event(struct controller *c, struct run *r)
{
	_cleanup_free_ char **nodes = calloc(r->part_count + 1, sizeof(*nodes)), *line = NULL;
	const struct run_event event = {.time = controller_time(c),
	                                .run = r->id,
	                                .name = r->name,
	                                .state = r->state,
	                                .attempt = r->attempt,
	                                .reason = r->reason,
	                                .nodes = nodes};
	json_t *json;

	if (r->last_event_state == (int)r->state + 1)
		return;
	r->last_event_state = (int)r->state + 1;
	log_change(r);
	for (size_t i = 0; nodes && i < r->part_count; i++)
		nodes[i] = r->parts[i].node;
	json = run_event_encode(&event);
	line = json ? json_to_string(json) : NULL;
	json_decref(json);
	if (!line)
		return;
	feed_write(c->events, FEED_EVENTS, line, strlen(line));
	feed_write(c->events, FEED_EVENTS, "\n", 1);
}

void notify_changes(struct controller *c)
{
	for (size_t i = 0; i < c->queue.count;) {
		struct run *r = c->queue.list[i];

		if (!controller_is_committed(c, r)) {
			i++;
			continue;
		}
		if (r->changed) {
			r->changed = false;
			notify_event(c, r);
			waiters_notify(c, r);
		}
		if (!run_state_final(r->state) || r->dirty || r->refused || r->written_by > c->committed) {
			i++;
			continue;
		}
		feed_end(c->metrics, r->id);
		run_free(queue_take(&c->queue, r->id));
	}
}
