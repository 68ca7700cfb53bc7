/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions, scaling, sums, biases and SwiGLU: the kernels whose speed is that of memory. */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"

VINLINE void cast_part(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t lo,
                       int64_t hi)
{
	int64_t i = lo;

	for (; i + VW <= hi; i += VW)
		v_store(dst, i, dst_type, v_load(src, i, src_type));
	if (i < hi)
		v_store_n(dst, i, dst_type, v_load_n(src, i, src_type, hi - i), hi - i);
}

void KERNEL(cast)(struct device *dev, void *dst, enum dtype dst_type, const void *src, enum dtype src_type,
                  int64_t n)
{
#pragma omp parallel num_threads(dev->threads) if (n > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(n, CACHE_LINE, &lo, &hi);
		if (dst_type == src_type)
			memcpy(at(dst, lo, dst_type), at_const(src, lo, dst_type),
			       (size_t)(hi - lo) * dtype_size(dst_type));
		else if (dst_type == DTYPE_F32)
			WITH_TYPE(src_type, cast_part(dst, DTYPE_F32, src, TYPE, lo, hi));
		else if (src_type == DTYPE_F32)
			WITH_TYPE(dst_type, cast_part(dst, TYPE, src, DTYPE_F32, lo, hi));
		else
			cast_part(dst, dst_type, src, src_type, lo, hi);
	}
}

/* Each row of a matrix, whose rows begin dst_ld and src_ld elements apart; one of the types is DTYPE_F32, and
 * the other one is not. */
void KERNEL(cast_rows)(struct device *dev, void *dst, enum dtype dst_type, int64_t dst_ld, const void *src,
                       enum dtype src_type, int64_t src_ld, int64_t rows, int64_t cols)
{
#pragma omp parallel for schedule(static) num_threads(dev->threads) if (rows * cols > PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		void *to = at(dst, r * dst_ld, dst_type);
		const void *from = at_const(src, r * src_ld, src_type);

		if (dst_type == DTYPE_F32)
			WITH_TYPE(src_type, cast_part(to, DTYPE_F32, from, TYPE, 0, cols));
		else
			WITH_TYPE(dst_type, cast_part(to, TYPE, from, DTYPE_F32, 0, cols));
	}
}

VINLINE void scale_part(void *x, enum dtype type, float factor, int64_t lo, int64_t hi)
{
	int64_t i = lo;

	for (; i + VW <= hi; i += VW)
		v_store(x, i, type, v_load(x, i, type) * factor);
	if (i < hi)
		v_store_n(x, i, type, v_load_n(x, i, type, hi - i) * factor, hi - i);
}

void KERNEL(scale)(struct device *dev, void *x, enum dtype type, float factor, int64_t n)
{
#pragma omp parallel num_threads(dev->threads) if (n > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(n, CACHE_LINE, &lo, &hi);
		WITH_TYPE(type, scale_part(x, TYPE, factor, lo, hi));
	}
}

VINLINE void add_part(void *dst, const void *src, enum dtype type, int64_t lo, int64_t hi)
{
	int64_t i = lo;

	for (; i + VW <= hi; i += VW)
		v_store(dst, i, type, v_load(dst, i, type) + v_load(src, i, type));
	if (i < hi)
		v_store_n(dst, i, type, v_load_n(dst, i, type, hi - i) + v_load_n(src, i, type, hi - i),
		          hi - i);
}

void KERNEL(add)(struct device *dev, void *dst, const void *src, enum dtype type, int64_t n)
{
#pragma omp parallel num_threads(dev->threads) if (n > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(n, CACHE_LINE, &lo, &hi);
		WITH_TYPE(type, add_part(dst, src, TYPE, lo, hi));
	}
}

/* ---- sums ---- */
/* Within a piece of this many elements, the lanes of a vector are summed in fp32; the pieces are added up in
 * float64. */
#define SUM_PIECE 4096

