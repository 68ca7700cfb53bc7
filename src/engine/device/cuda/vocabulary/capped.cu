// SPDX-License-Identifier: Apache-2.0
/*
 * Cross-entropy of logits with a soft cap, with one block for each row. The row is read twice, or three times
 * with the gradient; what remains of it in the L2 cache is not read from memory again.
 */
#include "engine/device/cuda/kernel.cuh"

#define THREADS 512

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    capped_kernel(float cap, T *logits, const int32_t *targets, int64_t vocab, float scale,
                  const float *row_scale, float *loss, bool backward)
{
	T *x = logits + blockIdx.x * vocab;
	int target = targets[blockIdx.x];
	float max = -INFINITY, sum = 0, at_target, factor;

	if (target < 0 || target >= vocab) {
		for (int64_t i = threadIdx.x; backward && i < vocab; i += THREADS)
			x[i] = from_float<T>(0.0f);
		if (threadIdx.x == 0)
			loss[blockIdx.x] = 0;
		return;
	}
	at_target = tanhf(to_float(x[target]) / cap);
	for (int64_t i = threadIdx.x; i < vocab; i += THREADS)
		max = fmaxf(max, to_float(x[i]));
	max = tanhf(block_max(max) / cap);
	for (int64_t i = threadIdx.x; i < vocab; i += THREADS)
		sum += expf((tanhf(to_float(x[i]) / cap) - max) * cap);
	sum = block_sum(sum); /* its barrier also ensures that no thread still reads x[target] */
	if (row_scale)
		scale *= row_scale[blockIdx.x];
	factor = scale / sum;
	for (int64_t i = threadIdx.x; backward && i < vocab; i += THREADS) {
		float h = tanhf(to_float(x[i]) / cap), p = expf((h - max) * cap) * factor;

		x[i] = from_float<T>((i == target ? p - scale : p) * (1.0f - h * h));
	}
	if (threadIdx.x == 0)
		loss[blockIdx.x] = logf(sum) - (at_target - max) * cap;
}

extern "C" void device_capped_cross_entropy(struct device *dev, float cap, void *logits, enum dtype type,
                                            const int32_t *targets, int64_t rows, int64_t vocab, float scale,
                                            const float *row_scale, float *loss, bool backward)
{
	if (rows <= 0 || vocab <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, capped_kernel<T>, (unsigned)rows, THREADS, 0, cap, (T *)logits, targets, vocab,
		       scale, row_scale, loss, backward);
	});
}
