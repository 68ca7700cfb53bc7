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
 * The sums of both gradients of 16 keys would take all registers of a warp with heads of 256. There two warps
 * have the same keys, one for each gradient; both compute the probabilities.
 *
 * In fp16, as in bf16, probabilities and their gradients are rounded for the products that they go into. What
 * is too large for it is infinite, and makes the sum infinite or no number, which the loss scale looks for.
 *
 * Where q and k were rotated, their gradients are rotated back on their way from shared memory to where they
 * are written. A kernel that rotates them in memory reads and writes each once more: 168 MB for each block of
 * Llama-3.2-1B and 4 x 4096 tokens, 2.7 GB a step of 16 blocks.
 */
#include "engine/device/cuda/attention/tiles.cuh"

#define WARPS 4
#define ROWS  (16 * WARPS) /* of a block's own tile, with one m-tile in each warp */

/* With two m-tiles in a warp, what it reads from shared memory, whose bandwidth would be the limit, is used
 * for both. The gradients of queries have half as many sums as those of keys and values, which have registers
 * for two only with heads of 64 and half as many queries at a time. */
template <int HD> constexpr int KEY_MT = HD > 64 ? 1 : 2;
template <int HD> constexpr int KEY_STEP = HD > 128 ? 32 : HD > 64 ? 64 : 32; /* queries at a time */
template <int HD> constexpr int QUERY_MT = HD > 128 ? 1 : 2;
template <int HD> constexpr int QUERY_ROWS = ROWS *QUERY_MT<HD>;
template <int HD> constexpr int QUERY_STEP = HD > 64 ? 32 : 64; /* as registers allow */
#define QUERY_THREADS (32 * WARPS)

/* Whether a warp has one of the two gradients of its keys. */
template <int HD> constexpr bool SPLIT = HD > 128;
template <int HD> constexpr int KEY_THREADS = 32 * WARPS *(SPLIT<HD> ? 2 : 1);

/* Where lse and delta of STEP queries are: behind the tiles, or, where these fill the 99 KiB that some GPUs
 * have, in the 16 bytes that the rows of the queries are longer than their contents. */
template <int HD, int STEP> struct statistics {
	static constexpr bool BEHIND = !SPLIT<HD>;
	static constexpr int PITCH = BEHIND ? 1 : TILE_LD<HD> / 2; /* in floats */
	static constexpr int DELTA = BEHIND ? STEP : 1;

	template <typename T>
	static __device__ __forceinline__ float *of(T *queries, T *end_of_tiles, int stage)
	{
		return BEHIND ? (float *)end_of_tiles + stage * 2 * STEP
		              : (float *)(queries + stage * STEP * TILE_LD<HD> + HD);
	}
};

template <int HD, int STEP>
constexpr size_t KEY_SHARED = (size_t)(2 * ROWS * KEY_MT<HD> + 4 * STEP) * TILE_LD<HD> * sizeof(bf16) +
                              (SPLIT<HD> ? 0 : 4 * STEP * sizeof(float));
template <int HD, int KEYS>
constexpr size_t QUERY_SHARED = (size_t)(2 * QUERY_ROWS<HD> + 4 * KEYS) * TILE_LD<HD> * sizeof(bf16);

/* lse and delta of STEP queries; both 0 beyond the end, where everything is masked. */
template <int HD, int STEP>
static __device__ __forceinline__ void fetch_statistics(float *to, const float *lse, const float *delta,
                                                        int first, int end)
{
	typedef statistics<HD, STEP> S;

	for (int i = (int)threadIdx.x; i < STEP; i += KEY_THREADS<HD>) {
		to[i * S::PITCH] = first + i < end ? lse[first + i] * LOG2_E : 0;
		to[i * S::PITCH + S::DELTA] = first + i < end ? delta[first + i] : 0;
	}
}

/* What turns scores into probabilities, exp(score - lse), and the slope of the cap. */
template <bool CAP> struct scores {
	float scale2, turn; /* of the score; of tanh_of */

	__device__ __forceinline__ explicit scores(const attention_shape &a)
	    : scale2((CAP ? a.cap : a.scale) * LOG2_E), turn(CAP ? 2 * LOG2_E * a.scale / a.cap : 0)
	{
	}

	/* lse2: lse · log2(e) */
	__device__ __forceinline__ float probability(float score, float lse2, float *slope) const
	{
		float s = CAP ? tanh_of(score * turn) : score;

		*slope = CAP ? 1 - s * s : 1;
		return fast_exp2(s * scale2 - lse2);
	}
};