VINLINE double sum_part(const void *x, enum dtype type, bool squares, int64_t lo, int64_t hi)
{
	double sum = 0;

	for (int64_t p = lo; p < hi; p += SUM_PIECE) {
		int64_t end = p + SUM_PIECE < hi ? p + SUM_PIECE : hi, i = p;
		vf a = {}, b = {}, c = {}, d = {};

		for (; i + 4 * VW <= end; i += 4 * VW) {
			vf xa = v_load(x, i, type), xb = v_load(x, i + VW, type);
			vf xc = v_load(x, i + 2 * VW, type), xd = v_load(x, i + 3 * VW, type);

			a += squares ? xa * xa : xa;
			b += squares ? xb * xb : xb;
			c += squares ? xc * xc : xc;
			d += squares ? xd * xd : xd;
		}
		for (; i < end; i += VW) {
			vf xa = i + VW <= end ? v_load(x, i, type) : v_load_n(x, i, type, end - i);

			a += squares ? xa * xa : xa;
		}
		sum += v_hsum((a + b) + (c + d));
	}
	return sum;
}

/* Depends on n alone, so that the number of threads changes no sum. */
static int64_t sum_grain(int64_t n)
{
	int64_t grain = (n + REDUCE_PARTS - 1) / REDUCE_PARTS;

	return grain < 4 * SUM_PIECE ? 4 * SUM_PIECE : (grain + SUM_PIECE - 1) / SUM_PIECE * SUM_PIECE;
}

void KERNEL(sum_squares)(struct device *dev, const void *x, enum dtype type, int64_t n, double *sum)
{
	int64_t grain = sum_grain(n), parts = (n + grain - 1) / grain;

#pragma omp parallel for schedule(static) num_threads(dev->threads) if (parts > 1)
	for (int64_t p = 0; p < parts; p++) {
		int64_t hi = (p + 1) * grain < n ? (p + 1) * grain : n;

		WITH_TYPE(type, dev->parts[p] = sum_part(x, TYPE, true, p * grain, hi));
	}
	for (int64_t p = 0; p < parts; p++)
		*sum += dev->parts[p];
}

void KERNEL(sum)(struct device *dev, const float *x, int64_t n, double *sum)
{
	int64_t grain = sum_grain(n), parts = (n + grain - 1) / grain;

#pragma omp parallel for schedule(static) num_threads(dev->threads) if (parts > 1)
	for (int64_t p = 0; p < parts; p++)
		dev->parts[p] =
		    sum_part(x, DTYPE_F32, false, p * grain, (p + 1) * grain < n ? (p + 1) * grain : n);
	for (int64_t p = 0; p < parts; p++)
		*sum += dev->parts[p];
}

/* ---- biases ---- */
VINLINE void bias_rows(void *x, const void *bias, int64_t lo, int64_t hi, int64_t cols, int64_t ld,
                       enum dtype type)
{
	for (int64_t r = lo; r < hi; r++) {
		void *row = at(x, r * ld, type);
		int64_t i = 0;

		for (; i + VW <= cols; i += VW)
			v_store(row, i, type, v_load(row, i, type) + v_load(bias, i, type));
		if (i < cols)
			v_store_n(row, i, type,
			          v_load_n(row, i, type, cols - i) + v_load_n(bias, i, type, cols - i),
			          cols - i);
	}
}

void KERNEL(bias_forward)(struct device *dev, void *x, const void *bias, int64_t rows, int64_t cols,
                          int64_t ld, enum dtype type)
{
#pragma omp parallel num_threads(dev->threads) if (rows * cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(rows, 1, &lo, &hi);
		WITH_TYPE(type, bias_rows(x, bias, lo, hi, cols, ld, TYPE));
	}
}

/* Sums the columns of one thread over all rows in order, four vectors of columns at a time. */
VINLINE void column_sums(void *out, enum dtype out_type, const void *y, int64_t rows, int64_t lo, int64_t hi,
                         int64_t ld, enum dtype type)
{
	for (int64_t c = lo; c < hi; c += 4 * VW) {
		vf s[4] = {};
		int64_t left = hi - c;

		if (left >= 4 * VW) {
			for (int64_t r = 0; r < rows; r++) {
				s[0] += v_load(y, r * ld + c, type);
				s[1] += v_load(y, r * ld + c + VW, type);
				s[2] += v_load(y, r * ld + c + 2 * VW, type);
				s[3] += v_load(y, r * ld + c + 3 * VW, type);
			}
		} else {
			for (int64_t r = 0; r < rows; r++)
				for (int64_t j = 0; j * VW < left; j++)
					s[j] += left >= (j + 1) * VW
					            ? v_load(y, r * ld + c + j * VW, type)
					            : v_load_n(y, r * ld + c + j * VW, type, left - j * VW);
		}
		for (int64_t j = 0; j < 4 && j * VW < left; j++) {
			int64_t i = c + j * VW, n = left - j * VW < VW ? left - j * VW : VW;

			if (n == VW)
				v_store(out, i, out_type, v_load(out, i, out_type) + s[j]);
			else
				v_store_n(out, i, out_type, v_load_n(out, i, out_type, n) + s[j], n);
		}
	}
}

