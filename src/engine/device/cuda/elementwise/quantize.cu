// SPDX-License-Identifier: Apache-2.0
/*
 * NF4 storage. Dequantizing reads 0.5 bytes for each weight and writes 2 (bf16). A thread loads words of 4
 * bytes, so that a warp loads 32 consecutive words; four loads are under way at a time, and 16 bytes are
 * written for each word. (If a thread loaded 16 bytes of codes at once, the results of neighbouring threads
 * would be 64 bytes apart, and each store would fill only half of every sector that it writes to.)
 */
#include "engine/device/cuda/kernel.cuh"
#include "engine/device/nf4.h"

#define THREADS 256
#define AHEAD   4 /* words in flight */

/* A half-warp takes a block: 4 elements a lane. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    quantize_kernel(nf4_tables t, uint8_t *codes, float *absmax, const T *x, int64_t n)
{
	int lane = (int)threadIdx.x % 32;
	int64_t first = ((int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * 2 * NF4_BLOCK;

	for (; first < n; first += (int64_t)gridDim.x * (THREADS / 32) * 2 * NF4_BLOCK) {
		int64_t i = first + lane * 4;
		float v[4], max = 0, inverse;

#pragma unroll
		for (int k = 0; k < 4; k++) {
			v[k] = i + k < n ? to_float(x[i + k]) : 0;
			max = fmaxf(max, fabsf(v[k]));
		}
#pragma unroll
		for (int mask = 8; mask; mask >>= 1)
			max = fmaxf(max, shuffle_xor(max, mask));
		if (lane % 16 == 0 && i < n)
			absmax[i / NF4_BLOCK] = max;
		inverse = 1.0f / max;
#pragma unroll
		for (int k = 0; k < 4; k += 2)
			if (i + k < n)
				codes[(i + k) / 2] = (uint8_t)(nf4_code(&t, v[k] * inverse) << 4 |
				                               nf4_code(&t, v[k + 1] * inverse));
	}
}

static __global__ void __launch_bounds__(1024) mean_kernel(float *mean, const float *x, int64_t n)
{
	double sum = 0;

	for (int64_t i = threadIdx.x; i < n; i += 1024)
		sum += x[i];
	sum = block_sum(sum);
	if (threadIdx.x == 0)
		*mean = (float)(sum / (double)n);
}

/* A block of threads takes a block of scales. */
static __global__ void __launch_bounds__(NF4_SCALES)
    scales_kernel(nf4_tables t, uint8_t *absmax8, float *absmax2, const float *absmax, const float *offset,
                  int64_t n)
{
	__shared__ float map[256], part[NF4_SCALES / 32];
	int64_t i = (int64_t)blockIdx.x * NF4_SCALES + threadIdx.x;
	float v = i < n ? absmax[i] - *offset : 0, max = warp_max(fabsf(v));

	map[threadIdx.x] = t.map[threadIdx.x];
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = max;
	__syncthreads();
	max = part[0];
	for (int w = 1; w < NF4_SCALES / 32; w++)
		max = fmaxf(max, part[w]);
	if (i < n)
		absmax8[i] = nf4_scale_code(map, v * (1.0f / max));
	if (threadIdx.x == 0)
		absmax2[blockIdx.x] = max;
}

/* The scales of blocks: fp32 numbers, or 8-bit numbers that have scales of their own. */
struct scales {
	const float *absmax, *absmax2, *offset;
	const uint8_t *absmax8;
};

static __device__ __forceinline__ float scale_of(const scales &s, const float *map, int64_t block)
{
	return s.absmax ? s.absmax[block]
	                : exact_product(map[s.absmax8[block]], s.absmax2[block / NF4_SCALES]) + *s.offset;
}

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS)
    dequantize_kernel(nf4_tables t, T *y, const uint8_t *codes, scales s, int64_t n)
{
	__shared__ float code[16], map[256];
	int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, stride = (int64_t)gridDim.x * THREADS;
	int64_t words = ALIGNED ? n / 8 : 0;

	if (threadIdx.x < 16)
		code[threadIdx.x] = t.code[threadIdx.x];
	map[threadIdx.x] = t.map[threadIdx.x];
	__syncthreads();
	for (int64_t w = first; w < words; w += AHEAD * stride) {
		uint32_t word[AHEAD];
		float scale[AHEAD];

#pragma unroll
		for (int a = 0; a < AHEAD; a++) {
			int64_t at = w + a * stride;

			if (at < words) {
				word[a] = ((const uint32_t *)codes)[at];
				scale[a] = scale_of(s, map, at / (NF4_BLOCK / 8));
			}
		}
#pragma unroll
		for (int a = 0; a < AHEAD; a++) {
			float v[8];

#pragma unroll
			for (int k = 0; k < 8; k++) /* the first in the high half of the first byte */
				v[k] = code[word[a] >> (k / 2 * 8 + (k % 2 ? 0 : 4)) & 15] * scale[a];
			if (w + a * stride < words)
				store(y + (w + a * stride) * 8, v);
		}
	}
	for (int64_t i = words * 8 + first; i < n; i += stride)
		y[i] = from_float<T>(code[codes[i / 2] >> (i % 2 ? 0 : 4) & 15] *
		                     scale_of(s, map, i / NF4_BLOCK));
}

