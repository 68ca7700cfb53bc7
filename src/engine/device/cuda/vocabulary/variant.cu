// SPDX-License-Identifier: Apache-2.0
/*
 * Cross-entropy of logits with a soft cap, with label smoothing, or times the target's probability, with one
 * block for each row. The row is read twice, or three times with the gradient; what remains of it in the L2
 * cache is not read from memory again.
 */
#include "engine/device/cuda/kernel.cuh"

#define THREADS 512

/* A row's logits are unit · h: h is the logit itself, or with a cap tanh(x / cap). */
template <bool CAPPED> static __device__ __forceinline__ float height(float x, float unit)
{
	return CAPPED ? tanhf(x / unit) : x;
}

template <typename T, bool CAPPED>
static __global__ void __launch_bounds__(THREADS)
    variant_kernel(struct device_loss d, T *logits, const int32_t *targets, int64_t vocab, float scale,
                   const float *row_scale, float *loss, bool backward)
{
	T *x = logits + blockIdx.x * vocab;
	int target = targets[blockIdx.x];
	float max = -INFINITY, sum = 0, distances = 0, unit = CAPPED ? d.cap : 1, below, weight, factor, even;

	if (target < 0 || target >= vocab) {
		for (int64_t i = threadIdx.x; backward && i < vocab; i += THREADS)
			x[i] = from_float<T>(0.0f);
		if (threadIdx.x == 0)
			loss[blockIdx.x] = 0;
		return;
	}
	below = height<CAPPED>(to_float(x[target]), unit);
	for (int64_t i = threadIdx.x; i < vocab; i += THREADS)
		max = fmaxf(max, to_float(x[i]));
	max = height<CAPPED>(block_max(max), unit);
	for (int64_t i = threadIdx.x; i < vocab; i += THREADS) {
		float h = height<CAPPED>(to_float(x[i]), unit);

		sum += expf((h - max) * unit);
		distances += max - h;
	}
	sum = block_sum(sum); /* its barrier also ensures that no thread still reads x[target] */
	distances = block_sum(distances);
	below = (below - max) * unit;
	weight = d.by_probability ? expf(below) / sum : 1;
	if (threadIdx.x == 0)
		loss[blockIdx.x] = weight * (logf(sum) - (1 - d.smoothing) * below +
		                             d.smoothing * unit * distances / (float)vocab);
	weight *= row_scale ? scale * row_scale[blockIdx.x] : scale;
	factor = weight / sum;
	even = weight * d.smoothing / (float)vocab;
	for (int64_t i = threadIdx.x; backward && i < vocab; i += THREADS) {
		float h = height<CAPPED>(to_float(x[i]), unit), g = expf((h - max) * unit) * factor - even;

		if (i == target)
			g -= weight * (1 - d.smoothing);
		x[i] = from_float<T>(CAPPED ? g * (1.0f - h * h) : g);
	}
}

extern "C" void device_variant_cross_entropy(struct device *dev, const struct device_loss *d, void *logits,
                                             enum dtype type, const int32_t *targets, int64_t rows,
                                             int64_t vocab, float scale, const float *row_scale, float *loss,
                                             bool backward)
{
	if (rows <= 0 || vocab <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		with_flag(d->cap > 0, [&](auto c) {
			LAUNCH(dev, (variant_kernel<T, decltype(c)::value>), (unsigned)rows, THREADS, 0, *d,
			       (T *)logits, targets, vocab, scale, row_scale, loss, backward);
		});
	});
}
