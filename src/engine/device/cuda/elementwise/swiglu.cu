// SPDX-License-Identifier: Apache-2.0
/*
 * SwiGLU: y = silu(gate)·up. silu' = s·(1 + g·(1 - s)); d_gate = d_y·up·silu', d_up = d_y·silu. Three
 * elements move for each of y forward, five backward, six with y once more: none is read twice. Where
 * products in fp8 follow, the largest magnitudes are found on the way (fp8.cu).
 */
#include "engine/device/cuda/kernel.cuh"

#define THREADS 256
/* Of a thread in the backward pass, and where a block writes a largest magnitude. The backward pass took 8.0
 * ms of a step of Llama-3.2-1B on an H200 with one, and 6.7 in fp8, where it had four. */
#define PACKS 4

/* With the functions of libm it is the arithmetic, and not the memory, that the kernels wait for. */
static __device__ __forceinline__ float sigmoid(float x)
{
	return fast_reciprocal(1.0f + fast_exp2(-LOG2_E * x));
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(T *y, const T *gate_up, int64_t tokens, int cols, float *amax)
{
	int64_t packs = cols / N, stride = (int64_t)gridDim.x * blockDim.x;
	float max = 0;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < tokens * packs; p += stride) {
		int64_t t = quotient(p, packs), i = (p - t * packs) * N;
		float g[N], u[N];

		load(g, gate_up + 2 * t * cols + i);
		load(u, gate_up + 2 * t * cols + cols + i);
#pragma unroll
		for (int k = 0; k < N; k++)
			g[k] = g[k] * sigmoid(g[k]) * u[k];
		store(y + t * cols + i, g);
		if (amax)
			max = fmaxf(max, largest<T>(g));
	}
	if (amax)
		block_max_into(amax, max);
}

/* d_gate_up may be gate_up: a thread reads its elements before it writes them. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    backward_kernel(T *d_gate_up, T *y, const T *d_y, const T *gate_up, int64_t tokens, int cols, float *amax)
{
	int64_t packs = cols / N, stride = (int64_t)gridDim.x * blockDim.x;
	float max = 0, d_max = 0;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < tokens * packs; p += stride) {
		int64_t t = quotient(p, packs), i = (p - t * packs) * N, at = 2 * t * cols + i;
		float g[N], u[N], dy[N], dg[N], du[N];

		load(g, gate_up + at);
		load(u, gate_up + at + cols);
		load(dy, d_y + t * cols + i);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float s = sigmoid(g[k]), silu = g[k] * s;

			du[k] = dy[k] * silu;
			dg[k] = dy[k] * u[k] * (s + silu * (1.0f - s));
			g[k] = silu * u[k];
		}
		store(d_gate_up + at, dg);
		store(d_gate_up + at + cols, du);
		if (y)
			store(y + t * cols + i, g);
		if (amax) {
			max = fmaxf(max, largest<T>(g));
			d_max = fmaxf(d_max, fmaxf(largest<T>(dg), largest<T>(du)));
		}
	}
	if (amax) {
		if (y)
			block_max_into(&amax[0], max);
		block_max_into(&amax[1], d_max);
	}
}

static unsigned grid(int64_t packs, bool several)
{
	return grid_for(several ? ceil_div(packs, PACKS) : packs, THREADS);
}

extern "C" void device_swiglu_forward(struct device *dev, void *y, const void *gate_up, int64_t tokens,
                                      int cols, enum dtype type, float *amax)
{
	if (amax)
		device_zero(dev, amax, sizeof(float));
	if (tokens <= 0 || cols <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;

		if (wide_rows(y, cols, sizeof(T)) && aligned16(gate_up))
			LAUNCH(dev, (forward_kernel<T, N>), grid(tokens * cols / N, amax), THREADS, 0, (T *)y,
			       (const T *)gate_up, tokens, cols, amax);
		else
			LAUNCH(dev, (forward_kernel<T, 1>), grid(tokens * cols, amax), THREADS, 0, (T *)y,
			       (const T *)gate_up, tokens, cols, amax);
	});
}

extern "C" void device_swiglu_backward(struct device *dev, void *d_gate_up, void *y, const void *d_y,
                                       const void *gate_up, int64_t tokens, int cols, enum dtype type,
                                       float *amax)
{
	if (amax)
		device_zero(dev, amax, 2 * sizeof(float));
	if (tokens <= 0 || cols <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;

		if (wide_rows(d_y, cols, sizeof(T)) && aligned16(y) && aligned16(gate_up) &&
		    aligned16(d_gate_up))
			LAUNCH(dev, (backward_kernel<T, N>), grid(tokens * cols / N, true), THREADS, 0,
			       (T *)d_gate_up, (T *)y, (const T *)d_y, (const T *)gate_up, tokens, cols,
			       amax);
		else
			LAUNCH(dev, (backward_kernel<T, 1>), grid(tokens * cols, true), THREADS, 0,
			       (T *)d_gate_up, (T *)y, (const T *)d_y, (const T *)gate_up, tokens, cols,
			       amax);
	});
}
