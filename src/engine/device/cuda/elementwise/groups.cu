// SPDX-License-Identifier: Apache-2.0
/* Columns by groups: each is read and written once, 16 bytes at a time where all of them are aligned. */
#include "engine/device/cuda/kernel.cuh"

#define GROUP_THREADS 256

/* to and from: the parts and the whole, or the reverse with JOIN. */
template <typename T, int N, bool JOIN>
static __global__ void __launch_bounds__(GROUP_THREADS)
    columns_kernel(T *to, const T *from, struct device_groups g)
{
	int64_t width = g.cols / g.groups, packs = g.cols / N, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < g.rows * packs; p += stride) {
		int64_t row = quotient(p, packs), col = (p - row * packs) * N, group = quotient(col, width);
		int64_t part = (group * g.rows + row) * g.ld_part + col - group * width,
		        whole = row * g.ld_whole + col;

		*(pack<T, N> *)(to + (JOIN ? whole : part)) =
		    *(const pack<T, N> *)(from + (JOIN ? part : whole));
	}
}

template <bool JOIN>
static void move_columns(struct device *dev, const struct device_groups *g, void *to, const void *from)
{
	if (g->rows <= 0 || g->cols <= 0)
		return;
	with_type(g->type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;
		int64_t width = g->cols / g->groups;

		if (wide_rows(JOIN ? to : from, g->ld_whole, sizeof(T)) &&
		    wide_rows(JOIN ? from : to, g->ld_part, sizeof(T)) && width % N == 0)
			LAUNCH(dev, (columns_kernel<T, N, JOIN>),
			       grid_for(g->rows * g->cols / N, GROUP_THREADS), GROUP_THREADS, 0, (T *)to,
			       (const T *)from, *g);
		else
			LAUNCH(dev, (columns_kernel<T, 1, JOIN>), grid_for(g->rows * g->cols, GROUP_THREADS),
			       GROUP_THREADS, 0, (T *)to, (const T *)from, *g);
	});
}

extern "C" void device_part_columns(struct device *dev, const struct device_groups *g, void *parts,
                                    const void *whole)
{
	move_columns<false>(dev, g, parts, whole);
}

extern "C" void device_join_columns(struct device *dev, const struct device_groups *g, void *whole,
                                    const void *parts)
{
	move_columns<true>(dev, g, whole, parts);
}
