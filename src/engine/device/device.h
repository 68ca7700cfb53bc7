/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h: memory and the mathematics of a transformer on one device. cpu/ and cuda/ each implement all of
 * it; which one a worker has is decided at link time.
 *
 * Order: operations are queued on the device's compute stream in call order (the CPU runs each at once);
 * results are visible to the host after device_synchronize or device_read. An operation does not fail by
 * itself: a fault sticks to the device and is returned by the next device_synchronize, device_read or
 * device_event_finish.
 *
 * Determinism: the same call on the same shapes gives the same bits, whatever the number of threads is free
 * to vary only where a comment says so.
 *
 * Memory: the caller owns every buffer and has taken it from one arena (device_alloc); an operation allocates
 * nothing beyond the scratch that device_reserve_scratch gave the device. Pointers are device pointers unless
 * "host" stands beside them. Matrices are row-major; [a, b] is the shape; strides count elements. `type` is
 * the dtype of activations and weights; statistics (rstd, lse, losses) are always fp32 and sums are taken in
 * fp32 or wider. Buffers are aligned to 64 bytes, row strides may be any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/device/dtype.h"
#include "engine/device/fp8.h"

struct device;

/* Parts of a product that go as kernels of their own: to see what a library's fused ones bring. */
enum device_unfused { DEVICE_UNFUSED_BIAS = 1, DEVICE_UNFUSED_BIAS_GRADIENT = 2 };

/* Of a GPU. Auto: cuDNN where it is installed and expected to be the faster for a shape. The same calls give
 * the same bits with each, though not the same bits as with another. */
enum device_attention_choice { DEVICE_ATTENTION_AUTO, DEVICE_ATTENTION_OWN, DEVICE_ATTENTION_CUDNN };

struct device_options {
	int index;   /* GPU ordinal among the visible ones; ignored on CPU */
	int threads; /* CPU threads, 0: OMP_NUM_THREADS or all that the affinity mask allows */
	int unfused; /* enum device_unfused, added up; the CPU has none that it fuses */
	enum device_attention_choice attention;
};

int device_create(const struct device_options *options, struct device **out, struct error *err);
void device_destroy(struct device *dev);

/* One line for the log: "cpu: 2 threads, OpenBLAS 0.3.21 SkylakeX, oneDNN 2.6 avx512_core_bf16". Owned by
 * dev. */
const char *device_describe(const struct device *dev);
bool device_supports(const struct device *dev, enum dtype type);     /* at a useful speed, as activations */
double device_peak_flops(const struct device *dev, enum dtype type); /* dense; 0: unknown */
/* Whether no other process can open the device while this one has it: a GPU in compute mode
 * EXCLUSIVE_PROCESS. */
bool device_is_exclusive(const struct device *dev);

/* Zeroed device memory, 64-byte aligned (256 on CUDA); -ENOMEM with sizes in words. Called at start only. */
int device_alloc(struct device *dev, size_t bytes, void **out, struct error *err);
void device_free(struct device *dev, void *p);
/* Bytes of scratch that the operations need at most, for the largest shapes a step will use: the plan counts
 * it. */
struct device_shapes {
	int64_t tokens;       /* rows of the largest micro-batch */
	int64_t max_sequence; /* longest document in tokens */
	int64_t cache_tokens; /* longest sequence in a cache; 0: there is none */
	int64_t cache_rows;   /* of device_attention_rows */
	int hidden, intermediate, heads, kv_heads, head_dim;
	/* Of so many ranks that share a sequence: attention has all their tokens, and a rank's part of the
	 * heads; 0: as 1. */
	int sequence_degree;
	/* Of a mixture of experts, each of which is intermediate wide and computes a multiple of so many
	 * rows; experts 0: there is one MLP. */
	int experts, multiple;
	int norm_cols;        /* of a norm that is wider than hidden; 0: none is */
	bool gated_attention; /* q has a gate of as many columns */
	/* Columns of a block's widest product with hidden columns of input, where they may be more than those
	 * of q, k and v, and of gate and up: with gates, of linear attention, of adapters. */
	int64_t projection;
	/* Of linear attention (delta.h); value_heads 0: there is none. */
	struct device_delta_shape {
		int key_heads, value_heads, key_dim, value_dim;
		bool trained; /* device_delta_backward is called */
	} delta;
	/* Columns and rows of a chunk of the head's output: of logits, or of scores, of which vocab is 1. */
	int64_t vocab, logits_rows;
	enum dtype type;
	enum dtype gradient_type; /* of the blocks' matrices */
	/* Attention: whether layers see all before a token, or a window of it; neither: all. */
	bool all_before, windowed;
	bool capped; /* its scores are capped (device_attention.cap), which cuDNN does not compute */
	/* Strides of q, k and v in one matrix, and of o; 0: as wide as they are. */
	int64_t ld_qkv, ld_o;
	int64_t quantized;   /* elements of the largest matrix that is quantized to NF4 */
	bool orthogonalizes; /* the optimizer multiplies matrices of the blocks with themselves (Muon) */
	/* No matrix of a block, and not that of the head, is trained: there are no products for its gradient.
	 */
	bool frozen_blocks, frozen_head;
	bool fp8; /* the products of the blocks' matrices are in fp8 */
};
/* The shapes of attention alone. */
static inline struct device_shapes device_attended(const struct device_shapes *shapes)
{
	struct device_shapes s = *shapes;
	int degree = s.sequence_degree > 1 ? s.sequence_degree : 1;

	s.tokens *= degree;
	s.heads /= degree;
	s.kv_heads /= degree;
	s.ld_qkv /= degree;
	s.ld_o /= degree;
	s.sequence_degree = 1;
	return s;
}
/* Bytes of logits that the head does best at a time. Each chunk reads the head's weights twice and adds to
 * their gradient once; the fewer rows, the more that weighs, and the more, the less of a chunk stays in the
 * cache. */
