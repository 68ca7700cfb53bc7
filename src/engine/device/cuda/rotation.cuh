/* SPDX-License-Identifier: Apache-2.0 */
/* The rotation of rope.cu, backwards, for kernels that have elements of a head in registers anyway. */
#pragma once

#include "engine/device/cuda/kernel.cuh"

/* Elements d … d + N - 1 of a head at this position, rotated back. head: the whole of it, as it was before;
 * the halves of what is rotated, `half` elements each, are rotated with each other, and both are whole packs.
 * The tables have `half` elements for each position. */
template <typename T, int N>
static __device__ __forceinline__ void rotate_back(float (&v)[N], const T *head, int d, int half,
                                                   int64_t position, const float *cos_table,
                                                   const float *sin_table)
{
	bool second = d >= half;
	int64_t turn = position * half + (second ? d - half : d);
	float other[N], c[N], s[N], sign = second ? -1.0f : 1.0f;

	load(other, head + (second ? d - half : d + half));
	load(c, cos_table + turn);
	load(s, sin_table + turn);
#pragma unroll
	for (int k = 0; k < N; k++)
		v[k] = v[k] * c[k] + other[k] * sign * s[k];
}
