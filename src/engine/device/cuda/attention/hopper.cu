// SPDX-License-Identifier: Apache-2.0
/*
 * The forward pass on Hopper (sm_90a). A block has ROWS queries of one head. Its first warpgroup has the copy
 * engine load tiles of keys and values into STAGES places each; the two others multiply, 64 queries each:
 *
 *     producer     wait for an empty place, expect its bytes, start the copies
 *     consumer     S = Q · Kᵀ of a tile, while O += P · V of the tile before it; then the softmax of S, which
 *                  gives the next P
 *
 * A place is full when its bytes have arrived, and empty when all warps of the consumers have waited for the
 * product that reads it. A barrier's phase i ends with the use i of its place: a consumer waits for the
 * parity of i at "full", the producer for that of i - 1 at "empty", which has ended before the first use.
 *
 * Masks, statistics and the order of blocks are those of forward.cu. The sums of a row are over tiles of KEYS
 * keys from the first key that a query of the block sees: a function of the shapes and documents alone.
 */
#include "engine/device/cuda/attention/hopper_tiles.cuh"

#define ROWS   (64 * CONSUMERS)
#define KEYS   128 /* at a time */
#define STAGES 2

struct places {
	uint64_t q_full, k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
};

template <int HD>
constexpr size_t FORWARD_SHARED = 1024 + (size_t)(ROWS + 2 * STAGES * KEYS) * HD * 2 +
                                  sizeof(places); /* aligned to 1024 within it */

/* Turns the scores into probabilities relative to the new maximum; alpha: what scales the earlier sums. */
static __device__ __forceinline__ void probabilities(float (&s)[KEYS / 2], float (&max)[2], float (&sum)[2],
                                                     float (&alpha)[2], float scale2)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float before = max[half], now = before, shift, total = 0;

#pragma unroll
		for (int n = 0; n < KEYS / 8; n++)
			now = fmaxf(now, fmaxf(s[4 * n + 2 * half], s[4 * n + 2 * half + 1]));
		now = fmaxf(now, shuffle_xor(now, 1)); /* the four lanes of a row */
		now = fmaxf(now, shuffle_xor(now, 2));
		max[half] = now;
		shift = now == -INFINITY ? 0 : now * scale2; /* nothing seen yet */
		alpha[half] = fast_exp2(before * scale2 - shift);
#pragma unroll
		for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
			for (int i = 4 * n + 2 * half; i < 4 * n + 2 * half + 2; i++) {
				s[i] = fast_exp2(s[i] * scale2 - shift);
				total += s[i];
			}
		}
		sum[half] = sum[half] * alpha[half] + total;
	}
}

struct block_range {
	int head, first, last, begin, open, tiles; /* open: every query sees the keys from here to itself */
};

static __device__ __forceinline__ block_range range_of(const attention_shape &a)
{
	block_range r;

	r.head = (int)blockIdx.y;
	r.first = (int)(gridDim.x - 1 - blockIdx.x) * ROWS;
	r.last = r.first + ROWS < (int)a.queries ? r.first + ROWS - 1 : (int)a.queries - 1;
	r.begin = (int)first_key(a, r.first);
	r.open = (int)first_key(a, r.last);
	r.tiles = (r.last - r.begin) / KEYS + 1;
	return r;
}

template <int HD>
static __device__ __forceinline__ void produce(const attention_shape &a, const block_range &r,
                                               unsigned char *queries, places *at, const tensor_map *q,
                                               const tensor_map *k, const tensor_map *v)
{
	constexpr int TILE = TILE_BYTES<HD, KEYS>;
	unsigned char *keys = queries + TILE_BYTES<HD, ROWS>, *values = keys + STAGES * TILE;
	int column = r.head / a.group * HD;

	load_tile<HD, ROWS>(queries, q, &at->q_full, r.head * HD, r.first);
	for (int i = 0; i < r.tiles; i++) {
		int place = i % STAGES;
		uint32_t before = (uint32_t)(i / STAGES + 1) & 1;

		barrier_wait(&at->k_empty[place], before);
		load_tile<HD, KEYS>(keys + place * TILE, k, &at->k_full[place], column, r.begin + i * KEYS);
		barrier_wait(&at->v_empty[place], before);
		load_tile<HD, KEYS>(values + place * TILE, v, &at->v_full[place], column, r.begin + i * KEYS);
	}
}

