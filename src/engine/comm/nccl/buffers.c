/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of collectives over NCCL: memory that NCCL allocates, and registering, without which NCCL copies
 * the data once more. A collective for which some ranks have registered their buffer and others have not is
 * undefined. The ranks therefore agree: all buffers of a call are registered on all ranks, or none.
 *
 * Where NCCL has symmetric windows, the whole piece of its memory that has the buffers is one: each rank then
 * reads and writes the others' directly. The buffers of a collective have to be at the same offset in the
 * window on all ranks, which they are where all ranks have the same plan; the ranks compare that first. Where
 * they cannot, or NCCL makes no window of this memory (ranks on several nodes without a common NVLink, or
 * NCCL_WIN_ENABLE=0), each buffer is registered by itself. That NCCL makes none it says by success without a
 * window. After an error nothing else can be tried: a communicator that is made without blocking keeps the
 * error, and refuses every later call.
 */
#include "engine/comm/nccl/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "engine/comm/nccl/library.h"

struct allocation {
	struct allocation *next;
	void *data;
	size_t bytes;
	bool by_nccl; /* allocated by NCCL; else by the device */
};

int comm_alloc(struct comm *c, size_t bytes, void **out, struct error *err)
{
	struct allocation *a = calloc(1, sizeof(*a));
	int r = 0;

	if (!a)
		return error_oom(err);
	a->by_nccl = c->size > 1 && ncclMemAlloc(&a->data, bytes ? bytes : 1) == ncclSuccess;
	if (a->by_nccl) {
		device_zero(c->dev, a->data, bytes);
	} else {
		/* Memory is exhausted, or the driver lacks this kind: the device's error says which. */
		(void)cudaGetLastError();
		c->foreign = true;
		r = device_alloc(c->dev, bytes, &a->data, err);
	}
	if (r < 0) {
		free(a);
		return r;
	}
	a->bytes = bytes;
	a->next = c->allocations;
	c->allocations = a;
	*out = a->data;
	return 0;
}

void comm_free_buffers(struct comm *c)
{
	struct allocation *a;

	/* Kernels may still use the buffers. */
	if (c->allocations)
		(void)device_synchronize(c->dev, NULL);
	while ((a = c->allocations)) {
		c->allocations = a->next;
		if (a->by_nccl)
			(void)ncclMemFree(a->data);
		else
			device_free(c->dev, a->data);
		free(a);
	}
}

void comm_deregister(struct comm *c, int first)
{
	for (; c->buffers > first; c->buffers--)
		(void)ncclCommDeregister(c->nccl, c->registered[c->buffers - 1]);
}

/* The largest of the values of all ranks, in place, through the communicator's token. */
static int largest_of_ranks(struct comm *c, double *value, struct error *err)
{
	int r;

	if ((r = device_write(c->dev, c->token, value, sizeof(*value), err)) < 0 ||
	    (r = comm_wait(c, comm_all_reduce_f64(c, c->token, 1, COMM_MAX), err)) < 0 ||
	    (r = comm_flush(c, err)) < 0)
		return r;
	return device_read(c->dev, value, c->token, sizeof(*value), err);
}

/* Whether `yes` holds on every rank; waits for all of them. */
static int on_all_ranks(struct comm *c, bool yes, struct error *err)
{
	double no = yes ? 0 : 1;
	int r = largest_of_ranks(c, &no, err);

	device_zero(c->dev, c->token, sizeof(*c->token));
	return r < 0 ? r : no == 0;
}

/* Whether all ranks have the same number, of 52 bits at most. */
static int on_all_ranks_the_same(struct comm *c, uint64_t number, struct error *err)
{
	double most = (double)number, least = -(double)number;
	int r;

	if ((r = largest_of_ranks(c, &most, err)) == 0)
		r = largest_of_ranks(c, &least, err);
	device_zero(c->dev, c->token, sizeof(*c->token));
	return r < 0 ? r : most == -least;
}

/* ---- windows ---- */
static bool has_all(const struct allocation *a, const struct comm_buffer *buffers, int n)
{
	for (int i = 0; i < n; i++) {
		const char *first = buffers[i].data, *from = a->data;

		if (first < from || first + buffers[i].bytes > from + a->bytes)
			return false;
	}
	return n > 0;
}

