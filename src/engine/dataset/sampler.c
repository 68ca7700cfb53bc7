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

/* Steps that take that many rows of one epoch. */
static int64_t sampler_steps_for(const struct sampler *s, int64_t rows)
{
	int64_t batch = sampler_global_batch(s);

	return (rows + batch - 1) / batch;
}

int64_t sampler_steps_per_epoch(const struct sampler *s)
{
	return sampler_steps_for(s, s->rows);
}

/* Where step `step` begins. */
static void sampler_locate(const struct sampler *s, int64_t step, int64_t *epoch, int64_t *place)
{
	int64_t per_epoch = sampler_steps_per_epoch(s), n = step - s->start_step, rest;

	*epoch = *place = 0;
	if (s->rows == 0)
		return;
	*epoch = s->start_rows / s->rows;
	*place = s->start_rows % s->rows;
	rest = sampler_steps_for(s, s->rows - *place); /* of the epoch that start_rows lies in */
	if (n < rest) {
		*place += n * sampler_global_batch(s);
	} else {
		*epoch += 1 + (n - rest) / per_epoch;
		*place = (n - rest) % per_epoch * sampler_global_batch(s);
	}
}

void sampler_start(struct sampler *s, int64_t step, int64_t rows)
{
	s->start_step = s->start_rows = 0;
	if (sampler_seen(s, step) == rows)
		return;
	s->start_step = step;
	s->start_rows = rows;
}

int64_t sampler_seen(const struct sampler *s, int64_t step)
{
	int64_t epoch, place;

	sampler_locate(s, step, &epoch, &place);
	return epoch * s->rows + place;
}

int64_t sampler_steps_until(const struct sampler *s, int64_t rows)
{
	int64_t epoch, place, whole;

	if (rows <= s->start_rows || s->rows == 0)
		return s->start_step;
	epoch = s->start_rows / s->rows;
	place = s->start_rows % s->rows;
	whole = rows / s->rows - epoch;
	if (whole == 0)
		return s->start_step + sampler_steps_for(s, rows - s->start_rows);
	return s->start_step + sampler_steps_for(s, s->rows - place) +
	       (whole - 1) * sampler_steps_per_epoch(s) + sampler_steps_for(s, rows % s->rows);
}

double sampler_epochs(const struct sampler *s, int64_t step)
{
	if (s->rows == 0)
		return 0;
	return s->start_rows == 0 ? (double)step / (double)sampler_steps_per_epoch(s)
	                          : (double)sampler_seen(s, step) / (double)s->rows;
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
	int64_t epoch, base;

	sampler_locate(s, step, &epoch, &base);
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
