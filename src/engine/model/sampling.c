/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the next token: temperature, then top_k, top_p and min_p, with a random number of its own for each
 * place. */
#include "engine/model/sampling.h"

#include <string.h>

#include "engine/device/choice.h"

/* splitmix64 (Steele et al. 2014) */
double sampling_uniform(uint64_t seed, uint64_t place)
{
	uint64_t z = seed * 0x9E3779B97F4A7C15u + (place + 1) * 0xD1B54A32D192ED03u;

	for (int i = 0; i < 2; i++) {
		z += 0x9E3779B97F4A7C15u;
		z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
		z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
		z ^= z >> 31;
	}
	return (double)(z >> 11) * 0x1p-53;
}

struct device_choice sampling_choice(const struct sampling *s, int64_t ids)
{
	bool greedy = s->temperature <= 0;

	return (struct device_choice){.ids = ids,
	                              .inverse = greedy ? 1 : (float)(1 / s->temperature),
	                              .top_k = greedy ? 1 : s->top_k,
	                              .top_p = s->top_p,
	                              .min_p = (float)s->min_p};
}

int64_t sampling_candidates(const struct sampling *s, const float *logits, int64_t vocab, int32_t *ids,
                            double *probabilities)
{
	struct device_choice d = sampling_choice(s, vocab);
	struct choice_limits l;
	uint64_t total;
	int64_t n = 0;

	choice_find_limits(&d, logits, &l);
	total = choice_total(&d, &l, logits);
	for (int64_t i = 0; i < vocab; i++) {
		uint64_t mass = choice_mass(&d, &l, logits[i]);

		if (!mass)
			continue;
		ids[n] = (int32_t)i;
		probabilities[n++] = (double)mass / (double)total;
	}
	return n;
}

int32_t sampling_choose(const struct sampling *s, const float *logits, int64_t vocab, int64_t place)
{
	struct device_choice d = sampling_choice(s, vocab);

	return choice_draw(&d, logits, sampling_uniform(s->seed, (uint64_t)place));
}

void sampling_penalize(float *logits, int64_t vocab, const int32_t *ids, size_t n, double penalty, void *work)
{
	unsigned char *seen = work;
	float p = (float)penalty;

	memset(seen, 0, (size_t)vocab);
	for (size_t i = 0; i < n; i++) {
		int32_t id = ids[i];

		if (id < 0 || id >= vocab || seen[id])
			continue;
		seen[id] = 1;
		logits[id] = logits[id] < 0 ? logits[id] * p : logits[id] / p;
	}
}
