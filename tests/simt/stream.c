/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events: kernels and copies are done at once, or on a late stream when they are waited for;
 * collectives complete later. */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/clock.h"

/* A place on a stream of collectives: reached once `done` of it is `count`. */
struct place {
	struct simt_stream *stream;
	uint64_t count;
};

enum { ENDS = 1024 }; /* as many of the last ends have their time */
enum { AWAITED = 8 }; /* as many streams can be waited for at once */

/* Work of a late stream. */
struct task {
	void (*run)(void *context);
	void *context;
	struct place awaited[AWAITED]; /* what its stream waited for when it was queued */
	struct task *next;
};

struct simt_stream {
	bool late, running;
	int priority;
	struct task *first, **last;
	uint64_t queued, done;
	double ended_at[ENDS];              /* of the collective that made `done` n, at n % ENDS */
	struct place awaited[AWAITED];      /* the last place of each stream that this one waits for */
	struct place behind[ENDS][AWAITED]; /* the same when its collective n was queued, at n % ENDS */
	struct simt_stream *next;
};

struct simt_event {
	struct place place, awaited[AWAITED]; /* all of them */
	double recorded_at;
	unsigned flags;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct simt_stream *streams; /* all streams */

static void await(const struct place *awaited);

static int reached(const struct place *p)
{
	return !p->stream || p->stream->done >= p->count;
}

static int all_reached(const struct place *awaited)
{
	for (int i = 0; i < AWAITED; i++)
		if (!reached(&awaited[i]))
			return 0;
	return 1;
}

/* Adds a place to those that stream s waits for. */
static void wait_for(cudaStream_t s, const struct place *p)
{
	struct place *to = NULL;

	if (!p->stream || p->stream == s || reached(p))
		return;
	for (int i = 0; i < AWAITED; i++) {
		struct place *a = &s->awaited[i];

		if (a->stream == p->stream) {
			a->count = a->count > p->count ? a->count : p->count;
			return;
		}
		if (reached(a))
			to = a;
	}
	if (!to)
		abort();
	*to = *p;
}

static bool has_tasks(const struct simt_stream *s)
{
	return s->first || s->running;
}

/* Carries out the work of a late stream up to this place; under lock, which is released meanwhile. */
static void run_until(struct simt_stream *s, uint64_t count)
{
	while (has_tasks(s) && s->done < count) {
		struct task *t = s->first;

		if (s->running) {
			pthread_cond_wait(&changed, &lock);
			continue;
		}
		s->running = true;
		await(t->awaited);
		s->first = t->next;
		if (!s->first)
			s->last = &s->first;
		pthread_mutex_unlock(&lock);
		t->run(t->context);
		free(t);
		pthread_mutex_lock(&lock);
		s->running = false;
		s->ended_at[++s->done % ENDS] = clock_monotonic();
		pthread_cond_broadcast(&changed);
	}
}

/* The same without a wait: as far as nothing is needed that is under way. */
static void run_what_can(struct simt_stream *s, uint64_t count)
{
	while (s->first && !s->running && s->done < count) {
		struct task *t = s->first;

		for (int i = 0; i < AWAITED; i++)
			if (!reached(&t->awaited[i]))
				run_what_can(t->awaited[i].stream, t->awaited[i].count);
		if (s->running || s->first != t)
			continue;
		if (!all_reached(t->awaited))
			return;
		run_until(s, s->done + 1);
	}
}

/* Waits for all of them; under lock. */
static void await(const struct place *awaited)
{
	for (int i = 0; i < AWAITED; i++)
		if (!reached(&awaited[i]) && has_tasks(awaited[i].stream))
			run_until(awaited[i].stream, awaited[i].count);
	while (!all_reached(awaited))
		pthread_cond_wait(&changed, &lock);
}

static _Thread_local bool late_streams;

void simt_late_streams(int late)
{
	late_streams = late;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return cudaSuccess;
}

/* Workers of several ranks have the collectives of the CPU engine, which know of no stream: what they read
 * has to be there when they are called. */
static bool has_host_collectives(void)
{
	const char *ranks = getenv("WORLD_SIZE");

	return ranks && atoi(ranks) > 1;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority)
{
	cudaError_t r = cudaStreamCreateWithFlags(s, flags);

	if (!r) {
		(*s)->late = !has_host_collectives();
		(*s)->priority = priority;
	}
	return r;
}

cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority)
{
	*priority = s->priority;
	return cudaSuccess;
}

int simt_stream_late(cudaStream_t s)
{
	return s && s->late;
}

void simt_stream_defer(cudaStream_t s, void (*run)(void *context), void *context)
{
	struct task *t = calloc(1, sizeof(*t));

	if (!t)
		abort();
	t->run = run;
	t->context = context;
	pthread_mutex_lock(&lock);
	memcpy(t->awaited, s->awaited, sizeof(t->awaited));
	*s->last = t;
	s->last = &t->next;
	s->queued++;
	pthread_mutex_unlock(&lock);
}

struct copy {
	void *to;
	const void *from;
	size_t n;
};

static void run_copy(void *context)
{
	struct copy *c = context;

	simt_enter(NULL);
	memmove(c->to, c->from, c->n);
	simt_leave();
	free(c);
}

