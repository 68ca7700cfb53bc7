/* SPDX-License-Identifier: Apache-2.0 */
/* Noise that is added to embeddings. */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"
#include "engine/device/rounding.h"

VINLINE void noise_vector(const struct device_noise *d, struct rounding_key key, float step, void *y,
                          enum dtype type, int64_t i, int64_t n)
{
	uint64_t index = (uint64_t)(d->first + i);
	vu low = (vu){} + (uint32_t)index, bits = low + (vu)v_lanes();
	/* A comparison gives -1 where it is true, so that subtracting it adds the carry. */
	vu high = (vu){} + (uint32_t)(index >> 32) - (vu)(bits < low);

	ROUNDING_BITS(bits, high, key);
	store_part(y, i, type,
	           load_part(y, i, type, n) + __builtin_convertvector(NOISE_STEPS((vi)bits), vf) * step, n);
}

VINLINE void noise_part(const struct device_noise *d, void *y, enum dtype type, int64_t lo, int64_t hi)
{
	struct rounding_key key = noise_key(d->seed, d->number);
	float step = noise_step(d->magnitude);
	int64_t i = lo;

	for (; i + VW <= hi; i += VW)
		noise_vector(d, key, step, y, type, i, VW);
	if (i < hi)
		noise_vector(d, key, step, y, type, i, hi - i);
}

void KERNEL(add_noise)(struct device *dev, const struct device_noise *d, void *y, enum dtype type, int64_t n)
{
#pragma omp parallel num_threads(dev->threads) if (n > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(n, CACHE_LINE, &lo, &hi);
		WITH_TYPE(type, noise_part(d, y, TYPE, lo, hi));
	}
}
