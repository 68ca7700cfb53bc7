// SPDX-License-Identifier: Apache-2.0
/*
 * Knowledge distillation: cross-entropy and the divergence from a teacher's distribution, with the gradient;
 * one block for each row. Both rows are read three times; what remains of them in the L2 cache is not read
 * from memory again.
 */
#include "engine/device/cuda/kernel.cuh"

#define THREADS 512

template <bool CAPPED> static __device__ __forceinline__ float soft_cap(float x, float cap)
{
	return CAPPED && cap > 0 ? cap * tanhf(x / cap) : x;
}

/* CAPPED: at least one of the models has a cap. */
template <typename T, bool CAPPED>
static __global__ void __launch_bounds__(THREADS)
    distillation_kernel(struct device_distillation d, T *logits, const int32_t *targets, int64_t vocab,
                        float scale, float *loss)
{
	T *x = logits + blockIdx.x * vocab;
	const T *t = (const T *)d.teacher + blockIdx.x * d.teacher_vocab;
	int target = targets[blockIdx.x];
	/* All but max and sum are over the ids below teacher_vocab, which both models have. */
	float max = -INFINITY, shared_max = -INFINITY, teacher_max = -INFINITY;
	float sum = 0, student_sum = 0, teacher_sum = 0, difference = 0;
	float inverse = 1 / d.temperature, hard = 1 - d.weight, soft = d.weight * d.temperature, at_target;

	if (target < 0 || target >= vocab) {
		for (int64_t i = threadIdx.x; i < vocab; i += THREADS)
			x[i] = from_float<T>(0.0f);
		if (threadIdx.x == 0)
			loss[blockIdx.x] = 0;
		return;
	}
	at_target = soft_cap<CAPPED>(to_float(x[target]), d.cap);
	for (int64_t i = threadIdx.x; i < vocab; i += THREADS) {
		float v = to_float(x[i]);

		max = fmaxf(max, v);
		if (i < d.teacher_vocab) {
			shared_max = fmaxf(shared_max, v);
			teacher_max = fmaxf(teacher_max, to_float(t[i]));
		}
	}
	/* block_max needs a barrier before it is called again. */
	max = soft_cap<CAPPED>(block_max(max), d.cap);
	__syncthreads();
	shared_max = soft_cap<CAPPED>(block_max(shared_max), d.cap);
	__syncthreads();
	teacher_max = soft_cap<CAPPED>(block_max(teacher_max), d.teacher_cap);
	for (int64_t i = threadIdx.x; i < vocab; i += THREADS) {
		float y = soft_cap<CAPPED>(to_float(x[i]), d.cap);

		sum += expf(y - max);
		if (i < d.teacher_vocab) {
			float below = (y - shared_max) * inverse;
			float teacher =
			    (soft_cap<CAPPED>(to_float(t[i]), d.teacher_cap) - teacher_max) * inverse;
			float e = expf(teacher);

			student_sum += expf(below);
			teacher_sum += e;
			/* 0 · log 0 is 0; a NaN stays a NaN. */
			difference += e > 0 ? e * (teacher - below) : e;
		}
	}
	sum = block_sum(sum); /* its barrier also ensures that no thread still reads x[target] */
	student_sum = block_sum(student_sum);
	teacher_sum = block_sum(teacher_sum);
	difference = block_sum(difference);
	/* The square of the temperature multiplies the errors of the divergence, hence fp64. */
	if (threadIdx.x == 0)
		loss[blockIdx.x] =
		    hard * (logf(sum) - (at_target - max)) +
		    soft * d.temperature *
		        (float)((double)difference / teacher_sum + log((double)student_sum / teacher_sum));
	hard *= scale;
	soft *= scale;
	for (int64_t i = threadIdx.x; i < vocab; i += THREADS) {
		float v = to_float(x[i]), y = soft_cap<CAPPED>(v, d.cap);
		float g = expf(y - max) * (hard / sum);

		if (i == target)
			g -= hard;
		if (i < d.teacher_vocab) {
			float teacher = soft_cap<CAPPED>(to_float(t[i]), d.teacher_cap);

			g += expf((y - shared_max) * inverse) * (soft / student_sum) -
			     expf((teacher - teacher_max) * inverse) * (soft / teacher_sum);
		}
		if (CAPPED && d.cap > 0) {
			float h = tanhf(v / d.cap);

			g *= 1.0f - h * h;
		}
		x[i] = from_float<T>(g);
	}
}

extern "C" void device_distillation(struct device *dev, const struct device_distillation *d, void *logits,
                                    enum dtype type, const int32_t *targets, int64_t rows, int64_t vocab,
                                    float scale, float *loss)
{
	if (rows <= 0 || vocab <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		with_flag(d->cap > 0 || d->teacher_cap > 0, [&](auto c) {
			LAUNCH(dev, (distillation_kernel<T, decltype(c)::value>), (unsigned)rows, THREADS, 0,
			       *d, (T *)logits, targets, vocab, scale, loss);
		});
	});
}