size_t device_logits_bytes(void);
/* A GPU also prepares itself for these shapes, in place of those that it was asked about before. */
size_t device_scratch_bytes(const struct device *dev, const struct device_shapes *shapes);
int device_reserve_scratch(struct device *dev, size_t bytes, struct error *err);

int device_synchronize(struct device *dev, struct error *err);
int device_read(struct device *dev, void *host, const void *src, size_t bytes, struct error *err); /* waits */
int device_write(struct device *dev, void *dst, const void *host, size_t bytes, struct error *err);
void device_copy(struct device *dev, void *dst, const void *src, size_t bytes);
void device_zero(struct device *dev, void *dst, size_t bytes);

/* Whether the operations that are queued are carried out while the host goes on. */
bool device_runs_behind(const struct device *dev);

/* Events order the compute stream against a communicator's: recorded here, waited for there, or the reverse.
 * On the CPU compute is done when the call returns: record is a store, wait on a comm event blocks. */
struct device_event;
int device_event_create(struct device *dev, struct device_event **out, struct error *err);
void device_event_destroy(struct device_event *event);
void device_event_record(struct device *dev, struct device_event *event);

/* ---- host memory, and transfers that do not delay the compute stream ---- */
/* Zeroed memory of the host, 64-byte aligned, which a GPU reads and writes directly (pinned). -ENOMEM with
 * sizes in words. Called at start only, before the first transfer. */
int device_alloc_host(struct device *dev, size_t bytes, void **out, struct error *err);
void device_free_host(struct device *dev, void *p);
enum device_direction { DEVICE_TO_HOST, DEVICE_FROM_HOST };
/* Copies between the device and memory of device_alloc_host, on a lane of its own: after what is queued on
 * the compute stream so far and after the transfers before it, while the compute stream goes on. done (NULL:
 * none) is recorded behind the copy. On the CPU the copy is complete when the call returns. */
void device_transfer(struct device *dev, enum device_direction direction, void *dst, const void *src,
                     size_t bytes, struct device_event *done);
/* What is queued on the compute stream from now on begins after the event. */
void device_event_wait(struct device *dev, struct device_event *event);
/* The host waits until the event has been reached; one that was never recorded has been. */
int device_event_finish(struct device *dev, struct device_event *event, struct error *err);

/* ---- operations that do not delay the compute stream ---- */
/* device_update and device_adamw between these two are queued on a lane of their own, behind what is on the
 * compute stream so far and behind what is on that lane; a collective between them begins after them. The
 * compute stream goes on meanwhile: what they write may be read, and what they read written, after
 * device_event_wait(done), or device_synchronize; device_read waits for the compute stream alone. On the CPU
 * they have been carried out when they return. */
void device_aside_begin(struct device *dev);
void device_aside_end(struct device *dev, struct device_event *done);

/* ---- elementwise and conversions ---- */
void device_cast(struct device *dev, void *dst, enum dtype dst_type, const void *src, enum dtype src_type,
                 int64_t n);
void device_scale(struct device *dev, void *x, enum dtype type, float factor, int64_t n);
void device_add(struct device *dev, void *dst, const void *src, enum dtype type, int64_t n); /* dst += src */
/* Adds sum(x[i]^2) in a fixed order to *sum (one device float64). */
void device_sum_squares(struct device *dev, const void *x, enum dtype type, int64_t n, double *sum);
/* Adds sum(x[i]) to *sum (one device float64). */
void device_sum(struct device *dev, const float *x, int64_t n, double *sum);

/* ---- GEMM ---- */
/* C[m,n] = alpha · op(A)·op(B) + beta · C. op(X) is X, or its transpose where the flag is set. lda, ldb, ldc
 * are row strides of the stored matrices. A and B have type ab_type, C has c_type (that or fp32); sums are
 * fp32. bias: a row of n in c_type, added to every row of C (NULL: none). d_bias: fp32 [m], to which the sums
 * of op(A)'s rows over k are added (NULL: none; with transpose_a alone): where A is the gradient of an output
 * and C that of its weights, that of its bias. */
struct device_gemm {
	bool transpose_a, transpose_b;
	int64_t m, n, k;
	float alpha, beta;
	const void *a, *b;
	void *c;
	int64_t lda, ldb, ldc;
	enum dtype ab_type, c_type;
	const void *bias;
	float *d_bias;
	/* For few rows, without transpose_a: a row of C has the bits that it has in a product of that row by
	 * itself. On the CPU engine; cuBLASLt chooses its kernel by m, too. */
	bool by_rows;
	/* Where A and B are codes of device_fp8_quantize: their formats, and what each stands for is
	 * multiplied with (device). They are [m, k] and [n, k]: transpose_b, without transpose_a and d_bias;
	 * n, k, lda and ldb are multiples of FP8_MULTIPLE, and scales are aligned to FP8_SCALE_ALIGNMENT.
	 * ab_type is what they were quantized from. */
	enum fp8_format fp8_a, fp8_b;
	const float *scale_a, *scale_b;
};
void device_gemm(struct device *dev, const struct device_gemm *g);

