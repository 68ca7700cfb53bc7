/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The algorithms of the collectives. Each runs on the progress thread from its first message to its last. A
 * negative return means that the communicator has failed; its failure is recorded.
 *
 * Large buffers go round a ring (Patarasuk & Yuan 2009) in chunks, so that one chunk is added while the next
 * ones are being sent. Of small buffers every rank sends all to every other, and all ranks compute the same
 * sum in rank order. A result is computed by one rank and copied, or by all in the same order: so it has the
 * same bits on every rank, and in every run.
 *
 * The gather overwrites a chunk of a buffer with the result of the chunk's owner, which the owner has
 * computed from what was sent from there. So those sends are over, and need not be waited for in between.
 */
#include <string.h>

#include "base/cleanup.h"
#include "engine/comm/ucx/internal.h"

/* A tag consists of collective, sender and phase: messages of one sender with the same tag
 * arrive in order. */
enum phase { PHASE_REDUCE = 1, PHASE_GATHER, PHASE_FLAT, PHASE_ROUND };

static uint64_t make_tag(uint64_t ticket, int sender, int phase)
{
	return ticket << 24 | (uint64_t)sender << 8 | (uint64_t)phase;
}

static int modulo(int a, int n)
{
	return ((a % n) + n) % n;
}

static int finish(struct comm *c, const struct transfer *transfers, int count)
{
	for (int i = 0; i < count; i++)
		while (!transfers[i].done || c->ucx_error) {
			int r = comm_step(c);

			if (r < 0)
				return r;
		}
	return 0;
}

/* A buffer is divided into equal shards, one for each rank (the last ones may be short or empty), and a shard
 * into chunks. */
struct layout {
	char *buffer;
	size_t size; /* of an element */
	int64_t count, shard;
	int64_t chunk; /* set by the algorithm */
};

struct span {
	char *data;
	int64_t count;
};

static int64_t shard_count(const struct layout *l, int shard)
{
	int64_t begin = shard * l->shard;

	return MAX(0, MIN(l->shard, l->count - begin));
}

static struct span span_of(const struct layout *l, int shard, int64_t chunk)
{
	int64_t count = shard_count(l, shard) - chunk * l->chunk;

	return (struct span){l->buffer + (shard * l->shard + chunk * l->chunk) * l->size,
	                     MIN(count, l->chunk)};
}

struct ring {
	struct comm *c;
	struct layout layout;
	const char *input; /* NULL, or this rank's shard of a gathering, which is not in the buffer yet */
	int reduce_steps, steps;
	int64_t blocks; /* chunks of the longest shard */
};

/* In step s of the reduction a rank sends its chunk of shard rank - s - 1 to the next rank. After size - 1
 * steps it has added the last part to its own shard, with which the gathering starts. What a rank receives in
 * one step it sends in the next. */
static int shard_sent(const struct ring *ring, int step)
{
	int r = ring->c->rank, n = ring->c->size;

	return step < ring->reduce_steps ? modulo(r - step - 1, n)
	                                 : modulo(r - (step - ring->reduce_steps), n);
}

static int shard_received(const struct ring *ring, int step)
{
	int r = ring->c->rank, n = ring->c->size;

	return step < ring->reduce_steps ? modulo(r - step - 2, n)
	                                 : modulo(r - (step - ring->reduce_steps) - 1, n);
}

/* A position in the sequence of a ring's messages. The chunks go round in waves: in wave w, chunk w - s of a
 * shard takes step s. Between two steps of one chunk come those of its neighbours, which hides the latency,
 * and a chunk that has just been added is sent while it is still in the cache. */
struct cursor {
	int64_t wave;
	int step;
	int64_t passed; /* messages before this one */
};

typedef int (*shard_fn)(const struct ring *ring, int step);

static bool at_end(const struct ring *ring, const struct cursor *at)
{
	return at->wave >= ring->blocks + ring->steps - 1;
}

static struct span span_at(const struct ring *ring, const struct cursor *at, shard_fn shard)
{
	return span_of(&ring->layout, shard(ring, at->step), at->wave - at->step);
}

/* Moves to the first message at or after this position. Chunks that do not exist or are empty have no
 * message. */
static void cursor_settle(const struct ring *ring, struct cursor *at, shard_fn shard)
{
	while (!at_end(ring, at)) {
		if (at->step >= ring->steps || at->step > at->wave) {
			at->wave++;
			at->step = 0;
		} else if (at->wave - at->step >= ring->blocks || span_at(ring, at, shard).count <= 0) {
			at->step++;
		} else {
			break;
		}
	}
}

