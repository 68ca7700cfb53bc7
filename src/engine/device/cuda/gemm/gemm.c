/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products by cuBLASLt, with fp32 sums and without TF32. The library is asked for algorithms once for
 * each shape, and the first one is kept, so that the same shape gives the same bits. Its workspace is the
 * device's scratch; after it in memory is a fused gradient of a bias, until that is added.
 *
 * Where the library has an algorithm for that, the product adds the bias, and the product for the gradient of
 * the weights sums up the gradient of the bias. Where it has none, a kernel of this engine does it.
 */
#include <cublasLt.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/device/cuda/cuda.h"

#define SLOTS   1024 /* a power of two */
#define CHOICES 8

/* No padding: compared and hashed as bytes. */
struct gemm_key {
	int64_t m, n, k, lda, ldb, ldc;
	int32_t transpose_a, transpose_b, ab_type, c_type;
	int32_t align_a, align_b, align_c, adds;
	int32_t epilogue, align_bias;
};

struct gemm_entry {
	bool used;
	struct gemm_key key;
	cublasLtMatmulDesc_t operation;
	cublasLtMatrixLayout_t a, b, c;
	cublasLtMatmulAlgo_t algorithm;
	bool plain; /* the library has no algorithm with this epilogue */
};

struct gemm_cache {
	cublasLtHandle_t handle;
	cublasLtMatmulPreference_t preference;
	int choice; /* among the algorithms that the library names */
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
	/* Sums of a split k in the output's type would round 16-bit results twice. */
	uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	struct gemm_cache *g = calloc(1, sizeof(*g));
	cublasStatus_t s;

	if (!g)
		return error_oom(err);
	dev->gemm = g;
	g->choice = MIN(MAX(dev->gemm_choice, 0), CHOICES - 1);
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
	return type == DTYPE_F32 ? CUDA_R_32F : type == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/*
 * The library is asked in its own, column-major terms: a row-major matrix is there its own transpose, so that
 * Cᵀ = op(B)ᵀ · op(A)ᵀ, and what is stored as B comes first.
 */
static cublasStatus_t entry_try(struct gemm_cache *g, struct gemm_entry *e, cublasLtEpilogue_t epilogue,
                                const void *bias)
{
	const struct gemm_key *k = &e->key;
	cublasOperation_t first = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasOperation_t second = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
	bool fused = epilogue != CUBLASLT_EPILOGUE_DEFAULT;
	cublasLtMatmulHeuristicResult_t results[CHOICES];
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
	    (fused && ((s = cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
	                                                   &epilogue, sizeof(epilogue))) ||
	               (s = cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
	                                                   &bias, sizeof(bias))))) ||
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
	                                        g->preference, g->choice + 1, results, &found)))
		return s;
	if (found == 0)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	found = MIN(g->choice, found - 1);
	e->algorithm = results[found].algo;
	return results[found].state; /* each has its own */
}

/* Chooses the algorithm again, without an epilogue. */
static cublasStatus_t entry_make_plain(struct gemm_cache *g, struct gemm_entry *e)
{
	struct gemm_entry old = {.used = e->used, .key = e->key, .plain = true};

	entry_clear(e);
	*e = old;
	return entry_try(g, e, CUBLASLT_EPILOGUE_DEFAULT, NULL);
}

static cublasStatus_t entry_fill(struct gemm_cache *g, struct gemm_entry *e, const void *bias)
{
	cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)e->key.epilogue;
	cublasStatus_t s = entry_try(g, e, epilogue, bias);

	return s && epilogue != CUBLASLT_EPILOGUE_DEFAULT ? entry_make_plain(g, e) : s;
}

static cublasStatus_t cache_find(struct gemm_cache *g, const struct gemm_key *key, const void *bias,
                                 struct gemm_entry **out)
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
		/* The cache is full, as generation has ever new shapes; it is emptied. */
		cache_clear(g);
		e = &g->entry[hash % SLOTS];
	}
	e->key = *key;
	s = entry_fill(g, e, bias);
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