/* ---- the algorithms of GEMMs ---- */
/*
 * A GPU's library has several algorithms for a product, which differ in speed and in the last bits. Without a
 * choice it is the library's first suggestion. Choices are measured (device_gemm_measure), or were measured
 * by another process on a device of the same kind, and are then used (device_gemm_use).
 *
 * The rows of A as it is stored are m, or with transpose_a k: the tokens of a batch, whose number varies. A
 * choice is for its own number of rows and for all fewer ones, down to the next smaller choice for the same
 * product, so that the algorithm of a product is a function of its shape and of the choices, whatever was
 * computed before. Of a gradient of weights in fp8, whose tokens are k, it is for its own number alone.
 */
#define DEVICE_GEMM_ALIGNMENT 16 /* bytes: more makes no difference to a choice */
#define DEVICE_ALGORITHM      64 /* bytes */

/* What an algorithm depends on. No padding: compared as bytes. */
struct device_gemm_shape {
	int64_t m, n, k, lda, ldb, ldc;
	int32_t transpose_a, transpose_b, ab_type, c_type;
	int32_t adds, bias, d_bias;                    /* 1: beta is not 0; has a bias; has its gradient */
	int32_t align_a, align_b, align_c, align_bias; /* of the addresses, DEVICE_GEMM_ALIGNMENT at most */
	int32_t fp8; /* 16 times the format of A, and that of B; 0: neither */
};

struct device_gemm_choice {
	struct device_gemm_shape shape;
	bool separate;                             /* the bias, or its gradient, is a kernel of its own */
	unsigned char algorithm[DEVICE_ALGORITHM]; /* as the library has it, the same in each process */
};

void device_gemm_shape(const struct device_gemm *g, struct device_gemm_shape *out);
/* The largest power of two, up to `most`, that divides an address: `most` for NULL. */
int32_t device_alignment(const void *p, int32_t most);
/* The kind of device that choices are for: its name, and the library with its version. Owned by dev; NULL
 * where there is nothing to choose. */
const char *device_gemm_kind(const struct device *dev);
/* Fills in what is the fastest for the shape of each choice: of what the library suggests, with the bias
 * fused and separate, by the time that each takes with random numbers. Takes memory of the device meanwhile,
 * as much as the largest operands have. Called at start only. */
int device_gemm_measure(struct device *dev, struct device_gemm_choice *choices, size_t n, struct error *err);
/* These in place of those before; copied. -EINVAL, with the former ones kept, where the library does not
 * accept one. Called at start only. */
int device_gemm_use(struct device *dev, const struct device_gemm_choice *choices, size_t n,
                    struct error *err);

/* ---- fp8 (fp8.h) ---- */
/* Whether the device multiplies fp8. The CPU does in fp32, to the same results: slower than bf16. */
bool device_supports_fp8(const struct device *dev);
/* What matrices of fp8 are made of: a matrix, whose rows are ld apart, with one scale of its own. */
struct device_fp8 {
	enum fp8_format format;
	enum dtype type; /* of the matrix */
	int64_t rows, cols, ld;
	uint8_t *codes;  /* [rows, cols]; NULL: not wanted */
	uint8_t *turned; /* [cols, fp8_padded(rows)], zeros behind the rows; NULL: not wanted */
	float *scale;    /* [2], device: what codes stand for is multiplied with it; the largest magnitude */
	/* The largest magnitude, device, where the operation that computed the matrix has found it (`amax`
	 * below): the matrix is then read once. NULL: a pass over the matrix finds it. */
	const float *amax;
};
void device_fp8_quantize(struct device *dev, const struct device_fp8 *q, const void *src);
/* Operations that compute an operand of products in fp8 have an argument or a member `amax`, a device float
 * to which they write the largest magnitude of their output as it is stored; NULL: not wanted. It is what
 * device_fp8_quantize finds, bit for bit: NaNs are left out, and of nothing it is 0. */

void device_bias_forward(struct device *dev, void *x, const void *bias, int64_t rows, int64_t cols,
                         int64_t ld, enum dtype type);
/* d_bias[cols] (grad_type) += column sums of d_y. */
void device_bias_backward(struct device *dev, void *d_bias, enum dtype grad_type, const void *d_y,
                          int64_t rows, int64_t cols, int64_t ld, enum dtype type);

/* ---- embedding ---- */
/* out[t,:] = table[ids[t],:]; ids are already checked to be within [0, vocab). */
void device_embedding_forward(struct device *dev, void *out, const int32_t *ids, const void *table,
                              int64_t tokens, int hidden, enum dtype type);
/* d_table[ids[t],:] += d_out[t,:], rows added in token order (deterministic). host_ids: the same ids on the
 * host. */
void device_embedding_backward(struct device *dev, void *d_table, enum dtype grad_type, const void *d_out,
                               const int32_t *ids, const int32_t *host_ids, int64_t tokens, int64_t vocab,
                               int hidden, enum dtype type);

/* ---- RMSNorm (Zhang & Sennrich 2019) ---- */
/* y = x · rstd · (w_offset + w), rstd = 1/sqrt(mean(x²) + eps), kept in rstd[rows] when not NULL. x rows are
 * ld_x apart, y rows ld_y: for q/k norm rows are heads, and a token's heads lie inside one row of a wider
 * matrix: `groups` rows of `cols` elements follow each other, then the next token starts ld elements on.
 * groups = 1: an ordinary matrix of `rows` rows. */