template <typename T, int HD>
static __device__ __forceinline__ void consume(const attention_shape &a, const block_range &r, int group,
                                               unsigned char *queries, places *at, T *o, float *lse,
                                               int64_t ld_lse)
{
	constexpr int TILE = TILE_BYTES<HD, KEYS>;
	uint32_t q = shared_address(queries), keys = q + TILE_BYTES<HD, ROWS>, values = keys + STAGES * TILE;
	int lane = (int)threadIdx.x % 32, t = lane % 4, first = r.first + 64 * group;
	float out[HD / 2], s[KEYS / 2], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, alpha[2];
	float scale2 = a.scale * LOG2_E, largest = 0;
	uint32_t p[KEYS / 16][4];
	thread_rows rows;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = first + (int)threadIdx.x / 32 % 4 * 16 + 8 * half + lane / 4;

		rows.row[half] = row;
		rows.begin[half] = row <= r.last ? (int)first_key(a, row) : r.last + 1;
	}
#pragma unroll
	for (int i = 0; i < HD / 2; i++)
		out[i] = 0;
	barrier_wait(&at->q_full, 0);
	for (int i = 0; i < r.tiles; i++) {
		int place = i % STAGES, earlier = (i + STAGES - 1) % STAGES, key = r.begin + i * KEYS;

		barrier_wait(&at->k_full[place], (uint32_t)(i / STAGES) & 1);
		registers_settle(s);
		registers_settle(out);
		wgmma_fence();
		multiply_transposed<T, HD, ROWS, KEYS>(s, q, 64 * group, keys + (uint32_t)(place * TILE));
		if (i > 0) {
			barrier_wait(&at->v_full[earlier], (uint32_t)((i - 1) / STAGES) & 1);
			wgmma_fence();
			multiply_add<T, HD, KEYS>(out, p, values + (uint32_t)(earlier * TILE));
			wgmma_wait<1>();
		} else {
			wgmma_wait<0>();
		}
		registers_settle(s);
		if (lane == 0)
			barrier_arrive(&at->k_empty[place]);
		if (key + KEYS - 1 > first || key < r.open)
			mask_keys(s, rows, key + 2 * t);
		probabilities(s, max, sum, alpha, scale2);
		wgmma_wait<0>();
		registers_settle(out);
		if (i > 0 && lane == 0)
			barrier_arrive(&at->v_empty[earlier]);
#pragma unroll
		for (int n = 0; n < HD / 2; n++)
			out[n] *= alpha[n / 2 % 2];
		round_operand<T>(p, s);
	}
	barrier_wait(&at->v_full[(r.tiles - 1) % STAGES], (uint32_t)((r.tiles - 1) / STAGES) & 1);
	registers_settle(out);
	wgmma_fence();
	multiply_add<T, HD, KEYS>(out, p, values + (uint32_t)((r.tiles - 1) % STAGES * TILE));
	wgmma_wait<0>();
	registers_settle(out);
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float total = sum[half], inverse;

		total += shuffle_xor(total, 1);
		total += shuffle_xor(total, 2);
		inverse = 1.0f / total;
		if (lse && t == 0 && rows.row[half] <= r.last)
			lse[r.head * ld_lse + rows.row[half]] = max[half] * a.scale + logf(total);
#pragma unroll
		for (int n = 0; n < HD / 8; n++) {
			out[4 * n + 2 * half] *= inverse;
			out[4 * n + 2 * half + 1] *= inverse;
		}
	}
#pragma unroll
	for (int i = 0; i < HD / 2; i++)
		if (rows.row[i / 2 % 2] <= r.last)
			largest = fmaxf(largest, fabsf(rounded<T>(out[i])));
	found_into(a, largest);
	put<T, HD, ROWS>(o + (int64_t)r.head * HD, a.ld_o, first, r.last, queries, group, out);
}