static void cursor_advance(const struct ring *ring, struct cursor *at, shard_fn shard)
{
	at->step++;
	at->passed++;
	cursor_settle(ring, at, shard);
}

/* A chunk is sent on once it has arrived in the step before. */
static bool may_send(const struct ring *ring, const struct cursor *sent, const struct cursor *arrived)
{
	return !sent->step || at_end(ring, arrived) || arrived->wave > sent->wave - 1 ||
	       (arrived->wave == sent->wave - 1 && arrived->step > sent->step - 1);
}

/* Copies the next chunk of what is gathered to its place; false: all of it is there. */
static bool copy_input(const struct ring *ring, int64_t *copied)
{
	struct span to = span_of(&ring->layout, ring->c->rank, *copied);

	if (!ring->input || *copied >= ring->blocks)
		return false;
	if (to.count > 0)
		memcpy(to.data, ring->input + *copied * ring->layout.chunk * ring->layout.size,
		       to.count * ring->layout.size);
	++*copied;
	return true;
}

static int ring_run(struct comm *c, uint64_t ticket, const struct layout *layout, const void *input,
                    enum element type, enum comm_op op, bool reduce, bool gather)
{
	struct ring ring = {
	    .c = c,
	    .layout = *layout,
	    .input = input,
	    .reduce_steps = reduce ? c->size - 1 : 0,
	    .steps = (reduce ? c->size - 1 : 0) + (gather ? c->size - 1 : 0),
	};
	int next = modulo(c->rank + 1, c->size), previous = modulo(c->rank - 1, c->size);
	int window = MIN(WINDOW_MAX, ring.steps + 6);
	size_t slot_bytes = MIN(CHUNK_BYTES, SCRATCH_BYTES / window / 64 * 64);
	struct transfer *in = c->transfers, *out = c->transfers + WINDOW_MAX;
	struct cursor posted = {0}, arrived = {0}, sent = {0};
	int64_t sends_done = 0, copied = 0;

	ring.layout.chunk = slot_bytes / layout->size;
	ring.blocks = (layout->shard + ring.layout.chunk - 1) / ring.layout.chunk;
	cursor_settle(&ring, &posted, shard_received);
	cursor_settle(&ring, &arrived, shard_received);
	cursor_settle(&ring, &sent, shard_sent);
	while (!at_end(&ring, &arrived) || !at_end(&ring, &sent) || sends_done < sent.passed) {
		bool moved = false;

		while (!at_end(&ring, &posted) && posted.passed - arrived.passed < window) {
			struct span to = span_at(&ring, &posted, shard_received);
			int slot = posted.passed % window;
			bool adds = posted.step < ring.reduce_steps;

			transport_receive(c, previous,
			                  make_tag(ticket, previous, adds ? PHASE_REDUCE : PHASE_GATHER),
			                  adds ? c->scratch + slot * slot_bytes : to.data,
			                  to.count * layout->size, &in[slot]);
			cursor_advance(&ring, &posted, shard_received);
		}
		while (!at_end(&ring, &sent) && sent.passed - sends_done < window &&
		       may_send(&ring, &sent, &arrived)) {
			struct span from = span_at(&ring, &sent, shard_sent);

			if (ring.input && !sent.step)
				from.data = (char *)ring.input + sent.wave * ring.layout.chunk * layout->size;
			transport_send(c, next,
			               make_tag(ticket, c->rank,
			                        sent.step < ring.reduce_steps ? PHASE_REDUCE : PHASE_GATHER),
			               from.data, from.count * layout->size, &out[sent.passed % window]);
			cursor_advance(&ring, &sent, shard_sent);
			moved = true;
		}
		for (; sends_done < sent.passed && out[sends_done % window].done; moved = true)
			sends_done++;
		if (arrived.passed < posted.passed && in[arrived.passed % window].done && !c->ucx_error) {
			struct span to = span_at(&ring, &arrived, shard_received);

			if (arrived.step < ring.reduce_steps)
				reduce_pair(to.data, c->scratch + arrived.passed % window * slot_bytes,
				            to.count, type, op);
			cursor_advance(&ring, &arrived, shard_received);
			moved = true;
		}
		/* While messages travel. */
		if (!moved)
			copy_input(&ring, &copied);
		if (!moved || c->ucx_error) {
			int r = comm_step(c);

			if (r < 0)
				return r;
		}
	}
	while (copy_input(&ring, &copied))
		;
	return 0;
}

