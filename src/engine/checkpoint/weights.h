/* SPDX-License-Identifier: Apache-2.0 */
/* Reads files into the parameters of a trainer; rank 0 sends the others what only it read. */
#pragma once

#include "base/error.h"
#include "engine/checkpoint/parameters.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/comm/comm.h"
#include "engine/device/device.h"

/* Where weights are loaded. */
struct weights_place {
	struct parameter_access access;
	struct device *dev;
	struct comm *comm; /* NULL: one rank */
	const char *node;  /* names this machine in errors */
	/* Takes the text of a warning; may be called by any rank. */
	void (*warn)(void *context, const char *message);
	void *warn_context;
};

/* Loads the weights that the model starts with, by calling fill (layout.h) with `context`. files: what fill
 * reads from; NULL where it makes random weights. Each rank calls its own fill. With `broadcast` only rank 0
 * does, and sends the weights in pieces; the fill of the other ranks may be NULL then. Either way every
 * tensor is hashed, and the ranks check that they have the same weights (agreement.h). */
int weights_load(const struct weights_place *place, model_fill_fn fill, void *context,
                 const struct safetensors *files, bool broadcast, struct error *err);

/* Reads weights and moments of checkpoint-N, as earlier versions wrote it, into the trainer; the bits are
 * those that were saved. With a communicator only rank 0 reads (the directory of other ranks is NULL), so
 * that the nodes need not share the directory. The ranks compare what they have received, as weights_load
 * does. */
int weights_resume(const struct weights_place *place, const char *directory, struct error *err);

/* Warns of a moment that is infinite. */
void weights_warn_infinite(const struct weights_place *place, const char *file, const char *tensor,
                           int64_t element);

/* Sends bytes of rank 0 to all ranks. comm may be NULL. */
int weights_broadcast(struct device *dev, struct comm *comm, void *staging, void *host, size_t bytes,
                      struct error *err);
