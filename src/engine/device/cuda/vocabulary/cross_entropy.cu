// SPDX-License-Identifier: Apache-2.0
/*
 * Softmax cross-entropy, with one block for each row. The maximum and the sum of exponentials are computed
 * while the row is read once; then the gradient overwrites the row. The part of the row that fits into the
 * shared memory is not read again: a row of up to some 100 thousand columns, or 7/8 of one of 128256 columns
 * in bf16, whose rest stays in the L2 cache, since each multiprocessor has one row at a time. So 2 bytes are
 * read and 2 written for each logit.
 */
#include "engine/device/cuda/vocabulary/best.cuh"

#define THREADS     512         /* of argmax */
#define SMALL_ROW   (32 * 1024) /* bytes up to which a row is for few threads */
#define FEW         256
#define MANY        1024
#define AHEAD       4   /* packs under way */
#define STATIC_MOST 512 /* bytes of shared memory beside the row */

/* The sum of 2^(x · log2(e) - max) over the elements so far; max is the largest of them, times log2(e). */
struct softmax {
	float max, sum;
};

static __device__ __forceinline__ softmax merge(softmax a, softmax b)
{
	float max = fmaxf(a.max, b.max);

	/* A sum without elements is 0; one with a NaN has no maximum, perhaps. */
	if (b.sum == 0)
		return a;
	if (a.sum == 0)
		return b;
	return softmax{max, a.sum * exp2f(a.max - max) + b.sum * exp2f(b.max - max)};
}

static __device__ __forceinline__ softmax warp_merge(softmax s)
{
#pragma unroll
	for (int mask = 16; mask; mask >>= 1)
		s = merge(s, softmax{shuffle_xor(s.max, mask), shuffle_xor(s.sum, mask)});
	return s;
}

static __device__ __forceinline__ softmax block_merge(softmax s)
{
	__shared__ softmax part[MANY / 32];
	int lane = (int)threadIdx.x % 32;

	s = warp_merge(s);
	if (lane == 0)
		part[threadIdx.x / 32] = s;
	__syncthreads();
	return warp_merge(lane < (int)blockDim.x / 32 ? part[lane] : softmax{-INFINITY, 0});
}

template <typename T, int N>
static __device__ __forceinline__ void widen(float (&v)[N], const pack<T, N> &raw)
{
#pragma unroll
	for (int k = 0; k < N; k++)
		v[k] = to_float(raw.v[k]);
}

/* With the fewest instructions for an element, which the kernel would else wait for. A NaN is no maximum, but
 * the sum is NaN then, and with it the loss. */
template <typename T, int N> static __device__ __forceinline__ softmax add(softmax s, const pack<T, N> &raw)
{
	float v[N], max = -INFINITY, base;

	widen(v, raw);
#pragma unroll
	for (int k = 0; k < N; k++)
		max = fmaxf(max, v[k]);
	max *= LOG2_E;
	if (max > s.max) {
		s.sum *= fast_exp2(s.max - max);
		s.max = max;
	}
	base = s.max == -INFINITY ? 0 : s.max;
#pragma unroll
	for (int k = 0; k < N; k++)
		s.sum += fast_exp2(v[k] * LOG2_E - base);
	return s;
}

