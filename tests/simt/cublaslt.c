/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for cuBLASLt: column-major matrices in plain loops, with a message where shapes do not fit. Its
 * algorithms differ in the order of their sums. */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/cuda/cuda.h"
#include "engine/device/dtype.h"
#include "engine/device/fp8.h"

struct fake_operation {
	cublasOperation_t a, b;
	cublasLtEpilogue_t epilogue;
	void *bias; /* in D's type */
	const float *scale_a, *scale_b;
	int8_t fast;
};

struct fake_layout {
	cudaDataType_t type;
	int64_t rows, cols, ld;
};

struct fake_preference {
	uint32_t align[4];
};

const char *cublasLtGetStatusString(cublasStatus_t s)
{
	return s == CUBLAS_STATUS_INVALID_VALUE ? "an invalid value" : "not supported";
}

size_t cublasLtGetVersion(void)
{
	const char *version = getenv("SIMT_CUBLASLT");

	return version ? strtoul(version, NULL, 10) : 130000;
}

/* ---- algorithms ---- */
enum { NUMBERS = 16 };

static struct {
	int count;
	simt_gemm_seconds seconds;
	struct simt_gemm last;
	int runs[NUMBERS];
} offer;

void simt_gemm_offer(int count, simt_gemm_seconds seconds)
{
	offer.count = count;
	offer.seconds = seconds;
}

struct simt_gemm simt_gemm_last(void)
{
	return offer.last;
}

int simt_gemm_runs(int number)
{
	int n = 0;

	for (int i = 0; i < NUMBERS; i++)
		if (number < 0 || number == i)
			n += __atomic_load_n(&offer.runs[i], __ATOMIC_RELAXED);
	return n;
}

static int algorithms(void)
{
	const char *several = getenv("SIMT_GEMM");

	return offer.count > 0 ? offer.count : several ? atoi(several) : 1;
}

/* Between 100 s and 200 s. */
static double seconds_by_seed(const struct simt_gemm *g)
{
	const char *several = getenv("SIMT_GEMM"), *seed = several ? strchr(several, ':') : NULL;
	uint64_t h = seed ? strtoull(seed + 1, NULL, 10) : 0;
	const uint64_t parts[] = {(uint64_t)g->rows, (uint64_t)g->cols, (uint64_t)g->sum, g->number};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		h = (h ^ parts[i]) * 0x9e3779b97f4a7c15u ^ (h ^ parts[i]) >> 29;
	return 100 + (double)(h >> 32) * 0x1p-32 * 100;
}

static struct simt_gemm described(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t c,
                                  const cublasLtMatmulAlgo_t *algorithm)
{
	return (struct simt_gemm){.rows = c->rows,
	                          .cols = c->cols,
	                          .sum = d->a == CUBLAS_OP_T ? a->rows : a->cols,
	                          .number = algorithm->number,
	                          .fused = d->epilogue >= CUBLASLT_EPILOGUE_BIAS};
}

static void spend(const struct simt_gemm *g)
{
	offer.last = *g;
	__atomic_fetch_add(&offer.runs[g->number % NUMBERS], 1, __ATOMIC_RELAXED);
	if (offer.count > 0)
		simt_spend(offer.seconds(g));
	else if (getenv("SIMT_GEMM"))
		simt_spend(seconds_by_seed(g));
}

