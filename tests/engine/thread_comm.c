/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives between threads. A call queues the collective; comm_wait and comm_flush carry out what is
 * queued, in order, so that a caller who does not wait sees its buffer unchanged. Where a collective is
 * carried out, all ranks meet at a barrier. */
#include "thread_comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/comm/split.h"

struct group {
	int world_size;
	_Atomic int alive;
	pthread_barrier_t barrier;
	const void **buffer; /* of each rank in the collective that runs */
	/* Of comm_split: what each rank has called it with, and the groups made, by their first ranks. */
	struct split_choice *choices;
	struct group **parts;
};

enum { QUEUE_MAX = 256 };
enum element { ELEMENT_F32 = DTYPE_F32, ELEMENT_BF16 = DTYPE_BF16, ELEMENT_F16 = DTYPE_F16, ELEMENT_F64 };

struct operation {
	void (*run)(struct comm *c, const struct operation *o);
	void *buffer;
	const void *input; /* what the others read; NULL: buffer */
	int64_t count;     /* elements of a shard or of the whole; bytes of a broadcast */
	int64_t first;     /* of the elements that are reduced here */
	enum element type;
	enum comm_op op;
	int root;
};

struct comm {
	struct group *group;
	int rank;
	void *memory;                      /* of the host; a test allocates at most once */
	struct operation queue[QUEUE_MAX]; /* that of ticket t is at t % QUEUE_MAX */
	comm_ticket queued, completed;
};

static struct group *group_create(int world_size)
{
	struct group *g = calloc(1, sizeof(*g));

	g->world_size = g->alive = world_size;
	g->buffer = calloc((size_t)world_size, sizeof(*g->buffer));
	g->choices = calloc((size_t)world_size, sizeof(*g->choices));
	g->parts = calloc((size_t)world_size, sizeof(*g->parts));
	pthread_barrier_init(&g->barrier, NULL, (unsigned)world_size);
	return g;
}

static struct comm *comm_in(struct group *g, int rank)
{
	struct comm *c = calloc(1, sizeof(*c));

	c->group = g;
	c->rank = rank;
	return c;
}

