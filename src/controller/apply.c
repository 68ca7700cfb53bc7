/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from an event of a run, beyond its own state. */
#include "controller/internal.h"

void apply_flags(struct controller *c, struct run *r, unsigned flags)
{
	/* No node has parts of an attempt that is not on disk: it is given up instead of being started. */
	if ((flags & RUN_STOP) && !r->to_start)
		for (size_t i = 0; i < r->part_count; i++)
			if (!r->parts[i].ended)
				stop_part(c, r, &r->parts[i]);
	if (flags & RUN_ENDED) {
		/* The slots are free before the next heartbeats say so. */
		for (size_t i = 0; i < members_count(c->members); i++)
			member_release(members_get(c->members, i), r->id);
		rendezvous_drop(c->rendezvous, r->id);
		if (r->state == RUN_QUEUED && r->retries.record.delay > 0)
			r->retries.at = controller_now(c) + r->retries.record.delay;
		time_used_end(c, r);
		controller_await_commit(c, r);
		c->reschedule = true;
	}
	controller_touch(c);
}
