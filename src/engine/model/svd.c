/* SPDX-License-Identifier: Apache-2.0 */
/* Singular values by rotations of pairs of rows, of a whole matrix or of what a random subspace keeps of
 * it. */
#include "engine/model/svd.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

enum {
	SWEEPS_MAX = 60,
	OVERSAMPLE = 10 /* vectors of the subspace beyond those that are asked for */
};
/* Rows whose cosine is smaller are orthogonal. */
#define ORTHOGONAL 1e-14
#define COLUMNS    64 /* of a product that a thread computes at a time */

static double dot(const double *a, const double *b, int64_t n)
{
	double sum[4] = {0};
	int64_t i = 0;

	for (; i + 4 <= n; i += 4)
		for (int k = 0; k < 4; k++)
			sum[k] += a[i + k] * b[i + k];
	for (; i < n; i++)
		sum[0] += a[i] * b[i];
	return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* ---- one-sided Jacobi ---- */

/* Rows x [n, length], whose lengths become the singular values, and the product of the rotations q [n, n]. */
struct jacobi {
	int64_t n, length;
	double *x, *q;
};

static void rotate(double *a, double *b, double c, double s, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		double x = a[i], y = b[i];

		a[i] = c * x - s * y;
		b[i] = s * x + c * y;
	}
}

/* Makes two rows orthogonal; whether they were not. */
static bool rotate_pair(const struct jacobi *j, int64_t a, int64_t b)
{
	double *x = j->x + a * j->length, *y = j->x + b * j->length;
	double xx = dot(x, x, j->length), yy = dot(y, y, j->length), xy = dot(x, y, j->length), z, t, c;

	if (fabs(xy) <= ORTHOGONAL * sqrt(xx * yy) || xy == 0)
		return false;
	z = (yy - xx) / (2 * xy);
	t = (z < 0 ? -1 : 1) / (fabs(z) + sqrt(1 + z * z));
	c = 1 / sqrt(1 + t * t);
	rotate(x, y, c, c * t, j->length);
	rotate(j->q + a * j->n, j->q + b * j->n, c, c * t, j->n);
	return true;
}

/* In each round of a sweep every row is in one pair, as in a tournament; after all rounds it has met all. */
static void jacobi_run(const struct jacobi *j)
{
	int64_t places = j->n + j->n % 2, turned = 1;

	for (int sweep = 0; sweep < SWEEPS_MAX && turned > 0; sweep++) {
		turned = 0;
		for (int64_t round = 0; round + 1 < places; round++) {
#pragma omp parallel for schedule(static) reduction(+ : turned) if (j->n * j->length > 16384)
			for (int64_t k = 0; k < places / 2; k++) {
				int64_t a = k == 0 ? places - 1 : (round + k) % (places - 1);
				int64_t b = (round + places - 1 - k) % (places - 1);

				if (a < j->n && b < j->n)
					turned += rotate_pair(j, a < b ? a : b, a < b ? b : a);
			}
		}
	}
}

struct singular {
	double value;
	int64_t row;
};

static int by_value(const void *a, const void *b)
{
	const struct singular *x = a, *y = b;

	if (x->value != y->value)
		return x->value < y->value ? 1 : -1;
	return (x->row > y->row) - (x->row < y->row);
}

/* W [n, length] = Σ value · left · right: left[k * n …] and right[k * length …] of the `rank` largest. */
static int jacobi_largest(const double *w, int64_t n, int64_t length, int64_t rank, double *left,
                          float *value, float *right, struct error *err)
{
	_cleanup_free_ double *x = malloc((size_t)(n * length) * sizeof(*x));
	_cleanup_free_ double *q = calloc((size_t)(n * n), sizeof(*q));
	_cleanup_free_ struct singular *order = calloc((size_t)n, sizeof(*order));
	struct jacobi j = {n, length, x, q};

	if (!x || !q || !order)
		return error_oom(err);
	memcpy(x, w, (size_t)(n * length) * sizeof(*x));
	for (int64_t i = 0; i < n; i++)
		q[i * n + i] = 1;
	jacobi_run(&j);
	for (int64_t i = 0; i < n; i++)
		order[i] = (struct singular){sqrt(dot(x + i * length, x + i * length, length)), i};
	qsort(order, (size_t)n, sizeof(*order), by_value);
	for (int64_t k = 0; k < rank; k++) {
		int64_t from = order[k].row;

		value[k] = (float)order[k].value;
		memcpy(left + k * n, q + from * n, (size_t)n * sizeof(*left));
		for (int64_t i = 0; i < length; i++)
			right[k * length + i] =
			    order[k].value > 0 ? (float)(x[from * length + i] / order[k].value) : 0;
	}
	return 0;
}

/* ---- all of it ---- */

/* The smaller of both sides is that of the rows that are rotated. */
static int exact(const float *w, int64_t rows, int64_t cols, int64_t rank, float *u, float *s, float *v,
                 struct error *err)
{
	bool turned = rows > cols;
	int64_t n = turned ? cols : rows, length = turned ? rows : cols;
	_cleanup_free_ double *x = malloc((size_t)(rows * cols) * sizeof(*x));
	_cleanup_free_ double *left = malloc((size_t)(rank * n) * sizeof(*left));
	_cleanup_free_ float *right = malloc((size_t)(rank * length) * sizeof(*right));
	int r;