void simt_stream_copy(cudaStream_t s, void *to, const void *from, size_t n)
{
	struct copy *c = malloc(sizeof(*c));

	if (!c)
		abort();
	*c = (struct copy){to, from, n};
	simt_stream_defer(s, run_copy, c);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
	*s = calloc(1, sizeof(**s));
	if (!*s)
		return cudaErrorMemoryAllocation;
	(*s)->late = late_streams;
	(*s)->last = &(*s)->first;
	pthread_mutex_lock(&lock);
	(*s)->next = streams;
	streams = *s;
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

static void forget(const struct simt_stream *s, struct place *awaited)
{
	for (int i = 0; i < AWAITED; i++)
		if (awaited[i].stream == s)
			awaited[i].stream = NULL;
}

/* Ends all waits for a stream or event that is destroyed. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	pthread_mutex_lock(&lock);
	if (s->first)
		abort(); /* work that nobody has waited for */
	for (struct simt_stream **p = &streams; *p;) {
		forget(s, (*p)->awaited);
		for (int i = 0; i < ENDS; i++)
			forget(s, (*p)->behind[i]);
		for (struct task *t = (*p)->first; t; t = t->next)
			forget(s, t->awaited);
		if (*p == s)
			*p = s->next;
		else
			p = &(*p)->next;
	}
	pthread_mutex_unlock(&lock);
	free(s);
	return cudaSuccess;
}

static int host_waits[2];

int simt_waits(int for_streams)
{
	return __atomic_load_n(&host_waits[!!for_streams], __ATOMIC_RELAXED);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	__atomic_fetch_add(&host_waits[true], 1, __ATOMIC_RELAXED);
	simt_stream_finish(s);
	return cudaSuccess;
}

void simt_stream_finish(cudaStream_t s)
{
	simt_stream_settle(s);
	pthread_mutex_lock(&lock);
	run_until(s, s->queued);
	while (s->done < s->queued)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

void simt_stream_settle(cudaStream_t s)
{
	pthread_mutex_lock(&lock);
	await(s->awaited);
	pthread_mutex_unlock(&lock);
}

/* As in the runtime, flags are for streams that are captured alone. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
	if (flags)
		return cudaErrorInvalidValue;
	pthread_mutex_lock(&lock);
	wait_for(s, &e->place);
	for (int i = 0; i < AWAITED; i++)
		wait_for(s, &e->awaited[i]);
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

/* The last error of this thread. */
static _Thread_local cudaError_t last;

cudaError_t cudaGetLastError(void)
{
	cudaError_t r = last;

	last = cudaSuccess;
	return r;
}

static int refuse_timing;

void simt_refuse_timing(int refuse)
{
	__atomic_store_n(&refuse_timing, refuse, __ATOMIC_RELAXED);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
	bool refused = !(flags & cudaEventDisableTiming) && __atomic_load_n(&refuse_timing, __ATOMIC_RELAXED);

	*e = refused ? NULL : calloc(1, sizeof(**e));
	if (!*e)
		return last = cudaErrorMemoryAllocation;
	(*e)->flags = flags;
	return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	free(e);
	return cudaSuccess;
}

static double passed; /* under lock */

void simt_spend(double seconds)
{
	pthread_mutex_lock(&lock);
	passed += seconds;
	pthread_mutex_unlock(&lock);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	pthread_mutex_lock(&lock);
	e->place = (struct place){s->queued ? s : NULL, s->queued};
	memcpy(e->awaited, s->awaited, sizeof(e->awaited));
	e->recorded_at = clock_monotonic() + passed;
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

/* When its stream came to the event: not before it was recorded, nor before what it stands behind. */
static double reached_at(const struct simt_event *e)
{
	double at = e->recorded_at;

	for (int i = -1; i < AWAITED; i++) {
		const struct place *behind = i < 0 ? &e->place : &e->awaited[i];

		if (behind->stream && behind->count)
			at = fmax(at, behind->stream->ended_at[behind->count % ENDS]);
	}
	return at;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	if ((from->flags | to->flags) & cudaEventDisableTiming)
		return cudaErrorInvalidValue;
	pthread_mutex_lock(&lock);
	*ms = (float)((reached_at(to) - reached_at(from)) * 1e3);
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

static int reads;

void simt_count_read(void)
{
	__atomic_fetch_add(&reads, 1, __ATOMIC_RELAXED);
}

int simt_reads(void)
{
	return __atomic_load_n(&reads, __ATOMIC_RELAXED);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	cudaError_t r;

	pthread_mutex_lock(&lock);
	r = reached(&e->place) && all_reached(e->awaited) ? cudaSuccess : cudaErrorNotReady;
	pthread_mutex_unlock(&lock);
	if (r)
		last = r;
	return r;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
	__atomic_fetch_add(&host_waits[false], 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&lock);
	await(e->awaited);
	await((struct place[AWAITED]){e->place});
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

/* Its next collective: what is queued later may wait for more. */
int simt_stream_waits(cudaStream_t s)
{
	const struct place *next;
	int waits;

	pthread_mutex_lock(&lock);
	next = s->behind[(s->done + 1) % ENDS];
	for (int i = 0; i < AWAITED; i++)
		if (!reached(&next[i]))
			run_what_can(next[i].stream, next[i].count);
	waits = !all_reached(next);
	pthread_mutex_unlock(&lock);
	return waits;
}

void simt_stream_begin(cudaStream_t s)
{
	pthread_mutex_lock(&lock);
	s->queued++;
	memcpy(s->behind[s->queued % ENDS], s->awaited, sizeof(s->awaited));
	pthread_mutex_unlock(&lock);
}

void simt_stream_end(cudaStream_t s)
{
	pthread_mutex_lock(&lock);
	s->ended_at[++s->done % ENDS] = clock_monotonic();
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}
