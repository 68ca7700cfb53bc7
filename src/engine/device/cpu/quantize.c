/* SPDX-License-Identifier: Apache-2.0 */
/* Quantizes to NF4 and back, in plain loops, since quantizing happens only once, when a model is loaded. */
#pragma GCC optimize("fp-contract=off")
#include <math.h>

#include "engine/device/cpu/kernels.h"
#include "engine/device/nf4.h"

static float element(const void *x, enum dtype type, int64_t i)
{
	return type == DTYPE_F32    ? ((const float *)x)[i]
	       : type == DTYPE_BF16 ? bf16_to_float(((const uint16_t *)x)[i])
	                            : f16_to_float(((const uint16_t *)x)[i]);
}

/* Writes the codes of block b of x and returns its scale. */
static float quantize_block(const struct nf4_tables *t, uint8_t *codes, const void *x, enum dtype type,
                            int64_t b, int64_t n)
{
	int64_t first = b * NF4_BLOCK, count = n - first < NF4_BLOCK ? n - first : NF4_BLOCK;
	float v[NF4_BLOCK] = {0}, max = 0, inverse;

	for (int64_t i = 0; i < count; i++) {
		v[i] = element(x, type, first + i);
		max = fmaxf(max, fabsf(v[i]));
	}
	inverse = 1.0f / max;
	for (int64_t i = 0; i < count; i += 2)
		codes[(first + i) / 2] =
		    (uint8_t)(nf4_code(t, v[i] * inverse) << 4 | nf4_code(t, v[i + 1] * inverse));
	return max;
}

/* Quantizes the scales [first, first + count), minus their mean, to 8 bits. */
static void quantize_scales(const struct nf4_tables *t, const struct device_nf4 *q, const float *absmax,
                            int64_t first, int64_t count)
{
	float max = 0, inverse;

	for (int64_t i = first; i < first + count; i++)
		max = fmaxf(max, fabsf(absmax[i] - *q->offset));
	inverse = 1.0f / max;
	for (int64_t i = first; i < first + count; i++)
		q->absmax8[i] = nf4_scale_code(t->map, (absmax[i] - *q->offset) * inverse);
	q->absmax2[first / NF4_SCALES] = max;
}

void device_nf4_quantize(struct device *dev, const struct device_nf4 *q, const void *src, enum dtype type)
{
	int64_t blocks = (q->n + NF4_BLOCK - 1) / NF4_BLOCK;
	float *absmax = q->absmax;
	struct nf4_tables t;
	double sum = 0;

	if (q->n <= 0)
		return;
	if (!absmax)
		absmax = device_scratch(dev, (size_t)blocks * sizeof(float), "nf4_quantize");
	if (!absmax)
		return;
	nf4_tables_fill(&t);
#pragma omp parallel for schedule(static) num_threads(dev->threads)
	for (int64_t b = 0; b < blocks; b++)
		absmax[b] = quantize_block(&t, q->codes, src, type, b, q->n);
	if (q->absmax)
		return;
	for (int64_t b = 0; b < blocks; b++)
		sum += (double)absmax[b];
	*q->offset = (float)(sum / (double)blocks);
#pragma omp parallel for schedule(static) num_threads(dev->threads)
	for (int64_t b = 0; b < blocks; b += NF4_SCALES)
		quantize_scales(&t, q, absmax, b, blocks - b < NF4_SCALES ? blocks - b : NF4_SCALES);
}

void device_nf4_dequantize(struct device *dev, void *dst, enum dtype type, const struct device_nf4 *q)
{
	int64_t blocks = (q->n + NF4_BLOCK - 1) / NF4_BLOCK;
	struct nf4_tables t;

	nf4_tables_fill(&t);
#pragma omp parallel for schedule(static) num_threads(dev->threads)
	for (int64_t b = 0; b < blocks; b++) {
		int64_t end = (b + 1) * NF4_BLOCK < q->n ? (b + 1) * NF4_BLOCK : q->n;
		float scale =
		    q->absmax ? q->absmax[b] : t.map[q->absmax8[b]] * q->absmax2[b / NF4_SCALES] + *q->offset;

		for (int64_t i = b * NF4_BLOCK; i < end; i++) {
			float x = t.code[q->codes[i / 2] >> (i % 2 ? 0 : 4) & 15] * scale;

			if (type == DTYPE_F32)
				((float *)dst)[i] = x;
			else
				((uint16_t *)dst)[i] =
				    type == DTYPE_BF16 ? bf16_from_float(x) : f16_from_float(x);
		}
	}
}
