// SPDX-License-Identifier: Apache-2.0
/*
 * Attention in fp32 arithmetic for every type, head size (up to MAX_DIM) and alignment. A warp has rows
 * (queries, or keys for the gradients of k and v). It takes 32 rows of the other side at a time from a tile
 * in shared memory, one for each lane, to compute scores; for the products with a row's weights each lane has
 * some of the dimensions.
 */
#include "engine/device/cuda/attention/attention.cuh"

#define WARPS   4
#define THREADS (32 * WARPS)
#define MAX_DIM 256
#define ROWS    2 /* of a warp */
#define TILE    (ROWS * WARPS)

/* Loads 32 rows into a tile. Each row has one element more, so that lanes on different rows use different
 * banks. */
template <typename T>
static __device__ __forceinline__ void load_tile(float *tile, const T *p, int64_t ld, int64_t first,
                                                 int64_t end, int head_dim)
{
	for (int i = (int)threadIdx.x; i < 32 * head_dim; i += THREADS) {
		int row = i / head_dim, d = i - row * head_dim;

		tile[row * (head_dim + 1) + d] = first + row < end ? to_float(p[(first + row) * ld + d]) : 0;
	}
}

static __device__ __forceinline__ float row_dot(const float *a, const float *b, int n)
{
	float sum = 0;

	for (int d = 0; d < n; d++)
		sum += a[d] * b[d];
	return sum;
}

/* out[c] += sum over the 32 lanes' weights of weight · tile row, for dimensions lane + 32·c. */
static __device__ __forceinline__ void weigh(float *out, float weight, const float *tile, int head_dim)
{
	__shared__ float weights[WARPS][32];
	int lane = (int)threadIdx.x % 32;
	float *own = weights[threadIdx.x / 32];

	__syncwarp();
	own[lane] = weight;
	__syncwarp();
	for (int l = 0; l < 32; l++) {
#pragma unroll
		for (int c = 0; c < MAX_DIM / 32; c++)
			if (lane + 32 * c < head_dim)
				out[c] += own[l] * tile[l * (head_dim + 1) + lane + 32 * c];
	}
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(attention_shape a, T *o, float *lse, int64_t ld_lse, const T *q, const T *k, const T *v)
{
	DYNAMIC_SHARED(memory);
	int hd = a.head_dim, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32,
	    head = (int)blockIdx.y;
	float *keys = (float *)memory, *values = keys + 32 * (hd + 1), *queries = values + 32 * (hd + 1);
	int64_t first = (int64_t)blockIdx.x * TILE, end = first + TILE < a.queries ? first + TILE : a.queries;
	int64_t begin[ROWS];
	float max[ROWS], sum[ROWS], out[ROWS][MAX_DIM / 32] = {}, largest = 0;

	q += (int64_t)head * hd;
	k += (int64_t)(head / a.group) * hd;
	v += (int64_t)(head / a.group) * hd;
	for (int i = (int)threadIdx.x; i < TILE * hd; i += THREADS)
		queries[i] = first + i / hd < end ? to_float(q[(first + i / hd) * a.ld_q + i % hd]) : 0;
	for (int r = 0; r < ROWS; r++) {
		int64_t t = first + warp * ROWS + r;

		begin[r] = t < end ? first_key(a, t + a.offset) : a.keys;
		max[r] = -INFINITY;
		sum[r] = 0;
	}
	for (int64_t j = first_key(a, first + a.offset) / 32 * 32; j < end + a.offset; j += 32) {
		__syncthreads();
		load_tile(keys, k, a.ld_k, j, a.keys, hd);
		load_tile(values, v, a.ld_v, j, a.keys, hd);
		__syncthreads();
		for (int r = 0; r < ROWS; r++) {
			int64_t position = first + warp * ROWS + r + a.offset;
			bool seen = j + lane >= begin[r] && j + lane <= position;
			float s = row_dot(queries + (warp * ROWS + r) * hd, keys + lane * (hd + 1), hd);
			float p, m, alpha;

			s = seen ? capped(s * a.scale, a.cap) * LOG2_E : -INFINITY;
			m = fmaxf(max[r], warp_max(s));
			if (m == -INFINITY)
				continue; /* the whole warp alike */
			alpha = exp2f(max[r] - m);
			p = seen ? exp2f(s - m) : 0;
			max[r] = m;
			sum[r] = sum[r] * alpha + warp_sum(p);
#pragma unroll
			for (int c = 0; c < MAX_DIM / 32; c++)
				out[r][c] *= alpha;
			weigh(out[r], p, values, hd);
		}
	}
	for (int r = 0; r < ROWS; r++) {
		int64_t t = first + warp * ROWS + r;

		if (t >= end)
			continue;
#pragma unroll
		for (int c = 0; c < MAX_DIM / 32; c++) {
			T stored = from_float<T>(out[r][c] / sum[r]);

			if (lane + 32 * c >= hd)
				continue;
			o[t * a.ld_o + (int64_t)head * hd + lane + 32 * c] = stored;
			largest = fmaxf(largest, fabsf(to_float(stored)));
		}
		if (lse && lane == 0)
			lse[head * ld_lse + t] = max[r] * LN_2 + logf(sum[r]);
	}
	found_into(a, largest);
}

static bool fits(struct device *dev, const attention_shape &a)
{
	if (a.head_dim <= MAX_DIM)
		return true;
	device_fault(dev, -EOPNOTSUPP, "attention: heads of %d elements; the CUDA engine has room for %d",
	             a.head_dim, MAX_DIM);
	return false;
}

void attention_forward_plain(struct device *dev, const attention_shape &a, enum dtype type, void *o,
                             float *lse, int64_t ld_lse, const void *q, const void *k, const void *v)
{
	size_t shared = (size_t)(64 * (a.head_dim + 1) + TILE * a.head_dim) * sizeof(float);

	if (!fits(dev, a))
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, forward_kernel<T>, dim3((unsigned)ceil_div(a.queries, TILE), (unsigned)a.heads),
		       THREADS, shared, a, (T *)o, lse, ld_lse, (const T *)q, (const T *)k, (const T *)v);
	});
}

