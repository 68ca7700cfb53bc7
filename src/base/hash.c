/* SPDX-License-Identifier: Apache-2.0 */
/* XXH64: four sums over 32 bytes at a time, which a processor computes side by side, then the rest. */
#include "base/hash.h"

#include <endian.h>
#include <string.h>

#define PRIME1 0x9e3779b185ebca87u
#define PRIME2 0xc2b2ae3d27d4eb4fu
#define PRIME3 0x165667b19e3779f9u
#define PRIME4 0x85ebca77c2b2ae63u
#define PRIME5 0x27d4eb2f165667c5u

static uint64_t rotate(uint64_t v, int bits)
{
	return v << bits | v >> (64 - bits);
}

static uint64_t read64(const unsigned char *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

static uint32_t read32(const unsigned char *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static uint64_t round_of(uint64_t sum, uint64_t word)
{
	return rotate(sum + word * PRIME2, 31) * PRIME1;
}

static uint64_t merge(uint64_t h, uint64_t sum)
{
	return (h ^ round_of(0, sum)) * PRIME1 + PRIME4;
}

uint64_t hash_bytes(const void *data, size_t len, uint64_t seed)
{
	const unsigned char *p = data, *end = p + len;
	uint64_t h = seed + PRIME5;

	if (len >= 32) {
		uint64_t a = seed + PRIME1 + PRIME2, b = seed + PRIME2, c = seed, d = seed - PRIME1;

		for (; end - p >= 32; p += 32) {
			a = round_of(a, read64(p));
			b = round_of(b, read64(p + 8));
			c = round_of(c, read64(p + 16));
			d = round_of(d, read64(p + 24));
		}
		h = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
		h = merge(merge(merge(merge(h, a), b), c), d);
	}
	h += len;
	for (; end - p >= 8; p += 8)
		h = rotate(h ^ round_of(0, read64(p)), 27) * PRIME1 + PRIME4;
	if (end - p >= 4) {
		h = rotate(h ^ read32(p) * PRIME1, 23) * PRIME2 + PRIME3;
		p += 4;
	}
	for (; p < end; p++)
		h = rotate(h ^ *p * PRIME5, 11) * PRIME1;
	h = (h ^ h >> 33) * PRIME2;
	h = (h ^ h >> 29) * PRIME3;
	return h ^ h >> 32;
}
