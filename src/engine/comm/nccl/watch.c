/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that watches the collectives: it learns which have ended, fails the communicator where one has
 * failed or makes no progress, and reports where this rank is. Every WATCH_NS, from the oldest collective
 * that has not ended:
 *
 *                queued by the host            its GPU comes to it
 *     COMPLETED ---------------------> QUEUED ---------------------> RUNNING
 *         ^                              ^                              |
 *         |                              +-- it ends, another is queued-+
 *         +------------------- it ends, no other is queued -------------+
 *
 * Each of these is reported as PROGRESSING until nothing has changed (last_progress_at) for half of the
 * time-out, and a rank that still connects to the others as BOOTSTRAPPING. After the whole time-out the rank
 * gives up: in QUEUED its own computation hangs; in RUNNING it asks where the others are (stall.h) and names
 * those that are missing.
 */
#include "engine/comm/nccl/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define WATCH_NS     (20 * 1000 * 1000)
#define STOP_TIMEOUT 10.0 /* seconds without progress after this process has been asked to end */

static const char *const kind_names[] = {"all-reduce", "reduce-scatter", "all-gather",
                                         "all-to-all", "broadcast",      "barrier"};

const char *comm_kind_name(enum kind kind)
{
	return kind_names[kind];
}

void comm_pause(struct comm *c)
{
	pthread_mutex_unlock(&c->lock);
	nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
	pthread_mutex_lock(&c->lock);
}

void comm_fail(struct comm *c, int code, const char *fmt, ...)
{
	struct error failure = ERROR_INIT;
	char words[640];
	va_list ap;

	if (c->failed)
		return;
	va_start(ap, fmt);
	vsnprintf(words, sizeof(words), fmt, ap);
	va_end(ap);
	(void)error_set(&failure, code, "rank %d: %s", c->numbers[c->rank], words);
	c->aborting++;
	pthread_mutex_unlock(&c->lock);
	family_fail(c->family, &failure);
	pthread_mutex_lock(&c->lock);
	c->aborting--;
}

bool comm_pending(const struct comm *c)
{
	return c->completed < c->queued || c->entering;
}

static const char *kind_of(const struct comm *c, uint64_t collective)
{
	return collective ? kind_names[c->kind[collective % EVENTS]] : "";
}

static int nccl_errno(ncclResult_t r)
{
	return r == ncclRemoteError || r == ncclSystemError ? -ECONNRESET : -EIO;
}

/* The text of NCCL's last error has several lines, of which the message takes the first. */
void comm_fail_nccl(struct comm *c, const char *what, ncclResult_t r)
{
	char words[256];

	snprintf(words, sizeof(words), "%s", c->nccl ? ncclGetLastError(c->nccl) : "");
	words[strcspn(words, "\n")] = 0;
	comm_fail(c, nccl_errno(r), "%s: NCCL: %s%s%s", what, ncclGetErrorString(r), *words ? ": " : "",
	          words);
}

ncclResult_t comm_settle(struct comm *c, ncclResult_t r, double deadline)
{
	/* ncclCommSplit and ncclCommWindowRegister return success as soon as they have begun. */
	if (r == ncclSuccess && c->nccl && !c->failed && ncclCommGetAsyncError(c->nccl, &r) != ncclSuccess)
		r = ncclInternalError;
	while (r == ncclInProgress && !c->failed) {
		comm_pause(c);
		if (c->failed || ncclCommGetAsyncError(c->nccl, &r) != ncclSuccess)
			break;
		if (r == ncclInProgress && clock_monotonic() > deadline)
			break;
	}
	return r;
}

/* ---- watching ---- */
/* Clears the error "not ready", which otherwise remains the thread's last error and would be taken for one of
 * its next kernel. */
static cudaError_t query(cudaEvent_t event)
{
	cudaError_t s = cudaEventQuery(event);

	if (s == cudaErrorNotReady)
		(void)cudaGetLastError();
	return s;
}

