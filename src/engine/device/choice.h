/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of device_choose, in one place for all engines. Logits are ordered by keys, unsigned
 * integers of the same order; what top_k and top_p exclude is what has a key below some key, which is found 8
 * bits at a time, from the sums over all ids that have the bits so far. The weight of an id, relative to that
 * of the likeliest, is counted in units of 2^-39: sums do not depend on the order of their terms then.
 */
#pragma once

#include <math.h>
#include <string.h>

#include "engine/device/device.h"

#ifdef __CUDACC__
#define CHOICE_INLINE static __host__ __device__ inline
#else
#define CHOICE_INLINE static inline
#endif

#define CHOICE_ONE  549755813888.0f /* 2^39: so many for each of 2^24 ids are less than 2^64 */
#define CHOICE_BINS 256

struct choice_limits {
	float highest;  /* the highest of the logits, capped */
	uint32_t least; /* the lowest key of an id that is not excluded by top_k or top_p */
};

/* A NaN is below all. */
CHOICE_INLINE uint32_t choice_key(float x)
{
	uint32_t bits;

	if (!(x == x))
		return 0;
	x += 0.0f; /* there is one zero */
	memcpy(&bits, &x, sizeof(bits));
	return bits >> 31 ? ~bits : bits | 0x80000000u;
}

CHOICE_INLINE float choice_capped(const struct device_choice *d, float x)
{
	return d->cap > 0 ? d->cap * tanhf(x / d->cap) : x;
}

/* 0 where a number is not finite. */
CHOICE_INLINE uint64_t choice_weight(const struct device_choice *d, const struct choice_limits *l, float x)
{
	float w = expf((choice_capped(d, x) - l->highest) * d->inverse);

	return w >= d->min_p && w > 0 ? (uint64_t)((w < 1 ? w : 1) * CHOICE_ONE) : 0;
}

CHOICE_INLINE uint64_t choice_mass(const struct device_choice *d, const struct choice_limits *l, float x)
{
	return choice_key(x) < l->least ? 0 : choice_weight(d, l, x);
}

/* Whether the key has the bits of `found` above those that are counted now. */
CHOICE_INLINE bool choice_in_bins(uint32_t key, uint32_t found, int shift)
{
	return shift == 24 || (key ^ found) >> (shift + 8) == 0;
}

/* The bin in which the sum from the highest one down reaches *want, which becomes the part that the ids of
 * this bin have to contribute. */
CHOICE_INLINE int choice_bin(const uint64_t bins[CHOICE_BINS], uint64_t *want)
{
	int b = CHOICE_BINS - 1;

	while (b > 0 && bins[b] < *want)
		*want -= bins[b--];
	return b;
}

/* What the ids that stay for top_p have at least, of what all have. */
CHOICE_INLINE uint64_t choice_share(const struct device_choice *d, uint64_t all)
{
	double share = ceil(d->top_p * (double)all);

	return share < (double)all ? (uint64_t)share : all;
}

/* The id is the first with which the sum of weights is above this. all: > 0 */
CHOICE_INLINE uint64_t choice_target(double uniform, uint64_t all)
{
	uint64_t target = (uint64_t)(uniform * (double)all);

	return target < all ? target : all - 1;
}

/* ---- on the host: choice.c ---- */
/* Of a row. */
void choice_find_limits(const struct device_choice *d, const float *logits, struct choice_limits *l);
/* The sum of choice_mass. */
uint64_t choice_total(const struct device_choice *d, const struct choice_limits *l, const float *logits);
int32_t choice_draw(const struct device_choice *d, const float *logits, double uniform);
