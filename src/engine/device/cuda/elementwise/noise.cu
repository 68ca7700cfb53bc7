// SPDX-License-Identifier: Apache-2.0
/* Noise that is added to embeddings: an element is read and written once. */
#include "engine/device/cuda/kernel.cuh"
#include "engine/device/rounding.h"

#define THREADS 256

template <typename T>
static __global__ void noise_kernel(T *y, int64_t n, int64_t first, struct rounding_key key, float step)
{
	int64_t stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
		uint64_t index = (uint64_t)(first + i);
		uint32_t bits = (uint32_t)index;

		ROUNDING_BITS(bits, (uint32_t)(index >> 32), key);
		y[i] = from_float<T>(to_float(y[i]) + (float)NOISE_STEPS((int)bits) * step);
	}
}

extern "C" void device_add_noise(struct device *dev, const struct device_noise *d, void *y, enum dtype type,
                                 int64_t n)
{
	if (n <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, noise_kernel<T>, grid_for(n, THREADS), THREADS, 0, (T *)y, n, d->first,
		       noise_key(d->seed, d->number), noise_step(d->magnitude));
	});
}
