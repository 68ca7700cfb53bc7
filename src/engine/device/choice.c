/* SPDX-License-Identifier: Apache-2.0 */
/* device_choose for a row of logits in the memory of the host. */
#include "engine/device/choice.h"

#include "base/cleanup.h"

/* The lowest among equals; 0 where there are only NaNs. */
static int64_t likeliest(const struct device_choice *d, const float *logits)
{
	float highest = -INFINITY;
	int64_t best = -1;

	for (int64_t i = 0; i < d->ids; i++) {
		if (logits[i] > highest) {
			highest = logits[i];
			best = i;
		}
	}
	for (int64_t i = 0; best < 0 && i < d->ids; i++)
		best = isnan(logits[i]) ? best : i;
	return MAX(best, 0);
}

/* The lowest key of the ids that have `want` of the weight together, or that are `want` of them, the
 * likeliest first. d: without min_p. */
static uint32_t find_least(const struct device_choice *d, const struct choice_limits *l, const float *logits,
                           uint64_t want, bool by_weight)
{
	uint32_t found = 0;

	for (int shift = 24; shift >= 0; shift -= 8) {
		uint64_t bins[CHOICE_BINS] = {0};

		for (int64_t i = 0; i < d->ids; i++) {
			uint32_t key = choice_key(logits[i]);

			if (key >= l->least && choice_in_bins(key, found, shift))
				bins[key >> shift & (CHOICE_BINS - 1)] +=
				    by_weight ? choice_weight(d, l, logits[i]) : 1;
		}
		found |= (uint32_t)choice_bin(bins, &want) << shift;
	}
	return found;
}

uint64_t choice_total(const struct device_choice *d, const struct choice_limits *l, const float *logits)
{
	uint64_t total = 0;

	for (int64_t i = 0; i < d->ids; i++)
		total += choice_mass(d, l, logits[i]);
	return total;
}

void choice_find_limits(const struct device_choice *d, const float *logits, struct choice_limits *l)
{
	struct device_choice all = *d;
	uint64_t total;

	all.min_p = 0;
	*l = (struct choice_limits){.highest = choice_capped(d, logits[likeliest(d, logits)])};
	if (d->top_k > 0 && d->top_k < d->ids)
		l->least = find_least(&all, l, logits, (uint64_t)d->top_k, false);
	if (d->top_p >= 1)
		return;
	total = choice_total(&all, l, logits);
	if (total > 0)
		l->least = find_least(&all, l, logits, choice_share(d, total), true);
}

int32_t choice_draw(const struct device_choice *d, const float *logits, double uniform)
{
	struct choice_limits l;
	uint64_t total, target;

	if (d->top_k == 1)
		return (int32_t)likeliest(d, logits);
	choice_find_limits(d, logits, &l);
	total = choice_total(d, &l, logits);
	if (total == 0)
		return (int32_t)likeliest(d, logits);
	target = choice_target(uniform, total);
	for (int64_t i = 0;; i++) {
		uint64_t mass = choice_mass(d, &l, logits[i]);

		if (target < mass)
			return (int32_t)i;
		target -= mass;
	}
}