/* A thread keeps its first `kept` packs in its own places of the shared memory. */
template <typename T, int N, int WIDTH, bool BACKWARD>
static __global__ void __launch_bounds__(WIDTH)
    cross_entropy_kernel(T *logits, const int32_t *targets, int64_t vocab, float scale,
                         const float *row_scale, float *loss, int kept)
{
	DYNAMIC_SHARED(memory);
	pack<T, N> *x = (pack<T, N> *)(logits + blockIdx.x * vocab),
	           *cache = (pack<T, N> *)memory + threadIdx.x;
	int target = targets[blockIdx.x], packs = (int)(vocab / N), mine = (int)threadIdx.x;
	softmax s = {-INFINITY, 0};
	float at_target, factor;

	if (target < 0 || target >= vocab) {
		for (int p = mine; BACKWARD && p < packs; p += WIDTH)
			x[p] = pack<T, N>{};
		if (mine == 0)
			loss[blockIdx.x] = 0;
		return;
	}
	at_target = to_float(((const T *)x)[target]) * LOG2_E;
	for (int j = 0; j * WIDTH < packs; j += AHEAD) {
		pack<T, N> raw[AHEAD] = {};

#pragma unroll
		for (int a = 0; a < AHEAD; a++)
			if ((j + a) * WIDTH + mine < packs)
				raw[a] = x[(j + a) * WIDTH + mine];
#pragma unroll
		for (int a = 0; a < AHEAD; a++) {
			if ((j + a) * WIDTH + mine >= packs)
				continue;
			if (BACKWARD && j + a < kept)
				cache[(j + a) * WIDTH] = raw[a];
			s = add(s, raw[a]);
		}
	}
	s = block_merge(s); /* its barrier also ensures that no thread still reads x[target] */
	if (row_scale)
		scale *= row_scale[blockIdx.x];
	factor = scale / s.sum;
	for (int j = 0; BACKWARD && j * WIDTH + mine < packs; j++) {
		int p = j * WIDTH + mine;
		float v[N];

		widen(v, j < kept ? cache[j * WIDTH] : x[p]);
#pragma unroll
		for (int k = 0; k < N; k++)
			v[k] = fast_exp2(v[k] * LOG2_E - s.max) * factor;
		if (p == target / N)
#pragma unroll
			for (int k = 0; k < N; k++)
				v[k] -= k == target % N ? scale : 0;
		store((T *)(x + p), v);
	}
	if (mine == 0)
		loss[blockIdx.x] = (log2f(s.sum) - (at_target - s.max)) / LOG2_E;
}

template <typename T, int N, int WIDTH, bool BACKWARD>
static void launch(struct device *dev, T *logits, const int32_t *targets, int64_t rows, int64_t vocab,
                   float scale, const float *row_scale, float *loss)
{
	int64_t line = WIDTH * (int64_t)sizeof(pack<T, N>), kept = ceil_div(vocab, (int64_t)WIDTH * N);
	int64_t most = dev->shared_most > STATIC_MOST ? ((int64_t)dev->shared_most - STATIC_MOST) / line : 0;

	if (kept > most)
		kept = most;
	if (!BACKWARD)
		kept = 0;
	LAUNCH(dev, (cross_entropy_kernel<T, N, WIDTH, BACKWARD>), (unsigned)rows, WIDTH,
	       (size_t)(kept * line), logits, targets, vocab, scale, row_scale, loss, (int)kept);
}

extern "C" void device_cross_entropy(struct device *dev, void *logits, enum dtype type,
                                     const int32_t *targets, int64_t rows, int64_t vocab, float scale,
                                     const float *row_scale, float *loss, bool backward)
{
	if (rows <= 0 || vocab <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		with_flag(backward, [&](auto b) {
			constexpr bool B = decltype(b)::value;

			if (!wide_rows(logits, vocab, sizeof(T)))
				launch<T, 1, MANY, B>(dev, (T *)logits, targets, rows, vocab, scale,
				                      row_scale, loss);
			else if (vocab * (int64_t)sizeof(T) <= SMALL_ROW)
				launch<T, WIDE<T>, FEW, B>(dev, (T *)logits, targets, rows, vocab, scale,
				                           row_scale, loss);
			else
				launch<T, WIDE<T>, MANY, B>(dev, (T *)logits, targets, rows, vocab, scale,
				                            row_scale, loss);
		});
	});
}

/* ---- argmax ---- */
template <typename T>
static __global__ void __launch_bounds__(THREADS) argmax_kernel(int32_t *id, const T *logits, int64_t vocab)
{
	best b = block_best<THREADS>(logits + blockIdx.x * vocab, vocab);

	if (threadIdx.x == 0)
		id[blockIdx.x] = (int32_t)b.index;
}

extern "C" void device_argmax(struct device *dev, int32_t *id, const void *logits, enum dtype type,
                              int64_t rows, int64_t vocab)
{
	if (rows <= 0 || vocab <= 0)
		return;
	with_type(type, [&](auto t) {
		LAUNCH(dev, argmax_kernel<decltype(t)>, (unsigned)rows, THREADS, 0, id,
		       (const decltype(t) *)logits, vocab);
	});
}
