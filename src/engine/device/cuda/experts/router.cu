// SPDX-License-Identifier: Apache-2.0
/*
 * The router of a mixture of experts. A warp has a token: its logits are read once and stay in the registers,
 * four neighbouring ones in each pack, and lane i keeps the token's choice i. Logits are small beside the
 * rows that experts compute (256 bytes of a token with 128 experts in bf16), so these kernels wait for the
 * steps of the choice and not for the memory.
 */
#include "engine/device/cuda/kernel.cuh"

#include <type_traits>

#define THREADS 256
#define TOKENS  (THREADS / 32) /* of a block */
#define PACK    4              /* logits */

/* The expert whose logit is value v of this lane. */
static __device__ __forceinline__ int expert_of(int v)
{
	return (v / PACK * 32 + (int)threadIdx.x % 32) * PACK + v % PACK;
}

/* A lane's values of a row; those behind its end are `empty`. wide: packs can be read at once. */
template <typename T, int VALUES>
static __device__ __forceinline__ void load_row(float (&x)[VALUES], const T *row, int experts, bool wide,
                                                float empty)
{
#pragma unroll
	for (int v = 0; v < VALUES; v += PACK) {
		int e = expert_of(v);
		float part[PACK];

#pragma unroll
		for (int k = 0; k < PACK; k++)
			part[k] = empty;
		if (wide && e < experts) {
			load(part, row + e);
		} else {
#pragma unroll
			for (int k = 0; k < PACK; k++)
				if (e + k < experts)
					part[k] = to_float(row[e + k]);
		}
#pragma unroll
		for (int k = 0; k < PACK; k++)
			x[v + k] = part[k];
	}
}

template <typename T, int VALUES>
static __device__ __forceinline__ void store_row(T *row, const float (&x)[VALUES], int experts, bool wide)
{
#pragma unroll
	for (int v = 0; v < VALUES; v += PACK) {
		int e = expert_of(v);
		float part[PACK];

#pragma unroll
		for (int k = 0; k < PACK; k++)
			part[k] = x[v + k];
		if (wide && e < experts) {
			store(row + e, part);
		} else {
#pragma unroll
			for (int k = 0; k < PACK; k++)
				if (e + k < experts)
					row[e + k] = from_float<T>(part[k]);
		}
	}
}

/* A row's maximum, and the sum of exponentials, which is a NaN where a logit is one or is +INFINITY. */
struct softmax {
	float max, sum;
};

template <int VALUES> static __device__ __forceinline__ softmax softmax_of(const float (&x)[VALUES])
{
	softmax s = {-INFINITY, 0};

#pragma unroll
	for (int v = 0; v < VALUES; v++)
		s.max = fmaxf(s.max, x[v]);
	s.max = warp_max(s.max);
#pragma unroll
	for (int v = 0; v < VALUES; v++)
		s.sum += expf(x[v] - s.max);
	s.sum = warp_sum(s.sum);
	return s;
}

/* ---- the choice ---- */
/* Integers in the order of the numbers: 0 stands for an expert that is not to be chosen, and 1 for a NaN,
 * which is chosen last. Both zeros are equal. */