/* p and ds of one pair, of s = capped(score · scale): p = exp(s - lse), ds = p · (d_o·v - delta) · scale,
 * times the slope of the cap. */
static __device__ __forceinline__ void pair_gradient(float score, float dp, float lse, float delta,
                                                     const attention_shape &a, bool seen, float *p, float *ds)
{
	float s = capped(score * a.scale, a.cap), slope = a.cap > 0 ? 1 - s * s / (a.cap * a.cap) : 1;

	*p = seen ? exp2f((s - lse) * LOG2_E) : 0;
	*ds = *p * (dp - delta) * a.scale * slope;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    query_gradient(attention_shape a, T *d_q, const T *d_o, const float *delta, const float *lse, const T *q,
                   const T *k, const T *v)
{
	DYNAMIC_SHARED(memory);
	int hd = a.head_dim, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32,
	    head = (int)blockIdx.y;
	float *keys = (float *)memory, *values = keys + 32 * (hd + 1), *queries = values + 32 * (hd + 1);
	float *gradients = queries + TILE * hd;
	int64_t first = (int64_t)blockIdx.x * TILE, end = first + TILE < a.queries ? first + TILE : a.queries;
	float out[ROWS][MAX_DIM / 32] = {};
	int64_t begin[ROWS];

	k += (int64_t)(head / a.group) * hd;
	v += (int64_t)(head / a.group) * hd;
	for (int i = (int)threadIdx.x; i < TILE * hd; i += THREADS) {
		int64_t t = first + i / hd, d = (int64_t)head * hd + i % hd;

		queries[i] = t < end ? to_float(q[t * a.ld_q + d]) : 0;
		gradients[i] = t < end ? to_float(d_o[t * a.ld_o + d]) : 0;
	}
	for (int r = 0; r < ROWS; r++)
		begin[r] = first + warp * ROWS + r < end ? first_key(a, first + warp * ROWS + r) : a.keys;
	for (int64_t j = first_key(a, first) / 32 * 32; j < end; j += 32) {
		__syncthreads();
		load_tile(keys, k, a.ld_k, j, a.keys, hd);
		load_tile(values, v, a.ld_v, j, a.keys, hd);
		__syncthreads();
		for (int r = 0; r < ROWS; r++) {
			int64_t t = first + warp * ROWS + r, at = head * a.queries + t;
			int row = (warp * ROWS + r) * hd;
			float p, ds;

			if (t >= end)
				continue;
			pair_gradient(row_dot(queries + row, keys + lane * (hd + 1), hd),
			              row_dot(gradients + row, values + lane * (hd + 1), hd), lse[at],
			              delta[at], a, j + lane >= begin[r] && j + lane <= t, &p, &ds);
			weigh(out[r], ds, keys, hd);
		}
	}
	for (int r = 0; r < ROWS; r++) {
		int64_t t = first + warp * ROWS + r;

		if (t >= end)
			continue;
#pragma unroll
		for (int c = 0; c < MAX_DIM / 32; c++)
			if (lane + 32 * c < hd)
				d_q[t * a.ld_q + (int64_t)head * hd + lane + 32 * c] =
				    from_float<T>(out[r][c]);
	}
}

/* Rows are keys, their counterparts queries; the query heads of a group one after the other. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    key_gradient(attention_shape a, T *d_k, T *d_v, const T *d_o, const float *delta, const float *lse,
                 const T *q, const T *k, const T *v)
{
	DYNAMIC_SHARED(memory);
	int hd = a.head_dim, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, kv = (int)blockIdx.y;
	float *queries = (float *)memory, *gradients = queries + 32 * (hd + 1),
	      *keys = gradients + 32 * (hd + 1);
	float *values = keys + TILE * hd;
	int64_t first = (int64_t)blockIdx.x * TILE, end = first + TILE < a.keys ? first + TILE : a.keys,
	        limit[ROWS];
	float dk[ROWS][MAX_DIM / 32] = {}, dv[ROWS][MAX_DIM / 32] = {};

	for (int i = (int)threadIdx.x; i < TILE * hd; i += THREADS) {
		int64_t t = first + i / hd, d = (int64_t)kv * hd + i % hd;

		keys[i] = t < end ? to_float(k[t * a.ld_k + d]) : 0;
		values[i] = t < end ? to_float(v[t * a.ld_v + d]) : 0;
	}
	for (int r = 0; r < ROWS; r++)
		limit[r] = first + warp * ROWS + r < end ? end_query(a, first + warp * ROWS + r) : 0;
	for (int head = kv * a.group; head < (kv + 1) * a.group; head++) {
		for (int64_t i = first / 32 * 32; i < end_query(a, end - 1); i += 32) {
			int64_t at = head * a.queries + i + lane;
			bool there = i + lane < a.queries;
			float l = there ? lse[at] : 0, d = there ? delta[at] : 0;

			__syncthreads();
			load_tile(queries, q + (int64_t)head * hd, a.ld_q, i, a.queries, hd);
			load_tile(gradients, d_o + (int64_t)head * hd, a.ld_o, i, a.queries, hd);
			__syncthreads();
			for (int r = 0; r < ROWS; r++) {
				int64_t t = first + warp * ROWS + r;
				int row = (warp * ROWS + r) * hd;
				float p, ds;

				pair_gradient(row_dot(keys + row, queries + lane * (hd + 1), hd),
				              row_dot(values + row, gradients + lane * (hd + 1), hd), l, d, a,
				              i + lane >= t && i + lane < limit[r], &p, &ds);
				weigh(dv[r], p, gradients, hd);
				weigh(dk[r], ds, queries, hd);
			}
		}
	}
	for (int r = 0; r < ROWS; r++) {
		int64_t t = first + warp * ROWS + r;

		if (t >= end)
			continue;
#pragma unroll
		for (int c = 0; c < MAX_DIM / 32; c++) {
			int64_t d = (int64_t)kv * hd + lane + 32 * c;

			if (lane + 32 * c >= hd)
				continue;
			d_k[t * a.ld_k + d] = from_float<T>(dk[r][c]);
			d_v[t * a.ld_v + d] = from_float<T>(dv[r][c]);
		}
	}
}

void attention_backward_plain(struct device *dev, const attention_shape &a, enum dtype type, void *d_q,
                              void *d_k, void *d_v, const void *d_o, const float *delta, const float *lse,
                              const void *q, const void *k, const void *v)
{
	size_t shared = (size_t)(64 * (a.head_dim + 1) + 2 * TILE * a.head_dim) * sizeof(float);
	unsigned tiles = (unsigned)ceil_div(a.queries, TILE);

	if (!fits(dev, a))
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, query_gradient<T>, dim3(tiles, (unsigned)a.heads), THREADS, shared, a, (T *)d_q,
		       (const T *)d_o, delta, lse, (const T *)q, (const T *)k, (const T *)v);
		LAUNCH(dev, key_gradient<T>, dim3(tiles, (unsigned)(a.heads / a.group)), THREADS, shared, a,
		       (T *)d_k, (T *)d_v, (const T *)d_o, delta, lse, (const T *)q, (const T *)k,
		       (const T *)v);
	});
}
