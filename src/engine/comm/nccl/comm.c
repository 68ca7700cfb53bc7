/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h over NCCL: queueing and waiting. internal.h says how the parts go together. */
#include "engine/comm/nccl/internal.h"

#include <errno.h>
#include <math.h>

#include "base/clock.h"

void comm_abort(struct comm *c)
{
	pthread_mutex_lock(&c->lock);
	comm_fail(c, -ECANCELED, "the communicator was aborted");
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

/* ---- collectives ---- */
/* As a group of what is sent to each rank and received from it. */
static ncclResult_t all_to_all(struct comm *c, const struct collective *o)
{
	size_t shard = o->count * o->size;
	ncclResult_t r = ncclGroupStart(), end;

	if (r != ncclSuccess)
		return r;
	for (int i = 0; i < c->size && (r == ncclSuccess || r == ncclInProgress); i++) {
		r = ncclSend((const char *)o->input + (size_t)i * shard, o->count, o->type, i, c->nccl,
		             c->stream);
		if (r == ncclSuccess || r == ncclInProgress)
			r = ncclRecv((char *)o->buffer + (size_t)i * shard, o->count, o->type, i, c->nccl,
			             c->stream);
	}
	end = ncclGroupEnd();
	return r == ncclSuccess || r == ncclInProgress ? end : r;
}

static ncclResult_t start(struct comm *c, const struct collective *o)
{
	char *own = (char *)o->buffer + (size_t)c->rank * o->count * o->size;

	switch (o->kind) {
	case KIND_ALL_REDUCE:
	case KIND_BARRIER:
		return ncclAllReduce(o->buffer, o->buffer, o->count, o->type, o->op, c->nccl, c->stream);
	case KIND_REDUCE_SCATTER:
		return ncclReduceScatter(o->input ? o->input : o->buffer, o->input ? o->buffer : own,
		                         o->count, o->type, o->op, c->nccl, c->stream);
	case KIND_ALL_GATHER:
		return ncclAllGather(o->input ? o->input : own, o->buffer, o->count, o->type, c->nccl,
		                     c->stream);
	case KIND_ALL_TO_ALL:
		return all_to_all(c, o);
	case KIND_BROADCAST:
		return ncclBroadcast(o->buffer, o->buffer, o->count, o->type, o->root, c->nccl, c->stream);
	}
	return ncclInvalidArgument;
}

static int failed(struct comm *c)
{
	int r;

	pthread_mutex_lock(&c->lock);
	r = c->failed;
	pthread_mutex_unlock(&c->lock);
	return r;
}

static void fail_cuda(struct comm *c, const char *what, cudaError_t s)
{
	pthread_mutex_lock(&c->lock);
	comm_fail(c, -EIO, "%s: %s", what, cudaGetErrorString(s));
	pthread_mutex_unlock(&c->lock);
}

/* Two or more are a group of NCCL's, whose result is that of its end: within it nothing is accepted yet. */
static ncclResult_t start_all(struct comm *c, const struct collective *o, int n)
{
	ncclResult_t r = ncclSuccess, end = n > 1 ? ncclGroupStart() : ncclSuccess;

	if (end != ncclSuccess)
		return end;
	for (int i = 0; i < n && (r == ncclSuccess || (n > 1 && r == ncclInProgress)); i++)
		r = o[i].count ? start(c, &o[i]) : r;
	end = n > 1 ? ncclGroupEnd() : r;
	return r == ncclSuccess || r == ncclInProgress ? end : r;
}

/* Calls NCCL and waits until it has accepted the collectives. NCCL accepts the first one of a kind only once
 * all ranks have called it. */
static void enter(struct comm *c, const struct collective *o, int n, comm_ticket first)
{
	ncclResult_t r;

	pthread_mutex_lock(&c->lock);
	if (!comm_pending(c))
		c->last_progress_at = clock_monotonic();
	for (int i = 0; i < n; i++)
		c->kind[(first + (comm_ticket)i) % EVENTS] = o[i].kind;
	c->entering = true;
	if (!c->failed) {
		/* No deadline is needed here: the watching thread enforces the time-out. */
		r = comm_settle(c, start_all(c, o, n), HUGE_VAL);
		if (r != ncclSuccess)
			comm_fail_nccl(c, comm_kind_name(o->kind), r);
	}
	pthread_mutex_unlock(&c->lock);
}

/* Queues collectives behind the computation; they have the next tickets. */
static void queue(struct comm *c, const struct collective *o, int n)
{
	comm_ticket first = c->queued + 1;
	cudaError_t s;

	if (!failed(c)) {
		s = cudaEventRecord(c->computed, c->dev->stream);
		if (!s)
			s = cudaStreamWaitEvent(c->stream, c->computed, 0);
		for (int i = 0; i < n && !s; i++)
			s = cudaEventRecord(c->begun[(first + (comm_ticket)i) % EVENTS], c->stream);
		if (!s)
			enter(c, o, n, first);
		for (int i = 0; i < n && !s; i++)
			s = cudaEventRecord(c->event[(first + (comm_ticket)i) % EVENTS], c->stream);
		if (s)
			fail_cuda(c, comm_kind_name(o->kind), s);
	}
	pthread_mutex_lock(&c->lock);
	c->entering = false;
	c->queued += (comm_ticket)n;
	pthread_mutex_unlock(&c->lock);
}

static comm_ticket enqueue(struct comm *c, const struct collective *o)
{
	if (c->size == 1)
		return ++c->queued;
	if (!c->held.open) {
		queue(c, o, 1);
		return c->queued;
	}
	if (c->held.n == GROUP_MAX) {
		comm_group_end(c);
		comm_group_begin(c);
	}
	c->held.collective[c->held.n++] = *o;
	return c->queued + (comm_ticket)c->held.n;
}

void comm_group_begin(struct comm *c)
{
	c->held.open = true;
}

void comm_group_end(struct comm *c)
{
	int n = c->held.n;

	c->held.open = false;
	c->held.n = 0;
	if (n > 0)
		queue(c, c->held.collective, n);
}

static ncclDataType_t data_type(enum dtype type)
{
	return type == DTYPE_F32 ? ncclFloat32 : type == DTYPE_BF16 ? ncclBfloat16 : ncclFloat16;
}

static comm_ticket reduction(struct comm *c, enum kind kind, void *buffer, const void *input, int64_t count,
                             enum dtype type, enum comm_op op)
{
	return enqueue(c, &(struct collective){.kind = kind,
	                                       .buffer = buffer,
	                                       .input = input,
	                                       .count = (size_t)count,
	                                       .type = data_type(type),
	                                       .size = dtype_size(type),
	                                       .op = op == COMM_MAX ? ncclMax : ncclSum});
}

comm_ticket comm_all_reduce(struct comm *c, void *buffer, int64_t count, enum dtype type, enum comm_op op)
{
	return reduction(c, KIND_ALL_REDUCE, buffer, NULL, count, type, op);
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
	return reduction(c, KIND_REDUCE_SCATTER, buffer, NULL, shard, type, op);
}

comm_ticket comm_all_gather(struct comm *c, void *buffer, int64_t shard, enum dtype type)
{
	return reduction(c, KIND_ALL_GATHER, buffer, NULL, shard, type, COMM_SUM);
}

comm_ticket comm_reduce_scatter_into(struct comm *c, void *own, const void *all, int64_t shard,
                                     enum dtype type, enum comm_op op)
{
	if (c->size == 1 && own != all)
		device_copy(c->dev, own, all, (size_t)shard * dtype_size(type));
	return reduction(c, KIND_REDUCE_SCATTER, own, all, shard, type, op);
}

comm_ticket comm_all_gather_into(struct comm *c, void *all, const void *own, int64_t shard, enum dtype type)
{
	if (c->size == 1 && own != all)
		device_copy(c->dev, all, own, (size_t)shard * dtype_size(type));
	return reduction(c, KIND_ALL_GATHER, all, own, shard, type, COMM_SUM);
}

comm_ticket comm_all_to_all(struct comm *c, void *out, const void *in, int64_t count, enum dtype type)
{
	if (c->size == 1)
		device_copy(c->dev, out, in, (size_t)count * dtype_size(type));
	return reduction(c, KIND_ALL_TO_ALL, out, in, count, type, COMM_SUM);
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
	if (c->held.n > 0 && ticket > c->queued)
		comm_group_end(c);
	if (c->queued - ticket >= EVENTS)
		ticket = c->queued - EVENTS + 1;
	if (c->size > 1 && !failed(c))
		s = waits_queue(&c->waits, c->dev->stream, c->event[ticket % EVENTS]);
	if (s)
		fail_cuda(c, "waiting for a collective", s);
	pthread_mutex_lock(&c->lock);
	r = failure(c, err);
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* comm_abort records the failure before it ends the kernels, so that a caller who waited for the kernels
 * finds the failure here. After an error that NCCL reports, the kernels run until comm_fail ends them. */
int comm_check(struct comm *c, struct error *err)
{
	int r;

	pthread_mutex_lock(&c->lock);
	comm_look(c);
	r = failure(c, err);
	pthread_mutex_unlock(&c->lock);
	if (r == 0 && c->family->failed) { /* which this one has not taken over yet */
		r = c->family->failure.code;
		if (err)
			*err = c->family->failure;
	}
	return r;
}

double comm_waited_seconds(struct comm *c)
{
	return waits_seconds(&c->waits);
}

int comm_flush(struct comm *c, struct error *err)
{
	int r;

	comm_group_end(c);
	pthread_mutex_lock(&c->lock);
	for (comm_look(c); c->size > 1 && !c->failed && c->completed < c->queued; comm_look(c)) {
		comm_pause(c);
	}
	r = failure(c, err);
	pthread_mutex_unlock(&c->lock);
	return r;
}
