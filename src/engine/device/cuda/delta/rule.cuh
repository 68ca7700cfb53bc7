// SPDX-License-Identifier: Apache-2.0
/*
 * What the files of the gated delta rule share. The batch is cut into tiles of DEVICE_DELTA_CHUNK tokens. A
 * tile may hold tokens of several documents: what tokens of different documents would do to each other is
 * masked, so that the chunks of delta.h that lie in a tile are computed at once. At most one document goes
 * beyond the end of a tile, so that there is one state for each tile: states[i] is the one in front of tile
 * i, of the document that has the tokens on both sides of it.
 *
 * With G the sum of g over a document's tokens of a tile up to a token, and D_ij = exp(G_i - G_j) for i >= j
 * of the same document, else 0:
 *
 *     A_ij = beta_i (k_i · k_j) D_ij for i > j;  T = (I + A)^-1
 *     U = T diag(beta) V;  W = T diag(beta exp(G)) K;  N = U - W S
 *     P_ij = (q_i · k_j) D_ij;  O = diag(exp(G)) Q S + P N
 *     S' = exp(G_last) S + (diag(exp(G_last - G)) K)ᵀ N
 *
 * All is in fp32. G is kept as the sum of two floats: where a token forgets nearly all, |G| is large, and
 * the difference of two of them would be off by more than the products are.
 */
#pragma once

#include "engine/device/cuda/delta/documents.cuh"
#include "engine/device/cuda/kernel.cuh"
extern "C" {
#include "engine/device/delta.h"
}

#define TILE         DEVICE_DELTA_CHUNK
#define PITCH        (TILE + 4) /* of a matrix in shared memory: rows are aligned, and four banks apart */
#define RULE_THREADS 256        /* 16 x 16, each with four rows and four columns of a product */
#define SLICE        32         /* columns of values that a block of the recurrence over tiles has */
#define NARROW       (SLICE + 4)
#define SQUARE       (TILE * PITCH)
static_assert(TILE == 64, "the sizes in parts.h are computed with it");

/* A call for some of the heads of values, with what lies in the scratch: [heads][rows][…], unless another
 * shape stands there. */
struct delta_call {
	int64_t tokens, rows;                    /* rows: of whole tiles */
	int documents, heads, first_head, group; /* group: heads of values to one of q and k */
	int key_dim, value_dim;
	int64_t ld, ld_gates, ld_o;
	const int32_t *starts;
	const void *a_log, *dt_bias;
	/* [rows]: the first token of a token's document; behind the batch a row's own number. */
	int32_t *from;
	float *gates;  /* [heads][DELTA_GATES][rows] */
	float *n;      /* first U, then N: value_dim */
	float *w;      /* key_dim; the gradient of k afterwards */
	float *states; /* [heads][tiles][key_dim][value_dim] */
	/* Of the backward pass; NULL in the forward pass. */
	float *inverse;  /* T: TILE */
	float *d_n;      /* value_dim; Tᵀ times it afterwards */
	float *d_states; /* as states */
	float *d_q;      /* key_dim */
	float *sums;     /* [2][tiles][heads]: of d_a_log and d_dt_bias */
};

/* What gates has of each token: both parts of G, beta, g, and what q and k are multiplied by. */
enum { GATE_SUM, GATE_LOW, GATE_BETA, GATE_LOG, GATE_Q, GATE_K };

/* The same of a tile, in shared memory; begin: the first token of the document, counted from the tile's
 * first, so that it is negative where the state in front of the tile is that of the document. */
struct tile_gates {
	float sum[TILE], low[TILE], beta[TILE], q[TILE], k[TILE];
	int begin[TILE];
};

/* Tokens of a tile. */
static __device__ __forceinline__ int tile_tokens(const delta_call &d, int64_t first)
{
	return d.tokens - first < TILE ? (int)(d.tokens - first) : TILE;
}

