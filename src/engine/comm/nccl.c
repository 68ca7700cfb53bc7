/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h over NCCL. Collectives run on a stream of their own, each behind an event of the compute stream;
 * comm_wait makes the compute stream wait for the collective's event. NCCL reports no dead peer on the same
 * host and no stall: a thread watches for both and aborts the communicator, which ends the kernels that hang
 * and so frees whoever waits for the GPU.
 *
 * NCCL is called under `lock` alone, and never blocks there: the communicator is made with blocking = 0. It
 * sums bf16 in fp32 within a step of its rings and rounds between the steps; gradients travel in fp32.
 */
#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/comm/comm.h"
#include "engine/comm/nccl_library.h"
#include "engine/device/cuda/cuda.h"

enum {
	EVENTS = 1024,  /* collectives whose ends are told apart; older ones are done when these are */
	BUFFERS = 4096, /* registered */
	POLL_NS = 20 * 1000,
	WATCH_NS = 20 * 1000 * 1000,
};

enum kind { KIND_ALL_REDUCE, KIND_REDUCE_SCATTER, KIND_ALL_GATHER, KIND_BROADCAST, KIND_BARRIER };

static const char *const kind_names[] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast",
                                         "barrier"};

struct comm {
	struct device *dev;
	int rank, size, timeout_s;
	char description[64];
	ncclComm_t nccl; /* NULL: a single rank, or aborted */
	cudaStream_t stream;
	cudaEvent_t computed; /* what the next collective starts after */
	double *token;        /* of barriers */
	int events;           /* made so far */
	cudaEvent_t event[EVENTS];
	enum kind kind[EVENTS];

	pthread_mutex_t lock; /* of everything below, and of nccl */
	pthread_cond_t wake;  /* of the watching thread, which otherwise looks every WATCH_NS */
	pthread_t watcher;
	bool watching, stopping;
	uint64_t queued, completed;
	double moved; /* when `completed` grew last, or the first collective since came */
	int failed;
	struct error failure;
	void *registered[BUFFERS];
	int buffers;
};

