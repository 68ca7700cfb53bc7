// SPDX-License-Identifier: Apache-2.0
/*
 * RMSNorm. A team of threads has a row: a warp where its registers hold the row, else a block, which waits
 * for itself at each sum. Between the sum and the product the row stays in the registers of the team, if it
 * fits: KEEP packs for each thread, and no more than the row needs, so that as many rows as possible are
 * under way. On an H200 a warp for a row of 2048 in bf16 takes 45 µs for 16384 rows, a block 119 µs. Each
 * element is then read and written once: in bf16 the forward pass moves 4 bytes for it (8 with the residual),
 * the backward pass 6 (8 when it accumulates). Heads that are rotated behind their norm are rotated back when
 * their gradients are loaded, which saves a kernel that moves 4. Largest magnitudes of what is written, for
 * products in fp8, are found on the way (fp8.cu), which saves one that moves 2.
 */
#include "engine/device/cuda/columns.cuh"
#include "engine/device/cuda/kernel.cuh"
#include "engine/device/cuda/rotation.cuh"
#include "engine/device/qk_norm.h"

#define THREADS   256
#define MOST_READ 16 /* packs of a row in a thread's registers, as they were read */
#define MOST_KEPT 4  /* the same, in fp32 and beside gradients and their sums */

struct norm_shape {
	int64_t rows; /* tokens · groups */
	int groups, cols;
	int64_t ld_x, ld_y;
	float eps, offset;
	float *amax; /* NULL: not wanted */
};

template <int TEAM> static __device__ __forceinline__ float team_sum(float x)
{
	return TEAM == 32 ? warp_sum(x) : block_sum(x);
}

template <int TEAM> static __device__ __forceinline__ void team_max_into(float *to, float x)
{
	if (TEAM > 32) {
		block_max_into(to, x);
		return;
	}
	x = warp_max(x);
	if (threadIdx.x % 32 == 0)
		max_into(to, x);
}

/* The sum of squares of the packs of a row that a thread has, from element `first` on, which are then in
 * `keep`. Where ADD, the residual's are added, and written there. All are read before any is written: the
 * compiler would not move a read over a write. */
template <typename T, int N, int TEAM, int K, bool ADD>
static __device__ __forceinline__ float norm_load(pack<T, N> *keep, const T *x, T *residual, int first,
                                                  int cols)
{
	float squares = 0;
	pack<T, N> r[ADD ? K : 1];

#pragma unroll
	for (int j = 0; j < K; j++) {
		int i = first + j * TEAM * N;

		if (i >= cols)
			continue;
		keep[j] = *(const pack<T, N> *)(x + i);
		if (ADD)
			r[j] = *(const pack<T, N> *)(residual + i);
	}
#pragma unroll
	for (int j = 0; j < K; j++) {
		int i = first + j * TEAM * N;
		float v[N];

		if (i >= cols)
			continue;
		if (ADD) {
#pragma unroll
			for (int k = 0; k < N; k++)
				keep[j].v[k] = from_float<T>(to_float(keep[j].v[k]) + to_float(r[j].v[k]));
			*(pack<T, N> *)(residual + i) = keep[j];
		}
		load(v, keep[j].v);
#pragma unroll
		for (int k = 0; k < N; k++)
			squares += v[k] * v[k];
	}
	return squares;
}

/* The larger of `max` and, where `finds`, of what it stores. */
template <typename T, int N>
static __device__ __forceinline__ float norm_store(T *y, const pack<T, N> &in, const T *w, float offset,
                                                   float rstd, bool finds, float max)
{
	float v[N], out[N];

	load(v, in.v);
	load(out, w);
#pragma unroll
	for (int k = 0; k < N; k++)
		out[k] = v[k] * rstd * (out[k] + offset);
	store(y, out);
	return finds ? fmaxf(max, largest<T>(out)) : max;
}