struct device_norm {
	int64_t rows; /* tokens */
	int groups;   /* heads per token, 1 for a plain norm */
	int cols;
	int64_t ld_x, ld_y; /* between tokens */
	float eps;
	float w_offset; /* 1 where weights are stored less 1 */
	enum dtype type;
	float *amax; /* of RMSNorm: of y, and of the backward pass of d_x; groups = 1. NULL: not wanted */
};
void device_rmsnorm_forward(struct device *dev, const struct device_norm *n, void *y, float *rstd,
                            const void *x, const void *w);
/* residual[t,:] += x[t,:] first (in place, stored in `type`), then y = norm(residual). Plain norms only. */
void device_add_rmsnorm_forward(struct device *dev, const struct device_norm *n, void *y, float *rstd,
                                void *residual, const void *x, const void *w);
/* d_x (+)= …, d_w (grad_type) += …; x is the forward's input. With accumulate, d_x is added to (the residual
 * path); without, written. d_y and d_x use ld_y and ld_x; they may be the same buffer when not
 * accumulating. */
void device_rmsnorm_backward(struct device *dev, const struct device_norm *n, void *d_x, bool accumulate,
                             void *d_w, enum dtype grad_type, const void *d_y, const void *x,
                             const float *rstd, const void *w);

/* ---- LayerNorm (Ba et al. 2016) ---- */
/* y = (x - mean) · rstd · w + b, rstd = 1/sqrt(variance + eps). statistics: fp32 [2, rows], rstd and then
 * mean (NULL: not wanted). Plain norms only. */
void device_layernorm_forward(struct device *dev, const struct device_norm *n, void *y, float *statistics,
                              const void *x, const void *w, const void *b);
/* d_x (+)= …, d_w and d_b (both fp32) += …; otherwise as device_rmsnorm_backward. */
void device_layernorm_backward(struct device *dev, const struct device_norm *n, void *d_x, bool accumulate,
                               float *d_w, float *d_b, const void *d_y, const void *x,
                               const float *statistics, const void *w);

/* ---- rotary position embedding (Su et al. 2021) ---- */
/* Of the first rotary_dim elements of each of `heads` consecutive heads of a token, in place; the rows of
 * tokens are ld apart. */
struct device_rope {
	int64_t tokens, ld;
	int heads, head_dim, rotary_dim;
	/* Element 2i is rotated with element 2i + 1 (GLM), else i with rotary_dim/2 + i (rotate_half). */
	bool interleaved;
	const int32_t *positions; /* [tokens] */
	const float *cos, *sin;   /* fp32 [positions, rotary_dim/2] */
	enum dtype type;
};
void device_rope(struct device *dev, const struct device_rope *r, void *x);
/* The backward: the transpose of the rotation. */
void device_rope_inverse(struct device *dev, const struct device_rope *r, void *x);

/* Norm of the heads of q and k, and their rotation (qwen3): in each row of x and y, ld apart, lie `heads`
 * heads of q, normed with w_q[head_dim], then kv_heads of k, normed with w_k. y = rope(norm(x)), the norm
 * rounded to `type`; not in place. rstd (where not NULL): [tokens, heads], then [tokens, kv_heads]. */
struct device_qk_norm {
	int64_t tokens;
	int heads, kv_heads, head_dim;
	int64_t ld;
	float eps, w_offset;
	const int32_t *positions; /* these three as device_rope has them, of whole heads, not interleaved */
	const float *cos, *sin;
	enum dtype type;
};
void device_qk_norm_rope(struct device *dev, const struct device_qk_norm *n, void *y, float *rstd,
                         const void *x, const void *w_q, const void *w_k);
/* d, the gradient of y, is replaced by that of x; d_w_q and d_w_k (grad_type) += theirs. With the bits of
 * device_rope_inverse, whose result is rounded to `type`, and then device_rmsnorm_backward of q and of k.
 */
void device_qk_norm_rope_backward(struct device *dev, const struct device_qk_norm *n, void *d, void *d_w_q,
                                  void *d_w_k, enum dtype grad_type, const void *x, const float *rstd,
                                  const void *w_q, const void *w_k);

/* ---- attention: causal, grouped heads, packed documents; never builds T×T (Dao 2022, FlashAttention-2)
 * ---- */
struct device_attention {
	int64_t tokens;
	int heads, kv_heads, head_dim;
	float scale;
	float cap;  /* above 0: the score s is replaced by cap · tanh(s / cap) */
	int window; /* a token sees itself and window-1 before it; 0: all before it */
	int documents;
	const int32_t *starts;          /* device, [documents + 1]: first row of each document, then tokens */
	const int32_t *host_starts;     /* the same on the host */
	int64_t ld_q, ld_k, ld_v, ld_o; /* row strides; q, k, v usually lie in one fused buffer */
	enum dtype type;
	bool portable; /* without Hopper's kernel, which has been checked for other shapes */
	float *amax;   /* of o, of device_attention_forward; NULL: not wanted */
	/* Of device_attention_backward: q and k have been rotated by device_rope, which has these four, too,
	 * not interleaved. rotary_dim 0: they have not. */
	int rotary_dim;
	const int32_t *positions;
	const float *cos, *sin;
};
/* o[t, heads·head_dim]; lse fp32 [heads, tokens] (log-sum-exp of scaled, capped scores). */
void device_attention_forward(struct device *dev, const struct device_attention *a, void *o, float *lse,
                              const void *q, const void *k, const void *v);