void comm_look(struct comm *c)
{
	ncclResult_t r = ncclSuccess;
	double now = clock_monotonic();

	if (!c->nccl || c->failed)
		return;
	if (ncclCommGetAsyncError(c->nccl, &r) == ncclSuccess && r != ncclSuccess && r != ncclInProgress) {
		comm_fail_nccl(c, c->call ? c->call : "collectives", r);
		return;
	}
	while (c->completed < c->queued) {
		uint64_t next = c->completed + 1;
		cudaError_t status;

		if (c->queued - next >= EVENTS)
			next = c->queued - EVENTS + 1;
		status = query(c->event[next % EVENTS]);
		if (status == cudaErrorNotReady)
			break;
		if (status != cudaSuccess) {
			comm_fail(c, -EIO, "%s: %s", kind_of(c, next), cudaGetErrorString(status));
			return;
		}
		c->completed = next;
		if (c->started_at > 0)
			c->longest_wait = MAX(c->longest_wait, now - c->started_at);
		c->started_at = 0;
		c->last_progress_at = now;
	}
	if (!c->started_at && comm_pending(c) && query(c->begun[(c->completed + 1) % EVENTS]) == cudaSuccess)
		c->started_at = c->last_progress_at = now;
}

/* Reports where this rank is, for other ranks that may ask. Releases the lock meanwhile. */
static void broadcast_status(struct comm *c)
{
	bool still = clock_monotonic() - c->last_progress_at > 0.5 * c->timeout_s;
	enum progress_state state = !still             ? PROGRESSING
	                            : !comm_pending(c) ? COMPLETED
	                            : c->started_at    ? RUNNING
	                                               : QUEUED;
	uint64_t at = !still ? 0 : c->completed + comm_pending(c);
	const char *kind = kind_of(c, at);

	if (c->failed || (state == c->reported && at == c->reported_at))
		return;
	c->reported = state;
	c->reported_at = at;
	pthread_mutex_unlock(&c->lock);
	(void)stall_report(&c->stall, state, at, kind, NULL);
	pthread_mutex_lock(&c->lock);
}

/* Fails the communicator, and says which ranks it waits for. Releases the lock while it asks for that. */
static void give_up(struct comm *c)
{
	char words[480] = "this rank's GPU has not reached it: the computation before it hangs";
	uint64_t next = c->completed + 1;
	const char *kind = kind_of(c, next);

	if (c->started_at > 0) {
		pthread_mutex_unlock(&c->lock);
		stall_ask(&c->stall, next, kind, words, sizeof(words));
		pthread_mutex_lock(&c->lock);
		comm_look(c);
	}
	if (c->completed < next && comm_pending(c))
		comm_fail(c, -ETIMEDOUT, "%s (collective %llu%s) has made no progress for %d s: %s", kind,
		          (unsigned long long)next, c->lane, c->timeout_s, words);
}

static void check_timeout(struct comm *c)
{
	double now = clock_monotonic(), waited = c->started_at > 0 ? now - c->started_at : 0;
	double allowed = MIN(STOP_TIMEOUT, 0.25 * c->timeout_s) + 2 * c->longest_wait;

	if (c->failed || !comm_pending(c))
		return;
	if (now - c->last_progress_at > c->timeout_s)
		give_up(c);
	/* When one rank has died, all others are asked to end. */
	else if (waited > allowed && c->stopping && c->stopping(c->stopping_context))
		comm_fail(c, -ECANCELED,
		          "told to stop; %s (collective %llu%s) has waited for other ranks for %.0f s",
		          kind_of(c, c->completed + 1), (unsigned long long)c->completed + 1, c->lane,
		          waited);
}

void *comm_watch(void *context)
{
	struct comm *c = context;

	(void)cudaSetDevice(c->dev->index);
	pthread_mutex_lock(&c->lock);
	while (!c->ending) {
		struct timespec until;

		comm_look(c);
		broadcast_status(c);
		check_timeout(c);
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += WATCH_NS;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
		if (!c->ending)
			pthread_cond_timedwait(&c->wake, &c->lock, &until);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}
