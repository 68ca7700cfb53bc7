/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of products share: entry.c describes one to cuBLASLt, choices.c has the algorithms that were
 * chosen, measure.c measures them, and gemm.c is device_gemm. */
#pragma once

#include <cublasLt.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/device/cuda/cuda.h"
#include "engine/device/device.h"

#define GEMM_SLOTS       1024 /* a power of two */
#define GEMM_SUGGESTIONS 8

/* No padding: compared and hashed as bytes. */
struct gemm_key {
	int64_t m, n, k, lda, ldb, ldc;
	int32_t transpose_a, transpose_b, ab_type, c_type;
	int32_t align_a, align_b, align_c, adds;
	int32_t epilogue, align_bias;
	int32_t fp8_a, fp8_b;
};

struct gemm_entry {
	bool used;
	struct gemm_key key;
	cublasLtMatmulDesc_t operation;
	cublasLtMatrixLayout_t a, b, c;
	cublasLtMatmulAlgo_t algorithm;
	bool chosen; /* the algorithm, which else is the library's first suggestion */
	bool plain;  /* without the epilogue of the key: a kernel of this engine does its work */
};

struct gemm_cache {
	cublasLtHandle_t handle;
	cublasLtMatmulPreference_t preference;
	struct device_gemm_choice *choices; /* in any order */
	size_t choice_count;
	int count;
	struct gemm_entry entry[GEMM_SLOTS];
};

/* The product with its operands, and what it needs of the scratch. */
struct gemm_work {
	const struct device_gemm *product;
	cublasLtEpilogue_t epilogue;
	const void *bias; /* what the epilogue adds, or where it puts a sum; NULL: neither */
	size_t scratch;
	struct gemm_key key;
};
void gemm_work_init(const struct device *dev, const struct device_gemm *d, struct gemm_work *w);
/* The same once the scratch is there: it may have moved. */
void gemm_work_place(const struct device *dev, struct gemm_work *w);

/* Describes the product to the library; plain: without the epilogue. The caller clears the entry after an
 * error, too. */
cublasStatus_t gemm_entry_describe(struct gemm_entry *e, const struct gemm_work *w, bool plain);
void gemm_entry_clear(struct gemm_entry *e);
/* Up to `wanted` algorithms, the library's best guess first; -> found, 0 without an error where there is
 * none. */
cublasStatus_t gemm_suggest(struct gemm_cache *g, const struct gemm_entry *e, int wanted,
                            cublasLtMatmulHeuristicResult_t *results, int *found);
/* Whether the algorithm computes this product in the workspace that there is. */
bool gemm_accepts(struct gemm_cache *g, const struct gemm_entry *e, const cublasLtMatmulAlgo_t *algorithm);
/* The product itself, and after it what the epilogue has left over. */
cublasStatus_t gemm_multiply(struct device *dev, const struct gemm_work *w, struct gemm_entry *e);
void gemm_finish(struct device *dev, const struct gemm_work *w, const struct gemm_entry *e);
const char *gemm_status(cublasStatus_t s);

/* The product of the shape with these operands; bias and d_bias count where the shape has them. */
struct gemm_operands {
	void *a, *b, *c, *bias;
	float *d_bias;
	const float *scale; /* of both operands of fp8 */
};
struct device_gemm gemm_product_of(const struct device_gemm_shape *s, const struct gemm_operands *o);

/* choices.c: the choice that holds for the shape, NULL: there is none. */
const struct device_gemm_choice *gemm_choice_find(const struct gemm_cache *g,
                                                  const struct device_gemm_shape *shape);
void gemm_cache_clear(struct gemm_cache *g);
