/* SPDX-License-Identifier: Apache-2.0 */
/* Quantizes weights to NF4 and back on the host, as device_nf4_quantize and device_nf4_dequantize do. */
#pragma GCC optimize("fp-contract=off")
#include "engine/model/nf4_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/device/nf4.h"

static float rounded(float x, enum dtype type)
{
	return type == DTYPE_F32    ? x
	       : type == DTYPE_BF16 ? bf16_to_float(bf16_from_float(x))
	                            : f16_to_float(f16_from_float(x));
}

/* scale[n], each as 8 bits and the scale of 256 of them stand for it. */
static void round_scales(const struct nf4_tables *t, float *scale, int64_t n)
{
	double sum = 0;
	float mean;

	for (int64_t b = 0; b < n; b++)
		sum += (double)scale[b];
	mean = (float)(sum / (double)n);
	for (int64_t first = 0; first < n; first += NF4_SCALES) {
		int64_t end = MIN(first + NF4_SCALES, n);
		float max = 0, inverse;

		for (int64_t b = first; b < end; b++)
			max = fmaxf(max, fabsf(scale[b] - mean));
		inverse = 1.0f / max;
		for (int64_t b = first; b < end; b++)
			scale[b] = t->map[nf4_scale_code(t->map, (scale[b] - mean) * inverse)] * max + mean;
	}
}

static int round_values(const struct nf4_weights *w, float *x, int64_t n, struct error *err)
{
	int64_t blocks = (n + NF4_BLOCK - 1) / NF4_BLOCK;
	_cleanup_free_ float *scale = malloc((size_t)(blocks + 1) * sizeof(*scale));
	_cleanup_free_ uint8_t *code = malloc((size_t)n + 1);
	struct nf4_tables t;

	if (!scale || !code)
		return error_oom(err);
	nf4_tables_fill(&t);
#pragma omp parallel for schedule(static)
	for (int64_t b = 0; b < blocks; b++) {
		int64_t first = b * NF4_BLOCK, end = MIN(first + NF4_BLOCK, n);
		float max = 0, inverse;

		for (int64_t i = first; i < end; i++) {
			x[i] = rounded(x[i], w->type);
			max = fmaxf(max, fabsf(x[i]));
		}
		inverse = 1.0f / max;
		for (int64_t i = first; i < end; i++)
			code[i] = nf4_code(&t, x[i] * inverse);
		scale[b] = max;
	}
	if (w->twice)
		round_scales(&t, scale, blocks);
#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < n; i++)
		x[i] = rounded(t.code[code[i]] * scale[i / NF4_BLOCK], w->type);
	return 0;
}

static int round_matrix(const struct nf4_weights *w, const struct model_parameter *p, float *x,
                        struct error *err)
{
	_cleanup_free_ float *turned = NULL;
	int r;

	if (!p->transposed)
		return round_values(w, x, p->count, err);
	turned = malloc((size_t)p->count * sizeof(*turned));
	if (!turned)
		return error_oom(err);
	model_layout_turn(p, false, turned, x);
	r = round_values(w, turned, p->count, err);
	model_layout_turn(p, true, x, turned);
	return r;
}

static void forget(struct nf4_weights *w)
{
	w->of = NULL;
	free(steal_pointer(w->values));
}

int nf4_weights_fill(void *context, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                     struct error *err)
{
	struct nf4_weights *w = context;
	int r;

	if (!w->quantized)
		return w->weights(w->context, p, first, n, out, err);
	if (w->of != p) {
		forget(w);
		w->values = malloc((size_t)p->count * sizeof(*w->values));
		if (!w->values)
			return error_oom(err);
		if ((r = w->weights(w->context, p, 0, p->count, w->values, err)) < 0 ||
		    (r = round_matrix(w, p, w->values, err)) < 0)
			return r;
		w->of = p;
	}
	memcpy(out, w->values + first, (size_t)n * sizeof(*out));
	return 0;
}

void nf4_weights_free(struct nf4_weights *w)
{
	forget(w);
}
