// SPDX-License-Identifier: Apache-2.0
/*
 * The rows of a mixture of experts: their places, and what is done with them. The places come from a counting
 * sort of the choices, in chunks of which a warp has each: the choices of each expert in a chunk are counted,
 * the counts become the expert's first place in the chunk, and then each choice takes the next place of its
 * expert. The counts of a chunk lie at the beginning of its part of `place`, which only its own warp writes
 * afterwards, so that no other memory is needed. All of `row` is set to -1 before, because only the places of
 * choices are written. Gathering, sums and weighing read and write each element once.
 */
#include "engine/device/cuda/kernel.cuh"

#define THREADS      256
#define CHUNK_LEAST  DEVICE_EXPERTS_MAX /* choices; a chunk has room for a count of each expert */
#define CHUNKS_MOST  1024 /* with more, adding up the counts would take longer than the chunks do */
#define COUNTERS     1024 /* threads that add up the counts */
#define AHEAD        4    /* loads of each matrix that a thread has under way */
#define COUNTS_AHEAD 8    /* loads of counts */

/* ---- places ---- */
struct chunks {
	int64_t choices, size; /* the first `longer` chunks have one choice more */
	int count, longer, experts, chosen, multiple;
};

static __device__ __forceinline__ int64_t chunk_first(const struct chunks &c, int chunk)
{
	return chunk * c.size + (chunk < c.longer ? chunk : c.longer);
}

/* next[] has the next place of each expert. A warp moves it past the choices [lo, hi), 32 at a time and in
 * their order; with WRITES it also writes their places. */
template <bool WRITES>
static __device__ __forceinline__ void take_places(int32_t *next, const struct chunks &c, int32_t *row,
                                                   int32_t *place, const int32_t *expert, int64_t lo,
                                                   int64_t hi)
{
	int lane = (int)threadIdx.x;

	for (int64_t first = lo + lane; first - lane < hi; first += AHEAD * 32) {
		int e[AHEAD];

#pragma unroll
		for (int a = 0; a < AHEAD; a++)
			e[a] = first + a * 32 < hi ? expert[first + a * 32] : -1;
#pragma unroll
		for (int a = 0; a < AHEAD; a++) {
			uint32_t same = warp_match(e[a]);
			int32_t at = e[a] < 0 ? 0 : next[e[a]] + __popc(same & ((1u << lane) - 1));
			int64_t i = first + a * 32;

			__syncwarp(); /* all have read next[] */
			if (e[a] >= 0) {
				if (same >> lane == 1) /* the last lane of its expert */
					next[e[a]] = at + 1;
				if (WRITES) {
					place[i] = at;
					row[at] = (int32_t)quotient(i, c.chosen);
				}
			}
			__syncwarp();
		}
	}
}

/* The sum of x of this lane and of all lanes before it. */
static __device__ __forceinline__ int32_t warp_sum_to(int32_t x)
{
	int lane = (int)threadIdx.x % 32;

#pragma unroll
	for (int by = 1; by < 32; by *= 2) {
		int32_t before = shuffle(x, lane - by);

		x += lane >= by ? before : 0;
	}
	return x;
}

/* The number of places of an expert that so many choices have. */
static __device__ __forceinline__ int32_t padded(int32_t count, int multiple)
{
	return (count + multiple - 1) / multiple * multiple;
}

/* All places by one warp, where there are too few choices for two chunks. */
static __global__ void __launch_bounds__(32)
    few_places_kernel(struct chunks c, int32_t *starts, int32_t *row, int32_t *place, const int32_t *expert)
{
	__shared__ int32_t next[DEVICE_EXPERTS_MAX];
	int lane = (int)threadIdx.x;
	int32_t before = 0;

	for (int e = lane; e < c.experts; e += 32)
		next[e] = 0;
	__syncwarp();
	take_places<false>(next, c, NULL, NULL, expert, 0, c.choices);
	for (int first = 0; first < c.experts; first += 32) {
		int e = first + lane;
		int32_t count = e < c.experts ? next[e] : 0, places = padded(count, c.multiple),
		        to = warp_sum_to(places);

		if (e < c.experts) {
			next[e] = starts[e] = before + to - places;
			starts[c.experts + 1 + e] = count;
		}
		before += shuffle(to, 31);
	}
	if (lane == 0)
		starts[c.experts] = before;
	__syncwarp();
	take_places<true>(next, c, row, place, expert, 0, c.choices);
}

