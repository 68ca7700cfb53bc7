// SPDX-License-Identifier: Apache-2.0
/*
 * Gates, and copies of columns in groups. Three elements move for each of y forward and five backward; a copy
 * moves two. Memory bounds them; accesses are of 16 bytes where all rows are aligned. They have not run on a
 * GPU yet.
 */
#include "engine/device/cuda/delta/documents.cuh"
#include "engine/device/cuda/kernel.cuh"
extern "C" {
#include "engine/device/delta.h"
}

#define THREADS 256

/* f(g), and its slope. */
template <bool SILU> static __device__ __forceinline__ float gate_of(float g, float *slope)
{
	float s = delta_sigmoid(g);

	*slope = SILU ? s + g * s * (1.0f - s) : s * (1.0f - s);
	return SILU ? g * s : s;
}

/* y may be x: a thread reads its elements before it writes them. */
template <typename T, int N, bool SILU>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(struct device_gating g, T *y, const T *x, const T *gate)
{
	int64_t packs = g.cols / N, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < g.rows * packs; p += stride) {
		int64_t r = quotient(p, packs), i = (p - r * packs) * N;
		float in[N], by[N], slope;

		load(in, x + r * g.ld_x + i);
		load(by, gate + r * g.ld_gate + i);
#pragma unroll
		for (int j = 0; j < N; j++)
			in[j] *= gate_of<SILU>(by[j], &slope);
		store(y + r * g.ld_y + i, in);
	}
}

template <typename T, int N, bool SILU>
static __global__ void __launch_bounds__(THREADS)
    backward_kernel(struct device_gating g, T *d_x, T *d_gate, const T *d_y, const T *x, const T *gate)
{
	int64_t packs = g.cols / N, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < g.rows * packs; p += stride) {
		int64_t r = quotient(p, packs), i = (p - r * packs) * N;
		float in[N], by[N], dy[N], slope;

		load(in, x + r * g.ld_x + i);
		load(by, gate + r * g.ld_gate + i);
		load(dy, d_y + r * g.ld_y + i);
#pragma unroll
		for (int j = 0; j < N; j++) {
			float f = gate_of<SILU>(by[j], &slope);

			by[j] = dy[j] * in[j] * slope;
			dy[j] *= f;
		}
		store(d_x + r * g.ld_y + i, dy);
		store(d_gate + r * g.ld_gate + i, by);
	}
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) copy_kernel(struct device_group_copy c, T *y, const T *x)
{
	int64_t packs = c.cols / N, of_row = packs * c.groups, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < c.rows * of_row; p += stride) {
		int64_t r = quotient(p, of_row), group = quotient(p - r * of_row, packs),
		        i = (p - r * of_row - group * packs) * N;

		*(pack<T, N> *)(y + r * c.ld_y + group * c.step_y + i) =
		    *(const pack<T, N> *)(x + r * c.ld_x + group * c.step_x + i);
	}
}

extern "C" void device_gate_forward(struct device *dev, const struct device_gating *g, void *y, const void *x,
                                    const void *gate)
{
	if (g->rows <= 0 || g->cols <= 0)
		return;
	with_type(g->type, [&](auto t) {
		typedef decltype(t) T;
		bool wide = wide_rows(x, g->ld_x, sizeof(T)) && wide_rows(y, g->ld_y, sizeof(T)) &&
		            wide_rows(gate, g->ld_gate, sizeof(T)) && g->cols % WIDE<T> == 0;

		with_flag(g->silu, [&](auto silu) {
			with_flag(wide, [&](auto w) {
				constexpr int N = decltype(w)::value ? WIDE<T> : 1;

				LAUNCH(dev, (forward_kernel<T, N, decltype(silu)::value>),
				       grid_for(g->rows * (g->cols / N), THREADS), THREADS, 0, *g, (T *)y,
				       (const T *)x, (const T *)gate);
			});
		});
	});
}

extern "C" void device_gate_backward(struct device *dev, const struct device_gating *g, void *d_x,
                                     void *d_gate, const void *d_y, const void *x, const void *gate)
{
	if (g->rows <= 0 || g->cols <= 0)
		return;
	with_type(g->type, [&](auto t) {
		typedef decltype(t) T;
		bool wide = wide_rows(x, g->ld_x, sizeof(T)) && wide_rows(d_y, g->ld_y, sizeof(T)) &&
		            wide_rows(gate, g->ld_gate, sizeof(T)) && aligned16(d_x) && aligned16(d_gate) &&
		            g->cols % WIDE<T> == 0;

		with_flag(g->silu, [&](auto silu) {
			with_flag(wide, [&](auto w) {
				constexpr int N = decltype(w)::value ? WIDE<T> : 1;

				LAUNCH(dev, (backward_kernel<T, N, decltype(silu)::value>),
				       grid_for(g->rows * (g->cols / N), THREADS), THREADS, 0, *g, (T *)d_x,
				       (T *)d_gate, (const T *)d_y, (const T *)x, (const T *)gate);
			});
		});
	});
}

extern "C" void device_copy_groups(struct device *dev, const struct device_group_copy *c, void *y,
                                   const void *x)
{
	if (c->rows <= 0 || c->groups <= 0 || c->cols <= 0)
		return;
	with_type(c->type, [&](auto t) {
		typedef decltype(t) T;
		bool wide = wide_rows(x, c->ld_x, sizeof(T)) && wide_rows(y, c->ld_y, sizeof(T)) &&
		            c->cols % WIDE<T> == 0 && c->step_x % WIDE<T> == 0 && c->step_y % WIDE<T> == 0;

		with_flag(wide, [&](auto w) {
			constexpr int N = decltype(w)::value ? WIDE<T> : 1;

			LAUNCH(dev, (copy_kernel<T, N>),
			       grid_for(c->rows * c->groups * (c->cols / N), THREADS), THREADS, 0, *c, (T *)y,
			       (const T *)x);
		});
	});
}
