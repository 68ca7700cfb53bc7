/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy of logits with a soft cap: the logits are capped each time that a row is read. */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"

/* exp(cap · (h - max)), for h = tanh(x / cap). */
VINLINE vf capped_exp(vf h, float cap, float max)
{
	return v_exp((h - max) * cap);
}

VINLINE void capped_row(void *x, float cap, int32_t target, int64_t n, float scale, float *loss,
                        bool backward, enum dtype type)
{
	float inverse = 1.0f / cap, max, factor, at_target;
	vf most = v_set(-1);
	double sum = 0, h_target;

	if (target < 0 || target >= n) {
		*loss = 0;
		if (backward)
			memset(x, 0, (size_t)n * dtype_size(type));
		return;
	}
	for (int64_t i = 0; i < n; i += VW) {
		int64_t k = n - i < VW ? n - i : VW;
		vf h = v_tanh(v_load_n(x, i, type, k) * inverse);

		most = v_select(v_lanes() < (int32_t)k, v_max(h, most), most);
	}
	max = v_hmax(most);
	for (int64_t p = 0; p < n; p += 1024) {
		int64_t end = p + 1024 < n ? p + 1024 : n;
		vf a = {};

		for (int64_t i = p; i < end; i += VW) {
			int64_t k = end - i < VW ? end - i : VW;
			vf e = capped_exp(v_tanh(v_load_n(x, i, type, k) * inverse), cap, max);

			a += v_select(v_lanes() < (int32_t)k, e, v_set(0.0f));
		}
		sum += v_hsum(a);
	}
	/* The same function as for the sum, so that a target that is the maximum is exactly that. */
	at_target = v_tanh(v_set(s_load(x, target, type) * inverse))[0];
	*loss = (float)(log(sum) - (double)(at_target - max) * cap);
	if (!backward)
		return;
	factor = (float)(scale / sum);
	h_target = tanh((double)s_load(x, target, type) / cap); /* before it is overwritten */
	for (int64_t i = 0; i < n; i += VW) {
		int64_t k = n - i < VW ? n - i : VW;
		vf h = v_tanh(v_load_n(x, i, type, k) * inverse);

		v_store_n(x, i, type, capped_exp(h, cap, max) * factor * (1.0f - h * h), k);
	}
	s_store(x, target, type,
	        (float)((exp((double)(at_target - max) * cap) / sum - 1.0) * scale *
	                (1.0 - h_target * h_target)));
}

void KERNEL(capped_cross_entropy)(struct device *dev, float cap, void *logits, enum dtype type,
                                  const int32_t *targets, int64_t rows, int64_t vocab, float scale,
                                  const float *row_scale, float *loss, bool backward)
{
#pragma omp parallel for schedule(static) num_threads(dev->threads) if (rows * vocab > PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		WITH_TYPE(type,
		          capped_row(at(logits, r * vocab, TYPE), cap, targets[r], vocab,
		                     row_scale ? scale * row_scale[r] : scale, &loss[r], backward, TYPE));
	}
}
