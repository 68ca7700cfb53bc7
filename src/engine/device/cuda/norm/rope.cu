// SPDX-License-Identifier: Apache-2.0
/*
 * Rotary position embedding: (a, b) -> (a·cos - b·sin, b·cos + a·sin), b half a head behind a, or interleaved
 * directly behind it. In place: each element is read and written once, the tables come from the cache (all
 * heads of a token share a row).
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

/* N pairs, of elements behind each other. */
template <typename T, int N>
static __global__ void rope_pairs_kernel(T *x, int64_t ld, int heads, int head_dim, int half,
                                         const int32_t *positions, const float *cos_table,
                                         const float *sin_table, int64_t tokens, float sign)
{
	int per_head = half / N, per_token = heads * per_head;
	int64_t total = tokens * per_token, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < total; p += stride) {
		int64_t t = quotient(p, per_token);
		int rest = (int)(p - t * per_token), head = rest / per_head, i = (rest - head * per_head) * N;
		int64_t row = (int64_t)positions[t] * half + i;
		T *px = x + t * ld + (int64_t)head * head_dim + 2 * i;
		float v[2 * N], c[N], s[N];

		if constexpr (N == 1) { /* not aligned to two elements */
			v[0] = to_float(px[0]);
			v[1] = to_float(px[1]);
		} else {
			load(v, px);
		}
		load(c, cos_table + row);
		load(s, sin_table + row);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float a = v[2 * k], b = v[2 * k + 1];

			v[2 * k] = a * c[k] - b * sign * s[k];
			v[2 * k + 1] = b * c[k] + a * sign * s[k];
		}
		if constexpr (N == 1) {
			px[0] = from_float<T>(v[0]);
			px[1] = from_float<T>(v[1]);
		} else {
			store(px, v);
		}
	}
}

static void rotate(struct device *dev, const struct device_rope *r, void *x, float sign)
{
	int half = r->rotary_dim / 2;
	int64_t pairs = r->tokens * r->heads * half;

	if (pairs <= 0)
		return;
	with_type(r->type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;
		bool wide = wide_rows(x, r->ld, sizeof(T)) && r->head_dim % N == 0 && aligned16(r->cos) &&
		            aligned16(r->sin);

		if (r->interleaved && wide && r->rotary_dim % N == 0)
			LAUNCH(dev, (rope_pairs_kernel<T, N / 2>), grid_for(pairs / (N / 2), THREADS),
			       THREADS, 0, (T *)x, r->ld, r->heads, r->head_dim, half, r->positions, r->cos,
			       r->sin, r->tokens, sign);
		else if (r->interleaved)
			LAUNCH(dev, (rope_pairs_kernel<T, 1>), grid_for(pairs, THREADS), THREADS, 0, (T *)x,
			       r->ld, r->heads, r->head_dim, half, r->positions, r->cos, r->sin, r->tokens,
			       sign);
		else if (wide && half % N == 0)
			LAUNCH(dev, (rope_kernel<T, N>), grid_for(pairs / N, THREADS), THREADS, 0, (T *)x,
			       r->ld, r->heads, r->head_dim, half, r->positions, r->cos, r->sin, r->tokens,
			       sign);
		else
			LAUNCH(dev, (rope_kernel<T, 1>), grid_for(pairs, THREADS), THREADS, 0, (T *)x, r->ld,
			       r->heads, r->head_dim, half, r->positions, r->cos, r->sin, r->tokens, sign);
	});
}

extern "C" void device_rope(struct device *dev, const struct device_rope *r, void *x)
{
	rotate(dev, r, x, 1.0f);
}

extern "C" void device_rope_inverse(struct device *dev, const struct device_rope *r, void *x)
{
	rotate(dev, r, x, -1.0f);
}
