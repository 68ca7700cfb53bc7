/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how long the compute stream waits for collectives, by an event before each wait and one after it.
 * Both are on the compute stream, so the time between them is that in which nothing was computed. The host
 * waits for neither: the measurement is complete after device_synchronize.
 */
#include "engine/comm/nccl/internal.h"

/* Clears the calling thread's last error, which would otherwise be taken for one of its next kernel. */
static void forget_error(void)
{
	(void)cudaGetLastError();
}

/* Adds up the waits that are over, oldest first. */
static void collect(struct waits *w)
{
	for (; w->first < w->next; w->first++) {
		cudaEvent_t *pair = w->events[w->first % WAITS_MAX];
		float ms = 0;
		cudaError_t s = cudaEventQuery(pair[1]);

		if (s == cudaSuccess)
			s = cudaEventElapsedTime(&ms, pair[0], pair[1]);
		if (s != cudaSuccess) {
			forget_error();
			return;
		}
		w->seconds += ms * 1e-3;
	}
}

static bool make_pair(struct waits *w)
{
	cudaEvent_t *pair = w->events[w->made];

	if (cudaEventCreateWithFlags(&pair[0], cudaEventDefault) != cudaSuccess) {
		forget_error();
		return false;
	}
	if (cudaEventCreateWithFlags(&pair[1], cudaEventDefault) != cudaSuccess) {
		forget_error();
		cudaEventDestroy(pair[0]);
		return false;
	}
	w->made++;
	return true;
}

cudaError_t waits_queue(struct waits *w, cudaStream_t stream, cudaEvent_t event)
{
	cudaEvent_t *pair = w->events[w->next % WAITS_MAX];
	cudaError_t s;

	if (w->next - w->first == WAITS_MAX)
		collect(w);
	/* Without events, or with too many under way, this one is not measured. */
	if (w->next - w->first == WAITS_MAX || (w->made < WAITS_MAX && w->next == w->made && !make_pair(w)))
		return cudaStreamWaitEvent(stream, event, 0);
	if ((s = cudaEventRecord(pair[0], stream)) || (s = cudaStreamWaitEvent(stream, event, 0)) ||
	    (s = cudaEventRecord(pair[1], stream)))
		return s;
	w->next++;
	return cudaSuccess;
}

double waits_seconds(struct waits *w)
{
	collect(w);
	return w->seconds;
}

void waits_release(struct waits *w)
{
	for (uint64_t i = 0; i < w->made; i++) {
		cudaEventDestroy(w->events[i][0]);
		cudaEventDestroy(w->events[i][1]);
	}
	*w = (struct waits){0};
}
