/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products through cuBLASLt: fp32 sums, TF32 off. The library is asked for an algorithm once per
 * shape, and the first that it names is kept: the same shape gives the same bits. Its workspace is the
 * device's scratch.
 */
#include <cublasLt.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/cuda/cuda.h"

#define SLOTS 1024 /* a power of two */

/* No padding: compared and hashed as bytes. */
struct gemm_key {
	int64_t m, n, k, lda, ldb, ldc;
	int32_t transpose_a, transpose_b, ab_type, c_type;
	int32_t align_a, align_b, align_c, adds;
};

struct gemm_entry {
	bool used;
	struct gemm_key key;
	cublasLtMatmulDesc_t operation;
	cublasLtMatrixLayout_t a, b, c;
	cublasLtMatmulAlgo_t algorithm;
};

struct gemm_cache {
	cublasLtHandle_t handle;
	cublasLtMatmulPreference_t preference;
	int count;
	struct gemm_entry entry[SLOTS];
};

const char *gemm_describe(char *text, size_t size)
{
	unsigned v = (unsigned)cublasLtGetVersion();

	snprintf(text, size, "cuBLASLt %u.%u.%u", v / 10000, v / 100 % 100, v % 100);
	return text;
}

static const char *status_words(cublasStatus_t s)
{
	return cublasLtGetStatusString(s);
}

int gemm_create(struct device *dev, struct error *err)
{
	/* Sums of a split k in the output's type would round bf16 twice. */
	uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	struct gemm_cache *g = calloc(1, sizeof(*g));
	cublasStatus_t s;

	if (!g)
		return error_oom(err);
	dev->gemm = g;
	if ((s = cublasLtCreate(&g->handle)) || (s = cublasLtMatmulPreferenceCreate(&g->preference)) ||
	    (s = cublasLtMatmulPreferenceSetAttribute(
	         g->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions))))
		return error_set(err, -EIO, "GPU %d: cuBLASLt cannot be set up: %s", dev->index,
		                 status_words(s));
	return 0;
}

static void entry_clear(struct gemm_entry *e)
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

static void cache_clear(struct gemm_cache *g)
{
	for (int i = 0; i < SLOTS; i++)
		entry_clear(&g->entry[i]);
	g->count = 0;
}

void gemm_destroy(struct device *dev)
{
	struct gemm_cache *g = dev->gemm;

	if (!g)
		return;
	cache_clear(g);
	if (g->preference)
		cublasLtMatmulPreferenceDestroy(g->preference);
	if (g->handle)
		cublasLtDestroy(g->handle);
	free(g);
	dev->gemm = NULL;
}

static cudaDataType_t data_type(int32_t type)
{
	return type == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

/*
 * The library is asked in its own, column-major terms: a row-major matrix is there its own transpose, so that
 * Cᵀ = op(B)ᵀ · op(A)ᵀ, and what is stored as B comes first.
 */
static cublasStatus_t entry_fill(struct gemm_cache *g, struct gemm_entry *e)
{
	const struct gemm_key *k = &e->key;
	cublasOperation_t first = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasOperation_t second = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasLtMatmulHeuristicResult_t result;
	size_t workspace = WORKSPACE;
	int found = 0;
	uint32_t align[] = {(uint32_t)k->align_b, (uint32_t)k->align_a, (uint32_t)k->align_c};
	static const cublasLtMatmulPreferenceAttributes_t align_names[] = {
	    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
	    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES};
	cublasStatus_t s;

	if ((s = cublasLtMatmulDescCreate(&e->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F)) ||
	    (s = cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_TRANSA, &first,
	                                        sizeof(first))) ||
	    (s = cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_TRANSB, &second,
	                                        sizeof(second))) ||
	    (s = cublasLtMatrixLayoutCreate(&e->a, data_type(k->ab_type), k->transpose_b ? k->k : k->n,
	                                    k->transpose_b ? k->n : k->k, k->ldb)) ||
	    (s = cublasLtMatrixLayoutCreate(&e->b, data_type(k->ab_type), k->transpose_a ? k->m : k->k,
	                                    k->transpose_a ? k->k : k->m, k->lda)) ||
	    (s = cublasLtMatrixLayoutCreate(&e->c, data_type(k->c_type), k->n, k->m, k->ldc)) ||
	    (s = cublasLtMatmulPreferenceSetAttribute(g->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
	                                              &workspace, sizeof(workspace))))
		return s;
	for (int i = 0; i < 3; i++)
		if ((s = cublasLtMatmulPreferenceSetAttribute(g->preference, align_names[i], &align[i],
		                                              sizeof(align[i]))))
			return s;
	align[0] = (uint32_t)k->align_c;
	if ((s = cublasLtMatmulPreferenceSetAttribute(
	         g->preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align[0], sizeof(align[0]))) ||
	    (s = cublasLtMatmulAlgoGetHeuristic(g->handle, e->operation, e->a, e->b, e->c, e->c,
	                                        g->preference, 1, &result, &found)))
		return s;
	if (found == 0)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	e->algorithm = result.algo;
	return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t cache_find(struct gemm_cache *g, const struct gemm_key *key, struct gemm_entry **out)
{
	const unsigned char *bytes = (const unsigned char *)key;
	uint64_t hash = 14695981039346656037u;
	struct gemm_entry *e;
	cublasStatus_t s;

	for (size_t i = 0; i < sizeof(*key); i++)
		hash = (hash ^ bytes[i]) * 1099511628211u;
	for (;; hash++) {
		e = &g->entry[hash % SLOTS];
		if (!e->used)
			break;
		if (!memcmp(&e->key, key, sizeof(*key))) {
			*out = e;
			return CUBLAS_STATUS_SUCCESS;
		}
	}
	if (g->count > SLOTS / 2) {
		/* Shapes that change for ever (generation): begin again. */
		cache_clear(g);
		e = &g->entry[hash % SLOTS];
	}
	e->key = *key;
	s = entry_fill(g, e);
	if (s) {
		entry_clear(e);
		return s;
	}
	e->used = true;
	g->count++;
	*out = e;
	return s;
}

static int32_t alignment(const void *p)
{
	uintptr_t low = (uintptr_t)p & -(uintptr_t)p;

	return low == 0 || low > 256 ? 256 : (int32_t)low;
}

void device_gemm(struct device *dev, const struct device_gemm *d)
{
	struct gemm_key key = {.m = d->m,
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
	                       .adds = d->beta != 0};
	struct gemm_entry *e = NULL;
	cublasStatus_t s;

	if (d->m <= 0 || d->n <= 0)
		return;
	if (d->ab_type == DTYPE_F16 || d->c_type == DTYPE_F16 ||
	    (d->c_type != d->ab_type && d->c_type != DTYPE_F32)) {
		device_fault(dev, -EOPNOTSUPP, "gemm does not work from %s to %s", dtype_name(d->ab_type),
		             dtype_name(d->c_type));
		return;
	}
	if (!device_scratch(dev, WORKSPACE, "gemm"))
		return;
	s = cache_find(dev->gemm, &key, &e);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmul(dev->gemm->handle, e->operation, &d->alpha, d->b, e->a, d->a, e->b,
		                   &d->beta, d->c, e->c, d->c, e->c, &e->algorithm, dev->scratch, WORKSPACE,
		                   dev->stream);
	if (s)
		device_fault(dev, -EIO, "gemm of %lld x %lld x %lld in %s: %s", (long long)d->m,
		             (long long)d->n, (long long)d->k, dtype_name(d->ab_type), status_words(s));
}
