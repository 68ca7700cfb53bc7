/* SPDX-License-Identifier: Apache-2.0 */
/* What OpenBLAS and oneDNN keep of the products that they compute, from the shapes of these alone. */
#include "base/cleanup.h"
#include "engine/device/cpu/kernels.h"
#include "engine/device/sizes.h"

#define KIB 1024

/* ---- the products of a step, each once ---- */

/* C[m, n] (+)= A[m, k]·B[k, n]. */
struct product {
	int64_t m, n, k;
	bool turned_a, turned_b; /* stored [k, m]; [n, k] */
	bool adds, to_f32;
};

/* Those of a block, with fused matrices, of linear attention and of a router, and of the head: two of each,
 * its gradient, and one that adds to that; and Muon's three of q, of k and v, of o, of gate and up, of down,
 * of a router, and of linear attention's q, k and v, z, b and a, and output. */
enum { BLOCK_MATRICES = 4, DELTA_MATRICES = 2, MODEL_MATRICES = BLOCK_MATRICES + DELTA_MATRICES + 1 };
enum { MUON_MATRICES = 10 };
/* Experts have other numbers of rows in each batch; few of them have more than so many multiples. */
enum { EXPERT_ROWS = 32, EXPERT_MATRICES = 2 };
enum { PRODUCTS_MAX = 4 * (MODEL_MATRICES + 1 + EXPERT_ROWS * EXPERT_MATRICES) + 3 * MUON_MATRICES };
struct products {
	struct product list[PRODUCTS_MAX];
	int n;
};

static void add(struct products *all, struct product p)
{
	/* Few rows are multiplied without a library (gemm.c). */
	if (p.m <= CPU_SMALL_ROWS && !p.turned_a && p.turned_b)
		return;
	for (int i = 0; i < all->n; i++) {
		const struct product *q = &all->list[i];

		if (q->m == p.m && q->n == p.n && q->k == p.k && q->turned_a == p.turned_a &&
		    q->turned_b == p.turned_b && q->adds == p.adds && q->to_f32 == p.to_f32)
			return;
	}
	all->list[all->n++] = p;
}

/* y = x·wᵀ, dx = dy·w, dw (+)= dyᵀ·x. */
static void add_matrix(struct products *all, int64_t out, int64_t in, int64_t tokens, bool trained,
                       bool accumulates, enum dtype gradient_type)
{
	add(all, (struct product){.m = tokens, .n = out, .k = in, .turned_b = true});
	add(all, (struct product){.m = tokens, .n = in, .k = out});
	for (int adds = 0; trained && adds <= (accumulates ? 1 : 0); adds++)
		add(all, (struct product){.m = out,
		                          .n = in,
		                          .k = tokens,
		                          .turned_a = true,
		                          .adds = adds,
		                          .to_f32 = gradient_type == DTYPE_F32});
}

/* optim/muon.c: of its matrix with itself, of that with itself, and of that with the matrix. */
static void add_muon(struct products *all, int64_t rows, int64_t cols)
{
	int64_t side = MIN(rows, cols);
	bool tall = rows > cols;

	add(all, (struct product){
	             .m = side, .n = side, .k = MAX(rows, cols), .turned_a = tall, .turned_b = !tall});
	add(all, (struct product){.m = side, .n = side, .k = side, .adds = true});
	add(all, (struct product){.m = rows, .n = cols, .k = side, .adds = true});
}

