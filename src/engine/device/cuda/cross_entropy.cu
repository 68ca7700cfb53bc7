// SPDX-License-Identifier: Apache-2.0
/*
 * Softmax cross-entropy, one block a row: the maximum and the sum of exponentials in one reading, the
 * gradient in place in another, for which the row still lies in the L2 cache.
 */
#include "engine/device/cuda/kernel.cuh"

#define THREADS 512
#define LOG2_E  1.44269504088896341f

/* The sum of 2^(x - max) over what has been seen; max is finite, or -inf while nothing has. */
struct softmax {
	float max, sum;
};

static __device__ __forceinline__ softmax merge(softmax a, softmax b)
{
	float max = fmaxf(a.max, b.max);

	if (b.max == -INFINITY)
		return a;
	if (a.max == -INFINITY)
		return b;
	return softmax{max, a.sum * exp2f(a.max - max) + b.sum * exp2f(b.max - max)};
}

static __device__ __forceinline__ softmax block_merge(softmax s)
{
	__shared__ softmax part[THREADS / 32];

#pragma unroll
	for (int mask = 16; mask; mask >>= 1)
		s = merge(s, softmax{shuffle_xor(s.max, mask), shuffle_xor(s.sum, mask)});
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = s;
	__syncthreads();
	s = part[0];
	for (int i = 1; i < THREADS / 32; i++)
		s = merge(s, part[i]);
	return s;
}

template <typename T, int N, bool BACKWARD>
static __global__ void __launch_bounds__(THREADS)
    cross_entropy_kernel(T *logits, const int32_t *targets, int64_t vocab, float scale, float *loss)
{
	T *x = logits + blockIdx.x * vocab;
	int64_t target = targets[blockIdx.x];
	softmax s = {-INFINITY, 0};
	float at_target, factor, p;

	if (target < 0 || target >= vocab) {
		if (BACKWARD)
			for (int64_t i = threadIdx.x * N; i < vocab; i += THREADS * N) {
				float zero[N] = {};

				store(x + i, zero);
			}
		if (threadIdx.x == 0)
			loss[blockIdx.x] = 0;
		return;
	}
	at_target = to_float(x[target]) * LOG2_E;
	for (int64_t i = threadIdx.x * N; i < vocab; i += THREADS * N) {
		float v[N], max = s.max;

		load(v, x + i);
#pragma unroll
		for (int k = 0; k < N; k++) {
			v[k] *= LOG2_E;
			max = v[k] > max || v[k] != v[k] ? v[k] : max; /* NaNs go on to the loss */
		}
		if (max == -INFINITY)
			continue;
		s.sum *= s.max == max ? 1.0f : exp2f(s.max - max);
		s.max = max;
#pragma unroll
		for (int k = 0; k < N; k++)
			s.sum += exp2f(v[k] - max);
	}
	s = block_merge(s); /* and nobody still reads x[target] */
	factor = scale / s.sum;
	if (BACKWARD) {
		for (int64_t i = threadIdx.x * N; i < vocab; i += THREADS * N) {
			float v[N];

			load(v, x + i);
#pragma unroll
			for (int k = 0; k < N; k++) {
				v[k] = exp2f(v[k] * LOG2_E - s.max) * factor;
				if (i + k == target)
					v[k] -= scale;
			}
			store(x + i, v);
		}
	}
	if (threadIdx.x == 0) {
		p = log2f(s.sum) - (at_target - s.max);
		loss[blockIdx.x] = p / LOG2_E;
	}
}

extern "C" void device_cross_entropy(struct device *dev, void *logits, enum dtype type,
                                     const int32_t *targets, int64_t rows, int64_t vocab, float scale,
                                     float *loss, bool backward)
{
	if (rows <= 0 || vocab <= 0 || !computes(dev, "cross_entropy", type, type))
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		with_flag(backward, [&](auto b) {
			constexpr bool B = decltype(b)::value;

			if (wide_rows(logits, vocab, sizeof(T)))
				LAUNCH(dev, (cross_entropy_kernel<T, WIDE<T>, B>), (unsigned)rows, THREADS, 0,
				       (T *)logits, targets, vocab, scale, loss);
			else
				LAUNCH(dev, (cross_entropy_kernel<T, 1, B>), (unsigned)rows, THREADS, 0,
				       (T *)logits, targets, vocab, scale, loss);
		});
	});
}

/* ---- argmax: the greatest, the lowest index among equals; NaNs are passed over ---- */
struct best {
	float value;
	int64_t index;
};

static __device__ __forceinline__ best better(best a, best b)
{
	return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) argmax_kernel(int32_t *id, const T *logits, int64_t vocab)
{
	__shared__ best part[THREADS / 32];
	const T *x = logits + blockIdx.x * vocab;
	best b = {-INFINITY, vocab};

	for (int64_t i = threadIdx.x; i < vocab; i += THREADS) {
		float v = to_float(x[i]);

		if (v == v)
			b = better(b, best{v, i});
	}
#pragma unroll
	for (int mask = 16; mask; mask >>= 1)
		b = better(b, best{shuffle_xor(b.value, mask), shuffle_xor(b.index, mask)});
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = b;
	__syncthreads();
	if (threadIdx.x == 0) {
		for (int i = 1; i < THREADS / 32; i++)
			b = better(b, part[i]);
		id[blockIdx.x] = b.index < vocab ? (int32_t)b.index : 0;
	}
}

extern "C" void device_argmax(struct device *dev, int32_t *id, const void *logits, enum dtype type,
                              int64_t rows, int64_t vocab)
{
	if (rows <= 0 || vocab <= 0 || !computes(dev, "argmax", type, type))
		return;
	with_type(type, [&](auto t) {
		LAUNCH(dev, argmax_kernel<decltype(t)>, (unsigned)rows, THREADS, 0, id,
		       (const decltype(t) *)logits, vocab);
	});
}
