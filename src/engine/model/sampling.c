/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the next token: temperature, then top_k, top_p and min_p, with a random number of its own for each
 * place. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/sampling.h"

struct candidate {
	float logit;
	int32_t id;
};

size_t sampling_work_bytes(int64_t vocab)
{
	return (size_t)vocab * sizeof(struct candidate);
}

/* Highest logit first; among equals the lowest id, so that the order is one. */
static int compare(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->logit != y->logit)
		return x->logit > y->logit ? -1 : 1;
	return (x->id > y->id) - (x->id < y->id);
}

static int32_t greedy(const float *logits, int64_t vocab)
{
	int32_t best = 0;

	for (int64_t i = 1; i < vocab; i++)
		if (logits[i] > logits[best])
			best = (int32_t)i;
	return best;
}

/* Uniform in [0, 1), from (seed, place) alone (splitmix64, Steele et al. 2014). */
static double uniform(uint64_t seed, uint64_t place)
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

/* Sorts the candidates into c, leaves the first *n of them, and returns the sum of their weights, which are
 * relative to that of the first. */
static double filter(const struct sampling *s, const float *logits, int64_t vocab, struct candidate *c,
                     int64_t *count)
{
	float inverse = (float)(1 / s->temperature);
	int64_t n = vocab;
	double sum = 0;

	for (int64_t i = 0; i < vocab; i++)
		c[i] = (struct candidate){.logit = logits[i] * inverse, .id = (int32_t)i};
	qsort(c, (size_t)vocab, sizeof(*c), compare);
	if (s->top_k > 0 && s->top_k < n) {
		/* As transformers: all that tie with the last one stay. */
		for (n = s->top_k; n < vocab && c[n].logit == c[s->top_k - 1].logit;)
			n++;
	}
	for (int64_t i = 0; i < n; i++)
		sum += expf(c[i].logit - c[0].logit);
	if (s->top_p < 1) {
		int64_t kept = 0;
		double below;

		/* The smallest set that holds top_p of the mass: a token stays while those before it hold
		 * less. */
		for (below = 0; kept < n && (kept == 0 || below < s->top_p * sum); kept++)
			below += expf(c[kept].logit - c[0].logit);
		n = kept;
		sum = below;
	}
	if (s->min_p > 0) {
		int64_t kept = 1;

		for (sum = 1; kept < n && expf(c[kept].logit - c[0].logit) >= s->min_p; kept++)
			sum += expf(c[kept].logit - c[0].logit);
		n = kept;
	}
	*count = n;
	return sum;
}

int64_t sampling_candidates(const struct sampling *s, const float *logits, int64_t vocab, int32_t *ids,
                            double *probabilities, void *work)
{
	struct candidate *c = work;
	int64_t n;
	double sum = filter(s, logits, vocab, c, &n);

	for (int64_t i = 0; i < n; i++) {
		ids[i] = c[i].id;
		probabilities[i] = expf(c[i].logit - c[0].logit) / sum;
	}
	return n;
}

bool sampling_takes_all(const struct sampling *s)
{
	return s->temperature > 0 && s->top_k <= 0 && s->top_p >= 1 && s->min_p <= 0;
}

/* Among all ids, in their order: nothing has to be sorted. */
static int32_t choose_of_all(const struct sampling *s, const float *logits, int64_t vocab, int64_t place)
{
	float inverse = (float)(1 / s->temperature), highest = logits[greedy(logits, vocab)];
	double target = 0, below = 0;
	int64_t last = 0;

	for (int64_t i = 0; i < vocab; i++)
		target += (double)expf((logits[i] - highest) * inverse);
	target *= uniform(s->seed, (uint64_t)place);
	for (int64_t i = 0; i < vocab; i++) {
		double weight = (double)expf((logits[i] - highest) * inverse);

		below += weight;
		if (target < below)
			return (int32_t)i;
		last = weight > 0 ? i : last;
	}
	return (int32_t)last;
}

int32_t sampling_choose(const struct sampling *s, const float *logits, int64_t vocab, int64_t place,
                        void *work)
{
	struct candidate *c = work;
	double below = 0, target;
	int64_t n;

	if (s->temperature <= 0 || s->top_k == 1)
		return greedy(logits, vocab);
	if (sampling_takes_all(s))
		return choose_of_all(s, logits, vocab, place);
	target = filter(s, logits, vocab, c, &n);
	target *= uniform(s->seed, (uint64_t)place);
	for (int64_t i = 0; i < n; i++) {
		below += expf(c[i].logit - c[0].logit);
		if (target < below)
			return c[i].id;
	}
	return c[n - 1].id;
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
