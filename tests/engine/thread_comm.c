/* SPDX-License-Identifier: Apache-2.0 */
#include "thread_comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct group {
	int world_size, alive;
	pthread_barrier_t barrier;
	void **buffer; /* of each rank in the collective that runs */
};

struct comm {
	struct group *group;
	int rank;
	void *memory; /* the host's: one piece is all that a test asks for */
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

/* Shows every rank's buffer to every rank; leave() before anybody goes on. */
static struct group *enter(struct comm *c, void *buffer)
{
	c->group->buffer[c->rank] = buffer;
	pthread_barrier_wait(&c->group->barrier);
	return c->group;
}

static comm_ticket leave(struct comm *c)
{
	pthread_barrier_wait(&c->group->barrier);
	return 1;
}

/* Sum of [first, first + n) into *out, in rank order. */
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

static comm_ticket reduce(struct comm *c, void *buffer, int64_t first, int64_t n, bool wide)
{
	void *result = sum(enter(c, buffer), first, n, wide);
	size_t size = wide ? sizeof(double) : sizeof(float);

	leave(c);
	memcpy((char *)buffer + (size_t)first * size, result, (size_t)n * size);
	free(result);
	return 1;
}

comm_ticket comm_all_reduce(struct comm *c, void *buffer, int64_t count, enum dtype type, enum comm_op op)
{
	return reduce(c, buffer, 0, count, false);
}

comm_ticket comm_all_reduce_f64(struct comm *c, double *buffer, int64_t count, enum comm_op op)
{
	return reduce(c, buffer, 0, count, true);
}

comm_ticket comm_reduce_scatter(struct comm *c, void *buffer, int64_t shard, enum dtype type, enum comm_op op)
{
	return reduce(c, buffer, c->rank * shard, shard, false);
}

comm_ticket comm_all_gather(struct comm *c, void *buffer, int64_t shard, enum dtype type)
{
	struct group *g = enter(c, buffer);
	size_t bytes = (size_t)shard * dtype_size(type);

	for (int r = 0; r < g->world_size; r++)
		if (r != c->rank)
			memcpy((char *)buffer + (size_t)r * bytes, (char *)g->buffer[r] + (size_t)r * bytes,
			       bytes);
	return leave(c);
}

comm_ticket comm_broadcast(struct comm *c, void *buffer, size_t bytes, int root)
{
	struct group *g = enter(c, buffer);

	if (c->rank != root)
		memcpy(buffer, g->buffer[root], bytes);
	return leave(c);
}

int comm_flush(struct comm *c, struct error *err)
{
	return 0;
}

double comm_waited_seconds(const struct comm *c)
{
	return 0;
}

int comm_check(struct comm *c, struct error *err)
{
	return 0;
}

int comm_wait(struct comm *c, comm_ticket ticket, struct error *err)
{
	return 0;
}
