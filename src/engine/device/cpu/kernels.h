/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels. Each is compiled once for each instruction set, with KERNEL_ISA as a part of its name, and is
 * called through the table of that instruction set. The arguments are those of device.h.
 */
#pragma once

#include "engine/device/cpu/cpu.h"
#include "engine/device/delta.h"

#define KERNELS(X)                                                                                           \
	X(cast, (struct device * dev, void *dst, enum dtype dst_type, const void *src, enum dtype src_type,  \
	         int64_t n))                                                                                 \
	X(cast_rows, (struct device * dev, void *dst, enum dtype dst_type, int64_t dst_ld, const void *src,  \
	              enum dtype src_type, int64_t src_ld, int64_t rows, int64_t cols))                      \
	X(scale, (struct device * dev, void *x, enum dtype type, float factor, int64_t n))                   \
	X(add, (struct device * dev, void *dst, const void *src, enum dtype type, int64_t n))                \
	X(sum_squares, (struct device * dev, const void *x, enum dtype type, int64_t n, double *sum))        \
	X(sum, (struct device * dev, const float *x, int64_t n, double *sum))                                \
	X(gemv, (struct device * dev, const struct device_gemm *g))                                          \
	X(bias_forward, (struct device * dev, void *x, const void *bias, int64_t rows, int64_t cols,         \
	                 int64_t ld, enum dtype type))                                                       \
	X(bias_backward, (struct device * dev, void *d_bias, enum dtype grad_type, const void *d_y,          \
	                  int64_t rows, int64_t cols, int64_t ld, enum dtype type))                          \
	X(embedding_forward, (struct device * dev, void *out, const int32_t *ids, const void *table,         \
	                      int64_t tokens, int hidden, enum dtype type))                                  \
	X(embedding_backward, (struct device * dev, void *d_table, enum dtype grad_type, const void *d_out,  \
	                       const int32_t *ids, int64_t tokens, int hidden, enum dtype type))             \
	X(rmsnorm_forward, (struct device * dev, const struct device_norm *n, void *y, float *rstd,          \
	                    void *residual, const void *x, const void *w))                                   \
	X(rmsnorm_backward,                                                                                  \
	  (struct device * dev, const struct device_norm *n, void *d_x, bool accumulate, void *d_w,          \
	   enum dtype grad_type, const void *d_y, const void *x, const float *rstd, const void *w))          \
	X(layernorm_forward, (struct device * dev, const struct device_norm *n, void *y, float *statistics,  \
	                      const void *x, const void *w, const void *b))                                  \
	X(layernorm_backward,                                                                                \
	  (struct device * dev, const struct device_norm *n, void *d_x, bool accumulate, float *d_w,         \
	   const void *d_y, const void *x, const float *statistics, const void *w))                          \
	X(rope, (struct device * dev, const struct device_rope *r, void *x, bool inverse))                   \
	X(attention_forward, (struct device * dev, const struct device_attention *a, void *o, float *lse,    \
	                      const void *q, const void *k, const void *v))                                  \
	X(attention_backward,                                                                                \
	  (struct device * dev, const struct device_attention *a, void *d_q, void *d_k, void *d_v,           \
	   const void *d_o, const void *o, const float *lse, const void *q, const void *k, const void *v))   \
	X(attention_cached, (struct device * dev, const struct device_attention *a, int64_t past, void *o,   \
	                     const void *q, const void *k_cache, const void *v_cache))                       \
	X(attention_rows, (struct device * dev, const struct device_attention *a,                            \
	                   const struct device_cache *c, void *o, const void *q, const void *cache))         \
	X(swiglu_forward,                                                                                    \
	  (struct device * dev, void *y, const void *gate_up, int64_t tokens, int cols, enum dtype type))    \
	X(swiglu_backward, (struct device * dev, void *d_gate_up, void *y, const void *d_y,                  \
	                    const void *gate_up, int64_t tokens, int cols, enum dtype type))                 \
	X(route, (struct device * dev, const struct device_router *r, int32_t *expert, float *weight,        \
	          const void *logits))                                                                       \
	X(expert_rows, (struct device * dev, const struct device_router *r, void *y, const void *x,          \
	                const int32_t *row, int64_t places, int cols))                                       \
	X(expert_sum, (struct device * dev, const struct device_router *r, void *y, const void *x,           \
	               const int32_t *place, const float *weight, int cols))                                 \
	X(expert_weigh, (struct device * dev, const struct device_router *r, float *d_weight, void *d,       \
	                 void *x, const int32_t *place, const float *weight, int cols))                      \
	X(route_backward, (struct device * dev, const struct device_router *r, void *d_logits,               \
	                   const void *logits, const int32_t *expert, const float *weight,                   \
	                   const float *d_weight, const float *balance, float scale, float *loss))           \
	X(dropout, (struct device * dev, const struct device_dropout *d, void *y, bool accumulate,           \
	            const void *x, enum dtype type, int64_t n))                                              \
	X(add_noise,                                                                                         \
	  (struct device * dev, const struct device_noise *d, void *y, enum dtype type, int64_t n))          \
	X(row_norms, (struct device * dev, const struct device_row_norms *n, float *norm, const void *w,     \
	              const void *b, const void *a))                                                         \
	X(scale_columns, (struct device * dev, const struct device_columns *c, void *y, const void *x))      \
	X(gelu_forward, (struct device * dev, void *y, const void *x, int64_t tokens, int cols, bool gated,  \
	                 enum dtype type))                                                                   \
	X(gelu_backward, (struct device * dev, void *d_x, void *y, const void *d_y, const void *x,           \
	                  int64_t tokens, int cols, bool gated, enum dtype type))                            \
	X(variant_cross_entropy, (struct device * dev, const struct device_loss *d, void *logits,            \
	                          enum dtype type, const int32_t *targets, int64_t rows, int64_t vocab,      \
	                          float scale, const float *row_scale, float *loss, bool backward))          \
	X(distillation,                                                                                      \
	  (struct device * dev, const struct device_distillation *d, void *logits, enum dtype type,          \
	   const int32_t *targets, int64_t rows, int64_t vocab, float scale, float *loss))                   \
	X(cross_entropy,                                                                                     \
	  (struct device * dev, void *logits, enum dtype type, const int32_t *targets, int64_t rows,         \
	   int64_t vocab, float scale, const float *row_scale, float *loss, bool backward))                  \
	X(argmax, (struct device * dev, int32_t * id, const void *logits, enum dtype type, int64_t rows,     \
	           int64_t vocab))                                                                           \
	X(adamw, (struct device * dev, float *master, void *param, enum dtype param_type, const void *grad,  \
	          enum dtype grad_type, float *m, float *v, int64_t n, const float *grad_scale,              \
	          const struct device_adamw *h))                                                             \
	X(update, (struct device * dev, float *master, void *param, enum dtype param_type, float *grad,      \
	           float *m, float *v, int64_t n, const float *grad_scale, const struct device_update *h))   \
	X(moment_quantize, (struct device * dev, const struct moment_table *table, uint8_t *codes,           \
	                    float *scale, const float *src, int64_t n))                                      \
	X(moment_dequantize, (struct device * dev, const float map[256], float *dst, const uint8_t *codes,   \
	                      const float *scale, int64_t first, int64_t n))                                 \
	X(factor_sums, (struct device * dev, const struct device_factored *f, const float *grad,             \
	                const float *grad_scale, float *row, float *col))                                    \
	X(factor_direction,                                                                                  \
	  (struct device * dev, const struct device_factored *f, float *grad, const float *grad_scale,       \
	   const float *row, const float *col, float factor, float floor))                                   \
	X(delta_forward,                                                                                     \
	  (struct device * dev, const struct device_delta *d, float *states, const int32_t *sequences,       \
	   void *o, const void *q, const void *k, const void *v, const void *b, const void *a))              \
	X(delta_backward,                                                                                    \
	  (struct device * dev, const struct device_delta *d, void *d_q, void *d_k, void *d_v, void *d_b,    \
	   void *d_a, float *d_a_log, float *d_dt_bias, const void *d_o, const void *q, const void *k,       \
	   const void *v, const void *b, const void *a))                                                     \
	X(conv_forward, (struct device * dev, const struct device_conv *c, void *last,                       \
	                 const int32_t *sequences, void *y, const void *x, const void *w))                   \
	X(conv_backward, (struct device * dev, const struct device_conv *c, void *d_x, float *d_w,           \
	                  void *d_y, const void *x, const void *w))                                          \
	X(gate_forward,                                                                                      \
	  (struct device * dev, const struct device_gating *g, void *y, const void *x, const void *gate))    \
	X(gate_backward, (struct device * dev, const struct device_gating *g, void *d_x, void *d_gate,       \
	                  const void *d_y, const void *x, const void *gate))                                 \
	X(copy_groups, (struct device * dev, const struct device_group_copy *c, void *y, const void *x))

