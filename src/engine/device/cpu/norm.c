/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm, its fused residual addition, and rotary position embedding. */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"

/* One row of RMSNorm. With a residual, x is added to it first; the sum is stored in `type`, and the norm is
 * that of the stored, rounded values. Returns rstd. */
VINLINE float norm_row(void *y, void *residual, const void *x, const void *w, float offset, int64_t cols,
                       float eps, enum dtype type)
{
	const void *in = residual ? residual : x;
	vf a = {}, b = {};
	int64_t i = 0;
	float rstd;

	for (; i + 2 * VW <= cols; i += 2 * VW) {
		vf xa = v_load(x, i, type), xb = v_load(x, i + VW, type);

		if (residual) {
			xa = v_rounded(xa + v_load(residual, i, type), type);
			xb = v_rounded(xb + v_load(residual, i + VW, type), type);
			v_store(residual, i, type, xa);
			v_store(residual, i + VW, type, xb);
		}
		a += xa * xa;
		b += xb * xb;
	}
	for (; i < cols; i += VW) {
		int64_t n = cols - i < VW ? cols - i : VW;
		vf xa = v_load_n(x, i, type, n);

		if (residual) {
			xa = v_rounded(xa + v_load_n(residual, i, type, n), type);
			v_store_n(residual, i, type, xa, n);
		}
		a += xa * xa;
	}
	rstd = 1.0f / sqrtf(v_hsum(a + b) / (float)cols + eps);
	for (i = 0; i + VW <= cols; i += VW)
		v_store(y, i, type, v_load(in, i, type) * rstd * (v_load(w, i, type) + offset));
	if (i < cols)
		v_store_n(y, i, type,
		          v_load_n(in, i, type, cols - i) * rstd * (v_load_n(w, i, type, cols - i) + offset),
		          cols - i);
	return rstd;
}

VINLINE void norm_rows(const struct device_norm *n, void *y, float *rstd, void *residual, const void *x,
                       const void *w, int64_t lo, int64_t hi, enum dtype type)
{
	for (int64_t t = lo; t < hi; t++) {
		for (int g = 0; g < n->groups; g++) {
			int64_t offset = (int64_t)g * n->cols;
			const void *in = at_const(x, t * n->ld_x + offset, type);
			void *out = at(y, t * n->ld_y + offset, type);
			float r;

			if (residual)
				r = norm_row(out, at(residual, t * n->ld_x + offset, type), in, w,
				             n->w_offset, n->cols, n->eps, type);
			else
				r = norm_row(out, NULL, in, w, n->w_offset, n->cols, n->eps, type);
			if (rstd)
				rstd[t * n->groups + g] = r;
		}
	}
}

void KERNEL(rmsnorm_forward)(struct device *dev, const struct device_norm *n, void *y, float *rstd,
                             void *residual, const void *x, const void *w)
{
#pragma omp parallel num_threads(dev->threads) if (n->rows * n->groups * n->cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(n->rows, 1, &lo, &hi);
		WITH_TYPE(n->type, norm_rows(n, y, rstd, residual, x, w, lo, hi, TYPE));
	}
}

/*
 * With h = x·rstd: d_x = rstd·(d_y·w - h·mean(d_y·w·h)) and d_w += d_y·h. Each block of tokens has a row of
 * partial sums for d_w, and the rows are added up in order.
 */
VINLINE void norm_backward_row(void *d_x, bool accumulate, float *dw, const void *d_y, const void *x,
                               const void *w, float offset, float rstd, int64_t cols, enum dtype type)
{
	vf a = {}, b = {};
	int64_t i = 0;
	float mean;

	for (; i + 2 * VW <= cols; i += 2 * VW) {
		vf ha = v_load(d_y, i, type) * v_load(x, i, type);
		vf hb = v_load(d_y, i + VW, type) * v_load(x, i + VW, type);

		a += ha * (v_load(w, i, type) + offset);
		b += hb * (v_load(w, i + VW, type) + offset);
		v_store(dw, i, DTYPE_F32, v_load(dw, i, DTYPE_F32) + ha * rstd);
		v_store(dw, i + VW, DTYPE_F32, v_load(dw, i + VW, DTYPE_F32) + hb * rstd);
	}
	for (; i < cols; i += VW) {
		int64_t n = cols - i < VW ? cols - i : VW;
		vf h = v_load_n(d_y, i, type, n) * v_load_n(x, i, type, n);

		a += h * (v_load_n(w, i, type, n) + offset);
		/* dw is padded, so that a whole vector can be stored. */
		v_store(dw, i, DTYPE_F32, v_load(dw, i, DTYPE_F32) + h * rstd);
	}
	mean = v_hsum(a + b) * rstd * rstd * rstd / (float)cols;
	for (i = 0; i + VW <= cols; i += VW) {
		vf v =
		    v_load(d_y, i, type) * (v_load(w, i, type) + offset) * rstd - v_load(x, i, type) * mean;

		v_store(d_x, i, type, accumulate ? v + v_load(d_x, i, type) : v);
	}
	if (i < cols) {
		int64_t n = cols - i;
		vf v = v_load_n(d_y, i, type, n) * (v_load_n(w, i, type, n) + offset) * rstd -
		       v_load_n(x, i, type, n) * mean;

		v_store_n(d_x, i, type, accumulate ? v + v_load_n(d_x, i, type, n) : v, n);
	}
}

