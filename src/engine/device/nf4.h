/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NF4 and the map of its scales, in the numbers of bitsandbytes: the same for the CPU and CUDA, so that they
 * give the same bytes, and those of bitsandbytes' CUDA kernels.
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define NF4_FUNCTION static __host__ __device__ __forceinline__
#else
#define NF4_FUNCTION static inline
#endif

#define NF4_BLOCK  64  /* elements that share a scale */
#define NF4_SCALES 256 /* scales that share a scale of their own */

struct nf4_tables {
	float code[16], middle[15]; /* middle[i] lies between code[i] and the next */
	float map[256];             /* of the scales: signed dynamic 8-bit (Dettmers 2016), ascending */
};

/* The dynamic 8-bit map of bitsandbytes (functional.create_dynamic_map), ascending: of numbers from -1 to 1,
 * or, unsigned and twice as fine, from 0 to 1. */
static inline void nf4_map_fill(float map[256], bool has_sign)
{
	static const float tens[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
	int zero = has_sign ? 127 : 0, at = zero + 1;

	map[zero] = 0;
	map[255] = 1;
	/* Means of neighbours in torch.linspace(0.1, 1, n + 1), to its last bit: counted from the nearer
	 * end. */
	for (int i = 0; i < 7; i++) {
		int n = has_sign ? 1 << i : 2 << i;
		float step = (1.0f - 0.1f) / (float)n;

		for (int k = 0; k < n; k++, at++) {
			float low =
			    k < (n + 1) / 2 ? fmaf(step, (float)k, 0.1f) : fmaf(-step, (float)(n - k), 1.0f);
			float high = k + 1 < (n + 1) / 2 ? fmaf(step, (float)(k + 1), 0.1f)
			                                 : fmaf(-step, (float)(n - k - 1), 1.0f);

			map[at] = (low + high) / 2.0f * tens[i];
			if (has_sign)
				map[254 - at] = -map[at];
		}
	}
}

static inline void nf4_tables_fill(struct nf4_tables *t)
{
	static const float code[16] = {
	    -1.0f,
	    -0.6961928009986877f,
	    -0.5250730514526367f,
	    -0.39491748809814453f,
	    -0.28444138169288635f,
	    -0.18477343022823334f,
	    -0.09105003625154495f,
	    0.0f,
	    0.07958029955625534f,
	    0.16093020141124725f,
	    0.24611230194568634f,
	    0.33791524171829224f,
	    0.44070982933044434f,
	    0.5626170039176941f,
	    0.7229568362236023f,
	    1.0f,
	};
	/* As bitsandbytes writes them: three are the middles, which fp32 cannot tell, rounded its way. */
	static const float middle[15] = {
	    -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
	    -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
	    0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
	    0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f,
	};

	for (int i = 0; i < 16; i++)
		t->code[i] = code[i];
	for (int i = 0; i < 15; i++)
		t->middle[i] = middle[i];
	nf4_map_fill(t->map, true);
}

/* The nearest code, the lower of two; x is within [-1, 1]. A NaN (of a block of zeros) is 0. */
NF4_FUNCTION uint8_t nf4_code(const struct nf4_tables *t, float x)
{
	int code = 0;

	for (int i = 0; i < 15; i++)
		code += x > t->middle[i];
	return (uint8_t)code;
}

/* The nearest of the 256 of `map`, the even one of two. A NaN is 0. */
NF4_FUNCTION uint8_t nf4_scale_code(const float *map, float x)
{
	int low = -1; /* map[low] < x */

	for (int step = 128; step; step >>= 1)
		if (x > map[low + step])
			low += step;
	if (low < 0)
		return 0;
	float middle = (map[low] + map[low + 1]) * 0.5f;

	return (uint8_t)(x > middle || (x == middle && low % 2) ? low + 1 : low);
}