extern "C" void device_nf4_quantize(struct device *dev, const struct device_nf4 *q, const void *src,
                                    enum dtype type)
{
	int64_t blocks = ceil_div(q->n, NF4_BLOCK);
	float *absmax = q->absmax;
	nf4_tables t;

	if (q->n <= 0)
		return;
	if (!absmax)
		absmax = (float *)device_scratch(dev, (size_t)blocks * sizeof(float), "nf4_quantize");
	if (!absmax)
		return;
	nf4_tables_fill(&t);
	with_type(type, [&](auto x) {
		typedef const decltype(x) T;

		LAUNCH(dev, quantize_kernel<decltype(x)>, grid_for(q->n / 4, THREADS), THREADS, 0, t,
		       q->codes, absmax, (T *)src, q->n);
	});
	if (q->absmax)
		return;
	LAUNCH(dev, mean_kernel, 1, 1024, 0, q->offset, absmax, blocks);
	LAUNCH(dev, scales_kernel, (unsigned)ceil_div(blocks, NF4_SCALES), NF4_SCALES, 0, t, q->absmax8,
	       q->absmax2, absmax, q->offset, blocks);
}

extern "C" void device_nf4_dequantize(struct device *dev, void *dst, enum dtype type,
                                      const struct device_nf4 *q)
{
	scales s = {q->absmax, q->absmax2, q->offset, q->absmax8};
	nf4_tables t;

	if (q->n <= 0)
		return;
	nf4_tables_fill(&t);
	with_type(type, [&](auto y) {
		with_flag(aligned16(dst) && ((uintptr_t)q->codes & 3) == 0, [&](auto aligned) {
			LAUNCH(dev, (dequantize_kernel<decltype(y), decltype(aligned)::value>),
			       grid_for(q->n / 8 / AHEAD, THREADS), THREADS, 0, t, (decltype(y) *)dst,
			       q->codes, s, q->n);
		});
	});
}

/* ---- moments: a block of threads takes a block of elements ---- */

struct moment_map {
	float value[256];
};

static __global__ void __launch_bounds__(DEVICE_MOMENT_BLOCK)
    moment_quantize_kernel(moment_map t, uint8_t *codes, float *scale, const float *src, int64_t n)
{
	__shared__ float map[256], above[DEVICE_MOMENT_BLOCK / 32], below[DEVICE_MOMENT_BLOCK / 32];

	map[threadIdx.x] = t.value[threadIdx.x];
	for (int64_t block = blockIdx.x; block * DEVICE_MOMENT_BLOCK < n; block += gridDim.x) {
		int64_t i = block * DEVICE_MOMENT_BLOCK + threadIdx.x;
		float v = i < n ? src[i] : 0, most = warp_max(v), least = warp_max(-v), max;

		__syncthreads();
		if (threadIdx.x % 32 == 0) {
			above[threadIdx.x / 32] = most;
			below[threadIdx.x / 32] = least;
		}
		__syncthreads();
		most = least = 0;
		for (int w = 0; w < DEVICE_MOMENT_BLOCK / 32; w++) {
			most = fmaxf(most, above[w]);
			least = fmaxf(least, below[w]);
		}
		max = most >= least ? most : -least;
		if (i < n) {
			uint8_t code = nf4_scale_code(map, v * (max != 0 ? 1.0f / max : 0));

			/* Without a sign 0 has the first code, and what is above it the next one at least. */
			codes[i] = v > 0 && code == 0 && map[0] == 0 ? 1 : code;
		}
		if (threadIdx.x == 0)
			scale[block] = max;
	}
}

extern "C" void device_moment_quantize(struct device *dev, uint8_t *codes, float *scale, int64_t first,
                                       const float *src, int64_t n, bool has_sign)
{
	int64_t blocks = ceil_div(n, DEVICE_MOMENT_BLOCK);
	moment_map t;

	if (n <= 0)
		return;
	nf4_map_fill(t.value, has_sign);
	LAUNCH(dev, moment_quantize_kernel, grid_for(blocks, 1), DEVICE_MOMENT_BLOCK, 0, t, codes + first,
	       scale + first / DEVICE_MOMENT_BLOCK, src, n);
}

static __global__ void __launch_bounds__(THREADS)
    moment_dequantize_kernel(moment_map t, float *dst, const uint8_t *codes, const float *scale,
                             int64_t first, int64_t n)
{
	__shared__ float map[256];
	int64_t stride = (int64_t)gridDim.x * THREADS;

	map[threadIdx.x] = t.value[threadIdx.x];
	__syncthreads();
	for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += stride)
		dst[i] = map[codes[first + i]] * scale[(first + i) / DEVICE_MOMENT_BLOCK];
}

extern "C" void device_moment_dequantize(struct device *dev, float *dst, const uint8_t *codes,
                                         const float *scale, int64_t first, int64_t n, bool has_sign)
{
	moment_map t;

	if (n <= 0)
		return;
	nf4_map_fill(t.value, has_sign);
	LAUNCH(dev, moment_dequantize_kernel, grid_for(n, THREADS), THREADS, 0, t, dst, codes, scale, first,
	       n);
}
