// SPDX-License-Identifier: Apache-2.0
/* The second step of every sum over rows: adds the rows of parts[n][cols] to out[cols], in a fixed order. */
#pragma once

#include "engine/device/cuda/kernel.cuh"

template <typename T>
static __global__ void column_finish_kernel(T *out, const float *parts, int64_t n, int64_t cols)
{
	__shared__ float sums[8][32];
	int x = (int)threadIdx.x % 32, slice = (int)threadIdx.x / 32;
	int64_t c = (int64_t)blockIdx.x * 32 + x;
	float s = 0;

	if (c < cols)
#pragma unroll 8
		for (int64_t p = slice; p < n; p += 8)
			s += parts[p * cols + c];
	sums[slice][x] = s;
	__syncthreads();
	if (slice == 0 && c < cols) {
		for (int i = 1; i < 8; i++)
			s += sums[i][x];
		out[c] = from_float<T>(to_float(out[c]) + s);
	}
}

static inline void column_finish(struct device *dev, void *out, enum dtype type, const float *parts,
                                 int64_t n, int64_t cols)
{
	with_type(type, [&](auto t) {
		LAUNCH(dev, column_finish_kernel<decltype(t)>, (unsigned)ceil_div(cols, 32), 256, 0,
		       (decltype(t) *)out, parts, n, cols);
	});
}