/* Whether a document goes beyond the end of a tile. */
static __device__ __forceinline__ bool tile_continues(const delta_call &d, int64_t first)
{
	return first + TILE < d.tokens && d.from[first + TILE] < first + TILE;
}

/* Done behind a barrier. */
static __device__ __forceinline__ void fetch_gates(tile_gates *to, const delta_call &d, int64_t first,
                                                   int head)
{
	const float *gates = d.gates + head * DELTA_GATES * d.rows + first;

	for (int i = (int)threadIdx.x; i < TILE; i += RULE_THREADS) {
		to->sum[i] = gates[GATE_SUM * d.rows + i];
		to->low[i] = gates[GATE_LOW * d.rows + i];
		to->beta[i] = gates[GATE_BETA * d.rows + i];
		to->q[i] = gates[GATE_Q * d.rows + i];
		to->k[i] = gates[GATE_K * d.rows + i];
		to->begin[i] = (int)(d.from[first + i] - first);
	}
}

/* exp(G_i - G_j), i >= j of one document. */
static __device__ __forceinline__ float decay(const tile_gates &t, int i, int j)
{
	return expf(fminf((t.sum[i] - t.sum[j]) + (t.low[i] - t.low[j]), 0.0f));
}

/* D_ij */
static __device__ __forceinline__ float masked_decay(const tile_gates &t, int i, int j)
{
	return j <= i && j >= t.begin[i] ? decay(t, i, j) : 0.0f;
}

/* What the state in front of the tile is multiplied by for token i: 0 where it is another document's. */
static __device__ __forceinline__ float decay_before(const tile_gates &t, int i)
{
	return t.begin[i] < 0 ? expf(t.sum[i]) : 0.0f;
}

/* What token i adds to the state behind a tile that a document continues beyond is multiplied by. */
static __device__ __forceinline__ float decay_behind(const tile_gates &t, int i)
{
	return i >= t.begin[TILE - 1] ? decay(t, TILE - 1, i) : 0.0f;
}

/* Of a thread: its elements of a matrix [TILE, COLS], in quads of a row. */
template <int COLS> constexpr int QUADS = TILE *COLS / 4 / RULE_THREADS;

/* `rows` rows and `cols` columns of x to the registers of the block's threads, zeros elsewhere. Work can be
 * done while they arrive. */
template <int COLS, typename T>
static __device__ __forceinline__ void request(float (&v)[QUADS<COLS>][4], const T *x, int64_t ld, int rows,
                                               int cols)
{
	bool wide = ((uintptr_t)x | (uintptr_t)ld * sizeof(T)) % (4 * sizeof(T)) == 0 && cols % 4 == 0;

#pragma unroll
	for (int i = 0; i < QUADS<COLS>; i++) {
		int e = (int)threadIdx.x + i * RULE_THREADS, r = e / (COLS / 4), c = e % (COLS / 4) * 4;

		if (wide && r < rows && c < cols) {
			load(v[i], x + r * ld + c);
			continue;
		}
#pragma unroll
		for (int j = 0; j < 4; j++)
			v[i][j] = r < rows && c + j < cols ? to_float(x[r * ld + c + j]) : 0.0f;
	}
}

/* What was requested, each row multiplied by factor(row), to shared memory, where rows are LD apart. Done
 * behind a barrier. */
template <int COLS, int LD, typename F>
static __device__ __forceinline__ void receive(float *to, float (&v)[QUADS<COLS>][4], F factor)
{
#pragma unroll
	for (int i = 0; i < QUADS<COLS>; i++) {
		int e = (int)threadIdx.x + i * RULE_THREADS, r = e / (COLS / 4), c = e % (COLS / 4) * 4;
		float by = factor(r);

#pragma unroll
		for (int j = 0; j < 4; j++)
			v[i][j] *= by;
		store(to + r * LD + c, v[i]);
	}
}

