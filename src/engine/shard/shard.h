/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flat units of parameters with their gradients and optimizer state. Each unit is padded so that it divides
 * over the ranks; which part of what a rank holds is the strategy, everything else is the same code:
 *
 *             compute weights   gradients        master weights, moments
 *   ddp       whole             whole            whole
 *   zero1     whole             whole            own shard
 *
 * A unit's gradients are reduced as soon as the backward has them (shard_reduce), behind the computation.
 * Gradients are fp32 whatever the compute type: sums over many micro-steps and ranks stay exact enough, and
 * the memory (4 bytes a parameter) is small beside activations at the sizes where it would matter for ddp. In
 * fp32 the compute weights are the master weights themselves where a rank holds both whole. Without a master
 * copy the bf16 weights are all there is, and the optimizer rounds them stochastically.
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
	void *aliased;         /* where aliased_bytes suffice, the gradients lie here */
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

/* dev and comm may be NULL for planning alone; comm also where world_size is 1. without_master: for bf16. */
int shard_create(struct device *dev, struct comm *comm, int rank, int world_size,
                 enum shard_strategy strategy, enum dtype type, bool without_master,
                 const struct model_layout *layout, struct shard **out, struct error *err);
void shard_free(struct shard *s);
DEFINE_CLEANUP(struct shard *, shard_free)
/* Both passes of the arena; aliased and aliased_bytes of the units are set before, or left 0. */
void shard_place_buffers(struct shard *s, struct arena *a);

/* Tells the communicator which buffers it will see, once they are bound; every rank at the same time. */
int shard_register(struct shard *s, struct error *err);
/* Starts the sum of a unit's gradients over the ranks; afterwards [first, first + own) holds it. */
void shard_reduce(struct shard *s, int unit);
int shard_wait(struct shard *s, int unit, struct error *err); /* for what was last started on that unit */
/* Makes the compute weights of a unit from the master weights, if there are any: `converted` where the
 * optimizer has already written this rank's own part. Starts the gather; shard_wait ends it. */
void shard_all_gather_weights(struct shard *s, int unit, bool converted);
/* A part of the unit as this rank sees it: where [first, first + n) of the unit meets its own part. Returns
 * the number of elements, and the place of the first within the own part. */
int64_t shard_own(const struct shard_unit *u, int64_t first, int64_t n, int64_t *at);
