// SPDX-License-Identifier: Apache-2.0
/*
 * Attention of a few new tokens to the rows of a cache. One query and thousands of keys would give too few
 * blocks, so the keys are divided into ranges, and a second kernel combines the sums of the ranges. From
 * CACHED_MANY new tokens of a sequence on, the kernels of training are used. How keys are divided depends on
 * their number alone, so that a token has the same bits whichever others have theirs at the same time.
 */
#include "engine/device/cuda/attention/attention.cuh"

#define WARPS   4
#define THREADS (32 * WARPS)
#define MAX_DIM 256
/* A token of each of several sequences (device_cache); else those of one sequence, behind its offset. */
struct cache_rows {
	const int32_t *sequences, *positions; /* NULL: of one sequence */
	int64_t tokens;
};

static __device__ __forceinline__ int64_t position_of(const attention_shape &a, const cache_rows &c,
                                                      int64_t query)
{
	return c.positions ? c.positions[query] : query + a.offset;
}

/* The keys of a stretch, of so many. */
static __host__ __device__ __forceinline__ int64_t stretch_of(int64_t keys)
{
	int64_t even = (keys + CACHED_SPLITS - 1) / CACHED_SPLITS;

	return even < CACHED_CHUNK ? CACHED_CHUNK : even;
}

/* A block takes one query of one head and one stretch; its warps take keys in turns, lanes are dimensions.
 * Queries and heads are the grid's x, of which there may be more than 65535. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    stretch_kernel(attention_shape a, cache_rows c, float *parts, const T *q, const T *k, const T *v)
{
	__shared__ float out[WARPS][MAX_DIM], maxima[WARPS], sums[WARPS];
	int hd = a.head_dim, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
	int64_t query = blockIdx.x / a.heads, position = position_of(a, c, query);
	int head = (int)(blockIdx.x % a.heads);
	int64_t stretch = stretch_of(c.positions ? position + 1 : a.keys);
	int64_t lo = blockIdx.y * stretch, hi = lo + stretch < position + 1 ? lo + stretch : position + 1;
	int64_t begin = first_key(a, position);
	float *part = parts + ((int64_t)blockIdx.x * gridDim.y + blockIdx.y) * (hd + 2);
	float in[MAX_DIM / 32], acc[MAX_DIM / 32] = {}, max = -INFINITY, sum = 0;

	/* Another row has more keys. */
	if (lo > position && c.positions)
		return;
	lo = lo > begin ? lo : begin;
#pragma unroll
	for (int e = 0; e < MAX_DIM / 32; e++)
		in[e] =
		    lane + 32 * e < hd ? to_float(q[query * a.ld_q + (int64_t)head * hd + lane + 32 * e]) : 0;
	k += (int64_t)(head / a.group) * hd + (c.sequences ? c.sequences[query] * c.tokens * a.ld_k : 0);
	v += (int64_t)(head / a.group) * hd + (c.sequences ? c.sequences[query] * c.tokens * a.ld_v : 0);
	for (int64_t j = lo + warp; j < hi; j += WARPS) {
		float s = 0, m, alpha, p;

#pragma unroll
		for (int e = 0; e < MAX_DIM / 32; e++)
			if (lane + 32 * e < hd)
				s += in[e] * to_float(k[j * a.ld_k + lane + 32 * e]);
		s = capped(warp_sum(s) * a.scale, a.cap) * LOG2_E;
		m = fmaxf(max, s);
		alpha = exp2f(max - m);
		p = exp2f(s - m);
		max = m;
		sum = sum * alpha + p;
#pragma unroll
		for (int e = 0; e < MAX_DIM / 32; e++)
			if (lane + 32 * e < hd)
				acc[e] = acc[e] * alpha + p * to_float(v[j * a.ld_v + lane + 32 * e]);
	}
