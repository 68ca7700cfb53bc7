/* SPDX-License-Identifier: Apache-2.0 */
/* What adapters add to the products: dropout of their input, and the norms and scales of DoRA's rows. */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"
#include "engine/device/rounding.h"

/* ---- dropout ---- */
struct mask {
	struct rounding_key key;
	uint32_t threshold;
	float factor;
};

VINLINE void dropout_vector(const struct mask *m, void *y, bool accumulate, const void *x, enum dtype type,
                            int64_t i, int64_t n)
{
	vu low = (vu){} + (uint32_t)i, bits = low + (vu)v_lanes();
	/* A comparison gives -1 where it is true, so that subtracting it adds the carry. */
	vu high = (vu){} + (uint32_t)((uint64_t)i >> 32) - (vu)(bits < low);
	vf kept;

	ROUNDING_BITS(bits, high, m->key);
	kept = v_select((vi)(bits >= m->threshold), load_part(x, i, type, n) * m->factor, (vf){});
	if (accumulate)
		kept += load_part(y, i, type, n);
	store_part(y, i, type, kept, n);
}

VINLINE void dropout_part(const struct mask *m, void *y, bool accumulate, const void *x, enum dtype type,
                          int64_t lo, int64_t hi)
{
	int64_t i = lo;

	for (; i + VW <= hi; i += VW)
		dropout_vector(m, y, accumulate, x, type, i, VW);
	if (i < hi)
		dropout_vector(m, y, accumulate, x, type, i, hi - i);
}

void KERNEL(dropout)(struct device *dev, const struct device_dropout *d, void *y, bool accumulate,
                     const void *x, enum dtype type, int64_t n)
{
	uint32_t threshold = dropout_threshold(d->probability);
	struct mask m = {dropout_key(d->seed, d->number), threshold, dropout_factor(threshold)};

#pragma omp parallel num_threads(dev->threads) if (n > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(n, CACHE_LINE, &lo, &hi);
		WITH_TYPE(type, dropout_part(&m, y, accumulate, x, TYPE, lo, hi));
	}
}

/* ---- DoRA ---- */
/* Columns whose squares are summed in fp32; the sums are added up in float64. */
#define NORM_PIECE 4096

/* The sum of the squares of columns [lo, hi) of row j. */
VINLINE double norm_piece(const struct device_row_norms *n, const void *w, const void *b, const void *a,
                          enum dtype type, int64_t j, int64_t lo, int64_t hi)
{
	vf sum[4] = {};

	for (int64_t c = lo; c < hi; c += 4 * VW) {
		vf x[4] = {};
		int64_t part[4];

		for (int v = 0; v < 4; v++) {
			int64_t left = hi - c - v * VW;

			part[v] = left < 0 ? 0 : left < VW ? left : VW;
			if (part[v] > 0)
				x[v] = load_part(w, j * n->cols + c + v * VW, type, part[v]);
		}
		for (int64_t k = 0; k < n->rank; k++) {
			float factor = n->scale * s_load(b, j * n->rank + k, type);

			for (int v = 0; v < 4; v++)
				if (part[v] > 0)
					x[v] +=
					    load_part(a, k * n->cols + c + v * VW, type, part[v]) * factor;
		}
		for (int v = 0; v < 4; v++)
			sum[v] += x[v] * x[v];
	}
	return v_hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

VINLINE void norm_rows(const struct device_row_norms *n, float *norm, const void *w, const void *b,
                       const void *a, enum dtype type, int64_t lo, int64_t hi)
{
	for (int64_t j = lo; j < hi; j++) {
		double sum = 0;

		for (int64_t c = 0; c < n->cols; c += NORM_PIECE)
			sum += norm_piece(n, w, b, a, type, j, c,
			                  c + NORM_PIECE < n->cols ? c + NORM_PIECE : n->cols);
		norm[j] = (float)__builtin_sqrt(sum);
	}
}

/* Columns of a matrix that are in registers or the nearest cache while the ranks are added to them. */
#define NORM_TILE 64

/* Adds the squares of elements [j, j + lanes) of rows [lo, hi) of a transposed matrix to sum. */
VINLINE void norm_tile(const struct device_row_norms *n, const void *w, const void *b, const void *a,
                       enum dtype type, int64_t j, int64_t lanes, int64_t lo, int64_t hi, double sum[VW])
{
	vf x[NORM_TILE], squares = {};
	float lane[VW];

	for (int64_t c = lo; c < hi; c++)
		x[c - lo] = load_part(w, c * n->rows + j, type, lanes);
	for (int64_t k = 0; k < n->rank; k++) {
		vf column;

		for (int64_t i = 0; i < VW; i++)
			lane[i] = i < lanes ? n->scale * s_load(b, (j + i) * n->rank + k, type) : 0;
		column = load_part(lane, 0, DTYPE_F32, VW);
		for (int64_t c = lo; c < hi; c++)
			x[c - lo] += column * s_load(a, k * n->cols + c, type);
	}
	for (int64_t c = lo; c < hi; c++)
		squares += x[c - lo] * x[c - lo];
	store_part(lane, 0, DTYPE_F32, squares, VW);
	for (int i = 0; i < VW; i++)
		sum[i] += (double)lane[i];
}

VINLINE void norm_transposed(const struct device_row_norms *n, float *norm, const void *w, const void *b,
                             const void *a, enum dtype type, int64_t lo, int64_t hi)
{
	for (int64_t j = lo; j < hi; j += VW) {
		int64_t lanes = hi - j < VW ? hi - j : VW;
		double sum[VW] = {0};

		for (int64_t c = 0; c < n->cols; c += NORM_TILE)
			norm_tile(n, w, b, a, type, j, lanes, c,
			          c + NORM_TILE < n->cols ? c + NORM_TILE : n->cols, sum);
		for (int64_t i = 0; i < lanes; i++)
			norm[j + i] = (float)__builtin_sqrt(sum[i]);
	}
}

void KERNEL(row_norms)(struct device *dev, const struct device_row_norms *n, float *norm, const void *w,
                       const void *b, const void *a)
{
#pragma omp parallel num_threads(dev->threads) if (n->rows * n->cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(n->rows, 16, &lo, &hi);
		if (n->transposed)
			WITH_TYPE(n->type, norm_transposed(n, norm, w, b, a, TYPE, lo, hi));
		else
			WITH_TYPE(n->type, norm_rows(n, norm, w, b, a, TYPE, lo, hi));
	}
}

VINLINE void scale_rows(const struct device_columns *c, void *y, const void *x, enum dtype type, int64_t lo,
                        int64_t hi)
{
	for (int64_t t = lo; t < hi; t++)
		for (int64_t j = 0; j < c->cols; j += VW) {
			int64_t n = c->cols - j < VW ? c->cols - j : VW, i = t * c->ld + j;
			vf norm = load_part(c->norm, j, DTYPE_F32, n), out = load_part(x, i, type, n);

			if (c->times)
				out *= load_part(c->times, i, type, n);
			if (c->magnitude)
				out *= load_part(c->magnitude, j, type, n);
			out = v_select((vi)(norm > 0.0f), out / norm, (vf){});
			if (c->bias)
				out += load_part(c->bias, j, type, n);
			store_part(y, i, type, out, n);
		}
}

void KERNEL(scale_columns)(struct device *dev, const struct device_columns *c, void *y, const void *x)
{
#pragma omp parallel num_threads(dev->threads) if (c->rows * c->cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(c->rows, 1, &lo, &hi);
		WITH_TYPE(c->type, scale_rows(c, y, x, TYPE, lo, hi));
	}
}