struct kernels {
	const char *isa;
	bool bf16_dot; /* attention multiplies bf16 without widening it */
#define X(name, args) void(*name) args;
	KERNELS(X)
#undef X
};

#ifdef KERNEL_ISA
#define KERNEL_CAT_(name, isa) kernel_##name##_##isa
#define KERNEL_CAT(name, isa)  KERNEL_CAT_(name, isa)
#define KERNEL(name)           KERNEL_CAT(name, KERNEL_ISA)
#define X(name, args)          void KERNEL(name) args;
KERNELS(X)
#undef X
#endif

extern const struct kernels kernels_generic;
extern const struct kernels kernels_v3;
extern const struct kernels kernels_v4;
extern const struct kernels kernels_bf16;

/* Sums over rows (the gradients of norm weights) have at most this many partial sums. */
#define COLUMN_PARTS 64

/* ---- scratch of attention ---- */
/* It is computed here because both device_scratch_bytes and the kernels need it. */
#define ATTENTION_BLOCK 64

static inline size_t attention_width(int head_dim)
{
	return round_up((size_t)head_dim, 16);
}

/* The bytes that one thread needs to go on with a sequence of up to max_sequence tokens in a cache: those of
 * struct forward_scratch. */
static inline size_t attention_cached_bytes(int64_t max_sequence, int head_dim)
{
	size_t width = attention_width(head_dim), t = round_up((size_t)max_sequence, ATTENTION_BLOCK);
	size_t block = ATTENTION_BLOCK * width, square = ATTENTION_BLOCK * ATTENTION_BLOCK;

	return round_up((2 * t * width + 2 * block + 2 * square + 18 * ATTENTION_BLOCK) * sizeof(float),
	                CACHE_LINE);
}