void KERNEL(bias_backward)(struct device *dev, void *d_bias, enum dtype grad_type, const void *d_y,
                           int64_t rows, int64_t cols, int64_t ld, enum dtype type)
{
#pragma omp parallel num_threads(dev->threads) if (rows * cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(cols, 4 * VW, &lo, &hi);
		if (grad_type == DTYPE_F32)
			WITH_TYPE(type, column_sums(d_bias, DTYPE_F32, d_y, rows, lo, hi, ld, TYPE));
		else
			column_sums(d_bias, grad_type, d_y, rows, lo, hi, ld, type);
	}
}

/* ---- SwiGLU ---- */
VINLINE void swiglu_rows(void *y, const void *gate_up, int64_t lo, int64_t hi, int64_t cols, enum dtype type)
{
	for (int64_t t = lo; t < hi; t++) {
		const void *gate = at_const(gate_up, 2 * t * cols, type), *up = at_const(gate, cols, type);
		void *out = at(y, t * cols, type);
		int64_t i = 0;

		for (; i + VW <= cols; i += VW) {
			vf g = v_load(gate, i, type);

			v_store(out, i, type, g * v_sigmoid(g, type) * v_load(up, i, type));
		}
		if (i < cols) {
			vf g = v_load_n(gate, i, type, cols - i);

			v_store_n(out, i, type, g * v_sigmoid(g, type) * v_load_n(up, i, type, cols - i),
			          cols - i);
		}
	}
}

void KERNEL(swiglu_forward)(struct device *dev, void *y, const void *gate_up, int64_t tokens, int cols,
                            enum dtype type)
{
#pragma omp parallel num_threads(dev->threads) if (tokens * cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(tokens, 1, &lo, &hi);
		WITH_TYPE(type, swiglu_rows(y, gate_up, lo, hi, cols, TYPE));
	}
}

/* silu' = s·(1 + g·(1 - s)); d_gate = d_y·up·silu', d_up = d_y·silu. */
VINLINE void swiglu_backward_vector(vf g, vf u, vf dy, vf *dg, vf *du, vf *y, enum dtype type)
{
	vf s = v_sigmoid(g, type), silu = g * s;

	*du = dy * silu;
	*dg = dy * u * (s + silu * (1.0f - s));
	*y = silu * u;
}

VINLINE void swiglu_backward_rows(void *d_gate_up, void *y, const void *d_y, const void *gate_up, int64_t lo,
                                  int64_t hi, int64_t cols, enum dtype type)
{
	for (int64_t t = lo; t < hi; t++) {
		const void *gate = at_const(gate_up, 2 * t * cols, type), *up = at_const(gate, cols, type);
		void *d_gate = at(d_gate_up, 2 * t * cols, type), *d_up = at(d_gate, cols, type);
		const void *dy = at_const(d_y, t * cols, type);
		void *out = y ? at(y, t * cols, type) : NULL;
		vf dg, du, yy;
		int64_t i = 0;

		for (; i + VW <= cols; i += VW) {
			swiglu_backward_vector(v_load(gate, i, type), v_load(up, i, type),
			                       v_load(dy, i, type), &dg, &du, &yy, type);
			v_store(d_gate, i, type, dg);
			v_store(d_up, i, type, du);
			if (out)
				v_store(out, i, type, yy);
		}
		if (i < cols) {
			int64_t n = cols - i;

			swiglu_backward_vector(v_load_n(gate, i, type, n), v_load_n(up, i, type, n),
			                       v_load_n(dy, i, type, n), &dg, &du, &yy, type);
			v_store_n(d_gate, i, type, dg, n);
			v_store_n(d_up, i, type, du, n);
			if (out)
				v_store_n(out, i, type, yy, n);
		}
	}
}

void KERNEL(swiglu_backward)(struct device *dev, void *d_gate_up, void *y, const void *d_y,
                             const void *gate_up, int64_t tokens, int cols, enum dtype type)
{
#pragma omp parallel num_threads(dev->threads) if (tokens * cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(tokens, 1, &lo, &hi);
		WITH_TYPE(type, swiglu_backward_rows(d_gate_up, y, d_y, gate_up, lo, hi, cols, TYPE));
	}
}
