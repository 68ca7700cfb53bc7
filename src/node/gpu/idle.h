/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a GPU is left as it was found: after the end of an attempt, the memory in use on it has to be back,
 * within some seconds, to about what it was before. What is not given back belongs to a process that no unit
 * has, or is lost until the driver is restarted; the next run would lack it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu_idle {
	int64_t before;  /* bytes in use when the slot was leased; -1: not known */
	int64_t run;     /* that has ended; 0: nothing is awaited */
	double deadline; /* clock_monotonic(): until then its memory has to be free */
};

/* used: as it was read last, -1: not known. What the run before has not given back yet does not count as
 * idle. */
void gpu_idle_leased(struct gpu_idle *idle, int64_t used);
void gpu_idle_released(struct gpu_idle *idle, int64_t run, double now, double seconds);
/* With each reading. True: the run has left memory in use; `reason` says how much. Once for each run. */
bool gpu_idle_read(struct gpu_idle *idle, int64_t used, double now, double seconds, char *reason,
                   size_t size);
