// SPDX-License-Identifier: Apache-2.0
/*
 * Sums whose order depends on the shape alone: blocks compute partial sums, which are then added in order.
 * Everything is read once. There are at most REDUCE_PARTS blocks, which an H200 runs at the same time.
 */
#include "engine/device/cuda/columns.cuh"
#include "engine/device/cuda/kernel.cuh"

#define THREADS 256
#define PIECE   8 /* elements that a thread adds up in fp32 before float64 takes over */

template <typename T, bool SQUARES, bool ALIGNED>
static __global__ void sum_parts(double *parts, const T *x, int64_t n)
{
	int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, stride = (int64_t)gridDim.x * THREADS;
	double sum = 0;

	for (int64_t p = first; p < n / PIECE; p += stride) {
		float v[PIECE], piece = 0;

		if (ALIGNED) {
			load(v, x + p * PIECE);
		} else {
			for (int i = 0; i < PIECE; i++)
				v[i] = to_float(x[p * PIECE + i]);
		}
#pragma unroll
		for (int i = 0; i < PIECE; i++)
			piece += SQUARES ? v[i] * v[i] : v[i];
		sum += piece;
	}
	for (int64_t i = n / PIECE * PIECE + first; i < n; i += stride)
		sum += SQUARES ? (double)to_float(x[i]) * to_float(x[i]) : to_float(x[i]);
	sum = block_sum(sum);
	if (threadIdx.x == 0)
		parts[blockIdx.x] = sum;
}

static __global__ void sum_finish(double *sum, const double *parts, int n)
{
	double s = 0;

	for (int i = (int)threadIdx.x; i < n; i += THREADS)
		s += parts[i];
	s = block_sum(s);
	if (threadIdx.x == 0)
		*sum += s;
}

template <typename T, bool SQUARES>
static void sum_all(struct device *dev, const T *x, int64_t n, double *sum)
{
	int64_t blocks = ceil_div(n, THREADS * PIECE * 2);

	blocks = blocks < REDUCE_PARTS ? blocks : REDUCE_PARTS;
	with_flag(aligned16(x), [&](auto aligned) {
		LAUNCH(dev, (sum_parts<T, SQUARES, decltype(aligned)::value>), (unsigned)blocks, THREADS, 0,
		       dev->parts, x, n);
	});
	LAUNCH(dev, sum_finish, 1, THREADS, 0, sum, dev->parts, (int)blocks);
}

extern "C" void device_sum_squares(struct device *dev, const void *x, enum dtype type, int64_t n, double *sum)
{
	if (n <= 0)
		return;
	with_type(type, [&](auto t) { sum_all<decltype(t), true>(dev, (const decltype(t) *)x, n, sum); });
}

extern "C" void device_sum(struct device *dev, const float *x, int64_t n, double *sum)
{
	if (n > 0)
		sum_all<float, false>(dev, x, n, sum);
}

static __global__ void clip_scale_kernel(const double *sum_squares, float max_norm, float loss_scale,
                                         float *scale, float *norm)
{
	double length = sqrt(*sum_squares) / loss_scale;
	double factor = max_norm > 0 ? max_norm / (length + 1e-6) : 1;

	*norm = (float)length;
	*scale = isfinite(length) ? (float)((factor < 1 ? factor : 1) / loss_scale) : (float)NAN;
}

extern "C" void device_clip_scale(struct device *dev, const double *sum_squares, float max_norm,
                                  float loss_scale, float *scale, float *norm)
{
	LAUNCH(dev, clip_scale_kernel, 1, 1, 0, sum_squares, max_norm, loss_scale, scale, norm);
}

/* ---- column sums ---- */
/* Rows [part · grain, …) of 32 columns; 8 threads share a column, and are added in order. */
template <typename T>
static __global__ void column_parts(float *parts, const T *y, int64_t rows, int64_t cols, int64_t ld,
                                    int64_t grain)
{
	__shared__ float sums[8][32];
	int x = (int)threadIdx.x % 32, slice = (int)threadIdx.x / 32;
	int64_t c = (int64_t)blockIdx.x * 32 + x, lo = blockIdx.y * grain;
	int64_t hi = lo + grain < rows ? lo + grain : rows;
	float s = 0;

	if (c < cols)
		for (int64_t r = lo + slice; r < hi; r += 8)
			s += to_float(y[r * ld + c]);
	sums[slice][x] = s;
	__syncthreads();
	if (slice == 0 && c < cols) {
		for (int i = 1; i < 8; i++)
			s += sums[i][x];
		parts[blockIdx.y * cols + c] = s;
	}
}

extern "C" void device_bias_backward(struct device *dev, void *d_bias, enum dtype grad_type, const void *d_y,
                                     int64_t rows, int64_t cols, int64_t ld, enum dtype type)
{
	int64_t grain = ceil_div(rows, COLUMN_PARTS) < 64 ? 64 : ceil_div(rows, COLUMN_PARTS);
	int64_t parts = ceil_div(rows, grain);
	float *sums;

	if (rows <= 0 || cols <= 0)
		return;
	sums = (float *)device_scratch(dev, (size_t)(parts * cols) * sizeof(float), "bias_backward");
	if (!sums)
		return;
	with_type(type, [&](auto t) {
		LAUNCH(dev, column_parts<decltype(t)>, dim3((unsigned)ceil_div(cols, 32), (unsigned)parts),
		       256, 0, sums, (const decltype(t) *)d_y, rows, cols, ld, grain);
	});
	column_finish(dev, d_bias, grad_type, sums, parts, cols);
}