/* Rows are keys here, columns queries. */
template <typename T, int HD, int STEP, bool CAP>
static __global__ void __launch_bounds__(KEY_THREADS<HD>)
    key_gradient(attention_shape a, T *d_k, T *d_v, const T *d_o, const float *delta, const float *lse,
                 const T *q, const T *k, const T *v)
{
	DYNAMIC_SHARED(memory);
	typedef statistics<HD, STEP> S;
	constexpr int MT = KEY_MT<HD>, OWN_ROWS = ROWS * MT, OWN = OWN_ROWS * TILE_LD<HD>,
	              TILE = STEP * TILE_LD<HD>, NT = STEP / 8, THREADS = KEY_THREADS<HD>;
	T *keys = (T *)memory, *values = keys + OWN, *queries = values + OWN, *gradients = queries + 2 * TILE;
	int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = (int)threadIdx.x / 32,
	    row = (SPLIT<HD> ? warp % WARPS : warp) * 16 * MT;
	bool has_v = !SPLIT<HD> || warp < WARPS, has_k = !SPLIT<HD> || warp >= WARPS;
	int kv = (int)blockIdx.y, tokens = (int)a.queries, first = (int)blockIdx.x * OWN_ROWS;
	int last = first + OWN_ROWS < tokens ? first + OWN_ROWS - 1 : tokens - 1;
	int from = first / STEP * STEP, to = (int)end_query(a, last), closed = (int)end_query(a, first);
	int steps = (to - from + STEP - 1) / STEP, total = steps * a.group;
	float sums[SPLIT<HD> ? 1 : 2][MT][HD / 8][4] = {};
	auto &dv = sums[0], &dk = sums[SPLIT<HD> ? 0 : 1];
	scores<CAP> score(a);
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
		float p[MT][NT][4], ds[MT][NT][4], *own = S::of(queries, gradients + 2 * TILE, stage);
		int i0 = it < 0 ? 0 : from + it % steps * STEP;

		if (it + 1 < total) {
			int head = kv * a.group + (it + 1) / steps, next = from + (it + 1) % steps * STEP;

			tile_fetch<STEP, HD, THREADS>(queries + (stage ^ 1) * TILE, q + (int64_t)head * HD,
			                              a.ld_q, next, tokens);
			tile_fetch<STEP, HD, THREADS>(gradients + (stage ^ 1) * TILE,
			                              d_o + (int64_t)head * HD, a.ld_o, next, tokens);
			fetch_statistics<HD, STEP>(S::of(queries, gradients + 2 * TILE, stage ^ 1),
			                           lse + (int64_t)head * tokens,
			                           delta + (int64_t)head * tokens, next, tokens);
		}
		copy_commit();
		if (it < 0)
			continue;
		copy_wait<1>();
		__syncthreads();
		multiply_transposed<HD, MT, NT>(p, keys, row, queries + stage * TILE);
		if (has_k)
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
					float slope,
					    e = score.probability(p[m][n][i], own[c * S::PITCH], &slope);

					if (masked && (i0 + c < key || i0 + c >= limit[m][i / 2]))
						e = 0;
					p[m][n][i] = e;
					if (has_k)
						ds[m][n][i] =
						    e * (ds[m][n][i] - own[c * S::PITCH + S::DELTA]) * slope;
				}
			}
		}
		if (has_v)
			multiply_add<HD, MT, NT>(dv, p, gradients + stage * TILE);
		if (has_k)
			multiply_add<HD, MT, NT>(dk, ds, queries + stage * TILE);
		__syncthreads();
	}
	if (has_k)
		tile_map(dk, [&](float sum) { return sum * a.scale; });
	if (has_v)
		tile_put<HD, MT, false>(a, d_v + (int64_t)kv * HD, a.ld_v, first + row, last + 1, values, row,
		                        dv);
	if (has_k)
		tile_put<HD, MT, true>(a, d_k + (int64_t)kv * HD, a.ld_k, first + row, last + 1, keys, row,
		                       dk);
}

/* Rows are queries, columns keys. */
template <typename T, int HD, int KEYS, bool CAP>
static __global__ void __launch_bounds__(QUERY_THREADS)
    query_gradient(attention_shape a, T *d_q, const T *d_o, const float *delta, const float *lse, const T *q,
                   const T *k, const T *v)
{
	DYNAMIC_SHARED(memory);
	constexpr int MT = QUERY_MT<HD>, OWN_ROWS = QUERY_ROWS<HD>, OWN = OWN_ROWS * TILE_LD<HD>,
	              TILE = KEYS * TILE_LD<HD>, THREADS = QUERY_THREADS;
	T *queries = (T *)memory, *gradients = queries + OWN, *keys = gradients + OWN,
	  *values = keys + 2 * TILE;
	int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, row = (int)threadIdx.x / 32 * 16 * MT;
	int head = (int)blockIdx.y, tokens = (int)a.queries,
	    first = (int)(gridDim.x - 1 - blockIdx.x) * OWN_ROWS;
	int last = first + OWN_ROWS < tokens ? first + OWN_ROWS - 1 : tokens - 1, end = last + 1;
	int j0 = (int)first_key(a, first) / KEYS * KEYS, open = (int)first_key(a, last), begin[MT][2];
	float dq[MT][HD / 8][4] = {}, l[MT][2], d[MT][2];
	scores<CAP> score(a);

	k += (int64_t)(head / a.group) * HD;
	v += (int64_t)(head / a.group) * HD;
	tile_fetch<OWN_ROWS, HD, THREADS>(queries, q + (int64_t)head * HD, a.ld_q, first, tokens);
	tile_fetch<OWN_ROWS, HD, THREADS>(gradients, d_o + (int64_t)head * HD, a.ld_o, first, tokens);
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
					float slope, e = score.probability(p[m][n][i], l[m][i / 2], &slope);

					if (masked && (key > position || key < begin[m][i / 2]))
						e = 0;
					ds[m][n][i] = e * (ds[m][n][i] - d[m][i / 2]) * slope;
				}
			}
		}
		multiply_add<HD, MT, KEYS / 8>(dq, ds, keys + stage * TILE);
		__syncthreads();
	}
	tile_map(dq, [&](float sum) { return sum * a.scale; });
	tile_put<HD, MT, true>(a, d_q + (int64_t)head * HD, a.ld_q, first + row, last + 1, queries, row, dq);
}