/* The memory of NCCL that has all of the buffers, allocated through this communicator or another one of its
 * family; NULL: none. */
static const struct allocation *find_allocation(struct comm *c, const struct comm_buffer *buffers, int n)
{
	const struct allocation *found = NULL;

	pthread_mutex_lock(&c->family->lock);
	for (const struct comm *m = c->family->members; m && !found; m = m->sibling)
		for (const struct allocation *a = m->allocations; a && !found; a = a->next)
			if (a->by_nccl && has_all(a, buffers, n))
				found = a;
	pthread_mutex_unlock(&c->family->lock);
	return found;
}

/* Where the buffers are in their memory. */
static uint64_t digest_places(const struct allocation *a, const struct comm_buffer *buffers, int n)
{
	uint64_t digest = hash_bytes(&a->bytes, sizeof(a->bytes), 0);

	for (int i = 0; i < n; i++) {
		uint64_t place[2] = {(uint64_t)((const char *)buffers[i].data - (const char *)a->data),
		                     buffers[i].bytes};

		digest = hash_bytes(place, sizeof(place), digest);
	}
	return digest >> 12 | 1; /* 0: there is none */
}

static const char making_window[] = "making a window of the memory for collectives (environment = "
                                    "[\"NCCL_WIN_ENABLE=0\"] in the run file does "
                                    "without windows)";

/* One window of the memory that has the buffers. 1: there is one on all ranks, 0: on none. */
static int register_window(struct comm *c, const struct comm_buffer *buffers, int n, struct error *err)
{
	const struct allocation *a = nccl_has_windows() ? find_allocation(c, buffers, n) : NULL;
	bool can = a && c->windows < WINDOWS;
	void **window = &c->window[c->windows];
	ncclResult_t result;
	int r = on_all_ranks_the_same(c, can ? digest_places(a, buffers, n) : 0, err);

	if (r <= 0 || !can)
		return r < 0 ? r : 0;
	*window = NULL;
	pthread_mutex_lock(&c->lock);
	if (!c->failed) {
		c->call = making_window;
		result = comm_settle(c, nccl_window_register(c->nccl, a->data, a->bytes, window),
		                     clock_monotonic() + c->timeout_s);
		if (result == ncclInProgress)
			comm_fail(c, -ETIMEDOUT, "the %d ranks did not all register their memory within %d s",
			          c->size, c->timeout_s);
		else if (result != ncclSuccess)
			comm_fail_nccl(c, making_window, result);
		c->call = NULL;
	}
	pthread_mutex_unlock(&c->lock);
	if ((r = on_all_ranks(c, *window != NULL, err)) < 0)
		return r;
	if (r > 0) {
		c->windows++;
		return 1;
	}
	pthread_mutex_lock(&c->lock);
	if (*window && !c->failed)
		(void)comm_settle(c, nccl_window_deregister(c->nccl, *window),
		                  clock_monotonic() + c->timeout_s);
	pthread_mutex_unlock(&c->lock);
	return 0;
}

/* ---- buffers by themselves ---- */
/* Where NCCL gives no handle, as with NCCL_LOCAL_REGISTER=0, the buffer is not registered. */
static bool register_one(struct comm *c, const struct comm_buffer *b)
{
	void **handle = &c->registered[c->buffers];

	*handle = NULL;
	if (c->failed || c->foreign || c->buffers == BUFFERS ||
	    ncclCommRegister(c->nccl, b->data, b->bytes, handle) != ncclSuccess || !*handle)
		return false;
	c->buffers++;
	return true;
}

int comm_register(struct comm *c, const struct comm_buffer *buffers, int n, struct error *err)
{
	bool all = true;
	int first, r;

	if (c->size == 1)
		return 0;
	if ((r = register_window(c, buffers, n, err)) != 0)
		return r;
	pthread_mutex_lock(&c->lock);
	first = c->buffers;
	for (int i = 0; i < n && all; i++)
		all = register_one(c, &buffers[i]);
	pthread_mutex_unlock(&c->lock);
	r = on_all_ranks(c, all, err);
	pthread_mutex_lock(&c->lock);
	if (r == 0 && !c->failed)
		comm_deregister(c, first);
	pthread_mutex_unlock(&c->lock);
	return r;
}
