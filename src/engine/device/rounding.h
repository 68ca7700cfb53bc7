/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bits of stochastic rounding, of dropout and of noise, the same on every device: a function of (seed,
 * step, index) alone, so that neither the launch, nor the threads, nor the cut into ranks changes a result.
 *
 * The index goes through two rounds of multiply-and-shift with full avalanche (the two best of two
 * multipliers that C. Wellons' hash-prospector found), with 32 bits of the key before each. For one (seed,
 * step) that is a bijection of every 2^32 indices, so that each of the 65536 values comes equally often;
 * neighbours in index and step are independent as far as tests/unit/test_device_rounding.c looks. The key is
 * splitmix64 (Steele et al. 2014) over seed and step. Four 32-bit multiplications an element, in vectors on
 * every processor; Philox 4x32-10 would take forty, half of them wide, for four to eight.
 */
#pragma once

#include <stdint.h>

struct rounding_key {
	uint32_t a, b;
};

static inline uint64_t rounding_splitmix(uint64_t z)
{
	z += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static inline struct rounding_key rounding_key(uint64_t seed, int64_t step)
{
	uint64_t z = rounding_splitmix(rounding_splitmix(seed) + (uint64_t)step);
	struct rounding_key key = {(uint32_t)z, (uint32_t)(z >> 32)};

	return key;
}

/* x: the index's low half (a uint32_t, or a vector of them), replaced by 16 random bits; high: the other
 * half. */
#define ROUNDING_BITS(x, high, key)                                                                          \
	do {                                                                                                 \
		(x) ^= (key).a;                                                                              \
		(x) ^= (x) >> 16;                                                                            \
		(x) *= 0x7feb352du;                                                                          \
		(x) ^= (x) >> 15;                                                                            \
		(x) *= 0x846ca68bu;                                                                          \
		(x) ^= (x) >> 16;                                                                            \
		(x) += (key).b + (high)*0x9e3779b9u;                                                         \
		(x) ^= (x) >> 16;                                                                            \
		(x) *= 0x21f0aaadu;                                                                          \
		(x) ^= (x) >> 15;                                                                            \
		(x) *= 0xd35a2d97u;                                                                          \
		(x) ^= (x) >> 15;                                                                            \
		(x) >>= 16;                                                                                  \
	} while (0)

/* Dropout: an element whose bits are below the threshold is dropped, the others are multiplied by the factor.
 * A run has one seed for both: the constant makes other bits of it than those by which weights are
 * rounded. */
static inline struct rounding_key dropout_key(uint64_t seed, int64_t number)
{
	return rounding_key(seed ^ 0xd1b54a32d192ed03u, number);
}

/* Noise: another constant, and so bits of its own. */
static inline struct rounding_key noise_key(uint64_t seed, int64_t number)
{
	return rounding_key(seed ^ 0x8ebc6af09c88c6e3u, number);
}

/* 16 bits (an int, or a vector of them) to an odd number between -65536 and 65536; the noise is that times
 * noise_step. Its mean over all values is 0, and its greatest one is just below the magnitude. */
#define NOISE_STEPS(bits) ((bits)*2 - 65535)

static inline float noise_step(float magnitude)
{
	return magnitude / 65536;
}

static inline uint32_t dropout_threshold(double probability)
{
	return (uint32_t)(probability * 65536 + 0.5);
}

static inline float dropout_factor(uint32_t threshold)
{
	return 65536.0f / (65536.0f - (float)threshold);
}
