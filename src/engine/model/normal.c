/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers of a counter-based generator (Salmon et al. 2011, Philox 4x32-10), and normals of them (Box
 * and Muller 1958), many at a time, so that the compiler makes vector instructions of the loops.
 *
 * Logarithm, sine and cosine are sums written here, of operations that IEEE 754 rounds one way alone: those
 * of the C library have other last bits on other processors, and ranks of one run must begin with equal
 * weights.
 */
#pragma GCC optimize("O3", "fp-contract=off")
#include "engine/model/normal.h"

#include <math.h>
#include <string.h>

/* Counters at a time. */
enum { BLOCK = 64 };

void random_words(uint64_t key, uint64_t counter, uint32_t stream, uint32_t out[4])
{
	uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), stream, 0};
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

	for (int round = 0; round < 10; round++) {
		uint64_t a = (uint64_t)0xD2511F53 * c[0], b = (uint64_t)0xCD9E8D57 * c[2];
		uint32_t c1 = c[1], c3 = c[3];

		c[0] = (uint32_t)(b >> 32) ^ c1 ^ k0;
		c[1] = (uint32_t)b;
		c[2] = (uint32_t)(a >> 32) ^ c3 ^ k1;
		c[3] = (uint32_t)a;
		k0 += 0x9E3779B9;
		k1 += 0xBB67AE85;
	}
	memcpy(out, c, sizeof(c));
}

/* random_words() of BLOCK counters from this one on. */
static void block_words(uint64_t key, uint64_t counter, uint32_t stream, uint32_t c[4][BLOCK])
{
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

	for (int i = 0; i < BLOCK; i++) {
		c[0][i] = (uint32_t)(counter + (uint64_t)i);
		c[1][i] = (uint32_t)((counter + (uint64_t)i) >> 32);
		c[2][i] = stream;
		c[3][i] = 0;
	}
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < BLOCK; i++) {
			uint64_t a = (uint64_t)0xD2511F53 * c[0][i], b = (uint64_t)0xCD9E8D57 * c[2][i];

			c[0][i] = (uint32_t)(b >> 32) ^ c[1][i] ^ k0;
			c[1][i] = (uint32_t)b;
			c[2][i] = (uint32_t)(a >> 32) ^ c[3][i] ^ k1;
			c[3][i] = (uint32_t)a;
		}
		k0 += 0x9E3779B9;
		k1 += 0xBB67AE85;
	}
}

/* The logarithm of a normal number above 0: exponent * log(2), and of what is left, in [sqrt(1/2), sqrt(2)),
 * 2 atanh((m - 1) / (m + 1)), of which the sixth term is below 2^-30. */
static inline float logarithm(float x)
{
	const int32_t half = 0x3f3504f3; /* sqrt(1/2) */
	int32_t bits, exponent;
	float m, s, q;

	memcpy(&bits, &x, sizeof(bits));
	exponent = (bits - half) >> 23;
	bits -= exponent * (1 << 23);
	memcpy(&m, &bits, sizeof(m));
	s = (m - 1) / (m + 1);
	q = s * s;
	return (float)exponent * (float)M_LN2 +
	       s * (2 + q * (2.0f / 3 + q * (2.0f / 5 + q * (2.0f / 7 + q * (2.0f / 9)))));
}

/* Of the angle k / 2^24 of a turn: that of the next eighth of a turn is at most pi/4, where the Taylor
 * series' next terms are below 2^-28; then by quarters. */
static inline void sine_and_cosine(uint32_t k, float *sine, float *cosine)
{
	int32_t quarter = (int32_t)((k + (1 << 21)) >> 22), left = (int32_t)k - (quarter << 22);
	float t = (float)left * (float)(2 * M_PI / (1 << 24)), q = t * t;
	float s = t * (1 + q * (-1.0f / 6 + q * (1.0f / 120 + q * (-1.0f / 5040 + q * (1.0f / 362880)))));
	float c = 1 + q * (-0.5f + q * (1.0f / 24 + q * (-1.0f / 720 + q * (1.0f / 40320))));
	float swapped_s = quarter & 1 ? c : s, swapped_c = quarter & 1 ? s : c;

	*sine = quarter & 2 ? -swapped_s : swapped_s;
	*cosine = (quarter + 1) & 2 ? -swapped_c : swapped_c;
}

/* Two normals from two words; the first word never gives log(0). */
static inline void normal_pair(uint32_t a, uint32_t b, float *x, float *y)
{
	float u = ((float)(int32_t)(a >> 8) + 0.5f) * 0x1p-24f, sine, cosine;
	float radius = sqrtf(-2 * logarithm(u));

	sine_and_cosine(b >> 8, &sine, &cosine);
	*x = radius * cosine;
	*y = radius * sine;
}

static void block_normals(uint64_t key, uint64_t counter, uint32_t stream, float scale, float *out)
{
	uint32_t words[4][BLOCK];
	float z[4][BLOCK];

	block_words(key, counter, stream, words);
	for (int i = 0; i < BLOCK; i++)
		normal_pair(words[0][i], words[1][i], &z[0][i], &z[1][i]);
	for (int i = 0; i < BLOCK; i++)
		normal_pair(words[2][i], words[3][i], &z[2][i], &z[3][i]);
	for (int i = 0; i < BLOCK; i++)
		for (int j = 0; j < 4; j++)
			out[4 * i + j] = scale * z[j][i];
}

void random_normals(uint64_t key, uint32_t stream, int64_t first, int64_t n, float scale, float *out)
{
	const int64_t size = 4 * BLOCK, begin = first / size, end = (first + n + size - 1) / size;

#pragma omp parallel for schedule(static)
	for (int64_t block = begin; block < end; block++) {
		int64_t at = block * size - first;
		float part[4 * BLOCK];

		if (at >= 0 && at + size <= n) {
			block_normals(key, (uint64_t)block * BLOCK, stream, scale, out + at);
			continue;
		}
		block_normals(key, (uint64_t)block * BLOCK, stream, scale, part);
		for (int64_t i = 0; i < size; i++)
			if (at + i >= 0 && at + i < n)
				out[at + i] = part[i];
	}
}
