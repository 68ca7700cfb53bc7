/* SPDX-License-Identifier: Apache-2.0 */
/* One product as cuBLASLt has it described: what it suggests for it, what it accepts, and the run itself. */
#include <string.h>

#include "base/cleanup.h"
#include "engine/device/cuda/gemm/gemm.h"

const char *gemm_status(cublasStatus_t s)
{
	return cublasLtGetStatusString(s);
}

void gemm_entry_clear(struct gemm_entry *e)
{
	if (e->operation)
		cublasLtMatmulDescDestroy(e->operation);
	if (e->a)
		cublasLtMatrixLayoutDestroy(e->a);
	if (e->b)
		cublasLtMatrixLayoutDestroy(e->b);
	if (e->c)
		cublasLtMatrixLayoutDestroy(e->c);
	memset(e, 0, sizeof(*e));
}

void gemm_cache_clear(struct gemm_cache *g)
{
	for (int i = 0; i < GEMM_SLOTS; i++)
		gemm_entry_clear(&g->entry[i]);
	g->count = 0;
}

/* Up to what cudaMalloc aligns to at least. */
static int32_t alignment(const void *p)
{
	return device_alignment(p, 256);
}

struct device_gemm gemm_product_of(const struct device_gemm_shape *s, const struct gemm_operands *o)
{
	return (struct device_gemm){.transpose_a = s->transpose_a,
	                            .transpose_b = s->transpose_b,
	                            .m = s->m,
	                            .n = s->n,
	                            .k = s->k,
	                            .alpha = 1,
	                            .beta = s->adds ? 1 : 0,
	                            .a = o->a,
	                            .b = o->b,
	                            .c = o->c,
	                            .lda = s->lda,
	                            .ldb = s->ldb,
	                            .ldc = s->ldc,
	                            .ab_type = (enum dtype)s->ab_type,
	                            .c_type = (enum dtype)s->c_type,
	                            .bias = s->bias ? o->bias : NULL,
	                            .d_bias = s->d_bias ? o->d_bias : NULL,
	                            .fp8_a = (enum fp8_format)(s->fp8 >> 4),
	                            .fp8_b = (enum fp8_format)(s->fp8 & 15),
	                            .scale_a = s->fp8 ? o->scale : NULL,
	                            .scale_b = s->fp8 ? o->scale : NULL};
}

void gemm_work_init(const struct device *dev, const struct device_gemm *d, struct gemm_work *w)
{
	*w = (struct gemm_work){.product = d,
	                        .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
	                        .scratch = WORKSPACE,
	                        .key = {.m = d->m,
	                                .n = d->n,
	                                .k = d->k,
	                                .lda = d->lda,
	                                .ldb = d->ldb,
	                                .ldc = d->ldc,
	                                .transpose_a = d->transpose_a,
	                                .transpose_b = d->transpose_b,
	                                .ab_type = d->ab_type,
	                                .c_type = d->c_type,
	                                .align_a = alignment(d->a),
	                                .align_b = alignment(d->b),
	                                .align_c = alignment(d->c),
	                                .adds = d->beta != 0,
	                                .fp8_a = (int32_t)d->fp8_a,
	                                .fp8_b = (int32_t)d->fp8_b}};
	/* With operands of fp8 the library adds no bias of fp32. */
	if (d->bias && (!d->fp8_a || d->c_type != DTYPE_F32) && !(dev->unfused & DEVICE_UNFUSED_BIAS)) {
		w->epilogue = CUBLASLT_EPILOGUE_BIAS;
	} else if (d->d_bias && !d->bias && d->c_type == DTYPE_F32 &&
	           !(dev->unfused & DEVICE_UNFUSED_BIAS_GRADIENT)) {
		/* The library's sum takes the place of what was there: it goes to the scratch first. What is
		 * our A is its B. */
		w->epilogue = CUBLASLT_EPILOGUE_BGRADB;
		w->scratch += round_up((size_t)d->m * sizeof(float), 256);
	}
	w->key.epilogue = (int32_t)w->epilogue;
}

void gemm_work_place(const struct device *dev, struct gemm_work *w)
{
	if (w->epilogue == CUBLASLT_EPILOGUE_BIAS)
		w->bias = w->product->bias;
	else if (w->epilogue == CUBLASLT_EPILOGUE_BGRADB)
		w->bias = dev->base.scratch + WORKSPACE;
	w->key.align_bias = w->bias ? alignment(w->bias) : 0;
}

/*
 * Sums of fp8's products on Hopper have 14 bits, unless they are added in fp32 every now and then, which
 * takes time. As in NVIDIA's Transformer Engine, the forward pass, where both operands are E4M3, does
 * without.
 */
static cublasStatus_t set_sums(struct gemm_entry *e)
{
	int8_t fast = e->key.fp8_a == FP8_E4M3 && e->key.fp8_b == FP8_E4M3;

	return cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast,
	                                      sizeof(fast));
}

/* What is our B comes first there. */
static cublasStatus_t set_scales(struct gemm_entry *e, const struct device_gemm *d)
{
	cublasStatus_t s = cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
	                                                  &d->scale_b, sizeof(d->scale_b));

	return s ? s
	         : cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
	                                          &d->scale_a, sizeof(d->scale_a));
}

