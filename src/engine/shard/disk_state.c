/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state in a file (parallel.offload_dir). Each unit's own part is cut into pieces, which lie in the
 * file one after another, each with its master weights, first and second moments. A step passes over all
 * pieces in order; while one is stepped in its buffer, the next is read into a second, and the one before is
 * written from a third.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/shard/disk_queue.h"
#include "engine/shard/offload.h"

struct buffer {
	char *memory;
	int64_t piece; /* -1: none */
};

struct disk_state {
	struct disk_queue *queue;
	struct state_piece *piece;
	int64_t *unit_piece; /* [units]: its first */
	int64_t pieces;
	struct buffer buffer[SHARD_STATE_BUFFERS];
	int current; /* buffer */
};

int disk_state_open(struct shard *s, struct error *err)
{
	struct disk_state *d = calloc(1, sizeof(*d));
	int64_t bytes, largest;

	if (!d)
		return error_oom(err);
	s->disk = d;
	d->unit_piece = calloc((size_t)s->units, sizeof(*d->unit_piece));
	for (int i = 0; i < s->units && d->unit_piece; i++) {
		d->unit_piece[i] = d->pieces;
		d->pieces += shard_state_pieces(s, i);
	}
	d->piece = calloc((size_t)d->pieces + 1, sizeof(*d->piece));
	if (!d->piece || !d->unit_piece)
		return error_oom(err);
	for (int i = 0; i < SHARD_STATE_BUFFERS; i++)
		d->buffer[i] = (struct buffer){s->state_buffer[i], -1};
	bytes = state_cut(s, d->piece, &largest);
	return bytes > 0 ? disk_queue_open(s->o.offload_dir, bytes, &d->queue, err) : 0;
}

void disk_state_close(struct shard *s)
{
	if (!s->disk)
		return;
	disk_queue_close(s->disk->queue);
	free(s->disk->piece);
	free(s->disk->unit_piece);
	free(s->disk);
	s->disk = NULL;
}

static void forget(struct shard_unit *u, const struct shard *s)
{
	if (shard_state_is_on_disk(s, SHARD_MASTER))
		u->master = NULL;
	u->m = u->v = NULL;
	u->state_first = 0;
}

const char *shard_disk_describe(const struct shard *s)
{
	const struct disk_queue *q = s->disk ? s->disk->queue : NULL;

	return !q                             ? NULL
	       : !disk_queue_is_concurrent(q) ? "without io_uring, which this system refuses"
	       : !disk_queue_is_direct(q) ? "through the page cache, since its file system has no O_DIRECT"
	                                  : "by io_uring and O_DIRECT";
}

/* ---- steps ---- */

static int find(const struct disk_state *d, int64_t piece)
{
	for (int i = 0; i < SHARD_STATE_BUFFERS; i++)
		if (d->buffer[i].piece == piece)
			return i;
	return -1;
}

/* What the buffer had has been written before it is read into. */
static int load(struct shard *s, int buffer, int64_t piece, struct error *err)
{
	struct disk_state *d = s->disk;
	const struct state_piece *p = &d->piece[piece];
	int64_t bytes = state_place_in(s, &s->unit[p->unit], p->n, SHARD_STATES);
	int r = disk_queue_wait(d->queue, buffer, err);

	if (r < 0)
		return r;
	d->buffer[buffer].piece = piece;
	return disk_queue_start(d->queue, DISK_READ, buffer, d->buffer[buffer].memory, (size_t)bytes,
	                        p->offset, err);
}

static float *array_of(const struct shard *s, const struct shard_unit *u, const struct state_piece *p,
                       char *memory, enum shard_state which)
{
	return state_has(s, u, which) ? (float *)(void *)(memory + state_place_in(s, u, p->n, which)) : NULL;
}

int shard_need_state(struct shard *s, int unit, int64_t piece, int64_t *first, int64_t *n, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];
	struct disk_state *d = s->disk;
	const struct state_piece *p;
	int64_t index, next;
	int b, r;

	*first = u->first;
	*n = u->own;
	if (!s->o.offload_dir)
		return 0;
	index = d->unit_piece[unit] + piece;
	next = (index + 1) % d->pieces;
	p = &d->piece[index];
	*first += p->first;
	*n = p->n;
	if (!d->queue) /* an optimizer without state */
		return 0;
	b = find(d, index);
	if (b < 0) {
		b = (d->current + 1) % SHARD_STATE_BUFFERS;
		if ((r = load(s, b, index, err)) < 0)
			return r;
	}
	if ((r = disk_queue_wait(d->queue, b, err)) < 0)
		return r;
	d->current = b;
	if (find(d, next) < 0 && (r = load(s, (b + 1) % SHARD_STATE_BUFFERS, next, err)) < 0)
		return r;
	if (shard_state_is_on_disk(s, SHARD_MASTER))
		u->master = array_of(s, u, p, d->buffer[b].memory, SHARD_MASTER);
	u->m = array_of(s, u, p, d->buffer[b].memory, SHARD_MOMENT1);
	u->v = array_of(s, u, p, d->buffer[b].memory, SHARD_MOMENT2);
	u->state_first = p->first;
	return 0;
}

