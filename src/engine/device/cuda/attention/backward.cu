// SPDX-License-Identifier: Apache-2.0
/*
 * The backward pass on tensor cores, in two kernels. No sum is taken over blocks, so that the order of every
 * sum is fixed. The first kernel has tiles of keys and loops over the queries that see them, for one head of
 * the group after another; the second has tiles of queries and loops over their keys. Both compute the
 * probabilities again: that is seven products for a pair of tiles, where adding to d_q in memory would need
 * five.
 *
 * As in the forward pass, steps are smaller where there is less shared memory.
 *
 * Where q and k were rotated, their gradients are rotated back on their way from shared memory to where they
 * are written. A kernel that rotates them in memory reads and writes each once more: 168 MB for each block of
 * Llama-3.2-1B and 4 x 4096 tokens, 2.7 GB a step of 16 blocks.
 */
#include "engine/device/cuda/attention/tiles.cuh"

#define WARPS   4
#define THREADS (32 * WARPS)
#define ROWS    (16 * WARPS) /* of a block's own tile, with one m-tile in each warp */

/* With two m-tiles in a warp, what it reads from shared memory, whose bandwidth would be the limit, is used
 * for both. The gradients of queries have half as many sums as those of keys and values, which have registers
 * for two only with heads of 64 and half as many queries at a time. */
template <int HD> constexpr int KEY_MT = HD > 64 ? 1 : 2;
template <int HD> constexpr int KEY_STEP = HD > 64 ? 64 : 32; /* queries at a time */
#define QUERY_MT   2
#define QUERY_ROWS (ROWS * QUERY_MT)
template <int HD> constexpr int QUERY_STEP = HD > 64 ? 32 : 64; /* as registers allow */

template <int HD, int STEP>
constexpr size_t KEY_SHARED = (size_t)(2 * ROWS * KEY_MT<HD> + 4 * STEP) * TILE_LD<HD> * sizeof(bf16) +
                              4 * STEP * sizeof(float);
template <int HD, int KEYS>
constexpr size_t QUERY_SHARED = (size_t)(2 * QUERY_ROWS + 4 * KEYS) * TILE_LD<HD> * sizeof(bf16);

/* lse and delta of STEP queries; both 0 beyond the end, where everything is masked. */
template <int STEP>
static __device__ __forceinline__ void fetch_statistics(float *to, const float *lse, const float *delta,
                                                        int first, int end)
{
	for (int i = (int)threadIdx.x; i < STEP; i += THREADS) {
		to[i] = first + i < end ? lse[first + i] * LOG2_E : 0;
		to[STEP + i] = first + i < end ? delta[first + i] : 0;
	}
}

