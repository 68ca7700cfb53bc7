// SPDX-License-Identifier: Apache-2.0
/*
 * What adapters add to the products: dropout of their input, which moves two elements for each, or three
 * where it adds; and the norms and scales of DoRA's rows. A block computes the norms of ROWS rows at a time,
 * so that each element of `a` that is read serves them all.
 */
#include "engine/device/cuda/kernel.cuh"
#include "engine/device/rounding.h"

#define THREADS 256
#define ROWS    4

template <typename T, bool ACCUMULATE>
static __global__ void dropout_kernel(T *y, const T *x, int64_t n, struct rounding_key key,
                                      uint32_t threshold, float factor)
{
	int64_t stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
		uint32_t bits = (uint32_t)i;
		float kept;

		ROUNDING_BITS(bits, (uint32_t)((uint64_t)i >> 32), key);
		kept = bits >= threshold ? exact_product(to_float(x[i]), factor) : 0.0f;
		y[i] = from_float<T>(ACCUMULATE ? to_float(y[i]) + kept : kept);
	}
}

extern "C" void device_dropout(struct device *dev, const struct device_dropout *d, void *y, bool accumulate,
                               const void *x, enum dtype type, int64_t n)
{
	uint32_t threshold = dropout_threshold(d->probability);
	struct rounding_key key = dropout_key(d->seed, d->number);

	if (n <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		with_flag(accumulate, [&](auto a) {
			LAUNCH(dev, (dropout_kernel<T, decltype(a)::value>), grid_for(n, THREADS), THREADS, 0,
			       (T *)y, (const T *)x, n, key, threshold, dropout_factor(threshold));
		});
	});
}

template <typename T>
static __global__ void norms_kernel(float *norm, const T *w, const T *b, const T *a, int64_t rows,
                                    int64_t cols, int64_t rank, float scale)
{
	int64_t first = (int64_t)blockIdx.x * ROWS, row[ROWS];
	float sum[ROWS];

#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		row[r] = first + r < rows ? first + r : rows - 1;
		sum[r] = 0;
	}
	for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
		float x[ROWS];

#pragma unroll
		for (int r = 0; r < ROWS; r++)
			x[r] = to_float(w[row[r] * cols + c]);
		for (int64_t k = 0; k < rank; k++) {
			float other = to_float(a[k * cols + c]);

#pragma unroll
			for (int r = 0; r < ROWS; r++)
				x[r] += scale * to_float(b[row[r] * rank + k]) * other;
		}
#pragma unroll
		for (int r = 0; r < ROWS; r++)
			sum[r] += x[r] * x[r];
	}
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		float all = block_sum(sum[r]);

		if (threadIdx.x == 0 && first + r < rows)
			norm[first + r] = sqrtf(all);
	}
}

/* Of a matrix that lies as [cols, rows]: a warp reads 32 elements of one of its rows, and the block's warps
 * share these. */
template <typename T>
static __global__ void transposed_norms_kernel(float *norm, const T *w, const T *b, const T *a, int64_t rows,
                                               int64_t cols, int64_t rank, float scale)
{
	__shared__ float part[THREADS / 32][32];
	int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
	int64_t row = (int64_t)blockIdx.x * 32 + lane, j = row < rows ? row : rows - 1;
	float sum = 0;

	for (int64_t c = warp; c < cols; c += THREADS / 32) {
		float x = to_float(w[c * rows + j]);

		for (int64_t k = 0; k < rank; k++)
			x += scale * to_float(b[j * rank + k]) * to_float(a[k * cols + c]);
		sum += x * x;
	}
	part[warp][lane] = sum;
	__syncthreads();
	if (warp > 0 || row >= rows)
		return;
	for (int i = 1; i < THREADS / 32; i++)
		sum += part[i][lane];
	norm[row] = sqrtf(sum);
}

extern "C" void device_row_norms(struct device *dev, const struct device_row_norms *n, float *norm,
                                 const void *w, const void *b, const void *a)
{
	if (n->rows <= 0)
		return;
	with_type(n->type, [&](auto t) {
		typedef decltype(t) T;

		if (n->transposed)
			LAUNCH(dev, (transposed_norms_kernel<T>), (unsigned)ceil_div(n->rows, 32), THREADS, 0,
			       norm, (const T *)w, (const T *)b, (const T *)a, n->rows, n->cols, n->rank,
			       n->scale);
		else
			LAUNCH(dev, (norms_kernel<T>), (unsigned)ceil_div(n->rows, ROWS), THREADS, 0, norm,
			       (const T *)w, (const T *)b, (const T *)a, n->rows, n->cols, n->rank, n->scale);
	});
}

template <typename T>
static __global__ void columns_kernel(T *y, const T *x, const T *times, const T *magnitude, const T *bias,
                                      const float *norm, int64_t rows, int64_t cols, int64_t ld)
{
	int64_t stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols; i += stride) {
		int64_t t = quotient(i, cols), j = i - t * cols, at = t * ld + j;
		float out = to_float(x[at]);

		if (times)
			out *= to_float(times[at]);
		if (magnitude)
			out *= to_float(magnitude[j]);
		out = norm[j] > 0 ? out / norm[j] : 0;
		if (bias)
			out += to_float(bias[j]);
		y[at] = from_float<T>(out);
	}
}

extern "C" void device_scale_columns(struct device *dev, const struct device_columns *c, void *y,
                                     const void *x)
{
	if (c->rows <= 0 || c->cols <= 0)
		return;
	with_type(c->type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, (columns_kernel<T>), grid_for(c->rows * c->cols, THREADS), THREADS, 0, (T *)y,
		       (const T *)x, (const T *)c->times, (const T *)c->magnitude, (const T *)c->bias,
		       c->norm, c->rows, c->cols, c->ld);
	});
}
