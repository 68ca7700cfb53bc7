/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frozen blocks in 4 bits (Dettmers et al. 2023, QLoRA). A unit is one run of bytes: its matrices in NF4
 * (device.h), each for itself, a router as it is, and behind them its norms and biases in the compute type.
 * It is dequantized into the blocks' one slot before the unit is used. Where the strategy shards weights, it
 * is these bytes that are sharded, without regard to what they mean, and gathered ahead. With offload of all
 * they lie in the host's memory, and come up into the same slots.
 */
#pragma once

#include "engine/shard/shard.h"

struct packed_matrix {
	int64_t offset, count; /* elements, in the unit */
	bool plain;            /* its elements in the compute type in the place of codes, and no scales */
	/* Bytes from the start of the run: the codes, and the scales as device_nf4 has them. */
	size_t codes, scales, nested, mean;
};

struct packed_unit {
	struct packed_matrix *matrix;
	int matrices;
	size_t rest;               /* where the elements behind the matrices are */
	size_t bytes, padded, own; /* padded: so that it divides over the ranks that share a copy */
	char *memory;              /* [own]: this rank's part; [bytes] where each rank has all */
	char *whole;               /* all of it: memory, or a slot; NULL while it is in none */
	comm_ticket gathering;     /* into the slot; 0: not under way */
};

/* Makes `packed` of every unit that is to be one. */
int packed_create(struct shard *s, const struct model_layout *layout, struct error *err);
void packed_free(struct shard *s);
/* Both passes of the arenas, of which `host` is one of host memory. */
void packed_place(struct shard *s, struct arena *a, struct arena *host);
/* Whether each rank has a part of the bytes only. */
bool packed_is_sharded(const struct shard *s);
/* Whether the whole bytes of a unit are in a slot while they are used. */
bool packed_has_slots(const struct shard *s);
/* The quantized form of a matrix whose unit's bytes are at `run`. */
struct device_nf4 packed_nf4(const struct shard *s, const struct packed_matrix *m, char *run);

/* shard_need of such a unit. */
int packed_need(struct shard *s, int unit, enum model_phase phase, struct error *err);
/* What is in the slots is old. */
void packed_forget(struct shard *s, int unit);
