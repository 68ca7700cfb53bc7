// SPDX-License-Identifier: Apache-2.0
/*
 * Tiles of rows of type T, bf16 or f16, in shared memory, and products of them on tensor cores. A row of a
 * tile is 16 bytes longer than its contents, so that eight rows that are read at once are in different banks.
 * hardware.cuh says which lane has which elements of a 16 x 8 product; the rows of a warp are m-tiles of 16,
 * its columns n-tiles of 8.
 */
#pragma once

#include "engine/device/cuda/attention/attention.cuh"
#include "engine/device/cuda/rotation.cuh"

template <int HD> constexpr int TILE_LD = HD + 8;

/* Rows [first, first + ROWS) into a tile, zeros from `end` on; done after copy_wait and a barrier. Within a
 * tile 32 bits are enough for a place: rows are shorter than 2^24 elements (attention.cu). */
template <int ROWS, int HD, int THREADS, typename T>
static __device__ __forceinline__ void tile_fetch(T *tile, const T *p, int64_t ld, int first, int end)
{
	constexpr int CHUNKS = HD / 8;
	int rows = end - first, step = (int)ld;

	p += (int64_t)first * ld;
	if constexpr (THREADS % CHUNKS == 0) { /* a thread's pieces are below each other */
		constexpr int BELOW = THREADS / CHUNKS;
		int row = (int)threadIdx.x / CHUNKS, c = (int)threadIdx.x % CHUNKS * 8, at = row * step + c;

		static_assert(ROWS % BELOW == 0, "whole rounds");
		tile += row * TILE_LD<HD> + c;
#pragma unroll
		for (int i = 0; i < ROWS; i += BELOW) {
			bool valid = row + i < rows;

			copy_async(tile + i * TILE_LD<HD>, p + (valid ? at + i * step : 0), valid);
		}
	} else {
#pragma unroll 4
		for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
			int row = i / CHUNKS, c = i % CHUNKS * 8;
			bool valid = row < rows;

			copy_async(tile + row * TILE_LD<HD> + c, p + (valid ? row * step + c : 0), valid);
		}
	}
}

/* a of mma: rows [row, row + 16), columns [k, k + 16) of a tile. */
template <int HD, typename T>
static __device__ __forceinline__ void tile_a(uint32_t (&a)[4], const T *tile, int row, int k)
{
	int lane = (int)threadIdx.x % 32;

	load_matrices(a, tile + (row + lane % 16) * TILE_LD<HD> + k + lane / 16 * 8);
}

/* b of two mma whose columns are the tile's rows [n, n + 16): b[0], b[1] and b[2], b[3]. */
template <int HD, typename T>
static __device__ __forceinline__ void tile_b(uint32_t (&b)[4], const T *tile, int n, int k)
{
	int lane = (int)threadIdx.x % 32;

	load_matrices(b, tile + (n + lane % 8 + lane / 16 * 8) * TILE_LD<HD> + k + lane / 8 % 2 * 8);
}

/* b of two mma over the tile's rows [k, k + 16), whose columns are the tile's [n, n + 16). */
template <int HD, typename T>
static __device__ __forceinline__ void tile_b_rows(uint32_t (&b)[4], const T *tile, int k, int n)
{
	int lane = (int)threadIdx.x % 32;

	load_matrices_transposed(b, tile + (k + lane % 16) * TILE_LD<HD> + n + lane / 16 * 8);
}

