// SPDX-License-Identifier: Apache-2.0
/*
 * Tiles of 16-bit rows in shared memory as Hopper's kernels of attention use them: the copy engine writes
 * them, and products of warpgroups read them.
 */
#pragma once

#include "engine/device/cuda/attention/attention.cuh"
#include "engine/device/cuda/hopper.cuh"

#define CONSUMERS 2 /* warpgroups */
#define THREADS   (WARPGROUP * (1 + CONSUMERS))
/* A thread has 168 registers at the start: the producer gives back what the consumers take. */
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240

/* A tile of R rows is in boxes of COLUMNS columns, each as wide as its swizzle, one after the other. */
template <int HD> struct tile {
	static constexpr int COLUMNS = HD % 64 == 0 ? 64 : 32, BOXES = HD / COLUMNS, ROW = COLUMNS * 2;
	static constexpr enum swizzle SWIZZLE = COLUMNS == 64 ? SWIZZLE_128 : SWIZZLE_64;

	/* Rows [row, …) of a tile of `rows`, columns [k, k + 16), row by row. */
	static __device__ __forceinline__ uint64_t by_rows(uint32_t at, int rows, int row, int k)
	{
		return matrix_descriptor(
		    at + (uint32_t)(k / COLUMNS * rows * ROW + row * ROW + k % COLUMNS * 2), 16, 8 * ROW,
		    SWIZZLE);
	}

	/* Rows [k, k + 16) of a tile of `rows`, all columns, which are those of the product. */
	static __device__ __forceinline__ uint64_t by_columns(uint32_t at, int rows, int k)
	{
		return matrix_descriptor(at + (uint32_t)(k * ROW), (uint32_t)(rows * ROW), 8 * ROW, SWIZZLE);
	}
};

template <int HD, int ROWS_OF_IT> constexpr int TILE_BYTES = ROWS_OF_IT *HD * 2;

/* Starts the copies of a tile of R rows, whose bytes the barrier expects already. */
template <int HD, int R>
static __device__ __forceinline__ void copy_tile(unsigned char *to, const tensor_map *map, uint64_t *full,
                                                 int column, int row)
{
#pragma unroll
	for (int b = 0; b < tile<HD>::BOXES; b++)
		tensor_load(to + b * R * tile<HD>::ROW, map, full, column + b * tile<HD>::COLUMNS, row);
}

template <int HD, int R>
static __device__ __forceinline__ void load_tile(unsigned char *to, const tensor_map *map, uint64_t *full,
                                                 int column, int row)
{
	barrier_expect(full, TILE_BYTES<HD, R>);
	copy_tile<HD, R>(to, map, full, column, row);
}

/* s = rows [row, row + 64) of tile a, which has ROWS_A · the N rows of tile b, transposed. */
template <typename T, int HD, int ROWS_A, int N>
static __device__ __forceinline__ void multiply_transposed(float (&s)[N / 2], uint32_t a, int row, uint32_t b)
{
#pragma unroll
	for (int k = 0; k < HD; k += 16)
		wgmma<T, N, false, false>(s, tile<HD>::by_rows(a, ROWS_A, row, k),
		                          tile<HD>::by_rows(b, N, 0, k), k > 0);
	wgmma_commit();
}

/* out += p · tile b of R rows. */
template <typename T, int HD, int R>
static __device__ __forceinline__ void multiply_add(float (&out)[HD / 2], const uint32_t (&p)[R / 16][4],
                                                    uint32_t b)
{
#pragma unroll
	for (int k = 0; k < R / 16; k++)
		wgmma<T, HD, true>(out, p[k], tile<HD>::by_columns(b, R, 16 * k), true);
	wgmma_commit();
}

/* The registers of a product are those that a product takes of its operand. */
template <typename T, int N>
static __device__ __forceinline__ void round_operand(uint32_t (&p)[N / 8][4], const float (&s)[N])
{
#pragma unroll
	for (int k = 0; k < N / 8; k++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			p[k][i] = pack_pair<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

/* The rows of a thread: row[half], and the first key that each sees. */
struct thread_rows {
	int row[2], begin[2];
};

template <int N>
static __device__ __forceinline__ void mask_keys(float (&s)[N], const thread_rows &r, int key)
{
#pragma unroll
	for (int n = 0; n < N / 4; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int x = key + 8 * n + i % 2;

			if (x > r.row[i / 2] || x < r.begin[i / 2])
				s[4 * n + i] = -INFINITY;
		}
}

/* Writes the warpgroup's sums to their rows. They go through rows [64 · group, …) of a tile of R rows, which
 * it alone has read, so that whole rows are written. */
template <typename T, int HD, int R>
static __device__ __forceinline__ void put(T *o, int64_t ld, int first, int last, unsigned char *staging,
                                           int group, const float (&out)[HD / 2])
{
	constexpr int ROW = tile<HD>::ROW, PIECES = ROW / 16;
	int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
	auto piece = [&](int row, int c) {
		return staging + c / PIECES * R * ROW + (64 * group + row) * ROW +
		       (c % PIECES ^ row % PIECES) * 16;
	};

	group_barrier(1 + group, WARPGROUP);
#pragma unroll
	for (int n = 0; n < HD / 8; n++)
#pragma unroll
		for (int half = 0; half < 2; half++)
			*(uint32_t *)(piece(16 * warp + g + 8 * half, n) + 4 * t) =
			    pack_pair<T>(out[4 * n + 2 * half], out[4 * n + 2 * half + 1]);
	__syncwarp();
	for (int i = lane; i < 16 * HD / 8; i += 32) {
		int row = 16 * warp + i / (HD / 8), c = i % (HD / 8);

		if (first + row <= last)
			*(pack<T, 8> *)(o + (int64_t)(first + row) * ld + 8 * c) =
			    *(const pack<T, 8> *)piece(row, c);
	}
}
