/* SPDX-License-Identifier: Apache-2.0 */
/* What NF4 makes of the weights of a model, on the host: what the engine computes with, once it has quantized
 * them. */
#pragma once

#include "engine/device/dtype.h"
#include "engine/model/layout.h"

struct nf4_weights {
	model_fill_fn weights; /* before they are quantized */
	void *context;
	bool quantized;                   /* else they stay the same */
	bool twice;                       /* the scales, too */
	enum dtype type;                  /* of the engine's weights */
	const struct model_parameter *of; /* of this matrix: */
	float *values;
};

/* A model_fill_fn, whose context is a struct nf4_weights, for matrices. It keeps the last one. Those that are
 * stored [in, out] are quantized turned (layout.h). */
int nf4_weights_fill(void *context, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                     struct error *err);
void nf4_weights_free(struct nf4_weights *w);
