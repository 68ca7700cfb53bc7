// SPDX-License-Identifier: Apache-2.0
/*
 * LayerNorm, with a block for each row. The gradient of the weights is a second kernel, whose blocks have 32
 * columns of a part of the rows; the parts are added up in order.
 */
#include "engine/device/cuda/columns.cuh"

#define THREADS 256

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(device_norm n, T *y, float *statistics, const T *x, const T *w, const T *b)
{
	int64_t row = blockIdx.x;
	float sum = 0, mean, rstd;

	x += row * n.ld_x;
	y += row * n.ld_y;
	for (int i = (int)threadIdx.x; i < n.cols; i += THREADS)
		sum += to_float(x[i]);
	mean = block_sum(sum) / (float)n.cols;
	sum = 0;
	for (int i = (int)threadIdx.x; i < n.cols; i += THREADS) {
		float d = to_float(x[i]) - mean;

		sum += d * d;
	}
	rstd = 1.0f / sqrtf(block_sum(sum) / (float)n.cols + n.eps);
	for (int i = (int)threadIdx.x; i < n.cols; i += THREADS)
		y[i] = from_float<T>((to_float(x[i]) - mean) * rstd * to_float(w[i]) + to_float(b[i]));
	if (statistics && threadIdx.x == 0) {
		statistics[row] = rstd;
		statistics[n.rows + row] = mean;
	}
}

extern "C" void device_layernorm_forward(struct device *dev, const struct device_norm *n, void *y,
                                         float *statistics, const void *x, const void *w, const void *b)
{
	if (n->rows <= 0 || n->cols <= 0)
		return;
	with_type(n->type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, forward_kernel<T>, (unsigned)n->rows, THREADS, 0, *n, (T *)y, statistics,
		       (const T *)x, (const T *)w, (const T *)b);
	});
}

/* With h = (x - mean)·rstd and g = d_y·w: d_x = rstd·(g - mean(g) - h·mean(g·h)). */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    input_kernel(device_norm n, T *d_x, bool accumulate, const T *d_y, const T *x, const float *statistics,
                 const T *w)
{
	int64_t row = blockIdx.x;
	float rstd = statistics[row], mean = statistics[n.rows + row], sum = 0, dot = 0;

	x += row * n.ld_x;
	d_x += row * n.ld_x;
	d_y += row * n.ld_y;
	for (int i = (int)threadIdx.x; i < n.cols; i += THREADS) {
		float g = to_float(d_y[i]) * to_float(w[i]);

		sum += g;
		dot += g * (to_float(x[i]) - mean) * rstd;
	}
	sum = block_sum(sum) / (float)n.cols;
	dot = block_sum(dot) / (float)n.cols;
	for (int i = (int)threadIdx.x; i < n.cols; i += THREADS) {
		float g = to_float(d_y[i]) * to_float(w[i]), h = (to_float(x[i]) - mean) * rstd;
		float d = (g - sum - h * dot) * rstd;

		d_x[i] = from_float<T>(accumulate ? to_float(d_x[i]) + d : d);
	}
}

/* Part blockIdx.y of the sums of d_y·h over the rows, for 32 columns. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    weight_kernel(device_norm n, float *parts, int64_t grain, const T *d_y, const T *x,
                  const float *statistics)
{
	__shared__ float sums[THREADS / 32][32];
	int lane = (int)threadIdx.x % 32, slice = (int)threadIdx.x / 32;
	int64_t column = (int64_t)blockIdx.x * 32 + lane, lo = blockIdx.y * grain;
	int64_t hi = lo + grain < n.rows ? lo + grain : n.rows;
	float sum = 0;

	if (column < n.cols)
		for (int64_t row = lo + slice; row < hi; row += THREADS / 32)
			sum += to_float(d_y[row * n.ld_y + column]) *
			       (to_float(x[row * n.ld_x + column]) - statistics[n.rows + row]) *
			       statistics[row];
	sums[slice][lane] = sum;
	__syncthreads();
	if (slice == 0 && column < n.cols) {
		for (int i = 1; i < THREADS / 32; i++)
			sum += sums[i][lane];
		parts[blockIdx.y * n.cols + column] = sum;
	}
}

extern "C" void device_layernorm_backward(struct device *dev, const struct device_norm *n, void *d_x,
                                          bool accumulate, float *d_w, float *d_b, const void *d_y,
                                          const void *x, const float *statistics, const void *w)
{
	int64_t grain = ceil_div(n->rows, COLUMN_PARTS), count;
	float *parts;

	if (n->rows <= 0 || n->cols <= 0)
		return;
	/* The weights first, since d_x may be d_y. */
	device_bias_backward(dev, d_b, DTYPE_F32, d_y, n->rows, n->cols, n->ld_y, n->type);
	parts = (float *)device_scratch(dev, (size_t)COLUMN_PARTS * (size_t)n->cols * sizeof(float),
	                                "layernorm_backward");
	if (!parts)
		return;
	count = ceil_div(n->rows, grain);
	with_type(n->type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, weight_kernel<T>, dim3((unsigned)ceil_div(n->cols, 32), (unsigned)count), THREADS,
		       0, *n, parts, grain, (const T *)d_y, (const T *)x, statistics);
	});
	column_finish(dev, d_w, DTYPE_F32, parts, count, n->cols);
	with_type(n->type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, input_kernel<T>, (unsigned)n->rows, THREADS, 0, *n, (T *)d_x, accumulate,
		       (const T *)d_y, (const T *)x, statistics, (const T *)w);
	});
}
