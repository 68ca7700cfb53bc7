/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The code of a moment without a search. The numbers whose highest 16 bits are the same are a bucket; buckets
 * are so small that a bucket has one code, or two with a border between them. Codes are those of
 * nf4_scale_code.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "engine/device/nf4.h"

/* Magnitudes below 2^-23 have the code of 0, those above 1 that of 1: the first bucket, the last but one
 * (which begins with 1), and the last, which has infinities and NaNs, too. */
#define MOMENT_FIRST_BUCKET ((127 - 23) << 7)
#define MOMENT_BUCKETS      (23 * 128 + 2)

struct moment_table {
	/* Of magnitudes below `border`, and of the others; of positive numbers, then of negative ones. */
	struct moment_bucket {
		float border;
		uint8_t below, above;
	} bucket[2 * MOMENT_BUCKETS];
	float map[256];
};

void moment_table_fill(struct moment_table *table, bool has_sign);

static inline uint8_t moment_code(const struct moment_table *table, float x)
{
	const struct moment_bucket *b;
	uint32_t bits;
	int32_t at;

	memcpy(&bits, &x, sizeof(bits));
	at = (int32_t)(bits >> 16 & 0x7fff) - MOMENT_FIRST_BUCKET;
	at = at < 0 ? 0 : at;
	at = at >= MOMENT_BUCKETS ? MOMENT_BUCKETS - 1 : at;
	b = &table->bucket[at + (int32_t)(bits >> 31) * MOMENT_BUCKETS];
	return fabsf(x) >= b->border ? b->above : b->below;
}