template <typename T, int N, int TEAM, int KEEP, bool ADD>
static __global__ void __launch_bounds__(THREADS)
    norm_forward(norm_shape n, T *y, float *rstd, T *residual, const T *x, const T *w)
{
	constexpr int AT_ONCE = KEEP < 8 ? KEEP : 8;
	int64_t row = (int64_t)blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
	int i0 = (int)(threadIdx.x % TEAM) * N;
	pack<T, N> keep[KEEP] = {};
	float squares = 0, max = 0, r;

	if (row >= n.rows)
		return;
	int64_t at_x = row / n.groups * n.ld_x + row % n.groups * n.cols;
	int64_t at_y = row / n.groups * n.ld_y + row % n.groups * n.cols;
#pragma unroll
	for (int j = 0; j < KEEP; j += AT_ONCE)
		squares += norm_load<T, N, TEAM, AT_ONCE, ADD>(keep + j, x + at_x, residual + at_x,
		                                               i0 + j * TEAM * N, n.cols);
	for (int i = i0 + KEEP * TEAM * N; i < n.cols; i += TEAM * N) {
		pack<T, N> v;

		squares += norm_load<T, N, TEAM, 1, ADD>(&v, x + at_x, residual + at_x, i, n.cols);
	}
	r = 1.0f / sqrtf(team_sum<TEAM>(squares) / (float)n.cols + n.eps);
	if (rstd && threadIdx.x % TEAM == 0)
		rstd[row] = r;
#pragma unroll
	for (int j = 0; j < KEEP; j++) {
		int i = i0 + j * TEAM * N;

		if (i < n.cols)
			max = norm_store<T, N>(y + at_y + i, keep[j], w + i, n.offset, r, n.amax, max);
	}
	for (int i = i0 + KEEP * TEAM * N; i < n.cols; i += TEAM * N) {
		pack<T, N> v = *(const pack<T, N> *)((ADD ? residual : x) + at_x + i);

		max = norm_store<T, N>(y + at_y + i, v, w + i, n.offset, r, n.amax, max);
	}
	if (n.amax)
		team_max_into<TEAM>(n.amax, max);
}

template <int K> struct packs {
	static constexpr int value = K;
};

/* Calls f with the packs of N that a thread of `team` has of a row, at most MOST; false where it has more. */
template <int N, int MOST, typename F> static bool with_packs(int cols, int team, F f)
{
	int64_t n = ceil_div(cols, (int64_t)team * N);

	if constexpr (MOST > 1)
		if (n <= MOST / 2)
			return with_packs<N, MOST / 2>(cols, team, f);
	if (n <= MOST)
		f(packs<MOST>());
	return n <= MOST;
}

template <typename T, int N, bool ADD>
static void launch_forward(struct device *dev, const norm_shape &n, T *y, float *rstd, T *residual,
                           const T *x, const T *w)
{
	unsigned teams = (unsigned)ceil_div(n.rows, THREADS / 32);

	if (with_packs<N, MOST_READ>(n.cols, 32, [&](auto k) {
		    LAUNCH(dev, (norm_forward<T, N, 32, decltype(k)::value, ADD>), teams, THREADS, 0, n, y,
		           rstd, residual, x, w);
	    }))
		return;
	if (!with_packs<N, MOST_READ>(n.cols, THREADS, [&](auto k) {
		    LAUNCH(dev, (norm_forward<T, N, THREADS, decltype(k)::value, ADD>), (unsigned)n.rows,
		           THREADS, 0, n, y, rstd, residual, x, w);
	    }))
		LAUNCH(dev, (norm_forward<T, N, THREADS, MOST_READ, ADD>), (unsigned)n.rows, THREADS, 0, n, y,
		       rstd, residual, x, w);
}

static norm_shape shape_of(const struct device_norm *n)
{
	return norm_shape{n->rows * n->groups, n->groups, n->cols, n->ld_x, n->ld_y, n->eps,
	                  n->w_offset,         n->amax};
}

/* Heads follow each other without a gap: their rows are wide where the first is and `cols` is. */
static bool wide(const struct device_norm *n, const void *x, const void *y, const void *w, size_t size)
{
	return wide_rows(x, n->ld_x, size) && wide_rows(y, n->ld_y, size) && wide_rows(w, n->cols, size);
}

static void forward(struct device *dev, const struct device_norm *n, void *y, float *rstd, void *residual,
                    const void *x, const void *w)
{
	if (n->amax)
		device_zero(dev, n->amax, sizeof(float));
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
	forward(dev, n, y, rstd, NULL, x, w);
}

extern "C" void device_add_rmsnorm_forward(struct device *dev, const struct device_norm *n, void *y,
                                           float *rstd, void *residual, const void *x, const void *w)
{
	forward(dev, n, y, rstd, residual, x, w);
}

/*
 * With h = x·rstd: d_x = rstd·(d_y·w - h·mean(d_y·w·h)), d_w += d_y·h. A block takes `grain` rows one after
 * the other; each team keeps its sums for d_w, a thread always the same columns, and the block writes one row
 * of parts.
 */