static __device__ __forceinline__ uint32_t height_of(float x)
{
	uint32_t bits = float_bits(x == 0 ? 0.0f : x);

	if (x != x)
		return 1;
	return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The number again: a NaN of 1. */
static __device__ __forceinline__ float number_of(uint32_t height)
{
	return bits_float(height >> 31 ? height & 0x7fffffffu : ~height);
}

/* The greatest height in the upper half, and the complement of its expert in the lower one, so that of equal
 * heights the lowest expert is the greatest. */
template <int VALUES> static __device__ __forceinline__ uint64_t highest(const uint32_t (&height)[VALUES])
{
	uint32_t most = 0;
	int at = 0;
	uint64_t best;

#pragma unroll
	for (int v = 0; v < VALUES; v++)
		if (height[v] > most) {
			most = height[v];
			at = expert_of(v);
		}
	best = (uint64_t)most << 32 | ~(uint32_t)at;
#pragma unroll
	for (int mask = 16; mask; mask >>= 1) {
		uint64_t other = shuffle_xor(best, mask);

		best = other > best ? other : best;
	}
	return best;
}

template <typename T, int VALUES>
static __global__ void __launch_bounds__(THREADS)
    route_kernel(struct device_router r, int32_t *expert, float *weight, const T *logits, bool wide)
{
	int64_t t = (int64_t)blockIdx.x * TOKENS + threadIdx.x / 32;
	int lane = (int)threadIdx.x % 32;
	float x[VALUES], own, sum;
	uint32_t height[VALUES];
	uint64_t choice = 0;
	softmax s;

	if (t >= r.tokens)
		return;
	load_row(x, logits + t * r.experts, r.experts, wide, -INFINITY);
	s = softmax_of(x);
#pragma unroll
	for (int v = 0; v < VALUES; v++)
		height[v] = expert_of(v) < r.experts ? height_of(x[v]) : 0;
	for (int i = 0; i < r.chosen; i++) {
		uint64_t best = highest(height);

#pragma unroll
		for (int v = 0; v < VALUES; v++)
			if (expert_of(v) == (int)~(uint32_t)best)
				height[v] = 0;
		if (lane == i)
			choice = best;
	}
	own = lane < r.chosen ? expf(number_of((uint32_t)(choice >> 32)) - s.max) / s.sum : 0;
	sum = warp_sum(own);
	if (lane >= r.chosen)
		return;
	expert[t * r.chosen + lane] = (int32_t) ~(uint32_t)choice;
	weight[t * r.chosen + lane] = r.normalized ? own / sum : own;
}

/* ---- its gradient ---- */
/* d = the gradients of a token's probabilities p through the weights of its choices. A lane has choice
 * `lane`; `taken` has a bit for each of its values. */
template <int VALUES>
static __device__ __forceinline__ void weight_gradient(float (&d)[VALUES], const float (&p)[VALUES],
                                                       const struct device_router &r, const int32_t *expert,
                                                       const float *weight, const float *d_weight)
{
	int lane = (int)threadIdx.x % 32, own = lane < r.chosen ? expert[lane] : -1;
	float g = lane < r.chosen ? d_weight[lane] : 0, mean, sum = 0;
	uint32_t taken = 0;

	static_assert(VALUES <= 32, "a bit for each value");
#pragma unroll
	for (int v = 0; v < VALUES; v++)
		d[v] = 0;
	for (int i = 0; i < r.chosen; i++) {
		int e = shuffle(own, i);
		float of_choice = shuffle(g, i);

#pragma unroll
		for (int v = 0; v < VALUES; v++)
			if (expert_of(v) == e) {
				d[v] = of_choice;
				taken |= 1u << v;
			}
	}
	if (!r.normalized)
		return;
	mean = warp_sum(lane < r.chosen ? g * weight[lane] : 0.0f);
#pragma unroll
	for (int v = 0; v < VALUES; v++)
		sum += taken >> v & 1 ? p[v] : 0;
	sum = warp_sum(sum);
#pragma unroll
	for (int v = 0; v < VALUES; v++)
		if (taken >> v & 1)
			d[v] = (d[v] - mean) / sum;
}

/* d_logits may be logits: a lane writes what it alone has read. */
template <typename T, int VALUES>
static __global__ void __launch_bounds__(THREADS)
    route_backward_kernel(struct device_router r, T *d_logits, const T *logits, const int32_t *expert,
                          const float *weight, const float *d_weight, const float *balance, float scale,
                          float *loss, bool wide)
{
	int64_t t = (int64_t)blockIdx.x * TOKENS + threadIdx.x / 32;
	float p[VALUES], d[VALUES], b[VALUES], lost = 0, mean = 0;
	softmax s;

	if (t >= r.tokens)
		return;
	load_row(p, logits + t * r.experts, r.experts, wide, -INFINITY);
	s = softmax_of(p);
#pragma unroll
	for (int v = 0; v < VALUES; v++)
		p[v] = expf(p[v] - s.max) / s.sum;
	weight_gradient(d, p, r, expert + t * r.chosen, weight + t * r.chosen, d_weight + t * r.chosen);
	if (balance) {
		load_row(b, balance, r.experts, wide, 0.0f);
#pragma unroll
		for (int v = 0; v < VALUES; v++) {
			lost += b[v] * p[v];
			d[v] += b[v] * scale;
		}
		lost = warp_sum(lost);
		if (threadIdx.x % 32 == 0)
			loss[t] = lost;
	}
#pragma unroll
	for (int v = 0; v < VALUES; v++)
		mean += p[v] * d[v];
	mean = warp_sum(mean);
#pragma unroll
	for (int v = 0; v < VALUES; v++)
		d[v] = p[v] * (d[v] - mean);
	store_row(d_logits + t * r.experts, d, r.experts, wide);
}

/* ---- launching ---- */
/* Calls f with the number of a lane's values, as a type. */
template <typename F> static void with_values(int experts, F f)
{
	if (experts <= 4 * 32)
		f(std::integral_constant<int, 4>());
	else if (experts <= 8 * 32)
		f(std::integral_constant<int, 8>());
	else if (experts <= 16 * 32)
		f(std::integral_constant<int, 16>());
	else
		f(std::integral_constant<int, DEVICE_EXPERTS_MAX / 32>());
}

extern "C" void device_route(struct device *dev, const struct device_router *r, int32_t *expert,
                             float *weight, const void *logits)
{
	bool wide = r->experts % PACK == 0 && aligned16(logits);

	if (!device_router_fits(dev, r, "route") || r->tokens <= 0 || r->chosen <= 0)
		return;
	with_type(r->type, [&](auto t) {
		typedef decltype(t) T;

		with_values(r->experts, [&](auto values) {
			LAUNCH(dev, (route_kernel<T, decltype(values)::value>),
			       (unsigned)ceil_div(r->tokens, TOKENS), THREADS, 0, *r, expert, weight,
			       (const T *)logits, wide);
		});
	});
}

extern "C" void device_route_backward(struct device *dev, const struct device_router *r, void *d_logits,
                                      const void *logits, const int32_t *expert, const float *weight,
                                      const float *d_weight, const float *balance, float scale, float *loss)
{
	bool wide = r->experts % PACK == 0 && aligned16(logits) && aligned16(d_logits) && aligned16(balance);

	if (!device_router_fits(dev, r, "route_backward") || r->tokens <= 0 || r->experts <= 0)
		return;
	with_type(r->type, [&](auto t) {
		typedef decltype(t) T;

		with_values(r->experts, [&](auto values) {
			LAUNCH(dev, (route_backward_kernel<T, decltype(values)::value>),
			       (unsigned)ceil_div(r->tokens, TOKENS), THREADS, 0, *r, (T *)d_logits,
			       (const T *)logits, expert, weight, d_weight, balance, scale, loss, wide);
		});
	});
}
