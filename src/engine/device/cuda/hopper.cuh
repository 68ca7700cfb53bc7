// SPDX-License-Identifier: Apache-2.0
/*
 * Functions for the instructions of Hopper (sm_90a): barriers in shared memory (mbarrier), the copy engine
 * (TMA) and products of warpgroups (wgmma). To compile the kernels for something other than a GPU
 * (tests/simt), define DEVICE_HOPPER and functions of the same names.
 */
#pragma once

#include "engine/device/cuda/kernel.cuh"

/*
 * How 16-byte pieces are placed in rows of 128, 64 or 32 bytes, so that eight rows that are read at once are
 * in different banks: bits 4… of an address are exclusively or-ed with its bits 7…. The copy engine writes
 * so, and a product reads so. The values are those of a matrix descriptor.
 */
enum swizzle { SWIZZLE_NONE, SWIZZLE_128, SWIZZLE_64, SWIZZLE_32 };

#define WARPGROUP 128 /* threads */

#ifndef DEVICE_HOPPER
#define DEVICE_HOPPER

#include <cuda.h>
#include <type_traits>

/* A matrix of 16-bit elements in global memory and the boxes of it that are copied, as the copy engine reads
 * it: an argument of a kernel (const __grid_constant__). */
typedef CUtensorMap tensor_map;

/* Describes rows of `ld` elements. False: the driver does not make such a map, or is older than Hopper. The
 * driver's function is found at run time, so that nothing is linked. */
static inline bool tensor_map_make(struct device *dev, tensor_map *map, const void *p, int64_t rows,
                                   int64_t columns, int64_t ld, int box_rows, int box_columns,
                                   enum swizzle swizzle)
{
	static const CUtensorMapSwizzle swizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
	                                              CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_32B};
	cuuint64_t sizes[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, stride = (cuuint64_t)ld * 2;
	cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows}, steps[2] = {1, 1};
	enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;

	if (!dev->tensor_map_encode) {
#if CUDART_VERSION >= 12050
		if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &dev->tensor_map_encode, 12000,
		                                     cudaEnableDefault, &found))
#else
		if (cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &dev->tensor_map_encode,
		                            cudaEnableDefault, &found))
#endif
			(void)cudaGetLastError();
		if (found != cudaDriverEntryPointSuccess)
			dev->tensor_map_encode = NULL;
		if (!dev->tensor_map_encode)
			return false;
	}
	/* The elements are only copied: their type makes no difference. */
	return ((decltype(&cuTensorMapEncodeTiled))dev->tensor_map_encode)(
	           map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)p, sizes, &stride, box, steps,
	           CU_TENSOR_MAP_INTERLEAVE_NONE, swizzles[swizzle], CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
	           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* ---- barriers: 8 bytes of shared memory ---- */
/* A phase ends when `count` threads have arrived and all bytes that they expect have been copied. The first
 * phase is 0. */
__device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
	             : "memory");
}

/* Between the initialization and the barrier of the block: makes it visible to the copy engine. */
__device__ __forceinline__ void barrier_init_fence()
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Arrives, and lets the phase wait for so many bytes more. */
__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
	             "r"(bytes)
	             : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Waits until the phase of this parity (of its number) has ended; the phase before the first one has. */
__device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity)
{
	uint32_t done;

	do {
		asm volatile("{\n"
		             ".reg .pred p;\n"
		             "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
		             "selp.u32 %0, 1, 0, p;\n"
		             "}"
		             : "=r"(done)
		             : "r"(shared_address(barrier)), "r"(parity)
		             : "memory");
	} while (!done);
}

/* A barrier of `threads` threads of the block, in whole warps; id: 1 to 15. */
__device__ __forceinline__ void group_barrier(int id, int threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- the copy engine ---- */
/* Has the map itself in a cache before the first copy. */
__device__ __forceinline__ void tensor_prefetch(const tensor_map *map)
{
	asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Copies the box whose first element is at (row, column), zeros where the matrix has none; its bytes count at
 * the barrier. One thread calls it. `to` is aligned to 8 rows of the swizzle. */
__device__ __forceinline__ void tensor_load(void *to, const tensor_map *map, uint64_t *barrier, int column,
                                            int row)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
	             "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
	             "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
	             : "memory");
}

/* ---- registers of a warpgroup: those that one gives back, another takes ---- */
template <int N> __device__ __forceinline__ void registers_fewer()
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void registers_more()
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- products ---- */
/* Before the first product, and after registers of a product were written. */
__device__ __forceinline__ void wgmma_fence()
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most N groups are still under way. */
template <int N> __device__ __forceinline__ void wgmma_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* After a wait, and before a fence: the compiler does not move accesses to these registers over it. */
template <int N> __device__ __forceinline__ void registers_settle(float (&r)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(r[i])::"memory");
}

/* The registers of the sums, as operands and as their list in the instruction. */
#define SUMS_8(d, i)                                                                                         \
	"+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),          \
	    "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_32(d) SUMS_8(d, 0), SUMS_8(d, 8), SUMS_8(d, 16), SUMS_8(d, 24)
