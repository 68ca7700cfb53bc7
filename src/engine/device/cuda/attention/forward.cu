// SPDX-License-Identifier: Apache-2.0
/*
 * The forward pass on tensor cores (FlashAttention-2, Dao 2023). A block has 32 queries of one head for each
 * warp, of heads of 256, whose sums take as many registers, 16. It loops over the keys that they see, KEYS at
 * a time; the next keys are loaded while the present ones are used. Blocks with the most work start first.
 *
 * Where a block cannot have the shared memory that this needs, its steps are smaller, or it has fewer warps:
 * heads of 128 need 102 KiB, those of 256 132 KiB, and sm_86, sm_89 and sm_120 have 99 KiB.
 */
#include "engine/device/cuda/attention/tiles.cuh"

#define STEP 64 /* keys at a time */

template <int HD> constexpr int M_TILES = HD > 128 ? 1 : 2; /* of a warp */
template <int HD, int WARPS> constexpr int ROWS = 16 * M_TILES<HD> *WARPS;
template <int HD, int KEYS, int WARPS>
constexpr size_t FORWARD_SHARED = (size_t)(ROWS<HD, WARPS> + 4 * KEYS) * TILE_LD<HD> * sizeof(bf16);

/* Turns the scores in s into probabilities relative to the new maximum, and scales the earlier sums to it. */
template <int HD, int MT, int NT>
static __device__ __forceinline__ void online_softmax(float (&s)[MT][NT][4], float (&out)[MT][HD / 8][4],
                                                      float (&max)[MT][2], float (&sum)[MT][2], float scale2)
{
#pragma unroll
	for (int m = 0; m < MT; m++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float before = max[m][half], now = before, shift, alpha, total = 0;

#pragma unroll
			for (int n = 0; n < NT; n++)
				now = fmaxf(now, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
			now = fmaxf(now, shuffle_xor(now, 1)); /* the four lanes of a row */
			now = fmaxf(now, shuffle_xor(now, 2));
			max[m][half] = now;
			shift = now == -INFINITY ? 0 : now * scale2; /* nothing seen yet */
			alpha = fast_exp2(before * scale2 - shift);
#pragma unroll
			for (int n = 0; n < NT; n++) {
#pragma unroll
				for (int i = 2 * half; i < 2 * half + 2; i++) {
					s[m][n][i] = fast_exp2(s[m][n][i] * scale2 - shift);
					total += s[m][n][i];
				}
			}
			sum[m][half] = sum[m][half] * alpha + total;
#pragma unroll
			for (int n = 0; n < HD / 8; n++) {
				out[m][n][2 * half] *= alpha;
				out[m][n][2 * half + 1] *= alpha;
			}
		}
	}
}

/* CAP: with a cap of scores, which are scaled and capped before the largest is looked for. */
template <typename T, int HD, int KEYS, int WARPS, bool CAP>
static __global__ void __launch_bounds__(32 * WARPS)
    forward_kernel(attention_shape a, T *o, float *lse, int64_t ld_lse, const T *q, const T *k, const T *v)
{
	DYNAMIC_SHARED(memory);
	constexpr int MT = M_TILES<HD>, BLOCK_ROWS = ROWS<HD, WARPS>, THREADS = 32 * WARPS,
	              TILE = KEYS * TILE_LD<HD>, NT = KEYS / 8;
	T *queries = (T *)memory, *keys = queries + BLOCK_ROWS * TILE_LD<HD>, *values = keys + 2 * TILE;
	int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, row = (int)threadIdx.x / 32 * 16 * MT;
	int head = (int)blockIdx.y, first = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS,
	    offset = (int)a.offset;
	int last = first + BLOCK_ROWS < (int)a.queries ? first + BLOCK_ROWS - 1 : (int)a.queries - 1;
	int j0 = (int)first_key(a, first + offset) / KEYS * KEYS, end = last + offset + 1;
	/* From this key on every query of the tile sees the keys that are not ahead of it. */
	int open = (int)first_key(a, last + offset);
	float scale = CAP ? 1.0f : a.scale, scale2 = scale * LOG2_E;
	float turn = CAP ? 2 * LOG2_E * a.scale / a.cap : 0; /* of tanh_of */
	float out[MT][HD / 8][4] = {}, max[MT][2], sum[MT][2] = {};
	int begin[MT][2];

	q += (int64_t)head * HD;
	k += (int64_t)(head / a.group) * HD;
	v += (int64_t)(head / a.group) * HD;
	tile_fetch<BLOCK_ROWS, HD, THREADS>(queries, q, a.ld_q, first, (int)a.queries);
	tile_fetch<KEYS, HD, THREADS>(keys, k, a.ld_k, j0, end);
	tile_fetch<KEYS, HD, THREADS>(values, v, a.ld_v, j0, end);
	copy_commit();
#pragma unroll
	for (int m = 0; m < MT; m++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int r = first + row + 16 * m + 8 * half + g;

			begin[m][half] = r <= last ? (int)first_key(a, r + offset) : end;
			max[m][half] = -INFINITY;
		}
	}
	for (int j = j0, stage = 0; j < end; j += KEYS, stage ^= 1) {
		float s[MT][NT][4];

		if (j + KEYS < end) {
			tile_fetch<KEYS, HD, THREADS>(keys + (stage ^ 1) * TILE, k, a.ld_k, j + KEYS, end);
			tile_fetch<KEYS, HD, THREADS>(values + (stage ^ 1) * TILE, v, a.ld_v, j + KEYS, end);
		}
		copy_commit();
		copy_wait<1>();
		__syncthreads();
		multiply_transposed<HD, MT, NT>(s, queries, row, keys + stage * TILE);
		if constexpr (CAP)
			tile_map(s, [&](float score) { return a.cap * tanh_of(score * turn); });
		if (j + KEYS - 1 > first + offset || j < open) {
#pragma unroll
			for (int m = 0; m < MT; m++)
#pragma unroll
				for (int n = 0; n < NT; n++)
#pragma unroll
					for (int i = 0; i < 4; i++) {
						int key = j + 8 * n + 2 * t + i % 2;
						int position =
						    first + row + 16 * m + 8 * (i / 2) + g + offset;

						if (key > position || key < begin[m][i / 2])
							s[m][n][i] = -INFINITY;
					}
		}
		online_softmax<HD, MT, NT>(s, out, max, sum, scale2);
		multiply_add<HD, MT, NT>(out, s, values + stage * TILE);
		__syncthreads();
	}