/* Both at once. */
template <int COLS, int LD, typename T, typename F>
static __device__ __forceinline__ void fetch_scaled(float *to, const T *x, int64_t ld, int rows, int cols,
                                                    F factor)
{
	float v[QUADS<COLS>][4];

	request<COLS>(v, x, ld, rows, cols);
	receive<COLS, LD>(to, v, factor);
}

template <typename T>
static __device__ __forceinline__ void fetch(float *to, const T *x, int64_t ld, int rows, int cols)
{
	fetch_scaled<TILE, PITCH>(to, x, ld, rows, cols, [](int) { return 1.0f; });
}

/* The row and the columns of a thread's part of a product: rows row_of() + r, columns column_of() + 16·c. */
static __device__ __forceinline__ int row_of()
{
	return (int)threadIdx.x / 16 * 4;
}

static __device__ __forceinline__ int column_of()
{
	return (int)threadIdx.x % 16;
}

/* c += A·B over [from, to) of the depth, which are multiples of 4. A is [TILE, depth], B [depth, 16·NC], or
 * where the flags are set their transposes, in shared memory, A's rows PITCH apart and B's LD. A thread's 16
 * products for each of the depth need five to eight floats: the arithmetic is the limit, not shared memory.
 */
template <bool A_TRANSPOSED, bool B_TRANSPOSED, int NC, int LD = PITCH>
static __device__ __forceinline__ void multiply(float (&c)[4][NC], const float *a, const float *b, int from,
                                                int to)
{
	int row = row_of(), col = column_of();

	for (int k = from; k < to; k += 4) {
		float x[4][4], y[4][NC];

#pragma unroll
		for (int i = 0; i < 4; i++)
			load(x[i], A_TRANSPOSED ? a + (k + i) * PITCH + row : a + (row + i) * PITCH + k);
#pragma unroll
		for (int j = 0; j < NC; j++) {
			if constexpr (B_TRANSPOSED) {
				float four[4];

				load(four, b + (col + 16 * j) * LD + k);
#pragma unroll
				for (int i = 0; i < 4; i++)
					y[i][j] = four[i];
			} else {
#pragma unroll
				for (int i = 0; i < 4; i++)
					y[i][j] = b[(k + i) * LD + col + 16 * j];
			}
		}
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int r = 0; r < 4; r++)
#pragma unroll
				for (int j = 0; j < NC; j++)
					c[r][j] += (A_TRANSPOSED ? x[i][r] : x[r][i]) * y[i][j];
	}
}

/* What remains of `dim` columns from `at` on, at most a tile of them. */
static __device__ __forceinline__ int remaining(int dim, int at)
{
	return dim - at < TILE ? dim - at : TILE;
}

/* The depth that multiply takes for so many columns, behind which fetch has written zeros. */
static __device__ __forceinline__ int depth_of(int cols)
{
	return (cols + 3) / 4 * 4;
}

/* f(row, column, element) of each of a thread's elements. */
template <int NC, typename F> static __device__ __forceinline__ void each(float (&c)[4][NC], F f)
{
	int row = row_of(), col = column_of();

#pragma unroll
	for (int r = 0; r < 4; r++)
#pragma unroll
		for (int j = 0; j < NC; j++)
			f(row + r, col + 16 * j, c[r][j]);
}

/* to[row] += the sums of f(row, column, element) over the columns, by one thread for each row. */
template <typename F> static __device__ __forceinline__ void add_rows(float *to, float (&c)[4][4], F f)
{
	int row = row_of(), col = column_of();

#pragma unroll
	for (int r = 0; r < 4; r++) {
		float sum = 0;

#pragma unroll
		for (int j = 0; j < 4; j++)
			sum += f(row + r, col + 16 * j, c[r][j]);
#pragma unroll
		for (int mask = 8; mask; mask >>= 1)
			sum += shuffle_xor(sum, mask);
		if (col == 0)
			to[row + r] += sum;
	}
}

