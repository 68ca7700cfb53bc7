/* SPDX-License-Identifier: Apache-2.0 */
/* The time as the controller is handed it: the service's event loop, or the simulated time of a test. */
#pragma once

enum controller_timer {
	CONTROLLER_FLUSH,       /* after all input that is there to be read */
	CONTROLLER_LAZY_COMMIT, /* may be late by a tenth of a second */
	CONTROLLER_EXPIRY,      /* after all heartbeats that are there to be read */
	CONTROLLER_RETRY,       /* a run has waited long enough for its next attempt */
	CONTROLLER_LIMIT,       /* a run has had its time */
	CONTROLLER_GROWTH,      /* a run may go on with more nodes */
	CONTROLLER_TIMERS,
};

struct controller_clock {
	void *context; /* the first argument of each function */
	double (*monotonic)(void *context);
	double (*realtime)(void *context); /* Unix seconds */
	/* controller_run_timer is to be called once, at monotonic time `at` (0: at once), never from within
	 * this call. A negative time: not at all. It replaces what was set for the same timer before. */
	void (*set_timer)(void *context, enum controller_timer timer, double at);
};