VINLINE void norm_backward_rows(const struct device_norm *n, void *d_x, bool accumulate, float *dw,
                                const void *d_y, const void *x, const float *rstd, const void *w, int64_t lo,
                                int64_t hi, enum dtype type)
{
	for (int64_t t = lo; t < hi; t++) {
		for (int g = 0; g < n->groups; g++) {
			int64_t offset = (int64_t)g * n->cols;
			void *dx = at(d_x, t * n->ld_x + offset, type);
			const void *dy = at_const(d_y, t * n->ld_y + offset, type);
			const void *in = at_const(x, t * n->ld_x + offset, type);

			norm_backward_row(dx, accumulate, dw, dy, in, w, n->w_offset, rstd[t * n->groups + g],
			                  n->cols, type);
		}
	}
}

void KERNEL(rmsnorm_backward)(struct device *dev, const struct device_norm *n, void *d_x, bool accumulate,
                              void *d_w, enum dtype grad_type, const void *d_y, const void *x,
                              const float *rstd, const void *w)
{
	int64_t grain = (n->rows + COLUMN_PARTS - 1) / COLUMN_PARTS, padded = (n->cols + 15) / 16 * 16;
	int64_t parts = n->rows ? (n->rows + grain - 1) / grain : 0;
	float *sums =
	    device_scratch(dev, (size_t)(COLUMN_PARTS * padded) * sizeof(float), "rmsnorm_backward");

	if (!sums)
		return;
#pragma omp parallel for schedule(static)                                                                    \
    num_threads(dev->threads) if (n->rows * n->groups * n->cols > PARALLEL_MIN)
	for (int64_t p = 0; p < parts; p++) {
		int64_t lo = p * grain, hi = lo + grain < n->rows ? lo + grain : n->rows;
		float *dw = sums + p * padded;

		memset(dw, 0, (size_t)padded * sizeof(float));
		if (n->type == DTYPE_F32 && accumulate)
			norm_backward_rows(n, d_x, true, dw, d_y, x, rstd, w, lo, hi, DTYPE_F32);
		else if (n->type == DTYPE_F32)
			norm_backward_rows(n, d_x, false, dw, d_y, x, rstd, w, lo, hi, DTYPE_F32);
		else if (n->type == DTYPE_BF16)
			norm_backward_rows(n, d_x, accumulate, dw, d_y, x, rstd, w, lo, hi, DTYPE_BF16);
		else
			norm_backward_rows(n, d_x, accumulate, dw, d_y, x, rstd, w, lo, hi, DTYPE_F16);
	}
	for (int64_t i = 0; i < n->cols; i += VW) {
		int64_t left = n->cols - i < VW ? n->cols - i : VW;
		vf s = {};

		for (int64_t p = 0; p < parts; p++)
			s += v_load(sums, p * padded + i, DTYPE_F32);
		if (left == VW)
			v_store(d_w, i, grad_type, v_load(d_w, i, grad_type) + s);
		else
			v_store_n(d_w, i, grad_type, v_load_n(d_w, i, grad_type, left) + s, left);
	}
}

/* ---- rotary position embedding ---- */
/* Rotates each pair (a, b) to (a·cos - b·sin, b·cos + a·sin); b is half a head after a. */
VINLINE void rope_halves(const struct device_rope *r, void *head, const float *c, const float *s,
                         bool inverse, enum dtype type)
{
	int64_t half = r->rotary_dim / 2, i = 0;
	void *pa = head, *pb = at(pa, half, type);

	for (; i + VW <= half; i += VW) {
		vf a = v_load(pa, i, type), b = v_load(pb, i, type);
		vf cs = v_load(c, i, DTYPE_F32), sn = v_load(s, i, DTYPE_F32);

		if (inverse)
			sn = -sn;
		v_store(pa, i, type, a * cs - b * sn);
		v_store(pb, i, type, b * cs + a * sn);
	}
	if (i < half) {
		int64_t n = half - i;
		vf a = v_load_n(pa, i, type, n), b = v_load_n(pb, i, type, n);
		vf cs = v_load_n(c, i, DTYPE_F32, n), sn = v_load_n(s, i, DTYPE_F32, n);

		if (inverse)
			sn = -sn;
		v_store_n(pa, i, type, a * cs - b * sn, n);
		v_store_n(pb, i, type, b * cs + a * sn, n);
	}
}

/* The same where b is the element after a. */
VINLINE void rope_pairs(const struct device_rope *r, void *head, const float *c, const float *s, bool inverse,
                        enum dtype type)
{
	for (int64_t i = 0; i < r->rotary_dim / 2; i++) {
		float a = s_load(head, 2 * i, type), b = s_load(head, 2 * i + 1, type),
		      sn = inverse ? -s[i] : s[i];

		s_store(head, 2 * i, type, a * c[i] - b * sn);
		s_store(head, 2 * i + 1, type, b * c[i] + a * sn);
	}
}

VINLINE void rope_rows(const struct device_rope *r, void *x, int64_t lo, int64_t hi, bool inverse,
                       enum dtype type)
{
	int64_t half = r->rotary_dim / 2;

	for (int64_t t = lo; t < hi; t++) {
		const float *c = r->cos + r->positions[t] * half, *s = r->sin + r->positions[t] * half;

		for (int h = 0; h < r->heads; h++) {
			void *head = at(x, t * r->ld + (int64_t)h * r->head_dim, type);

			if (r->interleaved)
				rope_pairs(r, head, c, s, inverse, type);
			else
				rope_halves(r, head, c, s, inverse, type);
		}
	}
}

void KERNEL(rope)(struct device *dev, const struct device_rope *r, void *x, bool inverse)
{
#pragma omp parallel num_threads(dev->threads) if (r->tokens * r->heads * r->head_dim > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(r->tokens, 1, &lo, &hi);
		WITH_TYPE(r->type, rope_rows(r, x, lo, hi, inverse, TYPE));
	}
}