cublasStatus_t gemm_multiply(struct device *dev, const struct gemm_work *w, struct gemm_entry *e)
{
	const struct device_gemm *d = w->product;
	cublasStatus_t s = d->fp8_a ? set_scales(e, d) : CUBLAS_STATUS_SUCCESS;

	if (s == CUBLAS_STATUS_SUCCESS && w->bias && !e->plain)
		s = cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &w->bias,
		                                   sizeof(w->bias));
	return s ? s
	         : cublasLtMatmul(dev->gemm->handle, e->operation, &d->alpha, d->b, e->a, d->a, e->b,
	                          &d->beta, d->c, e->c, d->c, e->c, &e->algorithm, dev->base.scratch,
	                          WORKSPACE, dev->stream);
}

static cudaDataType_t data_type(int32_t type, int32_t fp8)
{
	if (fp8)
		return fp8 == FP8_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
	return type == DTYPE_F32 ? CUDA_R_32F : type == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/*
 * The library is asked in its own, column-major terms: a row-major matrix is there its own transpose, so that
 * Cᵀ = op(B)ᵀ · op(A)ᵀ, and what is stored as B comes first.
 */
cublasStatus_t gemm_entry_describe(struct gemm_entry *e, const struct gemm_work *w, bool plain)
{
	const struct gemm_key *k = &w->key;
	cublasOperation_t first = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasOperation_t second = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
	bool fused = !plain && w->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
	cublasStatus_t s;

	*e = (struct gemm_entry){.key = *k, .plain = !fused};
	if ((s = cublasLtMatmulDescCreate(&e->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F)) ||
	    (s = cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_TRANSA, &first,
	                                        sizeof(first))) ||
	    (s = cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_TRANSB, &second,
	                                        sizeof(second))) ||
	    (fused && ((s = cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
	                                                   &w->epilogue, sizeof(w->epilogue))) ||
	               (s = cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
	                                                   &w->bias, sizeof(w->bias))))) ||
	    (k->fp8_a && ((s = set_sums(e)) || (s = set_scales(e, w->product)))) ||
	    (s = cublasLtMatrixLayoutCreate(&e->a, data_type(k->ab_type, k->fp8_b),
	                                    k->transpose_b ? k->k : k->n, k->transpose_b ? k->n : k->k,
	                                    k->ldb)) ||
	    (s = cublasLtMatrixLayoutCreate(&e->b, data_type(k->ab_type, k->fp8_a),
	                                    k->transpose_a ? k->m : k->k, k->transpose_a ? k->k : k->m,
	                                    k->lda)))
		return s;
	return cublasLtMatrixLayoutCreate(&e->c, data_type(k->c_type, FP8_NONE), k->n, k->m, k->ldc);
}

cublasStatus_t gemm_suggest(struct gemm_cache *g, const struct gemm_entry *e, int wanted,
                            cublasLtMatmulHeuristicResult_t *results, int *found)
{
	const struct gemm_key *k = &e->key;
	size_t workspace = WORKSPACE;
	const struct {
		cublasLtMatmulPreferenceAttributes_t name;
		uint32_t bytes;
	} align[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)k->align_b},
	             {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)k->align_a},
	             {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)k->align_c},
	             {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)k->align_c}};
	cublasStatus_t s = cublasLtMatmulPreferenceSetAttribute(
	    g->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));

	*found = 0;
	for (size_t i = 0; i < ARRAY_SIZE(align) && s == CUBLAS_STATUS_SUCCESS; i++)
		s = cublasLtMatmulPreferenceSetAttribute(g->preference, align[i].name, &align[i].bytes,
		                                         sizeof(align[i].bytes));
	return s ? s
	         : cublasLtMatmulAlgoGetHeuristic(g->handle, e->operation, e->a, e->b, e->c, e->c,
	                                          g->preference, wanted, results, found);
}

bool gemm_accepts(struct gemm_cache *g, const struct gemm_entry *e, const cublasLtMatmulAlgo_t *algorithm)
{
	cublasLtMatmulHeuristicResult_t result = {.workspaceSize = 0};

	return cublasLtMatmulAlgoCheck(g->handle, e->operation, e->a, e->b, e->c, e->c, algorithm, &result) ==
	           CUBLAS_STATUS_SUCCESS &&
	       result.workspaceSize <= WORKSPACE;
}

void gemm_finish(struct device *dev, const struct gemm_work *w, const struct gemm_entry *e)
{
	const struct device_gemm *d = w->product;
	cublasLtEpilogue_t done = e->plain ? CUBLASLT_EPILOGUE_DEFAULT : w->epilogue;

	if (d->bias && done != CUBLASLT_EPILOGUE_BIAS)
		device_bias_forward(dev, d->c, d->bias, d->m, d->n, d->ldc, d->c_type);
	if (d->d_bias && done == CUBLASLT_EPILOGUE_BGRADB)
		device_add(dev, d->d_bias, dev->base.scratch + WORKSPACE, DTYPE_F32, d->m);
	else if (d->d_bias)
		device_bias_backward(dev, d->d_bias, DTYPE_F32, d->a, d->k, d->m, d->lda, d->ab_type);
}
