/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives between threads. A call queues the collective; comm_wait and comm_flush carry out what is
 * queued, in order, so that a caller who does not wait does not see the result. Where a collective is carried
 * out, all ranks meet at a barrier.
 *
 * From the call until then the buffers are the communicator's. The process is ended where what a collective
 * reads has changed meanwhile, or anything was written to where its result goes, which has NaNs until then.
 * What a collective leaves undefined has NaNs, too. */
#include "thread_comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/comm/split.h"

/* Bytes of NaNs, of each type. */
enum { NO_VALUE = 0xff };

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
	char *kept;    /* what it reads of this rank, as it was when it was queued */
	bool in_place; /* a reduce_scatter that leaves the other ranks' shards undefined */
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

	for (comm_ticket t = c ? c->completed : 0; c && t < c->queued; t++)
		free(c->queue[(t + 1) % QUEUE_MAX].kept);
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
	if (o->in_place)
		memset((char *)o->buffer - (size_t)o->first * size, NO_VALUE,
		       (size_t)(o->count * g->world_size) * size);
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

/* The others read all of this rank's shards. */
static void run_all_to_all(struct comm *c, const struct operation *o)
{
	size_t bytes = (size_t)o->count * element_size(o->type);
	struct group *g = enter(c, o->input);

	for (int r = 0; r < g->world_size; r++)
		memcpy((char *)o->buffer + (size_t)r * bytes,
		       (const char *)g->buffer[r] + (size_t)c->rank * bytes, bytes);
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

/* ---- whose the buffers are ---- */

struct span {
	char *at;
	size_t bytes;
};

/* All that the collective is about on this rank; shards: a part of it for each rank. */
static size_t bytes_of(const struct comm *c, const struct operation *o, bool shards)
{
	size_t bytes = (size_t)o->count * (o->run == run_broadcast ? 1 : element_size(o->type));

	return shards ? bytes * (size_t)c->group->world_size : bytes;
}

static struct span input_of(const struct comm *c, const struct operation *o)
{
	if (o->run == run_all_gather)
		return (struct span){o->input ? (char *)(uintptr_t)o->input
		                              : (char *)o->buffer + (size_t)c->rank * bytes_of(c, o, false),
		                     bytes_of(c, o, false)};
	if (o->run == run_reduce)
		return (struct span){(char *)(uintptr_t)(o->input ? o->input : o->buffer),
		                     bytes_of(c, o, o->input != NULL)};
	if (o->run == run_all_to_all)
		return (struct span){(char *)(uintptr_t)o->input, bytes_of(c, o, true)};
	return (struct span){o->buffer,
	                     o->run == run_broadcast && c->rank == o->root ? bytes_of(c, o, false) : 0};
}

/* What it writes of `all` beside what it reads: in two parts, before that and behind it. */
static void outputs_of(const struct comm *c, const struct operation *o, struct span out[2])
{
	bool shards = o->run == run_all_gather || o->run == run_all_to_all;
	struct span in = input_of(c, o), all = {o->buffer, bytes_of(c, o, shards)};

	out[0] = all;
	out[1] = (struct span){NULL, 0};
	if (o->run == run_barrier)
		out[0].bytes = 0;
	if (in.at >= all.at + all.bytes || all.at >= in.at + in.bytes)
		return;
	out[0].bytes = in.at > all.at ? (size_t)(in.at - all.at) : 0;
	if (in.at + in.bytes < all.at + all.bytes)
		out[1] = (struct span){in.at + in.bytes, (size_t)(all.at + all.bytes - in.at) - in.bytes};
}

static void take_buffers(const struct comm *c, struct operation *o)
{
	struct span in = input_of(c, o), out[2];

	o->kept = malloc(in.bytes + 1);
	if (in.bytes)
		memcpy(o->kept, in.at, in.bytes);
	outputs_of(c, o, out);
	for (int i = 0; i < 2; i++)
		if (out[i].bytes)
			memset(out[i].at, NO_VALUE, out[i].bytes);
}

static bool is_untouched(struct span s)
{
	for (size_t i = 0; i < s.bytes; i++)
		if ((unsigned char)s.at[i] != NO_VALUE)
			return false;
	return true;
}

static void check_buffers(const struct comm *c, struct operation *o)
{
	struct span in = input_of(c, o), out[2];
	bool same = in.bytes == 0 || memcmp(o->kept, in.at, in.bytes) == 0;

	free(o->kept);
	o->kept = NULL;
	outputs_of(c, o, out);
	if (same && is_untouched(out[0]) && is_untouched(out[1]))
		return;
	fprintf(stderr, "rank %d: what a collective %s was written to before the collective was waited for\n",
	        c->rank, same ? "writes" : "reads");
	abort();
}

static comm_ticket enqueue(struct comm *c, struct operation o)
{
	if (c->queued - c->completed == QUEUE_MAX)
		comm_wait(c, c->completed + 1, NULL);
	take_buffers(c, &o);
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
	comm_ticket ticket = comm_reduce_scatter_into(
	    c, (char *)buffer + (size_t)(c->rank * shard) * dtype_size(type), buffer, shard, type, op);

	c->queue[ticket % QUEUE_MAX].in_place = true;
	return ticket;
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

comm_ticket comm_all_to_all(struct comm *c, void *out, const void *in, int64_t count, enum dtype type)
{
	return enqueue(c, (struct operation){.run = run_all_to_all,
	                                     .buffer = out,
	                                     .input = in,
	                                     .count = count,
	                                     .type = (enum element)type});
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
		struct operation *o = &c->queue[++c->completed % QUEUE_MAX];

		check_buffers(c, o);
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