#pragma unroll
	for (int e = 0; e < MAX_DIM / 32; e++)
		if (lane + 32 * e < hd)
			out[warp][lane + 32 * e] = acc[e];
	if (lane == 0) {
		maxima[warp] = max;
		sums[warp] = sum;
	}
	__syncthreads();
	max = maxima[0];
	for (int w = 1; w < WARPS; w++)
		max = fmaxf(max, maxima[w]);
	for (int d = (int)threadIdx.x; d < hd + 2; d += THREADS) {
		float total = 0;

		for (int w = 0; w < WARPS; w++) {
			float weight = maxima[w] == -INFINITY ? 0 : exp2f(maxima[w] - max);

			total += weight * (d < hd ? out[w][d] : sums[w]);
		}
		part[d] = d == hd + 1 ? max : total;
	}
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    join_kernel(attention_shape a, cache_rows c, T *o, const float *parts, int most)
{
	int hd = a.head_dim, head = (int)(blockIdx.x % a.heads);
	int64_t query = blockIdx.x / a.heads, keys = c.positions ? position_of(a, c, query) + 1 : a.keys;
	int splits = (int)((keys - 1) / stretch_of(keys)) + 1;
	const float *part = parts + (int64_t)blockIdx.x * most * (hd + 2);
	float max = -INFINITY, sum = 0;

	for (int i = 0; i < splits; i++)
		max = fmaxf(max, part[(int64_t)i * (hd + 2) + hd + 1]);
	for (int i = 0; i < splits; i++) {
		const float *p = part + (int64_t)i * (hd + 2);

		sum += p[hd + 1] == -INFINITY ? 0 : exp2f(p[hd + 1] - max) * p[hd];
	}
	for (int d = (int)threadIdx.x; d < hd; d += THREADS) {
		float total = 0;

		for (int i = 0; i < splits; i++) {
			const float *p = part + (int64_t)i * (hd + 2);

			total += p[hd + 1] == -INFINITY ? 0 : exp2f(p[hd + 1] - max) * p[d];
		}
		o[query * a.ld_o + (int64_t)head * hd + d] = from_float<T>(total / sum);
	}
}

/* s.keys: of the query that has most. */
static void attend(struct device *dev, attention_shape s, cache_rows c, enum dtype type, void *o,
                   const void *q, const void *k, const void *v)
{
	int64_t chunks = ceil_div(s.keys, CACHED_CHUNK),
	        splits = chunks < CACHED_SPLITS ? chunks : CACHED_SPLITS;
	float *parts = (float *)device_scratch(
	    dev, attention_cached_scratch(s.queries, s.heads, s.head_dim, splits), "attention_cached");

	if (!parts)
		return;
	if (s.head_dim > MAX_DIM) {
		device_fault(dev, -EOPNOTSUPP,
		             "attention: heads of %d elements; the CUDA engine has room for %d", s.head_dim,
		             MAX_DIM);
		return;
	}
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, stretch_kernel<T>, dim3((unsigned)(s.queries * s.heads), (unsigned)splits),
		       THREADS, 0, s, c, parts, (const T *)q, (const T *)k, (const T *)v);
		LAUNCH(dev, join_kernel<T>, (unsigned)(s.queries * s.heads), THREADS, 0, s, c, (T *)o, parts,
		       (int)splits);
	});
}

extern "C" void device_attention_cached(struct device *dev, const struct device_attention *a, int64_t past,
                                        void *o, const void *q, const void *k_cache, const void *v_cache)
{
	attention_shape s = attention_shape_of(a);

	if (a->tokens <= 0)
		return;
	s.queries = a->tokens;
	s.offset = past;
	s.keys = past + a->tokens;
	if (a->tokens < CACHED_MANY && a->head_dim <= MAX_DIM) {
		attend(dev, s, cache_rows{}, a->type, o, q, k_cache, v_cache);
		return;
	}
	if (!wide_rows(q, a->ld_q, 2) || !wide_rows(k_cache, a->ld_k, 2) || !wide_rows(v_cache, a->ld_v, 2) ||
	    !wide_rows(o, a->ld_o, 2) ||
	    !attention_forward_tiles(dev, s, a->type, o, NULL, 0, q, k_cache, v_cache))
		attention_forward_plain(dev, s, a->type, o, NULL, 0, q, k_cache, v_cache);
}

template <typename T>
static __global__ void append_kernel(cache_rows c, T *cache, const T *k, const T *v, int64_t width,
                                     int64_t ld)
{
	int64_t row = blockIdx.x;
	T *to = cache + (c.sequences[row] * c.tokens + c.positions[row]) * 2 * width;

	for (int64_t i = threadIdx.x; i < 2 * width; i += THREADS)
		to[i] = i < width ? k[row * ld + i] : v[row * ld + i - width];
}

extern "C" void device_cache_append(struct device *dev, const struct device_cache *c, void *cache,
                                    const void *k, const void *v, int64_t width, int64_t ld, enum dtype type)
{
	cache_rows rows = {c->sequences, c->positions, c->tokens};

	if (c->rows <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, append_kernel<T>, (unsigned)c->rows, THREADS, 0, rows, (T *)cache, (const T *)k,
		       (const T *)v, width, ld);
	});
}

extern "C" void device_attention_rows(struct device *dev, const struct device_attention *a,
                                      const struct device_cache *c, void *o, const void *q, const void *cache)
{
	int64_t width = (int64_t)a->kv_heads * a->head_dim;
	size_t half = (size_t)width * dtype_size(a->type);
	attention_shape s = attention_shape_of(a);
	cache_rows rows = {c->sequences, c->positions, c->tokens};

	if (c->rows <= 0)
		return;
	s.queries = c->rows;
	s.keys = c->longest + 1;
	s.ld_k = s.ld_v = 2 * width;
	attend(dev, s, rows, a->type, o, q, cache, (const char *)cache + half);
}