static __global__ void __launch_bounds__(32)
    count_kernel(struct chunks c, int32_t *place, const int32_t *expert)
{
	__shared__ int32_t next[DEVICE_EXPERTS_MAX];
	int64_t lo = chunk_first(c, (int)blockIdx.x), hi = chunk_first(c, (int)blockIdx.x + 1);

	for (int e = (int)threadIdx.x; e < c.experts; e += 32)
		next[e] = 0;
	__syncwarp();
	take_places<false>(next, c, NULL, NULL, expert, lo, hi);
	for (int e = (int)threadIdx.x; e < c.experts; e += 32)
		place[lo + e] = next[e];
}

/* Adds the counts of expert e in chunks [lo, hi) to `sum`; with WRITES each count is replaced by the sum
 * before it. */
template <bool WRITES>
static __device__ __forceinline__ int32_t add_counts(const struct chunks &c, int32_t *place, int e, int lo,
                                                     int hi, int32_t sum)
{
	for (int first = lo; first < hi; first += COUNTS_AHEAD) {
		int32_t count[COUNTS_AHEAD];

#pragma unroll
		for (int a = 0; a < COUNTS_AHEAD; a++)
			count[a] = first + a < hi ? place[chunk_first(c, first + a) + e] : 0;
#pragma unroll
		for (int a = 0; a < COUNTS_AHEAD; a++) {
			if (WRITES && first + a < hi)
				place[chunk_first(c, first + a) + e] = sum;
			sum += count[a];
		}
	}
	return sum;
}

/* The sum of x of all threads before this one. */
static __device__ __forceinline__ int32_t block_sum_before(int32_t x)
{
	__shared__ int32_t part[COUNTERS / 32];
	int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
	int32_t to = warp_sum_to(x), parts;

	if (lane == 31)
		part[warp] = to;
	__syncthreads();
	parts = warp_sum_to(part[lane]);
	return to - x + (shuffle(parts, warp) - part[warp]);
}

/*
 * The first places of each expert in each chunk. A thread has a slice of the chunks for one expert. The
 * slices' sums lie in shared memory in the order of the places, all of the first expert before those of the
 * second, so that the differences of the sums before them are those of an expert's places. Thread e adds up
 * the places of the experts before e.
 */
static __global__ void __launch_bounds__(COUNTERS)
    starts_kernel(struct chunks c, int32_t *starts, int32_t *place)
{
	__shared__ int32_t sums[COUNTERS];
	int slices = COUNTERS / c.experts, t = (int)threadIdx.x, e = t % c.experts, slice = t / c.experts;
	int size = (c.count + slices - 1) / slices, lo = slice * size,
	    hi = lo + size < c.count ? lo + size : c.count;
	int32_t before, count = 0, places, first;

	if (slice < slices)
		sums[e * slices + slice] = add_counts<false>(c, place, e, lo, hi, 0);
	else
		sums[t] = 0;
	__syncthreads();
	before = block_sum_before(sums[t]);
	sums[t] = before;
	__syncthreads();
	if (slice == 0)
		count = (e + 1 < c.experts ? sums[(e + 1) * slices] : (int32_t)c.choices) - sums[e * slices];
	places = padded(count, c.multiple);
	first = block_sum_before(places);
	if (slice == 0) {
		starts[e] = first;
		starts[c.experts + 1 + e] = count;
		if (e == c.experts - 1)
			starts[c.experts] = first + places;
	}
	__syncthreads();
	if (slice < slices)
		add_counts<true>(c, place, e, lo, hi,
		                 starts[e] + (sums[e * slices + slice] - sums[e * slices]));
}

