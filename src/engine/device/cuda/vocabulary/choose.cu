// SPDX-License-Identifier: Apache-2.0
/*
 * Draws an id from each row of logits, with one block for each row (choice.h). The row is read for the
 * likeliest id and for the choice, four times more with top_k, and five times more with top_p; one of 152
 * thousand ids stays in the L2 cache meanwhile.
 *
 * The sums of bins are of 64 bits, for which shared memory has no addition: each is kept as three sums of 14
 * bits of every term, in as many words, which 2^18 terms do not overflow. Neighbours in a warp often are in
 * the same bin; some copies of the bins let them be added side by side, and have a part of the terms each.
 */
#include "engine/device/cuda/vocabulary/best.cuh"

#include "engine/device/choice.h"

#define THREADS 512
#define WARPS   (THREADS / 32)
#define COPIES  4
#define LIMBS   3
#define LIMB    14 /* bits */

#define MOST_IDS ((int64_t)COPIES << (32 - LIMB))

static __device__ void clear_bins(uint32_t (*limbs)[LIMBS][CHOICE_BINS])
{
	uint32_t *all = &limbs[0][0][0];

	for (int i = (int)threadIdx.x; i < COPIES * LIMBS * CHOICE_BINS; i += THREADS)
		all[i] = 0;
}

static __device__ __forceinline__ void add_to_bin(uint32_t (*limbs)[CHOICE_BINS], int bin, uint64_t amount)
{
#pragma unroll
	for (int j = 0; j < LIMBS; j++) {
		uint32_t limb = (uint32_t)(amount >> (j * LIMB)) & ((1u << LIMB) - 1);

		if (limb)
			add_shared(&limbs[j][bin], limb);
	}
}

/* As find_least of choice.c. Once in a kernel. */
template <bool BY_WEIGHT>
static __device__ uint32_t find_least(const device_choice &d, const choice_limits &l, const float *x,
                                      uint64_t want)
{
	__shared__ uint32_t limbs[COPIES][LIMBS][CHOICE_BINS];
	__shared__ uint64_t bins[CHOICE_BINS];
	uint32_t found = 0;

	for (int shift = 24; shift >= 0; shift -= 8) {
		clear_bins(limbs);
		__syncthreads();
		for (int64_t i = threadIdx.x; i < d.ids; i += THREADS) {
			uint32_t key = choice_key(x[i]);

			if (key >= l.least && choice_in_bins(key, found, shift))
				add_to_bin(limbs[threadIdx.x % COPIES],
				           (int)(key >> shift & (CHOICE_BINS - 1)),
				           BY_WEIGHT ? choice_weight(&d, &l, x[i]) : 1);
		}
		__syncthreads();
		for (int b = (int)threadIdx.x; b < CHOICE_BINS; b += THREADS) {
			bins[b] = 0;
			for (int c = 0; c < COPIES; c++)
				for (int j = 0; j < LIMBS; j++)
					bins[b] += (uint64_t)limbs[c][j][b] << (j * LIMB);
		}
		__syncthreads();
		found |= (uint32_t)choice_bin(bins, &want) << shift;
	}
	return found;
}

static __device__ uint64_t sum_of_masses(const device_choice &d, const choice_limits &l, const float *x)
{
	uint64_t sum = 0;

	for (int64_t i = threadIdx.x; i < d.ids; i += THREADS)
		sum += choice_mass(&d, &l, x[i]);
	return block_sum(sum);
}

/* In which of WARPS ranges of [lo, hi) the sum of masses passes the target; in that one again, until one id
 * is left. */
static __device__ int64_t draw(const device_choice &d, const choice_limits &l, const float *x, double uniform,
                               int64_t otherwise)
{
	__shared__ uint64_t parts[WARPS];
	int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
	uint64_t target = 0;
	int64_t lo = 0, hi = d.ids;

	for (bool first = true; first || hi - lo > 1; first = false) {
		int64_t range = (hi - lo + WARPS - 1) / WARPS, from = lo + warp * range;
		int64_t to = from + range < hi ? from + range : hi;
		uint64_t sum = 0;
		int w = 0;

		for (int64_t i = from + lane; i < to; i += 32)
			sum += choice_mass(&d, &l, x[i]);
		sum = warp_sum(sum);
		if (lane == 0)
			parts[warp] = sum;
		__syncthreads();
		if (first) {
			uint64_t all = 0;

			for (int i = 0; i < WARPS; i++)
				all += parts[i];
			if (all == 0)
				return otherwise;
			target = choice_target(uniform, all);
		}
		while (w < WARPS - 1 && target >= parts[w])
			target -= parts[w++];
		lo += w * range;
		hi = lo + range < hi ? lo + range : hi;
		__syncthreads();
	}
	return lo;
}

static __global__ void __launch_bounds__(THREADS)
    choose_kernel(struct device_choice d, int32_t *id, const float *logits, const double *uniform)
{
	const float *x = logits + blockIdx.x * d.ld;
	best top = block_best<THREADS>(x, d.ids);
	choice_limits l = {choice_capped(&d, top.value), 0};
	device_choice all = d;
	int64_t chosen = top.index;

	all.min_p = 0;
	if (d.top_k > 1 && d.top_k < d.ids)
		l.least = find_least<false>(all, l, x, (uint64_t)d.top_k);
	if (d.top_k != 1 && d.top_p < 1) {
		uint64_t total = sum_of_masses(all, l, x);

		if (total > 0)
			l.least = find_least<true>(all, l, x, choice_share(&d, total));
	}
	if (d.top_k != 1)
		chosen = draw(d, l, x, uniform[blockIdx.x], top.index);
	if (threadIdx.x == 0)
		id[blockIdx.x] = (int32_t)chosen;
}

extern "C" void device_choose(struct device *dev, const struct device_choice *d, int32_t *id,
                              const float *logits, int64_t rows, const double *uniform)
{
	if (rows <= 0 || d->ids <= 0)
		return;
	if (d->ids > MOST_IDS && (d->top_k > 1 || (d->top_k != 1 && d->top_p < 1))) {
		device_fault(dev, -EOPNOTSUPP,
		             "top_k or top_p of %lld ids; the CUDA engine has room for %lld",
		             (long long)d->ids, (long long)MOST_IDS);
		return;
	}
	LAUNCH(dev, choose_kernel, (unsigned)rows, THREADS, 0, *d, id, logits, uniform);
}
