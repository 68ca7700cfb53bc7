/* SPDX-License-Identifier: Apache-2.0 */
/* The first and the last layer of a model: embedding, cross-entropy and argmax. */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"

void KERNEL(embedding_forward)(struct device *dev, void *out, const int32_t *ids, const void *table,
                               int64_t tokens, int hidden, enum dtype type)
{
	size_t row = (size_t)hidden * dtype_size(type);

#pragma omp parallel for schedule(static) num_threads(dev->threads) if (tokens * hidden > PARALLEL_MIN)
	for (int64_t t = 0; t < tokens; t++)
		memcpy((char *)out + (size_t)t * row, (const char *)table + (size_t)ids[t] * row, row);
}

VINLINE void add_row(void *dst, enum dtype dst_type, const void *src, enum dtype type, int64_t n)
{
	int64_t i = 0;

	for (; i + VW <= n; i += VW)
		v_store(dst, i, dst_type, v_load(dst, i, dst_type) + v_load(src, i, type));
	if (i < n)
		v_store_n(dst, i, dst_type, v_load_n(dst, i, dst_type, n - i) + v_load_n(src, i, type, n - i),
		          n - i);
}

/* Each row of the table belongs to one thread, which adds its tokens in order. A hash distributes the rows,
 * since frequent ids have neighbouring rows. */
void KERNEL(embedding_backward)(struct device *dev, void *d_table, enum dtype grad_type, const void *d_out,
                                const int32_t *ids, int64_t tokens, int hidden, enum dtype type)
{
#pragma omp parallel num_threads(dev->threads) if (tokens * hidden > PARALLEL_MIN)
	{
		uint32_t threads = (uint32_t)omp_get_num_threads(), me = (uint32_t)omp_get_thread_num();

		for (int64_t t = 0; t < tokens; t++) {
			uint32_t hash = (uint32_t)ids[t] * 2654435761u;
			void *row = at(d_table, (int64_t)ids[t] * hidden, grad_type);
			const void *src = at_const(d_out, t * hidden, type);

			if ((uint32_t)((uint64_t)hash * threads >> 32) != me)
				continue;
			if (grad_type == DTYPE_F32)
				WITH_TYPE(type, add_row(row, DTYPE_F32, src, TYPE, hidden));
			else
				add_row(row, grad_type, src, type, hidden);
		}
	}
}

/* ---- cross-entropy ---- */
/* Each thread makes all passes over a row before the next row, so that the row stays in its cache. */
VINLINE float row_max(const void *x, int64_t n, enum dtype type)
{
	vf a = v_set(-INFINITY), b = a;
	int64_t i = 0;
	float m;

	for (; i + 2 * VW <= n; i += 2 * VW) {
		a = v_max(a, v_load(x, i, type));
		b = v_max(b, v_load(x, i + VW, type));
	}
	m = v_hmax(v_max(a, b));
	for (; i < n; i++)
		m = s_load(x, i, type) > m ? s_load(x, i, type) : m;
	return m;
}

/* exp(x - max). Multiplying by log2 e rounds the argument; the error grows with the argument, so it is small
 * where the result is large. */
VINLINE vf exp_below(vf x, float max, bool coarse)
{
	return v_exp2((x - max) * LOG2_E, coarse);
}

/* The sum of exp(x - max): within 1024 columns in fp32 lanes, which are then added up in float64. */
VINLINE double row_exp_sum(const void *x, int64_t n, float max, enum dtype type)
{
	double sum = 0;

	for (int64_t p = 0; p < n; p += 1024) {
		int64_t end = p + 1024 < n ? p + 1024 : n, i = p;
		vf a = {}, b = {};

		for (; i + 2 * VW <= end; i += 2 * VW) {
			a += exp_below(v_load(x, i, type), max, false);
			b += exp_below(v_load(x, i + VW, type), max, false);
		}
		for (; i + VW <= end; i += VW)
			a += exp_below(v_load(x, i, type), max, false);
		if (i < end) {
			vf e = exp_below(v_load_n(x, i, type, end - i), max, false);

			a += v_select(v_lanes() < (int32_t)(end - i), e, v_set(0.0f));
		}
		sum += v_hsum(a + b);
	}
	return sum;
}

