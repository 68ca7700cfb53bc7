// SPDX-License-Identifier: Apache-2.0
/*
 * The backward pass on Hopper (sm_90a), in the two kernels of backward.cu, with its masks: no sum is taken
 * over blocks, so that the order of every sum is fixed. The warpgroups are those of hopper.cu: a producer
 * that starts the copies, and two consumers with 64 rows of the block's own tile each.
 *
 *                   key_gradient_hopper               query_gradient_hopper
 *     own tile      128 keys of a head of k           128 queries of a head
 *     loop          tiles of 64 queries (96 with      tiles of 64 keys (96 with heads
 *                   heads of 64) that see them, of    of 64) that they see
 *                   one head of the group after
 *                   another
 *     own operands  K, V in shared memory             Q, dO in registers
 *     products      Sᵀ = K · Qᵀ, dPᵀ = V · dOᵀ        S = Q · Kᵀ, dP = dO · Vᵀ
 *                   P = exp(S - lse)                  P = exp(S - lse)
 *                   dV += Pᵀ · dO                     dS = P · (dP - delta)
 *                   dS = P · (dP - delta)             dQ += dS · K
 *                   dK += dSᵀ · Q
 *     overlap       exp beside dPᵀ; dS beside dV; a   exp and dS beside dP and the dQ of the tile
 *                   warpgroup's arithmetic beside     before; a warpgroup's arithmetic beside the
 *                   the other one's products          other one's products
 *
 * A place of the loop's tiles is full when its bytes have arrived (and the rows of lse and delta, which a
 * warp of the producer writes, since they need not be aligned as the copy engine asks); it is empty when all
 * warps of the consumers have waited for the products that read it. Barriers' phases are as in hopper.cu.
 *
 * With heads of 128, for a tile of the loop (m64n64k16 takes 32 cycles of the tensor cores, m64n128k16 64;
 * shared memory gives or takes 128 bytes a cycle, the exponentials are 16 a cycle):
 *
 *                               key_gradient_hopper               query_gradient_hopper
 *     products of a warpgroup   8 + 8 of m64n64, 4 + 4 of n128    8 + 8 of m64n64, 4 of n128
 *     tensor cores, cycles      2 · 1024                          2 · 768
 *     shared memory, cycles     1792 (192 KiB read, 32 written)   1024 (96 KiB read, 32 written)
 *     exponentials, cycles      2 · 256                           2 · 256
 *     registers, in arrays      dK, dV 128, S, dP 64, P, dS 16    dQ 64, Q, dO 64, S, dP 64, dS 16
 *     shared memory             64 + 4 · 32.5 KiB                 32 + 4 · 32 KiB
 *
 * 4 documents of 4096 rows, 32 heads: 266,240 tiles of a warpgroup in each kernel, 3.6 million cycles of each
 * multiprocessor's tensor cores or 2.1 ms at 1.75 GHz, were these never idle: 666 TFLOP/s of the five
 * products that a backward pass needs at least. tests/bench/RESULTS.md has what is expected of it.
 */
#include "engine/device/cuda/attention/hopper_tiles.cuh"

#define ROWS   (64 * CONSUMERS) /* of a block's own tile */
#define STAGES 4

/* Rows of the other side at a time. With heads of 64 a product of 64 rows would take the tensor cores no
 * longer than it takes to begin and to await it (8 % slower on an H200 at 4096 rows); for 128 rows there are
 * too few registers. */
template <int HD> constexpr int LOOP_ROWS = HD > 64 ? 64 : 96;

/* One for each place of a tile of the loop. */
struct places {
	uint64_t own_full, full[STAGES], empty[STAGES];
};

/* The rows [first, last] of a block's own tile, and the rows from `begin` on that its loop goes over, `steps`
 * tiles of STEP rows. */
struct block_range {
	int first, last, begin, steps, groups; /* groups: warpgroups that have rows */
};

static __device__ __forceinline__ void init_places(places *at, int groups, int writers)
{
	barrier_init(&at->own_full, 1);
	for (int i = 0; i < STAGES; i++) {
		barrier_init(&at->full[i], (uint32_t)writers);
		barrier_init(&at->empty[i], (uint32_t)(4 * groups));
	}
	barrier_init_fence();
}

