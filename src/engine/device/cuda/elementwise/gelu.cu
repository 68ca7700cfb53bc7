// SPDX-License-Identifier: Apache-2.0
/*
 * GELU by its approximation with tanh, with a gate or without. Since (1 + tanh(z)) / 2 is the sigmoid of 2z,
 * it is x·sigmoid(2z), with z = sqrt(2/pi)·(x + 0.044715·x^3).
 */
#include "engine/device/cuda/kernel.cuh"

#define THREADS    256
#define TWICE_ROOT 1.5957691216057308f /* 2·sqrt(2/pi) */
#define CUBE       0.044715f

static __device__ __forceinline__ float gelu(float x, float *slope)
{
	float s = 1.0f / (1.0f + expf(-TWICE_ROOT * x * (1.0f + CUBE * x * x))), y = x * s;

	*slope = s + y * (1.0f - s) * (TWICE_ROOT * (1.0f + 3.0f * CUBE * x * x));
	return y;
}

template <typename T, int N, bool GATED>
static __global__ void forward_kernel(T *y, const T *x, int64_t tokens, int cols)
{
	int64_t packs = cols / N, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < tokens * packs; p += stride) {
		int64_t t = quotient(p, packs), i = (p - t * packs) * N, at = (GATED ? 2 : 1) * t * cols + i;
		float g[N], u[N], slope;

		load(g, x + at);
		if (GATED)
			load(u, x + at + cols);
#pragma unroll
		for (int k = 0; k < N; k++)
			g[k] = gelu(g[k], &slope) * (GATED ? u[k] : 1.0f);
		store(y + t * cols + i, g);
	}
}

/* d_x may be x: a thread reads its elements before it writes them. */
template <typename T, int N, bool GATED>
static __global__ void backward_kernel(T *d_x, T *y, const T *d_y, const T *x, int64_t tokens, int cols)
{
	int64_t packs = cols / N, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < tokens * packs; p += stride) {
		int64_t t = quotient(p, packs), i = (p - t * packs) * N, at = (GATED ? 2 : 1) * t * cols + i;
		float g[N], u[N], dy[N], du[N];

		load(g, x + at);
		if (GATED)
			load(u, x + at + cols);
		load(dy, d_y + t * cols + i);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float slope, v = gelu(g[k], &slope), up = GATED ? u[k] : 1.0f;

			du[k] = dy[k] * v;
			dy[k] *= up * slope;
			g[k] = v * up;
		}
		store(d_x + at, dy);
		if (GATED)
			store(d_x + at + cols, du);
		if (y)
			store(y + t * cols + i, g);
	}
}

extern "C" void device_gelu_forward(struct device *dev, void *y, const void *x, int64_t tokens, int cols,
                                    bool gated, enum dtype type)
{
	if (tokens <= 0 || cols <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;

		with_flag(gated, [&](auto g) {
			constexpr bool G = decltype(g)::value;

			if (wide_rows(y, cols, sizeof(T)) && aligned16(x))
				LAUNCH(dev, (forward_kernel<T, N, G>), grid_for(tokens * cols / N, THREADS),
				       THREADS, 0, (T *)y, (const T *)x, tokens, cols);
			else
				LAUNCH(dev, (forward_kernel<T, 1, G>), grid_for(tokens * cols, THREADS),
				       THREADS, 0, (T *)y, (const T *)x, tokens, cols);
		});
	});
}

extern "C" void device_gelu_backward(struct device *dev, void *d_x, void *y, const void *d_y, const void *x,
                                     int64_t tokens, int cols, bool gated, enum dtype type)
{
	if (tokens <= 0 || cols <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;

		with_flag(gated, [&](auto g) {
			constexpr bool G = decltype(g)::value;

			if (wide_rows(d_y, cols, sizeof(T)) && aligned16(y) && aligned16(x) && aligned16(d_x))
				LAUNCH(dev, (backward_kernel<T, N, G>), grid_for(tokens * cols / N, THREADS),
				       THREADS, 0, (T *)d_x, (T *)y, (const T *)d_y, (const T *)x, tokens,
				       cols);
			else
				LAUNCH(dev, (backward_kernel<T, 1, G>), grid_for(tokens * cols, THREADS),
				       THREADS, 0, (T *)d_x, (T *)y, (const T *)d_y, (const T *)x, tokens,
				       cols);
		});
	});
}