void thread_comm_create(int world_size, struct comm **comms)
{
	struct group *g = group_create(world_size);

	for (int r = 0; r < world_size; r++)
		comms[r] = comm_in(g, r);
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
		free(g->choices);
		free(g->parts);
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
static struct group *enter(struct comm *c, const void *buffer)
{
	c->group->buffer[c->rank] = buffer;
	pthread_barrier_wait(&c->group->barrier);
	return c->group;
}

static void leave(struct comm *c)
{
	pthread_barrier_wait(&c->group->barrier);
}

static size_t element_size(enum element type)
{
	return type == ELEMENT_F64 ? sizeof(double) : dtype_size((enum dtype)type);
}

/* Elements are computed in pieces, of one type each: these sums are a large part of what the tests with
 * threads cost. */
enum { PIECE = 512 };

static void load(double x[PIECE], const void *buffer, int64_t first, int n, enum element type)
{
	switch (type) {
	case ELEMENT_F64:
		memcpy(x, (const double *)buffer + first, (size_t)n * sizeof(double));
		break;
	case ELEMENT_F32:
		for (int i = 0; i < n; i++)
			x[i] = ((const float *)buffer)[first + i];
		break;
	case ELEMENT_BF16:
		for (int i = 0; i < n; i++)
			x[i] = bf16_to_float(((const uint16_t *)buffer)[first + i]);
		break;
	case ELEMENT_F16:
		for (int i = 0; i < n; i++)
			x[i] = f16_to_float(((const uint16_t *)buffer)[first + i]);
		break;
	}
}

static void store(void *buffer, int64_t first, int n, enum element type, const double x[PIECE])
{
	switch (type) {
	case ELEMENT_F64:
		memcpy((double *)buffer + first, x, (size_t)n * sizeof(double));
		break;
	case ELEMENT_F32:
		for (int i = 0; i < n; i++)
			((float *)buffer)[first + i] = (float)x[i];
		break;
	case ELEMENT_BF16:
		for (int i = 0; i < n; i++)
			((uint16_t *)buffer)[first + i] = bf16_from_float((float)x[i]);
		break;
	case ELEMENT_F16:
		for (int i = 0; i < n; i++)
			((uint16_t *)buffer)[first + i] = f16_from_float((float)x[i]);
		break;
	}
}

static void reduce_piece(double total[PIECE], const double x[PIECE], int n, enum comm_op op)
{
	if (op == COMM_SUM)
		for (int i = 0; i < n; i++)
			total[i] += x[i];
	else
		for (int i = 0; i < n; i++)
			total[i] = total[i] > x[i] ? total[i] : x[i];
}

/* In rank order. Of elements that are read elsewhere, the result goes to the start of buffer. */
static void run_reduce(struct comm *c, const struct operation *o)
{
	struct group *g = enter(c, o->input ? o->input : o->buffer);
	size_t size = element_size(o->type);
	char *result = calloc((size_t)o->count, size);
	double total[PIECE], x[PIECE];

	for (int64_t i = 0; i < o->count; i += PIECE) {
		int n = o->count - i < PIECE ? (int)(o->count - i) : PIECE;

		load(total, g->buffer[0], o->first + i, n, o->type);
		for (int r = 1; r < g->world_size; r++) {
			load(x, g->buffer[r], o->first + i, n, o->type);
			reduce_piece(total, x, n, o->op);
		}
		store(result, i, n, o->type, total);
	}
	leave(c);
	memcpy((char *)o->buffer + (o->input ? 0 : (size_t)o->first * size), result, (size_t)o->count * size);
	free(result);
}

/* The others read this rank's shard. */
static void run_all_gather(struct comm *c, const struct operation *o)
{
	size_t bytes = (size_t)o->count * element_size(o->type);
	struct group *g = enter(c, o->input ? o->input : (char *)o->buffer + (size_t)c->rank * bytes);

	for (int r = 0; r < g->world_size; r++)
		if (r != c->rank || o->input)
			memmove((char *)o->buffer + (size_t)r * bytes, g->buffer[r], bytes);
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
	return enqueue(
	    c, (struct operation){run_reduce, buffer, .count = count, .type = (enum element)type, .op = op});
}

comm_ticket comm_all_reduce_f64(struct comm *c, double *buffer, int64_t count, enum comm_op op)
{
	return enqueue(c,
	               (struct operation){run_reduce, buffer, .count = count, .type = ELEMENT_F64, .op = op});
}

comm_ticket comm_reduce_scatter_into(struct comm *c, void *own, const void *all, int64_t shard,
                                     enum dtype type, enum comm_op op)
{
	return enqueue(c, (struct operation){.run = run_reduce,
	                                     .buffer = own,
	                                     .input = all,
	                                     .count = shard,
	                                     .first = c->rank * shard,
	                                     .type = (enum element)type,
	                                     .op = op});
}

comm_ticket comm_reduce_scatter(struct comm *c, void *buffer, int64_t shard, enum dtype type, enum comm_op op)
{
	return comm_reduce_scatter_into(c, (char *)buffer + (size_t)(c->rank * shard) * dtype_size(type),
	                                buffer, shard, type, op);
}

comm_ticket comm_all_gather_into(struct comm *c, void *all, const void *own, int64_t shard, enum dtype type)
{
	return enqueue(c, (struct operation){.run = run_all_gather,
	                                     .buffer = all,
	                                     .input = own,
	                                     .count = shard,
	                                     .type = (enum element)type});
}

comm_ticket comm_all_gather(struct comm *c, void *buffer, int64_t shard, enum dtype type)
{
	return comm_all_gather_into(c, buffer, NULL, shard, type);
}

comm_ticket comm_broadcast(struct comm *c, void *buffer, size_t bytes, int root)
{
	return enqueue(c, (struct operation){run_broadcast, buffer, .count = (int64_t)bytes, .root = root});
}

comm_ticket comm_barrier(struct comm *c)
{
	return enqueue(c, (struct operation){run_barrier, .buffer = NULL});
}

void comm_group_begin(struct comm *c)
{
}

void comm_group_end(struct comm *c)
{
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

int comm_split(struct comm *c, int color, int key, struct comm **out, struct error *err)
{
	struct group *g = c->group;
	int *members = calloc((size_t)g->world_size, sizeof(*members)), rank = 0, size;

	*out = NULL;
	comm_flush(c, err);
	g->choices[c->rank] = (struct split_choice){color, key};
	pthread_barrier_wait(&g->barrier);
	size = split_members(g->choices, g->world_size, c->rank, members, &rank);
	if (size && rank == 0)
		g->parts[c->rank] = group_create(size);
	pthread_barrier_wait(&g->barrier);
	if (size)
		*out = comm_in(g->parts[members[0]], rank);
	pthread_barrier_wait(&g->barrier);
	free(members);
	return 0;
}
