/* SPDX-License-Identifier: Apache-2.0 */
/* Time limits of runs: the end of those whose time is over. */
#include "controller/internal.h"

void limits_check(struct controller *c)
{
	double now = controller_now(c), next = 0;

	for (size_t i = 0; i < c->queue.count; i++) {
		struct run *r = c->queue.list[i];

		if (r->limit_at > 0 && r->limit_at <= now && !r->timed_out) {
			unsigned flags = run_time_out(r, controller_time(c));

			if (flags)
				controller_await_commit(c, r);
			apply_flags(c, r, flags);
		} else if (r->limit_at > now)
			next = next > 0 ? MIN(next, r->limit_at) : r->limit_at;
	}
	controller_set_timer(c, CONTROLLER_LIMIT, next > 0 ? next : -1);
}
