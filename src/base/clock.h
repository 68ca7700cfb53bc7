/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
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

/* How far another machine's realtime clock is ahead of ours, from the time that it put into an answer:
 * somewhere between the sending of the question and the arrival of the answer. {0}: nothing is known, and 0
 * assumed. */
struct clock_gap {
	double offset, error; /* seconds, ± */
	double taken;         /* when, by our clock; 0: never */
};

/* The narrower one of two samples counts, for a minute. theirs 0: the other does not say. */
static inline void clock_gap_add(struct clock_gap *g, double sent, double theirs, double received)
{
	double error = (received - sent) / 2;

	if (theirs <= 0 || error < 0)
		return;
	if (g->taken > 0 && error > g->error && received - g->taken >= 0 && received - g->taken < 60)
		return;
	g->offset = theirs - (sent + received) / 2;
	g->error = error;
	g->taken = received;
}
