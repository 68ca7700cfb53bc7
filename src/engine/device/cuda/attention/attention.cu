// SPDX-License-Identifier: Apache-2.0
/* The operations of attention in device.h: they choose the kernels. */
#include "engine/device/cuda/attention/attention.cuh"
#include "engine/device/cuda/attention/cudnn_attention.h"
#include "engine/device/cuda/attention/hopper.h"
#include "engine/device/rotation.h"

#define THREADS 256

static attention_shape shape_of(const struct device_attention *a)
{
	attention_shape s = attention_shape_of(a);

	s.queries = s.keys = a->tokens;
	s.documents = a->documents;
	s.starts = a->documents > 1 ? a->starts : NULL;
	s.amax = a->amax;
	return s;
}

/* The tensor-core kernels read and write 16 bytes at a time, and count within a tile in 32 bits. */
static bool tile_rows(const void *p, int64_t ld)
{
	return wide_rows(p, ld, 2) && ld < 1 << 24;
}

static bool tiles(const struct device_attention *a, const void *q, const void *k, const void *v,
                  const void *o)
{
	return attention_in_tiles(a->type, a->head_dim) && tile_rows(q, a->ld_q) && tile_rows(k, a->ld_k) &&
	       tile_rows(v, a->ld_v) && tile_rows(o, a->ld_o);
}

/* cuDNN and Hopper's kernels compute the rest of it. */
static bool uncapped(const struct device_attention *a, bool in_tiles)
{
	return in_tiles && a->cap <= 0 && a->head_dim <= 128;
}

#ifndef HAVE_HOPPER
/* nvcc does not compile Hopper's kernels. */
bool attention_forward_hopper(struct device *, const attention_shape &, enum dtype, void *, float *, int64_t,
                              const void *, const void *, const void *)
{
	return false;
}

bool attention_backward_hopper(struct device *, const attention_shape &, bf16 *, bf16 *, bf16 *, const bf16 *,
                               const float *, const float *, const bf16 *, const bf16 *, const bf16 *)
{
	return false;
}
#endif

extern "C" bool attention_hopper_built(void)
{
#ifdef HAVE_HOPPER
	return true;
#else
	return false;
#endif
}

extern "C" void device_attention_forward(struct device *dev, const struct device_attention *a, void *o,
                                         float *lse, const void *q, const void *k, const void *v)
{
	attention_shape s = shape_of(a);
	bool in_tiles = tiles(a, q, k, v, o), others = uncapped(a, in_tiles);

	if (a->amax)
		device_zero(dev, a->amax, sizeof(float));
	if (a->tokens <= 0)
		return;
	if (others && attention_cudnn_forward(dev, a, o, lse, q, k, v)) {
		fp8_find_largest(dev, a->amax, o, a->type, a->tokens, (int64_t)a->heads * a->head_dim,
		                 a->ld_o);
		return;
	}
	if (others && !a->portable && dev->attention_hopper[DEVICE_ATTENTION_FORWARD] &&
	    attention_forward_hopper(dev, s, a->type, o, lse, a->tokens, q, k, v))
		return;
	if (!in_tiles || !attention_forward_tiles(dev, s, a->type, o, lse, a->tokens, q, k, v))
		attention_forward_plain(dev, s, a->type, o, lse, a->tokens, q, k, v);
}