static __global__ void __launch_bounds__(32)
    places_kernel(struct chunks c, int32_t *row, int32_t *place, const int32_t *expert)
{
	__shared__ int32_t next[DEVICE_EXPERTS_MAX];
	int64_t lo = chunk_first(c, (int)blockIdx.x), hi = chunk_first(c, (int)blockIdx.x + 1);

	for (int e = (int)threadIdx.x; e < c.experts; e += 32)
		next[e] = place[lo + e];
	__syncwarp();
	take_places<true>(next, c, row, place, expert, lo, hi);
}

extern "C" void device_expert_places(struct device *dev, const struct device_router *r, int32_t *starts,
                                     int32_t *row, int32_t *place, const int32_t *expert)
{
	struct chunks c = {.choices = r->tokens * r->chosen,
	                   .experts = r->experts,
	                   .chosen = r->chosen,
	                   .multiple = r->multiple};
	cudaError_t status;

	if (!device_router_fits(dev, r, "expert_places"))
		return;
	status = cudaMemsetAsync(row, 0xff, (size_t)device_places_most(r) * sizeof(*row), dev->stream);
	if (status)
		device_fault(dev, -EIO, "expert_places: %s", cudaGetErrorString(status));
	if (c.choices < 2 * CHUNK_LEAST) {
		LAUNCH(dev, few_places_kernel, 1, 32, 0, c, starts, row, place, expert);
		return;
	}
	c.count = (int)(c.choices / CHUNK_LEAST < CHUNKS_MOST ? c.choices / CHUNK_LEAST : CHUNKS_MOST);
	c.size = c.choices / c.count;
	c.longer = (int)(c.choices % c.count);
	LAUNCH(dev, count_kernel, (unsigned)c.count, 32, 0, c, place, expert);
	LAUNCH(dev, starts_kernel, 1, COUNTERS, 0, c, starts, place);
	LAUNCH(dev, places_kernel, (unsigned)c.count, 32, 0, c, row, place, expert);
}

