/* SPDX-License-Identifier: Apache-2.0 */
/* Generation from a model with a KV cache: owns model, arena and weights, for one sequence or several at a
 * time. */
#pragma once

#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/device/device.h"
#include "engine/model/layout.h"
#include "engine/model/model_config.h"
#include "engine/model/sampling.h"

struct generator;

struct generator_options {
	enum dtype type;
	int64_t max_tokens; /* of a sequence: prompt and answer together; 0: max_positions */
	int sequences;      /* numbered from 0; 0: one */
	int64_t ids;        /* only ids below are chosen: a tokenizer may have fewer than the model; 0: all */
	/* How they are chosen, but for the seed; zeros: greedily. */
	struct sampling sampling;
	/* Logits come to the host, for generator_logits and generator_penalize, and ids are chosen there.
	 * Without, the device chooses. */
	bool logits;
};

/* fill produces the weights (from a checkpoint: parameters.h; from nothing: model_init_fill). dev is
 * borrowed. -ENOMEM, before memory is taken, where all of it is more than the device has: the message says
 * how many sequences fit, if one does. */
int generator_create(struct device *dev, const struct model_config *c,
                     const struct generator_options *options, model_fill_fn fill, void *fill_context,
                     struct generator **out, struct error *err);
void generator_free(struct generator *g);
DEFINE_CLEANUP(struct generator *, generator_free)

/* Starts over with an empty sequence. seed: of its choices. */
void generator_reset(struct generator *g, int sequence, uint64_t seed);
/* Appends ids to a sequence (in pieces as needed). -E2BIG beyond max_tokens. */
int generator_feed(struct generator *g, int sequence, const int32_t *ids, int64_t n, struct error *err);
/* Appends one id to each of `count` sequences, at once. */
int generator_step(struct generator *g, const int *sequences, const int32_t *ids, int count,
                   struct error *err);
/* With options.logits: those after a sequence's last token, fp32 [vocab], valid until its next feed or step.
 */
const float *generator_logits(const struct generator *g, int sequence);

/* sampling_penalize on those logits, once for each feed or step. */
void generator_penalize(struct generator *g, int sequence, const int32_t *ids, size_t n, double penalty);
/* The next id of a sequence, after a feed or a step (sampling_choose). */
int32_t generator_choose(struct generator *g, int sequence);
