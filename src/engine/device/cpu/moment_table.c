/* SPDX-License-Identifier: Apache-2.0 */
/* Fills the tables by which moments of an optimizer get their codes of 8 bits. */
#pragma GCC optimize("fp-contract=off")
#include <math.h>

#include "engine/device/cpu/moments.h"

static float from_bits(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* The codes of the numbers from `first` to `last`, which are bits of magnitudes. */
static struct moment_bucket bucket_of(const float *map, uint32_t sign, uint32_t first, uint32_t last)
{
	struct moment_bucket b = {.below = nf4_scale_code(map, from_bits(sign | first)),
	                          .above = nf4_scale_code(map, from_bits(sign | last))};

	/* The lowest magnitude that has the higher one's code. */
	while (first < last) {
		uint32_t middle = first + (last - first) / 2;

		if (nf4_scale_code(map, from_bits(sign | middle)) == b.above)
			last = middle;
		else
			first = middle + 1;
	}
	b.border = from_bits(first);
	return b;
}

void moment_table_fill(struct moment_table *t, bool has_sign)
{
	nf4_map_fill(t->map, has_sign);
	for (uint32_t negative = 0; negative < 2; negative++) {
		struct moment_bucket *bucket = t->bucket + negative * MOMENT_BUCKETS;
		uint32_t sign = negative << 31, first;

		for (uint32_t i = 0; i + 1 < MOMENT_BUCKETS; i++) {
			first = (MOMENT_FIRST_BUCKET + i) << 16;
			bucket[i] = bucket_of(t->map, sign, first, first | 0xffff);
		}
		/* A NaN is not above the border. */
		bucket[MOMENT_BUCKETS - 1] =
		    (struct moment_bucket){.below = nf4_scale_code(t->map, NAN),
		                           .above = nf4_scale_code(t->map, from_bits(sign | 0x7f800000))};
	}
}