/* The arguments of both kernels. */
template <typename T> struct work {
	attention_shape a;
	T *d_q, *d_k, *d_v;
	const T *d_o, *q, *k, *v;
	const float *delta, *lse;
};

/* False: not with the shared memory that there is. */
template <typename T, int HD, int STEP, bool CAP> static bool keys(struct device *dev, const work<T> &w)
{
	constexpr size_t shared = KEY_SHARED<HD, STEP>;
	dim3 grid((unsigned)ceil_div(w.a.keys, ROWS * KEY_MT<HD>), (unsigned)(w.a.heads / w.a.group));

	if (shared > dev->shared_most)
		return false;
	LAUNCH(dev, (key_gradient<T, HD, STEP, CAP>), grid, KEY_THREADS<HD>, shared, w.a, w.d_k, w.d_v, w.d_o,
	       w.delta, w.lse, w.q, w.k, w.v);
	return true;
}

template <typename T, int HD, int STEP, bool CAP> static bool queries(struct device *dev, const work<T> &w)
{
	constexpr size_t shared = QUERY_SHARED<HD, STEP>;
	dim3 grid((unsigned)ceil_div(w.a.queries, QUERY_ROWS<HD>), (unsigned)w.a.heads);

	if (shared > dev->shared_most)
		return false;
	LAUNCH(dev, (query_gradient<T, HD, STEP, CAP>), grid, QUERY_THREADS, shared, w.a, w.d_q, w.d_o,
	       w.delta, w.lse, w.q, w.k, w.v);
	return true;
}

template <typename T, int HD, bool CAP> static bool backward(struct device *dev, const work<T> &w)
{
	/* Where a cap needs registers that the steps of these heads would have. */
	constexpr int part = CAP && HD <= 96 ? 2 : 1;
	constexpr int key_step = KEY_STEP<HD> / part, query_step = QUERY_STEP<HD> / part;

	if constexpr (HD <= 96)
		return keys<T, HD, key_step, CAP>(dev, w) && queries<T, HD, query_step, CAP>(dev, w);
	else
		return (keys<T, HD, key_step, CAP>(dev, w) || keys<T, HD, key_step / 2, CAP>(dev, w)) &&
		       (queries<T, HD, query_step, CAP>(dev, w) ||
		        queries<T, HD, query_step / 2, CAP>(dev, w));
}

template <typename T, bool CAP> static bool backward_of(struct device *dev, const work<T> &w)
{
	if (w.a.head_dim == 64)
		return backward<T, 64, CAP>(dev, w);
	if (w.a.head_dim == 96)
		return backward<T, 96, CAP>(dev, w);
	return w.a.head_dim == 128 ? backward<T, 128, CAP>(dev, w) : backward<T, 256, CAP>(dev, w);
}

/* Every GPU has so much for a block, so that there are always kernels. */
static_assert(KEY_SHARED<96, KEY_STEP<96>> <= 99 << 10 && KEY_SHARED<128, KEY_STEP<128> / 2> <= 99 << 10 &&
                  KEY_SHARED<256, KEY_STEP<256> / 2> <= 99 << 10,
              "the smallest steps of keys");
static_assert(QUERY_SHARED<96, QUERY_STEP<96>> <= 99 << 10 &&
                  QUERY_SHARED<128, QUERY_STEP<128> / 2> <= 99 << 10 &&
                  QUERY_SHARED<256, QUERY_STEP<256> / 2> <= 99 << 10,
              "the smallest steps of queries");

bool attention_backward_tiles(struct device *dev, const attention_shape &a, enum dtype type, void *d_q,
                              void *d_k, void *d_v, const void *d_o, const float *delta, const float *lse,
                              const void *q, const void *k, const void *v)
{
	bool done = false;

	if (!attention_in_tiles(type, a.head_dim))
		return false;
	with_half(type, [&](auto t) {
		typedef decltype(t) T;
		work<T> w = {a,
		             (T *)d_q,
		             (T *)d_k,
		             (T *)d_v,
		             (const T *)d_o,
		             (const T *)q,
		             (const T *)k,
		             (const T *)v,
		             delta,
		             lse};

		with_flag(a.cap > 0, [&](auto cap) { done = backward_of<T, decltype(cap)::value>(dev, w); });
	});
	return done;
}
