/* SPDX-License-Identifier: Apache-2.0 */
/* LayerNorm. */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"

/* Lanes beyond n are zero. */
VINLINE vf first_lanes(vf v, int64_t n)
{
	return n == VW ? v : v_select(v_lanes() < (int32_t)n, v, v_set(0.0f));
}

VINLINE int64_t lanes_at(int64_t i, int64_t cols)
{
	return cols - i < VW ? cols - i : VW;
}

VINLINE void forward_rows(const struct device_norm *n, void *y, float *statistics, const void *x,
                          const void *w, const void *b, int64_t lo, int64_t hi, enum dtype type)
{
	for (int64_t t = lo; t < hi; t++) {
		const void *in = at_const(x, t * n->ld_x, type);
		void *out = at(y, t * n->ld_y, type);
		vf sum = {}, squares = {};
		float mean, rstd;

		for (int64_t i = 0; i < n->cols; i += VW)
			sum += v_load_n(in, i, type, lanes_at(i, n->cols));
		mean = v_hsum(sum) / (float)n->cols;
		for (int64_t i = 0; i < n->cols; i += VW) {
			int64_t k = lanes_at(i, n->cols);
			vf d = first_lanes(v_load_n(in, i, type, k) - mean, k);

			squares += d * d;
		}
		rstd = 1.0f / sqrtf(v_hsum(squares) / (float)n->cols + n->eps);
		for (int64_t i = 0; i < n->cols; i += VW) {
			int64_t k = lanes_at(i, n->cols);
			vf h = (v_load_n(in, i, type, k) - mean) * rstd;

			v_store_n(out, i, type, h * v_load_n(w, i, type, k) + v_load_n(b, i, type, k), k);
		}
		if (statistics) {
			statistics[t] = rstd;
			statistics[n->rows + t] = mean;
		}
	}
}

void KERNEL(layernorm_forward)(struct device *dev, const struct device_norm *n, void *y, float *statistics,
                               const void *x, const void *w, const void *b)
{
#pragma omp parallel num_threads(dev->threads) if (n->rows * n->cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(n->rows, 1, &lo, &hi);
		WITH_TYPE(n->type, forward_rows(n, y, statistics, x, w, b, lo, hi, TYPE));
	}
}

/* With h = (x - mean) · rstd and g = d_y · w: d_x = rstd · (g - mean(g) - h · mean(g · h)), d_w += d_y · h.
 * As in RMSNorm's, each block of tokens has a row of partial sums for d_w. */
VINLINE void backward_rows(const struct device_norm *n, void *d_x, bool accumulate, float *dw,
                           const void *d_y, const void *x, const float *statistics, const void *w, int64_t lo,
                           int64_t hi, enum dtype type)
{
	for (int64_t t = lo; t < hi; t++) {
		const void *in = at_const(x, t * n->ld_x, type), *dy = at_const(d_y, t * n->ld_y, type);
		void *dx = at(d_x, t * n->ld_x, type);
		float rstd = statistics[t], mean = statistics[n->rows + t], mean_g, mean_gh;
		vf sum = {}, dot = {};

		for (int64_t i = 0; i < n->cols; i += VW) {
			int64_t k = lanes_at(i, n->cols);
			vf d = v_load_n(dy, i, type, k), g = d * v_load_n(w, i, type, k);
			vf h = (v_load_n(in, i, type, k) - mean) * rstd;

			sum += g;
			dot += g * h;
			/* dw is padded, so that a whole vector can be stored. */
			v_store(dw, i, DTYPE_F32, v_load(dw, i, DTYPE_F32) + d * h);
		}
		mean_g = v_hsum(sum) / (float)n->cols;
		mean_gh = v_hsum(dot) / (float)n->cols;
		for (int64_t i = 0; i < n->cols; i += VW) {
			int64_t k = lanes_at(i, n->cols);
			vf g = v_load_n(dy, i, type, k) * v_load_n(w, i, type, k);
			vf h = (v_load_n(in, i, type, k) - mean) * rstd;
			vf v = (g - mean_g - h * mean_gh) * rstd;

			v_store_n(dx, i, type, accumulate ? v + v_load_n(dx, i, type, k) : v, k);
		}
	}
}

void KERNEL(layernorm_backward)(struct device *dev, const struct device_norm *n, void *d_x, bool accumulate,
                                float *d_w, const void *d_y, const void *x, const float *statistics,
                                const void *w)
{
	int64_t grain = (n->rows + COLUMN_PARTS - 1) / COLUMN_PARTS, padded = (n->cols + 15) / 16 * 16;
	int64_t parts = n->rows ? (n->rows + grain - 1) / grain : 0;
	float *sums =
	    device_scratch(dev, (size_t)(COLUMN_PARTS * padded) * sizeof(float), "layernorm_backward");

	if (!sums)
		return;
#pragma omp parallel for schedule(static) num_threads(dev->threads) if (n->rows * n->cols > PARALLEL_MIN)
	for (int64_t p = 0; p < parts; p++) {
		int64_t lo = p * grain, hi = lo + grain < n->rows ? lo + grain : n->rows;
		float *dw = sums + p * padded;

		memset(dw, 0, (size_t)padded * sizeof(float));
		WITH_TYPE(n->type,
		          backward_rows(n, d_x, accumulate, dw, d_y, x, statistics, w, lo, hi, TYPE));
	}
	for (int64_t i = 0; i < n->cols; i += VW) {
		int64_t k = lanes_at(i, n->cols);
		vf s = {};

		for (int64_t p = 0; p < parts; p++)
			s += v_load(sums, p * padded + i, DTYPE_F32);
		v_store_n(d_w, i, DTYPE_F32, v_load_n(d_w, i, DTYPE_F32, k) + s, k);
	}
}