static __device__ __forceinline__ void wait_full(places *at, int i)
{
	barrier_wait(&at->full[i % STAGES], (uint32_t)(i / STAGES) & 1);
}

static __device__ __forceinline__ void wait_empty(places *at, int i)
{
	barrier_wait(&at->empty[i % STAGES], (uint32_t)(i / STAGES + 1) & 1);
}

static __device__ __forceinline__ void release(places *at, int i)
{
	if (threadIdx.x % 32 == 0)
		barrier_arrive(&at->empty[i % STAGES]);
}

/* A tile of which the warpgroup's rows see nothing. */
static __device__ __forceinline__ void skip(places *at, int i)
{
	wait_full(at, i);
	release(at, i);
}

/* Rotates gradients back where whole heads were rotated, with the bits of rope.cu behind this kernel: the
 * thread that has an element of a row's first half has its partner of the second. */
template <int HD>
static __device__ __forceinline__ void rotate_rows(float (&x)[HD / 2], const attention_shape &a, int first,
                                                   int last)
{
	int row = first + (int)threadIdx.x / 32 % 4 * 16 + (int)threadIdx.x % 32 / 4;

	if (!rotates_heads(a))
		return;
#pragma unroll
	for (int half = 0; half < 2; half++, row += 8) {
		int64_t turn = row <= last ? (int64_t)a.positions[row] * (HD / 2) : 0;

		turn += 2 * (threadIdx.x % 4);
#pragma unroll
		for (int n = 0; n < HD / 16; n++) {
			float c[2], s[2];

			load(c, a.cos_table + turn + 8 * n);
			load(s, a.sin_table + turn + 8 * n);
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float &v = x[4 * n + 2 * half + i], &w = x[4 * (n + HD / 16) + 2 * half + i];
				float before = rounded<bf16>(v), other = rounded<bf16>(w);

				v = before * c[i] + other * s[i];
				w = other * c[i] - before * s[i];
			}
		}
	}
}

/* ---- gradients of keys and values ---- */

template <int HD> struct key_memory {
	static constexpr int STEP = LOOP_ROWS<HD>;
	static constexpr int OWN = TILE_BYTES<HD, ROWS>, TILE = TILE_BYTES<HD, STEP>;
	static constexpr int KEYS = 0, VALUES = OWN, QUERIES = 2 * OWN, GRADIENTS = QUERIES + STAGES * TILE,
	                     STATISTICS = GRADIENTS + STAGES * TILE, STATISTIC = 2 * STEP * 4,
	                     PLACES = STATISTICS + STAGES * STATISTIC;
	static constexpr size_t BYTES = 1024 + PLACES + sizeof(places); /* aligned to 1024 within it */
};

template <int HD> static __device__ __forceinline__ block_range keys_of(const attention_shape &a)
{
	constexpr int STEP = LOOP_ROWS<HD>;
	block_range r;
	int end;

	r.first = r.begin = (int)blockIdx.y * ROWS;
	r.last = r.first + ROWS < (int)a.keys ? r.first + ROWS - 1 : (int)a.keys - 1;
	r.groups = (r.last - r.first) / 64 + 1;
	end = (int)end_query(a, r.last);
	r.steps = (end - r.begin + STEP - 1) / STEP;
	return r;
}

template <int HD>
static __device__ __forceinline__ void
produce_queries(const attention_shape &a, const block_range &r, unsigned char *memory, places *at,
                const tensor_map *q, const tensor_map *k, const tensor_map *v, const tensor_map *d_o)
{
	typedef key_memory<HD> M;
	constexpr int STEP = M::STEP;
	int kv = (int)blockIdx.x, end = r.begin + r.steps * STEP;

	barrier_expect(&at->own_full, 2 * M::OWN);
	copy_tile<HD, ROWS>(memory + M::KEYS, k, &at->own_full, kv * HD, r.first);
	copy_tile<HD, ROWS>(memory + M::VALUES, v, &at->own_full, kv * HD, r.first);
	for (int head = kv * a.group, i = 0; head < (kv + 1) * a.group; head++)
		for (int row = r.begin; row < end; row += STEP, i++) {
			uint64_t *full = &at->full[i % STAGES];
			unsigned char *to = memory + M::QUERIES + i % STAGES * M::TILE;

			wait_empty(at, i);
			barrier_expect(full, 2 * M::TILE);
			copy_tile<HD, STEP>(to, q, full, head * HD, row);
			copy_tile<HD, STEP>(to + M::GRADIENTS - M::QUERIES, d_o, full, head * HD, row);
		}
}

