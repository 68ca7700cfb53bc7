// SPDX-License-Identifier: Apache-2.0
/*
 * Definitions that the files of attention share. A kernel takes tiles of consecutive rows, which may belong
 * to several documents. For every query the first key that it may see is known, and for every key the end of
 * the queries that may see it; all other scores are masked. The loop of a tile covers the range that any of
 * its rows needs.
 */
#pragma once

#include "engine/device/cuda/kernel.cuh"

#define LN_2 0.69314718055994531f

struct attention_shape {
	int64_t queries; /* rows of q */
	/* position of query 0 among the keys: 0, or the number of rows that the cache had before */
	int64_t offset;
	int64_t keys;
	int heads, group; /* group: query heads to one of k and v */
	int head_dim, window, documents;
	const int32_t *starts; /* NULL: one document */
	float scale, cap;      /* cap: 0: none */
	int64_t ld_q, ld_k, ld_v, ld_o;
	float *amax; /* to which the forward pass adds what it finds; NULL: nothing */
	/* What the kernels of the backward pass rotate gradients back by, which `tiles` alone do; the tables
	 * have rotary_half elements for each position. rotary_half 0: they do not. */
	int rotary_half;
	const int32_t *positions;
	const float *cos_table, *sin_table;
};

/* What all calls have: heads, scale, cap, window and strides. */
static inline attention_shape attention_shape_of(const struct device_attention *a)
{
	attention_shape s = {};

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
	return s;
}

/* Adds the largest magnitude of what the lanes of a warp have found. */
static __device__ __forceinline__ void found_into(const attention_shape &a, float max)
{
	if (!a.amax)
		return;
	max = warp_max(max);
	if (threadIdx.x % 32 == 0)
		max_into(a.amax, max);
}

/* The document of row t: starts[d] <= t < starts[d + 1]. */
static __device__ __forceinline__ int document_of(const attention_shape &a, int64_t t)
{
	int low = 0, high = a.documents - 1;

	while (low < high) {
		int middle = (low + high + 1) / 2;

		if (a.starts[middle] <= t)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

/* The query at `position` sees the keys [first_key, position]. */
static __device__ __forceinline__ int64_t first_key(const attention_shape &a, int64_t position)
{
	int64_t start = a.starts ? a.starts[document_of(a, position)] : 0;
	int64_t window = a.window > 0 ? position - a.window + 1 : 0;

	return window > start ? window : start;
}

/* The queries [key, end_query) see the key. */
static __device__ __forceinline__ int64_t end_query(const attention_shape &a, int64_t key)
{
	int64_t end = a.starts ? a.starts[document_of(a, key) + 1] : a.keys;

	return a.window > 0 && key + a.window < end ? key + a.window : end;
}

/* A scaled score, capped. */
static __device__ __forceinline__ float capped(float score, float cap)
{
	return cap > 0 ? cap * tanhf(score / cap) : score;
}

/* Whether Hopper's kernels of the backward pass rotate gradients back: whole heads alone. */
static __host__ __device__ __forceinline__ bool rotates_heads(const attention_shape &a)
{
	return 2 * a.rotary_half == a.head_dim;
}

/* Each file's part. `plain` is fp32 arithmetic in any type, head size and alignment. `tiles` are the products
 * of tensor cores, in bf16 and fp16 (attention_in_tiles), rows of at most 2^24 elements that begin at
 * multiples of 16 bytes; false: there is no kernel for it. `hopper` are those of wgmma, without caps. */
void attention_forward_plain(struct device *dev, const attention_shape &a, enum dtype type, void *o,
                             float *lse, int64_t ld_lse, const void *q, const void *k, const void *v);
void attention_backward_plain(struct device *dev, const attention_shape &a, enum dtype type, void *d_q,
                              void *d_k, void *d_v, const void *d_o, const float *delta, const float *lse,
                              const void *q, const void *k, const void *v);
bool attention_forward_tiles(struct device *dev, const attention_shape &a, enum dtype type, void *o,
                             float *lse, int64_t ld_lse, const void *q, const void *k, const void *v);
bool attention_backward_tiles(struct device *dev, const attention_shape &a, enum dtype type, void *d_q,
                              void *d_k, void *d_v, const void *d_o, const float *delta, const float *lse,
                              const void *q, const void *k, const void *v);
/* bf16 and fp16 on Hopper, checked at run time (device_attention_check); the file is left out where nvcc does
 * not compile for sm_90a. */
bool attention_forward_hopper(struct device *dev, const attention_shape &a, enum dtype type, void *o,
                              float *lse, int64_t ld_lse, const void *q, const void *k, const void *v);
/* Its backward pass, in bf16, as attention_backward_tiles; checked likewise. */
bool attention_backward_hopper(struct device *dev, const attention_shape &a, bf16 *d_q, bf16 *d_k, bf16 *d_v,
                               const bf16 *d_o, const float *delta, const float *lse, const bf16 *q,
                               const bf16 *k, const bf16 *v);