/* d_q, d_k, d_v have the strides of q, k, v and are written, not added to. Where q and k have been rotated,
 * d_q and d_k are the gradients of what was rotated: with the bits of device_rope_inverse, of gradients
 * that are rounded to `type`. */
void device_attention_backward(struct device *dev, const struct device_attention *a, void *d_q, void *d_k,
                               void *d_v, const void *d_o, const void *o, const float *lse, const void *q,
                               const void *k, const void *v);
/*
 * Columns of `whole` [rows, ld_whole], for as many groups, of which each has the next cols / groups of them.
 * In `parts` [groups][rows, ld_part] a group's columns are the first of its rows: with heads as columns, what
 * ranks that share a sequence send each other.
 */
struct device_groups {
	int64_t rows, cols, ld_whole, ld_part;
	int groups; /* a divisor of cols */
	enum dtype type;
};
void device_part_columns(struct device *dev, const struct device_groups *g, void *parts, const void *whole);
void device_join_columns(struct device *dev, const struct device_groups *g, void *whole, const void *parts);
/*
 * Hopper has a second kernel for each pass, whose results differ from those of the portable one in the last
 * bits. Calls that it can compute, and that cuDNN does not, are its own after device_attention_use_hopper and
 * not before. A caller has it checked on the device first, and records that it is used: a run that resumes
 * goes on with the kernels that it began with.
 */
enum device_attention_pass { DEVICE_ATTENTION_FORWARD, DEVICE_ATTENTION_BACKWARD, DEVICE_ATTENTION_PASSES };
struct device_attention_shape {
	int64_t tokens, rows; /* of a call, of a document */
	int32_t heads, kv_heads, head_dim, window;
	enum dtype type;
	enum device_attention_pass pass;
};
/* Whether there is such a kernel for the pass and the shape on this device. */
bool device_attention_has_hopper(const struct device *dev, const struct device_attention_shape *shape);
/* Compares both kernels over small problems of random numbers, then measures both over the shape: seconds of
 * a call by the portable kernel, and by Hopper's. -EBADMSG: the results differ by more than rounding; -EIO:
 * the device has failed. Takes memory of the device meanwhile. A kernel that never ends does not return: a
 * process that must not hang calls this in another one. Called at start only. */
int device_attention_check(struct device *dev, const struct device_attention_shape *shape, double seconds[2],
                           struct error *err);
void device_attention_use_hopper(struct device *dev, enum device_attention_pass pass, bool use);
/* Generation: `new_tokens` queries at positions past … past+new_tokens-1 of one sequence, against a cache
 * that already holds past + new_tokens rows of k and v (row stride ld_k, ld_v). a->documents and starts are
 * not used. */
void device_attention_cached(struct device *dev, const struct device_attention *a, int64_t past, void *o,
                             const void *q, const void *k_cache, const void *v_cache);
/* Generation in several sequences at once, whose caches follow one another: each has `tokens` rows of keys
 * and values, k[kv_heads·head_dim] first, then as many of v. Row i of q, k and v belongs to the token
 * positions[i] of the sequence sequences[i]. */
struct device_cache {
	int64_t rows, tokens;
	int64_t longest;                      /* the highest of the positions */
	const int32_t *sequences, *positions; /* device, [rows] */
};
/* Keys and values of the rows, each `width` wide and `ld` apart, to their places in the cache. */
void device_cache_append(struct device *dev, const struct device_cache *c, void *cache, const void *k,
                         const void *v, int64_t width, int64_t ld, enum dtype type);
/* Each row attends to its sequence up to itself: the bits that device_attention_cached gives for one token by
 * itself, whichever other rows there are. Of `a`, tokens, documents, ld_k and ld_v are not used. */
void device_attention_rows(struct device *dev, const struct device_attention *a, const struct device_cache *c,
                           void *o, const void *q, const void *cache);

/* ---- SwiGLU (Shazeer 2020) ---- */
/* gate_up[t, 2·cols]: gate first, then up. y[t, cols] = silu(gate) · up. amax: of y. */
void device_swiglu_forward(struct device *dev, void *y, const void *gate_up, int64_t tokens, int cols,
                           enum dtype type, float *amax);
/* d_gate_up may be gate_up itself (in place). When y is not NULL the forward's output is written there again,
 * so that it need not have been kept. amax: [2], of y (with y NULL: 0) and of d_gate_up. */
void device_swiglu_backward(struct device *dev, void *d_gate_up, void *y, const void *d_y,
                            const void *gate_up, int64_t tokens, int cols, enum dtype type, float *amax);

/* ---- a mixture of experts (Shazeer et al. 2017): an MLP of which a token passes a few of many ---- */
/*
 * A router chooses `chosen` of the experts for each token: choice [t, k] is the k-th expert of token t. The
 * experts compute matrices whose rows are the places. Each choice has one place: the places of expert 0 come
 * first, then those of expert 1, and so on, and the choices of one expert have the order of the tokens. The
 * first place of each expert is a multiple of `multiple`, and so is the number of places. An expert then has
 * one of a few numbers of rows; a library needs preparation for each of these shapes. The places between the
 * choices of an expert and the first place of the next expert belong to no choice.
 *
 * tokens · chosen + experts · multiple must be below 2^31. Where experts or chosen is larger than the
 * struct allows, device_route, device_expert_places and device_route_backward write nothing and the fault
 * is -EINVAL. With 0 tokens device_expert_places writes zeros into starts and -1 into row; the other
 * operations of a router write nothing.
 */
