// SPDX-License-Identifier: Apache-2.0
/*
 * The norm of q and k together with the rotation that follows it. A team of 8 lanes (16 in fp32) has a head
 * in its registers: each lane has a pack of the first half, and the pack of the second half that it is
 * rotated with. In bf16 this moves 4 bytes for each element; two kernels would move 8.
 */
#include "engine/device/cuda/kernel.cuh"
#include "engine/device/qk_norm.h"

#define THREADS 256

template <typename T> constexpr int TEAM = 128 / 2 / WIDE<T>; /* heads of up to 128 */

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    qk_norm_rope_kernel(device_qk_norm n, T *y, float *rstd, const T *x, const T *w_q, const T *w_k,
                        const int32_t *positions, const float *cos_table, const float *sin_table)
{
	constexpr int N = WIDE<T>;
	int half = n.head_dim / 2, all = n.heads + n.kv_heads, i = (int)threadIdx.x % TEAM<T> * N;
	int64_t total = n.tokens * all, stride = (int64_t)gridDim.x * (THREADS / TEAM<T>);
	int64_t first = (int64_t)blockIdx.x * (THREADS / TEAM<T>);

	/* The lanes of a warp stay together for the sums. */
	for (; first < total; first += stride) {
		int64_t row = first + threadIdx.x / TEAM<T>, t = row / all;
		int head = (int)(row - t * all);
		bool mine = row < total && i < half;
		int64_t at = t * n.ld + (int64_t)head * n.head_dim + i;
		const T *w = (head < n.heads ? w_q : w_k) + i;
		float a[N] = {}, b[N] = {}, squares = 0, r;

		if (mine) {
			load(a, x + at);
			load(b, x + at + half);
		}
#pragma unroll
		for (int k = 0; k < N; k++)
			squares += a[k] * a[k] + b[k] * b[k];
#pragma unroll
		for (int mask = TEAM<T> / 2; mask; mask >>= 1)
			squares += shuffle_xor(squares, mask);
		r = 1.0f / sqrtf(squares / (float)n.head_dim + n.eps);
		if (!mine)
			continue;
		if (rstd && i == 0)
			rstd[head < n.heads ? t * n.heads + head
			                    : n.tokens * n.heads + t * n.kv_heads + head - n.heads] = r;

		int64_t turn = (int64_t)positions[t] * half + i;
		float wa[N], wb[N], c[N], s[N];

		load(wa, w);
		load(wb, w + half);
		load(c, cos_table + turn);
		load(s, sin_table + turn);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float p = rounded<T>(a[k] * r * (wa[k] + n.w_offset)),
			      q = rounded<T>(b[k] * r * (wb[k] + n.w_offset));

			a[k] = p * c[k] - q * s[k];
			b[k] = q * c[k] + p * s[k];
		}
		store(y + at, a);
		store(y + at + half, b);
	}
}

extern "C" void device_qk_norm_rope(struct device *dev, const struct device_qk_norm *n, void *y, float *rstd,
                                    const void *x, const void *w_q, const void *w_k)
{
	int half = n->head_dim / 2;

	if (n->tokens <= 0)
		return;
	with_type(n->type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;

		if (half % N || half > TEAM<T> * N || !wide_rows(x, n->ld, sizeof(T)) || !aligned16(y) ||
		    !aligned16(w_q) || !aligned16(w_k) || !aligned16(n->cos) || !aligned16(n->sin))
			/* Heads are too long for a team, or not aligned. */
			qk_norm_rope_apart(dev, n, y, rstd, x, w_q, w_k);
		else
			LAUNCH(dev, qk_norm_rope_kernel<T>,
			       grid_for(n->tokens * (n->heads + n->kv_heads) * TEAM<T>, THREADS), THREADS, 0,
			       *n, (T *)y, rstd, (const T *)x, (const T *)w_q, (const T *)w_k, n->positions,
			       n->cos, n->sin);
	});
}
