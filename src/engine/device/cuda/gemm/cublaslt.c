/* SPDX-License-Identifier: Apache-2.0 */
/* Loads cuBLASLt and defines its functions, which call those of the library. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "engine/device/cuda/cuda.h"
#include "engine/device/cuda/library.h"

/* clang-format off */
#define FUNCTIONS(F) \
	F(const char *, cublasLtGetStatusString, (cublasStatus_t status), (status)) \
	F(size_t, cublasLtGetVersion, (void), ()) \
	F(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t *handle), (handle)) \
	F(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle)) \
	F(cublasStatus_t, cublasLtMatmul, \
	  (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha, const void *a, \
	   cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout, const void *beta, \
	   const void *c, cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout, \
	   const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t size, cudaStream_t stream), \
	  (handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, \
	   workspace, size, stream)) \
	F(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic, \
	  (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, \
	   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, \
	   cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t results[], \
	   int *found), \
	  (handle, operation, a, b, c, d, preference, wanted, results, found)) \
	F(cublasStatus_t, cublasLtMatmulAlgoCheck, \
	  (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, \
	   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, \
	   const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result), \
	  (handle, operation, a, b, c, d, algorithm, result)) \
	F(cublasStatus_t, cublasLtMatmulDescCreate, \
	  (cublasLtMatmulDesc_t *operation, cublasComputeType_t compute, cudaDataType_t scale), \
	  (operation, compute, scale)) \
	F(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t operation), (operation)) \
	F(cublasStatus_t, cublasLtMatmulDescSetAttribute, \
	  (cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t what, const void *value, size_t size), \
	  (operation, what, value, size)) \
	F(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *preference), (preference)) \
	F(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), (preference)) \
	F(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute, \
	  (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what, const void *value, \
	   size_t size), \
	  (preference, what, value, size)) \
	F(cublasStatus_t, cublasLtMatrixLayoutCreate, \
	  (cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld), \
	  (layout, type, rows, columns, ld)) \
	F(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout)) \
	F(cublasStatus_t, cublasLtMatrixLayoutSetAttribute, \
	  (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t what, const void *value, size_t size), \
	  (layout, what, value, size))
/* clang-format on */

LIBRARY_DEFINE(FUNCTIONS)

static int version(void *function)
{
	return (int)((size_t(*)(void))function)();
}

/* The enumerations and structs of the headers are those of one major version. */
#define NAME_(major) "libcublasLt.so." #major
#define NAME(major)  NAME_(major)

int cublaslt_load(struct error *err)
{
	char package[32];
	struct library l = {.title = "cuBLASLt",
	                    .soname = NAME(CUBLAS_VER_MAJOR),
	                    .package = package,
	                    .minimum = CUBLAS_VER_MAJOR * 10000,
	                    .version_symbol = "cublasLtGetVersion",
	                    .version = version,
	                    .symbols = symbols,
	                    .symbol_count = ARRAY_SIZE(symbols)};

	if (real.cublasLtCreate)
		return 0;
	snprintf(package, sizeof(package), "libcublas-%d-%d", CUDART_VERSION / 1000,
	         CUDART_VERSION % 1000 / 10);
	return library_load(&l, NULL, err);
}
