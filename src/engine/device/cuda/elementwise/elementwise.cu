// SPDX-License-Identifier: Apache-2.0
/* Conversions, scaling, addition, biases: one pass over memory, 16 bytes at a time where they are aligned. */
#include "engine/device/cuda/kernel.cuh"

#define THREADS 256

template <int N> struct n_elements {
	static constexpr int value = N;
};

/* Calls f for the elements [0, n): packs of N, then the rest one by one. */
template <int N, typename F> static __device__ __forceinline__ void for_packs(int64_t n, F f)
{
	int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
	        stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t i = first; i < n / N; i += stride)
		f(i * N, n_elements<N>());
	if (N > 1)
		for (int64_t i = n / N * N + first; i < n; i += stride)
			f(i, n_elements<1>());
}

template <typename D, typename S, int N> static __global__ void cast_kernel(D *dst, const S *src, int64_t n)
{
	for_packs<N>(n, [=](int64_t i, auto w) {
		float x[decltype(w)::value];

		load(x, src + i);
		store(dst + i, x);
	});
}

template <typename D, typename S> static void cast(struct device *dev, void *dst, const void *src, int64_t n)
{
	if (aligned16(dst) && aligned16(src))
		LAUNCH(dev, (cast_kernel<D, S, 8>), grid_for(n / 8, THREADS), THREADS, 0, (D *)dst,
		       (const S *)src, n);
	else
		LAUNCH(dev, (cast_kernel<D, S, 1>), grid_for(n, THREADS), THREADS, 0, (D *)dst,
		       (const S *)src, n);
}

template <typename D>
static void cast_to(struct device *dev, void *dst, const void *src, enum dtype type, int64_t n)
{
	if (type == DTYPE_F32)
		cast<D, float>(dev, dst, src, n);
	else if (type == DTYPE_BF16)
		cast<D, bf16>(dev, dst, src, n);
	else
		cast<D, f16>(dev, dst, src, n);
}

extern "C" void device_cast(struct device *dev, void *dst, enum dtype dst_type, const void *src,
                            enum dtype src_type, int64_t n)
{
	if (n <= 0)
		return;
	if (dst_type == src_type)
		device_copy(dev, dst, src, (size_t)n * dtype_size(dst_type));
	else if (dst_type == DTYPE_F32)
		cast_to<float>(dev, dst, src, src_type, n);
	else if (dst_type == DTYPE_BF16)
		cast_to<bf16>(dev, dst, src, src_type, n);
	else
		cast_to<f16>(dev, dst, src, src_type, n);
}

template <typename T, int N> static __global__ void scale_kernel(T *p, float factor, int64_t n)
{
	for_packs<N>(n, [=](int64_t i, auto w) {
		float x[decltype(w)::value];

		load(x, p + i);
		for (float &e : x)
			e *= factor;
		store(p + i, x);
	});
}

extern "C" void device_scale(struct device *dev, void *x, enum dtype type, float factor, int64_t n)
{
	if (n <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		if (aligned16(x))
			LAUNCH(dev, (scale_kernel<T, WIDE<T>>), grid_for(n / WIDE<T>, THREADS), THREADS, 0,
			       (T *)x, factor, n);
		else
			LAUNCH(dev, (scale_kernel<T, 1>), grid_for(n, THREADS), THREADS, 0, (T *)x, factor,
			       n);
	});
}

template <typename T, int N> static __global__ void add_kernel(T *dst, const T *src, int64_t n)
{
	for_packs<N>(n, [=](int64_t i, auto w) {
		float x[decltype(w)::value], y[decltype(w)::value];

		load(x, dst + i);
		load(y, src + i);
		for (int k = 0; k < decltype(w)::value; k++)
			x[k] += y[k];
		store(dst + i, x);
	});
}

extern "C" void device_add(struct device *dev, void *dst, const void *src, enum dtype type, int64_t n)
{
	if (n <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		if (aligned16(dst) && aligned16(src))
			LAUNCH(dev, (add_kernel<T, WIDE<T>>), grid_for(n / WIDE<T>, THREADS), THREADS, 0,
			       (T *)dst, (const T *)src, n);
		else
			LAUNCH(dev, (add_kernel<T, 1>), grid_for(n, THREADS), THREADS, 0, (T *)dst,
			       (const T *)src, n);
	});
}

template <typename T, int N>
static __global__ void bias_kernel(T *x, const T *bias, int64_t rows, int64_t cols, int64_t ld)
{
	int64_t packs = cols / N, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * packs; i += stride) {
		int64_t row = i / packs, c = (i - row * packs) * N;
		float v[N], b[N];

		load(v, x + row * ld + c);
		load(b, bias + c);
		for (int k = 0; k < N; k++)
			v[k] += b[k];
		store(x + row * ld + c, v);
	}
}

extern "C" void device_bias_forward(struct device *dev, void *x, const void *bias, int64_t rows, int64_t cols,
                                    int64_t ld, enum dtype type)
{
	if (rows <= 0 || cols <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		if (wide_rows(x, ld, sizeof(T)) && wide_rows(bias, cols, sizeof(T)))
			LAUNCH(dev, (bias_kernel<T, WIDE<T>>), grid_for(rows * cols / WIDE<T>, THREADS),
			       THREADS, 0, (T *)x, (const T *)bias, rows, cols, ld);
		else
			LAUNCH(dev, (bias_kernel<T, 1>), grid_for(rows * cols, THREADS), THREADS, 0, (T *)x,
			       (const T *)bias, rows, cols, ld);
	});
}