struct device_router {
	int64_t tokens;
	int experts;     /* at most DEVICE_EXPERTS_MAX */
	int chosen;      /* experts of a token: at most `experts`, and at most DEVICE_CHOSEN_MAX */
	int multiple;    /* at least 1 */
	bool normalized; /* the weights of a token add up to 1 */
	enum dtype type;
};
#define DEVICE_EXPERTS_MAX 1024
#define DEVICE_CHOSEN_MAX  32
/* Writes expert and weight, both [tokens, chosen], from logits [tokens, experts]. The experts of a token are
 * those of its largest logits, in descending order; of equal logits the lower expert comes first. Their
 * weights are the softmax of the token's logits over all experts; with `normalized` each is divided by the
 * sum of the token's weights. Where a logit of a token is NaN or +infinity, or all of them are -infinity, all
 * of its weights are NaN. Its experts are distinct even then, but where a logit is NaN it is unspecified
 * which experts they are. */
void device_route(struct device *dev, const struct device_router *r, int32_t *expert, float *weight,
                  const void *logits);
/* The largest number of places that so many tokens can have. */
static inline int64_t device_places_most(const struct device_router *r)
{
	return r->tokens * r->chosen + (int64_t)r->experts * (r->multiple - 1);
}
/* Writes the places of the choices in expert [tokens, chosen], whose elements are from 0 to experts - 1.
 * starts [2 · experts + 1]: the first place of each expert, then the number of places, then the number of
 * choices of each expert. row [device_places_most(r)]: the token of each place; -1 for a place that belongs
 * to no choice, and for all elements beyond the last place. place [tokens, chosen]: the place of each choice.
 */
void device_expert_places(struct device *dev, const struct device_router *r, int32_t *starts, int32_t *row,
                          int32_t *place, const int32_t *expert);
/* y[p, cols] = x[row[p], cols], or zeros where row[p] is -1, for p from 0 to places - 1. Of r only the type
 * counts. y must not overlap x. */
void device_expert_rows(struct device *dev, const struct device_router *r, void *y, const void *x,
                        const int32_t *row, int64_t places, int cols);
/* y[t, cols] = Σ weight[t,k] · x[place[t,k], cols], where the sum is taken in the order of k and rounded
 * once. weight NULL: all weights are 1. y must not overlap x. */
void device_expert_sum(struct device *dev, const struct device_router *r, void *y, const void *x,
                       const int32_t *place, const float *weight, int cols);
/* The gradient of weights that rows were multiplied with. x [places, cols] are the rows, and d [places, cols]
 * is the gradient of the weighted rows. For each choice, whose place is p: d_weight[t,k] = d[p] · x[p], then
 * d[p] and x[p] are multiplied by weight[t,k]. The rows of places that belong to no choice stay as they are.
 * d must not overlap x. */
void device_expert_weigh(struct device *dev, const struct device_router *r, float *d_weight, void *d, void *x,
                         const int32_t *place, const float *weight, int cols);
/* d_logits [tokens, experts] = the gradient of Σ weight[t,k] · d_weight[t,k], where d_weight is a constant
 * and expert and weight are what device_route wrote. With balance (fp32 [experts]; NULL: none) it is the
 * gradient of that plus scale · Σ loss[t], and loss[t] = Σ balance[e] · softmax(logits[t])[e] is written.
 * Without balance, loss is not written and may be NULL. d_logits may be logits. */
void device_route_backward(struct device *dev, const struct device_router *r, void *d_logits,
                           const void *logits, const int32_t *expert, const float *weight,
                           const float *d_weight, const float *balance, float scale, float *loss);

/* ---- adapters ---- */
/* Dropout (Srivastava et al. 2014) with a mask that is never stored: y[i] = x[i] · factor for the elements
 * that are kept and 0 for the others, or with accumulate that added to y; factor makes the mean that of x.
 * Whether an element is kept is a function of (seed, number, i) alone (rounding.h), the same on every device.
 * y may be x. */
struct device_dropout {
	double probability; /* of an element to be dropped, to the nearest 1 / 65536; below 1 */
	uint64_t seed;
	int64_t number; /* of the mask among those of the seed */
};
void device_dropout(struct device *dev, const struct device_dropout *d, void *y, bool accumulate,
                    const void *x, enum dtype type, int64_t n);
/* y[i] += noise, uniform in ±magnitude (Jain et al. 2023, NEFTune): a function of (seed, number, first + i)
 * alone, like dropout's masks. */
struct device_noise {
	float magnitude;
	uint64_t seed;
	int64_t number, first;
};
void device_add_noise(struct device *dev, const struct device_noise *d, void *y, enum dtype type, int64_t n);
/* norm[j] = the length of row j of w + scale · b · a, where w is [rows, cols], b [rows, rank] and a [rank,
 * cols] (Liu et al. 2024, DoRA). transposed: w lies as [cols, rows]. */
struct device_row_norms {
	int64_t rows, cols, rank;
	float scale;
	bool transposed;
	enum dtype type;
};
void device_row_norms(struct device *dev, const struct device_row_norms *n, float *norm, const void *w,
                      const void *b, const void *a);
/* y[t,j] = x[t,j] · times[t,j] · magnitude[j] / norm[j] + bias[j]: without times, magnitude or bias where it
 * is NULL; 0 + bias[j] where norm[j] is 0. Rows of x, y and times are ld apart; y may be x. */