/* Rows are keys here, columns queries. */
template <int HD, int STEP>
static __global__ void __launch_bounds__(THREADS)
    key_gradient(attention_shape a, bf16 *d_k, bf16 *d_v, const bf16 *d_o, const float *delta,
                 const float *lse, const bf16 *q, const bf16 *k, const bf16 *v)
{
	DYNAMIC_SHARED(memory);
	constexpr int MT = KEY_MT<HD>, OWN_ROWS = ROWS * MT, OWN = OWN_ROWS * TILE_LD<HD>,
	              TILE = STEP * TILE_LD<HD>, NT = STEP / 8;
	bf16 *keys = (bf16 *)memory, *values = keys + OWN, *queries = values + OWN,
	     *gradients = queries + 2 * TILE;
	float *statistics = (float *)(gradients + 2 * TILE);
	int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, row = (int)threadIdx.x / 32 * 16 * MT;
	int kv = (int)blockIdx.y, tokens = (int)a.queries, first = (int)blockIdx.x * OWN_ROWS;
	int last = first + OWN_ROWS < tokens ? first + OWN_ROWS - 1 : tokens - 1;
	int from = first / STEP * STEP, to = (int)end_query(a, last), closed = (int)end_query(a, first);
	int steps = (to - from + STEP - 1) / STEP, total = steps * a.group;
	float dk[MT][HD / 8][4] = {}, dv[MT][HD / 8][4] = {}, scale2 = a.scale * LOG2_E;
	int limit[MT][2];

	k += (int64_t)kv * HD;
	v += (int64_t)kv * HD;
#pragma unroll
	for (int m = 0; m < MT; m++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int key = first + row + 16 * m + 8 * half + g;

			limit[m][half] = key <= last ? (int)end_query(a, key) : 0;
		}
	}
	tile_fetch<OWN_ROWS, HD, THREADS>(keys, k, a.ld_k, first, tokens);
	tile_fetch<OWN_ROWS, HD, THREADS>(values, v, a.ld_v, first, tokens);
	for (int it = -1, stage = 1; it < total; it++, stage ^= 1) {
		float p[MT][NT][4], ds[MT][NT][4], *own = statistics + stage * 2 * STEP;
		int i0 = it < 0 ? 0 : from + it % steps * STEP;

		if (it + 1 < total) {
			int head = kv * a.group + (it + 1) / steps, next = from + (it + 1) % steps * STEP;

			tile_fetch<STEP, HD, THREADS>(queries + (stage ^ 1) * TILE, q + (int64_t)head * HD,
			                              a.ld_q, next, tokens);
			tile_fetch<STEP, HD, THREADS>(gradients + (stage ^ 1) * TILE,
			                              d_o + (int64_t)head * HD, a.ld_o, next, tokens);
			fetch_statistics<STEP>(statistics + (stage ^ 1) * 2 * STEP,
			                       lse + (int64_t)head * tokens, delta + (int64_t)head * tokens,
			                       next, tokens);
		}
		copy_commit();
		if (it < 0)
			continue;
		copy_wait<1>();
		__syncthreads();
		multiply_transposed<HD, MT, NT>(p, keys, row, queries + stage * TILE);
		multiply_transposed<HD, MT, NT>(ds, values, row, gradients + stage * TILE);
		bool masked = i0 < last || i0 + STEP > closed;
#pragma unroll
		for (int m = 0; m < MT; m++) {
#pragma unroll
			for (int n = 0; n < NT; n++) {
#pragma unroll
				for (int i = 0; i < 4; i++) {
					int c = 8 * n + 2 * t + i % 2;
					int key = first + row + 16 * m + 8 * (i / 2) + g;
					float e = fast_exp2(p[m][n][i] * scale2 - own[c]);

					if (masked && (i0 + c < key || i0 + c >= limit[m][i / 2]))
						e = 0;
					p[m][n][i] = e;
					ds[m][n][i] = e * (ds[m][n][i] - own[STEP + c]);
				}
			}
		}
		multiply_add<HD, MT, NT>(dv, p, gradients + stage * TILE);
		multiply_add<HD, MT, NT>(dk, ds, queries + stage * TILE);
		__syncthreads();
	}
	tile_scale<HD, MT>(dk, a.scale);
	tile_put<HD, MT, false>(a, d_v + (int64_t)kv * HD, a.ld_v, first + row, last + 1, values, row, dv);
	tile_put<HD, MT, true>(a, d_k + (int64_t)kv * HD, a.ld_k, first + row, last + 1, keys, row, dk);
}

