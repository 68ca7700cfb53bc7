/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of shard/ share about host memory; nothing of it does anything without offload. */
#pragma once

#include "engine/shard/shard.h"

/* Of the blocks' weights: for the unit in use, those ahead of it, and with offload of all, where ranks share
 * a copy, the one that comes up before it is gathered. */
int shard_weight_slots(const struct shard *s);

int offload_open(struct shard *s, struct error *err); /* makes the events */
void offload_close(struct shard *s);
/* A unit's own gradients are complete, on the compute stream: starts their way to the host. */
void offload_gradients(struct shard *s, int unit);
/* Starts the way of a unit's own weights up to their place in the unit's slot. */
void offload_weights(struct shard *s, int unit);
/* The gradients of the micro-steps before come up to own_gradients. */
void offload_take_back(struct shard *s, int unit);
/* The host's state of a unit has changed: brings the compute weights up. `converted` as shard_publish has
 * it. */
void offload_publish(struct shard *s, int unit, bool converted);