struct device_columns {
	int64_t rows, cols, ld;
	const void *times, *magnitude, *bias;
	const float *norm;
	enum dtype type;
};
void device_scale_columns(struct device *dev, const struct device_columns *c, void *y, const void *x);

/* ---- GELU, by its approximation with tanh (Hendrycks & Gimpel 2016), with a gate or without ---- */
/* gated: x[t, 2·cols], gate first, then up, y[t, cols] = gelu(gate) · up; else x[t, cols], y = gelu(x). */
void device_gelu_forward(struct device *dev, void *y, const void *x, int64_t tokens, int cols, bool gated,
                         enum dtype type);
/* As device_swiglu_backward: d_x may be x, and y is written again where it is not NULL. */
void device_gelu_backward(struct device *dev, void *d_x, void *y, const void *d_y, const void *x,
                          int64_t tokens, int cols, bool gated, enum dtype type);

/* ---- softmax cross-entropy over a chunk of rows ---- */
/* loss[row] = -log softmax(logits[row])[target], 0 where target < 0. With backward, logits are replaced in
 * place by d_logits = (softmax - onehot) · scale · row_scale[row] (0 rows where target < 0). row_scale: fp32
 * [rows], NULL: all 1. logits rows are vocab apart. */
void device_cross_entropy(struct device *dev, void *logits, enum dtype type, const int32_t *targets,
                          int64_t rows, int64_t vocab, float scale, const float *row_scale, float *loss,
                          bool backward);
/* The same of other losses of the softmax's log-probabilities log p. */
struct device_loss {
	/* Of y = cap · tanh(x / cap) where x is in `logits`; d_logits are those of x. 0: none */
	float cap;
	/* Label smoothing (Szegedy et al. 2016): (1 - smoothing) · -log p[target] + smoothing · the mean of
	 * -log p over the vocabulary. */
	float smoothing;
	bool by_probability; /* times p[target], which is a constant for the gradient (Wu et al. 2025, DFT) */
};
void device_variant_cross_entropy(struct device *dev, const struct device_loss *d, void *logits,
                                  enum dtype type, const int32_t *targets, int64_t rows, int64_t vocab,
                                  float scale, const float *row_scale, float *loss, bool backward);
/* Knowledge distillation (Hinton et al. 2015), with the gradient. x: a row of logits, t: the row of a
 * teacher's; each id of which either has none is left out of the second term:
 * loss[row] = (1 - weight) · -log softmax(x)[target] + weight · temperature² · KL(softmax(t / temperature) ‖
 * softmax(x / temperature)), and 0 where target < 0. The gradient of sum(loss) · scale replaces the logits;
 * the teacher's stay as they are. */
struct device_distillation {
	const void *teacher; /* [rows, teacher_vocab] of the type of the logits */
	int64_t teacher_vocab;
	float weight, temperature;
	float cap, teacher_cap; /* as device_loss.cap, of the logits and of the teacher's */
};
void device_distillation(struct device *dev, const struct device_distillation *d, void *logits,
                         enum dtype type, const int32_t *targets, int64_t rows, int64_t vocab, float scale,
                         float *loss);
/* Draws an id from each row of logits, fp32: from the first `ids`, with the probabilities of
 * softmax(y · inverse), y the logits or cap · tanh(logits / cap), of which what top_k, then top_p, then min_p
 * exclude is left out. Ids that tie with the last one that stays, stay. uniform (device, [rows]): in [0, 1),
 * chooses among the ids in their order. The probabilities are added in fixed point: another engine, whose
 * exponentials differ in the last bit, chooses another id only where uniform is as close to the edge. */
struct device_choice {
	int64_t ids;
	int64_t ld;    /* from one row of logits to the next; 0: all choose from the same row */
	float cap;     /* 0: none */
	float inverse; /* 1 / temperature */
	int64_t top_k; /* 0: all */
	double top_p;  /* 1: all */
	float min_p;   /* 0: all */
};
void device_choose(struct device *dev, const struct device_choice *d, int32_t *id, const float *logits,
                   int64_t rows, const double *uniform);
/* Greedy choice: id[row] = argmax (the lowest id among equals). */
void device_argmax(struct device *dev, int32_t *id, const void *logits, enum dtype type, int64_t rows,
                   int64_t vocab);

/* ---- AdamW (Loshchilov & Hutter 2019), decoupled decay, as torch.optim.AdamW ---- */
struct device_adamw {
	double learning_rate, beta1, beta2, epsilon, weight_decay; /* double: 1 - 0.999f is off by 1e-5 */
	int64_t step;                                              /* 1 for the first */
	/* Without a master copy: of the rounding. */
	uint64_t seed;
	int64_t first; /* place of param[0] among all parameters, whichever rank holds them */
	/* Of rows of `width` elements, of the first of which param[0] is element `column`, only the first
	 * `decayed` have the weight decay; width 0: all have. */
	int64_t width, decayed, column;
};
/* master, m, v: fp32 [n]; grad: grad_type [n], multiplied by *grad_scale (a device float; NULL: 1) before
 * use. Where *grad_scale is a NaN, the step is skipped: nothing is changed. param: the compute copy in
 * param_type, rounded from master afterwards (NULL where master itself is used). With master NULL, param, in
 * bf16, is all there is: it is rounded stochastically, up or down with the odds of what lies between (Gupta
 * et al. 2015), by bits that are a function of (seed, step, first + i) alone (rounding.h); steps far below
 * bf16's resolution add up in the mean. Every operation is rounded by itself, in the same order on every
 * device: the same bits everywhere. */
