// SPDX-License-Identifier: Apache-2.0
/*
 * The convolution over the tokens of a document with SiLU. A thread has N channels and goes through a part of
 * the tokens, with the last WIDTH rows of x in registers, so that an element is read once (and WIDTH - 1 more
 * for each part): two elements move for each of y forward. Backward, d_y is first replaced by dz, the
 * gradient in front of SiLU, where the gradients of the weights are found as well, in a sum for each part,
 * which a last kernel adds up; d_x is the same convolution of dz, backwards in time. These kernels have not
 * run on a GPU yet.
 */
#include "engine/device/cuda/columns.cuh"
#include "engine/device/cuda/delta/documents.cuh"
#include "engine/device/cuda/kernel.cuh"
extern "C" {
#include "engine/device/delta.h"
}

#define THREADS 128

/* The weights of N channels; where there are fewer than WIDTH, zeros stand in front of them. */
template <int N, int WIDTH, typename T>
static __device__ __forceinline__ void fetch_weights(float (&w)[WIDTH][N], const T *from, int64_t channel,
                                                     int width)
{
#pragma unroll
	for (int j = 0; j < WIDTH; j++)
#pragma unroll
		for (int n = 0; n < N; n++) {
			int at = j - (WIDTH - width);

			w[j][n] = at < 0 ? 0.0f : to_float(from[(channel + n) * width + at]);
		}
}

/* Forgets the oldest row. */
template <int N, int WIDTH> static __device__ __forceinline__ void shift(float (&rows)[WIDTH][N])
{
#pragma unroll
	for (int j = 0; j + 1 < WIDTH; j++)
#pragma unroll
		for (int n = 0; n < N; n++)
			rows[j][n] = rows[j + 1][n];
}

template <int N, int WIDTH> static __device__ __forceinline__ void clear(float (&rows)[WIDTH][N])
{
#pragma unroll
	for (int j = 0; j < WIDTH; j++)
#pragma unroll
		for (int n = 0; n < N; n++)
			rows[j][n] = 0;
}

template <int N, int WIDTH>
static __device__ __forceinline__ void dot(float (&z)[N], const float (&w)[WIDTH][N],
                                           const float (&rows)[WIDTH][N])
{
#pragma unroll
	for (int n = 0; n < N; n++) {
		z[n] = 0;
#pragma unroll
		for (int j = 0; j < WIDTH; j++)
			z[n] += w[j][n] * rows[j][n];
	}
}

/* The rows in front of token t, as far as they are of its document, which begins at `start`; the last one's
 * place is left for the token's own. */
template <int N, int WIDTH, typename T>
static __device__ __forceinline__ void fetch_rows(float (&rows)[WIDTH][N], const T *x, int64_t ld, int64_t t,
                                                  int64_t start)
{
	clear(rows);
#pragma unroll
	for (int j = 0; j + 1 < WIDTH; j++)
		if (t - (WIDTH - 1) + j >= start)
			load(rows[j + 1], x + (t - (WIDTH - 1) + j) * ld);
}

/* BACKWARD: y is d_y, which becomes dz, and parts gets the gradient of the weights of each part of the
 * tokens: [parts][channels][width]. */
template <typename T, int N, int WIDTH, bool BACKWARD>
static __global__ void __launch_bounds__(THREADS)
    conv_kernel(struct device_conv c, T *y, float *parts, const T *x, const T *weights, int64_t per_part)
{
	int64_t channel = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, begin = blockIdx.y * per_part,
	        end = begin + per_part < c.tokens ? begin + per_part : c.tokens;
	int document = document_of(c.starts, c.documents, begin);
	float w[WIDTH][N], rows[WIDTH][N], d_w[WIDTH][N];

	if (channel >= c.channels)
		return;
	x += channel;
	y += channel;
	fetch_weights(w, weights, channel, c.width);
	fetch_rows(rows, x, c.ld_x, begin, c.starts[document]);
	clear(d_w);
	for (int64_t t = begin, next = c.starts[document + 1]; t < end; t++) {
		float z[N], out[N];

		if (t == next) { /* some documents may be empty */
			while (t == next)
				next = c.starts[++document + 1];
			clear(rows);
		}
		shift(rows);
		load(rows[WIDTH - 1], x + t * c.ld_x);
		dot(z, w, rows);
		if (BACKWARD)
			load(out, y + t * c.ld_y);
#pragma unroll
		for (int n = 0; n < N; n++) {
			float s = delta_sigmoid(z[n]);

			out[n] = BACKWARD ? out[n] * (s + z[n] * s * (1.0f - s)) : z[n] * s;
		}
		if (BACKWARD)
#pragma unroll
			for (int j = 0; j < WIDTH; j++)
#pragma unroll
				for (int n = 0; n < N; n++)
					d_w[j][n] += out[n] * rows[j][n];
		store(y + t * c.ld_y, out);
	}
	if (BACKWARD)
#pragma unroll
		for (int j = 0; j < WIDTH; j++)
#pragma unroll
			for (int n = 0; n < N; n++) {
				int at = j - (WIDTH - c.width);

				if (at >= 0)
					parts[(blockIdx.y * (int64_t)c.channels + channel + n) * c.width +
					      at] = d_w[j][n];
			}
}

