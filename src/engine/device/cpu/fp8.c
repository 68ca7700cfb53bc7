/* SPDX-License-Identifier: Apache-2.0 */
/* Quantizes to fp8 and multiplies it, as a reference for GPUs: codes are widened to fp32, in which each
 * product of two of them is exact, and multiplied there. */
#pragma GCC optimize("fp-contract=off")
#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/device/cpu/kernels.h"
#include "engine/device/fp8.h"

static float element(const void *x, enum dtype type, int64_t i)
{
	return type == DTYPE_F32    ? ((const float *)x)[i]
	       : type == DTYPE_BF16 ? bf16_to_float(((const uint16_t *)x)[i])
	                            : f16_to_float(((const uint16_t *)x)[i]);
}

static void set_element(void *x, enum dtype type, int64_t i, float value)
{
	if (type == DTYPE_F32)
		((float *)x)[i] = value;
	else
		((uint16_t *)x)[i] = type == DTYPE_BF16 ? bf16_from_float(value) : f16_from_float(value);
}

bool device_supports_fp8(const struct device *dev)
{
	return true;
}

void fp8_find_largest(struct device *dev, float *amax, const void *x, enum dtype type, int64_t rows,
                      int64_t cols, int64_t ld)
{
	float max = 0;

	if (!amax)
		return;
#pragma omp parallel for schedule(static) num_threads(dev->threads) reduction(max : max)
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < cols; j++)
			max = fmaxf(max, fabsf(element(x, type, i * ld + j)));
	*amax = max;
}

/* A part of the columns at a time, so that the rows of the turned matrix stay in the cache. */
#define TURNED_COLUMNS 64

static void quantize_columns(const struct device_fp8 *q, const void *src, float scale, int64_t from)
{
	int64_t to = MIN(from + TURNED_COLUMNS, q->cols), padded = fp8_padded(q->rows);

	for (int64_t i = 0; i < q->rows; i++)
		for (int64_t j = from; j < to; j++) {
			uint8_t code =
			    fp8_from_float(q->format, element(src, q->type, i * q->ld + j) * scale);

			if (q->codes)
				q->codes[i * q->cols + j] = code;
			if (q->turned)
				q->turned[j * padded + i] = code;
		}
	for (int64_t j = from; q->turned && j < to; j++)
		memset(q->turned + j * padded + q->rows, 0, (size_t)(padded - q->rows));
}

void device_fp8_quantize(struct device *dev, const struct device_fp8 *q, const void *src)
{
	float scale;

	if (q->amax)
		q->scale[1] = *q->amax;
	else
		fp8_find_largest(dev, &q->scale[1], src, q->type, q->rows, q->cols, q->ld);
	scale = fp8_scale(q->format, q->scale[1]);
	q->scale[0] = 1 / scale;
#pragma omp parallel for schedule(static) num_threads(dev->threads)
	for (int64_t j = 0; j < q->cols; j += TURNED_COLUMNS)
		quantize_columns(q, src, scale, j);
}

static void widen(struct device *dev, enum fp8_format format, float *dst, const uint8_t *codes, int64_t ld,
                  int64_t rows, int64_t cols)
{
	float values[256];

	for (int i = 0; i < 256; i++)
		values[i] = fp8_to_float(format, (uint8_t)i);
#pragma omp parallel for schedule(static) num_threads(dev->threads)
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < cols; j++)
			dst[i * cols + j] = values[codes[i * ld + j]];
}

/* c = factor · sums + beta · c */
static void finish(struct device *dev, const struct device_gemm *g, const float *sums, float factor)
{
#pragma omp parallel for schedule(static) num_threads(dev->threads)
	for (int64_t i = 0; i < g->m; i++)
		for (int64_t j = 0; j < g->n; j++) {
			int64_t at = i * g->ldc + j;
			float value = factor * sums[i * g->n + j];

			if (g->beta != 0)
				value += g->beta * element(g->c, g->c_type, at);
			set_element(g->c, g->c_type, at, value);
		}
}

void fp8_gemm(struct device *dev, const struct device_gemm *g)
{
	size_t a = round_up((size_t)(g->m * g->k), 16), b = round_up((size_t)(g->n * g->k), 16),
	       c = round_up((size_t)(g->m * g->n), 16);
	float *wide;

	if (g->transpose_a || !g->transpose_b || g->d_bias || g->n % FP8_MULTIPLE || g->k % FP8_MULTIPLE ||
	    g->lda % FP8_MULTIPLE || g->ldb % FP8_MULTIPLE) {
		device_fault(dev, -EINVAL, "gemm: no product of fp8 for %lld x %lld x %lld", (long long)g->m,
		             (long long)g->n, (long long)g->k);
		return;
	}
	wide = device_scratch(dev, (a + b + c) * sizeof(float), "fp8 gemm");
	if (!wide)
		return;
	widen(dev, g->fp8_a, wide, g->a, g->lda, g->m, g->k);
	widen(dev, g->fp8_b, wide + a, g->b, g->ldb, g->n, g->k);
	if (omp_get_max_threads() != dev->threads)
		omp_set_num_threads(dev->threads);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)g->m, (blasint)g->n, (blasint)g->k, 1,
	            wide, (blasint)g->k, wide + a, (blasint)g->k, 0, wide + a + b, (blasint)g->n);
	finish(dev, g, wide + a + b, g->alpha * (*g->scale_a * *g->scale_b));
}
