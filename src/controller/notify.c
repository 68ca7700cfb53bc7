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
	_cleanup_json_ json_t *nodes = json_array();
	_cleanup_free_ char *line = NULL;
	json_t *event;

	if (r->last_event_state == (int)r->state + 1)
		return;
	r->last_event_state = (int)r->state + 1;
	log_change(r);
	for (size_t i = 0; i < r->part_count; i++)
		json_array_append_new(nodes, json_string(r->parts[i].node));
	event = json_pack("{s:f,s:I,s:s,s:s,s:I,s:s?,s:O}", "time", controller_time(c), "run",
	                  (json_int_t)r->id, "name", r->name, "state", run_state_name(r->state), "attempt",
	                  (json_int_t)r->attempt, "reason", r->reason, "nodes", nodes);
	line = event ? json_to_string(event) : NULL;
	json_decref(event);
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
		if (!run_state_final(r->state) || r->dirty || r->written_by > c->committed) {
			i++;
			continue;
		}
		feed_end(c->metrics, r->id);
		run_free(queue_take(&c->queue, r->id));
	}
}