int cublaslt_load(struct error *err)
{
	return 0;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
	*h = NULL;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
	*d = calloc(1, sizeof(**d));
	return *d ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
	free(d);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a,
                                              const void *p, size_t n)
{
	const struct {
		cublasLtMatmulDescAttributes_t name;
		void *to;
		size_t size;
	} attributes[] = {
	    {CUBLASLT_MATMUL_DESC_TRANSA, &d->a, sizeof(d->a)},
	    {CUBLASLT_MATMUL_DESC_TRANSB, &d->b, sizeof(d->b)},
	    {CUBLASLT_MATMUL_DESC_EPILOGUE, &d->epilogue, sizeof(d->epilogue)},
	    {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d->bias, sizeof(d->bias)},
	    {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &d->scale_a, sizeof(d->scale_a)},
	    {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &d->scale_b, sizeof(d->scale_b)},
	    {CUBLASLT_MATMUL_DESC_FAST_ACCUM, &d->fast, sizeof(d->fast)},
	};

	for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
		if (attributes[i].name != a || attributes[i].size != n)
			continue;
		memcpy(attributes[i].to, p, n);
		return CUBLAS_STATUS_SUCCESS;
	}
	return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
	if (ld < (int64_t)rows)
		return CUBLAS_STATUS_INVALID_VALUE;
	*l = malloc(sizeof(**l));
	if (!*l)
		return CUBLAS_STATUS_ALLOC_FAILED;
	**l = (struct fake_layout){type, (int64_t)rows, (int64_t)cols, ld};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
	free(l);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
	*p = calloc(1, sizeof(**p));
	return *p ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
	free(p);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void *v,
                                                    size_t n)
{
	if (n != (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(uint64_t) : sizeof(uint32_t)))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (a >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
		memcpy(&p->align[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], v, n);
	return CUBLAS_STATUS_SUCCESS;
}

static bool is_fp8(cudaDataType_t type)
{
	return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

/* What the library demands of operands of fp8 on Hopper: A is transposed and B not, both have scales, at most
 * one is E5M2, leading dimensions, what is summed over and the rows of D are multiples of 16 bytes, and the
 * only epilogue with a bias is one of 16 bits. */
static bool fp8_fits(const struct fake_operation *d, const struct fake_layout *a, const struct fake_layout *b,
                     const struct fake_layout *c)
{
	size_t size = c->type == CUDA_R_32F ? 4 : 2;

	return is_fp8(b->type) && (a->type == CUDA_R_8F_E4M3 || b->type == CUDA_R_8F_E4M3) &&
	       d->a == CUBLAS_OP_T && d->b == CUBLAS_OP_N && a->rows % 16 == 0 && a->ld % 16 == 0 &&
	       b->ld % 16 == 0 && (size_t)c->rows * size % 16 == 0 && (size_t)c->ld * size % 16 == 0 &&
	       !is_fp8(c->type) &&
	       (d->epilogue < CUBLASLT_EPILOGUE_BIAS ||
	        (d->epilogue == CUBLASLT_EPILOGUE_BIAS && c->type != CUDA_R_32F));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t e,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
	if (is_fp8(a->type) && !fp8_fits(d, a, b, c)) {
		*found = 0;
		return CUBLAS_STATUS_NOT_SUPPORTED;
	}
	/* The real library has such conditions, too: callers have to handle a refusal. */
	if (d->epilogue >= CUBLASLT_EPILOGUE_BIAS && c->ld % 2) {
		*found = 0;
		return d->epilogue == CUBLASLT_EPILOGUE_BIAS ? CUBLAS_STATUS_NOT_SUPPORTED
		                                             : CUBLAS_STATUS_SUCCESS;
	}
	*found = wanted < algorithms() ? wanted : algorithms();
	for (int i = 0; i < *found; i++) {
		results[i] = (cublasLtMatmulHeuristicResult_t){
		    .algo = {.number = (uint32_t)i,
		             .epilogue = (uint32_t)d->epilogue,
		             .version = (uint32_t)cublasLtGetVersion()},
		    .state = d->epilogue >= CUBLASLT_EPILOGUE_BIAS && c->ld % 3 == 0
		                 ? CUBLAS_STATUS_NOT_SUPPORTED
		                 : CUBLAS_STATUS_SUCCESS};
		memcpy(results[i].algo.align, p->align, sizeof(p->align));
	}
	return CUBLAS_STATUS_SUCCESS;
}

/* Refuses an algorithm of another version or for another epilogue, and one that there never was. */
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t e, const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result)
{
	if (algorithm->version != cublasLtGetVersion() || (int)algorithm->number >= algorithms())
		return CUBLAS_STATUS_INVALID_VALUE;
	for (int i = 0; i < 4; i++)
		if (algorithm->align[i] == 0 || algorithm->align[i] > 256)
			return CUBLAS_STATUS_INVALID_VALUE;
	result->workspaceSize = 0;
	return algorithm->epilogue == (uint32_t)d->epilogue ? CUBLAS_STATUS_SUCCESS
	                                                    : CUBLAS_STATUS_NOT_SUPPORTED;
}

static float get(const void *p, int64_t i, cudaDataType_t type)
{
	if (is_fp8(type))
		return fp8_to_float(type == CUDA_R_8F_E4M3 ? FP8_E4M3 : FP8_E5M2, ((const uint8_t *)p)[i]);
	return type == CUDA_R_32F    ? ((const float *)p)[i]
	       : type == CUDA_R_16BF ? bf16_to_float(((const uint16_t *)p)[i])
	                             : f16_to_float(((const uint16_t *)p)[i]);
}

/* Element (row, col) of op(x). */
static float at(const void *p, const struct fake_layout *l, cublasOperation_t op, int64_t row, int64_t col)
{
	return get(p, op == CUBLAS_OP_T ? row * l->ld + col : col * l->ld + row, l->type);
}

static void put(void *p, int64_t i, cudaDataType_t type, float x)
{
	if (type == CUDA_R_32F)
		((float *)p)[i] = x;
	else
		((uint16_t *)p)[i] = type == CUDA_R_16BF ? bf16_from_float(x) : f16_from_float(x);
}

/* Number 0 sums in double precision; number i in i + 1 parts, each of which is rounded. */
static double sum_of(const struct simt_gemm *g, cublasLtMatmulDesc_t d, const void *a,
                     cublasLtMatrixLayout_t al, const void *b, cublasLtMatrixLayout_t bl, int64_t row,
                     int64_t col)
{
	uint32_t parts = g->number + 1;
	double sum = 0;

	for (uint32_t part = 0; part < parts; part++) {
		double of_part = 0;

		for (int64_t j = part; j < g->sum; j += parts)
			of_part += (double)at(a, al, d->a, row, j) * at(b, bl, d->b, j, col);
		sum = parts == 1 ? of_part : (float)((float)sum + (float)of_part);
	}
	return sum;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t al, const void *b, cublasLtMatrixLayout_t bl,
                              const void *beta, const void *c, cublasLtMatrixLayout_t cl, void *e,
                              cublasLtMatrixLayout_t el, const cublasLtMatmulAlgo_t *algorithm,
                              void *workspace, size_t size, cudaStream_t s)
{
	int64_t k = d->a == CUBLAS_OP_T ? al->rows : al->cols;
	const void *pointers[] = {a, b, c, e};
	const struct simt_gemm g = described(d, al, cl, algorithm);
	float factor;

	for (int i = 0; i < 4; i++) {
		simt_check(pointers[i], "a matrix of a gemm");
		if ((uintptr_t)pointers[i] % algorithm->align[i])
			return CUBLAS_STATUS_INVALID_VALUE;
	}
	simt_check(workspace, "the workspace of a gemm");
	simt_check(d->bias, "the bias of a gemm");
	if (d->epilogue >= CUBLASLT_EPILOGUE_BIAS && cl->ld % 5 == 0)
		return CUBLAS_STATUS_NOT_SUPPORTED; /* a refusal by the call itself */
	if ((d->a == CUBLAS_OP_T ? al->cols : al->rows) != cl->rows ||
	    (d->b == CUBLAS_OP_T ? bl->cols : bl->rows) != k ||
	    (d->b == CUBLAS_OP_T ? bl->rows : bl->cols) != cl->cols || is_fp8(al->type) != is_fp8(bl->type) ||
	    (!is_fp8(al->type) && al->type != bl->type) || c != e || cl != el)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (is_fp8(al->type)) {
		for (int i = 0; i < 2; i++)
			if ((uintptr_t)pointers[i] % 16)
				return CUBLAS_STATUS_INVALID_VALUE;
		if (!fp8_fits(d, al, bl, cl) || !d->scale_a || !d->scale_b)
			return CUBLAS_STATUS_INVALID_VALUE;
		/* As seen with cuBLASLt 13.1 on an H200. */
		if (((uintptr_t)d->scale_a | (uintptr_t)d->scale_b) % FP8_SCALE_ALIGNMENT)
			return CUBLAS_STATUS_NOT_SUPPORTED;
		simt_check(d->scale_a, "the scale of a gemm");
		simt_check(d->scale_b, "the scale of a gemm");
	}
	simt_enter(s);
	spend(&g);
	factor = *(const float *)alpha * (is_fp8(al->type) ? *d->scale_a * *d->scale_b : 1);
	for (int64_t col = 0; col < cl->cols; col++) {
		for (int64_t row = 0; row < cl->rows; row++) {
			int64_t i = col * cl->ld + row;
			float x;

			x = (float)(factor * sum_of(&g, d, a, al, b, bl, row, col));
			if (*(const float *)beta != 0)
				x += *(const float *)beta * get(c, i, cl->type);
			if (d->epilogue == CUBLASLT_EPILOGUE_BIAS)
				x += get(d->bias, row, cl->type);
			put(e, i, cl->type, x);
		}
	}
	for (int64_t col = 0; col < cl->cols && d->epilogue == CUBLASLT_EPILOGUE_BGRADB; col++) {
		double sum = 0;

		for (int64_t j = 0; j < k; j++)
			sum += at(b, bl, d->b, j, col);
		put(d->bias, col, cl->type, (float)sum);
	}
	simt_leave();
	return CUBLAS_STATUS_SUCCESS;
}