struct norm_work {
	norm_shape n;
	float *parts;
	const float *rstd;
	int64_t grain;
	/* Of rotated heads; the tables have half a head for each position. */
	const int32_t *positions;
	const float *cos_table, *sin_table;
};

/* A pack of d_y, of elements i … i + N - 1 of the head at d_y: rotated back where ROTATE, as rope.cu does it,
 * and rounded as it would have been stored. The halves of a head are rotated with each other. */
template <typename T, int N, bool ROTATE>
static __device__ __forceinline__ void load_gradient(float (&dy)[N], const norm_work &b, const T *d_y, int i,
                                                     int64_t token)
{
	load(dy, d_y + i);
	if (ROTATE) {
		rotate_back(dy, d_y, i, b.n.cols / 2, b.positions[token], b.cos_table, b.sin_table);
#pragma unroll
		for (int k = 0; k < N; k++)
			dy[k] = rounded<T>(dy[k]);
	}
}

/* The block's row of parts from the teams' rows in shared memory. */
static __device__ __forceinline__ void write_parts(const norm_work &b, const float *sums, int teams)
{
	__syncthreads();
	for (int i = (int)threadIdx.x; i < b.n.cols; i += THREADS) {
		float sum = 0;

		for (int j = 0; j < teams; j++)
			sum += sums[(size_t)j * b.n.cols + i];
		b.parts[(int64_t)blockIdx.x * b.n.cols + i] = sum;
	}
}

/* As norm_store. */
template <typename T, int N, bool ACCUMULATE>
static __device__ __forceinline__ float norm_gradient(T *d_x, const float (&dy)[N], const float (&in)[N],
                                                      const T *w, float offset, float r, float mean,
                                                      bool finds, float max)
{
	float out[N];

	load(out, w);
#pragma unroll
	for (int k = 0; k < N; k++)
		out[k] = dy[k] * (out[k] + offset) * r - in[k] * mean;
	if (ACCUMULATE) {
		float before[N];

		load(before, d_x);
#pragma unroll
		for (int k = 0; k < N; k++)
			out[k] += before[k];
	}
	store(d_x, out);
	return finds ? fmaxf(max, largest<T>(out)) : max;
}

/* Rows that fit the registers: they and the sums for d_w stay there. */
template <typename T, int N, int TEAM, int KEEP, bool ACCUMULATE, bool ROTATE>
static __global__ void __launch_bounds__(THREADS)
    norm_backward_kept(norm_work b, T *d_x, const T *d_y, const T *x, const T *w)
{
	constexpr int TEAMS = THREADS / TEAM;
	DYNAMIC_SHARED(memory);
	int team = (int)threadIdx.x / TEAM, i0 = (int)(threadIdx.x % TEAM) * N, cols = b.n.cols;
	int64_t lo = blockIdx.x * b.grain, hi = lo + b.grain < b.n.rows ? lo + b.grain : b.n.rows;
	float dw[KEEP][N] = {}, max = 0;

	for (int64_t row = lo + team; row < hi; row += TEAMS) {
		int64_t at_x = row / b.n.groups * b.n.ld_x + row % b.n.groups * cols;
		int64_t at_y = row / b.n.groups * b.n.ld_y + row % b.n.groups * cols;
		float r = b.rstd[row], sum = 0, mean, dy[KEEP][N] = {}, in[KEEP][N] = {};

#pragma unroll
		for (int j = 0; j < KEEP; j++) {
			int i = i0 + j * TEAM * N;

			if (i < cols) {
				load_gradient<T, N, ROTATE>(dy[j], b, d_y + at_y, i, row / b.n.groups);
				load(in[j], x + at_x + i);
			}
		}
#pragma unroll
		for (int j = 0; j < KEEP; j++) {
			int i = i0 + j * TEAM * N;
			float weight[N];

			if (i >= cols)
				continue;
			load(weight, w + i);
#pragma unroll
			for (int k = 0; k < N; k++) {
				float h = dy[j][k] * in[j][k];

				sum += h * (weight[k] + b.n.offset);
				dw[j][k] += h * r;
			}
		}
		mean = team_sum<TEAM>(sum) * r * r * r / (float)cols;
#pragma unroll
		for (int j = 0; j < KEEP; j++) {
			int i = i0 + j * TEAM * N;

			if (i < cols)
				max = norm_gradient<T, N, ACCUMULATE>(d_x + at_x + i, dy[j], in[j], w + i,
				                                      b.n.offset, r, mean, b.n.amax, max);
		}
	}
	if (b.n.amax)
		block_max_into(b.n.amax, max);
#pragma unroll
	for (int j = 0; j < KEEP; j++) {
		int i = i0 + j * TEAM * N;

		if (i < cols)
			store((TEAMS == 1 ? b.parts + (int64_t)blockIdx.x * cols
			                  : (float *)memory + (size_t)team * cols) +
			          i,
			      dw[j]);
	}
	if (TEAMS > 1)
		write_parts(b, (const float *)memory, TEAMS);
}

