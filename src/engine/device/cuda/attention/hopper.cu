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
#include "engine/device/cuda/attention/attention.cuh"
#include "engine/device/cuda/hopper.cuh"

#define CONSUMERS 2 /* warpgroups */
#define THREADS   (WARPGROUP * (1 + CONSUMERS))
#define ROWS      (64 * CONSUMERS)
#define KEYS      128 /* at a time */
#define STAGES    2
/* A thread has 168 registers at the start: the producer gives back what the consumers take. */
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240

struct places {
	uint64_t q_full, k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
};

/* A tile of R rows is in boxes of COLUMNS columns, each as wide as its swizzle, one after the other. */
template <int HD> struct tile {
	static constexpr int COLUMNS = HD % 64 == 0 ? 64 : 32, BOXES = HD / COLUMNS, ROW = COLUMNS * 2;
	static constexpr enum swizzle SWIZZLE = COLUMNS == 64 ? SWIZZLE_128 : SWIZZLE_64;

	/* Rows [row, …) of a tile of `rows`, columns [k, k + 16), row by row. */
	static __device__ __forceinline__ uint64_t by_rows(uint32_t at, int rows, int row, int k)
	{
		return matrix_descriptor(
		    at + (uint32_t)(k / COLUMNS * rows * ROW + row * ROW + k % COLUMNS * 2), 16, 8 * ROW,
		    SWIZZLE);
	}

	/* Rows [k, k + 16) of a tile of `rows`, all columns, which are those of the product. */
	static __device__ __forceinline__ uint64_t by_columns(uint32_t at, int rows, int k)
	{
		return matrix_descriptor(at + (uint32_t)(k * ROW), (uint32_t)(rows * ROW), 8 * ROW, SWIZZLE);
	}
};

template <int HD, int ROWS_OF_IT> constexpr int TILE_BYTES = ROWS_OF_IT *HD * 2;

template <int HD>
constexpr size_t FORWARD_SHARED = 1024 + (size_t)(ROWS + 2 * STAGES * KEYS) * HD * 2 +
                                  sizeof(places); /* aligned to 1024 within it */

template <int HD, int R>
static __device__ __forceinline__ void load_tile(unsigned char *to, const tensor_map *map, uint64_t *full,
                                                 int column, int row)
{
	barrier_expect(full, TILE_BYTES<HD, R>);
#pragma unroll
	for (int b = 0; b < tile<HD>::BOXES; b++)
		tensor_load(to + b * R * tile<HD>::ROW, map, full, column + b * tile<HD>::COLUMNS, row);
}

/* s = the warpgroup's queries · a tile of keys, transposed. */
template <typename T, int HD>
static __device__ __forceinline__ void multiply_keys(float (&s)[KEYS / 2], uint32_t queries, int row,
                                                     uint32_t keys)
{
#pragma unroll
	for (int k = 0; k < HD; k += 16)
		wgmma<T, KEYS, false, false>(s, tile<HD>::by_rows(queries, ROWS, row, k),
		                             tile<HD>::by_rows(keys, KEYS, 0, k), k > 0);
	wgmma_commit();
}

/* out += p · a tile of values. */
template <typename T, int HD>
static __device__ __forceinline__ void multiply_values(float (&out)[HD / 2],
                                                       const uint32_t (&p)[KEYS / 16][4], uint32_t values)
{
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++)
		wgmma<T, HD, true>(out, p[k], tile<HD>::by_columns(values, KEYS, 16 * k), true);
	wgmma_commit();
}

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

/* The registers of a score are those that a product takes of p. */
template <typename T>
static __device__ __forceinline__ void round_probabilities(uint32_t (&p)[KEYS / 16][4],
                                                           const float (&s)[KEYS / 2])
{
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			p[k][i] = pack_pair<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
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

/* The rows of a thread: row[half], and the first key that each sees. */
struct thread_rows {
	int row[2], begin[2];
};

static __device__ __forceinline__ void mask(float (&s)[KEYS / 2], const thread_rows &r, int key)
{
#pragma unroll
	for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int x = key + 8 * n + i % 2;

			if (x > r.row[i / 2] || x < r.begin[i / 2])
				s[4 * n + i] = -INFINITY;
		}
}

/* Writes the warpgroup's sums to their rows. They go through the place of its own queries, which it alone
 * has read, so that whole rows are written. */
template <typename T, int HD>
static __device__ __forceinline__ void put(T *o, int64_t ld, int first, int last, unsigned char *queries,
                                           int group, const float (&out)[HD / 2])
{
	constexpr int ROW = tile<HD>::ROW, PIECES = ROW / 16;
	int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
	auto piece = [&](int row, int c) {
		return queries + c / PIECES * ROWS * ROW + (64 * group + row) * ROW +
		       (c % PIECES ^ row % PIECES) * 16;
	};

	group_barrier(1 + group, WARPGROUP);
#pragma unroll
	for (int n = 0; n < HD / 8; n++)
#pragma unroll
		for (int half = 0; half < 2; half++)
			*(uint32_t *)(piece(16 * warp + g + 8 * half, n) + 4 * t) =
			    pack_pair<T>(out[4 * n + 2 * half], out[4 * n + 2 * half + 1]);
	__syncwarp();
	for (int i = lane; i < 16 * HD / 8; i += 32) {
		int row = 16 * warp + i / (HD / 8), c = i % (HD / 8);

		if (first + row <= last)
			*(pack<T, 8> *)(o + (int64_t)(first + row) * ld + 8 * c) =
			    *(const pack<T, 8> *)piece(row, c);
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
	float scale2 = a.scale * LOG2_E;
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
		multiply_keys<T, HD>(s, q, 64 * group, keys + (uint32_t)(place * TILE));
		if (i > 0) {
			barrier_wait(&at->v_full[earlier], (uint32_t)((i - 1) / STAGES) & 1);
			wgmma_fence();
			multiply_values<T, HD>(out, p, values + (uint32_t)(earlier * TILE));
			wgmma_wait<1>();
		} else {
			wgmma_wait<0>();
		}
		registers_settle(s);
		if (lane == 0)
			barrier_arrive(&at->k_empty[place]);
		if (key + KEYS - 1 > first || key < r.open)
			mask(s, rows, key + 2 * t);
		probabilities(s, max, sum, alpha, scale2);
		wgmma_wait<0>();
		registers_settle(out);
		if (i > 0 && lane == 0)
			barrier_arrive(&at->v_empty[earlier]);
#pragma unroll
		for (int n = 0; n < HD / 2; n++)
			out[n] *= alpha[n / 2 % 2];
		round_probabilities<T>(p, s);
	}
	barrier_wait(&at->v_full[(r.tiles - 1) % STAGES], (uint32_t)((r.tiles - 1) / STAGES) & 1);
	registers_settle(out);
	wgmma_fence();
	multiply_values<T, HD>(out, p, values + (uint32_t)((r.tiles - 1) % STAGES * TILE));
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
	put<T, HD>(o + (int64_t)r.head * HD, a.ld_o, first, r.last, queries, group, out);
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
	int group = (int)threadIdx.x / WARPGROUP;

	if (threadIdx.x == 0) {
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