static bool all_done(const struct transfer *t, int count)
{
	for (int i = 0; i < count; i++)
		if (!t[i].done)
			return false;
	return true;
}

/* Every rank sends to each other rank its part of the receiver's shard, and adds up its own shard in rank
 * order. The sum is rounded once, as bf16 needs, and small shards have the latency of one message. It goes to
 * `result`, which may be this rank's shard itself. */
static int exchange_reduce(struct comm *c, uint64_t ticket, const struct layout *whole, char *result,
                           enum element type, enum comm_op op)
{
	struct layout layout = *whole;
	int others = c->size - 1, window = MIN(EXCHANGE_WINDOW, MAX(2, WINDOW_MAX / others));
	size_t slot_bytes = MIN(CHUNK_BYTES, SCRATCH_BYTES / (window * others) / 64 * 64);
	struct transfer *in = c->transfers, *out = c->transfers + window * others;
	int64_t own_chunks, chunks, posted = 0, arrived = 0, sent = 0, sends_done = 0;

	layout.chunk = slot_bytes / layout.size;
	own_chunks = (shard_count(&layout, c->rank) + layout.chunk - 1) / layout.chunk;
	chunks = (layout.shard + layout.chunk - 1) / layout.chunk;
	while (arrived < own_chunks || sends_done < chunks) {
		bool moved = false;

		for (; posted < own_chunks && posted - arrived < window; posted++)
			for (int i = 0; i < others; i++) {
				int from = modulo(c->rank - i - 1, c->size),
				    slot = posted % window * others + i;

				transport_receive(c, from, make_tag(ticket, from, PHASE_REDUCE),
				                  c->scratch + slot * slot_bytes,
				                  span_of(&layout, c->rank, posted).count * layout.size,
				                  &in[slot]);
			}
		for (; sent < chunks && sent - sends_done < window; sent++, moved = true)
			for (int i = 0; i < others; i++) {
				int to = modulo(c->rank + i + 1, c->size);
				struct transfer *t = &out[sent % window * others + i];
				struct span theirs = span_of(&layout, to, sent);

				t->done = true;
				if (theirs.count > 0)
					transport_send(c, to, make_tag(ticket, c->rank, PHASE_REDUCE),
					               theirs.data, theirs.count * layout.size, t);
			}
		for (; sends_done < sent && all_done(out + sends_done % window * others, others);
		     moved = true)
			sends_done++;
		if (arrived < posted && all_done(in + arrived % window * others, others) && !c->ucx_error) {
			struct span own = span_of(&layout, c->rank, arrived);

			for (int i = 0; i < others; i++)
				c->parts[modulo(c->rank - i - 1, c->size)] =
				    c->scratch + (arrived % window * others + i) * slot_bytes;
			c->parts[c->rank] = own.data;
			reduce_many(result + arrived * layout.chunk * layout.size, c->parts, c->size,
			            own.count, type, op);
			arrived++;
			moved = true;
		}
		if (!moved || c->ucx_error) {
			int r = comm_step(c);

			if (r < 0)
				return r;
		}
	}
	return 0;
}

/* Sends `bytes` from `mine` to every other rank, and receives theirs at base + rank · stride. */
static int exchange_all(struct comm *c, uint64_t ticket, const void *mine, size_t bytes, char *base,
                        size_t stride)
{
	int used = 0;

	for (int i = 1; i < c->size; i++) {
		int to = modulo(c->rank + i, c->size), from = modulo(c->rank - i, c->size);

		transport_receive(c, from, make_tag(ticket, from, PHASE_FLAT), base + from * stride, bytes,
		                  &c->transfers[used++]);
		transport_send(c, to, make_tag(ticket, c->rank, PHASE_FLAT), mine, bytes,
		               &c->transfers[used++]);
	}
	return finish(c, c->transfers, used);
}