/* Which epilogue to ask for, and where its vector lies; *scratch: what the product needs of it. */
static cublasLtEpilogue_t choose_epilogue(const struct device *dev, const struct device_gemm *d,
                                          size_t *scratch)
{
	*scratch = WORKSPACE;
	if (d->bias && !(dev->unfused & DEVICE_UNFUSED_BIAS))
		return CUBLASLT_EPILOGUE_BIAS;
	/* The library's sum takes the place of what was there: it goes to the scratch first. What is our A is
	 * its B. */
	if (d->d_bias && !d->bias && d->c_type == DTYPE_F32 &&
	    !(dev->unfused & DEVICE_UNFUSED_BIAS_GRADIENT)) {
		*scratch += round_up((size_t)d->m * sizeof(float), 256);
		return CUBLASLT_EPILOGUE_BGRADB;
	}
	return CUBLASLT_EPILOGUE_DEFAULT;
}

static cublasStatus_t multiply_once(struct device *dev, const struct device_gemm *d, struct gemm_entry *e,
                                    const void *bias)
{
	cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

	if (bias && !e->plain)
		s = cublasLtMatmulDescSetAttribute(e->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
		                                   sizeof(bias));
	return s ? s
	         : cublasLtMatmul(dev->gemm->handle, e->operation, &d->alpha, d->b, e->a, d->a, e->b,
	                          &d->beta, d->c, e->c, d->c, e->c, &e->algorithm, dev->base.scratch,
	                          WORKSPACE, dev->stream);
}

/* Runs the product. The library may still refuse an algorithm that it has offered, before it changes
 * anything. */
static cublasStatus_t multiply(struct device *dev, const struct device_gemm *d, struct gemm_entry *e,
                               const void *bias)
{
	cublasStatus_t s = multiply_once(dev, d, e, bias);

	if ((s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE) && bias && !e->plain) {
		s = entry_make_plain(dev->gemm, e);
		if (s == CUBLAS_STATUS_SUCCESS)
			s = multiply_once(dev, d, e, bias);
	}
	return s;
}

/* Does for the biases what the product has not done. */
static void finish_biases(struct device *dev, const struct device_gemm *d, cublasLtEpilogue_t done)
{
	if (d->bias && done != CUBLASLT_EPILOGUE_BIAS)
		device_bias_forward(dev, d->c, d->bias, d->m, d->n, d->ldc, d->c_type);
	if (d->d_bias && done == CUBLASLT_EPILOGUE_BGRADB)
		device_add(dev, d->d_bias, dev->base.scratch + WORKSPACE, DTYPE_F32, d->m);
	else if (d->d_bias)
		device_bias_backward(dev, d->d_bias, DTYPE_F32, d->a, d->k, d->m, d->lda, d->ab_type);
}

void device_gemm(struct device *dev, const struct device_gemm *d)
{
	size_t scratch;
	cublasLtEpilogue_t epilogue = choose_epilogue(dev, d, &scratch);
	const void *bias = NULL;
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
	                       .adds = d->beta != 0,
	                       .epilogue = (int32_t)epilogue};
	struct gemm_entry *e = NULL;
	cublasStatus_t s;

	if (d->m <= 0 || d->n <= 0)
		return;
	if (d->c_type != d->ab_type && d->c_type != DTYPE_F32) {
		device_fault(dev, -EOPNOTSUPP, "gemm does not work from %s to %s", dtype_name(d->ab_type),
		             dtype_name(d->c_type));
		return;
	}
	if (d->d_bias && !d->transpose_a) {
		device_fault(dev, -EINVAL, "gemm: the gradient of a bias needs transpose_a");
		return;
	}
	if (!device_scratch(dev, scratch, "gemm"))
		return;
	if (epilogue == CUBLASLT_EPILOGUE_BIAS)
		bias = d->bias;
	else if (epilogue == CUBLASLT_EPILOGUE_BGRADB)
		bias = dev->base.scratch + WORKSPACE;
	key.align_bias = bias ? alignment(bias) : 0;
	s = cache_find(dev->gemm, &key, bias, &e);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = multiply(dev, d, e, bias);
	if (s)
		device_fault(dev, -EIO, "gemm of %lld x %lld x %lld in %s: %s", (long long)d->m,
		             (long long)d->n, (long long)d->k, dtype_name(d->ab_type), status_words(s));
	else
		finish_biases(dev, d, e->plain ? CUBLASLT_EPILOGUE_DEFAULT : epilogue);
}
