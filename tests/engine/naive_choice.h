/* SPDX-License-Identifier: Apache-2.0 */
/* device_choose by its definition, in fp64. */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/device.h"

static inline int naive_descending(const void *a, const void *b)
{
	const float *x = a, *y = b;

	return (*x < *y) - (*x > *y);
}

static inline double naive_capped(const struct device_choice *d, float x)
{
	return d->cap > 0 ? (double)d->cap * tanh((double)x / (double)d->cap) : (double)x;
}

/* The probability of each id, 0 where it is left out, into p [ids]. The logits are finite. */
static inline void naive_probabilities(const struct device_choice *d, const float *logits, double *p)
{
	size_t bytes = (size_t)d->ids * sizeof(*logits);
	float *sorted = malloc(bytes), least = -INFINITY;
	double highest, all = 0, above = 0, left = 0;

	qsort(memcpy(sorted, logits, bytes), (size_t)d->ids, sizeof(*sorted), naive_descending);
	for (int64_t i = 0; i < d->ids; i++)
		p[i] = naive_capped(d, logits[i]);
	highest = naive_capped(d, sorted[0]);
	if (d->top_k > 0 && d->top_k < d->ids)
		least = sorted[d->top_k - 1];
	for (int64_t i = 0; i < d->ids; i++) {
		p[i] = logits[i] < least ? 0 : exp((p[i] - highest) * (double)d->inverse);
		all += p[i];
	}
	/* A value stays while those above it have less than top_p. */
	for (int64_t i = 0; d->top_p < 1 && i < d->ids && sorted[i] >= least && above < d->top_p * all; i++) {
		above += exp((naive_capped(d, sorted[i]) - highest) * (double)d->inverse);
		if (above >= d->top_p * all)
			least = sorted[i];
	}
	for (int64_t i = 0; i < d->ids; i++) {
		if (logits[i] < least || p[i] < (double)d->min_p)
			p[i] = 0;
		left += p[i];
	}
	for (int64_t i = 0; i < d->ids; i++)
		p[i] /= left;
	free(sorted);
}

/* margin (NULL: not wanted): how far the random number is from those that choose another id. */
static inline int32_t naive_choice(const struct device_choice *d, const float *logits, double uniform,
                                   double *margin)
{
	double *p = calloc((size_t)d->ids, sizeof(*p)), below = 0, distance = 1;
	int32_t chosen = -1, last = 0, best = 0;

	for (int32_t i = 1; i < d->ids; i++)
		best = logits[i] > logits[best] ? i : best;
	naive_probabilities(d, logits, p);
	for (int32_t i = 0; i < d->ids && chosen < 0; i++) {
		if (p[i] == 0)
			continue;
		distance = fabs(uniform - below);
		below += p[i];
		last = i;
		if (uniform < below)
			chosen = i;
	}
	if (margin)
		*margin = d->top_k == 1 ? 1 : fmin(distance, fabs(below - uniform));
	free(p);
	return d->top_k == 1 ? best : chosen < 0 ? last : chosen;
}
