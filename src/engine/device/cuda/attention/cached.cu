// SPDX-License-Identifier: Apache-2.0
/*
 * Attention of a few new tokens to the rows of a cache. One query and thousands of keys would give too few
 * blocks, so the keys are divided into ranges, and a second kernel combines the sums of the ranges. From MANY
 * new tokens on, the kernels of training are used.
 */
#include "engine/device/cuda/attention/attention.cuh"

#define MANY    8
#define WARPS   4
#define THREADS (32 * WARPS)
#define MAX_DIM 256
#define CHUNK   256 /* keys of a stretch, at least */
#define SPLITS  64  /* at most */

/* A block takes one query of one head and one stretch; its warps take keys in turns, lanes are dimensions. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    stretch_kernel(attention_shape a, float *parts, int64_t stretch, const T *q, const T *k, const T *v)
{
	__shared__ float out[WARPS][MAX_DIM], maxima[WARPS], sums[WARPS];
	int hd = a.head_dim, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
	int64_t query = blockIdx.y / a.heads, position = query + a.offset;
	int head = (int)(blockIdx.y % a.heads);
	int64_t lo = blockIdx.x * stretch, hi = lo + stretch < position + 1 ? lo + stretch : position + 1;
	int64_t begin = first_key(a, position);
	float *part = parts + ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * (hd + 2);
	float in[MAX_DIM / 32], acc[MAX_DIM / 32] = {}, max = -INFINITY, sum = 0;

	lo = lo > begin ? lo : begin;
#pragma unroll
	for (int c = 0; c < MAX_DIM / 32; c++)
		in[c] =
		    lane + 32 * c < hd ? to_float(q[query * a.ld_q + (int64_t)head * hd + lane + 32 * c]) : 0;
	k += (int64_t)(head / a.group) * hd;
	v += (int64_t)(head / a.group) * hd;
	for (int64_t j = lo + warp; j < hi; j += WARPS) {
		float s = 0, m, alpha, p;

#pragma unroll
		for (int c = 0; c < MAX_DIM / 32; c++)
			if (lane + 32 * c < hd)
				s += in[c] * to_float(k[j * a.ld_k + lane + 32 * c]);
		s = capped(warp_sum(s) * a.scale, a.cap) * LOG2_E;
		m = fmaxf(max, s);
		alpha = exp2f(max - m);
		p = exp2f(s - m);
		max = m;
		sum = sum * alpha + p;
#pragma unroll
		for (int c = 0; c < MAX_DIM / 32; c++)
			if (lane + 32 * c < hd)
				acc[c] = acc[c] * alpha + p * to_float(v[j * a.ld_v + lane + 32 * c]);
	}
#pragma unroll
	for (int c = 0; c < MAX_DIM / 32; c++)
		if (lane + 32 * c < hd)
			out[warp][lane + 32 * c] = acc[c];
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
    join_kernel(attention_shape a, T *o, const float *parts, int splits)
{
	int hd = a.head_dim, head = (int)(blockIdx.x % a.heads);
	int64_t query = blockIdx.x / a.heads;
	const float *part = parts + (int64_t)blockIdx.x * splits * (hd + 2);
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

extern "C" void device_attention_cached(struct device *dev, const struct device_attention *a, int64_t past,
                                        void *o, const void *q, const void *k_cache, const void *v_cache)
{
	attention_shape s = {};
	int64_t stretch, splits;
	float *parts;

	if (a->tokens <= 0)
		return;
	s.queries = a->tokens;
	s.offset = past;
	s.keys = past + a->tokens;
	s.heads = a->heads;
	s.group = a->heads / a->kv_heads;
	s.head_dim = a->head_dim;
	s.window = a->window;
	s.scale = a->scale;
	s.cap = a->cap;
	s.ld_q = a->ld_q;
	s.ld_k = a->ld_k;
	s.ld_v = a->ld_v;
	s.ld_o = a->ld_o;
	if (a->tokens >= MANY || a->head_dim > MAX_DIM) {
		if (!wide_rows(q, a->ld_q, 2) || !wide_rows(k_cache, a->ld_k, 2) ||
		    !wide_rows(v_cache, a->ld_v, 2) || !wide_rows(o, a->ld_o, 2) ||
		    !attention_forward_tiles(dev, s, a->type, o, NULL, 0, q, k_cache, v_cache))
			attention_forward_plain(dev, s, a->type, o, NULL, 0, q, k_cache, v_cache);
		return;
	}
	stretch = ceil_div(s.keys, SPLITS) < CHUNK ? CHUNK : ceil_div(s.keys, SPLITS);
	splits = ceil_div(s.keys, stretch);
	parts = (float *)device_scratch(
	    dev, (size_t)(s.queries * s.heads * splits * (s.head_dim + 2)) * sizeof(float),
	    "attention_cached");
	if (!parts)
		return;
	with_type(a->type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, stretch_kernel<T>, dim3((unsigned)splits, (unsigned)(s.queries * s.heads)),
		       THREADS, 0, s, parts, stretch, (const T *)q, (const T *)k_cache, (const T *)v_cache);
		LAUNCH(dev, join_kernel<T>, (unsigned)(s.queries * s.heads), THREADS, 0, s, (T *)o, parts,
		       (int)splits);
	});
}
