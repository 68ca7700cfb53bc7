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