/* d_x[t] = sum over i of w[width - 1 - i] dz[t + i]; rows[j] is dz of the token that is j ahead of where the
 * part's loop is. */
template <typename T, int N, int WIDTH>
static __global__ void __launch_bounds__(THREADS)
    d_x_kernel(struct device_conv c, T *d_x, const T *dz, const T *weights, int64_t per_part)
{
	int64_t channel = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, begin = blockIdx.y * per_part,
	        end = begin + per_part < c.tokens ? begin + per_part : c.tokens;
	int document = document_of(c.starts, c.documents, end - 1);
	int64_t start = c.starts[document], stop = c.starts[document + 1];
	float w[WIDTH][N], rows[WIDTH][N];

	if (channel >= c.channels)
		return;
	d_x += channel;
	dz += channel;
	fetch_weights(w, weights, channel, c.width);
	clear(rows);
	/* Backwards: rows[WIDTH - 1] is that of t, rows[WIDTH - 1 - i] that of t + i. */
#pragma unroll
	for (int j = 1; j < WIDTH; j++)
		if (end - 1 + WIDTH - j < stop)
			load(rows[j], dz + (end - 1 + WIDTH - j) * c.ld_y);
	for (int64_t t = end - 1; t >= begin; t--) {
		float out[N];

		if (t < start) {
			while (t < start)
				start = c.starts[--document];
			clear(rows);
		}
		shift(rows);
		load(rows[WIDTH - 1], dz + t * c.ld_y);
		dot(out, w, rows);
		store(d_x + t * c.ld_x, out);
	}
}

/* A thread has N channels of a document, whose sequence's last rows it reads first and writes last. */
template <typename T, int N, int WIDTH>
static __global__ void __launch_bounds__(THREADS)
    carried_kernel(struct device_conv c, T *last, const int32_t *sequences, T *y, const T *x,
                   const T *weights)
{
	int64_t channel = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, begin = c.starts[blockIdx.y],
	        end = c.starts[blockIdx.y + 1];
	float w[WIDTH][N], rows[WIDTH][N];
	int before = WIDTH - (c.width - 1);

	if (channel >= c.channels || begin >= end)
		return;
	last += (int64_t)sequences[begin] * (c.width - 1) * c.channels + channel;
	fetch_weights(w, weights, channel, c.width);
	clear(rows);
#pragma unroll
	for (int j = 0; j < WIDTH; j++)
		if (j >= before)
			load(rows[j], last + (int64_t)(j - before) * c.channels);
	for (int64_t t = begin; t < end; t++) {
		float z[N];

		shift(rows);
		load(rows[WIDTH - 1], x + t * c.ld_x + channel);
		dot(z, w, rows);
#pragma unroll
		for (int n = 0; n < N; n++)
			z[n] *= delta_sigmoid(z[n]);
		store(y + t * c.ld_y + channel, z);
	}
#pragma unroll
	for (int j = 0; j < WIDTH; j++)
		if (j >= before)
			store(last + (int64_t)(j - before) * c.channels, rows[j]);
}

/* Whether pairs of channels can be read at once. */
static bool in_pairs(const void *p, int64_t ld, size_t size)
{
	return ((uintptr_t)p & (2 * size - 1)) == 0 && ld % 2 == 0;
}

template <int W> struct width {
	static constexpr int value = W;
};

/* Calls f with a value of the type, with N as a width, and with the width of the registers' window; false,
 * with a fault, where the convolution is wider than there is room for. */
