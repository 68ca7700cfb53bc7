/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

static inline size_t dtype_size(enum dtype t)
{
	return t == DTYPE_F32 ? 4 : 2;
}

static inline const char *dtype_name(enum dtype t) /* as config.json's torch_dtype spells it */
{
	return t == DTYPE_F32 ? "float32" : t == DTYPE_BF16 ? "bfloat16" : "float16";
}

/* bfloat16 bits <-> float, round to nearest even; a NaN stays one. */
static inline float bf16_to_float(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float f;

	memcpy(&f, &u, 4);
	return f;
}

static inline uint16_t bf16_from_float(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16) | 0x40;
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* The same for float16; overflow gives infinity. */
static inline float f16_to_float(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff, u;
	float f;

	if (e == 31) {
		u = sign | 0x7f800000 | m << 13;
	} else if (e) {
		u = sign | (e + 112) << 23 | m << 13;
	} else { /* subnormal: m · 2^-24 is exact in fp32 */
		f = (float)m * 0x1p-24f;
		memcpy(&u, &f, 4);
		u |= sign;
	}
	memcpy(&f, &u, 4);
	return f;
}

static inline uint16_t f16_from_float(float f)
{
	uint32_t u, sign;
	float a;

	memcpy(&u, &f, 4);
	sign = u >> 16 & 0x8000;
	u &= 0x7fffffff;
	if (u > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (u >= 0x477ff000) /* rounds to 65536 or more */
		return (uint16_t)(sign | 0x7c00);
	if (u < 0x38800000) { /* below 2^-14: adding 0.5 leaves the subnormal in the low bits, rounded */
		memcpy(&a, &u, 4);
		a += 0.5f;
		memcpy(&u, &a, 4);
		return (uint16_t)(sign | (u - 0x3f000000));
	}
	u += 0xfff + (u >> 13 & 1);
	return (uint16_t)(sign | ((u >> 13) - (112 << 10)));
}
