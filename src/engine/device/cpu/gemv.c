/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products with few rows, as in generation: C[m, n] = A[m, k]·B[n, k]ᵀ, in one pass over B. */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"

VINLINE float dot_product(const void *a, const void *b, int64_t k, enum dtype type)
{
	vf s0 = {}, s1 = {}, s2 = {}, s3 = {};
	int64_t i = 0;

	for (; i + 4 * VW <= k; i += 4 * VW) {
		s0 += v_load(a, i, type) * v_load(b, i, type);
		s1 += v_load(a, i + VW, type) * v_load(b, i + VW, type);
		s2 += v_load(a, i + 2 * VW, type) * v_load(b, i + 2 * VW, type);
		s3 += v_load(a, i + 3 * VW, type) * v_load(b, i + 3 * VW, type);
	}
	for (; i < k; i += VW) {
		int64_t n = k - i < VW ? k - i : VW;

		s0 += v_load_n(a, i, type, n) * v_load_n(b, i, type, n);
	}
	return v_hsum((s0 + s1) + (s2 + s3));
}

VINLINE void gemv_columns(const struct device_gemm *g, int64_t lo, int64_t hi, enum dtype type)
{
	for (int64_t n = lo; n < hi; n++) {
		const void *b = at_const(g->b, n * g->ldb, type);

		for (int64_t m = 0; m < g->m; m++) {
			float x = g->alpha * dot_product(at_const(g->a, m * g->lda, type), b, g->k, type);
			int64_t c = m * g->ldc + n;

			if (g->beta != 0)
				x += g->beta * s_load(g->c, c, g->c_type);
			s_store(g->c, c, g->c_type, x);
		}
	}
}

void KERNEL(gemv)(struct device *dev, const struct device_gemm *g)
{
#pragma omp parallel num_threads(dev->threads) if (g->n * g->k > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(g->n, CACHE_LINE, &lo, &hi);
		WITH_TYPE(g->ab_type, gemv_columns(g, lo, hi, TYPE));
	}
}
