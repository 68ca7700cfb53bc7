// SPDX-License-Identifier: Apache-2.0
/*
 * Functions that the kernels share: 16-byte accesses in either dtype, sums over a warp and a block in a fixed
 * order, and launching. What depends on the hardware (bf16, mma, asynchronous copies) is in hardware.cuh.
 */
#pragma once

#include "engine/device/cuda/cuda.h"
#include "engine/device/cuda/hardware.cuh"

#include <errno.h>
#include <math.h>

#define LOG2_E 1.44269504088896341f

/* Elements in 16 bytes. */
template <typename T> constexpr int WIDE = 16 / (int)sizeof(T);

template <typename T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) pack {
	T v[N];
};

template <typename T, int N> __device__ __forceinline__ void load(float (&out)[N], const T *p)
{
	pack<T, N> x = *(const pack<T, N> *)p;

#pragma unroll
	for (int i = 0; i < N; i++)
		out[i] = to_float(x.v[i]);
}

template <typename T, int N> __device__ __forceinline__ void store(T *p, const float (&in)[N])
{
	pack<T, N> x;

#pragma unroll
	for (int i = 0; i < N; i++)
		x.v[i] = from_float<T>(in[i]);
	*(pack<T, N> *)p = x;
}

/* The value as it will be stored. */
template <typename T> __device__ __forceinline__ float rounded(float x)
{
	return to_float(from_float<T>(x));
}

/* a / b of numbers that are not negative; with 64 bits it takes tens of instructions more. */
__device__ __forceinline__ int64_t quotient(int64_t a, int64_t b)
{
	return (a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

template <typename V> __device__ __forceinline__ V warp_sum(V x)
{
#pragma unroll
	for (int mask = 16; mask; mask >>= 1)
		x += shuffle_xor(x, mask);
	return x;
}

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
	for (int mask = 16; mask; mask >>= 1)
		x = fmaxf(x, shuffle_xor(x, mask));
	return x;
}

/* The largest magnitude of values as they will be stored. */
template <typename T, int N> __device__ __forceinline__ float largest(const float (&v)[N])
{
	float max = 0;

#pragma unroll
	for (int k = 0; k < N; k++)
		max = fmaxf(max, fabsf(rounded<T>(v[k])));
	return max;
}

/* The same sum in every thread of a block of whole warps. May be called again at once. */
template <typename V> __device__ __forceinline__ V block_sum(V x)
{
	__shared__ V part[32];
	int warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;

	x = warp_sum(x);
	if (lane == 0)
		part[threadIdx.x / 32] = x;
	__syncthreads();
	x = warp_sum(lane < warps ? part[lane] : (V)0);
	__syncthreads();
	return x;
}

/* The same maximum in every thread of a block of whole warps. Once in a kernel, or behind another barrier. */
__device__ __forceinline__ float block_max(float x)
{
	__shared__ float part[32];
	int warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;

	x = warp_max(x);
	if (lane == 0)
		part[threadIdx.x / 32] = x;
	__syncthreads();
	return warp_max(lane < warps ? part[lane] : -INFINITY);
}

/* *to = the larger of it and of all x of a block of whole warps, which are not negative: one of its threads
 * writes. */
__device__ __forceinline__ void block_max_into(float *to, float x)
{
	x = block_max(x);
	if (threadIdx.x == 0)
		max_into(to, x);
	__syncthreads();
}

/* ---- host side ---- */
static inline bool aligned16(const void *p)
{
	return ((uintptr_t)p & 15) == 0;
}

/* Whether rows of `ld` elements of `size` bytes, from p on, can be read 16 bytes at a time. */
static inline bool wide_rows(const void *p, int64_t ld, size_t size)
{
	return aligned16(p) && (size_t)ld * size % 16 == 0;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

/* The number of blocks for a loop over n pieces of work that strides over its grid. There are so many blocks
 * that the last ones, during which some multiprocessors are idle, take a negligible part of the time. */
static inline unsigned grid_for(int64_t n, int threads)
{
	int64_t blocks = ceil_div(n, threads), most = 1 << 16;

	return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* fp8.cu: *amax = the largest magnitude of a matrix whose rows are ld apart, in a pass over it; amax NULL:
 * nothing. For outputs of kernels that do not find it themselves. */
void fp8_find_largest(struct device *dev, float *amax, const void *x, enum dtype type, int64_t rows,
                      int64_t cols, int64_t ld);

/* Calls f with a value of the type that `type` names: f(float()), f(bf16()) or f(f16()). */
template <typename F> static void with_type(enum dtype type, F f)
{
	if (type == DTYPE_F32)
		f(float());
	else if (type == DTYPE_BF16)
		f(bf16());
	else
		f(f16());
}

/* The same where the type has 16 bits. */
template <typename F> static void with_half(enum dtype type, F f)
{
	if (type == DTYPE_BF16)
		f(bf16());
	else
		f(f16());
}

template <bool B> struct flag {
	static constexpr bool value = B;
};

template <typename F> static void with_flag(bool b, F f)
{
	if (b)
		f(flag<true>());
	else
		f(flag<false>());
}
