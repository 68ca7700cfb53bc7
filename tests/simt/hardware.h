// SPDX-License-Identifier: Apache-2.0
/* The functions of src/engine/device/cuda/hardware.cuh in C++ over the emulator, instead of in instructions
 * of the GPU; the compiler reads this file before each kernel. */
#pragma once

#define DEVICE_HARDWARE

#include "engine/device/dtype.h"
#include "engine/device/fp8.h"
#include "simt/simt.h"

#include <math.h>
#include <new>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__      static
#define __launch_bounds__(...)

#define LAUNCH(dev, kernel, grid, block, shared, ...)                                                        \
	do {                                                                                                 \
		auto kernel_ = kernel;                                                                       \
		simt::check_arguments(#kernel, __VA_ARGS__);                                                 \
		simt::launch_on((dev)->stream, #kernel, (grid), (block), (shared), kernel_, __VA_ARGS__);    \
		device_launched((dev), #kernel);                                                             \
	} while (0)
#define DYNAMIC_SHARED(name) unsigned char *name = (unsigned char *)simt::dynamic_shared()

struct bf16 {
	uint16_t bits;
};

struct f16 {
	uint16_t bits;
};

static inline float to_float(float x)
{
	return x;
}

static inline float to_float(bf16 x)
{
	return bf16_to_float(x.bits);
}

static inline float to_float(f16 x)
{
	return f16_to_float(x.bits);
}

template <typename T> inline T from_float(float x);

template <> inline float from_float<float>(float x)
{
	return x;
}

template <> inline bf16 from_float<bf16>(float x)
{
	return bf16{bf16_from_float(x)};
}

template <> inline f16 from_float<f16>(float x)
{
	return f16{f16_from_float(x)};
}

static inline uint32_t float_bits(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof(u));
	return u;
}

static inline float bits_float(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* (-ffp-contract=off) */
static inline float exact_product(float a, float b)
{
	return a * b;
}

template <typename T> static inline uint32_t pack_pair(float low, float high)
{
	return (uint32_t)from_float<T>(low).bits | (uint32_t)from_float<T>(high).bits << 16;
}

template <enum fp8_format FORMAT> inline uint32_t pack_fp8(float a, float b, float c, float d)
{
	return (uint32_t)fp8_from_float(FORMAT, a) | (uint32_t)fp8_from_float(FORMAT, b) << 8 |
	       (uint32_t)fp8_from_float(FORMAT, c) << 16 | (uint32_t)fp8_from_float(FORMAT, d) << 24;
}

static inline void max_into(float *to, float x)
{
	*to = x > *to ? x : *to;
}

static inline void add_shared(uint32_t *to, uint32_t x)
{
	*to += x;
}

static inline void __syncthreads()
{
	simt::block_barrier();
}

static inline void __syncwarp()
{
	simt::exchange(0, 0);
}

static inline int __popc(unsigned x)
{
	return __builtin_popcount(x);
}

template <typename V> static inline V shuffle_xor(V x, int mask)
{
	return simt::exchange(x, (int)(threadIdx.x % 32) ^ mask);
}

template <typename V> static inline V shuffle(V x, int lane)
{
	return simt::exchange(x, lane & 31);
}

static inline uint32_t warp_ballot(bool p)
{
	const unsigned char *lanes = simt::warp_exchange(&p, 1);
	uint32_t votes = 0;

	for (int l = 0; l < 32; l++)
		votes |= (uint32_t)lanes[16 * l] << l;
	return votes;
}

static inline uint32_t warp_match(int x)
{
	const unsigned char *lanes = simt::warp_exchange(&x, sizeof(x));
	uint32_t same = 0;

	for (int l = 0; l < 32; l++)
		same |= (uint32_t)!memcmp(lanes + 16 * l, &x, sizeof(x)) << l;
	return same;
}

static inline bool block_any(bool p)
{
	return simt::block_any(p);
}

static inline float fast_exp2(float x)
{
	float y = exp2f(x);

	return y < 0x1p-126f ? 0 : y; /* ftz */
}

static inline float fast_reciprocal(float x)
{
	return 1.0f / x;
}

static inline void copy_async(void *shared, const void *global, bool valid)
{
	simt::copy_async(shared, global, valid);
}

static inline void copy_commit()
{
	simt::copy_commit();
}

template <int N> static inline void copy_wait()
{
	simt::copy_wait(N);
}

static inline void load_matrices_(uint32_t (&r)[4], const void *row, bool transposed)
{
	const uint16_t *rows[32];
	const unsigned char *lanes;
	int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;

	lanes = simt::warp_exchange(&row, sizeof(row));
	for (int l = 0; l < 32; l++)
		memcpy(&rows[l], lanes + 16 * l, sizeof(rows[l]));
	for (int i = 0; i < 4; i++) {
		const uint16_t *const *matrix = rows + 8 * i;
		uint16_t low = transposed ? matrix[2 * t][g] : matrix[g][2 * t];
		uint16_t high = transposed ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];

		r[i] = (uint32_t)low | (uint32_t)high << 16;
	}
}

static inline void load_matrices(uint32_t (&r)[4], const void *row)
{
	load_matrices_(r, row, false);
}

static inline void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
	load_matrices_(r, row, true);
}

/* The operands in fp32, which each lane converts once for all lanes that multiply with them. */
template <typename T> static inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	const uint32_t b[2] = {b0, b1};
	float left[8], right[4];

	for (int i = 0; i < 4; i++) {
		left[2 * i] = to_float(T{(uint16_t)a[i]});
		left[2 * i + 1] = to_float(T{(uint16_t)(a[i] >> 16)});
	}
	for (int i = 0; i < 2; i++) {
		right[2 * i] = to_float(T{(uint16_t)b[i]});
		right[2 * i + 1] = to_float(T{(uint16_t)(b[i] >> 16)});
	}
	simt::warp_multiply(c, left, right);
}

#include "simt/hopper.h"