#define SUMS_48(d) SUMS_32(d), SUMS_8(d, 32), SUMS_8(d, 40)
#define SUMS_64(d) SUMS_48(d), SUMS_8(d, 48), SUMS_8(d, 56)
#define LIST_32                                                                                              \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "         \
	"%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST_48                                                                                              \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "         \
	"%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "         \
	"%38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define LIST_64                                                                                              \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "         \
	"%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "         \
	"%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "         \
	"%56, %57, %58, %59, %60, %61, %62, %63"

#define WGMMA_BOTH(N, SUMS, LIST, TYPE, A, B, P, TA, TB)                                                     \
	asm volatile("{\n"                                                                                   \
	             ".reg .pred p;\n"                                                                       \
	             "setp.ne.b32 p, " P ", 0;\n"                                                            \
	             "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" LIST "}, " A ", " B \
	             ", p, 1, 1, " TA ", " TB ";\n"                                                          \
	             "}"                                                                                     \
	             : SUMS                                                                                  \
	             : "l"(a), "l"(b), "r"((int)accumulate), "n"(TRANSPOSE_A), "n"(TRANSPOSE_B))
#define WGMMA_REGISTERS(N, SUMS, LIST, TYPE, A, B, P, TB)                                                    \
	asm volatile("{\n"                                                                                   \
	             ".reg .pred p;\n"                                                                       \
	             "setp.ne.b32 p, " P ", 0;\n"                                                            \
	             "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" LIST "}, {" A       \
	             "}, " B ", p, 1, 1, " TB ";\n"                                                          \
	             "}"                                                                                     \
	             : SUMS                                                                                  \
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate),             \
	               "n"(TRANSPOSE_B))

/*
 * d[64, N] = a[64, 16] · b[16, N], or with `accumulate` added to d; a and b are of type T in shared memory,
 * and fp32 is summed. Both lie row by row of 64 or N (k by k: transposed). With w = warp, g = lane / 4,
 * t = lane % 4: d[4j + i] of a thread is row 16·w + g + 8·(i / 2), column 8j + 2t + i % 2.
 */
template <typename T, int N, bool TRANSPOSE_A, bool TRANSPOSE_B>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate)
{
	static_assert(N == 64 || N == 96 || N == 128, "what there is");
	if constexpr (std::is_same<T, f16>::value) {
		if constexpr (N == 64)
			WGMMA_BOTH("64", SUMS_32(d), LIST_32, "f16", "%32", "%33", "%34", "%35", "%36");
		else if constexpr (N == 96)
			WGMMA_BOTH("96", SUMS_48(d), LIST_48, "f16", "%48", "%49", "%50", "%51", "%52");
		else if constexpr (N == 128)
			WGMMA_BOTH("128", SUMS_64(d), LIST_64, "f16", "%64", "%65", "%66", "%67", "%68");
	} else {
		if constexpr (N == 64)
			WGMMA_BOTH("64", SUMS_32(d), LIST_32, "bf16", "%32", "%33", "%34", "%35", "%36");
		else if constexpr (N == 96)
			WGMMA_BOTH("96", SUMS_48(d), LIST_48, "bf16", "%48", "%49", "%50", "%51", "%52");
		else if constexpr (N == 128)
			WGMMA_BOTH("128", SUMS_64(d), LIST_64, "bf16", "%64", "%65", "%66", "%67", "%68");
	}
}

/* The same with a in registers, which hold pairs of rows of a as those of mma do in hardware.cuh. */
template <typename T, int N, bool TRANSPOSE_B>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate)
{
	static_assert(N == 64 || N == 96 || N == 128, "what there is");
	if constexpr (std::is_same<T, f16>::value) {
		if constexpr (N == 64)
			WGMMA_REGISTERS("64", SUMS_32(d), LIST_32, "f16", "%32, %33, %34, %35", "%36", "%37",
			                "%38");
		else if constexpr (N == 96)
			WGMMA_REGISTERS("96", SUMS_48(d), LIST_48, "f16", "%48, %49, %50, %51", "%52", "%53",
			                "%54");
		else if constexpr (N == 128)
			WGMMA_REGISTERS("128", SUMS_64(d), LIST_64, "f16", "%64, %65, %66, %67", "%68", "%69",
			                "%70");
	} else {
		if constexpr (N == 64)
			WGMMA_REGISTERS("64", SUMS_32(d), LIST_32, "bf16", "%32, %33, %34, %35", "%36", "%37",
			                "%38");
		else if constexpr (N == 96)
			WGMMA_REGISTERS("96", SUMS_48(d), LIST_48, "bf16", "%48, %49, %50, %51", "%52", "%53",
			                "%54");
		else if constexpr (N == 128)
			WGMMA_REGISTERS("128", SUMS_64(d), LIST_64, "bf16", "%64, %65, %66, %67", "%68",
			                "%69", "%70");
	}
}

#endif

/*
 * Describes an operand of wgmma at an address in shared memory. Of an operand that lies row by row, eight
 * rows of the swizzle's width follow each other, and `stride` bytes later the next eight; `leading` matters
 * without a swizzle alone. Of one that lies k by k, eight k's of the swizzle's width follow each other,
 * `stride` bytes later the next eight, and `leading` bytes later those of the next columns.
 */
static __device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t leading,
                                                             uint32_t stride, enum swizzle swizzle)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)((leading & 0x3ffff) >> 4) << 16 |
	       (uint64_t)((stride & 0x3ffff) >> 4) << 32 | (uint64_t)swizzle << 62;
}
