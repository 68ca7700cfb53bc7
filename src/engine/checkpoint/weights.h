/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a trainer into files and back, with rank 0 sending to the others what it alone read. */
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
	/* Called before each piece that is read; a negative return ends the writing. NULL: nothing
	 * is. */
	int (*piece)(void *context, struct error *err);
	void *context;
	/* behind the list */
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

/* The model's first weights, by fill and its context (layout.h). files: what it reads from; NULL where it
 * makes them. Each rank fills its own, or, with `broadcast`, rank 0 alone, which sends them in pieces: the
 * others' fill may be NULL. Either way every tensor is hashed on the way, and afterwards the ranks have the
 * same (agreement.h). */
int weights_load(const struct weights_place *place, model_fill_fn fill, void *context,
                 const struct safetensors *files, bool broadcast, struct error *err);

/* Weights and moments of checkpoint-N into the trainer, bit by bit. With a communicator rank 0 alone reads
 * (other ranks' directory is NULL): the directory need not be shared between nodes. What arrived is compared
 * as by weights_load. */
int weights_resume(const struct weights_place *place, const char *directory, struct error *err);

/* Bytes of rank 0 to all. comm may be NULL. */
int weights_broadcast(struct device *dev, struct comm *comm, void *staging, void *host, size_t bytes,
                      struct error *err);
