/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of shard/ share about host memory; nothing of it does anything without offload. */
#pragma once

#include "engine/shard/shard.h"

int offload_open(struct shard *s, struct error *err); /* makes the events */
void offload_close(struct shard *s);
/* A unit's own gradients are complete, on the compute stream: starts their way to the host. */
void offload_gradients(struct shard *s, int unit);
/* The host's state of a unit has changed: brings the compute weights up. `converted` as shard_publish has
 * it. */
void offload_publish(struct shard *s, int unit, bool converted);
