/* SPDX-License-Identifier: Apache-2.0 */
/* How kernels divide their work between threads. */
#pragma once

#include <omp.h>
#include <stdint.h>

/* For fewer elements, starting the threads takes longer than they save. */
#define PARALLEL_MIN 16384

/* The part [lo, hi) of [0, n) for the calling thread; its bounds are multiples of `grain`. Called inside a
 * parallel region. */
static inline void parallel_part(int64_t n, int64_t grain, int64_t *lo, int64_t *hi)
{
	int64_t units = (n + grain - 1) / grain, threads = omp_get_num_threads(), t = omp_get_thread_num();

	*lo = units * t / threads * grain;
	*hi = units * (t + 1) / threads * grain;
	if (*lo > n)
		*lo = n;
	if (*hi > n)
		*hi = n;
}
