// SPDX-License-Identifier: Apache-2.0
/*
 * RMSNorm. A team of threads owns a row: a warp where rows are short (heads), a block where they are long.
 * The row stays in the registers of the team between the sum and the product as far as they reach.
 */
#include "engine/device/cuda/columns.cuh"
#include "engine/device/cuda/kernel.cuh"

#define THREADS 256
#define KEEP    4 /* packs of a row in a thread's registers */

struct norm_shape {
	int64_t rows; /* tokens · groups */
	int groups, cols;
	int64_t ld_x, ld_y;
	float eps;
};

template <int TEAM> static __device__ __forceinline__ float team_sum(float x)
{
	return TEAM == 32 ? warp_sum(x) : block_sum(x);
}

template <typename T, int N, bool ADD>
static __device__ __forceinline__ float norm_load(float (&v)[N], const T *x, T *residual)
{
	float squares = 0;

	load(v, x);
	if (ADD) {
		float r[N];

		load(r, residual);
#pragma unroll
		for (int k = 0; k < N; k++)
			v[k] = rounded<T>(v[k] + r[k]);
		store(residual, v);
	}
#pragma unroll
	for (int k = 0; k < N; k++)
		squares += v[k] * v[k];
	return squares;
}

template <typename T, int N>
static __device__ __forceinline__ void norm_store(T *y, const float (&v)[N], const T *w, float rstd)
{
	float out[N];

	load(out, w);
#pragma unroll
	for (int k = 0; k < N; k++)
		out[k] = v[k] * rstd * out[k];
	store(y, out);
}

template <typename T, int N, int TEAM, bool ADD>
static __global__ void __launch_bounds__(THREADS)
    norm_forward(norm_shape n, T *y, float *rstd, T *residual, const T *x, const T *w)
{
	int64_t row = (int64_t)blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
	int i0 = (int)(threadIdx.x % TEAM) * N;
	float keep[KEEP][N], squares = 0, r;

	if (row >= n.rows)
		return;
	int64_t at_x = row / n.groups * n.ld_x + row % n.groups * n.cols;
	int64_t at_y = row / n.groups * n.ld_y + row % n.groups * n.cols;
#pragma unroll
	for (int j = 0; j < KEEP; j++) {
		int i = i0 + j * TEAM * N;

		if (i < n.cols)
			squares += norm_load<T, N, ADD>(keep[j], x + at_x + i, residual + at_x + i);
	}
	for (int i = i0 + KEEP * TEAM * N; i < n.cols; i += TEAM * N) {
		float v[N];

		squares += norm_load<T, N, ADD>(v, x + at_x + i, residual + at_x + i);
	}
	r = 1.0f / sqrtf(team_sum<TEAM>(squares) / (float)n.cols + n.eps);
	if (rstd && threadIdx.x % TEAM == 0)
		rstd[row] = r;
#pragma unroll
	for (int j = 0; j < KEEP; j++) {
		int i = i0 + j * TEAM * N;

		if (i < n.cols)
			norm_store<T, N>(y + at_y + i, keep[j], w + i, r);
	}
	for (int i = i0 + KEEP * TEAM * N; i < n.cols; i += TEAM * N) {
		float v[N];

		load(v, (ADD ? residual : x) + at_x + i);
		norm_store<T, N>(y + at_y + i, v, w + i, r);
	}
}

template <typename T, int N, bool ADD>
static void launch_forward(struct device *dev, const norm_shape &n, T *y, float *rstd, T *residual,
                           const T *x, const T *w)
{
	if (n.cols <= 32 * N * KEEP)
		LAUNCH(dev, (norm_forward<T, N, 32, ADD>), (unsigned)ceil_div(n.rows, THREADS / 32), THREADS,
		       0, n, y, rstd, residual, x, w);
	else
		LAUNCH(dev, (norm_forward<T, N, THREADS, ADD>), (unsigned)n.rows, THREADS, 0, n, y, rstd,
		       residual, x, w);
}

static norm_shape shape_of(const struct device_norm *n)
{
	return norm_shape{n->rows * n->groups, n->groups, n->cols, n->ld_x, n->ld_y, n->eps};
}

/* Heads follow each other without a gap: their rows are wide where the first is and `cols` is. */
static bool wide(const struct device_norm *n, const void *x, const void *y, const void *w, size_t size)
{
	return wide_rows(x, n->ld_x, size) && wide_rows(y, n->ld_y, size) && wide_rows(w, n->cols, size);
}

static void forward(struct device *dev, const struct device_norm *n, void *y, float *rstd, void *residual,
                    const void *x, const void *w)
{
	if (n->rows <= 0 || n->groups <= 0 || n->cols <= 0)
		return;
	with_type(n->type, [&](auto t) {
		typedef decltype(t) T;

		with_flag(residual != NULL, [&](auto add) {
			constexpr bool ADD = decltype(add)::value;
			bool w16 = wide(n, x, y, w, sizeof(T)) && aligned16(residual);

			if (w16)
				launch_forward<T, WIDE<T>, ADD>(dev, shape_of(n), (T *)y, rstd, (T *)residual,
				                                (const T *)x, (const T *)w);
			else
				launch_forward<T, 1, ADD>(dev, shape_of(n), (T *)y, rstd, (T *)residual,
				                          (const T *)x, (const T *)w);
		});
	});
}

extern "C" void device_rmsnorm_forward(struct device *dev, const struct device_norm *n, void *y, float *rstd,
                                       const void *x, const void *w)
{
	if (computes(dev, "rmsnorm_forward", n->type, n->type))
		forward(dev, n, y, rstd, NULL, x, w);
}