/* The bytes that one thread needs for documents of up to max_sequence tokens: the larger of struct
 * forward_scratch and struct backward_scratch. */
static inline size_t attention_thread_bytes(int64_t max_sequence, int head_dim)
{
	size_t width = attention_width(head_dim), t = round_up((size_t)max_sequence, ATTENTION_BLOCK);
	size_t block = ATTENTION_BLOCK * width, square = ATTENTION_BLOCK * ATTENTION_BLOCK;
	size_t forward = attention_cached_bytes(max_sequence, head_dim);
	size_t backward =
	    round_up((5 * t * width + 2 * t + 6 * block + 5 * square) * sizeof(float), CACHE_LINE);

	return forward > backward ? forward : backward;
}

/* ---- scratch of linear attention ---- */
static inline int delta_width(int dim)
{
	return (int)round_up((size_t)dim, 16);
}

/* Floats of struct delta_scratch, and of a state behind it in the forward pass. */
static inline size_t delta_thread_floats(int key_dim, int value_dim, bool backward)
{
	size_t c = DEVICE_DELTA_CHUNK, k = (size_t)delta_width(key_dim), v = (size_t)delta_width(value_dim);
	size_t most = k > v ? k : v, both = c * (5 * k + 4 * v) + 4 * c * c + 8 * c;

	return both + (backward ? most * (most > c ? most : c) + c * (4 * k + v) + 2 * c * c + 3 * c : k * v);
}

/* The bytes that one thread needs for a backward pass over `tokens`, of a group of value heads that share a
 * head of q and k. */
static inline size_t delta_backward_bytes(int64_t tokens, int group, int key_dim, int value_dim)
{
	size_t chunks = (size_t)tokens / DEVICE_DELTA_CHUNK + 2,
	       state = (size_t)key_dim * (size_t)delta_width(value_dim);

	return round_up(
	    (delta_thread_floats(key_dim, value_dim, true) + (chunks + 1) * (size_t)group * state) *
	        sizeof(float),
	    CACHE_LINE);
}

/* The weights of a convolution, turned. */
static inline size_t conv_bytes(int channels, int width)
{
	return (size_t)channels * (size_t)width * sizeof(float);
}