#pragma unroll
	for (int m = 0; m < MT; m++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int r = first + row + 16 * m + 8 * half + g;
			float total = sum[m][half], inverse;

			total += shuffle_xor(total, 1);
			total += shuffle_xor(total, 2);
			inverse = 1.0f / total;
			if (lse && t == 0 && r <= last)
				lse[head * ld_lse + r] = max[m][half] * scale + logf(total);
#pragma unroll
			for (int n = 0; n < HD / 8; n++) {
				out[m][n][2 * half] *= inverse;
				out[m][n][2 * half + 1] *= inverse;
			}
		}
	}
	found_into(a, tile_put<HD, MT, false>(a, o + (int64_t)head * HD, a.ld_o, first + row, last + 1,
	                                      queries, row, out));
}

/* False: not with the shared memory that there is. */
template <typename T, int HD, int KEYS, int WARPS, bool CAP>
static bool launch(struct device *dev, const attention_shape &a, T *o, float *lse, int64_t ld_lse, const T *q,
                   const T *k, const T *v)
{
	constexpr size_t shared = FORWARD_SHARED<HD, KEYS, WARPS>;
	dim3 grid((unsigned)ceil_div(a.queries, ROWS<HD, WARPS>), (unsigned)a.heads);

	if (shared > dev->shared_most)
		return false;
	LAUNCH(dev, (forward_kernel<T, HD, KEYS, WARPS, CAP>), grid, 32 * WARPS, shared, a, o, lse, ld_lse, q,
	       k, v);
	return true;
}

template <typename T, bool CAP>
static bool forward(struct device *dev, const attention_shape &a, T *o, float *lse, int64_t ld_lse,
                    const T *q, const T *k, const T *v)
{
	if (a.head_dim == 64)
		return launch<T, 64, STEP, 4, CAP>(dev, a, o, lse, ld_lse, q, k, v);
	if (a.head_dim == 96)
		return launch<T, 96, STEP, 4, CAP>(dev, a, o, lse, ld_lse, q, k, v);
	if constexpr (!CAP) /* with a cap it would lack registers */
		if (a.head_dim == 128 && launch<T, 128, STEP, 4, CAP>(dev, a, o, lse, ld_lse, q, k, v))
			return true;
	if (a.head_dim == 128)
		return launch<T, 128, STEP / 2, 4, CAP>(dev, a, o, lse, ld_lse, q, k, v);
	return launch<T, 256, STEP / 2, 8, CAP>(dev, a, o, lse, ld_lse, q, k, v) ||
	       launch<T, 256, STEP / 2, 4, CAP>(dev, a, o, lse, ld_lse, q, k, v);
}

/* Every GPU has so much for a block, so that there is always a kernel. */
static_assert(FORWARD_SHARED<96, STEP, 4> <= 99 << 10 && FORWARD_SHARED<128, STEP / 2, 4> <= 99 << 10 &&
                  FORWARD_SHARED<256, STEP / 2, 4> <= 99 << 10,
              "the smallest steps");

bool attention_forward_tiles(struct device *dev, const attention_shape &a, enum dtype type, void *o,
                             float *lse, int64_t ld_lse, const void *q, const void *k, const void *v)
{
	bool done = false;

	if (!attention_in_tiles(type, a.head_dim))
		return false;
	with_half(type, [&](auto t) {
		typedef decltype(t) T;

		with_flag(a.cap > 0, [&](auto cap) {
			done = forward<T, decltype(cap)::value>(dev, a, (T *)o, lse, ld_lse, (const T *)q,
			                                        (const T *)k, (const T *)v);
		});
	});
	return done;
}