int shard_put_state(struct shard *s, int unit, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];
	struct disk_state *d = s->disk;
	const struct buffer *b;
	const struct state_piece *p;

	if (!s->o.offload_dir || !d->queue)
		return 0;
	b = &d->buffer[d->current];
	p = &d->piece[b->piece];
	forget(u, s);
	return disk_queue_start(d->queue, DISK_WRITE, d->current, b->memory,
	                        (size_t)state_place_in(s, u, p->n, SHARD_STATES), p->offset, err);
}

int disk_state_settle(struct shard *s, struct error *err)
{
	int r = 0;

	for (int i = 0; i < SHARD_STATE_BUFFERS && s->disk && s->disk->queue && r == 0; i++)
		r = disk_queue_wait(s->disk->queue, i, err);
	return r;
}

/* ---- for checkpoints ---- */

/* Elements [at, at + n) of a piece. The first buffer takes whole blocks of the file. */
static int access_piece(struct shard *s, const struct state_piece *p, enum shard_state which, int64_t at,
                        int64_t n, float *data, bool write, struct error *err)
{
	const struct shard_unit *u = &s->unit[p->unit];
	struct disk_queue *q = s->disk->queue;
	char *memory = s->disk->buffer[0].memory;
	int64_t base = p->offset + state_place_in(s, u, p->n, which), size = sizeof(float);

	while (n > 0) {
		int64_t from = at * size / DISK_QUEUE_ALIGNMENT * DISK_QUEUE_ALIGNMENT;
		int64_t some = MIN(n, (s->state_buffer_bytes - (at * size - from)) / size);
		int64_t bytes = state_round_bytes((at + some) * size) - from;
		float *place = (float *)(void *)(memory + (at * size - from));
		bool whole = from == at * size && bytes == some * size;
		int r = write && whole
		            ? 0
		            : disk_queue_start(q, DISK_READ, 0, memory, (size_t)bytes, base + from, err);

		if (r < 0 || (r = disk_queue_wait(q, 0, err)) < 0)
			return r;
		memcpy(write ? place : data, write ? data : place, (size_t)(some * size));
		if (write &&
		    ((r = disk_queue_start(q, DISK_WRITE, 0, memory, (size_t)bytes, base + from, err)) < 0 ||
		     (r = disk_queue_wait(q, 0, err)) < 0))
			return r;
		at += some;
		data += some;
		n -= some;
	}
	return 0;
}

/* Elements [at, at + n) of this rank's part of a unit. */
static int access_state(struct shard *s, enum shard_state which, int unit, int64_t at, int64_t n, float *data,
                        bool write, struct error *err)
{
	struct disk_state *d = s->disk;
	int64_t most = state_piece_elements(s);
	int r = disk_state_settle(s, err);

	if (r < 0)
		return r;
	for (int i = 0; i < SHARD_STATE_BUFFERS; i++)
		d->buffer[i].piece = -1;
	while (n > 0 && r == 0) {
		const struct state_piece *p = &d->piece[d->unit_piece[unit] + at / most];
		int64_t some = MIN(n, p->first + p->n - at);

		r = access_piece(s, p, which, at - p->first, some, data, write, err);
		at += some;
		data += some;
		n -= some;
	}
	return r;
}

int shard_read_state(struct shard *s, enum shard_state which, int unit, int64_t at, int64_t n, float *out,
                     struct error *err)
{
	return access_state(s, which, unit, at, n, out, false, err);
}

int shard_write_state(struct shard *s, enum shard_state which, int unit, int64_t at, int64_t n,
                      const float *in, struct error *err)
{
	struct shard_unit *u = &s->unit[unit];

	if (which == SHARD_MASTER)
		offload_round(s, u, in, at, n);
	return access_state(s, which, unit, at, n, (float *)(uintptr_t)in, true, err);
}