/* Of each sum, f of it. */
template <int MT, int NT, typename F>
static __device__ __forceinline__ void tile_map(float (&c)[MT][NT][4], F f)
{
#pragma unroll
	for (int m = 0; m < MT; m++)
#pragma unroll
		for (int n = 0; n < NT; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				c[m][n][i] = f(c[m][n][i]);
}

/* c[16·MT, 8·NT] += columns [k, k + 16) of rows [row, …) of tile a · (rows [0, 8·NT) of tile b)ᵀ. */
template <int HD, int MT, int NT, typename T>
static __device__ __forceinline__ void multiply_columns(float (&c)[MT][NT][4], const T *a, int row,
                                                        const T *b, int k)
{
	uint32_t af[MT][4], bf[4];

#pragma unroll
	for (int m = 0; m < MT; m++)
		tile_a<HD>(af[m], a, row + 16 * m, k);
#pragma unroll
	for (int n = 0; n < NT; n += 2) {
		tile_b<HD>(bf, b, 8 * n, k);
#pragma unroll
		for (int m = 0; m < MT; m++) {
			mma<T>(c[m][n], af[m], bf[0], bf[1]);
			mma<T>(c[m][n + 1], af[m], bf[2], bf[3]);
		}
	}
}

/* c[16·MT, 8·NT] = rows [row, …) of tile a · (rows [0, 8·NT) of tile b)ᵀ. */
template <int HD, int MT, int NT, typename T>
static __device__ __forceinline__ void multiply_transposed(float (&c)[MT][NT][4], const T *a, int row,
                                                           const T *b)
{
	tile_map(c, [](float) { return 0.0f; });
	if constexpr (HD > 128) { /* all at once would lack registers */
#pragma unroll 4
		for (int k = 0; k < HD; k += 16)
			multiply_columns<HD>(c, a, row, b, k);
	} else {
#pragma unroll
		for (int k = 0; k < HD; k += 16)
			multiply_columns<HD>(c, a, row, b, k);
	}
}

/* c[16·MT, HD] += p · tile b, p being [16·MT, 8·NT] in the registers of an earlier product,
 * rounded to T. */
template <int HD, int MT, int NT, typename T>
static __device__ __forceinline__ void multiply_add(float (&c)[MT][HD / 8][4], const float (&p)[MT][NT][4],
                                                    const T *b)
{
#pragma unroll
	for (int k = 0; k < NT; k += 2) {
		uint32_t af[MT][4], bf[4];

#pragma unroll
		for (int m = 0; m < MT; m++) {
			af[m][0] = pack_pair<T>(p[m][k][0], p[m][k][1]);
			af[m][1] = pack_pair<T>(p[m][k][2], p[m][k][3]);
			af[m][2] = pack_pair<T>(p[m][k + 1][0], p[m][k + 1][1]);
			af[m][3] = pack_pair<T>(p[m][k + 1][2], p[m][k + 1][3]);
		}
#pragma unroll
		for (int n = 0; n < HD / 8; n += 2) {
			tile_b_rows<HD>(bf, b, 8 * k, 8 * n);
#pragma unroll
			for (int m = 0; m < MT; m++) {
				mma<T>(c[m][n], af[m], bf[0], bf[1]);
				mma<T>(c[m][n + 1], af[m], bf[2], bf[3]);
			}
		}
	}
}

/* tanh(x) for 2·log2(e)·x, within some 2^-22 of it. */
static __device__ __forceinline__ float tanh_of(float x)
{
	return 1.0f - 2.0f * fast_reciprocal(1.0f + fast_exp2(x));
}

/*
 * Writes a warp's sums as T to the rows [first, …) of a matrix. They go through the warp's own rows [row,
 * …) of a tile that no other warp reads any more, so that whole rows are written. ROTATE: rotated back.
 * Returns the largest magnitude that a lane has written.
 */
template <int HD, int MT, bool ROTATE, typename T>
static __device__ __forceinline__ float tile_put(const attention_shape &a, T *p, int64_t ld, int first,
                                                 int end, T *tile, int row, const float (&c)[MT][HD / 8][4])
{
	constexpr int CHUNKS = HD / 8;
	int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
	float max = 0;

	__syncwarp();
#pragma unroll
	for (int m = 0; m < MT; m++)
#pragma unroll
		for (int n = 0; n < HD / 8; n++)
#pragma unroll
			for (int half = 0; half < 2; half++)
				*(uint32_t *)(tile + (row + 16 * m + g + 8 * half) * TILE_LD<HD> + 8 * n +
				              2 * t) = pack_pair<T>(c[m][n][2 * half], c[m][n][2 * half + 1]);
	__syncwarp();
	for (int i = lane; i < 16 * MT * CHUNKS; i += 32) {
		int r = i / CHUNKS, d = i % CHUNKS * 8;
		float v[8];

		if (first + r >= end)
			continue;
		load(v, tile + (row + r) * TILE_LD<HD> + d);
		if (ROTATE && d < 2 * a.rotary_half)
			rotate_back(v, tile + (row + r) * TILE_LD<HD>, d, a.rotary_half,
			            a.positions[first + r], a.cos_table, a.sin_table);
		store(p + (int64_t)(first + r) * ld + d, v);
		max = fmaxf(max, largest<T>(v));
	}
	return max;
}