/* lse, in powers of two, and delta of each tile of queries; both 0 beyond the end, where the queries are 0,
 * too. One warp. */
template <int HD>
static __device__ __forceinline__ void produce_statistics(const attention_shape &a, const block_range &r,
                                                          unsigned char *memory, places *at,
                                                          const float *delta, const float *lse)
{
	typedef key_memory<HD> M;
	constexpr int STEP = M::STEP;
	int lane = (int)threadIdx.x % 32, end = r.begin + r.steps * STEP, i = 0;
	int tokens = (int)a.queries;

	lse += (int64_t)blockIdx.x * a.group * tokens;
	delta += (int64_t)blockIdx.x * a.group * tokens;
	for (int h = 0; h < a.group; h++, lse += tokens, delta += tokens)
		for (int row = r.begin + lane; row < end; row += STEP, i++) {
			float *to = (float *)(memory + M::STATISTICS + i % STAGES * M::STATISTIC) + lane;

			wait_empty(at, i);
#pragma unroll
			for (int j = 0; j < STEP; j += 32) {
				bool valid = row + j < tokens;

				to[j] = valid ? lse[row + j] * LOG2_E : 0;
				to[STEP + j] = valid ? delta[row + j] : 0;
			}
			barrier_arrive(&at->full[i % STAGES]);
		}
}

/* The keys of a thread: key[half], and the end of the queries that see each. */
struct thread_keys {
	int key[2], end[2];
};

template <int N>
static __device__ __forceinline__ void mask_queries(float (&s)[N], const thread_keys &k, int query)
{
#pragma unroll
	for (int n = 0; n < N / 4; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int x = query + 8 * n + i % 2;

			if (x < k.key[i / 2] || x >= k.end[i / 2])
				s[4 * n + i] = -INFINITY;
		}
}

/* The probabilities of scores whose columns are queries. */
template <int N>
static __device__ __forceinline__ void probabilities(float (&s)[N], const float *lse, float scale2)
{
#pragma unroll
	for (int n = 0; n < N / 4; n++) {
		float l[2];

		load(l, lse + 8 * n);
#pragma unroll
		for (int i = 0; i < 4; i++)
			s[4 * n + i] = fast_exp2(s[4 * n + i] * scale2 - l[i % 2]);
	}
}

/* ds = p · (dp - delta), in place of dp. */
template <int N>
static __device__ __forceinline__ void score_gradients(float (&dp)[N], const float (&p)[N],
                                                       const float *delta)
{
#pragma unroll
	for (int n = 0; n < N / 4; n++) {
		float d[2];

		load(d, delta + 8 * n);
#pragma unroll
		for (int i = 0; i < 4; i++)
			dp[4 * n + i] = p[4 * n + i] * (dp[4 * n + i] - d[i % 2]);
	}
}

template <int HD>
static __device__ __forceinline__ void consume_queries(const attention_shape &a, const block_range &r,
                                                       int group, unsigned char *memory, places *at,
                                                       bf16 *d_k, bf16 *d_v)
{
	typedef key_memory<HD> M;
	constexpr int STEP = M::STEP;
	uint32_t base = shared_address(memory);
	int t = (int)threadIdx.x % 4, first = r.first + 64 * group;
	int last = first + 63 < r.last ? first + 63 : r.last, closed = (int)end_query(a, first);
	int steps = ((int)end_query(a, last) - r.begin + STEP - 1) / STEP, i = 0;
	float dk[HD / 2], dv[HD / 2], scale2 = a.scale * LOG2_E;
	thread_keys keys;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int key = first + (int)threadIdx.x / 32 % 4 * 16 + 8 * half + (int)threadIdx.x % 32 / 4;

		keys.key[half] = key;
		keys.end[half] = key <= last ? (int)end_query(a, key) : 0;
	}