template <typename F>
static bool with_widths(struct device *dev, const struct device_conv *c, bool pairs, F f)
{
	if (c->width < 1 || c->width > DEVICE_CONV_WIDTH) {
		device_fault(dev, -EOPNOTSUPP, "a convolution of %d tokens; the engines have room for %d",
		             c->width, DEVICE_CONV_WIDTH);
		return false;
	}
	with_type(c->type, [&](auto t) {
		with_flag(pairs && c->channels % 2 == 0, [&](auto two) {
			width<decltype(two)::value ? 2 : 1> n;

			if (c->width <= 4)
				f(t, n, width<4>());
			else
				f(t, n, width<DEVICE_CONV_WIDTH>());
		});
	});
	return true;
}

static dim3 grid_of(const struct device_conv *c, int n, int64_t parts)
{
	return dim3((unsigned)ceil_div(c->channels, (int64_t)THREADS * n), (unsigned)parts);
}

extern "C" void device_conv_forward(struct device *dev, const struct device_conv *c, void *y, const void *x,
                                    const void *w)
{
	size_t size = dtype_size(c->type);
	bool pairs = in_pairs(x, c->ld_x, size) && in_pairs(y, c->ld_y, size);
	int64_t parts = conv_parts(c->tokens);

	if (c->tokens <= 0 || c->channels <= 0)
		return;
	with_widths(dev, c, pairs, [&](auto t, auto n, auto window) {
		typedef decltype(t) T;
		constexpr int N = decltype(n)::value, WIDTH = decltype(window)::value;
		int64_t per_part = ceil_div(c->tokens, parts);

		LAUNCH(dev, (conv_kernel<T, N, WIDTH, false>), grid_of(c, N, ceil_div(c->tokens, per_part)),
		       THREADS, 0, *c, (T *)y, (float *)NULL, (const T *)x, (const T *)w, per_part);
	});
}

extern "C" void device_conv_backward(struct device *dev, const struct device_conv *c, void *d_x, float *d_w,
                                     void *d_y, const void *x, const void *w)
{
	size_t size = dtype_size(c->type);
	bool pairs =
	    in_pairs(x, c->ld_x, size) && in_pairs(d_x, c->ld_x, size) && in_pairs(d_y, c->ld_y, size);
	int64_t per_part, parts;
	float *sums;

	if (c->tokens <= 0 || c->channels <= 0)
		return;
	sums = (float *)device_scratch(dev, conv_scratch(c->tokens, c->channels, c->width), "conv_backward");
	if (!sums)
		return;
	per_part = ceil_div(c->tokens, conv_parts(c->tokens));
	parts = ceil_div(c->tokens, per_part);
	if (with_widths(dev, c, pairs, [&](auto t, auto n, auto window) {
		    typedef decltype(t) T;
		    constexpr int N = decltype(n)::value, WIDTH = decltype(window)::value;

		    LAUNCH(dev, (conv_kernel<T, N, WIDTH, true>), grid_of(c, N, parts), THREADS, 0, *c,
		           (T *)d_y, sums, (const T *)x, (const T *)w, per_part);
		    LAUNCH(dev, (d_x_kernel<T, N, WIDTH>), grid_of(c, N, parts), THREADS, 0, *c, (T *)d_x,
		           (const T *)d_y, (const T *)w, per_part);
	    }))
		column_finish(dev, d_w, DTYPE_F32, sums, parts, (int64_t)c->channels * c->width);
}

extern "C" void device_conv_carried(struct device *dev, const struct device_conv *c, void *last,
                                    const int32_t *sequences, void *y, const void *x, const void *w)
{
	size_t size = dtype_size(c->type);
	bool pairs = in_pairs(x, c->ld_x, size) && in_pairs(y, c->ld_y, size) && in_pairs(last, 0, size);

	if (c->tokens <= 0 || c->channels <= 0 || c->documents <= 0)
		return;
	with_widths(dev, c, pairs, [&](auto t, auto n, auto window) {
		typedef decltype(t) T;
		constexpr int N = decltype(n)::value, WIDTH = decltype(window)::value;

		LAUNCH(dev, (carried_kernel<T, N, WIDTH>), grid_of(c, N, c->documents), THREADS, 0, *c,
		       (T *)last, sequences, (T *)y, (const T *)x, (const T *)w);
	});
}
