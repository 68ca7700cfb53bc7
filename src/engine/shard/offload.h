/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of shard/ share about host memory; nothing of it does anything without offload. */
#pragma once

#include "engine/shard/disk_queue.h"
#include "engine/shard/shard.h"

/* Of the blocks' weights: for the unit in use, those ahead of it, and with offload of all, where ranks share
 * a copy, the one that comes up before it is gathered. */
static inline int shard_weight_slots(const struct shard *s)
{
	int slots = 1 + s->o.prefetch + (s->o.offload == SHARD_OFFLOAD_ALL && s->degree > 1);

	return MIN(slots, SHARD_SLOTS_MAX);
}

int offload_open(struct shard *s, struct error *err); /* makes the events */
void offload_close(struct shard *s);
/* Rounds values of master weights to the host's copy of the compute weights, [at, at + n) of the own part. */
void offload_round(const struct shard *s, struct shard_unit *u, const float *master, int64_t at, int64_t n);
/* state_layout.c: the file of offload_dir. Pieces lie one after another, and in each of them the kinds of
 * state that are on disk, each in whole blocks. */
struct state_piece {
	int unit;
	int64_t first, n; /* elements of the own part */
	int64_t offset;   /* in the file */
};
int64_t state_piece_elements(const struct shard *s); /* of all but the last of a unit */
bool state_has(const struct shard *s, const struct shard_unit *u, enum shard_state which);
/* Where a kind of state begins within a piece of n elements; of SHARD_STATES: where the piece ends. */
int64_t state_place_in(const struct shard *s, const struct shard_unit *u, int64_t n, enum shard_state which);
/* Returns the bytes of all pieces; *largest: of the largest of them. pieces is filled in where it is not
 * NULL. */
int64_t state_cut(const struct shard *s, struct state_piece *pieces, int64_t *largest);
void state_place_buffers(struct shard *s, struct arena *host);
static inline int64_t state_round_bytes(int64_t n)
{
	return (n + DISK_QUEUE_ALIGNMENT - 1) / DISK_QUEUE_ALIGNMENT * DISK_QUEUE_ALIGNMENT;
}

/* disk_state.c: the file, made and ended with the communicators. */
int disk_state_open(struct shard *s, struct error *err);
void disk_state_close(struct shard *s);
int disk_state_settle(struct shard *s, struct error *err); /* waits for what is read and written */
/* A unit's own gradients are complete, on the compute stream: starts their way to the host. */
void offload_gradients(struct shard *s, int unit);
/* Starts the way of a unit's own weights up to their place in the unit's slot. */
void offload_weights(struct shard *s, int unit);
/* The gradients of the micro-steps before come up to own_gradients. */
void offload_take_back(struct shard *s, int unit);
/* The host's state of a unit has changed: brings the compute weights up. `converted` as shard_publish has
 * it. */
void offload_publish(struct shard *s, int unit, bool converted);
