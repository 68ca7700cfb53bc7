/* SPDX-License-Identifier: Apache-2.0 */
/* Brings the weights of a model that is not trained to their places. */
#include <stdlib.h>
#include <string.h>

#include "engine/model/whole.h"

/* In place: the numbers of 16 bits lie in the first half of the piece. */
static void narrow(float *piece, int64_t n, enum dtype type)
{
	for (int64_t i = 0; i < n; i++) {
		uint16_t x = type == DTYPE_BF16 ? bf16_from_float(piece[i]) : f16_from_float(piece[i]);

		memcpy((char *)piece + (size_t)i * sizeof(x), &x, sizeof(x));
	}
}

/* Weights arrive as fp32 pieces on the host and are rounded there. */
int whole_model_load(const struct whole_model *w, model_fill_fn fill, void *context, struct error *err)
{
	_cleanup_free_ float *piece = malloc(WHOLE_MODEL_PIECE * sizeof(float));
	size_t size = dtype_size(w->type);
	int r;

	if (!piece)
		return error_oom(err);
	for (int i = 0; i < w->layout->parameters; i++) {
		const struct model_parameter *p = &w->layout->parameter[i];
		char *to = w->weights[p->unit] + (size_t)p->offset * size;

		for (int64_t first = 0; first < p->count; first += WHOLE_MODEL_PIECE) {
			int64_t n = MIN(p->count - first, WHOLE_MODEL_PIECE);

			if ((r = fill(context, p, first, n, piece, err)) < 0)
				return r;
			if (w->type != DTYPE_F32)
				narrow(piece, n, w->type);
			if ((r = device_write(w->dev, to + (size_t)first * size, piece, (size_t)n * size,
			                      err)) < 0)
				return r;
		}
	}
	return 0;
}