/* Longer rows: read twice, and the sums for d_w in shared memory. */
template <typename T, int N, int TEAM, bool ACCUMULATE>
static __global__ void __launch_bounds__(THREADS)
    norm_backward(norm_work b, T *d_x, const T *d_y, const T *x, const T *w)
{
	constexpr int TEAMS = THREADS / TEAM;
	DYNAMIC_SHARED(memory);
	int team = (int)threadIdx.x / TEAM, i0 = (int)(threadIdx.x % TEAM) * N, cols = b.n.cols;
	float *dw = (float *)memory + (size_t)team * cols;
	int64_t lo = blockIdx.x * b.grain, hi = lo + b.grain < b.n.rows ? lo + b.grain : b.n.rows;
	float max = 0;

	for (int i = i0; i < cols; i += TEAM * N)
		for (int k = 0; k < N; k++)
			dw[i + k] = 0;
	for (int64_t row = lo + team; row < hi; row += TEAMS) {
		int64_t at_x = row / b.n.groups * b.n.ld_x + row % b.n.groups * cols;
		int64_t at_y = row / b.n.groups * b.n.ld_y + row % b.n.groups * cols;
		float r = b.rstd[row], sum = 0, mean, dy[N], in[N];

		for (int i = i0; i < cols; i += TEAM * N) {
			float weight[N];

			load(dy, d_y + at_y + i);
			load(in, x + at_x + i);
			load(weight, w + i);
#pragma unroll
			for (int k = 0; k < N; k++) {
				float h = dy[k] * in[k];

				sum += h * (weight[k] + b.n.offset);
				dw[i + k] += h * r;
			}
		}
		mean = team_sum<TEAM>(sum) * r * r * r / (float)cols;
		for (int i = i0; i < cols; i += TEAM * N) {
			load(dy, d_y + at_y + i);
			load(in, x + at_x + i);
			max = norm_gradient<T, N, ACCUMULATE>(d_x + at_x + i, dy, in, w + i, b.n.offset, r,
			                                      mean, b.n.amax, max);
		}
	}
	if (b.n.amax)
		block_max_into(b.n.amax, max);
	write_parts(b, (const float *)memory, TEAMS);
}

/* False where the rows are too long. */
template <typename T, int N, bool ACCUMULATE, bool ROTATE>
static bool launch_backward_kept(struct device *dev, const norm_work &b, T *d_x, const T *d_y, const T *x,
                                 const T *w)
{
	unsigned blocks = (unsigned)ceil_div(b.n.rows, b.grain);
	size_t row = (size_t)b.n.cols * sizeof(float);

	if (with_packs<N, MOST_KEPT>(b.n.cols, 32, [&](auto k) {
		    LAUNCH(dev, (norm_backward_kept<T, N, 32, decltype(k)::value, ACCUMULATE, ROTATE>),
		           blocks, THREADS, row * (THREADS / 32), b, d_x, d_y, x, w);
	    }))
		return true;
	return with_packs<N, MOST_KEPT>(b.n.cols, THREADS, [&](auto k) {
		LAUNCH(dev, (norm_backward_kept<T, N, THREADS, decltype(k)::value, ACCUMULATE, ROTATE>),
		       blocks, THREADS, 0, b, d_x, d_y, x, w);
	});
}

template <typename T, int N, bool ACCUMULATE>
static void launch_backward(struct device *dev, const norm_work &b, T *d_x, const T *d_y, const T *x,
                            const T *w)
{
	unsigned blocks = (unsigned)ceil_div(b.n.rows, b.grain);
	size_t row = (size_t)b.n.cols * sizeof(float);

	if (!launch_backward_kept<T, N, ACCUMULATE, false>(dev, b, d_x, d_y, x, w))
		LAUNCH(dev, (norm_backward<T, N, THREADS, ACCUMULATE>), blocks, THREADS, row, b, d_x, d_y, x,
		       w);
}