#pragma unroll
	for (int j = 0; j < HD / 2; j++)
		dk[j] = dv[j] = 0;
	barrier_wait(&at->own_full, 0);
	for (int h = 0; h < a.group; h++) {
		int step = 0;

		for (; step < 64 * group / STEP; step++, i++) /* before the warpgroup's first key */
			skip(at, i);
		for (; step < steps; step++, i++) {
			int place = i % STAGES, query = r.begin + step * STEP;
			float s[STEP / 2], dp[STEP / 2];
			uint32_t p[STEP / 16][4], ds[STEP / 16][4];
			uint32_t queries = base + M::QUERIES + (uint32_t)(place * M::TILE);
			uint32_t gradients = base + M::GRADIENTS + (uint32_t)(place * M::TILE);
			const float *statistics =
			    (const float *)(memory + M::STATISTICS + place * M::STATISTIC) + 2 * t;

			wait_full(at, i);
			wgmma_fence();
			multiply_transposed<bf16, HD, ROWS, STEP>(s, base + M::KEYS, 64 * group, queries);
			multiply_transposed<bf16, HD, ROWS, STEP>(dp, base + M::VALUES, 64 * group,
			                                          gradients);
			wgmma_wait<1>();
			registers_settle(s);
			if (query < last || query + STEP > closed)
				mask_queries(s, keys, query + 2 * t);
			probabilities(s, statistics, scale2);
			round_operand<bf16>(p, s);
			registers_settle(dv);
			wgmma_fence();
			multiply_add<bf16, HD, STEP>(dv, p, gradients);
			wgmma_wait<1>();
			registers_settle(dp);
			score_gradients(dp, s, statistics + STEP);
			round_operand<bf16>(ds, dp);
			registers_settle(dk);
			wgmma_fence();
			multiply_add<bf16, HD, STEP>(dk, ds, queries);
			wgmma_wait<0>();
			registers_settle(dv);
			registers_settle(dk);
			__syncwarp(); /* behind what all lanes have read of lse and delta */
			release(at, i);
		}
		for (; step < r.steps; step++, i++) /* behind the end of the warpgroup's keys */
			skip(at, i);
	}
#pragma unroll
	for (int j = 0; j < HD / 2; j++)
		dk[j] *= a.scale;
	rotate_rows<HD>(dk, a, first, last);
	d_k += (int64_t)blockIdx.x * HD;
	d_v += (int64_t)blockIdx.x * HD;
	put<bf16, HD, ROWS>(d_k, a.ld_k, first, last, memory + M::KEYS, group, dk);
	put<bf16, HD, ROWS>(d_v, a.ld_v, first, last, memory + M::VALUES, group, dv);
}

template <int HD>
static __global__ void __launch_bounds__(THREADS, 1)
    key_gradient_hopper(attention_shape a, bf16 *d_k, bf16 *d_v, const float *delta, const float *lse,
                        const __grid_constant__ tensor_map q, const __grid_constant__ tensor_map k,
                        const __grid_constant__ tensor_map v, const __grid_constant__ tensor_map d_o)
{
	DYNAMIC_SHARED(start);
	unsigned char *memory = start + (1024 - shared_address(start) % 1024) % 1024;
	places *at = (places *)(memory + key_memory<HD>::PLACES);
	block_range r = keys_of<HD>(a);
	/* The same in all lanes of a warp, which the compiler knows of a shuffle: addresses are then computed
	 * once. */
	int group = shuffle((int)threadIdx.x / WARPGROUP, 0);

	if (threadIdx.x == 0) {
		tensor_prefetch(&k);
		tensor_prefetch(&v);
		tensor_prefetch(&q);
		tensor_prefetch(&d_o);
		init_places(at, r.groups, 1 + 32);
	}
	__syncthreads();
	if (group == 0) {
		registers_fewer<PRODUCER_REGISTERS>();
		if (threadIdx.x == 0)
			produce_queries<HD>(a, r, memory, at, &q, &k, &v, &d_o);
		else if (threadIdx.x / 32 == 1)
			produce_statistics<HD>(a, r, memory, at, delta, lse);
	} else {
		registers_more<CONSUMER_REGISTERS>();
		if (group <= r.groups)
			consume_queries<HD>(a, r, group - 1, memory, at, d_k, d_v);
	}
}

