// SPDX-License-Identifier: Apache-2.0
/* Functions for the instructions that C++ cannot express. To compile the kernels for something other than a
 * GPU (tests/simt), define DEVICE_HARDWARE and functions of the same names. */
#pragma once

#ifndef DEVICE_HARDWARE
#define DEVICE_HARDWARE

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>
#include <type_traits>

#include "engine/device/fp8.h"

/* Queues a kernel on dev's stream. A block may use 48 KiB of shared memory without asking, which is the sum
 * of what the kernel declares (8 KiB at most) and `shared`; for more, the kernel's limit is raised first. */
#define LAUNCH(dev, kernel, grid, block, shared, ...)                                                        \
	do {                                                                                                 \
		auto kernel_ = kernel;                                                                       \
		if ((shared) > 40 * 1024)                                                                    \
			cudaFuncSetAttribute((const void *)kernel_,                                          \
			                     cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(shared));    \
		kernel_<<<(grid), (block), (shared), (dev)->stream>>>(__VA_ARGS__);                          \
		device_launched((dev), #kernel);                                                             \
	} while (0)
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

struct bf16 {
	uint16_t bits;
};

struct f16 {
	uint16_t bits;
};

__device__ __forceinline__ float to_float(float x)
{
	return x;
}

__device__ __forceinline__ float to_float(bf16 x)
{
	return __uint_as_float((uint32_t)x.bits << 16);
}

__device__ __forceinline__ float to_float(f16 x)
{
	return __half2float(__ushort_as_half(x.bits));
}

template <typename T> __device__ __forceinline__ T from_float(float x);

template <> __device__ __forceinline__ float from_float<float>(float x)
{
	return x;
}

template <> __device__ __forceinline__ bf16 from_float<bf16>(float x)
{
	return bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}

template <> __device__ __forceinline__ f16 from_float<f16>(float x)
{
	return f16{__half_as_ushort(__float2half_rn(x))};
}

__device__ __forceinline__ uint32_t float_bits(float x)
{
	return __float_as_uint(x);
}

__device__ __forceinline__ float bits_float(uint32_t bits)
{
	return __uint_as_float(bits);
}

/* A product that is not fused with an addition, so that it has the same bits on every device. */
__device__ __forceinline__ float exact_product(float a, float b)
{
	return __fmul_rn(a, b);
}

/* Two numbers of type T, bf16 or f16, in a register, the first in the low half. */
template <typename T> __device__ __forceinline__ uint32_t pack_pair(float low, float high)
{
	if constexpr (std::is_same<T, f16>::value) {
		__half2 x = __floats2half2_rn(low, high);

		return *(uint32_t *)&x;
	} else {
		__nv_bfloat162 x = __floats2bfloat162_rn(low, high);

		return *(uint32_t *)&x;
	}
}

/* Four codes of fp8 in a register, the first in the low byte; what is too large is the largest. Older GPUs
 * get the same codes without instructions for it. */
template <enum fp8_format FORMAT>
__device__ __forceinline__ uint32_t pack_fp8(float a, float b, float c, float d)
{
	constexpr __nv_fp8_interpretation_t KIND = FORMAT == FP8_E4M3 ? __NV_E4M3 : __NV_E5M2;

	return (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, KIND) |
	       (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, KIND) << 16;
}

/* *to = max(*to, x) of numbers that are not negative, by any number of threads. */
__device__ __forceinline__ void max_into(float *to, float x)
{
	atomicMax((unsigned int *)to, __float_as_uint(x));
}

/* *to += x in shared memory, by any number of threads. */
__device__ __forceinline__ void add_shared(uint32_t *to, uint32_t x)
{
	atomicAdd(to, x);
}

template <typename V> __device__ __forceinline__ V shuffle_xor(V x, int mask)
{
	return __shfl_xor_sync(0xffffffffu, x, mask);
}

template <typename V> __device__ __forceinline__ V shuffle(V x, int lane)
{
	return __shfl_sync(0xffffffffu, x, lane);
}

__device__ __forceinline__ uint32_t warp_ballot(bool p)
{
	return __ballot_sync(0xffffffffu, p);
}

/* The lanes that have the same x as this one. */
__device__ __forceinline__ uint32_t warp_match(int x)
{
	return __match_any_sync(0xffffffffu, x);
}

__device__ __forceinline__ bool block_any(bool p)
{
	return __syncthreads_or(p);
}

__device__ __forceinline__ float fast_exp2(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* 1 / x, one unit in the last place off at most; of an infinite x 0. */
__device__ __forceinline__ float fast_reciprocal(float x)
{
	float y;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies 16 bytes from global to shared memory asynchronously; writes zeros where `valid` is false. */
__device__ __forceinline__ void copy_async(void *shared, const void *global, bool valid)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
	             "l"(global), "r"(valid ? 16 : 0)
	             : "memory");
}

__device__ __forceinline__ void copy_commit()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's groups are still under way. */
template <int N> __device__ __forceinline__ void copy_wait()
{
	asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/*
 * Four 8x8 matrices of 16-bit elements from shared memory: lane l names row l % 8 of matrix l / 8 (16 bytes);
 * it gets elements 2·(l % 4) and the next of row l / 4 of each matrix, or of its transpose.
 */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(shared_address(row))
	             : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(shared_address(row))
	             : "memory");
}

/*
 * c[16, 8] += a[16, 16] · b[16, 8], of type T, bf16 or f16, with fp32 sums. With g = lane / 4, t = lane % 4:
 * c holds (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1); a holds pairs at (g, 2t), (g+8, 2t), (g, 2t+8), (g+8,
 * 2t+8); b holds pairs of rows (2t, 2t+1) and (2t+8, 2t+9) of column g.
 */
#define MMA(type)                                                                                            \
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                  \
	             ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                  \
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                        \
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	if constexpr (std::is_same<T, f16>::value)
		MMA("f16");
	else
		MMA("bf16");
}
#undef MMA

#endif
