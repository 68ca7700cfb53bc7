/* SPDX-License-Identifier: Apache-2.0 */
/* The algorithms that have been chosen for products, and which of them holds for a shape. An algorithm is
 * kept as the library's bytes, which may be stored, and used with the same version of the library. */
#include "engine/device/cuda/gemm/gemm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

_Static_assert(sizeof(cublasLtMatmulAlgo_t) <= DEVICE_ALGORITHM, "an algorithm has too many bytes");
_Static_assert(sizeof(struct device_gemm_shape) == 6 * sizeof(int64_t) + 12 * sizeof(int32_t),
               "a shape has padding");

const char *device_gemm_kind(const struct device *dev)
{
	return dev->gemm_kind;
}

/* The rows of A as it is stored. */
static int64_t *rows_in(struct device_gemm_shape *shape)
{
	return shape->transpose_a ? &shape->k : &shape->m;
}

static bool is_same_product(struct device_gemm_shape a, struct device_gemm_shape b)
{
	*rows_in(&a) = *rows_in(&b) = 0;
	return memcmp(&a, &b, sizeof(a)) == 0;
}

const struct device_gemm_choice *gemm_choice_find(const struct gemm_cache *g,
                                                  const struct device_gemm_shape *shape)
{
	struct device_gemm_shape wanted = *shape;
	int64_t rows = *rows_in(&wanted), fewest = INT64_MAX;
	const struct device_gemm_choice *best = NULL;

	for (size_t i = 0; i < g->choice_count; i++) {
		struct device_gemm_shape own = g->choices[i].shape;
		int64_t n = *rows_in(&own);

		if (n < rows || n >= fewest || !is_same_product(own, wanted))
			continue;
		best = &g->choices[i];
		fewest = n;
	}
	return best;
}

static bool is_accepted(struct device *dev, const struct device_gemm_choice *choice)
{
	const struct device_gemm_shape *shape = &choice->shape;
	/* Addresses of its alignments, none of which is accessed. */
	const struct gemm_operands operands = {.a = (void *)(uintptr_t)shape->align_a,
	                                       .b = (void *)(uintptr_t)shape->align_b,
	                                       .c = (void *)(uintptr_t)shape->align_c,
	                                       .bias = (void *)(uintptr_t)shape->align_bias,
	                                       .d_bias = (float *)(uintptr_t)DEVICE_GEMM_ALIGNMENT,
	                                       .scale = (float *)(uintptr_t)DEVICE_GEMM_ALIGNMENT};
	struct device_gemm product = gemm_product_of(shape, &operands);
	cublasLtMatmulAlgo_t algorithm;
	struct gemm_entry e = {0};
	struct gemm_work w;
	bool ok;

	gemm_work_init(dev, &product, &w);
	if (w.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
		w.bias = product.bias ? product.bias : product.d_bias;
	memcpy(&algorithm, choice->algorithm, sizeof(algorithm));
	ok = gemm_entry_describe(&e, &w, choice->separate) == CUBLAS_STATUS_SUCCESS &&
	     gemm_accepts(dev->gemm, &e, &algorithm);
	gemm_entry_clear(&e);
	return ok;
}

int device_gemm_use(struct device *dev, const struct device_gemm_choice *choices, size_t n, struct error *err)
{
	struct gemm_cache *g = dev->gemm;
	struct device_gemm_choice *copy;

	for (size_t i = 0; i < n; i++)
		if (!is_accepted(dev, &choices[i]))
			return error_set(err, -EINVAL,
			                 "%s does not accept the algorithm that is kept for the product of "
			                 "%lld x %lld x %lld",
			                 dev->gemm_kind, (long long)choices[i].shape.m,
			                 (long long)choices[i].shape.n, (long long)choices[i].shape.k);
	copy = malloc(n * sizeof(*copy) + 1);
	if (!copy)
		return error_oom(err);
	if (n > 0)
		memcpy(copy, choices, n * sizeof(*copy));
	free(g->choices);
	g->choices = copy;
	g->choice_count = n;
	gemm_cache_clear(g);
	return 0;
}
