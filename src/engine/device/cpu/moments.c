/* SPDX-License-Identifier: Apache-2.0 */
/* The moments of an optimizer to 8 bits and back. */
#include "engine/device/cpu/moments.h"
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/vec.h"

/* The element of the largest magnitude, the positive one of two. NaNs are left out. */
VINLINE float block_scale(const float *src, int64_t n)
{
	vf above = {}, below = {};
	float a, b;

	for (int64_t i = 0; i < n; i += VW) {
		vf x = n - i < VW ? v_load_n(src, i, DTYPE_F32, n - i) : v_load(src, i, DTYPE_F32);

		/* Of a NaN and another number, v_max returns its second argument. */
		above = v_max(x, above);
		below = v_max(-x, below);
	}
	a = v_hmax(above);
	b = v_hmax(below);
	return a >= b ? a : -b;
}

void KERNEL(moment_quantize)(struct device *dev, const struct moment_table *table, uint8_t *codes,
                             float *scale, const float *src, int64_t n)
{
#pragma omp parallel for schedule(static) num_threads(dev->threads)
	for (int64_t block = 0; block < n; block += DEVICE_MOMENT_BLOCK) {
		int64_t left = n - block, count = left < DEVICE_MOMENT_BLOCK ? left : DEVICE_MOMENT_BLOCK;
		float max = block_scale(src + block, count), inverse = max != 0 ? 1.0f / max : 0;
		/* Without a sign 0 has the first code, and what is above it the next one at least. */
		uint8_t least = table->map[0] == 0;

		scale[block / DEVICE_MOMENT_BLOCK] = max;
		for (int64_t i = block; i < block + count; i++) {
			uint8_t code = moment_code(table, src[i] * inverse);

			codes[i] = src[i] > 0 && code < least ? least : code;
		}
	}
}

void KERNEL(moment_dequantize)(struct device *dev, const float map[256], float *dst, const uint8_t *codes,
                               const float *scale, int64_t first, int64_t n)
{
	int64_t blocks = (first + n - 1) / DEVICE_MOMENT_BLOCK - first / DEVICE_MOMENT_BLOCK + 1;

#pragma omp parallel for schedule(static) num_threads(dev->threads)
	for (int64_t b = 0; b < blocks; b++) {
		int64_t block = first / DEVICE_MOMENT_BLOCK + b, lo = block * DEVICE_MOMENT_BLOCK,
		        hi = lo + DEVICE_MOMENT_BLOCK;
		float s = scale[block];

		lo = lo < first ? first : lo;
		hi = hi > first + n ? first + n : hi;
		for (int64_t i = lo; i < hi; i++)
			dst[i - first] = map[codes[i]] * s;
	}
}