/* ---- gathering ---- */
/* A warp has a row of y. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    rows_kernel(T *y, const T *x, const int32_t *row, int64_t places, int cols)
{
	int64_t p = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
	int lane = (int)threadIdx.x % 32, packs = cols / N;
	int32_t from = p < places ? row[p] : -1;
	const pack<T, N> *of_x = (const pack<T, N> *)(x + (int64_t)from * cols);
	pack<T, N> *of_y = (pack<T, N> *)(y + p * cols);

	if (p >= places)
		return;
	for (int first = lane; first < packs; first += AHEAD * 32) {
		pack<T, N> raw[AHEAD] = {};

#pragma unroll
		for (int a = 0; a < AHEAD; a++)
			if (from >= 0 && first + a * 32 < packs)
				raw[a] = of_x[first + a * 32];
#pragma unroll
		for (int a = 0; a < AHEAD; a++)
			if (first + a * 32 < packs)
				of_y[first + a * 32] = raw[a];
	}
}

extern "C" void device_expert_rows(struct device *dev, const struct device_router *r, void *y, const void *x,
                                   const int32_t *row, int64_t places, int cols)
{
	unsigned blocks = (unsigned)ceil_div(places, THREADS / 32);

	if (places <= 0)
		return;
	with_type(r->type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;

		if (wide_rows(x, cols, sizeof(T)) && aligned16(y))
			LAUNCH(dev, (rows_kernel<T, N>), blocks, THREADS, 0, (T *)y, (const T *)x, row,
			       places, cols);
		else
			LAUNCH(dev, (rows_kernel<T, 1>), blocks, THREADS, 0, (T *)y, (const T *)x, row,
			       places, cols);
	});
}

/* ---- sums and weights ---- */
/* The places of some choices are loaded before the first of their rows, and the rows before the first is
 * added, so that the loads do not wait for each other. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    sum_kernel(T *y, const T *x, const int32_t *place, const float *weight, int64_t tokens, int chosen,
               int cols)
{
	int64_t packs = cols / N, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < tokens * packs; p += stride) {
		int64_t t = quotient(p, packs), i = (p - t * packs) * N;
		float sum[N] = {};

		for (int first = 0; first < chosen; first += AHEAD) {
			pack<T, N> raw[AHEAD] = {};
			int32_t row[AHEAD];
			float w[AHEAD];

#pragma unroll
			for (int a = 0; a < AHEAD; a++) {
				bool some = first + a < chosen;
				int64_t at = t * chosen + first + a;

				row[a] = some ? place[at] : -1;
				w[a] = some && weight ? weight[at] : 1;
			}
#pragma unroll
			for (int a = 0; a < AHEAD; a++)
				if (row[a] >= 0)
					raw[a] = *(const pack<T, N> *)(x + (int64_t)row[a] * cols + i);
#pragma unroll
			for (int a = 0; a < AHEAD; a++)
				if (row[a] >= 0)
#pragma unroll
					for (int k = 0; k < N; k++)
						sum[k] += w[a] * to_float(raw[a].v[k]);
		}
		store(y + t * cols + i, sum);
	}
}

extern "C" void device_expert_sum(struct device *dev, const struct device_router *r, void *y, const void *x,
                                  const int32_t *place, const float *weight, int cols)
{
	if (r->tokens <= 0 || cols <= 0)
		return;
	with_type(r->type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;

		if (wide_rows(x, cols, sizeof(T)) && aligned16(y))
			LAUNCH(dev, (sum_kernel<T, N>), grid_for(r->tokens * cols / N, THREADS), THREADS, 0,
			       (T *)y, (const T *)x, place, weight, r->tokens, r->chosen, cols);
		else
			LAUNCH(dev, (sum_kernel<T, 1>), grid_for(r->tokens * cols, THREADS), THREADS, 0,
			       (T *)y, (const T *)x, place, weight, r->tokens, r->chosen, cols);
	});
}

/* A warp has a row of each matrix. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    weigh_kernel(float *d_weight, T *d, T *x, const int32_t *place, const float *weight, int64_t places,
                 int cols)
{
	int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
	int lane = (int)threadIdx.x % 32, packs = cols / N;
	float w, sum = 0;
	pack<T, N> *of_d, *of_x;

	if (row >= places)
		return;
	w = weight[row];
	of_d = (pack<T, N> *)(d + (int64_t)place[row] * cols);
	of_x = (pack<T, N> *)(x + (int64_t)place[row] * cols);
	for (int first = lane; first < packs; first += AHEAD * 32) {
		pack<T, N> a[AHEAD] = {}, b[AHEAD] = {};

#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (first + j * 32 < packs) {
				a[j] = of_d[first + j * 32];
				b[j] = of_x[first + j * 32];
			}
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			float v[N], u[N];

			if (first + j * 32 >= packs)
				continue;
			load(v, a[j].v);
			load(u, b[j].v);
#pragma unroll
			for (int k = 0; k < N; k++) {
				sum += v[k] * u[k];
				v[k] *= w;
				u[k] *= w;
			}
			store((T *)&of_d[first + j * 32], v);
			store((T *)&of_x[first + j * 32], u);
		}
	}
	sum = warp_sum(sum);
	if (lane == 0)
		d_weight[row] = sum;
}

extern "C" void device_expert_weigh(struct device *dev, const struct device_router *r, float *d_weight,
                                    void *d, void *x, const int32_t *place, const float *weight, int cols)
{
	int64_t places = r->tokens * r->chosen;
	unsigned blocks = (unsigned)ceil_div(places, THREADS / 32);

	if (places <= 0)
		return;
	with_type(r->type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;

		if (wide_rows(x, cols, sizeof(T)) && aligned16(d))
			LAUNCH(dev, (weigh_kernel<T, N>), blocks, THREADS, 0, d_weight, (T *)d, (T *)x, place,
			       weight, places, cols);
		else
			LAUNCH(dev, (weigh_kernel<T, 1>), blocks, THREADS, 0, d_weight, (T *)d, (T *)x, place,
			       weight, places, cols);
	});
}
