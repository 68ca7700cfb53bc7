/* SPDX-License-Identifier: Apache-2.0 */
/* How much of its time limit a run has had. An attempt is measured by the monotonic clock; only what an
 * earlier controller has begun, by the other one. */
#include <float.h>

#include "controller/internal.h"

void attempt_begin(struct controller *c, struct run *r)
{
	double left = r->time_limit - r->retries.record.used;

	r->attempt_began = controller_now(c);
	r->room_since = 0;
	/* The machine of this controller may have been booted since: the limit was reached before its clock
	 * began. */
	if (r->time_limit > 0)
		r->limit_at =
		    MAX(controller_now(c) + left - MAX(controller_time(c) - r->started, 0.0), DBL_MIN);
}

void time_used_end(struct controller *c, struct run *r)
{
	if (r->limit_at <= 0)
		return;
	r->retries.record.used = MAX(r->time_limit - (r->limit_at - controller_now(c)), 0.0);
	r->limit_at = 0;
	if (r->state == RUN_QUEUED && r->retries.record.used >= r->time_limit)
		run_time_out(r, controller_time(c));
}