VINLINE void cross_entropy_row(void *x, int32_t target, int64_t n, float scale, float *loss, bool backward,
                               enum dtype type)
{
	float max, at_target, factor;
	int64_t i = 0;
	double sum;

	if (target < 0 || target >= n) {
		*loss = 0;
		if (backward)
			memset(x, 0, (size_t)n * dtype_size(type));
		return;
	}
	max = row_max(x, n, type);
	at_target = s_load(x, target, type);
	if (!backward) {
		sum = row_exp_sum(x, n, max, type);
		*loss = (float)(log(sum) - ((double)at_target - max));
		return;
	}
	if (type == DTYPE_F32) {
		/* The exponentials overwrite the logits. */
		sum = 0;
		for (int64_t p = 0; p < n; p += 1024) {
			int64_t end = p + 1024 < n ? p + 1024 : n;
			vf a = {}, b = {};

			for (i = p; i + 2 * VW <= end; i += 2 * VW) {
				vf ea = exp_below(v_load(x, i, type), max, false);
				vf eb = exp_below(v_load(x, i + VW, type), max, false);

				v_store(x, i, type, ea);
				v_store(x, i + VW, type, eb);
				a += ea;
				b += eb;
			}
			for (; i < end; i += VW) {
				int64_t left = end - i < VW ? end - i : VW;
				vf e = exp_below(v_load_n(x, i, type, left), max, false);

				a += v_select(v_lanes() < (int32_t)left, e, v_set(0.0f));
				v_store_n(x, i, type, e, left);
			}
			sum += v_hsum(a + b);
		}
		factor = (float)(scale / sum);
		for (i = 0; i + VW <= n; i += VW)
			v_store(x, i, type, v_load(x, i, type) * factor);
		if (i < n)
			v_store_n(x, i, type, v_load_n(x, i, type, n - i) * factor, n - i);
	} else {
		/* Exponentials that were stored in 16 bits would not sum to one, so they are computed
		 * twice. */
		sum = row_exp_sum(x, n, max, type);
		factor = (float)(scale / sum);
		for (i = 0; i + VW <= n; i += VW)
			v_store(x, i, type, exp_below(v_load(x, i, type), max, true) * factor);
		if (i < n)
			v_store_n(x, i, type, exp_below(v_load_n(x, i, type, n - i), max, true) * factor,
			          n - i);
	}
	*loss = (float)(log(sum) - ((double)at_target - max));
	s_store(x, target, type, (float)((exp((double)at_target - max) / sum - 1.0) * scale));
}

void KERNEL(cross_entropy)(struct device *dev, void *logits, enum dtype type, const int32_t *targets,
                           int64_t rows, int64_t vocab, float scale, const float *row_scale, float *loss,
                           bool backward)
{
#pragma omp parallel for schedule(static) num_threads(dev->threads) if (rows * vocab > PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		WITH_TYPE(type, cross_entropy_row(at(logits, r * vocab, TYPE), targets[r], vocab,
		                                  row_scale ? scale * row_scale[r] : scale, &loss[r],
		                                  backward, TYPE));
	}
}

void KERNEL(argmax)(struct device *dev, int32_t *id, const void *logits, enum dtype type, int64_t rows,
                    int64_t vocab)
{
#pragma omp parallel for schedule(static) num_threads(dev->threads) if (rows * vocab > PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		const void *x = at_const(logits, r * vocab, type);
		int64_t i = 0;
		float max;

		WITH_TYPE(type, max = row_max(x, vocab, TYPE));
		while (i < vocab - 1 && s_load(x, i, type) != max)
			i++;
		/* No element equals the maximum where the row has NaNs; the result is 0 then. */
		id[r] = (int32_t)(i < vocab - 1 || s_load(x, i, type) == max ? i : 0);
	}
}