void device_adamw(struct device *dev, float *master, void *param, enum dtype param_type, const void *grad,
                  enum dtype grad_type, float *m, float *v, int64_t n, const float *grad_scale,
                  const struct device_adamw *h);

/* ---- other optimizers, element by element ---- */
enum device_rule {
	/* d = ratio · (g + weight_decay · p), m = beta1 · m + d, p -= learning_rate · (nesterov ? d + beta1 ·
	 * m : m): torch.optim.SGD. m may be NULL where beta1 is 0. */
	DEVICE_SGD,
	/* Chen et al. 2023, algorithm 2, with decoupled decay: p follows the sign of beta1 · m + (1 - beta1)
	 * · g. */
	DEVICE_LION,
	/* You et al. 2020 (LAMB), algorithm 2 up to the norms: the direction, decay included, is written over
	 * grad; the weights are only read. */
	DEVICE_LAMB,
	/* d = ratio · g, m += (1 - beta1) · (d - m); m, or with nesterov d + beta1 · (m - d), is written over
	 * grad. Weights are not used. */
	DEVICE_MEAN,
	/* p = p · (1 - learning_rate · weight_decay) - learning_rate · ratio · g. */
	DEVICE_APPLY,
	DEVICE_RULES
};
struct device_update {
	enum device_rule rule;
	double learning_rate, beta1, beta2, epsilon, weight_decay;
	double ratio;
	bool nesterov;
	int64_t step; /* 1 for the first */
	uint64_t seed;
	int64_t first; /* seed and first as device_adamw has them */
};
/* master, param, m, v and grad_scale, a NaN in it included, as device_adamw has them, without what the rule
 * does not use (v but for LAMB); grad: fp32. Every operation is rounded by itself. */
void device_update(struct device *dev, float *master, void *param, enum dtype param_type, float *grad,
                   float *m, float *v, int64_t n, const float *grad_scale, const struct device_update *h);

/* Adafactor (Shazeer & Stern 2018, section 3): elements [first, first + n) of a matrix with rows of
 * `cols`. */
struct device_factored {
	int64_t first, n, cols;
};
/* row[i] and col[j] (fp32, of the whole matrix) += the sums of (g · *grad_scale)² over the elements here. col
 * NULL: rows alone. Both functions change nothing where *grad_scale is a NaN. */
void device_factor_sums(struct device *dev, const struct device_factored *f, const float *grad,
                        const float *grad_scale, float *row, float *col);
/* g = g · *grad_scale / sqrt(max(row[i] · factor · col[j], floor)), in place. col NULL: 1 for each column. */
void device_factor_direction(struct device *dev, const struct device_factored *f, float *grad,
                             const float *grad_scale, const float *row, const float *col, float factor,
                             float floor);

/* For gradients that are loss_scale times too large: *norm = sqrt(*sum_squares) / loss_scale; *scale =
 * (max_norm > 0 ? min(1, max_norm / (*norm + 1e-6)) : 1) / loss_scale, or a NaN, which skips the step, where
 * *norm is not finite. All on the device. */
void device_clip_scale(struct device *dev, const double *sum_squares, float max_norm, float loss_scale,
                       float *scale, float *norm);

/* ---- 4-bit storage: NF4, with double quantization (Dettmers et al. 2023, QLoRA; nf4.h) ---- */
/*
 * A tensor of n elements, flattened row-major, in blocks of 64: 4.127 bits an element. The bytes are those of
 * bitsandbytes: a quant_state's packed weight, and either absmax, or with double quantization absmax8 (its
 * absmax), absmax2 (its nested_absmax) and offset (its nested_offset). All on the device.
 */
struct device_nf4 {
	int64_t n;
	uint8_t *codes;   /* [ceil(n / 2)], the first of two elements in the high half */
	float *absmax;    /* [ceil(n / 64)]: one scale a block, or NULL: double quantization, that is: */
	uint8_t *absmax8; /* [ceil(n / 64)], each of which stands for map[absmax8] · absmax2 + offset */
	float *absmax2;   /* [ceil(n / 64 / 256)] */
	float *offset;    /* [1], the mean of the scales */
};
/* Double quantization needs 4 · ceil(n / 64) bytes of scratch. The same bytes on every
 * device. */
void device_nf4_quantize(struct device *dev, const struct device_nf4 *q, const void *src, enum dtype type);
/* dst[n]: code · scale. */
void device_nf4_dequantize(struct device *dev, void *dst, enum dtype type, const struct device_nf4 *q);

/* ---- moments in 8 bits: block by block, in bitsandbytes' dynamic maps (Dettmers et al. 2022, section 2)
 * ---- */
#define DEVICE_MOMENT_BLOCK                                                                                  \
	256 /* elements that share a scale: the one of the largest magnitude, with its sign */
/* Elements [first, first + n) of an array of codes; first is a multiple of a block, src fp32. Without a sign
 * all are at least 0, and the map is twice as fine; but none above 0 has the code of 0, since AdamW divides
 * by the root of such a moment. What codes stand for gives the same codes and scales again. */
void device_moment_quantize(struct device *dev, uint8_t *codes, float *scale, int64_t first, const float *src,
                            int64_t n, bool has_sign);
/* dst[i] = element first + i; first is any. */
void device_moment_dequantize(struct device *dev, float *dst, const uint8_t *codes, const float *scale,
                              int64_t first, int64_t n, bool has_sign);