/* ---- gradients of queries ---- */

template <int HD> struct query_memory {
	static constexpr int STEP = LOOP_ROWS<HD>;
	static constexpr int TILE = TILE_BYTES<HD, STEP>;
	static constexpr int OUTPUT = 0, KEYS = TILE_BYTES<HD, ROWS>, VALUES = KEYS + STAGES * TILE,
	                     PLACES = VALUES + STAGES * TILE;
	static constexpr size_t BYTES = 1024 + PLACES + sizeof(places); /* aligned to 1024 within it */
};

template <int HD> static __device__ __forceinline__ block_range queries_of(const attention_shape &a)
{
	constexpr int STEP = LOOP_ROWS<HD>;
	block_range r;

	r.first = (int)(gridDim.y - 1 - blockIdx.y) * ROWS;
	r.last = r.first + ROWS < (int)a.queries ? r.first + ROWS - 1 : (int)a.queries - 1;
	r.groups = (r.last - r.first) / 64 + 1;
	r.begin = (int)first_key(a, r.first);
	r.steps = (r.last - r.begin) / STEP + 1;
	return r;
}

template <int HD>
static __device__ __forceinline__ void produce_keys(const attention_shape &a, const block_range &r,
                                                    unsigned char *memory, places *at, const tensor_map *k,
                                                    const tensor_map *v)
{
	typedef query_memory<HD> M;
	constexpr int STEP = M::STEP;
	int column = (int)blockIdx.x / a.group * HD;

	for (int i = 0; i < r.steps; i++) {
		int place = i % STAGES, row = r.begin + i * STEP;

		wait_empty(at, i);
		barrier_expect(&at->full[place], 2 * M::TILE);
		copy_tile<HD, STEP>(memory + M::KEYS + place * M::TILE, k, &at->full[place], column, row);
		copy_tile<HD, STEP>(memory + M::VALUES + place * M::TILE, v, &at->full[place], column, row);
	}
}

/* The operand of a product that has the thread's rows of a matrix, from global memory. */
template <int HD>
static __device__ __forceinline__ void load_operand(uint32_t (&x)[HD / 16][4], const bf16 *p, int64_t ld,
                                                    const thread_rows &rows, int last)
{
	p += 2 * (threadIdx.x % 4);
#pragma unroll
	for (int k = 0; k < HD / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int row = rows.row[i % 2];

			x[k][i] =
			    row <= last ? *(const uint32_t *)(p + (int64_t)row * ld + 16 * k + i / 2 * 8) : 0;
		}
}

/* s = x · a tile, transposed. */
template <int HD>
static __device__ __forceinline__ void multiply_operand(float (&s)[LOOP_ROWS<HD> / 2],
                                                        const uint32_t (&x)[HD / 16][4], uint32_t at)
{
	constexpr int STEP = LOOP_ROWS<HD>;
#pragma unroll
	for (int k = 0; k < HD / 16; k++)
		wgmma<bf16, STEP, false>(s, x[k], tile<HD>::by_rows(at, STEP, 0, 16 * k), k > 0);
	wgmma_commit();
}

/* s = q · a tile of keys, transposed, and dp = d_o · the values of these keys, transposed. */
template <int HD>
static __device__ __forceinline__ void
multiply_both(float (&s)[LOOP_ROWS<HD> / 2], float (&dp)[LOOP_ROWS<HD> / 2],
              const uint32_t (&queries)[HD / 16][4], const uint32_t (&gradients)[HD / 16][4], uint32_t keys)
{
	wgmma_fence();
	multiply_operand<HD>(s, queries, keys);
	multiply_operand<HD>(dp, gradients, keys + query_memory<HD>::VALUES - query_memory<HD>::KEYS);
}

/* The probabilities of scores whose rows are queries. key: the first of the tile; open: every query of the
 * warpgroup sees the keys from here to its first query. */
template <int N>
static __device__ __forceinline__ void query_probabilities(float (&s)[N], const thread_rows &rows, int key,
                                                           int first, int open, const float (&lse)[2],
                                                           float scale2)
{
	if (key + 2 * N - 1 > first || key < open)
		mask_keys(s, rows, key + 2 * ((int)threadIdx.x % 4));
#pragma unroll
	for (int j = 0; j < N; j++)
		s[j] = fast_exp2(s[j] * scale2 - lse[j / 2 % 2]);
}

