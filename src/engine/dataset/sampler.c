/* SPDX-License-Identifier: Apache-2.0 */
/* The order of the rows, computed for each place of an epoch. */
#include "engine/dataset/sampler.h"

/* splitmix64's finalizer: every bit of the input moves every bit of the output. */
static uint64_t sampler_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static int64_t sampler_global_batch(const struct sampler *s)
{
	return (int64_t)s->world_size * s->micro_batch * s->accumulation;
}

int64_t sampler_steps_per_epoch(const struct sampler *s)
{
	int64_t batch = sampler_global_batch(s);

	return (s->rows + batch - 1) / batch;
}

int64_t sampler_permute(const struct sampler *s, int64_t epoch, int64_t place)
{
	uint64_t x = place, rows = s->rows, key, mask;
	unsigned half = 1;

	if (!s->shuffle || rows < 2)
		return place;
	while (half < 31 && rows > (uint64_t)1 << (2 * half))
		half++;
	mask = ((uint64_t)1 << half) - 1;
	key = sampler_mix(s->seed ^ sampler_mix(epoch));
	/* A Feistel network permutes 0 … 4^half - 1; walking its cycle from a place until it lands below
	 * `rows` permutes 0 … rows - 1 (Black and Rogaway 2002), in under four rounds on average. */
	do {
		uint64_t left = x >> half, right = x & mask;

		for (unsigned round = 0; round < 8; round++) {
			uint64_t next = left ^ (sampler_mix(key + (round << 24) + sampler_mix(right)) & mask);

			left = right;
			right = next;
		}
		x = left << half | right;
	} while (x >= rows);
	return x;
}

static void sampler_places(const struct sampler *s, int64_t step, int first_rank, int ranks, int64_t *out)
{
	int64_t per_epoch = sampler_steps_per_epoch(s);
	int64_t epoch = per_epoch ? step / per_epoch : 0;
	int64_t base = (per_epoch ? step % per_epoch : 0) * sampler_global_batch(s);

	for (int a = 0; a < s->accumulation; a++)
		for (int r = first_rank; r < first_rank + ranks; r++)
			for (int b = 0; b < s->micro_batch; b++) {
				int64_t place = base + ((int64_t)a * s->world_size + r) * s->micro_batch + b;

				*out++ = place < s->rows ? sampler_permute(s, epoch, place) : -1;
			}
}

void sampler_step(const struct sampler *s, int64_t step, int64_t *out)
{
	sampler_places(s, step, s->rank, 1, out);
}

void sampler_step_all(const struct sampler *s, int64_t step, int64_t *out)
{
	sampler_places(s, step, 0, s->world_size, out);
}
