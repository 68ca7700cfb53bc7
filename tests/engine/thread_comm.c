/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives between threads. A call queues the collective; comm_wait and comm_flush carry out what is
 * queued, in order, so that a caller who does not wait sees its buffer unchanged. Where a collective is
 * carried out, all ranks meet at a barrier. */
#include "thread_comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct group {
	int world_size, alive;
	pthread_barrier_t barrier;
	void **buffer; /* of each rank in the collective that runs */
};

enum { QUEUE_MAX = 256 };

struct operation {
	void (*run)(struct comm *c, const struct operation *o);
	void *buffer;
	int64_t count; /* elements of a shard or of the whole; bytes of a broadcast */
	int64_t first; /* of the elements that are reduced here */
	size_t size;   /* of an element */
	int root;
};

struct comm {
	struct group *group;
	int rank;
	void *memory;                      /* of the host; a test allocates at most once */
	struct operation queue[QUEUE_MAX]; /* that of ticket t is at t % QUEUE_MAX */
	comm_ticket queued, completed;
};

void thread_comm_create(int world_size, struct comm **comms)
{
	struct group *g = calloc(1, sizeof(*g));

	g->world_size = g->alive = world_size;
	g->buffer = calloc((size_t)world_size, sizeof(*g->buffer));
	pthread_barrier_init(&g->barrier, NULL, (unsigned)world_size);
	for (int r = 0; r < world_size; r++) {
		comms[r] = calloc(1, sizeof(*comms[r]));
		*comms[r] = (struct comm){.group = g, .rank = r};
	}
}

void comm_destroy(struct comm *c)
{
	struct group *g = c ? c->group : NULL;

	if (c)
		free(c->memory);
	free(c);
	if (g && --g->alive == 0) {
		pthread_barrier_destroy(&g->barrier);
		free(g->buffer);
		free(g);
	}
}

int comm_rank(const struct comm *c)
{
	return c->rank;
}

int comm_alloc(struct comm *c, size_t bytes, void **out, struct error *err)
{
	size_t whole = (bytes + 63) / 64 * 64;

	*out = c->memory = aligned_alloc(64, whole ? whole : 64);
	if (!*out)
		return error_oom(err);
	memset(*out, 0, whole);
	return 0;
}

int comm_register(struct comm *c, const struct comm_buffer *buffers, int n, struct error *err)
{
	return 0;
}

int comm_size(const struct comm *c)
{
	return c->group->world_size;
}

/* Makes the buffers of all ranks known to every rank; leave() has to be called before a rank continues. */
static struct group *enter(struct comm *c, void *buffer)
{
	c->group->buffer[c->rank] = buffer;
	pthread_barrier_wait(&c->group->barrier);
	return c->group;
}

static void leave(struct comm *c)
{
	pthread_barrier_wait(&c->group->barrier);
}

/* Sum of [first, first + n) in rank order; owned by the caller. */
static void *sum(const struct group *g, int64_t first, int64_t n, bool wide)
{
	double *total = calloc((size_t)n, sizeof(*total));
	float *out = calloc((size_t)n, sizeof(*out));

	for (int r = 0; r < g->world_size; r++)
		for (int64_t i = 0; i < n; i++)
			total[i] +=
			    wide ? ((double *)g->buffer[r])[first + i] : ((float *)g->buffer[r])[first + i];
	if (wide) {
		free(out);
		return total;
	}
	for (int64_t i = 0; i < n; i++)
		out[i] = (float)total[i];
	free(total);
	return out;
}

static void run_reduce(struct comm *c, const struct operation *o)
{
	void *result = sum(enter(c, o->buffer), o->first, o->count, o->size == sizeof(double));

	leave(c);
	memcpy((char *)o->buffer + (size_t)o->first * o->size, result, (size_t)o->count * o->size);
	free(result);
}

static void run_all_gather(struct comm *c, const struct operation *o)
{
	struct group *g = enter(c, o->buffer);
	size_t bytes = (size_t)o->count * o->size;

	for (int r = 0; r < g->world_size; r++)
		if (r != c->rank)
			memcpy((char *)o->buffer + (size_t)r * bytes,
			       (char *)g->buffer[r] + (size_t)r * bytes, bytes);
	leave(c);
}

static void run_broadcast(struct comm *c, const struct operation *o)
{
	struct group *g = enter(c, o->buffer);

	if (c->rank != o->root)
		memcpy(o->buffer, g->buffer[o->root], (size_t)o->count);
	leave(c);
}

static void run_barrier(struct comm *c, const struct operation *o)
{
	enter(c, NULL);
	leave(c);
}

static comm_ticket enqueue(struct comm *c, struct operation o)
{
	if (c->queued - c->completed == QUEUE_MAX)
		comm_wait(c, c->completed + 1, NULL);
	c->queue[++c->queued % QUEUE_MAX] = o;
	return c->queued;
}

comm_ticket comm_all_reduce(struct comm *c, void *buffer, int64_t count, enum dtype type, enum comm_op op)
{
	return enqueue(c, (struct operation){run_reduce, buffer, count, .size = sizeof(float)});
}

comm_ticket comm_all_reduce_f64(struct comm *c, double *buffer, int64_t count, enum comm_op op)
{
	return enqueue(c, (struct operation){run_reduce, buffer, count, .size = sizeof(double)});
}

comm_ticket comm_reduce_scatter(struct comm *c, void *buffer, int64_t shard, enum dtype type, enum comm_op op)
{
	return enqueue(c, (struct operation){run_reduce, buffer, shard, c->rank * shard, sizeof(float), 0});
}

comm_ticket comm_all_gather(struct comm *c, void *buffer, int64_t shard, enum dtype type)
{
	return enqueue(c, (struct operation){run_all_gather, buffer, shard, .size = dtype_size(type)});
}

comm_ticket comm_broadcast(struct comm *c, void *buffer, size_t bytes, int root)
{
	return enqueue(c, (struct operation){run_broadcast, buffer, (int64_t)bytes, .root = root});
}

comm_ticket comm_barrier(struct comm *c)
{
	return enqueue(c, (struct operation){run_barrier, NULL, 0, .size = 0});
}

int comm_wait(struct comm *c, comm_ticket ticket, struct error *err)
{
	while (c->completed < ticket) {
		const struct operation *o = &c->queue[++c->completed % QUEUE_MAX];

		o->run(c, o);
	}
	return 0;
}

int comm_flush(struct comm *c, struct error *err)
{
	return comm_wait(c, c->queued, err);
}

double comm_waited_seconds(struct comm *c)
{
	return 0;
}

int comm_check(struct comm *c, struct error *err)
{
	return 0;
}