static int all_reduce(struct comm *c, uint64_t ticket, const struct operation *o)
{
	size_t size = element_size(o->type), bytes = o->count * size, stride = (bytes + 63) / 64 * 64;
	int64_t per_rank = (o->count + c->size - 1) / c->size, line = 64 / size;
	struct layout layout = {o->buffer, size, o->count, (per_rank + line - 1) / line * line, 0};
	int r;

	if (bytes <= FLAT_BYTES && stride * c->size <= SCRATCH_BYTES) {
		void **parts = c->parts;

		for (int i = 0; i < c->size; i++)
			parts[i] = c->scratch + i * stride;
		memcpy(parts[c->rank], o->buffer, bytes);
		r = exchange_all(c, ticket, parts[c->rank], bytes, c->scratch, stride);
		if (r >= 0)
			reduce_many(o->buffer, parts, c->size, o->count, o->type, o->op);
		return r;
	}
	if (o->type != ELEMENT_BF16 || c->size == 2)
		return ring_run(c, ticket, &layout, NULL, o->type, o->op, true, true);
	r = exchange_reduce(c, ticket, &layout, layout.buffer + c->rank * layout.shard * size, o->type,
	                    o->op);
	return r < 0 ? r : ring_run(c, ticket, &layout, NULL, o->type, o->op, false, true);
}

static int reduce_scatter(struct comm *c, uint64_t ticket, const struct operation *o)
{
	size_t size = element_size(o->type);
	struct layout layout = {o->input ? (char *)o->input : o->buffer, size, o->count * c->size, o->count,
	                        0};
	char *result = o->input ? o->buffer : layout.buffer + c->rank * o->count * size;

	if (o->input || o->type == ELEMENT_BF16 || o->count * size <= FLAT_BYTES)
		return exchange_reduce(c, ticket, &layout, result, o->type, o->op);
	return ring_run(c, ticket, &layout, NULL, o->type, o->op, true, false);
}

static int all_gather(struct comm *c, uint64_t ticket, const struct operation *o)
{
	size_t size = element_size(o->type), bytes = o->count * size;
	struct layout layout = {o->buffer, size, o->count * c->size, o->count, 0};
	char *base = o->buffer;

	bool apart = o->input && o->input != base + c->rank * bytes;

	if (apart && bytes <= FLAT_BYTES)
		memcpy(base + c->rank * bytes, o->input, bytes);
	if (bytes <= FLAT_BYTES)
		return exchange_all(c, ticket, base + c->rank * bytes, bytes, base, bytes);
	return ring_run(c, ticket, &layout, apart ? o->input : NULL, o->type, COMM_SUM, false, true);
}

/* Every rank sends each other rank what is for it, in chunks. */
static int all_to_all(struct comm *c, uint64_t ticket, const struct operation *o)
{
	size_t shard = o->count * element_size(o->type);
	const char *input = o->input;
	char *buffer = o->buffer;

	memcpy(buffer + c->rank * shard, input + c->rank * shard, shard);
	for (size_t done = 0; done < shard; done += CHUNK_BYTES) {
		size_t bytes = MIN(shard - done, CHUNK_BYTES);
		int used = 0, r;

		for (int i = 1; i < c->size; i++) {
			int to = modulo(c->rank + i, c->size), from = modulo(c->rank - i, c->size);

			transport_receive(c, from, make_tag(ticket, from, PHASE_FLAT),
			                  buffer + from * shard + done, bytes, &c->transfers[used++]);
			transport_send(c, to, make_tag(ticket, c->rank, PHASE_FLAT),
			               input + to * shard + done, bytes, &c->transfers[used++]);
		}
		if ((r = finish(c, c->transfers, used)) < 0)
			return r;
	}
	return 0;
}

/* For small buffers: a binomial tree. Distances are counted from the root. */
static int broadcast_tree(struct comm *c, uint64_t ticket, const struct operation *o)
{
	int at = modulo(c->rank - o->root, c->size), used = 0, bit = 1, r;

	for (; bit < c->size && !(at & bit); bit <<= 1)
		;
	if (at) {
		int from = modulo(at - bit + o->root, c->size);

		transport_receive(c, from, make_tag(ticket, from, PHASE_FLAT), o->buffer, o->count,
		                  c->transfers);
		r = finish(c, c->transfers, 1);
		if (r < 0)
			return r;
	}
	while (bit >>= 1)
		if (at + bit < c->size)
			transport_send(c, modulo(at + bit + o->root, c->size),
			               make_tag(ticket, c->rank, PHASE_FLAT), o->buffer, o->count,
			               &c->transfers[used++]);
	return finish(c, c->transfers, used);
}

