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

/* Rows of A that share what is loaded of a row of B. */
#define ROWS 4
/* Rows of B that share rows of A that have been widened. */
#define COLUMNS 32
/* Longer rows of A are widened wherever they are read. */
#define WIDEN_MAX 16384

/* dot_product of each of ROWS rows of A, lda apart and of a_type, with b: the same sums in the same order. */
VINLINE void dot_products(float x[ROWS], const void *a, int64_t lda, enum dtype a_type, const void *b,
                          int64_t k, enum dtype type)
{
	vf s[ROWS][4] = {};
	int64_t i = 0;

	for (; i + 4 * VW <= k; i += 4 * VW) {
#pragma GCC unroll 4
		for (int j = 0; j < 4; j++) {
			vf y = v_load(b, i + j * VW, type);

#pragma GCC unroll 4
			for (int r = 0; r < ROWS; r++)
				s[r][j] += v_load(a, r * lda + i + j * VW, a_type) * y;
		}
	}
	for (; i < k; i += VW) {
		int64_t n = k - i < VW ? k - i : VW;
		vf y = v_load_n(b, i, type, n);

#pragma GCC unroll 4
		for (int r = 0; r < ROWS; r++)
			s[r][0] += v_load_n(a, r * lda + i, a_type, n) * y;
	}
#pragma GCC unroll 4
	for (int r = 0; r < ROWS; r++)
		x[r] = v_hsum((s[r][0] + s[r][1]) + (s[r][2] + s[r][3]));
}

VINLINE void put(const struct device_gemm *g, int64_t m, int64_t n, float sum)
{
	int64_t c = m * g->ldc + n;
	float x = g->alpha * sum;

	if (g->beta != 0)
		x += g->beta * s_load(g->c, c, g->c_type);
	s_store(g->c, c, g->c_type, x);
}

VINLINE void widen(float *out, const void *a, int64_t k, enum dtype type)
{
	for (int64_t i = 0; i < k; i += VW) {
		if (k - i < VW)
			v_store_n(out, i, DTYPE_F32, v_load_n(a, i, type, k - i), k - i);
		else
			v_store(out, i, DTYPE_F32, v_load(a, i, type));
	}
}

/* ROWS rows from row m on, in columns [lo, hi). */
VINLINE void gemv_rows(const struct device_gemm *g, int64_t m, int64_t lo, int64_t hi, enum dtype type)
{
	bool widens = type != DTYPE_F32 && g->k <= WIDEN_MAX;
	float wide[ROWS * WIDEN_MAX], x[ROWS];
	const void *a = at_const(g->a, m * g->lda, type);

	for (int r = 0; r < ROWS && widens; r++)
		widen(wide + r * g->k, at_const(a, r * g->lda, type), g->k, type);
	for (int64_t n = lo; n < hi; n++) {
		const void *b = at_const(g->b, n * g->ldb, type);

		if (widens)
			dot_products(x, wide, g->k, DTYPE_F32, b, g->k, type);
		else
			dot_products(x, a, g->lda, type, b, g->k, type);
		for (int r = 0; r < ROWS; r++)
			put(g, m + r, n, x[r]);
	}
}

VINLINE void gemv_columns(const struct device_gemm *g, int64_t lo, int64_t hi, enum dtype type)
{
	for (int64_t first = lo; first < hi; first += COLUMNS) {
		int64_t end = first + COLUMNS < hi ? first + COLUMNS : hi, m = 0;

		for (; m + ROWS <= g->m; m += ROWS)
			gemv_rows(g, m, first, end, type);
		for (int64_t n = first; n < end; n++)
			for (int64_t i = m; i < g->m; i++)
				put(g, i, n,
				    dot_product(at_const(g->a, i * g->lda, type),
				                at_const(g->b, n * g->ldb, type), g->k, type));
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
