/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy of logits with a soft cap, which they get each time that a row is read, with label smoothing,
 * or times the target's probability. */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"

/* A row's logits are unit · h: h is the logit itself and unit 1, or with a cap h = tanh(x / cap) and unit the
 * cap. */
VINLINE vf heights(const void *x, int64_t i, enum dtype type, int64_t n, bool capped, float inverse)
{
	vf v = v_load_n(x, i, type, n);

	return capped ? v_tanh(v * inverse) : v;
}

/* Of all lanes below n. */
VINLINE vf only(vf v, int64_t n, float other)
{
	return v_select(v_lanes() < (int32_t)n, v, v_set(other));
}

struct row_sums {
	float max;             /* of all h */
	double sum, distances; /* of exp(unit · (h - max)), and of max - h */
};

VINLINE struct row_sums sum_row(const void *x, enum dtype type, int64_t n, bool capped, float unit,
                                float inverse)
{
	struct row_sums s = {0};
	vf most = v_set(-INFINITY);

	for (int64_t i = 0; i < n; i += VW) {
		int64_t k = n - i < VW ? n - i : VW;

		most = v_max(only(heights(x, i, type, k, capped, inverse), k, -INFINITY), most);
	}
	s.max = v_hmax(most);
	for (int64_t p = 0; p < n; p += 1024) {
		int64_t end = p + 1024 < n ? p + 1024 : n;
		vf exps = {}, distances = {};

		for (int64_t i = p; i < end; i += VW) {
			int64_t k = end - i < VW ? end - i : VW;
			vf below = heights(x, i, type, k, capped, inverse) - s.max;

			exps += only(v_exp(below * unit), k, 0);
			distances -= only(below, k, 0);
		}
		s.sum += v_hsum(exps);
		s.distances += v_hsum(distances);
	}
	return s;
}

VINLINE void variant_row(const struct device_loss *d, void *x, int32_t target, int64_t n, float scale,
                         float *loss, bool backward, bool capped, enum dtype type)
{
	float unit = capped ? d->cap : 1, inverse = 1 / unit, factor, even;
	double smoothing = d->smoothing, below, probability, weight, slope = 1;
	struct row_sums s;

	if (target < 0 || target >= n) {
		*loss = 0;
		if (backward)
			memset(x, 0, (size_t)n * dtype_size(type));
		return;
	}
	s = sum_row(x, type, n, capped, unit, inverse);
	/* The same function as for the sums, so that a target that is the maximum is exactly that. */
	below = (double)(heights(x, target, type, 1, capped, inverse)[0] - s.max) * unit;
	probability = exp(below) / s.sum;
	weight = d->by_probability ? probability : 1;
	*loss = (float)(weight *
	                (log(s.sum) - (1 - smoothing) * below + smoothing * unit * s.distances / (double)n));
	if (!backward)
		return;
	weight *= scale;
	factor = (float)(weight / s.sum);
	even = (float)(weight * smoothing / (double)n);
	if (capped) /* before it is overwritten */
		slope = 1 - pow(tanh((double)s_load(x, target, type) / d->cap), 2);
	for (int64_t i = 0; i < n; i += VW) {
		int64_t k = n - i < VW ? n - i : VW;
		vf h = heights(x, i, type, k, capped, inverse);
		vf g = v_exp((h - s.max) * unit) * factor - even;

		v_store_n(x, i, type, capped ? g * (1.0f - h * h) : g, k);
	}
	s_store(x, target, type,
	        (float)(weight * (probability - (1 - smoothing) - smoothing / (double)n) * slope));
}

void KERNEL(variant_cross_entropy)(struct device *dev, const struct device_loss *d, void *logits,
                                   enum dtype type, const int32_t *targets, int64_t rows, int64_t vocab,
                                   float scale, const float *row_scale, float *loss, bool backward)
{
#pragma omp parallel for schedule(static) num_threads(dev->threads) if (rows * vocab > PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		float of_row = row_scale ? scale * row_scale[r] : scale;

		if (d->cap > 0)
			WITH_TYPE(type, variant_row(d, at(logits, r * vocab, TYPE), targets[r], vocab, of_row,
			                            &loss[r], backward, true, TYPE));
		else
			WITH_TYPE(type, variant_row(d, at(logits, r * vocab, TYPE), targets[r], vocab, of_row,
			                            &loss[r], backward, false, TYPE));
	}
}
