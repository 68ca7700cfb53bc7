/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of the CPU engine, from shapes alone. */
#include "engine/device/sizes.h"

#include "base/cleanup.h"
#include "engine/device/cpu/kernels.h"

/* 16 MiB is about the size of a last-level cache; larger chunks would have to come from memory. */
size_t cpu_logits_bytes(void)
{
	return (size_t)16 << 20;
}

/* The memory of a product in a type that the processor cannot multiply: its matrices in fp32, each padded to
 * whole vectors. The sum covers the forward product and both backward products, since it has the size of each
 * of the three. */
static size_t gemm_scratch(int64_t m, int64_t n, int64_t k, enum dtype type, bool native_bf16)
{
	if (type == DTYPE_F32 || (type == DTYPE_BF16 && native_bf16))
		return 0;
	return (round_up((size_t)(m * k), 16) + round_up((size_t)(k * n), 16) +
	        round_up((size_t)(m * n), 16)) *
	       sizeof(float);
}

/* A product as the libraries see it, whose matrices are stored by columns: C of `m` rows and `n` columns. */
struct product {
	int64_t m, n, k;
};

/* The three products of a matrix of `out` x `in`: forward, and the gradients of its input and of itself. */
static void matrix_products(int64_t out, int64_t in, int64_t tokens, struct product *p)
{
	p[0] = (struct product){out, tokens, in};
	p[1] = (struct product){in, tokens, out};
	p[2] = (struct product){in, out, tokens};
}

enum { HEAD = 4, OPTIMIZER, MATRICES };
/* Those of a block, with fused matrices, those of the head, and the optimizer's. */
static void all_products(const struct device_shapes *s, struct product p[MATRICES][3])
{
	int64_t q = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;

	matrix_products(q + 2 * kv, s->hidden, s->tokens, p[0]);
	matrix_products(s->hidden, q, s->tokens, p[1]);
	matrix_products(2 * (int64_t)s->intermediate, s->hidden, s->tokens, p[2]);
	matrix_products(s->hidden, s->intermediate, s->tokens, p[3]);
	matrix_products(s->vocab, s->hidden, s->logits_rows, p[HEAD]);
	p[OPTIMIZER][0] = p[OPTIMIZER][1] = p[OPTIMIZER][2] = (struct product){0};
	if (s->orthogonalizes)
		matrix_products(s->hidden, s->hidden, s->intermediate, p[OPTIMIZER]);
	for (int i = 0; i <= HEAD; i++)
		if (i == HEAD ? s->frozen_head : s->frozen_blocks)
			p[i][2] = (struct product){0};
}

/* A dimension that a library divides into parts of `part`, the last two into halves. */
static int64_t part_of(int64_t n, int64_t part, int64_t multiple)
{
	return n >= 2 * part ? part : (int64_t)round_up((size_t)(n > part ? (n + 1) / 2 : n), multiple);
}

/* OpenBLAS 0.3 on processors with AVX-512 copies a part of A (each thread its own), and of B as many columns
 * as there are, unless A is but one part (its driver/level3/level3.c). The copies have places of their own in
 * a buffer of each process, of which only the pages are resident that were written. */
static size_t blas_bytes(const struct device_shapes *s, int threads)
{
	const int64_t rows = 640, depth = 320, unroll = 16;
	struct product p[MATRICES][3];
	int64_t a = 0, b = 0;

	all_products(s, p);
	for (int i = 0; i < MATRICES; i++)
		for (int j = 0; j < 3; j++) {
			int64_t k = part_of(p[i][j].k, depth, 1);

			a = MAX(a, part_of(p[i][j].m, rows, unroll) * k);
			b = MAX(b, p[i][j].m > rows ? p[i][j].n * k : 0);
		}
	return (size_t)(a * threads + b) * sizeof(float);
}

/* oneDNN 2.6 on processors with AVX512_BF16 (its cpu/x64/gemm/gemm_driver.cpp): the gradient of a matrix, for
 * which gemm.c takes the kernels gemm:jit, copies parts of both operands, into memory that it frees. That of
 * the head's input copies 64 columns of the head, into memory that it keeps. */