/* Rows are queries, columns keys. */
template <int HD, int KEYS>
static __global__ void __launch_bounds__(THREADS)
    query_gradient(attention_shape a, bf16 *d_q, const bf16 *d_o, const float *delta, const float *lse,
                   const bf16 *q, const bf16 *k, const bf16 *v)
{
	DYNAMIC_SHARED(memory);
	constexpr int MT = QUERY_MT, OWN = QUERY_ROWS * TILE_LD<HD>, TILE = KEYS * TILE_LD<HD>;
	bf16 *queries = (bf16 *)memory, *gradients = queries + OWN, *keys = gradients + OWN,
	     *values = keys + 2 * TILE;
	int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, row = (int)threadIdx.x / 32 * 16 * MT;
	int head = (int)blockIdx.y, tokens = (int)a.queries,
	    first = (int)(gridDim.x - 1 - blockIdx.x) * QUERY_ROWS;
	int last = first + QUERY_ROWS < tokens ? first + QUERY_ROWS - 1 : tokens - 1, end = last + 1;
	int j0 = (int)first_key(a, first) / KEYS * KEYS, open = (int)first_key(a, last), begin[MT][2];
	float dq[MT][HD / 8][4] = {}, l[MT][2], d[MT][2], scale2 = a.scale * LOG2_E;

	k += (int64_t)(head / a.group) * HD;
	v += (int64_t)(head / a.group) * HD;
	tile_fetch<QUERY_ROWS, HD, THREADS>(queries, q + (int64_t)head * HD, a.ld_q, first, tokens);
	tile_fetch<QUERY_ROWS, HD, THREADS>(gradients, d_o + (int64_t)head * HD, a.ld_o, first, tokens);
	tile_fetch<KEYS, HD, THREADS>(keys, k, a.ld_k, j0, end);
	tile_fetch<KEYS, HD, THREADS>(values, v, a.ld_v, j0, end);
	copy_commit();
#pragma unroll
	for (int m = 0; m < MT; m++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int r = first + row + 16 * m + 8 * half + g;

			begin[m][half] = r <= last ? (int)first_key(a, r) : end;
			l[m][half] = r <= last ? lse[(int64_t)head * tokens + r] * LOG2_E : 0;
			d[m][half] = r <= last ? delta[(int64_t)head * tokens + r] : 0;
		}
	}
	for (int j = j0, stage = 0; j < end; j += KEYS, stage ^= 1) {
		float p[MT][KEYS / 8][4], ds[MT][KEYS / 8][4];

		if (j + KEYS < end) {
			tile_fetch<KEYS, HD, THREADS>(keys + (stage ^ 1) * TILE, k, a.ld_k, j + KEYS, end);
			tile_fetch<KEYS, HD, THREADS>(values + (stage ^ 1) * TILE, v, a.ld_v, j + KEYS, end);
		}
		copy_commit();
		copy_wait<1>();
		__syncthreads();
		multiply_transposed<HD, MT, KEYS / 8>(p, queries, row, keys + stage * TILE);
		multiply_transposed<HD, MT, KEYS / 8>(ds, gradients, row, values + stage * TILE);
		bool masked = j + KEYS - 1 > first || j < open;
#pragma unroll
		for (int m = 0; m < MT; m++) {
#pragma unroll
			for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
				for (int i = 0; i < 4; i++) {
					int key = j + 8 * n + 2 * t + i % 2;
					int position = first + row + 16 * m + 8 * (i / 2) + g;
					float e = fast_exp2(p[m][n][i] * scale2 - l[m][i / 2]);

					if (masked && (key > position || key < begin[m][i / 2]))
						e = 0;
					ds[m][n][i] = e * (ds[m][n][i] - d[m][i / 2]);
				}
			}
		}
		multiply_add<HD, MT, KEYS / 8>(dq, ds, keys + stage * TILE);
		__syncthreads();
	}
	tile_scale<HD, MT>(dq, a.scale);
	tile_put<HD, MT, true>(a, d_q + (int64_t)head * HD, a.ld_q, first + row, last + 1, queries, row, dq);
}

/* The arguments of both kernels. */
struct work {
	attention_shape a;
	const bf16 *d_o, *q, *k, *v;
	const float *delta, *lse;
};

/* False: not with the shared memory that there is. */
template <int HD, int STEP> static bool keys(struct device *dev, const work &w, bf16 *d_k, bf16 *d_v)
{
	constexpr size_t shared = KEY_SHARED<HD, STEP>;
	dim3 grid((unsigned)ceil_div(w.a.keys, ROWS * KEY_MT<HD>), (unsigned)(w.a.heads / w.a.group));

	if (shared > dev->shared_most)
		return false;
	LAUNCH(dev, (key_gradient<HD, STEP>), grid, THREADS, shared, w.a, d_k, d_v, w.d_o, w.delta, w.lse,
	       w.q, w.k, w.v);
	return true;
}

template <int HD, int STEP> static bool queries(struct device *dev, const work &w, bf16 *d_q)
{
	constexpr size_t shared = QUERY_SHARED<HD, STEP>;
	dim3 grid((unsigned)ceil_div(w.a.queries, QUERY_ROWS), (unsigned)w.a.heads);

	if (shared > dev->shared_most)
		return false;
	LAUNCH(dev, (query_gradient<HD, STEP>), grid, THREADS, shared, w.a, d_q, w.d_o, w.delta, w.lse, w.q,
	       w.k, w.v);
	return true;
}

bool attention_backward_tiles(struct device *dev, const attention_shape &a, bf16 *d_q, bf16 *d_k, bf16 *d_v,
                              const bf16 *d_o, const float *delta, const float *lse, const bf16 *q,
                              const bf16 *k, const bf16 *v)
{
	work w = {a, d_o, q, k, v, delta, lse};

	switch (a.head_dim) {
	case 64:
		return keys<64, KEY_STEP<64>>(dev, w, d_k, d_v) && queries<64, QUERY_STEP<64>>(dev, w, d_q);
	case 96:
		return keys<96, KEY_STEP<96>>(dev, w, d_k, d_v) && queries<96, QUERY_STEP<96>>(dev, w, d_q);
	case 128:
		return (keys<128, KEY_STEP<128>>(dev, w, d_k, d_v) ||
		        keys<128, KEY_STEP<128> / 2>(dev, w, d_k, d_v)) &&
		       (queries<128, QUERY_STEP<128>>(dev, w, d_q) ||
		        queries<128, QUERY_STEP<128> / 2>(dev, w, d_q));
	}
	return false;
}
