// SPDX-License-Identifier: Apache-2.0
/* The likeliest id of a row of logits. */
#pragma once

#include "engine/device/cuda/kernel.cuh"

struct best {
	float value;
	int64_t index;
};

/* The greater one, and of equal ones that with the lower index; a NaN is none. */
static __device__ __forceinline__ best better(best a, best b)
{
	return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

/* The best of n elements, found by the THREADS threads of a block: in each of them. Index 0 where there are
 * only NaNs. Once in a kernel. */
template <int THREADS, typename T> static __device__ best block_best(const T *x, int64_t n)
{
	__shared__ best part[THREADS / 32];
	best b = {-INFINITY, n};

	for (int64_t i = threadIdx.x; i < n; i += THREADS)
		b = better(b, best{to_float(x[i]), i});
#pragma unroll
	for (int mask = 16; mask; mask >>= 1)
		b = better(b, best{shuffle_xor(b.value, mask), shuffle_xor(b.index, mask)});
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = b;
	__syncthreads();
	b = part[0];
	for (int i = 1; i < THREADS / 32; i++)
		b = better(b, part[i]);
	return b.index < n ? b : best{b.value, 0};
}