/* The scores x_i · k_j of a tile, over all columns of keys; x is q or k of the tile's first token. The
 * matrices in shared memory are left to the caller behind a barrier. */
template <typename T>
static __device__ __forceinline__ void scores_of(float (&c)[4][4], float *xs, float *ks, const delta_call &d,
                                                 const T *x, const float *x_factor, const T *k,
                                                 const float *k_factor, int rows)
{
	for (int at = 0; at < d.key_dim; at += TILE) {
		int cols = remaining(d.key_dim, at);

		fetch_scaled<TILE, PITCH>(xs, x + at, d.ld, rows, cols, [&](int r) { return x_factor[r]; });
		if (xs != ks)
			fetch_scaled<TILE, PITCH>(ks, k + at, d.ld, rows, cols,
			                          [&](int r) { return k_factor[r]; });
		__syncthreads();
		multiply<false, true>(c, xs, ks, 0, depth_of(cols));
		__syncthreads();
	}
}

/* ---- the recurrence over tiles, of a slice of the columns of values ---- */
/* x + sign · c in the rows of the document that goes through the tiles, and zero in others: to shared memory,
 * and to `global` unless it is NULL. It begins in the first of its tiles, and before each other one. */
static __device__ __forceinline__ void own_rows(float *to, float *global, int64_t ld, int width,
                                                const tile_gates &gates, bool is_first,
                                                const float (&x)[4][2], const float (&c)[4][2], float sign)
{
#pragma unroll
	for (int r = 0; r < 4; r++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			int i = row_of() + r, j = column_of() + 16 * h;
			bool is_own = is_first ? i >= gates.begin[TILE - 1] : gates.begin[i] < 0;
			float y = is_own ? x[r][h] + sign * c[r][h] : 0.0f;

			if (is_own && global && j < width)
				global[i * ld + j] = y;
			to[i * NARROW + j] = y;
		}
}

/* state = kept · state + sum, without the first term where it is fresh; what is inside of it to `global`. */
static __device__ __forceinline__ void add_to_state(float *state, float *global, int64_t ld, int rows,
                                                    int width, float (&sum)[4][2], bool fresh, float kept)
{
	each(sum, [&](int i, int j, float product) {
		float *to = state + i * NARROW + j;

		*to = (fresh ? 0.0f : kept * *to) + product;
		if (i < rows && j < width)
			global[i * ld + j] = *to;
	});
}

/* ---- host side ---- */
#define DELTA_DIM 256 /* of a head, at most: what fits into 99 KiB of shared memory */

/* False, with a fault, where heads are larger. */
static inline bool delta_fits(struct device *dev, const struct device_delta *d, const char *operation)
{
	if (d->key_dim <= DELTA_DIM && d->value_dim <= DELTA_DIM)
		return true;
	device_fault(dev, -EOPNOTSUPP, "%s: heads of %d and %d elements; the CUDA engine has room for %d",
	             operation, d->key_dim, d->value_dim, DELTA_DIM);
	return false;
}

/* Fills the call, and puts the parts into the scratch; *at_once: heads of values of one call. False, with a
 * fault, where there is no room for it. */
bool delta_prepare(struct device *dev, const struct device_delta *d, bool backward, delta_call *call,
                   int *at_once, const char *operation);
/* What both passes begin with: gates, N and the states, and with `inverse` T. q, k, v, b and a are those of
 * the whole batch. */
void delta_find_states(struct device *dev, const delta_call &d, enum dtype type, const void *q, const void *k,
                       const void *v, const void *b, const void *a);
/* The block's shared memory for the recurrence over tiles: a state's columns and `narrow` matrices of tokens.
 */
static inline size_t scan_shared(int key_dim, int narrow)
{
	size_t rows = (size_t)ceil_div(key_dim, TILE) * TILE;

	return sizeof(tile_gates) + (SQUARE + (rows + (size_t)narrow * TILE) * NARROW) * sizeof(float);
}