/* Computes delta[h, t], the sum of d_o · o. A row has eight threads, which read N elements at a time. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    delta_kernel(float *delta, const T *d_o, const T *o, int64_t tokens, int heads, int head_dim, int64_t ld)
{
	int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 8, t = quotient(i, heads);
	int h = (int)(i - t * heads);
	int64_t at = t * ld + (int64_t)h * head_dim;
	float sum = 0;

	for (int d = (int)threadIdx.x % 8 * N; t < tokens && d < head_dim; d += 8 * N) {
		float x[N], y[N];

		load(x, d_o + at + d);
		load(y, o + at + d);
#pragma unroll
		for (int k = 0; k < N; k++)
			sum += x[k] * y[k];
	}
#pragma unroll
	for (int mask = 4; mask; mask >>= 1)
		sum += shuffle_xor(sum, mask);
	if (t < tokens && threadIdx.x % 8 == 0)
		delta[h * tokens + t] = sum;
}

template <typename T>
static void find_delta(struct device *dev, const struct device_attention *a, float *delta, const T *d_o,
                       const T *o)
{
	unsigned blocks = (unsigned)ceil_div(a->tokens * a->heads, THREADS / 8);
	constexpr int N = WIDE<T>;

	if (wide_rows(d_o, a->ld_o, sizeof(T)) && aligned16(o) && a->head_dim % N == 0)
		LAUNCH(dev, (delta_kernel<T, N>), blocks, THREADS, 0, delta, d_o, o, a->tokens, a->heads,
		       a->head_dim, a->ld_o);
	else
		LAUNCH(dev, (delta_kernel<T, 1>), blocks, THREADS, 0, delta, d_o, o, a->tokens, a->heads,
		       a->head_dim, a->ld_o);
}

/* Where the halves of what is rotated, and the tables, are whole packs. */
static void rotate_in_tiles(const struct device_attention *a, attention_shape *s)
{
	int half = a->rotary_dim / 2;

	if (half % WIDE<bf16> || !aligned16(a->cos) || !aligned16(a->sin))
		return;
	s->rotary_half = half;
	s->positions = a->positions;
	s->cos_table = a->cos;
	s->sin_table = a->sin;
}

extern "C" void device_attention_backward(struct device *dev, const struct device_attention *a, void *d_q,
                                          void *d_k, void *d_v, const void *d_o, const void *o,
                                          const float *lse, const void *q, const void *k, const void *v)
{
	attention_shape s = shape_of(a);
	bool wide =
	    tiles(a, q, k, v, d_o) && aligned16(o) && aligned16(d_q) && aligned16(d_k) && aligned16(d_v);
	bool others = uncapped(a, wide);
	float *delta;

	if (a->tokens <= 0)
		return;
	if (others && attention_cudnn_backward(dev, a, d_q, d_k, d_v, d_o, o, lse, q, k, v)) {
		rotation_undo(dev, a, d_q, d_k);
		return;
	}
	rotate_in_tiles(a, &s);
	delta = (float *)device_scratch(dev, attention_scratch(a->tokens, a->heads), "attention_backward");
	if (!delta)
		return;
	with_type(a->type, [&](auto t) {
		find_delta(dev, a, delta, (const decltype(t) *)d_o, (const decltype(t) *)o);
	});
	if (others && a->type == DTYPE_BF16 && dev->attention_hopper[DEVICE_ATTENTION_BACKWARD] &&
	    attention_backward_hopper(dev, s, (bf16 *)d_q, (bf16 *)d_k, (bf16 *)d_v, (const bf16 *)d_o, delta,
	                              lse, (const bf16 *)q, (const bf16 *)k, (const bf16 *)v)) {
		if (!rotates_heads(s))
			rotation_undo(dev, a, d_q, d_k);
		return;
	}
	if (wide && attention_backward_tiles(dev, s, a->type, d_q, d_k, d_v, d_o, delta, lse, q, k, v)) {
		if (!s.rotary_half)
			rotation_undo(dev, a, d_q, d_k);
		return;
	}
	attention_backward_plain(dev, s, a->type, d_q, d_k, d_v, d_o, delta, lse, q, k, v);
	rotation_undo(dev, a, d_q, d_k);
}

static __global__ void places_kernel(struct attention_places p, const int32_t *starts, int documents)
{
	for (int i = (int)threadIdx.x; i <= p.batch; i += THREADS) {
		int64_t row = starts[i < documents ? i : documents];

		for (int c = 0; c < p.count; c++)
			p.offsets[c * p.stride + i] = row * p.ld[c];
		if (i < p.batch)
			p.lengths[i] = i < documents ? starts[i + 1] - starts[i] : 0;
	}
}

extern "C" void attention_places(struct device *dev, const struct attention_places *p, const int32_t *starts,
                                 int documents)
{
	LAUNCH(dev, places_kernel, 1, THREADS, 0, *p, starts, documents);
}

static __global__ void transpose_kernel(float *to, const float *from, int64_t rows, int64_t cols)
{
	for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * cols;
	     i += (int64_t)gridDim.x * THREADS)
		to[i] = from[i % rows * cols + i / rows];
}

extern "C" void attention_transpose(struct device *dev, float *to, const float *from, int64_t rows,
                                    int64_t cols)
{
	LAUNCH(dev, transpose_kernel, grid_for(rows * cols, THREADS), THREADS, 0, to, from, rows, cols);
}