static size_t dnnl_bytes(const struct device_shapes *s)
{
	const int64_t rows = 9984, columns = 384, traditional = 384, depth = 768;
	struct product p[MATRICES][3];
	int64_t most = 0;

	all_products(s, p);
	for (int i = 0; i < MATRICES; i++) {
		struct product g = p[i][2];
		int64_t k = g.k <= traditional ? MAX(g.k, 128) : g.k < 2 * depth ? (g.k + 1) / 2 : depth;
		int64_t m = (int64_t)round_up((size_t)MIN(MAX(g.m, 48), rows), 48);
		int64_t n = (int64_t)round_up((size_t)MIN(MAX(g.n, 8), columns), 8);

		if (g.m == 0) /* of what is not trained, there is none */
			continue;
		most = MAX(most, (m + n) * k * (int64_t)sizeof(uint16_t) + n * (int64_t)sizeof(float));
	}
	return (size_t)(most + s->vocab * 64 * (int64_t)sizeof(uint16_t)) + 4 * 4096;
}

size_t cpu_packing_bytes(const struct device_shapes *s, int threads, bool native_bf16)
{
	size_t dnnl = s->type == DTYPE_BF16 && native_bf16 ? dnnl_bytes(s) : 0;

	/* fp8 is multiplied in fp32. */
	return dnnl + (dnnl == 0 || s->fp8 ? blas_bytes(s, threads) : 0);
}

/* Codes of fp8 are widened on every processor. A gradient's factors have padded rows. */
static size_t fp8_scratch(const struct device_shapes *s, int64_t wide)
{
	int64_t tokens = fp8_padded(s->tokens), q = (int64_t)s->heads * s->head_dim;
	size_t first = gemm_scratch(tokens, wide, s->hidden, DTYPE_BF16, false);
	size_t second = gemm_scratch(tokens, s->hidden, MAX(q, s->intermediate), DTYPE_BF16, false);

	return s->fp8 ? MAX(first, second) : 0;
}

size_t cpu_scratch_bytes(const struct device_shapes *s, int threads, bool native_bf16)
{
	int64_t longest = s->max_sequence < s->tokens ? s->max_sequence : s->tokens;
	int64_t qkv = (int64_t)(s->heads + 2 * s->kv_heads) * s->head_dim;
	int64_t wide = 2 * (int64_t)s->intermediate > qkv ? 2 * (int64_t)s->intermediate : qkv;
	int head = s->head_dim > s->norm_cols ? s->head_dim : s->norm_cols;
	int cols = s->hidden > head ? s->hidden : head;
	size_t attention = attention_thread_bytes(longest, s->head_dim) * (size_t)threads;
	size_t cached = attention_cached_bytes(s->cache_tokens, s->head_dim) * (size_t)threads;
	size_t norm = COLUMN_PARTS * round_up((size_t)cols, 16) * sizeof(float);
	/* of a matrix, before they are quantized */
	size_t scales = (size_t)(s->quantized + 63) / 64 * sizeof(float);
	size_t need, gemm;

	/* Where the threads are more than the groups of heads of one document, these are divided. */
	if (s->heads != s->kv_heads && s->kv_heads < 2 * threads)
		attention += 2 * (size_t)(s->heads * s->head_dim * s->tokens) * sizeof(float);
	need = attention > norm ? attention : norm;
	if (s->cache_tokens > 0 && cached > need)
		need = cached;
	need = scales > need ? scales : need;
	gemm = gemm_scratch(s->tokens, wide, s->hidden, s->type, native_bf16);
	need = gemm > need ? gemm : need;
	gemm = fp8_scratch(s, wide);
	need = gemm > need ? gemm : need;
	gemm = gemm_scratch(s->logits_rows, s->vocab, s->hidden, s->type, native_bf16);
	return gemm > need ? gemm : need;
}