extern "C" void device_add_rmsnorm_forward(struct device *dev, const struct device_norm *n, void *y,
                                           float *rstd, void *residual, const void *x, const void *w)
{
	if (computes(dev, "add_rmsnorm_forward", n->type, n->type))
		forward(dev, n, y, rstd, residual, x, w);
}

/*
 * With h = x·rstd: d_x = rstd·(d_y·w - h·mean(d_y·w·h)), d_w += d_y·h. A block takes `grain` rows one after
 * the other; each team keeps its sums for d_w in shared memory, a thread always the same columns, and the
 * block writes one row of parts.
 */
template <typename T, int N, int TEAM, bool ACCUMULATE>
static __global__ void __launch_bounds__(THREADS)
    norm_backward(norm_shape n, T *d_x, float *parts, const T *d_y, const T *x, const float *rstd, const T *w,
                  int64_t grain)
{
	constexpr int TEAMS = THREADS / TEAM;
	DYNAMIC_SHARED(memory);
	int team = (int)threadIdx.x / TEAM, i0 = (int)(threadIdx.x % TEAM) * N;
	float *dw = (float *)memory + (size_t)team * n.cols;
	int64_t lo = blockIdx.x * grain, hi = lo + grain < n.rows ? lo + grain : n.rows;

	for (int i = i0; i < n.cols; i += TEAM * N)
		for (int k = 0; k < N; k++)
			dw[i + k] = 0;
	for (int64_t row = lo + team; row < hi; row += TEAMS) {
		int64_t at_x = row / n.groups * n.ld_x + row % n.groups * n.cols;
		int64_t at_y = row / n.groups * n.ld_y + row % n.groups * n.cols;
		float r = rstd[row], sum = 0, mean;

		for (int i = i0; i < n.cols; i += TEAM * N) {
			float dy[N], in[N], weight[N];

			load(dy, d_y + at_y + i);
			load(in, x + at_x + i);
			load(weight, w + i);
#pragma unroll
			for (int k = 0; k < N; k++) {
				float h = dy[k] * in[k];

				sum += h * weight[k];
				dw[i + k] += h * r;
			}
		}
		mean = team_sum<TEAM>(sum) * r * r * r / (float)n.cols;
		for (int i = i0; i < n.cols; i += TEAM * N) {
			float dy[N], in[N], out[N];

			load(dy, d_y + at_y + i);
			load(in, x + at_x + i);
			load(out, w + i);
#pragma unroll
			for (int k = 0; k < N; k++)
				out[k] = dy[k] * out[k] * r - in[k] * mean;
			if (ACCUMULATE) {
				float before[N];

				load(before, d_x + at_x + i);
#pragma unroll
				for (int k = 0; k < N; k++)
					out[k] += before[k];
			}
			store(d_x + at_x + i, out);
		}
	}
	__syncthreads();
	for (int i = (int)threadIdx.x; i < n.cols; i += THREADS) {
		float sum = 0;

		for (int j = 0; j < TEAMS; j++)
			sum += ((float *)memory)[(size_t)j * n.cols + i];
		parts[(int64_t)blockIdx.x * n.cols + i] = sum;
	}
}

template <typename T, int N, bool ACCUMULATE>
static void launch_backward(struct device *dev, const norm_shape &n, T *d_x, float *parts, const T *d_y,
                            const T *x, const float *rstd, const T *w, int64_t grain)
{
	unsigned blocks = (unsigned)ceil_div(n.rows, grain);
	size_t row = (size_t)n.cols * sizeof(float);

	if (n.cols <= 32 * N * KEEP)
		LAUNCH(dev, (norm_backward<T, N, 32, ACCUMULATE>), blocks, THREADS, row * (THREADS / 32), n,
		       d_x, parts, d_y, x, rstd, w, grain);
	else
		LAUNCH(dev, (norm_backward<T, N, THREADS, ACCUMULATE>), blocks, THREADS, row, n, d_x, parts,
		       d_y, x, rstd, w, grain);
}

extern "C" void device_rmsnorm_backward(struct device *dev, const struct device_norm *n, void *d_x,
                                        bool accumulate, void *d_w, enum dtype grad_type, const void *d_y,
                                        const void *x, const float *rstd, const void *w)
{
	int64_t rows = n->rows * n->groups, grain = ceil_div(rows, COLUMN_PARTS);
	float *parts;

	if (rows <= 0 || n->cols <= 0 || !computes(dev, "rmsnorm_backward", n->type, grad_type))
		return;
	parts = (float *)device_scratch(dev, (size_t)COLUMN_PARTS * (size_t)n->cols * sizeof(float),
	                                "rmsnorm_backward");
	if (!parts)
		return;
	with_type(n->type, [&](auto t) {
		typedef decltype(t) T;

		with_flag(accumulate, [&](auto add) {
			constexpr bool ADD = decltype(add)::value;

			if (wide(n, x, d_y, w, sizeof(T)) && aligned16(d_x))
				launch_backward<T, WIDE<T>, ADD>(dev, shape_of(n), (T *)d_x, parts,
				                                 (const T *)d_y, (const T *)x, rstd,
				                                 (const T *)w, grain);
			else
				launch_backward<T, 1, ADD>(dev, shape_of(n), (T *)d_x, parts, (const T *)d_y,
				                           (const T *)x, rstd, (const T *)w, grain);
		});
	});
	column_finish(dev, d_w, grad_type, parts, ceil_div(rows, grain), n->cols);
}