extern "C" void device_rmsnorm_backward(struct device *dev, const struct device_norm *n, void *d_x,
                                        bool accumulate, void *d_w, enum dtype grad_type, const void *d_y,
                                        const void *x, const float *rstd, const void *w)
{
	int64_t rows = n->rows * n->groups, grain = ceil_div(rows, COLUMN_PARTS);
	float *parts;

	if (n->amax)
		device_zero(dev, n->amax, sizeof(float));
	if (rows <= 0 || n->cols <= 0)
		return;
	parts = (float *)device_scratch(dev, (size_t)COLUMN_PARTS * (size_t)n->cols * sizeof(float),
	                                "rmsnorm_backward");
	if (!parts)
		return;
	norm_work work = {shape_of(n), parts, rstd, grain, NULL, NULL, NULL};

	with_type(n->type, [&](auto t) {
		typedef decltype(t) T;

		with_flag(accumulate, [&](auto add) {
			constexpr bool ADD = decltype(add)::value;

			if (wide(n, x, d_y, w, sizeof(T)) && aligned16(d_x))
				launch_backward<T, WIDE<T>, ADD>(dev, work, (T *)d_x, (const T *)d_y,
				                                 (const T *)x, (const T *)w);
			else
				launch_backward<T, 1, ADD>(dev, work, (T *)d_x, (const T *)d_y, (const T *)x,
				                           (const T *)w);
		});
	});
	column_finish(dev, d_w, grad_type, parts, ceil_div(rows, grain), n->cols);
}

/* ---- heads that are rotated behind their norm ---- */
/* What a row may have at most is what norm_backward_kept takes; whoever calls has seen to the alignment. */
template <typename T, int N>
static void rotated_backward(struct device *dev, const struct device_qk_norm *n, int heads, T *d, void *d_w,
                             enum dtype grad_type, const T *x, const float *rstd, const T *w)
{
	int64_t rows = n->tokens * heads, grain = ceil_div(rows, COLUMN_PARTS);
	float *parts = (float *)device_scratch(
	    dev, (size_t)COLUMN_PARTS * (size_t)n->head_dim * sizeof(float), "qk_norm_rope_backward");
	norm_shape shape = {rows, heads, n->head_dim, n->ld, n->ld, n->eps, n->w_offset, NULL};
	norm_work work = {shape, parts, rstd, grain, n->positions, n->cos, n->sin};

	if (!parts)
		return;
	launch_backward_kept<T, N, false, true>(dev, work, d, d, x, w);
	column_finish(dev, d_w, grad_type, parts, ceil_div(rows, grain), n->head_dim);
}

extern "C" void device_qk_norm_rope_backward(struct device *dev, const struct device_qk_norm *n, void *d,
                                             void *d_w_q, void *d_w_k, enum dtype grad_type, const void *x,
                                             const float *rstd, const void *w_q, const void *w_k)
{
	int q = n->heads * n->head_dim;

	if (n->tokens <= 0)
		return;
	with_type(n->type, [&](auto t) {
		typedef decltype(t) T;
		const T *x_q = (const T *)x, *w[2] = {(const T *)w_q, (const T *)w_k};
		/* device_rmsnorm_backward takes packs of q, and of k: the sums have another order without. */
		bool rows = wide_rows(x, n->ld, sizeof(T)) && wide_rows(d, n->ld, sizeof(T));
		bool wide_q = rows && wide_rows(w_q, n->head_dim, sizeof(T));
		bool wide_k = rows && wide_rows(w_k, n->head_dim, sizeof(T));
		/* What a pack is rotated with is a pack, too. */
		bool turns = n->head_dim / 2 % WIDE<T> == 0 && aligned16(n->cos) && aligned16(n->sin);
		auto both = [&](auto pack) {
			constexpr int N = decltype(pack)::value;

			rotated_backward<T, N>(dev, n, n->heads, (T *)d, d_w_q, grad_type, x_q, rstd, w[0]);
			rotated_backward<T, N>(dev, n, n->kv_heads, (T *)d + q, d_w_k, grad_type, x_q + q,
			                       rstd + n->tokens * n->heads, w[1]);
		};

		if (wide_q != wide_k || (wide_q && !turns) || n->head_dim > THREADS * MOST_KEPT)
			/* Heads are too long, or their halves are no packs. */
			qk_norm_rope_backward_apart(dev, n, d, d_w_q, d_w_k, grad_type, x, rstd, w_q, w_k);
		else if (wide_q)
			both(packs<WIDE<T>>());
		else
			both(packs<1>());
	});
}
