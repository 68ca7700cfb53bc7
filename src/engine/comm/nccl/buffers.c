/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of collectives over NCCL: memory that NCCL allocates, and registering, without which NCCL copies
 * the data once more. A collective for which some ranks have registered their buffer and others have not is
 * undefined. The ranks therefore agree: all buffers of a call are registered on all ranks, or none.
 */
#include "engine/comm/nccl/internal.h"

#include <errno.h>
#include <stdlib.h>

struct allocation {
	struct allocation *next;
	void *data;
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