	if (!x || !left || !right)
		return error_oom(err);
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < cols; j++)
			x[turned ? j * rows + i : i * cols + j] = w[i * cols + j];
	r = jacobi_largest(x, n, length, rank, left, s, right, err);
	for (int64_t k = 0; k < rank && r == 0; k++) {
		for (int64_t i = 0; i < rows; i++)
			u[i * rank + k] = turned ? right[k * rows + i] : (float)left[k * n + i];
		for (int64_t j = 0; j < cols; j++)
			v[k * cols + j] = turned ? (float)left[k * n + j] : right[k * cols + j];
	}
	return r;
}

/* ---- by a subspace ---- */

/* y [k, rows] = x · Wᵀ */
static void multiply(const float *w, int64_t rows, int64_t cols, const double *x, int64_t k, double *y)
{
#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < rows; i++)
		for (int64_t q = 0; q < k; q++) {
			double sum[4] = {0};
			int64_t j = 0;

			for (; j + 4 <= cols; j += 4)
				for (int p = 0; p < 4; p++)
					sum[p] += (double)w[i * cols + j + p] * x[q * cols + j + p];
			for (; j < cols; j++)
				sum[0] += (double)w[i * cols + j] * x[q * cols + j];
			y[q * rows + i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
		}
}

/* y [k, cols] = x · W */
static void multiply_transposed(const float *w, int64_t rows, int64_t cols, const double *x, int64_t k,
                                double *y)
{
	memset(y, 0, (size_t)(k * cols) * sizeof(*y));
#pragma omp parallel for schedule(static)
	for (int64_t first = 0; first < cols; first += COLUMNS) {
		int64_t n = cols - first < COLUMNS ? cols - first : COLUMNS;

		for (int64_t i = 0; i < rows; i++)
			for (int64_t q = 0; q < k; q++) {
				double factor = x[q * rows + i], *out = y + q * cols + first;
				const float *in = w + i * cols + first;

				for (int64_t j = 0; j < n; j++)
					out[j] += factor * (double)in[j];
			}
	}
}

/* Makes rows orthonormal (Gram and Schmidt, twice); one that depends on those before it becomes 0. */
static void orthonormalize(double *x, int64_t k, int64_t n)
{
	for (int64_t q = 0; q < k; q++) {
		double *row = x + q * n, before = sqrt(dot(row, row, n)), length;

		for (int twice = 0; twice < 2; twice++)
			for (int64_t p = 0; p < q; p++) {
				double part = dot(x + p * n, row, n);

				for (int64_t i = 0; i < n; i++)
					row[i] -= part * x[p * n + i];
			}
		length = sqrt(dot(row, row, n));
		for (int64_t i = 0; i < n; i++)
			row[i] = length > 1e-12 * before ? row[i] / length : 0;
	}
}

/* Numbers between -1 and 1, by splitmix64 (Steele et al. 2014). */
static void fill_random(double *x, int64_t n, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++) {
		uint64_t z = seed += 0x9e3779b97f4a7c15u;

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		z ^= z >> 31;
		x[i] = (double)(z >> 11) * 0x1p-52 - 1;
	}
}

static int by_subspace(const float *w, int64_t rows, int64_t cols, int64_t rank, int iterations,
                       uint64_t seed, float *u, float *s, float *v, struct error *err)
{
	int64_t least = rows < cols ? rows : cols, k = rank + OVERSAMPLE < least ? rank + OVERSAMPLE : least;
	_cleanup_free_ double *x = malloc((size_t)(k * cols) * sizeof(*x));
	_cleanup_free_ double *y = malloc((size_t)(k * rows) * sizeof(*y));
	_cleanup_free_ double *left = malloc((size_t)(rank * k) * sizeof(*left));
	int r;

	if (!x || !y || !left)
		return error_oom(err);
	fill_random(x, k * cols, seed);
	multiply(w, rows, cols, x, k, y);
	orthonormalize(y, k, rows);
	for (int i = 0; i < iterations; i++) {
		multiply_transposed(w, rows, cols, y, k, x);
		orthonormalize(x, k, cols);
		multiply(w, rows, cols, x, k, y);
		orthonormalize(y, k, rows);
	}
	/* y · W [k, cols] has the singular values of what the subspace keeps. */
	multiply_transposed(w, rows, cols, y, k, x);
	r = jacobi_largest(x, k, cols, rank, left, s, v, err);
	for (int64_t q = 0; q < rank && r == 0; q++)
		for (int64_t i = 0; i < rows; i++) {
			double sum = 0;

			for (int64_t p = 0; p < k; p++)
				sum += left[q * k + p] * y[p * rows + i];
			u[i * rank + q] = (float)sum;
		}
	return r;
}

int svd_largest(const float *w, int64_t rows, int64_t cols, int64_t rank, int iterations, uint64_t seed,
                float *u, float *s, float *v, struct error *err)
{
	return iterations == 0 ? exact(w, rows, cols, rank, u, s, v, err)
	                       : by_subspace(w, rows, cols, rank, iterations, seed, u, s, v, err);
}