static void pause_ns(long ns)
{
	nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* Keeps the first failure and stops the communicator's kernels; under lock. */
__attribute__((format(printf, 3, 4))) static void fail(struct comm *c, int code, const char *fmt, ...)
{
	char words[512];
	va_list ap;

	if (c->failed)
		return;
	va_start(ap, fmt);
	vsnprintf(words, sizeof(words), fmt, ap);
	va_end(ap);
	c->failed = error_set(&c->failure, code, "rank %d: %s", c->rank, words);
	if (c->nccl)
		ncclCommAbort(c->nccl);
	c->nccl = NULL;
}

static int nccl_errno(ncclResult_t r)
{
	return r == ncclRemoteError || r == ncclSystemError ? -ECONNRESET : -EIO;
}

/* The words of NCCL's last error end with a line of their own. */
static void fail_nccl(struct comm *c, const char *what, ncclResult_t r)
{
	char words[256];

	snprintf(words, sizeof(words), "%s", c->nccl ? ncclGetLastError(c->nccl) : "");
	words[strcspn(words, "\n")] = 0;
	fail(c, nccl_errno(r), "%s: NCCL: %s%s%s", what, ncclGetErrorString(r), *words ? ": " : "", words);
}

/* Until NCCL has taken a call; under lock, which is let go between. */
static ncclResult_t settle(struct comm *c, ncclResult_t r, double deadline)
{
	while (r == ncclInProgress && !c->failed) {
		pthread_mutex_unlock(&c->lock);
		pause_ns(POLL_NS);
		pthread_mutex_lock(&c->lock);
		if (c->failed || !c->nccl || ncclCommGetAsyncError(c->nccl, &r) != ncclSuccess)
			break;
		if (r == ncclInProgress && clock_monotonic() > deadline)
			break;
	}
	return r;
}

/* ---- the watch ---- */
static void look(struct comm *c)
{
	ncclResult_t r = ncclSuccess;
	double now = clock_monotonic();

	if (!c->nccl || c->failed)
		return;
	if (ncclCommGetAsyncError(c->nccl, &r) == ncclSuccess && r != ncclSuccess && r != ncclInProgress) {
		fail_nccl(c, "collectives", r);
		return;
	}
	while (c->completed < c->queued) {
		uint64_t next = c->completed + 1;
		cudaError_t status;

		if (c->queued - next >= EVENTS)
			next = c->queued - EVENTS + 1;
		status = cudaEventQuery(c->event[next % EVENTS]);
		if (status == cudaErrorNotReady)
			break;
		if (status != cudaSuccess) {
			fail(c, -EIO, "%s: %s", kind_names[c->kind[next % EVENTS]],
			     cudaGetErrorString(status));
			return;
		}
		c->completed = next;
		c->moved = now;
	}
	if (c->completed < c->queued && now - c->moved > c->timeout_s) {
		uint64_t next = c->completed + 1;

		fail(c, -ETIMEDOUT, "%s (collective %llu) has made no progress for %d s",
		     kind_names[c->kind[next % EVENTS]], (unsigned long long)next, c->timeout_s);
	}
}

static void *watch(void *context)
{
	struct comm *c = context;

	(void)cudaSetDevice(c->dev->index);
	pthread_mutex_lock(&c->lock);
	while (!c->stopping) {
		struct timespec until;

		look(c);
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += WATCH_NS;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
		if (!c->stopping)
			pthread_cond_timedwait(&c->wake, &c->lock, &until);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* ---- meeting ---- */
static int share_id(const struct comm_options *o, ncclUniqueId *id, struct error *err)
{
	_cleanup_free_ void *data = NULL;
	char key[200];
	ncclResult_t r;
	size_t len = 0;
	int e;

	snprintf(key, sizeof(key), "%s/nccl-id", o->group ? o->group : "world");
	if (o->rank == 0) {
		r = ncclGetUniqueId(id);
		if (r != ncclSuccess)
			return error_set(err, -EIO, "NCCL cannot open a place to meet: %s",
			                 ncclGetLastError(NULL));
		return o->rendezvous->put(o->rendezvous->context, key, id, sizeof(*id), err);
	}
	e = o->rendezvous->get(o->rendezvous->context, key, o->timeout_s * 1000, &data, &len, err);
	if (e < 0)
		return e;
	if (len != sizeof(*id))
		return error_set(err, -EPROTO,
		                 "rank 0 has another version of NCCL: its id has %zu bytes, not %zu", len,
		                 sizeof(*id));
	memcpy(id, data, sizeof(*id));
	return 0;
}

static int meet(struct comm *c, const struct comm_options *o, struct error *err)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	ncclResult_t n;
	int r = share_id(o, &id, err);

	if (r < 0)
		return r;
	config.blocking = 0;
	pthread_mutex_lock(&c->lock);
	n = ncclCommInitRankConfig(&c->nccl, c->size, id, c->rank, &config);
	n = settle(c, n, clock_monotonic() + c->timeout_s);
	if (n == ncclInProgress)
		fail(c, -ETIMEDOUT, "the %d ranks did not all meet within %d s", c->size, c->timeout_s);
	else if (n != ncclSuccess)
		fail_nccl(c, "meeting the other ranks", n);
	r = c->failed;
	if (r < 0 && err)
		*err = c->failure;
	pthread_mutex_unlock(&c->lock);
	return r;
}

static int open_nccl(struct comm *c, const struct comm_options *o, struct error *err)
{
	int version = 0, r = nccl_load(err);
	cudaError_t s;

	if (r < 0)
		return r;
	if ((s = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking)) ||
	    (s = cudaEventCreateWithFlags(&c->computed, cudaEventDisableTiming)) ||
	    (s = cudaMalloc((void **)&c->token, sizeof(*c->token))) ||
	    (s = cudaMemset(c->token, 0, sizeof(*c->token))))
		return device_cuda_error(c->dev, s, "cannot make the communicator's stream", err);
	for (; c->events < EVENTS; c->events++)
		if ((s = cudaEventCreateWithFlags(&c->event[c->events], cudaEventDisableTiming)))
			return device_cuda_error(c->dev, s, "cannot make the communicator's events", err);
	r = meet(c, o, err);
	if (r < 0)
		return r;
	(void)ncclGetVersion(&version);
	snprintf(c->description, sizeof(c->description), "NCCL %d.%d.%d", version / 10000,
	         version / 100 % 100, version % 100);
	r = -pthread_create(&c->watcher, NULL, watch, c);
	c->watching = r == 0;
	return r < 0 ? error_errno(err, r, "cannot start a thread") : 0;
}

int comm_create(struct device *dev, const struct comm_options *options, struct comm **out, struct error *err)
{
	pthread_condattr_t attr;
	struct comm *c;
	int r = 0;

	*out = NULL;
	if (options->world_size < 1 || options->rank < 0 || options->rank >= options->world_size ||
	    options->timeout_s < 1 || (options->world_size > 1 && !options->rendezvous))
		return error_set(err, -EINVAL, "rank %d of %d with a time-out of %d s: no such communicator",
		                 options->rank, options->world_size, options->timeout_s);
	c = calloc(1, sizeof(*c));
	if (!c)
		return error_oom(err);
	c->dev = dev;
	c->rank = options->rank;
	c->size = options->world_size;
	c->timeout_s = options->timeout_s;
	strcpy(c->description, "a single rank");
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->wake, &attr);
	pthread_condattr_destroy(&attr);
	if (c->size > 1)
		r = open_nccl(c, options, err);
	if (r < 0)
		comm_destroy(c);
	else
		*out = c;
	return r;
}

