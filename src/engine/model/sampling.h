/* SPDX-License-Identifier: Apache-2.0 */
/* How the next token is drawn from a model's logits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/device.h"

struct sampling {
	double temperature; /* 0: greedy */
	int64_t top_k;      /* 0: all */
	double top_p;       /* 1: all */
	double min_p;       /* only what is at least so many times as likely as the likeliest; 0: all */
	uint64_t seed;
};
/* The next id, chosen on the host in fp32 from generator_logits: temperature, then top_k, then top_p, then
 * min_p, as transformers does, but that ids which tie with the last one of top_p stay (device_choose). place:
 * position of the choice in the sequence; the same (seed, place, logits) give the same id. Greedy, or with a
 * top_k of 1, takes the lowest id among equals. */
int32_t sampling_choose(const struct sampling *s, const float *logits, int64_t vocab, int64_t place);
/* The options of device_choose for the same choice among the first `ids` of one row, which has no cap. */
struct device_choice sampling_choice(const struct sampling *s, int64_t ids);
/* The random number of a place, uniform in [0, 1), from (seed, place) alone. */
double sampling_uniform(uint64_t seed, uint64_t place);

/* What sampling_choose chooses among, in the order of the ids, and the probability of each: into ids and
 * probabilities, which have room for vocab of them. Returns their number: none has a probability of 0.
 * temperature is not 0. */
int64_t sampling_candidates(const struct sampling *s, const float *logits, int64_t vocab, int32_t *ids,
                            double *probabilities);

/* Makes the ids of a sequence less likely (penalty > 1), each once however often it occurs: negative logits
 * are multiplied by the penalty, others divided by it (Keskar et al. 2019, as in transformers). Ids from
 * vocab on are left out. work: vocab bytes. */
void sampling_penalize(float *logits, int64_t vocab, const int32_t *ids, size_t n, double penalty,
                       void *work);