static void list_products(const struct device_shapes *s, bool accumulates, struct products *all)
{
	const struct device_delta_shape *d = &s->delta;
	int64_t q = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;
	int64_t gated_q = s->gated_attention ? 2 * q : q, value = (int64_t)d->value_heads * d->value_dim,
	        channels = device_delta_channels(d);
	const int64_t fused[BLOCK_MATRICES][2] = {{gated_q + 2 * kv, s->hidden},
	                                          {s->hidden, q},
	                                          {2 * (int64_t)s->intermediate, s->hidden},
	                                          {s->hidden, s->intermediate}};
	const int64_t of_delta[DELTA_MATRICES][2] = {
	    {channels + value + 2 * (int64_t)d->value_heads, s->hidden}, {s->hidden, value}};
	const int64_t single[MUON_MATRICES][2] = {{gated_q, s->hidden},
	                                          {kv, s->hidden},
	                                          {s->hidden, q},
	                                          {s->intermediate, s->hidden},
	                                          {s->hidden, s->intermediate},
	                                          {s->experts, s->hidden},
	                                          {value > 0 ? channels : 0, s->hidden},
	                                          {value, s->hidden},
	                                          {d->value_heads, s->hidden},
	                                          {value > 0 ? s->hidden : 0, value}};

	all->n = 0;
	for (int i = 0; i < BLOCK_MATRICES; i++) {
		bool of_experts = s->experts > 0 && i >= BLOCK_MATRICES - EXPERT_MATRICES;
		int64_t most = of_experts ? s->tokens / s->multiple + 1 : 1, counts = MIN(most, EXPERT_ROWS);

		for (int64_t rows = 1; rows <= counts; rows++)
			add_matrix(all, fused[i][0], fused[i][1], of_experts ? rows * s->multiple : s->tokens,
			           !s->frozen_blocks, accumulates, s->gradient_type);
	}
	for (int i = 0; i < DELTA_MATRICES && value > 0; i++)
		add_matrix(all, of_delta[i][0], of_delta[i][1], s->tokens, !s->frozen_blocks, accumulates,
		           s->gradient_type);
	if (s->experts > 0)
		add_matrix(all, s->experts, s->hidden, s->tokens, !s->frozen_blocks, accumulates,
		           s->gradient_type);
	add_matrix(all, s->vocab, s->hidden, MIN(s->logits_rows, s->tokens), !s->frozen_head,
	           accumulates || s->logits_rows < s->tokens, DTYPE_F32);
	for (int i = 0; i < MUON_MATRICES && s->orthogonalizes; i++)
		if (single[i][0] > 0)
			add_muon(all, single[i][0], single[i][1]);
}

/* ---- OpenBLAS ---- */

/* A dimension that a library divides into parts of `part`, the last two into halves. */
static int64_t part_of(int64_t n, int64_t part, int64_t multiple)
{
	return n >= 2 * part ? part : (int64_t)round_up((size_t)(n > part ? (n + 1) / 2 : n), multiple);
}

/* OpenBLAS 0.3 on processors with AVX-512 copies a part of A (each thread its own), and of B as many columns
 * as there are, unless A is but one part (its driver/level3/level3.c). The copies have places of their own in
 * a buffer of each process, of which only the pages are resident that were written. Its matrices are stored
 * by columns: its A is B here, and its rows are our columns. */
static size_t blas_bytes(const struct products *all, int threads)
{
	const int64_t rows = 640, depth = 320, unroll = 16;
	int64_t a = 0, b = 0;

	for (int i = 0; i < all->n; i++) {
		const struct product *p = &all->list[i];
		int64_t k = part_of(p->k, depth, 1);

		a = MAX(a, part_of(p->n, rows, unroll) * k);
		b = MAX(b, p->n > rows ? p->m * k : 0);
	}
	return (size_t)(a * threads + b) * sizeof(float);
}

/* ---- oneDNN 2.6 on processors with AVX512_BF16 ---- */

/* Its blocked kernels (cpu/x64/matmul/brgemm_matmul_utils.cpp): how they divide a product. */
struct blocks {
	int64_t m, n, k; /* of a block */
	int64_t chunk;   /* blocks of columns that a thread computes in turn */
	bool copies_a;   /* rows that lie a large power of two apart are copied */
};

static bool is_power_of_two(int64_t n)
{
	return (n & (n - 1)) == 0;
}

/* The share by which threads have different numbers of blocks, and blocks of rows and of columns are not
 * full. */
static double imbalance(const struct product *p, const struct blocks *b, int threads)
{
	int64_t rows = (p->m + b->m - 1) / b->m, columns = (p->n + b->n - 1) / b->n;
	int64_t chunks = (columns + b->chunk - 1) / b->chunk, work = rows * chunks, over = work % threads;
	int64_t idle = work < threads ? threads - over : MIN(threads - over, over);

	return (double)idle / threads + (double)(b->m * rows % p->m) / (double)p->m +
	       (double)(chunks * b->chunk - columns) / (double)columns;
}