template <int N>
static __device__ __forceinline__ void query_score_gradients(float (&dp)[N], const float (&p)[N],
                                                             const float (&delta)[2])
{
#pragma unroll
	for (int j = 0; j < N; j++)
		dp[j] = p[j] * (dp[j] - delta[j / 2 % 2]);
}

template <int HD>
static __device__ __forceinline__ void
consume_keys(const attention_shape &a, const block_range &r, int group, unsigned char *memory, places *at,
             bf16 *d_q, const bf16 *d_o, const bf16 *q, const float *delta, const float *lse)
{
	typedef query_memory<HD> M;
	constexpr int STEP = M::STEP;
	uint32_t base = shared_address(memory);
	int head = (int)blockIdx.x, first = r.first + 64 * group, i = 0;
	int last = first + 63 < r.last ? first + 63 : r.last, open = (int)first_key(a, last);
	int from = ((int)first_key(a, first) - r.begin) / STEP, to = (last - r.begin) / STEP + 1;
	float dq[HD / 2], l[2], d[2], scale2 = a.scale * LOG2_E;
	uint32_t queries[HD / 16][4], gradients[HD / 16][4], ds[STEP / 16][4];
	thread_rows rows;
	auto keys_at = [&](int tile) { return base + M::KEYS + (uint32_t)(tile % STAGES * M::TILE); };

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = first + (int)threadIdx.x / 32 % 4 * 16 + 8 * half + (int)threadIdx.x % 32 / 4;
		int64_t at_row = head * a.queries + row;

		rows.row[half] = row;
		rows.begin[half] = row <= last ? (int)first_key(a, row) : last + 1;
		l[half] = row <= last ? lse[at_row] * LOG2_E : 0;
		d[half] = row <= last ? delta[at_row] : 0;
	}
	load_operand<HD>(queries, q + head * HD, a.ld_q, rows, last);
	load_operand<HD>(gradients, d_o + head * HD, a.ld_o, rows, last);
#pragma unroll
	for (int j = 0; j < HD / 2; j++)
		dq[j] = 0;
	for (; i < from; i++)
		skip(at, i);
	wait_full(at, i);
	{
		float s[STEP / 2], dp[STEP / 2];

		multiply_both<HD>(s, dp, queries, gradients, keys_at(i));
		wgmma_wait<1>();
		registers_settle(s);
		query_probabilities(s, rows, r.begin + i * STEP, first, open, l, scale2);
		wgmma_wait<0>();
		registers_settle(dp);
		query_score_gradients(dp, s, d);
		round_operand<bf16>(ds, dp);
	}
	for (i++; i < to; i++) {
		float s[STEP / 2], dp[STEP / 2];

		wait_full(at, i);
		multiply_both<HD>(s, dp, queries, gradients, keys_at(i));
		registers_settle(dq);
		wgmma_fence();
		multiply_add<bf16, HD, STEP>(dq, ds, keys_at(i - 1));
		wgmma_wait<2>();
		registers_settle(s);
		query_probabilities(s, rows, r.begin + i * STEP, first, open, l, scale2);
		wgmma_wait<1>();
		registers_settle(dp);
		query_score_gradients(dp, s, d);
		wgmma_wait<0>();
		registers_settle(dq);
		release(at, i - 1);
		round_operand<bf16>(ds, dp);
	}
	registers_settle(dq);
	wgmma_fence();
	multiply_add<bf16, HD, STEP>(dq, ds, keys_at(i - 1));
	wgmma_wait<0>();
	registers_settle(dq);
	release(at, i - 1);
	for (; i < r.steps; i++)
		skip(at, i);
#pragma unroll
	for (int j = 0; j < HD / 2; j++)
		dq[j] *= a.scale;
	rotate_rows<HD>(dq, a, first, last);
	put<bf16, HD, ROWS>(d_q + head * HD, a.ld_q, first, last, memory + M::OUTPUT, group, dq);
}