template <typename T, int HD>
static __global__ void __launch_bounds__(THREADS, 1)
    forward_kernel(attention_shape a, T *o, float *lse, int64_t ld_lse, const __grid_constant__ tensor_map q,
                   const __grid_constant__ tensor_map k, const __grid_constant__ tensor_map v)
{
	DYNAMIC_SHARED(memory);
	unsigned char *queries = memory + (1024 - shared_address(memory) % 1024) % 1024;
	places *at = (places *)(queries + TILE_BYTES<HD, ROWS + 2 * STAGES * KEYS>);
	block_range r = range_of(a);
	/* The same in all lanes of a warp, which the compiler knows of a shuffle: addresses are then computed
	 * once. */
	int group = shuffle((int)threadIdx.x / WARPGROUP, 0);

	if (threadIdx.x == 0) {
		tensor_prefetch(&q);
		tensor_prefetch(&k);
		tensor_prefetch(&v);
		barrier_init(&at->q_full, 1);
		for (int i = 0; i < STAGES; i++) {
			barrier_init(&at->k_full[i], 1);
			barrier_init(&at->v_full[i], 1);
			barrier_init(&at->k_empty[i], 4 * CONSUMERS);
			barrier_init(&at->v_empty[i], 4 * CONSUMERS);
		}
		barrier_init_fence();
	}
	__syncthreads();
	if (group == 0) {
		registers_fewer<PRODUCER_REGISTERS>();
		if (threadIdx.x == 0)
			produce<HD>(a, r, queries, at, &q, &k, &v);
	} else {
		registers_more<CONSUMER_REGISTERS>();
		consume<T, HD>(a, r, group - 1, queries, at, o, lse, ld_lse);
	}
}

template <typename T, int HD>
static bool launch(struct device *dev, const attention_shape &a, T *o, float *lse, int64_t ld_lse, const T *q,
                   const T *k, const T *v)
{
	constexpr size_t shared = FORWARD_SHARED<HD>;
	constexpr int columns = tile<HD>::COLUMNS;
	constexpr enum swizzle swizzle = tile<HD>::SWIZZLE;
	dim3 grid((unsigned)ceil_div(a.queries, ROWS), (unsigned)a.heads);
	int64_t width = (int64_t)a.heads * HD, width_kv = width / a.group;
	tensor_map map_q, map_k, map_v;

	if (shared > dev->shared_most ||
	    !tensor_map_make(dev, &map_q, q, a.queries, width, a.ld_q, ROWS, columns, swizzle) ||
	    !tensor_map_make(dev, &map_k, k, a.keys, width_kv, a.ld_k, KEYS, columns, swizzle) ||
	    !tensor_map_make(dev, &map_v, v, a.keys, width_kv, a.ld_v, KEYS, columns, swizzle))
		return false;
	LAUNCH(dev, (forward_kernel<T, HD>), grid, THREADS, shared, a, o, lse, ld_lse, map_q, map_k, map_v);
	return true;
}

bool attention_forward_hopper(struct device *dev, const attention_shape &a, enum dtype type, void *o,
                              float *lse, int64_t ld_lse, const void *q, const void *k, const void *v)
{
	bool done = false;

	if (dev->major != 9 || a.cap > 0 || a.queries > 1 << 30 || type == DTYPE_F32)
		return false;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		if constexpr (sizeof(T) == 2) {
			if (a.head_dim == 64)
				done = launch<T, 64>(dev, a, (T *)o, lse, ld_lse, (const T *)q, (const T *)k,
				                     (const T *)v);
			else if (a.head_dim == 96)
				done = launch<T, 96>(dev, a, (T *)o, lse, ld_lse, (const T *)q, (const T *)k,
				                     (const T *)v);
			else if (a.head_dim == 128)
				done = launch<T, 128>(dev, a, (T *)o, lse, ld_lse, (const T *)q, (const T *)k,
				                      (const T *)v);
		}
	});
	return done;
}
