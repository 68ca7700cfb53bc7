// SPDX-License-Identifier: Apache-2.0
/*
 * Quantizes matrices to fp8 by current scaling: one pass over a matrix for its largest magnitude, unless the
 * kernel that wrote the matrix has found it, and one that writes its codes, and turned codes for a product
 * that sums over its rows. The second pass takes tiles of 64 rows and columns: a thread loads 16 elements of
 * a row, and stores 16 codes of it and, by way of shared memory, 16 of a column. Each element is read once in
 * each pass, and each code written once.
 *
 * A maximum does not depend on the order in which it is taken, so that one taken by atomic operations is the
 * same in every run, and the same by whichever kernel.
 *
 * What the kernels of norms, SwiGLU and attention save by finding it, in a step of Llama-3.2-1B (16 blocks,
 * 4 x 4096 tokens, bf16), is what a pass reads: of the inputs of products 14336 elements for each token and
 * block, twice, since the backward pass makes codes of them again, and of gradients 20480, that is 470 MB,
 * 470 MB and 671 MB for each block, 25.8 GB in all. Two passes of their own are left: over the gradients of
 * q, k and v, 101 MB for each block, and over the weights, 122 MB, once each.
 */
#include "engine/device/cuda/kernel.cuh"
#include "engine/device/fp8.h"

#define THREADS 256
#define TILE    64
#define EACH    16         /* elements of a thread */
#define PITCH   (TILE + 4) /* bytes of a turned row: neighbouring threads' codes are in other banks */

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    largest_kernel(float *amax, const T *x, int64_t rows, int64_t cols, int64_t ld)
{
	int64_t packs = cols / N, stride = (int64_t)gridDim.x * THREADS;
	float max = 0;

	for (int64_t p = (int64_t)blockIdx.x * THREADS + threadIdx.x; p < rows * packs; p += stride) {
		int64_t row = p / packs;
		float v[N];

		load(v, x + row * ld + (p - row * packs) * N);
		max = fmaxf(max, largest<T>(v));
	}
	block_max_into(amax, max);
}

/* codes, turned: NULL where they are not wanted. */
template <enum fp8_format FORMAT, typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    quantize_kernel(uint8_t *codes, uint8_t *turned, float *scale, const float *amax, const T *x,
                    int64_t rows, int64_t cols, int64_t ld, int64_t padded)
{
	__shared__ uint32_t words[TILE * PITCH / 4];
	unsigned char *tile = (unsigned char *)words;
	int64_t row = (int64_t)blockIdx.y * TILE, col = (int64_t)blockIdx.x * TILE;
	int line = (int)threadIdx.x / (TILE / EACH), at = (int)threadIdx.x % (TILE / EACH) * EACH;
	float factor = fp8_scale(FORMAT, *amax), v[EACH];
	pack<uint32_t, EACH / 4> packed;

#pragma unroll
	for (int i = 0; i < EACH; i++)
		v[i] = 0;
	if (row + line < rows && col + at < cols) {
		const T *from = x + (row + line) * ld + col + at;

#pragma unroll
		for (int i = 0; i < EACH; i += N) {
			float some[N];

			load(some, from + i);
#pragma unroll
			for (int k = 0; k < N; k++)
				v[i + k] = some[k] * factor;
		}
	}
#pragma unroll
	for (int i = 0; i < EACH; i += 4)
		packed.v[i / 4] = pack_fp8<FORMAT>(v[i], v[i + 1], v[i + 2], v[i + 3]);
	if (codes && row + line < rows && col + at < cols)
		*(pack<uint32_t, EACH / 4> *)(codes + (row + line) * cols + col + at) = packed;
	if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
		scale[0] = 1.0f / factor;
		scale[1] = *amax; /* which may be that place */
	}
	if (!turned)
		return;
#pragma unroll
	for (int i = 0; i < EACH; i++)
		tile[(at + i) * PITCH + line] = (unsigned char)(packed.v[i / 4] >> i % 4 * 8);
	__syncthreads();
	if (col + line >= cols || row + at >= padded)
		return;
#pragma unroll
	for (int i = 0; i < EACH / 4; i++)
		packed.v[i] = words[(line * PITCH + at) / 4 + i];
	*(pack<uint32_t, EACH / 4> *)(turned + (col + line) * padded + row + at) = packed;
}

template <typename T, int N> static void quantize(struct device *dev, const struct device_fp8 *q, const T *x)
{
	dim3 grid((unsigned)ceil_div(q->cols, TILE), (unsigned)ceil_div(q->rows, TILE));
	int64_t padded = fp8_padded(q->rows);
	const float *amax = q->amax ? q->amax : q->scale + 1;

	if (q->format == FP8_E4M3)
		LAUNCH(dev, (quantize_kernel<FP8_E4M3, T, N>), grid, THREADS, 0, q->codes, q->turned,
		       q->scale, amax, x, q->rows, q->cols, q->ld, padded);
	else
		LAUNCH(dev, (quantize_kernel<FP8_E5M2, T, N>), grid, THREADS, 0, q->codes, q->turned,
		       q->scale, amax, x, q->rows, q->cols, q->ld, padded);
}

template <typename T, int N>
static void find_largest(struct device *dev, float *amax, const T *x, int64_t rows, int64_t cols, int64_t ld)
{
	LAUNCH(dev, (largest_kernel<T, N>), grid_for(rows * cols / N / 4, THREADS), THREADS, 0, amax, x, rows,
	       cols, ld);
}

void fp8_find_largest(struct device *dev, float *amax, const void *x, enum dtype type, int64_t rows,
                      int64_t cols, int64_t ld)
{
	if (!amax)
		return;
	device_zero(dev, amax, sizeof(float));
	if (rows <= 0 || cols <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		if (wide_rows(x, ld, sizeof(T)) && cols % WIDE<T> == 0)
			find_largest<T, WIDE<T>>(dev, amax, (const T *)x, rows, cols, ld);
		else
			find_largest<T, 1>(dev, amax, (const T *)x, rows, cols, ld);
	});
}

extern "C" bool device_supports_fp8(const struct device *dev)
{
	return dev->major * 10 + dev->minor >= 89;
}

extern "C" void device_fp8_quantize(struct device *dev, const struct device_fp8 *q, const void *src)
{
	if (q->rows <= 0 || q->cols <= 0)
		return;
	if (q->cols % FP8_MULTIPLE || !aligned16(q->codes) || !aligned16(q->turned) ||
	    ceil_div(q->rows, TILE) > 65535) {
		device_fault(dev, -EINVAL, "fp8: no codes of %lld rows and %lld columns", (long long)q->rows,
		             (long long)q->cols);
		return;
	}
	if (!q->amax)
		fp8_find_largest(dev, q->scale + 1, src, q->type, q->rows, q->cols, q->ld);
	with_type(q->type, [&](auto t) {
		typedef decltype(t) T;

		if (wide_rows(src, q->ld, sizeof(T)))
			quantize<T, WIDE<T>>(dev, q, (const T *)src);
		else
			quantize<T, 1>(dev, q, (const T *)src);
	});
}
