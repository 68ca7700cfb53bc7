/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two formats of 8 bits (Micikevicius et al. 2022): E4M3, which has no infinity and one NaN (0x7f and
 * 0xff), for what goes forward, and E5M2, IEEE's binary16 cut to 8 bits, for gradients. A number is rounded
 * to the nearest code, of two as near to the even one; beyond the largest number it is the largest, infinity
 * included. A NaN stays one, as 0x7f.
 *
 * Current scaling, as NVIDIA's Transformer Engine does it (its recipe Float8CurrentScaling): the largest
 * magnitude of a tensor becomes the largest number of the format. Every device computes the same codes from
 * the same tensor.
 */
#pragma once

#include <stdint.h>
#include <string.h>

/* FP8_NONE stands for an operand that has another type. */
enum fp8_format { FP8_NONE, FP8_E4M3, FP8_E5M2 };

/* Elements to which a row of turned codes is padded with zeros: GPUs multiply fp8 in multiples of it. */
#define FP8_MULTIPLE 16
/* Bytes to which the scale of an operand is aligned: cuBLASLt refuses products with another. */
#define FP8_SCALE_ALIGNMENT 16

#ifdef __CUDACC__
#define FP8_INLINE static __host__ __device__ inline
#else
#define FP8_INLINE static inline
#endif

FP8_INLINE float fp8_largest(enum fp8_format format)
{
	return format == FP8_E4M3 ? 448.0f : 57344.0f;
}

FP8_INLINE uint8_t fp8_from_float(enum fp8_format format, float f)
{
	/* Bits of fp32 that are dropped, and what of an exponent's bits is the difference of the biases. */
	int drop = format == FP8_E4M3 ? 20 : 21;
	uint32_t bias = format == FP8_E4M3 ? 120u << 3 : 112u << 2;
	uint32_t largest = format == FP8_E4M3 ? 0x43e00000u : 0x47600000u;
	uint32_t normal = format == FP8_E4M3 ? 0x3c800000u : 0x38800000u;
	uint32_t u, sign;

	memcpy(&u, &f, 4);
	sign = u >> 24 & 0x80;
	u &= 0x7fffffff;
	if (u > 0x7f800000)
		return 0x7f;
	if (u >= largest)
		u = largest;
	if (u < normal) {
		/* Of a number whose last bit is that of the subnormals, the low bits are the code. */
		uint32_t offset = format == FP8_E4M3 ? 0x46800000u : 0x43000000u;
		float a, b;

		memcpy(&a, &u, 4);
		memcpy(&b, &offset, 4);
		a += b;
		memcpy(&u, &a, 4);
		return (uint8_t)(sign | (u - offset));
	}
	u += (1u << (drop - 1)) - 1 + (u >> drop & 1);
	return (uint8_t)(sign | ((u >> drop) - bias));
}

FP8_INLINE float fp8_to_float(enum fp8_format format, uint8_t code)
{
	int mantissa = format == FP8_E4M3 ? 3 : 2;
	uint32_t sign = (uint32_t)(code & 0x80) << 24, c = code & 0x7f, u;
	float f;

	if (c == 0x7f || (format == FP8_E5M2 && c >= 0x7c)) {
		u = sign | (c == 0x7c ? 0x7f800000u : 0x7fc00000u);
	} else if (c >> mantissa) {
		u = sign | ((c << (23 - mantissa)) + ((format == FP8_E4M3 ? 120u : 112u) << 23));
	} else { /* subnormal */
		f = (float)c * (format == FP8_E4M3 ? 0x1p-9f : 0x1p-16f);
		memcpy(&u, &f, 4);
		u |= sign;
	}
	memcpy(&f, &u, 4);
	return f;
}

/* By what a tensor is multiplied before it is rounded: 1 where its largest magnitude says nothing. */
FP8_INLINE float fp8_scale(enum fp8_format format, float amax)
{
	float scale;

	if (!(amax > 0) || amax > 3.402823466e38f || amax < 0x1p-126f)
		return 1;
	scale = fp8_largest(format) / amax;
	return scale > 0x1p126f ? 0x1p126f : scale;
}

FP8_INLINE int64_t fp8_padded(int64_t n)
{
	return (n + FP8_MULTIPLE - 1) / FP8_MULTIPLE * FP8_MULTIPLE;
}
