/* SPDX-License-Identifier: Apache-2.0 */
/* The part of cuBLASLt that the engine uses; tests/simt/cublaslt.c implements it with plain loops. */
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
	CUBLAS_STATUS_SUCCESS = 0,
	CUBLAS_STATUS_ALLOC_FAILED = 3,
	CUBLAS_STATUS_INVALID_VALUE = 7,
	CUBLAS_STATUS_NOT_SUPPORTED = 15
} cublasStatus_t;
typedef enum { CUBLAS_OP_N, CUBLAS_OP_T } cublasOperation_t;
typedef enum { CUBLAS_COMPUTE_32F = 68 } cublasComputeType_t;
typedef enum {
	CUDA_R_32F = 0,
	CUDA_R_16F = 2,
	CUDA_R_16BF = 14,
	CUDA_R_8F_E4M3 = 28,
	CUDA_R_8F_E5M2 = 29
} cudaDataType_t;
enum { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 };
typedef enum {
	CUBLASLT_MATMUL_DESC_TRANSA = 3,
	CUBLASLT_MATMUL_DESC_TRANSB = 4,
	CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
	CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
	CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17, /* of one fp32 number on the device, for operands of fp8 */
	CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18,
	CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25 /* one int8_t: sums of fewer bits, of operands of fp8 */
} cublasLtMatmulDescAttributes_t;
typedef enum {
	CUBLASLT_EPILOGUE_DEFAULT = 1,
	CUBLASLT_EPILOGUE_BIAS = 4,    /* adds its element of the bias to each row of D */
	CUBLASLT_EPILOGUE_BGRADB = 512 /* the bias becomes the sums of op(B)'s columns over k */
} cublasLtEpilogue_t;
typedef enum {
	CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
	CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
} cublasLtMatmulPreferenceAttributes_t;

typedef struct fake_handle *cublasLtHandle_t;
typedef struct fake_operation *cublasLtMatmulDesc_t;
typedef struct fake_layout *cublasLtMatrixLayout_t;
typedef struct fake_preference *cublasLtMatmulPreference_t;
typedef struct {
	uint32_t align[4]; /* of a, b, c, d: as given when the algorithm was chosen */
	uint32_t number;   /* among those that were suggested */
	uint32_t epilogue, version;
	uint32_t others[9]; /* the size of the real one */
} cublasLtMatmulAlgo_t;
typedef struct {
	cublasLtMatmulAlgo_t algo;
	size_t workspaceSize;
	cublasStatus_t state;
} cublasLtMatmulHeuristicResult_t;

const char *cublasLtGetStatusString(cublasStatus_t s);
size_t cublasLtGetVersion(void);
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h);
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a,
                                              const void *p, size_t n);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void *v,
                                                    size_t n);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t e,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found);
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t e, const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t al, const void *b, cublasLtMatrixLayout_t bl,
                              const void *beta, const void *c, cublasLtMatrixLayout_t cl, void *e,
                              cublasLtMatrixLayout_t el, const cublasLtMatmulAlgo_t *algorithm,
                              void *workspace, size_t size, cudaStream_t s);

/*
 * Several algorithms. SIMT_GEMM=COUNT:SEED makes the stand-in suggest so many, of which each sums in an order
 * of its own. The time that one takes, in simt_spend's terms, is a function of SEED, the shape and its
 * number; without SIMT_GEMM there is one, whose time is nothing. SIMT_CUBLASLT is the version.
 */
struct simt_gemm {
	int64_t rows, cols, sum; /* of D, column-major, and the terms of a sum */
	uint32_t number;
	int fused;
};
/* For tests of one process: seconds of an algorithm, in place of those by SEED; count 0: as by default. */
typedef double (*simt_gemm_seconds)(const struct simt_gemm *g);
void simt_gemm_offer(int count, simt_gemm_seconds seconds);
/* The algorithm that a product ran last. */
struct simt_gemm simt_gemm_last(void);
/* Products so far: those of the algorithm of that number; -1: all. */
int simt_gemm_runs(int number);
