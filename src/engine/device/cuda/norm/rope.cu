// SPDX-License-Identifier: Apache-2.0
/*
 * Rotary position embedding: (a, b) -> (a·cos - b·sin, b·cos + a·sin), b half a head behind a. In place: each
 * element is read and written once, the tables come from the cache (all heads of a token share a row).
 *
 * In the forward pass one launch rotates q and k of a block: cuBLASLt has no epilogue that could, and kernels
 * of attention read k once for each tile of queries. For Llama-3.2-1B and 4 x 4096 tokens this moves 168 MB
 * in each block, 2.7 GB a step. In the backward pass the portable kernels of attention in bf16 rotate
 * gradients back before they write them (attention/backward.cu), Hopper's too where whole heads are rotated,
 * and where q and k are normed, their norms do (norm.cu); this kernel is left for what cuDNN has written,
 * which moves as much again.
 */
#include "engine/device/cuda/kernel.cuh"

#define THREADS 256

template <typename T, int N>
static __global__ void rope_kernel(T *x, int64_t ld, int heads, int head_dim, int half,
                                   const int32_t *positions, const float *cos_table, const float *sin_table,
                                   int64_t tokens, float sign)
{
	int per_head = half / N, per_token = heads * per_head;
	int64_t total = tokens * per_token, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < total; p += stride) {
		int64_t t = quotient(p, per_token);
		int rest = (int)(p - t * per_token), head = rest / per_head, i = (rest - head * per_head) * N;
		int64_t row = (int64_t)positions[t] * half + i;
		T *pa = x + t * ld + (int64_t)head * head_dim + i, *pb = pa + half;
		float a[N], b[N], c[N], s[N], oa[N], ob[N];

		load(a, pa);
		load(b, pb);
		load(c, cos_table + row);
		load(s, sin_table + row);
#pragma unroll
		for (int k = 0; k < N; k++) {
			oa[k] = a[k] * c[k] - b[k] * sign * s[k];
			ob[k] = b[k] * c[k] + a[k] * sign * s[k];
		}
		store(pa, oa);
		store(pb, ob);
	}
}

extern "C" void device_rope(struct device *dev, void *x, int64_t ld, int heads, int head_dim, int rotary_dim,
                            const int32_t *positions, const float *cos_table, const float *sin_table,
                            int64_t tokens, bool inverse, enum dtype type)
{
	int half = rotary_dim / 2;
	float sign = inverse ? -1.0f : 1.0f;

	if (tokens <= 0 || heads <= 0 || half <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;

		if (wide_rows(x, ld, sizeof(T)) && half % N == 0 && head_dim % N == 0 &&
		    aligned16(cos_table) && aligned16(sin_table))
			LAUNCH(dev, (rope_kernel<T, N>), grid_for(tokens * heads * half / N, THREADS),
			       THREADS, 0, (T *)x, ld, heads, head_dim, half, positions, cos_table, sin_table,
			       tokens, sign);
		else
			LAUNCH(dev, (rope_kernel<T, 1>), grid_for(tokens * heads * half, THREADS), THREADS, 0,
			       (T *)x, ld, heads, head_dim, half, positions, cos_table, sin_table, tokens,
			       sign);
	});
}