static struct blocks divide(const struct product *p, int threads)
{
	struct blocks b = {.n = MIN(p->n, 64), .k = MIN(p->k, p->k > 1024 ? 1024 : 512)}, best;
	int64_t columns = (p->n + b.n - 1) / b.n, least = MIN(p->m, threads > columns ? 16 : 32);
	double least_imbalance = 0;

	b.copies_a = p->k >= 4096 && is_power_of_two(p->k) && p->m >= 1024;
	best = b;
	for (b.chunk = MIN(columns, b.copies_a ? 16 : 1); b.chunk >= 1; b.chunk--)
		for (b.m = MIN(p->m, 256); b.m >= least; b.m--) {
			double now = imbalance(p, &b, threads);

			if (best.m == 0 || now < least_imbalance) {
				least_imbalance = now;
				best = b;
			}
		}
	return best;
}

/* The scratch memory of a product, which it keeps: 64 columns of B; the sums of a chunk, where they are
 * completed in several passes and C cannot hold them; and the rows of A that are copied. */
static size_t blocked_scratch(const struct product *p, int threads)
{
	struct blocks b = divide(p, threads);
	size_t depth = round_up((size_t)b.k, 32), bytes = depth * 64 * sizeof(uint16_t);

	if ((!p->to_f32 || p->adds) && p->k > b.k)
		bytes += (size_t)(b.m * b.n * b.chunk) * sizeof(float);
	if (b.copies_a)
		bytes += (size_t)b.m * (depth + (depth >= 512 && is_power_of_two(b.k) ? 32 : 0)) *
		         sizeof(uint16_t);
	return bytes * (size_t)threads;
}

/* The code that is made for a product, and what describes it: measured for 40 shapes. Columns that do not
 * fill a block, a last part of the depth, and sums have kernels of their own. */
static size_t blocked_code(const struct product *p)
{
	int64_t k = p->k > 1024 ? 1024 : 512;

	return (54 + (p->n > 64 && p->n % 64 != 0 ? 26 : 0) + (p->k > k && p->k % k != 0 ? 26 : 0) +
	        (p->adds ? 20 : 0)) *
	       KIB;
}

/* The gradient of a matrix, and other products whose A is transposed, for which gemm.c takes the kernels
 * gemm:jit: they copy parts of both operands into memory that they free (cpu/x64/gemm/gemm_driver.cpp). */
static size_t transposed_copies(const struct product *p)
{
	const int64_t rows = 9984, columns = 384, traditional = 384, depth = 768;
	int64_t k = p->k <= traditional ? MAX(p->k, 128) : p->k < 2 * depth ? (p->k + 1) / 2 : depth;
	int64_t m = (int64_t)round_up((size_t)MIN(MAX(p->n, 48), rows), 48);
	int64_t n = (int64_t)round_up((size_t)MIN(MAX(p->m, 8), columns), 8);

	return (size_t)((m + n) * k) * sizeof(uint16_t) + (size_t)n * sizeof(float);
}

/* What each of these keeps: it is described in 18 KiB, and has sums in fp32 where C is bf16. */
static size_t transposed_scratch(const struct product *p)
{
	return 18 * KIB + (!p->to_f32 ? (size_t)(p->m * p->n) * sizeof(float) : 0);
}

static size_t dnnl_bytes(const struct products *all, int threads)
{
	size_t kept = 0, most = 0;

	for (int i = 0; i < all->n; i++) {
		const struct product *p = &all->list[i];

		if (p->turned_a) {
			size_t copies = transposed_copies(p);

			kept += transposed_scratch(p);
			most = MAX(most, copies);
		} else {
			kept += blocked_code(p) + blocked_scratch(p, threads);
		}
	}
	return kept + most;
}

size_t cpu_packing_bytes(const struct device_shapes *s, bool accumulates, int threads, bool native_bf16)
{
	bool dnnl = s->type == DTYPE_BF16 && native_bf16;
	struct products all;

	list_products(s, accumulates, &all);
	/* fp8 is multiplied in fp32. */
	return (dnnl ? dnnl_bytes(&all, threads) : 0) + (!dnnl || s->fp8 ? blas_bytes(&all, threads) : 0);
}