static void close_nccl(struct comm *c)
{
	ncclResult_t n = ncclSuccess;

	pthread_mutex_lock(&c->lock);
	if (c->nccl && c->completed < c->queued)
		look(c);
	if (c->nccl && c->completed == c->queued)
		n = settle(c, ncclCommFinalize(c->nccl), clock_monotonic() + 1);
	if (c->nccl && c->completed == c->queued && n == ncclSuccess)
		ncclCommDestroy(c->nccl);
	else if (c->nccl)
		ncclCommAbort(c->nccl);
	c->nccl = NULL;
	pthread_mutex_unlock(&c->lock);
}

void comm_destroy(struct comm *c)
{
	if (!c)
		return;
	if (c->watching) {
		pthread_mutex_lock(&c->lock);
		c->stopping = true;
		pthread_cond_signal(&c->wake);
		pthread_mutex_unlock(&c->lock);
		pthread_join(c->watcher, NULL);
	}
	for (int i = 0; c->nccl && i < c->buffers; i++)
		ncclCommDeregister(c->nccl, c->registered[i]);
	close_nccl(c);
	for (int i = 0; i < c->events; i++)
		(void)cudaEventDestroy(c->event[i]);
	if (c->computed)
		(void)cudaEventDestroy(c->computed);
	if (c->stream)
		(void)cudaStreamDestroy(c->stream);
	(void)cudaFree(c->token);
	pthread_cond_destroy(&c->wake);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

void comm_abort(struct comm *c)
{
	pthread_mutex_lock(&c->lock);
	fail(c, -ECANCELED, "the communicator was aborted");
	pthread_mutex_unlock(&c->lock);
}

int comm_rank(const struct comm *c)
{
	return c->rank;
}

int comm_size(const struct comm *c)
{
	return c->size;
}

const char *comm_describe(const struct comm *c)
{
	return c->description;
}

int comm_register(struct comm *c, void *buffer, size_t bytes, struct error *err)
{
	ncclResult_t n;

	if (c->size == 1 || c->buffers == BUFFERS)
		return 0;
	pthread_mutex_lock(&c->lock);
	n = c->nccl ? ncclCommRegister(c->nccl, buffer, bytes, &c->registered[c->buffers]) : ncclSuccess;
	if (n == ncclSuccess && c->nccl)
		c->buffers++;
	pthread_mutex_unlock(&c->lock);
	/* Without it collectives copy more: no reason to stop. */
	return 0;
}

/* ---- collectives ---- */
struct collective {
	enum kind kind;
	void *buffer;
	size_t count; /* elements: all, or a shard */
	ncclDataType_t type;
	size_t size; /* of an element */
	ncclRedOp_t op;
	int root;
};

static ncclResult_t start(struct comm *c, const struct collective *o)
{
	char *own = (char *)o->buffer + (size_t)c->rank * o->count * o->size;

	switch (o->kind) {
	case KIND_ALL_REDUCE:
	case KIND_BARRIER:
		return ncclAllReduce(o->buffer, o->buffer, o->count, o->type, o->op, c->nccl, c->stream);
	case KIND_REDUCE_SCATTER:
		return ncclReduceScatter(o->buffer, own, o->count, o->type, o->op, c->nccl, c->stream);
	case KIND_ALL_GATHER:
		return ncclAllGather(own, o->buffer, o->count, o->type, c->nccl, c->stream);
	case KIND_BROADCAST:
		return ncclBroadcast(o->buffer, o->buffer, o->count, o->type, o->root, c->nccl, c->stream);
	}
	return ncclInvalidArgument;
}

static comm_ticket enqueue(struct comm *c, const struct collective *o)
{
	comm_ticket ticket;
	cudaError_t s;
	ncclResult_t n;

	if (c->size == 1)
		return ++c->queued;
	pthread_mutex_lock(&c->lock);
	ticket = c->queued + 1;
	if (!c->failed && ((s = cudaEventRecord(c->computed, c->dev->stream)) ||
	                   (s = cudaStreamWaitEvent(c->stream, c->computed, 0))))
		fail(c, -EIO, "%s: %s", kind_names[o->kind], cudaGetErrorString(s));
	if (!c->failed && o->count) {
		n = settle(c, start(c, o), clock_monotonic() + c->timeout_s);
		if (n == ncclInProgress)
			fail(c, -ETIMEDOUT, "%s (collective %llu) cannot start: no progress for %d s",
			     kind_names[o->kind], (unsigned long long)ticket, c->timeout_s);
		else if (n != ncclSuccess)
			fail_nccl(c, kind_names[o->kind], n);
	}
	if (!c->failed && (s = cudaEventRecord(c->event[ticket % EVENTS], c->stream)))
		fail(c, -EIO, "%s: %s", kind_names[o->kind], cudaGetErrorString(s));
	c->kind[ticket % EVENTS] = o->kind;
	if (c->completed == c->queued)
		c->moved = clock_monotonic();
	c->queued = ticket;
	pthread_mutex_unlock(&c->lock);
	return ticket;
}

static ncclDataType_t data_type(enum dtype type)
{
	return type == DTYPE_F32 ? ncclFloat32 : type == DTYPE_BF16 ? ncclBfloat16 : ncclFloat16;
}

static comm_ticket reduction(struct comm *c, enum kind kind, void *buffer, int64_t count, enum dtype type,
                             enum comm_op op)
{
	return enqueue(c, &(struct collective){.kind = kind,
	                                       .buffer = buffer,
	                                       .count = (size_t)count,
	                                       .type = data_type(type),
	                                       .size = dtype_size(type),
	                                       .op = op == COMM_MAX ? ncclMax : ncclSum});
}

comm_ticket comm_all_reduce(struct comm *c, void *buffer, int64_t count, enum dtype type, enum comm_op op)
{
	return reduction(c, KIND_ALL_REDUCE, buffer, count, type, op);
}

comm_ticket comm_all_reduce_f64(struct comm *c, double *buffer, int64_t count, enum comm_op op)
{
	return enqueue(c, &(struct collective){.kind = KIND_ALL_REDUCE,
	                                       .buffer = buffer,
	                                       .count = (size_t)count,
	                                       .type = ncclFloat64,
	                                       .size = sizeof(double),
	                                       .op = op == COMM_MAX ? ncclMax : ncclSum});
}

comm_ticket comm_reduce_scatter(struct comm *c, void *buffer, int64_t shard, enum dtype type, enum comm_op op)
{
	return reduction(c, KIND_REDUCE_SCATTER, buffer, shard, type, op);
}

comm_ticket comm_all_gather(struct comm *c, void *buffer, int64_t shard, enum dtype type)
{
	return reduction(c, KIND_ALL_GATHER, buffer, shard, type, COMM_SUM);
}

comm_ticket comm_broadcast(struct comm *c, void *buffer, size_t bytes, int root)
{
	return enqueue(c, &(struct collective){.kind = KIND_BROADCAST,
	                                       .buffer = buffer,
	                                       .count = bytes,
	                                       .type = ncclUint8,
	                                       .size = 1,
	                                       .root = root});
}

comm_ticket comm_barrier(struct comm *c)
{
	return enqueue(c, &(struct collective){.kind = KIND_BARRIER,
	                                       .buffer = c->token,
	                                       .count = 1,
	                                       .type = ncclFloat64,
	                                       .size = sizeof(double),
	                                       .op = ncclSum});
}

/* ---- waiting ---- */
static int failure(struct comm *c, struct error *err)
{
	if (c->failed && err)
		*err = c->failure;
	return c->failed;
}

int comm_wait(struct comm *c, comm_ticket ticket, struct error *err)
{
	cudaError_t s = cudaSuccess;
	int r;

	if (!ticket)
		return 0;
	pthread_mutex_lock(&c->lock);
	if (c->queued - ticket >= EVENTS)
		ticket = c->queued - EVENTS + 1;
	if (!c->failed && c->size > 1)
		s = cudaStreamWaitEvent(c->dev->stream, c->event[ticket % EVENTS], 0);
	if (s)
		fail(c, -EIO, "waiting for a collective: %s", cudaGetErrorString(s));
	r = failure(c, err);
	pthread_mutex_unlock(&c->lock);
	return r;
}

int comm_flush(struct comm *c, struct error *err)
{
	int r;

	pthread_mutex_lock(&c->lock);
	for (look(c); c->nccl && c->completed < c->queued; look(c)) {
		pthread_mutex_unlock(&c->lock);
		pause_ns(POLL_NS);
		pthread_mutex_lock(&c->lock);
	}
	r = failure(c, err);
	pthread_mutex_unlock(&c->lock);
	return r;
}
