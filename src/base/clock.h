/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <time.h>

/* Seconds: CLOCK_MONOTONIC for durations, CLOCK_REALTIME for timestamps. */
static inline double clock_seconds(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return ts.tv_sec + ts.tv_nsec * 1e-9;
}

static inline double clock_monotonic(void)
{
	return clock_seconds(CLOCK_MONOTONIC);
}

static inline double clock_realtime(void)
{
	return clock_seconds(CLOCK_REALTIME);
}
