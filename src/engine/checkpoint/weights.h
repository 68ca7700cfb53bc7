/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the parameters of a trainer to files and reads them back; rank 0 sends the others what
 * only it read. */
#pragma once

#include "base/error.h"
#include "engine/checkpoint/parameters.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/comm/comm.h"
#include "engine/device/device.h"

/* Sources for safetensors_write over the state of parameters. */
struct weights_sources {
	struct tensor_source *list;
	size_t n;
	/* Called before each piece that is read; a negative return ends the writing. May be NULL. */
	int (*piece)(void *context, struct error *err);
	void *context;
	/* What the elements of the list refer to. */
	struct weights_part *parts;
	char **names;
	float *wide; /* what was read, before it is rounded to the file's type */
};
void weights_sources_free(struct weights_sources *s);
/* The model's tensors in `type`. */
int weights_model_sources(const struct parameter_access *access, enum dtype type, struct weights_sources *out,
                          struct error *err);
/* m.NAME, v.NAME and, with master, master.NAME, all fp32. */
int weights_state_sources(const struct parameter_access *access, bool master, struct weights_sources *out,
                          struct error *err);

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

/* Reads weights and moments of checkpoint-N into the trainer; the bits are those that were saved. With a
 * communicator only rank 0 reads (the directory of other ranks is NULL), so that the nodes need not share the
 * directory. The ranks compare what they have received, as weights_load does. */
int weights_resume(const struct weights_place *place, const char *directory, struct error *err);

/* Sends bytes of rank 0 to all ranks. comm may be NULL. */
int weights_broadcast(struct device *dev, struct comm *comm, void *staging, void *host, size_t bytes,
                      struct error *err);
