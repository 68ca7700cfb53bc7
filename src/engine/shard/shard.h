/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flat units of parameters with their gradients and optimizer state. Each unit is padded so that it divides
 * over the ranks. The strategy decides which part of each buffer a rank holds; all other code is the same:
 *
 *             compute weights   gradients        master weights, moments
 *   ddp       whole             whole            whole
 *   zero1     whole             whole            own shard
 *
 * A unit's gradients are reduced as soon as the backward pass has computed them (shard_reduce), while the
 * computation goes on. Gradients are fp32, whatever the compute type is: sums over many micro-steps and ranks
 * stay exact enough, and 4 bytes a parameter are little compared with the activations of models that are
 * small enough for ddp. In fp32 the compute weights are also the master weights. Without a master copy there
 * are only the bf16 weights, which the optimizer rounds stochastically.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "engine/memory/arena.h"
#include "engine/model/layout.h"

enum shard_strategy { SHARD_DDP, SHARD_ZERO1 };

struct shard_unit {
	int64_t count, padded; /* elements */
	int64_t matrices;      /* elements that decay by default come first */
	int64_t first, own;    /* the part of master and moments that is here: [first, first + own) */
	int64_t base;          /* elements of the units before this one, without padding */
	void *weights;         /* compute type, [padded] */
	float *gradients;      /* [padded] */
	void *aliased;         /* memory for the gradients, if aliased_bytes suffice */
	size_t aliased_bytes;
	float *master, *m, *v; /* [own]; master NULL where there is none */
	comm_ticket ticket;    /* of the reduction, then of the gather */
};

struct shard {
	struct device *dev;
	struct comm *comm; /* NULL: one rank */
	int rank, world_size;
	enum shard_strategy strategy;
	enum dtype type;
	bool without_master;
	int units;
	struct shard_unit *unit;
};

/* dev and comm may be NULL for an estimate; comm also where world_size is 1. without_master: there is no fp32
 * copy of bf16 weights. */
int shard_create(struct device *dev, struct comm *comm, int rank, int world_size,
                 enum shard_strategy strategy, enum dtype type, bool without_master,
                 const struct model_layout *layout, struct shard **out, struct error *err);
void shard_free(struct shard *s);
DEFINE_CLEANUP(struct shard *, shard_free)
/* Called in both passes of the arena. The caller has set aliased and aliased_bytes of the units, or left them
 * 0. */
void shard_place_buffers(struct shard *s, struct arena *a);

/* Registers the buffers with the communicator, once they have been placed; every rank calls it at the same
 * time. */
int shard_register(struct shard *s, struct error *err);
/* Starts the sum of a unit's gradients over the ranks; afterwards [first, first + own) holds it. */
void shard_reduce(struct shard *s, int unit);
/* Waits for the collective that was last started on that unit. */
int shard_wait(struct shard *s, int unit, struct error *err);
/* Makes the compute weights of a unit from the master weights, if there are any: `converted` where the
 * optimizer has already written this rank's own part. Starts the gather; shard_wait ends it. */
void shard_all_gather_weights(struct shard *s, int unit, bool converted);
/* Intersects elements [first, first + n) of the unit with this rank's own part. Returns the number of common
 * elements; *at is the index of the first one within the own part. */
int64_t shard_own(const struct shard_unit *u, int64_t first, int64_t n, int64_t *at);