/* For large buffers: a chain of ranks, in chunks. */
static int broadcast_chain(struct comm *c, uint64_t ticket, const struct operation *o)
{
	int at = modulo(c->rank - o->root, c->size), next = modulo(c->rank + 1, c->size),
	    previous = modulo(c->rank - 1, c->size);
	struct transfer *in = c->transfers, *out = c->transfers + WINDOW_MAX;
	int64_t chunks = (o->count + CHUNK_BYTES - 1) / CHUNK_BYTES;
	int64_t posted = 0, arrived = at ? 0 : chunks, sent = at == c->size - 1 ? chunks : 0,
	        sends_done = sent;

	while (arrived < chunks || sends_done < chunks) {
		bool moved = false;

		for (; at && posted < chunks && posted - arrived < CHAIN_WINDOW; posted++)
			transport_receive(c, previous, make_tag(ticket, previous, PHASE_GATHER),
			                  (char *)o->buffer + posted * CHUNK_BYTES,
			                  MIN(CHUNK_BYTES, o->count - posted * CHUNK_BYTES),
			                  &in[posted % CHAIN_WINDOW]);
		for (; arrived < posted && in[arrived % CHAIN_WINDOW].done; moved = true)
			arrived++;
		for (; sent < arrived && sent - sends_done < CHAIN_WINDOW; sent++, moved = true)
			transport_send(c, next, make_tag(ticket, c->rank, PHASE_GATHER),
			               (char *)o->buffer + sent * CHUNK_BYTES,
			               MIN(CHUNK_BYTES, o->count - sent * CHUNK_BYTES),
			               &out[sent % CHAIN_WINDOW]);
		for (; sends_done < sent && out[sends_done % CHAIN_WINDOW].done; moved = true)
			sends_done++;
		if (!moved || c->ucx_error) {
			int r = comm_step(c);

			if (r < 0)
				return r;
		}
	}
	return 0;
}

static int broadcast(struct comm *c, uint64_t ticket, const struct operation *o)
{
	return o->count <= CHUNK_BYTES ? broadcast_tree(c, ticket, o) : broadcast_chain(c, ticket, o);
}

/* A dissemination barrier: after round k a rank has a message, direct or through others, from each of the 2^k
 * ranks before it. */
static int barrier(struct comm *c, uint64_t ticket, const struct operation *o)
{
	for (int distance = 1, round = 0; distance < c->size; distance <<= 1, round++) {
		int to = modulo(c->rank + distance, c->size), from = modulo(c->rank - distance, c->size), r;

		transport_receive(c, from, make_tag(ticket, from, PHASE_ROUND + round), c->scratch, 0,
		                  &c->transfers[0]);
		transport_send(c, to, make_tag(ticket, c->rank, PHASE_ROUND + round), c->scratch, 0,
		               &c->transfers[1]);
		r = finish(c, c->transfers, 2);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Opens every connection, and maps the memory that the peers share, while every rank is still there. The
 * ranks tell each other to whom UCX would send over TCP: where both ends would, they use their stream. */
static int run_bootstrap(struct comm *c, uint64_t ticket, const struct operation *o)
{
	enum { BYTES = 1024 };
	char *mine = c->scratch, *theirs = c->scratch + BYTES;
	bool streams = c->size <= BYTES && streams_allowed();
	int r;

	memset(mine, 0, BYTES);
	for (int i = 0; streams && i < c->size; i++)
		mine[i] = transport_is_tcp(c, i);
	r = exchange_all(c, ticket, mine, BYTES, theirs, c->size <= BYTES ? BYTES : 0);
	for (int i = 0; r >= 0 && i < c->size; i++) {
		c->streams[i].used = streams && i != c->rank && mine[i] && theirs[i * BYTES + c->rank];
		if (!c->streams[i].used)
			stream_close(&c->peers[i]);
	}
	return r;
}

typedef int (*collective_fn)(struct comm *c, uint64_t ticket, const struct operation *o);

static const collective_fn collectives[] = {
    [KIND_NONE] = NULL,
    [KIND_BOOTSTRAP] = run_bootstrap,
    [KIND_ALL_REDUCE] = all_reduce,
    [KIND_REDUCE_SCATTER] = reduce_scatter,
    [KIND_ALL_GATHER] = all_gather,
    [KIND_ALL_TO_ALL] = all_to_all,
    [KIND_BROADCAST] = broadcast,
    [KIND_BARRIER] = barrier,
};

int collective_run(struct comm *c, uint64_t ticket, const struct operation *o)
{
	if (!o->count && o->kind != KIND_BARRIER && o->kind != KIND_BOOTSTRAP)
		return 0;
	return collectives[o->kind](c, ticket, o);
}
