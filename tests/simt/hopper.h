// SPDX-License-Identifier: Apache-2.0
/* The functions of src/engine/device/cuda/hopper.cuh over the emulator (asynchrony.h). */
#pragma once

#define DEVICE_HOPPER

#include "simt/asynchrony.h"

#include <type_traits>

#define __grid_constant__

struct tensor_map {
	simt::tensor tensor;
};

struct device;

static inline bool tensor_map_make(struct device *, tensor_map *map, const void *p, int64_t rows,
                                   int64_t columns, int64_t ld, int box_rows, int box_columns, int swizzle)
{
	map->tensor = {
	    (const unsigned char *)p, (uint64_t)rows, (uint64_t)columns, (uint64_t)ld * 2, (uint32_t)box_rows,
	    (uint32_t)box_columns,    swizzle};
	simt_check(p, "a map of a tensor");
	return simt::tensor_check(map->tensor);
}

static inline uint32_t shared_address(const void *p)
{
	return simt::shared_address(p);
}

static inline void barrier_init(uint64_t *barrier, uint32_t count)
{
	simt::barrier_init(barrier, count);
}

static inline void barrier_init_fence()
{
	simt::barrier_init_fence();
}

static inline void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
	simt::barrier_expect(barrier, bytes);
}

static inline void barrier_arrive(uint64_t *barrier)
{
	simt::barrier_arrive(barrier);
}

static inline void barrier_wait(uint64_t *barrier, uint32_t parity)
{
	simt::barrier_wait(barrier, parity);
}

static inline void group_barrier(int id, int threads)
{
	simt::group_barrier(id, (unsigned)threads);
}

static inline void tensor_prefetch(const tensor_map *)
{
}

static inline void tensor_load(void *to, const tensor_map *map, uint64_t *barrier, int column, int row)
{
	simt::tensor_load(to, map->tensor, barrier, column, row);
}

template <int N> static inline void registers_fewer()
{
	simt::registers_change(N, false);
}

template <int N> static inline void registers_more()
{
	simt::registers_change(N, true);
}

static inline void wgmma_fence()
{
	simt::product_fence();
}

static inline void wgmma_commit()
{
	simt::product_commit();
}

template <int N> static inline void wgmma_wait()
{
	simt::product_wait(N);
}

template <int N> static inline void registers_settle(float (&)[N])
{
	simt::product_touched();
}

template <typename T, int N, bool TRANSPOSE_A, bool TRANSPOSE_B>
static inline void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate)
{
	simt::product_begin(
	    {N, std::is_same<T, f16>::value, TRANSPOSE_A, TRANSPOSE_B, accumulate, false, a, b}, d, NULL);
}

template <typename T, int N, bool TRANSPOSE_B>
static inline void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate)
{
	simt::product_begin({N, std::is_same<T, f16>::value, false, TRANSPOSE_B, accumulate, true, 0, b}, d,
	                    a);
}