template <int HD>
static __global__ void __launch_bounds__(THREADS, 1)
    query_gradient_hopper(attention_shape a, bf16 *d_q, const bf16 *d_o, const bf16 *q, const float *delta,
                          const float *lse, const __grid_constant__ tensor_map k,
                          const __grid_constant__ tensor_map v)
{
	DYNAMIC_SHARED(start);
	unsigned char *memory = start + (1024 - shared_address(start) % 1024) % 1024;
	places *at = (places *)(memory + query_memory<HD>::PLACES);
	block_range r = queries_of<HD>(a);
	/* The same in all lanes of a warp, which the compiler knows of a shuffle: addresses are then computed
	 * once. */
	int group = shuffle((int)threadIdx.x / WARPGROUP, 0);

	if (threadIdx.x == 0) {
		tensor_prefetch(&k);
		tensor_prefetch(&v);
		init_places(at, r.groups, 1);
	}
	__syncthreads();
	if (group == 0) {
		registers_fewer<PRODUCER_REGISTERS>();
		if (threadIdx.x == 0)
			produce_keys<HD>(a, r, memory, at, &k, &v);
	} else {
		registers_more<CONSUMER_REGISTERS>();
		if (group <= r.groups)
			consume_keys<HD>(a, r, group - 1, memory, at, d_q, d_o, q, delta, lse);
	}
}

/* ---- both ---- */

template <int HD>
static bool launch(struct device *dev, const attention_shape &a, bf16 *d_q, bf16 *d_k, bf16 *d_v,
                   const bf16 *d_o, const float *delta, const float *lse, const bf16 *q, const bf16 *k,
                   const bf16 *v)
{
	constexpr size_t shared_k = key_memory<HD>::BYTES, shared_q = query_memory<HD>::BYTES;
	constexpr int columns = tile<HD>::COLUMNS, step = LOOP_ROWS<HD>;
	constexpr enum swizzle swizzle = tile<HD>::SWIZZLE;
	unsigned blocks = (unsigned)ceil_div(a.queries, ROWS);
	/* The blocks with the most work of all heads come first. */
	dim3 grid_k((unsigned)(a.heads / a.group), blocks), grid_q((unsigned)a.heads, blocks);
	int64_t width = (int64_t)a.heads * HD, width_kv = width / a.group;
	tensor_map q_step, o_step, k_step, v_step, k_own, v_own;

	if (shared_k > dev->shared_most || shared_q > dev->shared_most || blocks > 65535 ||
	    !tensor_map_make(dev, &q_step, q, a.queries, width, a.ld_q, step, columns, swizzle) ||
	    !tensor_map_make(dev, &o_step, d_o, a.queries, width, a.ld_o, step, columns, swizzle) ||
	    !tensor_map_make(dev, &k_step, k, a.keys, width_kv, a.ld_k, step, columns, swizzle) ||
	    !tensor_map_make(dev, &v_step, v, a.keys, width_kv, a.ld_v, step, columns, swizzle) ||
	    !tensor_map_make(dev, &k_own, k, a.keys, width_kv, a.ld_k, ROWS, columns, swizzle) ||
	    !tensor_map_make(dev, &v_own, v, a.keys, width_kv, a.ld_v, ROWS, columns, swizzle))
		return false;
	LAUNCH(dev, (key_gradient_hopper<HD>), grid_k, THREADS, shared_k, a, d_k, d_v, delta, lse, q_step,
	       k_own, v_own, o_step);
	LAUNCH(dev, (query_gradient_hopper<HD>), grid_q, THREADS, shared_q, a, d_q, d_o, q, delta, lse,
	       k_step, v_step);
	return true;
}

bool attention_backward_hopper(struct device *dev, const attention_shape &a, bf16 *d_q, bf16 *d_k, bf16 *d_v,
                               const bf16 *d_o, const float *delta, const float *lse, const bf16 *q,
                               const bf16 *k, const bf16 *v)
{
	if (dev->major != 9 || a.cap > 0)
		return false;
	switch (a.head_dim) {
	case 64:
		return launch<64>(dev, a, d_q, d_k, d_v, d_o, delta, lse, q, k, v);
	case 96:
		return launch<96>(dev, a, d_q, d_k, d_v, d_o, delta, lse, q, k, v);
	case 128:
		return launch<128>(dev, a, d_q, d_k, d_v, d_o, delta, lse, q, k, v);
	}
	return false;
}
